//! A claim's directory: the record of what is prepared, the limits files that the library reads, and the ledgers that it
//! writes.
//!
//! ```text
//! <claims>/                       0700, so that other users of the node cannot open the ledgers
//! <claims>/<uid>/entry.json       the record, readable by root only; written last
//! <claims>/<uid>/<share>/         a tmpfs of limited size, mounted read-only into containers
//!                        limits   0444
//!                        ledger   0666, mounted writable over the read-only folder
//! <claims>/<uid>/<request>.metadata.json   0444; mounted read-only into containers (`metadata`)
//! <claims>/<uid>/no-glibc         report of the hook, until the plugin takes it
//!                 no-glibc.taken  while the plugin creates events on the pods
//!                 not-started.<hook>  why a container did not start, by vgpu-cdi-hook or vgpu-driver-limit, until the
//!                                 plugin takes it
//!                 no-driver-limit why a container started without the driver's own limit, by vgpu-driver-limit
//! ```
//!
//! There is one copy of the record, beside the files that the claim's containers mount: an accident that removes it removes
//! the sources of these mounts too.
//!
//! ```text
//! {"version":1,"crc32":"1a2b3c4d","payload":{"uid":"...","claim":{...},"gpus":{...}}}
//! ```
//!
//! `vgpu_node::sealed` has the rules of that format. A record is replaced by rename and not synced: the
//! page cache outlives this process, and `/run` does not outlive the machine.
//!
//! Failure modes:
//! - A crash between two steps leaves the directory incomplete, and the next call creates what is missing. A
//!   ledger is renamed to its name once it is complete and is never rewritten, because it may be in use. The record is written
//!   before the CDI file and removed after it, so a directory without both belongs to a Prepare or an Unprepare that did not
//!   end.
//! - A record is damaged, or it is gone and the claim's CDI file is not: the limits files say which shares the claim has
//!   (`node::recover`).
//! - A tenant may write anything into its ledger, or truncate it. The tmpfs limits its size; the plugin reads
//!   it with a size limit and never maps it (`node::ledgers`).
//! - `/run` is full: a directory is removed without room, and a new claim is refused.
//! - After a reboot the directories are gone, and the next Prepare creates them again.

use crate::arbitration::SLOTS;
use crate::dra::checkpoint::{Entry, PreparedShare};
use crate::dra::metadata;
use crate::dra::mount_users::Device;
use crate::dra::share::{Role, Share};
use crate::publish::inventory::Gpu;
use crate::text::printable;
use crate::tmpfs::{self, Size};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use vgpu_abi::ledger;
use vgpu_abi::limits::{self, Limits};
use vgpu_abi::paths::{CONTAINER_DRIVER_DIR, LEDGER, LIBCUDA, LIBNVIDIA_ML, LIMITS};
use vgpu_api::config::{Capabilities, MemoryEnforcement};
use vgpu_api::request::{CORES_MAX, HOST_MEMORY_MAX};
use vgpu_context_size::ContextSize;
use vgpu_node::files::{self, Failed, failed};
use vgpu_node::sealed::{self, Damage};
use vgpu_node::selinux;

const RECORD: &str = "entry.json";
/// The hook's report of a container without glibc (its merge.rs), and its name once the plugin has taken it.
const NO_GLIBC: &str = "no-glibc";
const NO_GLIBC_TAKEN: &str = "no-glibc.taken";
/// The reason why a container of the claim started without the driver's limit (driver-limit/src/report.rs).
const NO_DRIVER_LIMIT: &str = "no-driver-limit";
/// With a hook's name, the reason why a container did not start (hook/src/report.rs).
const NOT_STARTED: &str = "not-started";
const HOOKS: [&str; 2] = ["vgpu-cdi-hook", "vgpu-driver-limit"];
/// Letters of a reason that are shown. A reason may begin with the path of a cgroup, nearly 200 letters.
const LONGEST_REASON: usize = 600;
/// The format of a record.
const VERSION: u32 = 1;
const MAX_RECORD: usize = 1 << 20;
/// A claim has at most 32 devices, of about a kilobyte each.
const MAX_METADATA: usize = 1 << 18;

/// Room for the ledger, the limits file, and a temporary copy of the latter while it is replaced.
fn share_size(limits: &Limits) -> Size {
    const LIMITS_FILE: u64 = 4096;
    Size::of_files([ledger::size(limits) as u64, LIMITS_FILE, LIMITS_FILE])
}

/// The folder with all claim directories.
#[derive(Clone, Debug)]
pub struct ClaimDirs {
    root: PathBuf,
    /// True if each share gets its own tmpfs.
    tmpfs: bool,
}

/// Returns the size of a CUDA context on a GPU, by its UUID; None if it is not known.
pub type ContextReserve<'a> = &'a dyn Fn(&str) -> Option<ContextSize>;

/// Why a claim directory cannot be created or removed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    File(#[from] Failed),
    #[error(
        "cannot mount a tmpfs at {}: {source}; run the plugin as root with CAP_SYS_ADMIN, \
         because a ledger on a shared file system could fill it",
        path.display()
    )]
    Mount { path: PathBuf, source: io::Error },
    #[error("the claim's record, {}: {source}; kubelet retries", path.display())]
    Record { path: PathBuf, source: io::Error },
}

/// A prepared claim, as stored in its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    uid: String,
    pub(crate) claim: Entry,
    /// The GPUs of its shares, by UUID and as they were published.
    pub(crate) gpus: BTreeMap<String, Gpu>,
}

// === impl ClaimDirs ===

impl ClaimDirs {
    #[must_use]
    pub fn new(root: PathBuf, tmpfs: bool) -> Self {
        Self { root, tmpfs }
    }

    /// Returns the directory of claim `uid`.
    #[must_use]
    pub fn claim_path(&self, uid: &str) -> PathBuf {
        self.root.join(uid)
    }

    /// Returns the file with the record of claim `uid`.
    #[must_use]
    pub fn record_path(&self, uid: &str) -> PathBuf {
        self.claim_path(uid).join(RECORD)
    }

    /// Returns the directory of a share of claim `uid`.
    #[must_use]
    pub fn share_path(&self, uid: &str, share: &str) -> PathBuf {
        self.root.join(uid).join(share)
    }

    /// Returns the file system of a share.
    #[must_use]
    pub fn share_device(&self, uid: &str, share: &str) -> Device {
        if !self.tmpfs {
            return Device::None;
        }
        let folder = self.share_path(uid, share);
        match (tmpfs::is_mounted(&folder), std::fs::metadata(&folder)) {
            (Ok(true), Ok(found)) => Device::Number(found.dev()),
            (Err(error), _) if error.kind() == io::ErrorKind::NotFound => Device::None,
            _ => Device::Unknown,
        }
    }

    /// Creates the folder of all claim directories, accessible to root only.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn ensure_root(&self) -> Result<(), Error> {
        Ok(files::private_folder(&self.root).map_err(failed("create", &self.root))?)
    }

    /// Creates what is missing of a claim's directory.
    ///
    /// # Errors
    /// The first step that fails.
    pub fn ensure(&self, uid: &str, entry: &Entry, context_reserve: ContextReserve<'_>) -> Result<(), Error> {
        self.ensure_root()?;
        let folder = self.claim_path(uid);
        create(&folder)?;
        self.remove_other_shares(uid, entry)?;
        for (order, PreparedShare { share, slot }) in entry.shares.iter().enumerate() {
            if share.role == Role::Share {
                let limits = limits_of(share, order, *slot, context_reserve(&share.gpu));
                self.ensure_share(uid, share, &limits)?;
            }
        }
        Ok(())
    }

    /// Removes shares of the claim's former results, which a crash left.
    fn remove_other_shares(&self, uid: &str, entry: &Entry) -> Result<(), Error> {
        let folder = self.claim_path(uid);
        let is_other = |name: &&String| entry.shares.iter().all(|prepared| prepared.share.name != **name);
        let found = files::folders(&folder).map_err(failed("list", &folder))?;
        for path in found.iter().filter(is_other).map(|name| folder.join(name)) {
            tmpfs::remove(&path).map_err(failed("unmount", &path))?;
            std::fs::remove_dir_all(&path).map_err(failed("remove", &path))?;
        }
        Ok(())
    }

    fn ensure_share(&self, uid: &str, share: &Share, limits: &Limits) -> Result<(), Error> {
        let folder = self.share_path(uid, &share.name);
        create(&folder)?;
        if self.tmpfs {
            tmpfs::ensure(&folder, share_size(limits)).map_err(|source| Error::Mount {
                path: folder.clone(),
                source,
            })?;
        }
        let path = folder.join(LEDGER);
        if !path.symlink_metadata().is_ok_and(|found| found.is_file()) {
            files::replace_zeros(&path, ledger::size(limits), &ledger::parts(limits), 0o666)
                .map_err(failed("write", &path))?;
        }
        let path = folder.join(LIMITS);
        // Write the file again if it names another driver or slot. A claim whose library is gone gets the current
        // library, which may find the driver elsewhere, and a rebuilt record may have another slot.
        let fits = |found: &Limits| {
            let expected = (&found.libcuda, found.slot) == (&limits.libcuda, limits.slot);
            expected && share_of(found).same_result(share)
        };
        if !read_limits(&path).is_some_and(|found| fits(&found)) {
            files::replace(&path, limits.render().as_bytes(), 0o444).map_err(failed("write", &path))?;
        }
        Ok(())
    }

    /// Returns what is in a file of a claim's metadata. None: it cannot be read.
    pub fn read_metadata(&self, uid: &str, file: &metadata::File) -> Option<Vec<u8>> {
        files::read_bounded(&self.claim_path(uid).join(file.name()), MAX_METADATA).ok()
    }

    /// Writes the metadata of a claim, whose directory exists, where it differs, and removes what is there of other requests.
    /// `is_new`: the claim was not prepared. Files found here are left over from an interrupted call, so generations begin at 1.
    ///
    /// # Errors
    /// The first step that fails.
    pub fn ensure_metadata(&self, uid: &str, wanted: &[metadata::File], is_new: bool) -> Result<(), Error> {
        let folder = self.claim_path(uid);
        for name in files::regular_files(&folder).map_err(failed("list", &folder))? {
            let is_other = name.ends_with(metadata::SUFFIX) && wanted.iter().all(|file| file.name() != name);
            let path = folder.join(&name);
            if is_other {
                std::fs::remove_file(&path).map_err(failed("remove", &path))?;
            }
        }
        for file in wanted {
            let path = folder.join(file.name());
            let found = match is_new {
                true => None,
                false => self.read_metadata(uid, file),
            };
            let Some(bytes) = file.replacement(found.as_deref()) else {
                continue;
            };
            files::replace(&path, &bytes, 0o444).map_err(failed("write", &path))?;
            if let Err((path, error)) = selinux::let_containers_read(&[path]) {
                // At its start the plugin has warned that it cannot set the library's label.
                tracing::debug!(file = %path.display(), %error, "the label of SELinux cannot be set");
            }
        }
        Ok(())
    }

    /// Reads the record of each claim that has a directory. `None`: the directory has no record.
    ///
    /// # Errors
    /// The claim directories cannot be listed.
    pub(crate) fn records(&self) -> Result<BTreeMap<String, Option<Result<Record, Damage>>>, Error> {
        let uids = self.uids()?.into_iter();
        Ok(uids.map(|uid| (uid.clone(), self.record(&uid))).collect())
    }

    fn record(&self, uid: &str) -> Option<Result<Record, Damage>> {
        match files::read_bounded(&self.record_path(uid), MAX_RECORD) {
            Ok(bytes) if bytes.len() > MAX_RECORD => Some(Err(Damage::Format(format!("more than {MAX_RECORD} bytes")))),
            Ok(bytes) => Some(Record::parse(uid, &bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => Some(Err(Damage::Unreadable(error.to_string()))),
        }
    }

    /// Writes the record of a claim, whose directory exists, if it differs. Returns true if it was written.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn save_record(&self, uid: &str, claim: &Entry, gpus: BTreeMap<String, Gpu>) -> Result<bool, Error> {
        let record = Record {
            uid: uid.to_owned(),
            claim: claim.clone(),
            gpus,
        };
        // Compare the records, not the bytes: a later release may have written fields that this one does not know.
        if self.record(uid) == Some(Ok(record.clone())) {
            return Ok(false);
        }
        let path = self.record_path(uid);
        let bytes = record.render().map_err(io::Error::from);
        let written = bytes.and_then(|bytes| files::replace(&path, &bytes, 0o600));
        written.map(|()| true).map_err(|source| Error::Record { path, source })
    }

    /// Removes a claim's directory, if it exists: first the record.
    ///
    /// # Errors
    /// A mount or a file cannot be removed.
    pub fn remove(&self, uid: &str) -> Result<(), Error> {
        let (folder, path) = (self.claim_path(uid), self.record_path(uid));
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(Error::Record { path, source }),
            _ => {}
        }
        for share in files::folders(&folder).map_err(failed("list", &folder))? {
            let path = folder.join(share);
            tmpfs::remove(&path).map_err(failed("unmount", &path))?;
        }
        match std::fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", &folder)(error).into()),
            _ => Ok(()),
        }
    }

    /// The UIDs of all claim directories.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn uids(&self) -> Result<Vec<String>, Error> {
        Ok(files::folders(&self.root).map_err(failed("list", &self.root))?)
    }

    /// Reads the shares of a claim from their limits files alone, with their slots if the files name them. Also returns
    /// the names of the shares whose file is missing or not valid.
    #[must_use]
    pub fn read_shares(&self, uid: &str) -> (Vec<PreparedShare>, Vec<String>) {
        let folder = self.claim_path(uid);
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for name in files::folders(&folder).unwrap_or_default() {
            match read_limits(&folder.join(&name).join(LIMITS)) {
                Some(limits) => found.push(limits),
                None => missing.push(name),
            }
        }
        found.sort_by_key(|limits| limits.order);
        let prepared = |limits: &Limits| PreparedShare {
            share: share_of(limits),
            slot: limits.slot,
        };
        (found.iter().map(prepared).collect(), missing)
    }

    /// Returns why a container of the claim started without the driver's own limit. None: none did.
    #[must_use]
    pub fn no_driver_limit(&self, uid: &str) -> Option<String> {
        read_reason(&self.claim_path(uid).join(NO_DRIVER_LIMIT))
    }

    /// Takes what the hooks say of containers that they did not let start, the newest of each hook.
    pub fn take_not_started(&self, uid: &str) -> Vec<String> {
        let take = |hook: &str| {
            let path = self.claim_path(uid).join(format!("{NOT_STARTED}.{hook}"));
            let why = read_reason(&path)?;
            // If it stays, it is reported again.
            let _ = std::fs::remove_file(&path);
            Some(why)
        };
        HOOKS.into_iter().filter_map(take).collect()
    }

    /// Takes the hook's report of a container without glibc. Returns true if there is one for which some pod of the claim
    /// has no event yet. The hook can then report again, for example for a later pod.
    pub fn take_no_glibc(&self, uid: &str) -> bool {
        let folder = self.claim_path(uid);
        let taken = folder.join(NO_GLIBC_TAKEN);
        std::fs::rename(folder.join(NO_GLIBC), &taken).is_ok() || taken.exists()
    }

    /// Removes the report that [`take_no_glibc`](Self::take_no_glibc) took.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn drop_no_glibc(&self, uid: &str) -> io::Result<()> {
        std::fs::remove_file(self.claim_path(uid).join(NO_GLIBC_TAKEN))
    }
}

fn read_reason(path: &Path) -> Option<String> {
    let bytes = files::read_bounded(path, 4 * LONGEST_REASON).ok()?;
    Some(printable(&String::from_utf8_lossy(&bytes), LONGEST_REASON))
}

// === impl Record ===

impl Record {
    fn render(&self) -> serde_json::Result<Vec<u8>> {
        sealed::seal(VERSION, self)
    }

    pub(crate) fn parse(uid: &str, bytes: &[u8]) -> Result<Self, Damage> {
        let record: Self = sealed::open(VERSION, bytes)?;
        record.check(uid).map_err(Damage::Format)?;
        Ok(record)
    }

    /// Amounts are added up and slots are used as indices, so amounts and slots that no GPU can have are damage.
    fn check(&self, uid: &str) -> Result<(), String> {
        if self.uid != uid {
            return Err(format!("it is the record of claim {:?}", self.uid));
        }
        for PreparedShare { share, slot } in &self.claim.shares {
            let Share {
                name,
                memory,
                host_memory,
                cores,
                ..
            } = share;
            let fits = *memory <= HOST_MEMORY_MAX && *host_memory <= HOST_MEMORY_MAX && *cores <= CORES_MAX;
            if !fits || slot.is_some_and(|slot| slot >= SLOTS) {
                return Err(format!(
                    "share {name} has {memory} bytes, {host_memory} of the host's, {cores} cores and slot {slot:?}"
                ));
            }
        }
        Ok(())
    }
}

/// The limits file of a share. `order` is its index in the claim, `slot` its page for arbitration.
fn limits_of(share: &Share, order: usize, slot: Option<u8>, context: Option<ContextSize>) -> Limits {
    let driver = Path::new(CONTAINER_DRIVER_DIR);
    Limits {
        share: share.name.clone(),
        // A claim has at most a few hundred results.
        order: u32::try_from(order).unwrap_or(u32::MAX),
        gpu: share.gpu.clone(),
        memory: share.memory,
        cores: share.cores,
        compute_policy: share.compute_policy,
        priority: share.priority,
        slot,
        host_memory: share.host_memory,
        context_reserve: context.map(|size| size.own),
        context_unowned: context.map_or(0, |size| size.unowned),
        libcuda: driver.join(LIBCUDA),
        libnvidia_ml: driver.join(LIBNVIDIA_ML),
    }
}

/// Restores a share from its limits file, if its record is lost.
fn share_of(limits: &Limits) -> Share {
    Share {
        name: limits.share.clone(),
        role: Role::Share,
        request: String::new(),
        device: String::new(),
        share_id: None,
        gpu: limits.gpu.clone(),
        memory: limits.memory,
        cores: limits.cores,
        compute_policy: limits.compute_policy,
        priority: limits.priority,
        host_memory: limits.host_memory,
        // `dra::node::recover` finds out.
        memory_enforcement: MemoryEnforcement::default(),
        report: None,
        driver_capabilities: Capabilities::default(),
    }
}

fn read_limits(path: &Path) -> Option<Limits> {
    Limits::parse(&files::read_bounded(path, limits::MAX_SIZE).ok()?).ok()
}

fn create(folder: &Path) -> Result<(), Failed> {
    std::fs::create_dir_all(folder).map_err(failed("create", folder))
}

#[cfg(test)]
#[path = "claimdir_tests.rs"]
mod tests;

//! The node's state machine: prepares and unprepares claims, and keeps a file of each (`records`).
//!
//! ```text
//!  Prepare    entry with the same results ─► create what is missing ─────────────► answer
//!             entry with other results ─► unprepare it ─┐
//!             no entry ─────────────────────────────────┴► room? ─► claim directory ─► arbitration
//!                                                     ─► CDI ─► the claim's files ─► node page ─► answer
//!  Unprepare  CDI ─► file on the disk ─► claim directory ─► node page      by UID alone, with or without an entry
//! ```
//!
//! Synchronous: a caller that goes away cannot stop it half-way (`shared`). Failure modes:
//! - A crash while preparing: nothing was answered before the claim's files were written. A claim directory without a file
//!   is an orphan, removed by the next start or completed by the next Prepare.
//! - A crash while unpreparing: a file is still there, or only an orphan; kubelet retries.
//! - A disk that is full or read-only: Prepare of a new claim is refused. Unprepare needs no room.
//! - A reboot: what was prepared before it is dormant. It holds nothing and only remembers the claim's library until the
//!   claim is prepared again.
//! - Two instances during a rolling update: each call holds the lock file, and reads the files again if the other instance
//!   had a turn.

mod former;
mod ledgers;
pub mod lock;
mod pages;
mod places;
mod recover;
mod renew;
pub mod room;
mod shared;
#[cfg(test)]
pub(crate) mod tests;
mod turn;

use crate::arbitration::{self, Arbitration};
use crate::checkpoint::{Checkpoint, Entry, FormerFile, Held, Stamp};
use crate::claim;
use crate::claimdir::{self, ClaimDirs, Terms};
use crate::config::Config;
use crate::crash_points::{CrashPoints, Stopped};
use crate::driver::{self, Driver, Finder};
use crate::edits::{self, Placed};
use crate::inventory::{Gpu, Inventory};
use crate::library::Library;
use crate::mount_users::ShareMount;
use crate::records::Records;
use crate::release::Release;
use crate::share::{ClaimId, Role, Share, ShareKeys};
use k8s_openapi::api::resource::v1::ResourceClaim;
pub use ledgers::LedgerReading;
use lock::{LockFile, Locked};
pub use places::NoRoom;
use room::Full;
pub use shared::SharedNode;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
pub use turn::Parts;
use turn::{Part, Turn};
use vgpu_abi::limits::is_share_name;
use vgpu_context_size::ContextSize;

/// A prepared device, as it is reported to kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    pub request: String,
    pub pool: String,
    pub device: String,
    pub cdi_device: String,
    pub share_id: Option<String>,
}

/// Why a claim cannot be prepared or unprepared.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("uid {0:?} is not a claim's UID")]
    Uid(String),
    #[error("the node's GPUs are not known yet: {0}; kubelet retries")]
    NoInventory(String),
    #[error(transparent)]
    Claim(#[from] claim::Error),
    #[error(transparent)]
    Full(#[from] Box<Full>),
    #[error(
        "the claim was allocated again, and a process of a former pod still has its share {share}; end that process if it \
         does not end by itself; kubelet retries"
    )]
    Used { share: String },
    #[error(
        "the claim was allocated again, and whether a process of a former pod still has its share is not known: {0}; use \
         another claim"
    )]
    UseUnknown(String),
    #[error(
        "its limits files on this node have other shares than its allocation; delete its pods, then it is prepared anew"
    )]
    OtherShares,
    #[error("GPU {0} is not in the driver's list any more; check nvidia-smi on the node")]
    GpuGone(String),
    #[error("device {device} takes no new claims: {why}")]
    Ailing { device: String, why: String },
    #[error(transparent)]
    Driver(#[from] driver::Error),
    #[error(transparent)]
    ClaimDir(#[from] claimdir::Error),
    #[error(transparent)]
    Arbitration(#[from] arbitration::Error),
    #[error(transparent)]
    Cdi(#[from] vgpu_cdi::store::Error),
    #[error("the claim's state, {}: {source}; kubelet retries", path.display())]
    Record { path: PathBuf, source: io::Error },
    #[error("the kernel's file {} does not say which boot this is: {source}", path.display())]
    Boot { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Lock(#[from] lock::Error),
    #[error(
        "the library is not installed on this node, and no claim can be prepared before it is: {0}; kubelet retries"
    )]
    Library(String),
    #[error("the call ended early, which is a mistake in the plugin: {0}; kubelet retries")]
    Ended(String),
    /// An error of the whole call, shared by all of its claims.
    #[error(transparent)]
    Shared(Arc<Error>),
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

impl Error {
    /// The reason under which the metric counts it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Uid(_) | Self::Claim(_) | Self::OtherShares => "claim",
            Self::Full(_) | Self::Used { .. } | Self::UseUnknown(_) => "full",
            Self::NoInventory(_) | Self::GpuGone(_) | Self::Ailing { .. } | Self::Driver(_) => "ailing",
            Self::Lock(_) => "lock",
            Self::Library(_) => "library",
            Self::ClaimDir(_) | Self::Arbitration(_) | Self::Cdi(_) | Self::Record { .. } | Self::Boot { .. } => {
                "files"
            }
            Self::Shared(error) => error.kind(),
            Self::Ended(_) | Self::Stopped(_) => "other",
        }
    }
}

/// The prepared claims of this node.
pub struct Node {
    config: Config,
    driver: Finder,
    dirs: ClaimDirs,
    arbitration: Arbitration,
    cdi: vgpu_cdi::store::Dir,
    library: Library,
    records: Records,
    /// The file of an older release, and its state when it was last read, if it could not be removed.
    former: FormerFile,
    former_seen: Option<Stamp>,
    /// Locked during each call, so that the other instance of a rolling update waits.
    lock: LockFile,
    checkpoint: Checkpoint,
    /// Entries that hold nothing, because they are of before a reboot or were unprepared. Their files are still there.
    dormant: BTreeMap<String, Entry>,
    /// False if memory may have what the files do not, so that the next call reads them again.
    is_read: bool,
    inventory: Result<Inventory, String>,
    /// What a context takes on each GPU, by UUID, as far as that was measured.
    contexts: BTreeMap<String, ContextSize>,
    /// GPUs whose node page does not say yet what the checkpoint does.
    stale_pages: BTreeSet<String>,
    /// Shares that were seen to break their limit.
    ignored: ShareKeys,
    /// Shares that containers have and whose claim is gone; None while that is not known.
    unclaimed: Option<ShareKeys>,
    /// UIDs of claims that a Prepare without room found to be gone, until `clean_up` takes them.
    suspects: BTreeSet<String>,
    /// When this instance prepared each claim for the first time.
    prepared_at: BTreeMap<String, Instant>,
    /// Descriptions of damaged files that have no event on the node yet.
    damages: Vec<String>,
    /// Those that lasted when the files were last read. They are told once.
    lasting_damages: BTreeSet<String>,
    /// How many claims were unprepared, so that a Prepare that waits for room sees a change.
    ended: u64,
    /// Claims that could not be unprepared, by UID, and the last error. kubelet retries them.
    not_unprepared: BTreeMap<String, (ClaimId, String)>,
    /// The driver whose files all CDI files name; None if that is not known.
    renewed_for: Option<Driver>,
    /// Claims whose files could not be renewed, and why.
    not_renewed: BTreeMap<String, String>,
    last_parts: Parts,
    living: Living,
    crash_points: Box<dyn CrashPoints>,
}

/// Says which of these shares have a container, or why that is not known.
pub type Living = Box<dyn Fn(&[ShareMount]) -> Result<ShareKeys, String> + Send>;

// === impl Node ===

impl Node {
    pub fn set_inventory(&mut self, inventory: Result<Inventory, String>) {
        self.inventory = inventory;
    }

    pub fn set_contexts(&mut self, contexts: BTreeMap<String, ContextSize>) {
        self.contexts = contexts;
    }

    #[must_use]
    pub fn claims(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The GPUs that are published, if the driver has answered.
    #[must_use]
    pub fn inventory(&self) -> Option<&Inventory> {
        self.inventory.as_ref().ok()
    }

    /// UUIDs of the GPUs that are published.
    #[must_use]
    pub fn gpus(&self) -> Vec<String> {
        let all = self.inventory.iter().flat_map(Inventory::by_index);
        all.map(|(_, gpu)| gpu.uuid.clone()).collect()
    }

    /// Name of this node's pool of devices.
    #[must_use]
    pub fn pool(&self) -> String {
        self.config.pool()
    }

    /// The name of the Node.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.config.node_name
    }

    #[must_use]
    pub fn dirs(&self) -> &ClaimDirs {
        &self.dirs
    }

    #[must_use]
    pub fn arbitration(&self) -> &Arbitration {
        &self.arbitration
    }

    /// The file systems of a claim's shares.
    #[must_use]
    pub fn share_mounts(&self, uid: &str) -> Vec<ShareMount> {
        let Some(entry) = self.checkpoint.claims.get(uid) else {
            return Vec::new();
        };
        let limited = entry.shares.iter().filter(|held| held.share.role == Role::Share);
        let mut names: Vec<String> = limited.map(|held| held.share.name.clone()).collect();
        if entry.name.is_empty() {
            // It was rebuilt from limits files, and those of other shares may be lost.
            names.extend(self.dirs.read_shares(uid).1);
        }
        let mount = |name: String| ShareMount {
            device: self.dirs.share_device(uid, &name),
            key: (uid.to_owned(), name),
        };
        names.into_iter().map(mount).collect()
    }

    /// Returns when this instance prepared a claim; None if a former one did.
    #[must_use]
    pub fn prepared_at(&self, uid: &str) -> Option<Instant> {
        self.prepared_at.get(uid).copied()
    }

    /// The entry of a claim, also if it is dormant.
    #[must_use]
    pub fn entry(&self, uid: &str) -> Option<&Entry> {
        self.checkpoint.claims.get(uid).or_else(|| self.dormant.get(uid))
    }

    /// All entries, also those that are dormant.
    pub fn entries(&self) -> impl Iterator<Item = (&String, &Entry)> {
        self.checkpoint.claims.iter().chain(&self.dormant)
    }

    /// Shares that containers have and whose claim is gone; None while that is not known.
    #[must_use]
    pub fn unclaimed(&self) -> Option<&ShareKeys> {
        self.unclaimed.as_ref()
    }

    pub fn set_unclaimed(&mut self, unclaimed: Option<ShareKeys>) {
        self.unclaimed = unclaimed;
    }

    /// Has `clean_up` ask about these claims next, which a Prepare without room found to be gone.
    pub fn suspect(&mut self, uids: impl IntoIterator<Item = String>) {
        self.suspects.extend(uids);
    }

    pub fn take_suspects(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.suspects)
    }

    /// Digest of the library to which new claims are bound; None if it is not installed.
    #[must_use]
    pub fn library(&self) -> Option<&str> {
        self.library.digest()
    }

    /// Installs the library if it is not there.
    ///
    /// # Errors
    /// Why it cannot be installed.
    pub fn ensure_library(&mut self, _locked: &Locked) -> Result<(), Error> {
        self.library.ensure().map(|_| ()).map_err(Error::Library)
    }

    /// Removes releases of the library that no claim and no instance uses.
    pub fn remove_unused_releases(&mut self, locked: &Locked) {
        let removed = self.begin_turn(locked).map(|_turn| {
            let used: Vec<&str> = self.entries().map(|(_, entry)| entry.library.as_str()).collect();
            self.library.keep(&used)
        });
        match removed {
            Ok(Ok(removed)) if removed.is_empty() => {}
            Ok(Ok(removed)) => tracing::info!(?removed, "removed releases of the library that nothing uses"),
            // A release that is not removed only takes disk space.
            Ok(Err(error)) => tracing::warn!(%error, "cannot remove a release of the library that nothing uses"),
            Err(error) => tracing::warn!(%error, "cannot tell which releases of the library are used"),
        }
    }

    /// Forces the next call to read the claims' files again.
    pub fn forget(&mut self) {
        self.is_read = false;
    }

    /// Prepares claims that were just read from the API server. Each succeeds or fails by itself.
    pub fn prepare(
        &mut self,
        locked: &Locked,
        batch: &[(ClaimId, ResourceClaim)],
    ) -> Vec<Result<Vec<Prepared>, Error>> {
        let mut turn = match self.begin_turn(locked) {
            Ok(turn) => turn,
            Err(error) => return all_fail(batch.len(), error),
        };
        turn.lap(Part::State);
        let mut answers: Vec<_> = batch
            .iter()
            .map(|(id, claim)| self.prepare_one(id, claim, &mut turn))
            .collect();
        if let Err(error) = self.write_node_pages() {
            fail_rest(&mut answers, error);
        }
        turn.lap(Part::Pages);
        self.last_parts = turn.parts;
        answers
    }

    /// How long the parts of the last Prepare took.
    #[must_use]
    pub fn last_parts(&self) -> Parts {
        self.last_parts
    }

    /// Claims whose last Unprepare failed, and why.
    #[must_use]
    pub fn not_unprepared(&self) -> Vec<(ClaimId, String)> {
        self.not_unprepared.values().cloned().collect()
    }

    /// Remembers how an Unprepare ended, for the event on the claim's pods.
    pub fn note_unprepare(&mut self, id: &ClaimId, answer: &Result<(), Error>) {
        match answer {
            Ok(()) => drop(self.not_unprepared.remove(&id.uid)),
            Err(error) => drop(
                self.not_unprepared
                    .insert(id.uid.clone(), (id.clone(), error.to_string())),
            ),
        }
    }

    /// Unprepares claims. Each succeeds or fails by itself; a claim that was never prepared succeeds.
    pub fn unprepare(&mut self, locked: &Locked, uids: &[&str]) -> Vec<Result<(), Error>> {
        if let Err(error) = self.begin_turn(locked) {
            return all_fail(uids.len(), error);
        }
        let answers: Vec<_> = uids.iter().map(|uid| self.remove(uid)).collect();
        self.write_node_pages_or_warn();
        answers
    }

    /// Prepares one claim. If it has the same shares already, only completes what is missing.
    fn prepare_one(&mut self, id: &ClaimId, claim: &ResourceClaim, turn: &mut Turn) -> Result<Vec<Prepared>, Error> {
        check_uid(&id.uid)?;
        let inventory = self.inventory.as_ref().map_err(|why| Error::NoInventory(why.clone()))?;
        let shares = claim::shares(claim, &self.config.pool(), inventory)?;
        if let Some(entry) = self.checkpoint.claims.get(&id.uid) {
            if same_results(&entry.shares, &shares) {
                let known = entry.clone();
                let mut entry = known.clone();
                entry.pods = claim::pods(claim);
                // An entry that was rebuilt from limits files gets its names back.
                if entry.name != id.name || entry.shares.iter().any(|held| held.share.request.is_empty()) {
                    entry.name_as(id, &shares);
                }
                self.materialize(&id.uid, &mut entry, false, turn)?;
                self.keep(&id.uid, &known, entry)?;
                turn.lap(Part::Record);
                return Ok(self.answer(&id.uid, &shares));
            }
            // The pod was force-deleted, and another one got the claim.
            self.check_unused(&id.uid)?;
            self.remove(&id.uid)?;
        }
        let mut entry = self.admit(id, &shares)?;
        entry.pods = claim::pods(claim);
        if let Some(former) = self.dormant.get(&id.uid) {
            entry.library.clone_from(&former.library);
            // A ledger of before a reboot is nobody's.
            self.dirs.remove(&id.uid, self.crash_points.as_mut())?;
        }
        let made = self
            .materialize(&id.uid, &mut entry, true, turn)
            .and_then(|()| self.save(&id.uid, &entry));
        turn.lap(Part::Record);
        if let Err(error) = made {
            if !stopped(&error) {
                // Best effort: kubelet also unprepares a claim whose Prepare failed.
                let _ = self.remove_files(&id.uid);
            }
            return Err(error);
        }
        let answer = self.answer(&id.uid, &shares);
        self.checkpoint.claims.insert(id.uid.clone(), entry);
        self.dormant.remove(&id.uid);
        self.prepared_at.insert(id.uid.clone(), Instant::now());
        self.note_gpus();
        Ok(answer)
    }

    /// Refuses to give away shares of a claim's former allocation that a container has, or may have.
    fn check_unused(&self, uid: &str) -> Result<(), Error> {
        match (self.living)(&self.share_mounts(uid)) {
            Ok(living) => match living.into_iter().next() {
                None => Ok(()),
                Some((_, share)) => Err(Error::Used { share }),
            },
            Err(why) => Err(Error::UseUnknown(why)),
        }
    }

    /// Creates what is missing of a claim on the node. If the claim's library is gone, this also binds `entry` to the
    /// current one. `new`: the claim's slots may have the demand of former owners and are cleared.
    fn materialize(&mut self, uid: &str, entry: &mut Entry, new: bool, turn: &mut Turn) -> Result<(), Error> {
        turn.lap(Part::State);
        // Searched here, so that the time of the search is a part of its own. The turn keeps what it found.
        turn.driver(&self.driver)?;
        turn.lap(Part::Driver);
        let driver = turn.driver(&self.driver)?;
        if !self.library.has(&entry.library) {
            let current = self.library.ensure().map_err(Error::Library)?;
            tracing::warn!(
                uid,
                lost = entry.library,
                bound = current,
                "library of a prepared claim is gone; it gets the current one"
            );
            entry.library = current.to_owned();
        }
        let mut placed = Vec::new();
        for held in &entry.shares {
            let gpu = self.gpu(&held.share.gpu)?;
            placed.push(Placed {
                share: &held.share,
                slot: held.slot,
                nodes: self.driver.root().gpu_nodes(gpu, held.share.driver_capabilities)?,
                reported: held.share.reported(gpu),
            });
        }
        let claim_dir = self.dirs.claim_path(uid);
        let library = self.library.folder(&entry.library);
        let release = Release::in_folder(&library);
        let inputs = edits::Inputs {
            claim_dir: &claim_dir,
            gpus_dir: &self.config.gpus_dir,
            library: &library,
            driver,
            visible_devices: self.config.visible_devices,
        };
        let spec = edits::spec(&inputs, uid, &placed);
        turn.lap(Part::Cdi);

        let (fixed, measured) = (self.config.context_reserve, &self.contexts);
        let reserve = |gpu: &str| match fixed {
            0 => measured.get(gpu).copied(),
            own => Some(ContextSize { own, unowned: 0 }),
        };
        let terms = Terms {
            context_reserve: &reserve,
            release,
        };
        self.dirs.ensure(uid, entry, terms, self.crash_points.as_mut())?;
        turn.lap(Part::Directory);
        for held in &entry.shares {
            let Some(slot) = held.slot else { continue };
            turn.arbitration(&self.arbitration, &held.share.gpu)?;
            self.stale_pages.insert(held.share.gpu.clone());
            if new {
                self.arbitration.clear(&held.share.gpu, slot)?;
            }
        }
        self.crash_points.reached("arbitration")?;
        turn.lap(Part::Arbitration);
        // A spec that differs is of an older driver; one that cannot be read is damaged.
        if !matches!(self.cdi.read(uid), Ok(Some(found)) if found == spec) {
            self.cdi.write(&spec, uid)?;
            self.crash_points.reached("CDI spec")?;
        }
        turn.lap(Part::Cdi);
        Ok(())
    }

    /// Returns a GPU as it was last seen. Before the first scan, those on which claims hold shares are known.
    fn gpu(&self, uuid: &str) -> Result<&Gpu, Error> {
        let seen = self.inventory.as_ref().ok().and_then(|inventory| inventory.gpu(uuid));
        let known = seen.or_else(|| self.checkpoint.gpus.get(uuid));
        known.ok_or_else(|| Error::GpuGone(uuid.to_owned()))
    }

    fn answer(&self, uid: &str, shares: &[Share]) -> Vec<Prepared> {
        let pool = self.config.pool();
        let device = |share: &Share| Prepared {
            request: share.base_request().to_owned(),
            pool: pool.clone(),
            device: share.device.clone(),
            cdi_device: edits::qualified_name(uid, &share.name),
            share_id: share.share_id.clone(),
        };
        shares.iter().map(device).collect()
    }

    fn remove(&mut self, uid: &str) -> Result<(), Error> {
        check_uid(uid)?;
        self.ended += 1;
        self.remove_files(uid)?;
        self.prepared_at.remove(uid);
        self.dormant.remove(uid);
        if let Some(entry) = self.checkpoint.claims.remove(uid) {
            self.stale_pages
                .extend(entry.shares.into_iter().map(|held| held.share.gpu));
            self.note_gpus();
        }
        Ok(())
    }

    fn remove_files(&mut self, uid: &str) -> Result<(), Error> {
        // The CDI spec goes first, so that no container can start with files that are removed next.
        self.cdi.remove(uid)?;
        self.crash_points.reached("CDI spec removed")?;
        self.records.end(uid).map_err(record_error)?;
        self.crash_points.reached("record removed")?;
        self.dirs.remove(uid, self.crash_points.as_mut())?;
        Ok(())
    }

    /// Writes the files of a claim that is prepared, as far as they differ.
    fn save(&mut self, uid: &str, entry: &Entry) -> Result<(), Error> {
        let held = entry.shares.iter().map(|held| &held.share.gpu);
        let known = held.filter_map(|uuid| Some((uuid.clone(), self.gpu(uuid).ok()?.clone())));
        let gpus = known.collect();
        if self.records.save(uid, entry, gpus).map_err(record_error)? {
            self.crash_points.reached("record")?;
        }
        Ok(())
    }

    /// Takes over the entry of a claim that is prepared. If only files of it are missing or its pods have changed, it stays
    /// prepared on a disk that is full.
    fn keep(&mut self, uid: &str, known: &Entry, entry: Entry) -> Result<(), Error> {
        let is_same = || {
            let pods = known.pods.clone();
            *known == Entry { pods, ..entry.clone() }
        };
        match self.save(uid, &entry) {
            Err(error) if stopped(&error) || !is_same() => return Err(error),
            Err(error) => tracing::debug!(uid, "{error}"),
            Ok(()) => {}
        }
        self.checkpoint.claims.insert(uid.to_owned(), entry);
        Ok(())
    }

    /// Notes the GPUs on which claims hold shares now.
    fn note_gpus(&mut self) {
        let shares = self.checkpoint.claims.values().flat_map(|entry| &entry.shares);
        let held: BTreeSet<String> = shares.map(|held| held.share.gpu.clone()).collect();
        let mut gpus = std::mem::take(&mut self.checkpoint.gpus);
        gpus.retain(|uuid, _| held.contains(uuid));
        if let Ok(inventory) = &self.inventory {
            let known = held.iter().filter_map(|uuid| inventory.gpu(uuid));
            gpus.extend(known.map(|gpu| (gpu.uuid.clone(), gpu.clone())));
        }
        self.checkpoint.gpus = gpus;
    }

    /// Reads the claims' files again if another instance had a turn. `locked` is the proof that none has one now.
    fn begin_turn(&mut self, _locked: &Locked) -> Result<Turn, Error> {
        let is_mine = self.records.is_still_mine();
        let has_former = self.former.stamp().is_some_and(|stamp| self.former_seen != Some(stamp));
        if !self.is_read || !is_mine || has_former {
            self.is_read = false;
            self.read_state()?;
            self.is_read = true;
        }
        Ok(Turn::default())
    }
}

fn record_error((path, source): (PathBuf, io::Error)) -> Error {
    Error::Record { path, source }
}

/// Fails every claim of a call with the same error.
pub(crate) fn all_fail<T>(count: usize, error: Error) -> Vec<Result<T, Error>> {
    let error = Arc::new(error);
    (0..count).map(|_| Err(Error::Shared(error.clone()))).collect()
}

/// Fails the claims that succeeded, because their changes could not be saved.
fn fail_rest<T>(answers: &mut [Result<T, Error>], error: Error) {
    let error = Arc::new(error);
    for answer in answers.iter_mut().filter(|answer| answer.is_ok()) {
        *answer = Err(Error::Shared(error.clone()));
    }
}

fn same_results(held: &[Held], shares: &[Share]) -> bool {
    held.len() == shares.len()
        && held
            .iter()
            .zip(shares)
            .all(|(held, share)| held.share.same_result(share))
}

fn stopped(error: &Error) -> bool {
    matches!(error, Error::Stopped(_) | Error::ClaimDir(claimdir::Error::Stopped(_)))
}

/// Accepts only UIDs that are safe as the name of a folder or file.
fn check_uid(uid: &str) -> Result<(), Error> {
    if is_share_name(uid) {
        Ok(())
    } else {
        Err(Error::Uid(uid.to_owned()))
    }
}

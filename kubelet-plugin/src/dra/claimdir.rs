//! Claim directories: the limits files that the library reads, and the ledgers that it writes.
//!
//! ```text
//! <claims>/                       0700, so that other users of the node cannot open the ledgers
//! <claims>/<uid>/entry.json       what this claim holds, readable by root only; written last (records.rs)
//! <claims>/<uid>/<share>/         a tmpfs of limited size, mounted read-only into containers
//!                        limits   0444
//!                        ledger   0666, mounted writable over the read-only folder
//! <claims>/<uid>/no-glibc         report of the hook, until the plugin takes it
//!                 no-glibc.taken  while the plugin creates events on the pods
//! ```
//!
//! Failure modes:
//! - A crash between two steps leaves the directory incomplete, and the next call creates what is missing. A
//!   ledger is renamed to its name once it is complete and is never rewritten, because it may be in use.
//! - A tenant may write anything into its ledger, or truncate it. The tmpfs limits its size; the plugin reads
//!   it with a size limit and never maps it.
//! - After a reboot the directories are gone, and the next Prepare creates them again.

use crate::dra::checkpoint::{Entry, Held};
use crate::dra::mount_users::Device;
use crate::dra::share::{Role, Share};
use crate::files;
use crate::tmpfs::{self, Size};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use vgpu_abi::ledger::{self, Usage};
use vgpu_abi::limits::{self, Limits};
use vgpu_abi::paths::{LEDGER, LIMITS};
use vgpu_context_size::ContextSize;
use vgpu_node::locks;

const ENTRY: &str = "entry.json";
/// The hook's report of a container without glibc (its merge.rs), and its name once the plugin has taken it.
const NO_GLIBC: &str = "no-glibc";
const NO_GLIBC_TAKEN: &str = "no-glibc.taken";
/// Room for the ledger, the limits file, and a temporary copy of one of them while it is replaced.
fn share_size(limits: &Limits) -> Size {
    Size {
        bytes: ledger::size(limits) as u64 + 8192,
        files: 3,
    }
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
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error(
        "cannot mount a tmpfs at {}: {source}; run the plugin as root with CAP_SYS_ADMIN, \
         because a ledger on a shared file system could fill it",
        path.display()
    )]
    Mount { path: PathBuf, source: io::Error },
}

/// Why a ledger cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// Its tenant damaged it, or it has the format of another release.
    #[error(transparent)]
    Damage(#[from] ledger::Damage),
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

    /// Returns the file with what claim `uid` holds.
    #[must_use]
    pub fn entry_path(&self, uid: &str) -> PathBuf {
        self.claim_path(uid).join(ENTRY)
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
        files::private_folder(&self.root).map_err(failed("create", &self.root))
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
        for (order, held) in entry.shares.iter().enumerate() {
            if held.share.role == Role::Share {
                let limits = held.share.limits(order, held.slot, context_reserve(&held.share.gpu));
                self.ensure_share(uid, &held.share, &limits)?;
            }
        }
        Ok(())
    }

    /// Removes shares of the claim's former results, which a crash left.
    fn remove_other_shares(&self, uid: &str, entry: &Entry) -> Result<(), Error> {
        let folder = self.claim_path(uid);
        let is_other = |name: &&String| entry.shares.iter().all(|held| held.share.name != **name);
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
        // Written again if it names another driver or slot: a claim whose library is gone gets the current one, which may find
        // the driver elsewhere, and a rebuilt record may have another slot.
        let fits = |found: &Limits| {
            let expected = (&found.libcuda, found.slot) == (&limits.libcuda, limits.slot);
            expected && Share::from_limits(found).same_result(share)
        };
        if !read_limits(&path).is_some_and(|found| fits(&found)) {
            files::replace(&path, limits.render().as_bytes(), 0o444).map_err(failed("write", &path))?;
        }
        Ok(())
    }

    /// Removes a claim's directory, if it exists.
    ///
    /// # Errors
    /// A mount or a file cannot be removed.
    pub fn remove(&self, uid: &str) -> Result<(), Error> {
        let folder = self.claim_path(uid);
        for share in files::folders(&folder).map_err(failed("list", &folder))? {
            let path = folder.join(share);
            tmpfs::remove(&path).map_err(failed("unmount", &path))?;
        }
        match std::fs::remove_dir_all(&folder) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(failed("remove", &folder)(source)),
            _ => Ok(()),
        }
    }

    /// The UIDs of all claim directories.
    ///
    /// # Errors
    /// The folder cannot be listed.
    pub fn uids(&self) -> Result<Vec<String>, Error> {
        files::folders(&self.root).map_err(failed("list", &self.root))
    }

    /// Reads the shares of a claim from their limits files alone, with their slots if the files name them. Also returns
    /// the names of the shares whose file is missing or not valid.
    #[must_use]
    pub fn read_shares(&self, uid: &str) -> (Vec<Held>, Vec<String>) {
        let folder = self.claim_path(uid);
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for name in files::folders(&folder).unwrap_or_default() {
            match read_limits(&folder.join(&name).join(LIMITS)) {
                Some(limits) => found.push(limits),
                None => missing.push(name),
            }
        }
        found.sort_by_key(|limits| limits.order);
        let held = |limits: &Limits| Held {
            share: Share::from_limits(limits),
            slot: limits.slot,
        };
        (found.iter().map(held).collect(), missing)
    }

    /// Reads from the ledger how much memory and how many processes a share has. `buffer` is reused between calls.
    ///
    /// # Errors
    /// The ledger cannot be read, or is damaged.
    pub fn usage(&self, uid: &str, share: &Share, buffer: &mut Vec<u8>) -> Result<Usage, LedgerError> {
        read_ledger(&self.share_path(uid, &share.name).join(LEDGER), buffer)?;
        Ok(ledger::read(buffer)?)
    }

    /// Returns how many of the share's processes live; `ledger` is what [`usage`](Self::usage) has read. `None` if the
    /// file can no longer be opened.
    #[must_use]
    pub fn living(&self, uid: &str, share: &Share, ledger: &[u8]) -> Option<usize> {
        let (file, _) = files::open_regular(&self.share_path(uid, &share.name).join(LEDGER)).ok()?;
        let is_locked = |offset| locks::is_locked(&file, offset, 1).unwrap_or(false);
        Some(ledger::living(ledger, is_locked))
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

/// Reads a ledger's file without the part that has only zeros, because a scrape spends most of its time on the copy.
fn read_ledger(path: &Path, buffer: &mut Vec<u8>) -> Result<(), LedgerError> {
    let (file, length) = files::open_regular(path)?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if ![ledger::SIZE, ledger::MAX_SIZE].contains(&length) {
        return Err(ledger::Damage::Size(length).into());
    }
    buffer.resize(length, 0);
    for (number, one) in buffer.chunks_exact_mut(ledger::SIZE).enumerate() {
        let at = (number * ledger::SIZE) as u64;
        let (head, rest) = one.split_at_mut(ledger::FIRST_OBJECT_AT);
        file.read_exact_at(head, at)?;
        // Read the number of objects again, after the lanes: a charge may have moved from a lane to a new object.
        let count = ledger::OBJECTS_USED_AT..ledger::OBJECTS_USED_AT + 8;
        file.read_exact_at(&mut head[count.clone()], at + count.start as u64)?;
        let unused = ledger::never_used(head);
        for part in [ledger::FIRST_OBJECT_AT..unused.start, unused.end..ledger::SIZE] {
            let read = &mut rest[part.start - ledger::FIRST_OBJECT_AT..part.end - ledger::FIRST_OBJECT_AT];
            file.read_exact_at(read, at + part.start as u64)?;
        }
        rest[unused.start - ledger::FIRST_OBJECT_AT..unused.end - ledger::FIRST_OBJECT_AT].fill(0);
    }
    Ok(())
}

fn read_limits(path: &Path) -> Option<Limits> {
    Limits::parse(&files::read_bounded(path, limits::MAX_SIZE).ok()?).ok()
}

fn create(folder: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(folder).map_err(failed("create", folder))
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_path_buf();
    move |source| Error::Io { action, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::share::tests::share;
    use std::os::unix::fs::PermissionsExt as _;

    fn entry() -> Entry {
        let held = |name| Held {
            share: share(name),
            slot: Some(0),
        };
        Entry {
            namespace: "d".into(),
            name: "c".into(),
            library: "f".repeat(64),
            shares: vec![held("s1"), held("s2")],
            pods: Vec::new(),
        }
    }

    const fn size(own: u64) -> ContextSize {
        ContextSize { own, unowned: 2 }
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).expect("there").permissions().mode() & 0o7777
    }

    fn make_use_and_remove(dirs: &ClaimDirs) {
        dirs.ensure("u", &entry(), &|_| Some(size(7))).expect("made");
        let folder = dirs.share_path("u", "s2");
        let limits = Limits::parse(&std::fs::read(folder.join(LIMITS)).expect("read")).expect("limits");
        assert_eq!((limits.order, limits.context_reserve), (1, Some(7)));
        assert_eq!(mode(&folder.join(LIMITS)), 0o444);
        assert_eq!(mode(&folder.join(LEDGER)), 0o666);
        assert_eq!(mode(&dirs.root), 0o700);
        assert_eq!(
            dirs.usage("u", &share("s2"), &mut Vec::new()).expect("a ledger"),
            Usage::default()
        );
        assert_eq!(dirs.uids().expect("listed"), ["u"]);

        std::fs::write(folder.join(LEDGER), "in use").expect("written");
        dirs.ensure("u", &entry(), &|_| Some(size(9))).expect("made");
        assert_eq!(
            std::fs::read(folder.join(LEDGER)).expect("read"),
            b"in use",
            "a ledger is never made anew"
        );
        assert_eq!(dirs.read_shares("u").0.len(), 2);
        dirs.remove("u").expect("removed");
        dirs.remove("u").expect("removed again");
        assert!(dirs.uids().expect("listed").is_empty());
    }

    #[test]
    fn on_plain_folders() {
        let dir = tempfile::tempdir().expect("a folder");
        make_use_and_remove(&ClaimDirs::new(dir.path().join("claims"), false));
    }

    #[test]
    fn on_tmpfs_a_tenant_cannot_fill_the_node() {
        if !tmpfs::tests::can_mount("on_tmpfs_a_tenant_cannot_fill_the_node") {
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let dirs = ClaimDirs::new(dir.path().join("claims"), true);
        make_use_and_remove(&dirs);
        dirs.ensure("u", &entry(), &|_| None).expect("made");
        assert!(tmpfs::is_mounted(&dirs.share_path("u", "s1")).expect("looked at"));
        let number = |share| match dirs.share_device("u", share) {
            Device::Number(number) => Some(number),
            _ => None,
        };
        assert!(number("s1").is_some() && number("s1") != number("s2"));
        assert_eq!(dirs.share_device("u", "s3"), Device::None);
        tmpfs::remove(&dirs.share_path("u", "s2")).expect("unmounted by hand");
        assert_eq!(dirs.share_device("u", "s2"), Device::Unknown);
        let grown = std::fs::write(dirs.share_path("u", "s1").join(LEDGER), vec![1; 2 * ledger::SIZE]);
        assert!(grown.is_err(), "a ledger outgrew its tmpfs");
        dirs.remove("u").expect("removed");
    }

    #[test]
    fn hostile_ledgers_say_nothing_and_take_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let dirs = ClaimDirs::new(dir.path().join("claims"), false);
        dirs.ensure("u", &entry(), &|_| None).expect("made");
        let path = dirs.share_path("u", "s1").join(LEDGER);
        for bytes in [vec![], vec![0; 1], vec![0xff; ledger::SIZE], vec![0; 10 * ledger::SIZE]] {
            std::fs::write(&path, &bytes).expect("written");
            let error = dirs.usage("u", &share("s1"), &mut Vec::new()).expect_err("no ledger");
            assert!(matches!(error, LedgerError::Damage(_)), "{error}");
        }
        std::fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink("/etc/passwd", &path).expect("a link");
        assert!(matches!(
            dirs.usage("u", &share("s1"), &mut Vec::new()),
            Err(LedgerError::Io(_))
        ));
    }

    /// Two processes with a lane each: the second was killed.
    #[test]
    fn a_process_that_was_killed_is_not_living() {
        let dir = tempfile::tempdir().expect("a folder");
        let dirs = ClaimDirs::new(dir.path().join("claims"), false);
        dirs.ensure("u", &entry(), &|_| None).expect("made");
        let path = dirs.share_path("u", "s1").join(LEDGER);
        let mut bytes = std::fs::read(&path).expect("read");
        for index in [1, 2] {
            let at = ledger::FIRST_LANE_AT + index * ledger::LINE;
            bytes[at + ledger::lane::GENERATION] = 1;
            bytes[at + ledger::lane::PID] = index as u8;
            bytes[at + ledger::lane::PROCESS] = index as u8;
        }
        std::fs::write(&path, &bytes).expect("written");
        let process = std::fs::File::options().write(true).open(&path).expect("opened");
        let lock = locks::exclusive((ledger::FIRST_LANE_AT + ledger::LINE) as u64, 1);
        nix::fcntl::fcntl(&process, nix::fcntl::FcntlArg::F_OFD_SETLK(&lock)).expect("locked");
        let mut buffer = Vec::new();
        let usage = dirs.usage("u", &share("s1"), &mut buffer).expect("a ledger");
        assert_eq!(usage.processes.len(), 2);
        let living = |buffer: &[u8]| dirs.living("u", &share("s1"), buffer);
        assert_eq!(living(&buffer), Some(1));
        drop(process);
        assert_eq!(living(&buffer), Some(0));
    }

    #[test]
    fn only_objects_that_were_never_used_are_left_out_of_a_read() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, mut buffer) = (dir.path().join("ledger"), Vec::new());
        let used_at = |at: usize| at + ledger::OBJECTS_USED_AT..at + ledger::OBJECTS_USED_AT + 8;
        for (size, used) in [
            (ledger::MAX_SIZE, [3, 0]),
            (ledger::SIZE, [0, 0]),
            (ledger::SIZE, [512, 0]),
            (ledger::MAX_SIZE, [u64::MAX, 1]),
        ] {
            let mut bytes: Vec<u8> = (0..size).map(|at| (at % 251) as u8 | 1).collect();
            for (at, used) in (0..size).step_by(ledger::SIZE).zip(used) {
                bytes[used_at(at)].copy_from_slice(&used.to_le_bytes());
            }
            std::fs::write(&path, &bytes).expect("written");
            read_ledger(&path, &mut buffer).expect("read");
            for (at, used) in (0..size).step_by(ledger::SIZE).zip(used) {
                let first =
                    at + ledger::FIRST_OBJECT_AT + usize::try_from(used.min(512)).expect("small") * ledger::LINE;
                bytes[first..at + ledger::SIZE - ledger::LINE].fill(0);
            }
            assert!(buffer == bytes, "{size} {used:?}");
        }
    }

    #[test]
    fn a_damaged_limits_file_is_written_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let dirs = ClaimDirs::new(dir.path().join("claims"), false);
        dirs.ensure("u", &entry(), &|_| None).expect("made");
        let path = dirs.share_path("u", "s1").join(LIMITS);
        std::fs::remove_file(&path).expect("removed");
        std::fs::write(&path, "vgpu-limits 1\n").expect("written");
        dirs.ensure("u", &entry(), &|_| None).expect("made");
        assert!(read_limits(&path).is_some());
    }

    #[test]
    fn a_limits_file_that_is_missing_or_in_the_way_is_named() {
        let dir = tempfile::tempdir().expect("a folder");
        let dirs = ClaimDirs::new(dir.path().join("claims"), false);
        dirs.ensure("u", &entry(), &|_| None).expect("made");
        let path = dirs.share_path("u", "s2").join(LIMITS);
        std::fs::remove_file(&path).expect("removed");
        let (shares, missing) = dirs.read_shares("u");
        assert_eq!((shares.len(), missing), (1, vec!["s2".to_owned()]));
        std::fs::create_dir(&path).expect("in the way");
        let error = dirs.ensure("u", &entry(), &|_| None).expect_err("not made");
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }

    #[test]
    fn the_hooks_report_is_taken_until_it_is_dropped_and_comes_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let dirs = ClaimDirs::new(dir.path().join("claims"), false);
        dirs.ensure("u", &entry(), &|_| None).expect("made");
        for _ in 0..2 {
            assert!(!dirs.take_no_glibc("u"));
            std::fs::write(dirs.claim_path("u").join(NO_GLIBC), "").expect("written");
            assert!(dirs.take_no_glibc("u") && dirs.take_no_glibc("u"), "no event yet");
            dirs.drop_no_glibc("u").expect("dropped");
        }
        dirs.remove("u").expect("removed");
        assert!(!dirs.take_no_glibc("u"));
    }
}

//! Installs releases of the library on the node:
//! `<store>/<sha256>/{libvgpu.so,libvgpu-preload.so,vgpu-cdi-hook,vgpu-driver-limit}`.
//!
//! Running containers have these files mapped, so a release is never overwritten: it is written under a
//! temporary name and renamed to its digest, and an existing one is verified. The store must not be mounted
//! noexec: ld.so then ignores the preload library, and the limit would not be enforced.
//!
//! Failure modes:
//! - A crash while a release is installed or removed leaves a temporary folder, which the next start removes.
//! - The disk is full, or the release is not complete: no new claim gets it, and everything else works. It is tried
//!   again.
//! - Two instances during a rolling update: each has a shared lock on the folder of its release, and an instance removes a
//!   release only with an exclusive lock.
//! - A release that is lost while it is in use is installed again.
//! - Where the kernel has SELinux, store and release get a label with which containers may load the library. If that fails,
//!   because the node's policy has no such label, the log says which command may help, and the release is used anyway.

use rustix::fs::{FlockOperation, StatVfsMountFlags, flock};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::fs::{File, Permissions};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use vgpu_abi::paths::{DRIVER_LIMIT_FILE, HOOK_FILE, PRELOAD_FILE, SHIM_FILE};
use vgpu_node::files::{Failed, failed};
use vgpu_node::selinux;

const FILES: [&str; 4] = [SHIM_FILE, PRELOAD_FILE, HOOK_FILE, DRIVER_LIMIT_FILE];
const TEMPORARY: &str = ".new-";

/// The store of releases, and the release that new claims get.
#[derive(Debug)]
pub(crate) struct Library {
    source: PathBuf,
    store: PathBuf,
    current: Result<Installed, String>,
}

/// An installed release, which no other instance removes.
#[derive(Debug)]
struct Installed {
    digest: String,
    /// The folder, with a shared lock while this process lives.
    _in_use: File,
}

/// Why the library cannot be installed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    File(#[from] Failed),
    #[error("--library-dir {} has no {file}; it must hold {}", folder.display(), FILES.join(", "))]
    Missing { folder: PathBuf, file: &'static str },
    #[error(
        "{} is mounted noexec, where ld.so ignores the library and limits would not be enforced; \
         mount it with exec, or name another folder by the chart's plugin.libraryStore (--library-store)",
        .0.display()
    )]
    NoExec(PathBuf),
    #[error("{} was changed after it was installed; remove it and start the plugin again", .0.display())]
    Changed(PathBuf),
}

// === impl Library ===

impl Library {
    /// Opens the store and installs the release in `source`, unless it is installed already. If that fails, claims that
    /// have a release already can be prepared and unprepared. One instance at a time, by the lock of the node.
    #[must_use]
    pub(crate) fn open(source: &Path, store: &Path) -> Self {
        Self {
            source: source.to_path_buf(),
            store: store.to_path_buf(),
            current: install(source, store).map_err(|error| error.to_string()),
        }
    }

    /// The digest of the release that new claims get; None if it is not installed.
    #[must_use]
    pub(crate) fn digest(&self) -> Option<&str> {
        Some(&self.current.as_ref().ok()?.digest)
    }

    /// Returns the release that new claims get. Installs it if it is not there (any more).
    ///
    /// # Errors
    /// Why it cannot be installed.
    pub(crate) fn ensure(&mut self) -> Result<&str, String> {
        if !self.digest().is_some_and(|digest| self.has(digest)) {
            self.current = install(&self.source, &self.store).map_err(|error| error.to_string());
        }
        match &self.current {
            Ok(installed) => Ok(&installed.digest),
            Err(why) => Err(why.clone()),
        }
    }

    /// The folder of a release.
    #[must_use]
    pub(crate) fn folder(&self, digest: &str) -> PathBuf {
        self.store.join(digest)
    }

    /// Returns true if a release is installed.
    #[must_use]
    pub(crate) fn has(&self, digest: &str) -> bool {
        self.folder(digest).join(SHIM_FILE).exists()
    }

    /// Returns the release to which a file in the store belongs.
    #[must_use]
    pub(crate) fn release_of(&self, file: &Path) -> Option<String> {
        let below = file.strip_prefix(&self.store).ok()?;
        Some(below.components().next()?.as_os_str().to_str()?.to_owned())
    }

    /// Removes releases that no instance uses and none of the claims in `used`. Leaves other folders alone. One instance
    /// at a time, by the lock of the node.
    ///
    /// # Errors
    /// The store cannot be listed, or a release cannot be removed.
    pub(crate) fn keep(&self, used: &[&str]) -> Result<Vec<String>, Error> {
        let mut removed = Vec::new();
        for name in names(&self.store)? {
            let is_digest = name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit());
            if !is_digest || self.digest() == Some(&name) || used.contains(&name.as_str()) {
                continue;
            }
            let path = self.store.join(&name);
            let folder = File::open(&path).map_err(failed("open", &path))?;
            if flock(&folder, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            // A crash in the middle leaves no release that looks whole.
            let temporary = self.store.join(format!("{TEMPORARY}{name}"));
            std::fs::rename(&path, &temporary).map_err(failed("rename", &path))?;
            std::fs::remove_dir_all(&temporary).map_err(failed("remove", &temporary))?;
            removed.push(name);
        }
        Ok(removed)
    }
}

/// Installs the release in `source`, unless it is installed already, and keeps others from removing it.
fn install(source: &Path, store: &Path) -> Result<Installed, Error> {
    let digest = digest(source)?;
    std::fs::create_dir_all(store).map_err(failed("create", store))?;
    check_exec(store)?;
    remove_temporaries(store)?;
    let target = store.join(&digest);
    if !target.exists() {
        let temporary = store.join(format!("{TEMPORARY}{digest}"));
        if let Err(error) = fill(source, &temporary, &target) {
            // The disk may be full.
            let _ = std::fs::remove_dir_all(&temporary);
            return Err(error.into());
        }
        File::open(store)
            .and_then(|folder| folder.sync_all())
            .map_err(failed("sync", store))?;
    }
    if self::digest(&target).ok().as_ref() != Some(&digest) {
        return Err(Error::Changed(target));
    }
    if let Err((file, error)) = selinux::let_containers_read(&for_containers(store, &target)) {
        tracing::warn!(
            file = %file.display(), label = ?selinux::READABLE, %error,
            "the label of SELinux cannot be set, so containers may be unable to load the library; on the node: \
             chcon -R -t container_ro_file_t {}", store.display()
        );
    }
    let folder = File::open(&target).map_err(failed("open", &target))?;
    // The lock is free: only a removal takes it exclusively, and the lock of the node excludes removals.
    flock(&folder, FlockOperation::NonBlockingLockShared).map_err(|errno| failed("lock", &target)(errno.into()))?;
    Ok(Installed {
        digest,
        _in_use: folder,
    })
}

/// Returns the paths of a release that containers and the runtime open: the store, the release's folder and its files.
fn for_containers(store: &Path, release: &Path) -> Vec<PathBuf> {
    let files = FILES.iter().map(|file| release.join(file));
    [store.to_path_buf(), release.to_path_buf()]
        .into_iter()
        .chain(files)
        .collect()
}

/// Copies a release to a temporary folder and renames that.
fn fill(source: &Path, temporary: &Path, target: &Path) -> Result<(), Failed> {
    std::fs::create_dir(temporary).map_err(failed("create", temporary))?;
    for file in FILES {
        copy(&source.join(file), &temporary.join(file))?;
    }
    File::open(temporary)
        .and_then(|folder| folder.sync_all())
        .map_err(failed("sync", temporary))?;
    std::fs::rename(temporary, target).map_err(failed("rename", temporary))
}

/// SHA-256 over the files, each with its name and length.
fn digest(folder: &Path) -> Result<String, Error> {
    let mut hash = Sha256::new();
    for name in FILES {
        let path = folder.join(name);
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::Missing {
                    folder: folder.to_path_buf(),
                    file: name,
                });
            }
            opened => opened.map_err(failed("open", &path))?,
        };
        let length = file.metadata().map_err(failed("read", &path))?.len();
        hash.update(format!("{name} {length}\n"));
        let mut chunk = vec![0; 64 << 10];
        loop {
            let count = file.read(&mut chunk).map_err(failed("read", &path))?;
            if count == 0 {
                break;
            }
            hash.update(&chunk[..count]);
        }
    }
    Ok(hash.finalize().iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

fn check_exec(store: &Path) -> Result<(), Error> {
    let found = rustix::fs::statvfs(store).map_err(|errno| failed("read", store)(errno.into()))?;
    if found.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(Error::NoExec(store.to_path_buf()));
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), Failed> {
    let copied = || {
        let mut target = File::create_new(to)?;
        io::copy(&mut File::open(from)?, &mut target)?;
        target.set_permissions(Permissions::from_mode(0o755))?;
        target.flush()?;
        target.sync_all()
    };
    copied().map_err(failed("copy", from))
}

fn remove_temporaries(store: &Path) -> Result<(), Failed> {
    for name in names(store)?.iter().filter(|name| name.starts_with(TEMPORARY)) {
        let path = store.join(name);
        std::fs::remove_dir_all(&path).map_err(failed("remove", &path))?;
    }
    Ok(())
}

fn names(folder: &Path) -> Result<Vec<String>, Failed> {
    let entries = std::fs::read_dir(folder).map_err(failed("list", folder))?;
    let names = entries.map(|entry| Ok(entry?.file_name().into_string().unwrap_or_default()));
    names.collect::<io::Result<_>>().map_err(failed("list", folder))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rustix::mount::{MountFlags, mount};

    /// A release whose files hold `text`.
    pub(crate) fn release(folder: &Path, text: &str) {
        std::fs::create_dir_all(folder).expect("a folder");
        for file in FILES {
            std::fs::write(folder.join(file), text).expect("written");
        }
    }

    #[test]
    fn a_release_is_installed_once_and_never_changed() {
        let dir = tempfile::tempdir().expect("a folder");
        let (source, store) = (dir.path().join("image"), dir.path().join("store"));
        release(&source, "one");
        std::fs::create_dir_all(store.join(format!("{TEMPORARY}left-by-a-crash"))).expect("a folder");
        let current = |library: &Library| library.digest().expect("installed").to_owned();
        let first = Library::open(&source, &store);
        let one = current(&first);
        let shim = first.folder(&one).join(SHIM_FILE);
        let mode = std::fs::metadata(&shim).expect("there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o755);
        assert_eq!(current(&Library::open(&source, &store)), one);
        release(&source, "two");
        let mut second = Library::open(&source, &store);
        let two = current(&second);
        assert_ne!(two, one);
        assert_eq!(std::fs::read_to_string(&shim).expect("kept"), "one");
        assert_eq!(
            second.keep(&[]).expect("kept"),
            [""; 0],
            "the first instance gives it to new claims"
        );
        drop(first);
        assert_eq!(second.keep(&[&one]).expect("kept"), [""; 0], "a claim has it");
        assert!(second.has(&one));
        assert_eq!(second.keep(&[]).expect("removed"), [one.as_str()]);
        assert!(!second.has(&one));
        assert_eq!(names(&store).expect("listed"), [two.as_str()]);
        std::fs::remove_dir_all(store.join(&two)).expect("lost");
        assert_eq!(second.ensure(), Ok(two.as_str()));
        assert!(second.has(&two), "made anew");
    }

    /// The runtime mounts single files of a release, and searches store and folder for them.
    #[test]
    fn all_that_containers_open_of_a_release_gets_a_label() {
        let dir = tempfile::tempdir().expect("a folder");
        let (source, store) = (dir.path().join("image"), dir.path().join("store"));
        release(&source, "one");
        let library = Library::open(&source, &store);
        let folder = library.folder(library.digest().expect("installed"));
        let mut found = vec![store.clone(), folder.clone()];
        found.extend(names(&folder).expect("listed").iter().map(|name| folder.join(name)));
        let mut labelled = for_containers(&store, &folder);
        found.sort();
        labelled.sort();
        assert_eq!(labelled, found);
    }

    #[test]
    fn a_release_that_finds_no_room_is_installed_later() {
        let dir = tempfile::tempdir().expect("a folder");
        let (source, store) = (dir.path().join("image"), dir.path().join("store"));
        release(&source, "one");
        let digest = digest(&source).expect("a digest");
        // A file in the way: the installation fails as on a full disk.
        std::fs::create_dir(&store).expect("a folder");
        let in_the_way = store.join(format!("{TEMPORARY}{digest}"));
        std::fs::write(&in_the_way, "").expect("written");
        let mut library = Library::open(&source, &store);
        assert_eq!(library.digest(), None);
        let error = library.ensure().expect_err("no room");
        assert!(error.contains(&in_the_way.display().to_string()), "{error}");
        std::fs::remove_file(&in_the_way).expect("removed");
        assert_eq!(library.ensure(), Ok(digest.as_str()));
    }

    #[test]
    fn a_full_disk_keeps_no_half_release() {
        if !crate::tmpfs::tests::can_mount("a_full_disk_keeps_no_half_release") {
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let (source, store) = (dir.path().join("image"), dir.path().join("store"));
        release(&source, &"x".repeat(8192));
        std::fs::create_dir(&store).expect("a folder");
        mount("full", &store, "tmpfs", MountFlags::empty(), c"size=12k").expect("mounted");
        let mut library = Library::open(&source, &store);
        let (error, left) = (library.ensure().err(), names(&store));
        crate::tmpfs::remove(&store).expect("unmounted");
        assert!(error.is_some_and(|error| error.contains("No space left")));
        assert_eq!(left.expect("listed"), [""; 0]);
    }

    #[test]
    fn a_changed_or_incomplete_release_is_named() {
        let dir = tempfile::tempdir().expect("a folder");
        let (source, store) = (dir.path().join("image"), dir.path().join("store"));
        release(&source, "one");
        let digest = install(&source, &store).expect("installed").digest;
        std::fs::write(store.join(digest).join(HOOK_FILE), "changed").expect("written");
        assert!(matches!(install(&source, &store), Err(Error::Changed(_))));
        std::fs::remove_file(source.join(PRELOAD_FILE)).expect("removed");
        let error = install(&source, &store).expect_err("incomplete").to_string();
        assert!(
            error.contains("--library-dir") && error.contains(PRELOAD_FILE),
            "{error}"
        );
    }

    #[test]
    fn a_noexec_store_is_refused() {
        if !crate::tmpfs::tests::can_mount("a_noexec_store_is_refused") {
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let (source, store) = (dir.path().join("image"), dir.path().join("store"));
        release(&source, "one");
        std::fs::create_dir(&store).expect("a folder");
        let size = crate::tmpfs::Size {
            bytes: 1 << 20,
            files: 16,
        };
        crate::tmpfs::ensure(&store, size).expect("mounted noexec");
        let error = install(&source, &store).expect_err("noexec").to_string();
        crate::tmpfs::remove(&store).expect("unmounted");
        assert!(error.contains("noexec") && error.contains("--library-store"), "{error}");
    }
}

//! The folder of all local shares, and the lock for creating and removing them.
//!
//! ```text
//!  root        /run/vgpu-run                         (with a mount namespace)
//! others      $XDG_RUNTIME_DIR/vgpu-run             if only the user can write to that folder
//!              else /tmp/vgpu-run-<uid>
//! ```
//!
//! Failure mode: in /tmp another user may create the folder first, or a symlink there. The folder is used
//! only if it is a folder (not a symlink), belongs to the user and is not open to others; then only the user
//! can change files in it, and /tmp's sticky bit keeps others from renaming it.
//!
//! Root's COMMAND may become another user (gosu, su), who must still reach the libraries and the share:
//! otherwise the loader skips files that it cannot open, and no limit is enforced. So without a mount
//! namespace others may pass through root's folder, but not list it. Who knows a share's name can open its
//! ledger, as every user in a container can.
#![forbid(unsafe_code)]

use crate::environment::Environment;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The folder for runs with a mount namespace.
pub const ROOT: &str = "/run/vgpu-run";
/// A `vgpu run` holds the lock for milliseconds; one that is stopped must not block all others for ever.
const LOCK_WAIT: Duration = Duration::from_secs(30);

/// The folder, after its owner and mode were checked.
#[derive(Debug, Clone)]
pub struct RunDir {
    path: PathBuf,
}

/// While it exists, no other `vgpu run` creates or removes shares in this folder.
#[derive(Debug)]
pub struct Locked {
    _file: File,
}

#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    #[error("cannot create {}, the folder of local shares: {source}", path.display())]
    Make { path: PathBuf, source: io::Error },
    #[error("{} is not a folder of user {uid} alone (mode 0700, no symlink): remove it, or name another folder with XDG_RUNTIME_DIR", path.display())]
    Foreign { path: PathBuf, uid: u32 },
    #[error("cannot lock {}: {source}", path.display())]
    Lock { path: PathBuf, source: io::Error },
    #[error("{} has been locked for {} s by another `vgpu run`; end or continue the one that is stopped", path.display(), LOCK_WAIT.as_secs())]
    Busy { path: PathBuf },
}

impl RunDir {
    /// Opens the folder of this user. `namespace`: the run is by root and has a mount namespace.
    ///
    /// # Errors
    /// The folder cannot be created, or belongs to another user.
    pub fn open(environment: &Environment, namespace: bool) -> Result<Self, RunDirError> {
        let path = choose(environment, namespace);
        ensure(&path, environment.uid, mode(environment, namespace))?;
        Ok(Self { path })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file with the measured sizes of contexts.
    #[must_use]
    pub fn context_sizes(&self) -> PathBuf {
        self.path.join(".contexts")
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// The lock cannot be opened, or another process holds it for too long.
    pub fn lock(&self) -> Result<Locked, RunDirError> {
        let path = self.path.join(".lock");
        let error = |source: Errno| RunDirError::Lock {
            path: path.clone(),
            source: source.into(),
        };
        match lock_file(&path, LOCK_WAIT).map_err(error)? {
            Some(file) => Ok(Locked { _file: file }),
            None => Err(RunDirError::Busy { path }),
        }
    }
}

/// Locks the file `path` until the returned file is dropped; creates it if it is missing. Returns None if another
/// process keeps it locked for all of `patience`.
///
/// # Errors
/// It cannot be opened or locked.
pub fn lock_file(path: &Path, patience: Duration) -> Result<Option<File>, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
    let end = Instant::now() + patience;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(file)),
            Err(Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

fn choose(environment: &Environment, namespace: bool) -> PathBuf {
    if namespace {
        return PathBuf::from(ROOT);
    }
    let runtime = environment.runtime_dir.as_deref();
    let lets_through = |dir: &Path| environment.uid != 0 || is_passable(dir);
    match runtime.filter(|dir| is_plain(dir) && is_private(dir, environment.uid) && lets_through(dir)) {
        Some(dir) => dir.join("vgpu-run"),
        None => PathBuf::from(format!("/tmp/vgpu-run-{}", environment.uid)),
    }
}

/// The folder's mode: others may pass through root's folder, unless mounts replace that path.
fn mode(environment: &Environment, namespace: bool) -> u32 {
    if environment.uid == 0 && !namespace {
        0o711
    } else {
        0o700
    }
}

fn is_passable(dir: &Path) -> bool {
    std::fs::symlink_metadata(dir).is_ok_and(|meta| meta.mode() & 0o001 != 0)
}

/// LD_PRELOAD and LD_LIBRARY_PATH cannot contain some characters: their separators, and `$`, which the loader
/// expands.
fn is_plain(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    path.is_absolute() && !bytes.iter().any(|b| b" \t\n\r:;$,".contains(b))
}

fn is_private(dir: &Path, uid: u32) -> bool {
    std::fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid && meta.mode() & 0o022 == 0)
}

fn ensure(path: &Path, uid: u32, mode: u32) -> Result<(), RunDirError> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            return Err(RunDirError::Make {
                path: path.to_path_buf(),
                source,
            });
        }
        _ => {}
    }
    let meta = std::fs::symlink_metadata(path).map_err(|source| RunDirError::Make {
        path: path.to_path_buf(),
        source,
    })?;
    if meta.is_dir() && meta.uid() == uid && meta.mode() & 0o077 & !mode == 0 {
        // The umask, or an older release, may have created it with fewer rights.
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, permissions).map_err(|source| RunDirError::Make {
            path: path.to_path_buf(),
            source,
        })
    } else {
        Err(RunDirError::Foreign {
            path: path.to_path_buf(),
            uid,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Returns the folder of a user with a new XDG_RUNTIME_DIR.
    pub(crate) fn temporary() -> (tempfile::TempDir, RunDir) {
        let tmp = tempfile::tempdir().unwrap();
        let environment = Environment {
            uid: uid(),
            runtime_dir: Some(tmp.path().to_path_buf()),
            ..Environment::default()
        };
        let run_dir = RunDir::open(&environment, false).unwrap();
        (tmp, run_dir)
    }

    fn uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn hostile_folders_are_refused() {
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("vgpu-run");
        let refused = |what: &str| match ensure(&path, uid(), 0o700) {
            Err(error @ RunDirError::Foreign { .. }) => assert!(error.to_string().contains("vgpu-run"), "{what}"),
            other => panic!("{what}: {other:?}"),
        };
        fs::create_dir(tmp.path().join("elsewhere")).unwrap();
        fs::set_permissions(tmp.path().join("elsewhere"), fs::Permissions::from_mode(0o700)).unwrap();
        symlink(tmp.path().join("elsewhere"), &path).unwrap();
        refused("a symlink to a good folder");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        refused("a file");
        fs::remove_file(&path).unwrap();
        for mode in [0o755, 0o770, 0o707, 0o777] {
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            refused("a folder open to others");
            fs::remove_dir(&path).unwrap();
        }
        assert!(ensure(&path, uid(), 0o700).is_ok());
        assert!(ensure(&path, uid(), 0o700).is_ok(), "again");
        assert!(
            matches!(ensure(&path, uid() + 1, 0o700), Err(RunDirError::Foreign { .. })),
            "another user's"
        );
    }

    #[test]
    fn the_runtime_folder_is_used_only_if_it_is_the_users_and_fits_the_loaders_variables() {
        let tmp = tempfile::tempdir().unwrap();
        fs::set_permissions(tmp.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let at = |dir: &Path| {
            let environment = Environment {
                uid: uid(),
                runtime_dir: Some(dir.to_path_buf()),
                ..Environment::default()
            };
            choose(&environment, false)
        };
        let fallback = PathBuf::from(format!("/tmp/vgpu-run-{}", uid()));
        assert_eq!(at(tmp.path()), tmp.path().join("vgpu-run"));
        assert_eq!(at(Path::new("/nowhere")), fallback);
        assert_eq!(at(Path::new("relative")), fallback);
        let spaced = tmp.path().join("a b");
        fs::create_dir(&spaced).unwrap();
        assert_eq!(at(&spaced), fallback);
        fs::set_permissions(tmp.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(at(tmp.path()), fallback);
        assert_eq!(choose(&Environment::default(), true), Path::new("/run/vgpu-run"));
    }

    #[test]
    fn one_at_a_time() {
        let tmp = tempfile::tempdir().unwrap();
        let dir = RunDir {
            path: tmp.path().to_path_buf(),
        };
        let first = dir.lock().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|threads| {
            threads.spawn(|| tell.send(dir.lock().is_ok()));
            assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "two hold it");
            drop(first);
            assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(true));
        });
    }

    #[test]
    fn roots_folder_lets_others_through_where_no_mounts_lead_around_it() {
        let root = Environment::default();
        let user = Environment { uid: 1, ..root.clone() };
        let modes = [mode(&root, false), mode(&root, true), mode(&user, false)];
        assert_eq!(modes, [0o711, 0o700, 0o700]);
        let tmp = tempfile::tempdir().unwrap();
        let path = tmp.path().join("vgpu-run");
        for mode in [0o700, 0o711, 0o711] {
            ensure(&path, uid(), mode).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, mode);
        }
        assert!(ensure(&path, uid(), 0o700).is_err(), "open to others");
        fs::set_permissions(tmp.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let closed = Environment {
            runtime_dir: Some(tmp.path().to_path_buf()),
            ..root
        };
        assert_eq!(choose(&closed, false), Path::new("/tmp/vgpu-run-0"));
    }
}

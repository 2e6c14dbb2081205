//! The lock file: one instance of the plugin changes the node at a time.
//!
//! Failure modes:
//! - An instance that is killed: the kernel unlocks the file.
//! - An instance that hangs with the lock, for example on a broken disk: the others give up after [`LOCKED_WITHIN`], and
//!   kubelet repeats its call. No thread blocks meanwhile.
//! - The file is removed, for example together with its folder: instances that start later would lock another file of the
//!   same name. So after locking, an instance checks that its file is still at the path; otherwise it opens the path again.
//!   If no file can be created there, the old one stays in use. Who holds a lock for long repeats that check
//!   ([`LockFile::is_current`]).

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long to wait for the lock. kubelet aborts a call after 45 s, of which the API server may take 20.
pub const LOCKED_WITHIN: Duration = Duration::from_secs(10);
/// Another instance has the lock for some milliseconds.
const TRIED_EVERY: Duration = Duration::from_millis(2);
/// How often one attempt opens the file if it is removed again each time.
const REOPENED: u32 = 3;

/// Why the lock could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("lock {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "lock {} was not free for {} s: another instance of the plugin on this node has it, or an earlier call of this one \
         hangs; if that lasts, check the node's disks and delete the plugin's older pod; kubelet retries",
        path.display(),
        LOCKED_WITHIN.as_secs()
    )]
    Taken { path: PathBuf },
}

/// The open lock file.
#[derive(Clone, Debug)]
pub struct LockFile {
    path: PathBuf,
    /// Replaced when another file is at the path.
    file: Arc<Mutex<Arc<File>>>,
}

/// The lock, until dropped.
#[derive(Debug)]
pub struct Locked(Arc<File>);

// === impl LockFile ===

impl LockFile {
    /// Opens the file, and creates it with its folder if it does not exist.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = open(path).map_err(|source| Error::Io {
            path: path.to_path_buf(),
            source,
        })?;
        Ok(Self {
            path: path.to_path_buf(),
            file: Arc::new(Mutex::new(Arc::new(file))),
        })
    }

    /// Takes the lock if it is free. A process must not have it twice: dropping one `Locked` would unlock the other one,
    /// too.
    ///
    /// # Errors
    /// The file cannot be locked.
    pub fn try_lock(&self) -> Result<Option<Locked>, Error> {
        let mut current = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..REOPENED {
            let Some(locked) = self.try_lock_file(&current)? else {
                return Ok(None);
            };
            if self.is_at_path(&current) {
                return Ok(Some(locked));
            }
            match open(&self.path) {
                Ok(file) => {
                    drop(locked);
                    *current = Arc::new(file);
                }
                Err(error) => {
                    tracing::debug!(
                        "lock {} is not there and cannot be created: {error}",
                        self.path.display()
                    );
                    return Ok(Some(locked));
                }
            }
        }
        Ok(None)
    }

    fn try_lock_file(&self, file: &Arc<File>) -> Result<Option<Locked>, Error> {
        match rustix::fs::flock(&**file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Locked(file.clone()))),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
            Err(errno) => Err(Error::Io {
                path: self.path.clone(),
                source: errno.into(),
            }),
        }
    }

    /// Returns false if somebody who locks the path now would lock another file than this.
    #[must_use]
    pub fn is_current(&self, locked: &Locked) -> bool {
        self.is_at_path(&locked.0)
    }

    /// Returns false if another file is at the path, or none.
    fn is_at_path(&self, file: &File) -> bool {
        let identity = |found: Metadata| (found.dev(), found.ino());
        match std::fs::metadata(&self.path) {
            Ok(found) => file.metadata().is_ok_and(|own| identity(own) == identity(found)),
            // Without an answer it may be the same file, so this one stays in use.
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Waits for the lock until `deadline`.
    ///
    /// # Errors
    /// The lock was not free in time, or the file cannot be locked.
    pub async fn lock(&self, deadline: Instant) -> Result<Locked, Error> {
        loop {
            if let Some(locked) = self.try_lock()? {
                return Ok(locked);
            }
            if Instant::now() >= deadline {
                return Err(self.taken());
            }
            tokio::time::sleep(TRIED_EVERY).await;
        }
    }

    pub(super) fn taken(&self) -> Error {
        Error::Taken {
            path: self.path.clone(),
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Fails only if the file cannot be locked at all; the end of the process unlocks it too.
        let _ = rustix::fs::flock(&*self.0, FlockOperation::Unlock);
    }
}

/// Opens a lock file, and creates it with its folder if it does not exist.
fn open(path: &Path) -> io::Result<File> {
    // An existing file can be locked even on a disk that is full or read-only.
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            std::fs::create_dir_all(path.parent().unwrap_or(path))?;
            File::options().create(true).truncate(false).write(true).open(path)
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_was_there_before_the_folder_was_removed_excludes_one_that_starts_after_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("plugin/lock");
        let old = LockFile::open(&path).expect("opened");
        let clone = old.clone();
        std::fs::remove_dir_all(dir.path().join("plugin")).expect("removed");
        let new = LockFile::open(&path).expect("created again");
        let held = new.try_lock().expect("a lock").expect("free");
        assert!(old.try_lock().expect("a lock").is_none(), "the new one has it");
        drop(held);
        let held = old.try_lock().expect("a lock").expect("free");
        assert!(new.try_lock().expect("a lock").is_none(), "the old one has it");
        drop(held);
        std::fs::remove_dir_all(dir.path().join("plugin")).expect("removed");
        let held = clone.try_lock().expect("a lock").expect("free");
        assert!(path.exists() && new.try_lock().expect("a lock").is_none());
        drop(held);
    }

    #[test]
    fn without_a_way_to_create_the_file_again_the_open_one_is_locked() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("plugin/lock");
        let [one, other] = [(); 2].map(|()| LockFile::open(&path).expect("opened"));
        std::fs::remove_dir_all(dir.path().join("plugin")).expect("removed");
        // A link that leads nowhere: neither opened nor created, even by root.
        std::os::unix::fs::symlink(dir.path().join("none/none"), dir.path().join("plugin")).expect("in the way");
        let held = one.try_lock().expect("a lock").expect("free");
        assert!(other.try_lock().expect("a lock").is_none());
        drop(held);
        assert!(other.try_lock().expect("a lock").is_some());
    }
}

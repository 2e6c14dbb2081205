//! The lock file: one instance of the plugin changes the node at a time.
//!
//! Failure modes:
//! - An instance that is killed: the kernel unlocks the file.
//! - An instance that hangs with the lock, for example on a broken disk: the others give up after [`LOCKED_WITHIN`], and
//!   kubelet repeats its call. No thread blocks meanwhile.

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How long the lock is waited for. kubelet aborts a call after 45 s, of which the API server may take 20.
pub const LOCKED_WITHIN: Duration = Duration::from_secs(10);
/// The other instance has the lock for some milliseconds.
const TRIED_EVERY: Duration = Duration::from_millis(2);

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
    file: Arc<File>,
}

/// The lock, until dropped.
#[derive(Debug)]
pub struct Locked(LockFile);

// === impl LockFile ===

impl LockFile {
    /// Opens the file, and creates it with its folder if it does not exist.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let open = || {
            // One that is there can be locked on a disk that is full or read-only.
            match File::open(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    std::fs::create_dir_all(path.parent().unwrap_or(path))?;
                    File::options().create(true).truncate(false).write(true).open(path)
                }
                opened => opened,
            }
        };
        let file = open().map_err(|source| Error::Io {
            path: path.to_path_buf(),
            source,
        })?;
        Ok(Self {
            path: path.to_path_buf(),
            file: Arc::new(file),
        })
    }

    /// Takes the lock if it is free. A process takes it once at a time: a second `Locked` of one file would end with the
    /// first.
    ///
    /// # Errors
    /// The file cannot be locked.
    pub fn try_lock(&self) -> Result<Option<Locked>, Error> {
        match rustix::fs::flock(&*self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Locked(self.clone()))),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
            Err(errno) => Err(Error::Io {
                path: self.path.clone(),
                source: errno.into(),
            }),
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
        let _ = rustix::fs::flock(&*self.0.file, FlockOperation::Unlock);
    }
}

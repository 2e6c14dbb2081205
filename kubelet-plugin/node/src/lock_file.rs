//! A lock file: one program that has it does something at a time.
//!
//! Failure modes:
//! - A program that is killed: the kernel unlocks the file.
//! - The file is removed, for example together with its folder: programs that start later would lock another file of the
//!   same name. So after locking, a program checks that its file is still at the path; otherwise it opens the path again.
//!   If no file can be created there, the old one stays in use. Who keeps a lock for long repeats that check
//!   ([`LockFile::is_current`]).

use crate::files::{Failed, failed};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// How often one attempt opens the file if it is removed again each time.
const REOPENED: u32 = 3;

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
    pub fn open(path: &Path) -> Result<Self, Failed> {
        let file = open(path).map_err(failed("open", path))?;
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
    pub fn try_lock(&self) -> Result<Option<Locked>, Failed> {
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
                Err(_) => return Ok(Some(locked)),
            }
        }
        Ok(None)
    }

    fn try_lock_file(&self, file: &Arc<File>) -> Result<Option<Locked>, Failed> {
        match rustix::fs::flock(&**file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Locked(file.clone()))),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
            Err(errno) => Err(failed("lock", &self.path)(errno.into())),
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

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
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
        let locked = new.try_lock().expect("a lock").expect("free");
        assert!(old.try_lock().expect("a lock").is_none(), "the new one has it");
        drop(locked);
        let locked = old.try_lock().expect("a lock").expect("free");
        assert!(new.try_lock().expect("a lock").is_none(), "the old one has it");
        drop(locked);
        std::fs::remove_dir_all(dir.path().join("plugin")).expect("removed");
        let locked = clone.try_lock().expect("a lock").expect("free");
        assert!(path.exists() && new.try_lock().expect("a lock").is_none());
        drop(locked);
    }

    #[test]
    fn without_a_way_to_create_the_file_again_the_open_one_is_locked() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("plugin/lock");
        let [one, other] = [(); 2].map(|()| LockFile::open(&path).expect("opened"));
        std::fs::remove_dir_all(dir.path().join("plugin")).expect("removed");
        // A link that leads nowhere: neither opened nor created, even by root.
        std::os::unix::fs::symlink(dir.path().join("none/none"), dir.path().join("plugin")).expect("in the way");
        let locked = one.try_lock().expect("a lock").expect("free");
        assert!(other.try_lock().expect("a lock").is_none());
        drop(locked);
        assert!(other.try_lock().expect("a lock").is_some());
    }
}

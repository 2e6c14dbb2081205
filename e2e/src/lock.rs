//! Locks between processes: `flock` on a folder or a file. The kernel releases them when their holder dies.

use std::fs::{File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};

/// An exclusive lock, held until dropped.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code)] File);

impl Lock {
    /// Waits for the lock on the file, which is created if it does not exist.
    pub fn wait(file: &Path) -> Result<Self> {
        let opened = open(file)?;
        opened
            .lock()
            .with_context(|| format!("cannot lock {}", file.display()))?;
        Ok(Self(opened))
    }

    /// Acquires the lock on the file. Returns `None` if another process holds it.
    pub fn try_take(file: &Path) -> Result<Option<Self>> {
        let opened = open(file)?;
        match opened.try_lock() {
            Ok(()) => Ok(Some(Self(opened))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("cannot lock {}", file.display())),
        }
    }

    /// Returns true if a process holds the lock on the file. Creates nothing.
    #[must_use]
    pub fn is_held(file: &Path) -> bool {
        File::open(file).is_ok_and(|opened| matches!(opened.try_lock(), Err(TryLockError::WouldBlock)))
    }

    /// Waits for the lock on the folder, which is created if it does not exist. Others may remove and create it
    /// meanwhile.
    pub fn wait_for_folder(folder: &Path) -> Result<Self> {
        loop {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
            let Ok(opened) = File::open(folder) else { continue };
            opened
                .lock()
                .with_context(|| format!("cannot lock {}", folder.display()))?;
            let locked = opened
                .metadata()
                .with_context(|| format!("cannot read {}", folder.display()))?;
            if std::fs::metadata(folder).is_ok_and(|now| (now.dev(), now.ino()) == (locked.dev(), locked.ino())) {
                return Ok(Self(opened));
            }
        }
    }
}

fn open(file: &Path) -> Result<File> {
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(file)
        .with_context(|| format!("cannot open {}", file.display()))
}

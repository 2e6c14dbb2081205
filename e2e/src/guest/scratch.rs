//! The folder of one run: it contains everything temporary, and is removed at the end.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::namespaces::in_namespaces;
use crate::lock::Lock;

/// The folder `run` in the guests' part of the cache. One run at a time can hold it.
#[derive(Debug)]
pub(super) struct Scratch {
    folder: PathBuf,
    _lock: Lock,
}

impl Scratch {
    /// Acquires the lock (prints a line if it has to wait) and removes the remains of a killed run.
    pub(super) fn take(cache: &Path) -> Result<Self> {
        fs::create_dir_all(cache).with_context(|| format!("cannot create {}", cache.display()))?;
        let file = cache.join(".lock");
        let lock = match Lock::try_take(&file)? {
            Some(lock) => lock,
            None => {
                eprintln!("another guest runs: waiting for its end ({} is locked)", file.display());
                loop {
                    super::ending::check()?;
                    if let Some(lock) = Lock::try_take(&file)? {
                        break lock;
                    }
                    std::thread::sleep(std::time::Duration::from_millis(200));
                }
            }
        };
        let folder = cache.join("run");
        remove(&folder)?;
        fs::create_dir(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Self { folder, _lock: lock })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.folder) {
            crate::interrupt::tell(&format!("{error:#}: the next run tries again"));
        }
    }
}

/// Removes the folder. An ordinary user's folder may contain files of that user's subordinate users, which requires
/// their namespace.
fn remove(folder: &Path) -> Result<()> {
    if !folder.exists() || fs::remove_dir_all(folder).is_ok() {
        return Ok(());
    }
    // Neither a tied command nor in the terminal's process group, because it must run after a signal too.
    let _ = in_namespaces(crate::shell::command("unshare", [] as [&str; 0]), &["rm", "-rf"])
        .arg(folder)
        .process_group(0)
        .status();
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    Ok(())
}

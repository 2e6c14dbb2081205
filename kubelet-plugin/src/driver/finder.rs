//! Keeps what was found of a driver while the folders on which it depends do not change.
//!
//! Failure modes:
//! - A driver is replaced: entries of a folder are made, removed or renamed, which changes its time of modification; or
//!   the root is another mount, which changes its device or inode.
//! - A folder changes while it is searched, or within the resolution of its time after that: what was found in a folder
//!   that changed in the last two seconds is not kept.
//! - A file is written in place: its path stays, so the mounts do.
//! - Nothing complete is there: the error is not kept, and the next caller searches again.
//! - Another driver is taken than before, or two versions are there: the log says so once.
//! - Device nodes and sockets come and go by themselves, so these few are looked for each time.

use super::{Driver, Error, Files, Root};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// More than the resolution of any file system's times.
const SETTLED: Duration = Duration::from_secs(2);

/// A root, and what was last found in it.
#[derive(Debug)]
pub struct Finder {
    root: Root,
    kept: Mutex<Option<Kept>>,
    /// The driver that was logged last, and the others beside it.
    logged: Mutex<Option<vgpu_find_driver::Driver>>,
}

#[derive(Debug)]
struct Kept {
    files: Arc<Files>,
    folders: Vec<(PathBuf, Option<Stamp>)>,
}

/// A state of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    modified: (i64, i64),
}

// === impl Finder ===

impl Finder {
    #[must_use]
    pub fn new(root: Root) -> Self {
        Self {
            root,
            kept: Mutex::new(None),
            logged: Mutex::new(None),
        }
    }

    #[must_use]
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// The driver as it is now.
    ///
    /// # Errors
    /// A library or device node is missing without which no container can use the GPU.
    pub fn read(&self) -> Result<Driver, Error> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept.as_ref().filter(|known| known.is_current()) {
            return self.root.with(known.files.clone());
        }
        *kept = None;
        let started = SystemTime::now();
        let searched = self.root.search()?;
        self.log(&searched.chosen);
        let files = Arc::new(searched.files);
        let folders = searched.folders.into_iter().map(|folder| self.root.here.join(folder));
        let folders = folders.map(|folder| {
            let stamp = Stamp::of(&folder);
            (folder, stamp)
        });
        let folders: Vec<_> = folders.collect();
        let since = started.checked_sub(SETTLED).unwrap_or(started);
        if folders
            .iter()
            .flat_map(|(_, stamp)| stamp)
            .all(|stamp| stamp.is_before(since))
        {
            *kept = Some(Kept {
                files: files.clone(),
                folders,
            });
        }
        self.root.with(files)
    }

    /// Logs which driver was taken, if it changed.
    fn log(&self, chosen: &vgpu_find_driver::Driver) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.as_ref() == Some(chosen) {
            return;
        }
        tracing::info!("{}", chosen.describe(&self.root.here));
        if !chosen.others.is_empty() {
            let root = &self.root.here;
            let others: Vec<_> = chosen.others.iter().map(|other| root.join(other)).collect();
            tracing::warn!(
                ?others,
                "other versions of the driver are beside it and not used; if GPUs cannot be listed, remove what does not \
                 fit the kernel module"
            );
        }
        *logged = Some(chosen.clone());
    }
}

impl Kept {
    fn is_current(&self) -> bool {
        self.folders.iter().all(|(path, stamp)| Stamp::of(path) == *stamp)
    }
}

impl Stamp {
    /// None if there is no such folder.
    fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        Some(Self {
            device: found.dev(),
            inode: found.ino(),
            modified: (found.mtime(), found.mtime_nsec()),
        })
    }

    fn is_before(&self, time: SystemTime) -> bool {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.modified.0 < i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    }
}

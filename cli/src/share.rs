//! Creates, joins and removes local shares.
//!
//! ```text
//! <run dir>/<id>/            id: the share's name, or .run-<pid>-<time> for a share without a name
//!    lock                     a shared lock (flock) is held by each `vgpu run` and its COMMAND
//!    lib/                     libcuda.so, libcuda.so.1, libnvidia-ml.so.1, libvgpu-preload.so: symlinks
//!    driver/                  libcuda.so.1, libnvidia-ml.so.1: symlinks to the real ones
//!    soft-gpu                 marks a share on the software GPU; its variables are symlinks, if set:
//!    SOFT_GPU_STATE, SOFT_GPU_PROFILE
//!    shares/<share>/          limits and ledger; VGPU_RUN_DIR names shares/
//!    shares/.arbitration      a symlink to the pages of all shares (arbitration.rs)
//! ```
//!
//! A share is in use while a process has its lock: COMMAND and its children inherit the lock's descriptor, so
//! a share outlives a `vgpu run` that was killed. A program that closes unknown descriptors loses the lock,
//! but while it uses the GPU it holds locks on its lanes in the ledger; both are checked. All changes happen
//! under the folder's lock ([`crate::run_dir`]), so a share is seen complete or not at all. A share that a
//! killed `vgpu run` left incomplete is not in use, and the next run removes it.
#![forbid(unsafe_code)]

use crate::arbitration::{self, Neighbour};
use crate::driver::Driver;
use crate::environment::{SOFT_GPU_PROFILE, SOFT_GPU_STATE, SoftGpu};
use crate::mount_users;
use crate::plan::Existing;
use crate::run_dir::{self, Locked, RunDir};
use rustix::fs::FlockOperation;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use vgpu_abi::limits::Limits;
use vgpu_abi::paths::{ARBITRATION, LEDGER, LIBCUDA, LIBNVIDIA_ML, LIMITS, PRELOAD_FILE, SHIM_NAMES};
use vgpu_abi::{ledger, limits};
use vgpu_node::locks;

/// A share that this process uses.
#[derive(Debug)]
pub struct Held {
    run_dir: RunDir,
    pub folder: ShareFolder,
    pub limits: Limits,
    lock: File,
}

/// The folder of a share, with the paths of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareFolder(pub PathBuf);

/// The symlinks of a new share.
#[derive(Clone, Debug)]
pub struct Links {
    pub shim: PathBuf,
    pub preload: PathBuf,
    /// The driver's libraries at their paths on the host.
    pub driver: Driver,
    pub soft_gpu: Option<SoftGpu>,
}

#[derive(Debug, thiserror::Error)]
pub enum ShareError {
    #[error("share {share:?}: {} is damaged: {reason}; end its commands and remove {}", file.display(), folder.display())]
    Damaged {
        share: String,
        file: PathBuf,
        reason: String,
        folder: PathBuf,
    },
    #[error(transparent)]
    Page(#[from] vgpu_node::arbitration::Error),
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

// === impl ShareFolder ===

impl ShareFolder {
    #[must_use]
    pub fn shares(&self) -> PathBuf {
        self.0.join("shares")
    }

    #[must_use]
    pub fn share(&self, name: &str) -> PathBuf {
        self.shares().join(name)
    }

    #[must_use]
    pub fn lib(&self) -> PathBuf {
        self.0.join("lib")
    }

    /// The real driver's libraries.
    #[must_use]
    pub fn driver(&self) -> Option<Driver> {
        let target = |name| fs::read_link(self.0.join("driver").join(name)).ok();
        Some(Driver {
            libcuda: target(LIBCUDA)?,
            libnvidia_ml: target(LIBNVIDIA_ML)?,
        })
    }

    /// The software GPU's variables; None: the share is on a real GPU.
    #[must_use]
    pub fn soft_gpu(&self) -> Option<SoftGpu> {
        let target = |name| fs::read_link(self.0.join(name)).ok();
        self.0.join("soft-gpu").exists().then(|| SoftGpu {
            state: target(SOFT_GPU_STATE),
            profile: target(SOFT_GPU_PROFILE),
        })
    }

    /// Returns true if a process uses the share. The caller holds the folder's lock.
    fn in_use(&self) -> bool {
        let has_lane = |ledger: &PathBuf| File::open(ledger).and_then(|file| locks::is_locked(&file, 0, 0));
        let on_the_gpu = |ledger: &PathBuf| has_lane(ledger).unwrap_or(false);
        self.is_locked()
            || self.ledgers().iter().any(on_the_gpu)
            || self.0.starts_with(run_dir::ROOT) && mount_users::any(&self.0)
    }

    fn is_locked(&self) -> bool {
        let Ok(file) = File::open(self.0.join("lock")) else {
            return false;
        };
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
    }

    fn ledgers(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.shares()).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().join(LEDGER)).collect()
    }
}

// === Creation and removal, under the folder's lock ===

/// Removes every share that is not in use.
pub fn sweep(run_dir: &RunDir, locked: &Locked) {
    let mut swept = false;
    for folder in folders(run_dir, locked) {
        if !folder.in_use() {
            // A folder that cannot be removed is found again by the next run, and reported when its name is
            // requested.
            let _ = fs::remove_dir_all(&folder.0);
            swept = true;
        }
    }
    if swept {
        renew_pages(run_dir, locked);
    }
}

fn folders(run_dir: &RunDir, _locked: &Locked) -> Vec<ShareFolder> {
    let entries = fs::read_dir(run_dir.path()).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let shares = folders.filter(|entry| entry.file_name() != ARBITRATION);
    shares.map(|entry| ShareFolder(entry.path())).collect()
}

/// Every share of this user, except those with damaged limits.
#[must_use]
pub fn all(run_dir: &RunDir, locked: &Locked) -> Vec<Neighbour> {
    let folders = folders(run_dir, locked);
    let shares = folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder.shares()).into_iter().flatten().flatten());
    shares
        .filter_map(|entry| neighbour(&entry.path().join(LIMITS)))
        .collect()
}

fn neighbour(path: &Path) -> Option<Neighbour> {
    let file = File::open(path).ok()?;
    let written = file.metadata().ok()?.modified().ok()?;
    let mut bytes = Vec::new();
    file.take(limits::MAX_SIZE as u64 + 1).read_to_end(&mut bytes).ok()?;
    Some(Neighbour {
        limits: Limits::parse(&bytes).ok()?,
        generation: nanoseconds(written),
    })
}

/// Writes what the remaining shares are entitled to. If that fails, they keep to their former values.
fn renew_pages(run_dir: &RunDir, locked: &Locked) {
    let _ = arbitration::renew(run_dir, locked, &all(run_dir, locked));
}

/// Finds the share of that name, if it is in use.
///
/// # Errors
/// Its limits file is damaged.
pub fn find(run_dir: &RunDir, _locked: &Locked, name: &str) -> Result<Option<(ShareFolder, Existing)>, ShareError> {
    let folder = ShareFolder(run_dir.path().join(name));
    let file = folder.share(name).join(LIMITS);
    let damaged = |reason: String| ShareError::Damaged {
        share: name.to_owned(),
        file: file.clone(),
        reason,
        folder: folder.0.clone(),
    };
    let mut bytes = Vec::new();
    match File::open(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !folder.0.exists() => return Ok(None),
        Err(error) => return Err(damaged(error.to_string())),
        Ok(open) => {
            let bounded = &mut open.take(limits::MAX_SIZE as u64 + 1);
            bounded
                .read_to_end(&mut bytes)
                .map_err(|error| damaged(error.to_string()))?;
        }
    }
    let limits = Limits::parse(&bytes).map_err(|error| damaged(error.to_string()))?;
    let soft_gpu = folder.soft_gpu().is_some();
    Ok(Some((folder, Existing { limits, soft_gpu })))
}

/// Joins a share that exists.
///
/// # Errors
/// Its lock cannot be opened.
pub fn join(run_dir: &RunDir, _locked: &Locked, folder: ShareFolder, limits: Limits) -> Result<Held, ShareError> {
    let lock = hold(&folder)?;
    Ok(Held {
        run_dir: run_dir.clone(),
        folder,
        limits,
        lock,
    })
}

/// Creates a share with the folder name `id`, and joins it.
///
/// # Errors A file cannot be created; nothing is left then.
pub fn create(run_dir: &RunDir, locked: &Locked, id: &str, limits: Limits, links: &Links) -> Result<Held, ShareError> {
    let folder = ShareFolder(run_dir.path().join(id));
    make_dir(&folder.0)?;
    let made = hold(&folder).and_then(|lock| {
        fill(&folder, &limits, links)?;
        take_slot(run_dir, locked, &folder, &limits)?;
        Ok(lock)
    });
    match made {
        Ok(lock) => Ok(Held {
            run_dir: run_dir.clone(),
            folder,
            limits,
            lock,
        }),
        Err(error) => {
            let _ = fs::remove_dir_all(&folder.0);
            Err(error)
        }
    }
}

/// Creates the share's page and its link to it, and announces the share to the others on its GPU.
fn take_slot(run_dir: &RunDir, locked: &Locked, folder: &ShareFolder, limits: &Limits) -> Result<(), ShareError> {
    let Some(slot) = limits.slot else {
        return Ok(());
    };
    arbitration::prepare(run_dir, locked, &limits.gpu, slot)?;
    link(&arbitration::root(run_dir), &folder.shares().join(ARBITRATION))?;
    Ok(arbitration::renew(run_dir, locked, &all(run_dir, locked))?)
}

fn hold(folder: &ShareFolder) -> Result<File, ShareError> {
    let path = folder.0.join("lock");
    let open = OpenOptions::new()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&path);
    let file = open.map_err(io_error("create", &path))?;
    let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared);
    locked.map_err(|error| io_error("lock", &path)(error.into()))?;
    Ok(file)
}

fn fill(folder: &ShareFolder, limits: &Limits, links: &Links) -> Result<(), ShareError> {
    let share = folder.share(&limits.share);
    for dir in [&folder.lib(), &folder.0.join("driver"), &folder.shares(), &share] {
        make_dir(dir)?;
    }
    for name in SHIM_NAMES {
        link(&links.shim, &folder.lib().join(name))?;
    }
    link(&links.preload, &folder.lib().join(PRELOAD_FILE))?;
    link(&links.driver.libcuda, &folder.0.join("driver").join(LIBCUDA))?;
    link(&links.driver.libnvidia_ml, &folder.0.join("driver").join(LIBNVIDIA_ML))?;
    if let Some(soft_gpu) = &links.soft_gpu {
        write(&folder.0.join("soft-gpu"), b"", 0o444)?;
        for (variable, target) in soft_gpu.variables() {
            if let Some(target) = target {
                link(target, &folder.0.join(variable))?;
            }
        }
    }
    // The modes are those of a share in a container, because COMMAND may change its user.
    write(&share.join(LEDGER), &ledger::image(limits), 0o666)?;
    write(&share.join(LIMITS), limits.render().as_bytes(), 0o444)
}

// === impl Held ===

impl Held {
    /// The folder of all shares.
    #[must_use]
    pub fn run_dir(&self) -> &RunDir {
        &self.run_dir
    }

    /// The lock's descriptor, which COMMAND inherits.
    #[must_use]
    pub fn lock(&self) -> &File {
        &self.lock
    }

    /// Releases the share, and removes it if it is no longer in use. Calls `last` when no share is left.
    pub fn release(self, last: impl FnOnce()) {
        let Self {
            run_dir, folder, lock, ..
        } = self;
        let locked = run_dir.lock();
        // Our own lock is released under the folder's lock and then tested again, because COMMAND's children
        // may have the same open file description.
        drop(lock);
        let Ok(locked) = locked else {
            return; // the next run's to clean up
        };
        if !folder.in_use() {
            let _ = fs::remove_dir_all(&folder.0);
        }
        if folders(&run_dir, &locked).is_empty() {
            arbitration::remove(&run_dir, &locked);
            last();
        } else {
            renew_pages(&run_dir, &locked);
        }
    }
}

// === Files ===

fn io_error<'a>(what: &'static str, path: &'a Path) -> impl Fn(io::Error) -> ShareError + 'a {
    move |source| ShareError::Io {
        what,
        path: path.to_path_buf(),
        source,
    }
}

fn make_dir(path: &Path) -> Result<(), ShareError> {
    fs::create_dir(path).map_err(io_error("create", path))?;
    // COMMAND may become any user and must read root's share; the folder of all shares stays closed.
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(io_error("create", path))
}

fn link(target: &Path, path: &Path) -> Result<(), ShareError> {
    symlink(target, path).map_err(io_error("create", path))
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), ShareError> {
    let open = OpenOptions::new().write(true).create_new(true).open(path);
    let mut file = open.map_err(io_error("create", path))?;
    file.write_all(bytes).map_err(io_error("write", path))?;
    file.set_permissions(fs::Permissions::from_mode(mode))
        .map_err(io_error("create", path))
}

/// Folder name of a share that no other command can join: a share's name never starts with a full stop.
#[must_use]
pub fn own_id() -> String {
    format!(".run-{}-{}", std::process::id(), nanoseconds(SystemTime::now()))
}

fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;

//! Finds or creates the ledgers of a HAMi container, so that all of its processes use the same.
//!
//! They are not beside the region file, because the monitor refuses a folder with files that are not HAMi's. Each GPU
//! has a folder in /dev/shm, or in /tmp if that is not writable. Its name contains device, inode and a checksum of the
//! path of the region file, and a checksum of the container's root: a region file at a fixed path may outlive its
//! container, and the next container has its own limits. Without a region file, the name contains the user, the root
//! folder and the limits:
//!
//! ```text
//!  /dev/shm/vgpu-<device>-<inode>-<checksum of the path>-<checksum of the root>-<GPU>/{limits,ledger}
//! ```
//!
//! Both files are complete before a rename gives the folder its name. If two processes create it at the same time, the
//! second uses the folder of the first. The limit is that of the first process, so a process that changes its variables
//! later does not lift it.
//!
//! How it fails:
//! - Anybody may write to /dev/shm and /tmp, so anything may exist under this name. No link is followed, only regular
//!   files are opened, the ledger is checked like any other, and one number is read from the limits file, never a path.
//!   So another user who created the folder first can at worst refuse memory or lift the limit, as a tenant of the same
//!   container can. If no region file identifies the container, the folder must belong to this user or to root.
//! - A process that is killed before the rename leaves a folder whose name starts with a dot. No process uses it.
//! - Containers whose roots are no overlays cannot be distinguished: the next one has the limits of the first if they
//!   share the region file and /dev/shm.
//! - If /dev/shm is full, the process is refused: a folder elsewhere would be a second account.
#![allow(unsafe_code)] // geteuid.

use crate::grants::{GpuGrants, Grant};
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use vgpu_abi::limits::{self, Limits};
use vgpu_abi::paths::{LEDGER, LIMITS};
use vgpu_abi::{checksum::crc32, ledger};

/// Folders that every process of a container can write to and that other containers do not see.
pub const BASES: [&str; 2] = ["/dev/shm", "/tmp"];

/// Why no ledger can be found or created.
#[derive(Debug)]
pub enum PlaceError {
    /// The region file cannot be used.
    Cache(PathBuf, io::Error),
    /// None of [`BASES`] is writable.
    Nowhere,
    Make(PathBuf, io::Error),
    /// The path exists but was not created by this module: the reason.
    Stranger(PathBuf, &'static str),
    Limits(PathBuf, String),
}

/// Returns a number that is equal for all processes of this container, and different for other containers with an
/// overlay as root.
#[must_use]
pub fn container() -> u32 {
    container_in(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

/// Computes the number from the text of mountinfo: a checksum of the mount at the root. For an overlay it names the
/// container's own layer. Mount IDs are left out, because they differ between namespaces.
fn container_in(mounts: &str) -> u32 {
    let root = |line: &&str| line.split(' ').nth(4) == Some("/");
    let line = mounts.lines().rfind(root).unwrap_or_default();
    let (place, kind) = line.split_once(" - ").unwrap_or_default();
    let within: Vec<&str> = place.split(' ').skip(2).take(2).collect();
    crc32(format!("{} {kind}", within.join(" ")).as_bytes())
}

/// Returns the shares of `limits`, one for each GPU. Creates the ledgers that do not exist. `container`: [`container`].
///
/// # Errors
/// A ledger can neither be found nor created.
pub fn prepare(
    cache: Option<&Path>,
    container: u32,
    limits: Vec<Limits>,
    bases: &[&Path],
) -> Result<Vec<GpuGrants>, PlaceError> {
    let named = match cache {
        Some(path) => {
            let found = region(path).map_err(|error| PlaceError::Cache(path.to_owned(), error))?;
            // The name includes the path, which HAMi makes unique, because inodes of removed files are reused.
            let name = crc32(path.as_os_str().as_encoded_bytes());
            Some(format!("{}-{name:08x}-{container:08x}", identity(&found)))
        }
        None => None,
    };
    let each = |own: Limits| {
        let name = match &named {
            Some(region) => format!("vgpu-{region}-{}", own.share),
            None => {
                let root = fs::metadata("/").map_or_else(|_| "0-0".into(), |found| identity(&found));
                let checksum = crc32(own.render().as_bytes());
                format!("vgpu-{}-{root}-{checksum:08x}-{}", user(), own.share)
            }
        };
        let directory = folder(&name, &own, bases, named.is_some())?;
        let memory = recorded(&directory.join(LIMITS))?;
        let gpu = own.gpu.clone();
        let limits = Limits { memory, ..own };
        Ok(GpuGrants {
            gpu,
            shares: vec![Grant {
                limits,
                directory,
                // The tenant created it, so nothing is verified.
                device: None,
            }],
        })
    };
    limits.into_iter().map(each).collect()
}

/// Returns the metadata of the region file, which is created if it does not exist. An existing file is not opened with
/// O_CREAT: the kernel refuses that for another user's file in a sticky folder.
fn region(path: &Path) -> io::Result<fs::Metadata> {
    for _ in 0..3 {
        match path.symlink_metadata() {
            Ok(found) if found.is_file() => return Ok(found),
            Ok(_) => return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file")),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        match OpenOptions::new().write(true).create_new(true).mode(0o666).open(path) {
            // Processes of every user in the container write their figures there.
            Ok(file) => file.set_permissions(Permissions::from_mode(0o666))?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    path.symlink_metadata()
}

fn identity(found: &fs::Metadata) -> String {
    format!("{:x}-{:x}", found.dev(), found.ino())
}

fn user() -> u32 {
    // SAFETY: has no conditions.
    unsafe { libc::geteuid() }
}

/// Finds or creates folder `name` in the first base that allows it.
fn folder(name: &str, limits: &Limits, bases: &[&Path], shared: bool) -> Result<PathBuf, PlaceError> {
    for base in bases {
        let place = base.join(name);
        if exists(&place, shared)? {
            return Ok(place);
        }
        match make(base, &place, limits) {
            Ok(()) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound
                        | ErrorKind::NotADirectory
                        | ErrorKind::PermissionDenied
                        | ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                continue;
            }
            Err(error) => return Err(PlaceError::Make(place, error)),
        }
        if exists(&place, shared)? {
            return Ok(place);
        }
    }
    Err(PlaceError::Nowhere)
}

/// Returns true if the folder exists. Returns an error if it belongs to another user, or if the path is something else.
fn exists(place: &Path, shared: bool) -> Result<bool, PlaceError> {
    let found = match place.symlink_metadata() {
        Ok(found) => found,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(false),
        Err(error) => return Err(PlaceError::Make(place.to_owned(), error)),
    };
    if !found.is_dir() {
        return Err(PlaceError::Stranger(place.to_owned(), "is no folder"));
    }
    if !shared && found.uid() != 0 && found.uid() != user() {
        return Err(PlaceError::Stranger(place.to_owned(), "belongs to another user"));
    }
    Ok(true)
}

/// Creates the folder with its files, unless another process does so first.
fn make(base: &Path, place: &Path, limits: &Limits) -> io::Result<()> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let moment = now.map_or(0, |now| now.as_nanos());
    let new = base.join(format!(".vgpu-{}-{moment:x}-{number}", std::process::id()));
    // Fails if the name exists, whatever it is.
    DirBuilder::new().mode(0o700).create(&new)?;
    let outcome = fill(&new, limits).and_then(|()| match fs::rename(&new, place) {
        Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => Ok(false),
        other => other.map(|()| true),
    });
    if !matches!(outcome, Ok(true)) {
        // Ignored: the first error is the one to report.
        let _ = fs::remove_dir_all(&new);
    }
    outcome.map(drop)
}

fn fill(folder: &Path, limits: &Limits) -> io::Result<()> {
    put(&folder.join(LEDGER), &ledger::image(limits), 0o666)?;
    put(&folder.join(LIMITS), limits.render().as_bytes(), 0o444)?;
    fs::set_permissions(folder, Permissions::from_mode(0o755))
}

/// Writes a new file completely, so that all of its pages are allocated.
fn put(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(bytes)?;
    file.set_permissions(Permissions::from_mode(mode))
}

/// Returns the memory limit in the limits file, which the first process wrote.
fn recorded(path: &Path) -> Result<u64, PlaceError> {
    let read = || -> io::Result<Vec<u8>> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
        }
        let mut bytes = Vec::new();
        file.take(limits::MAX_SIZE as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let failed = |reason: String| PlaceError::Limits(path.to_owned(), reason);
    let bytes = read().map_err(|error| failed(error.to_string()))?;
    let limits = Limits::parse(&bytes).map_err(|error| failed(error.to_string()))?;
    Ok(limits.memory)
}

// === impl PlaceError ===

impl fmt::Display for PlaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cache(path, error) => write!(
                f,
                "region file {} (CUDA_DEVICE_MEMORY_SHARED_CACHE): {error}; let every process of the container write its folder, or unset the variable",
                path.display()
            ),
            Self::Nowhere => write!(
                f,
                "no place for a ledger: neither {} can be written to; mount an emptyDir at one of them",
                BASES.join(" nor ")
            ),
            Self::Make(path, error) => write!(f, "folder of ledgers {}: {error}", path.display()),
            Self::Stranger(path, what) => write!(f, "folder of ledgers {} {what}: remove it", path.display()),
            Self::Limits(path, reason) => write!(f, "limits file {}: {reason}; remove its folder", path.display()),
        }
    }
}

impl std::error::Error for PlaceError {}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;

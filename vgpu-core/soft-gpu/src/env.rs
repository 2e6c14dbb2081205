//! Reads the variables that are the whole interface: SOFT_GPU_STATE, SOFT_GPU_PROFILE, SOFT_GPU_CGROUP and
//! SOFT_GPU_CAPS. No other module reads them.

#![allow(unsafe_code)] // getuid and geteuid have no safe wrappers in std.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::profile::Profile;

/// Where root's `vgpu run` mounts the state for a program with a cleared environment.
const OF_RUN: &str = "/run/vgpu/.soft-gpu";

/// The state folder and, if a profile was named, its content.
pub struct Config {
    pub dir: PathBuf,
    /// The environment variable that determined `dir`, for messages.
    pub origin: &'static str,
    pub profile: Option<(PathBuf, Profile)>,
    /// The folder that counts as this process's cgroup, in a tree of plain folders. None: the kernel's.
    pub cgroup: Option<PathBuf>,
    /// The folder with the capability nodes of instances that this process may use. None: it may use all.
    pub caps: Option<PathBuf>,
}

impl Config {
    pub fn read() -> Result<Self, Error> {
        let (dir, origin) = match std::env::var_os("SOFT_GPU_STATE").filter(|value| !value.is_empty()) {
            Some(value) => (given(Path::new(&value))?, "SOFT_GPU_STATE"),
            None if Path::new(OF_RUN).is_dir() => (OF_RUN.into(), OF_RUN),
            None => (default_dir()?, "the default state folder (SOFT_GPU_STATE is unset)"),
        };
        let profile = match std::env::var_os("SOFT_GPU_PROFILE").filter(|value| !value.is_empty()) {
            Some(value) => {
                let path = PathBuf::from(value);
                let read = |path: &Path| -> io::Result<String> {
                    // Tested before it is opened, because opening a FIFO without a writer would block forever.
                    if !fs::metadata(path)?.is_file() {
                        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
                    }
                    let (limit, mut text) = (crate::layout::PROFILE_BYTES as u64 / 2, String::new());
                    File::open(path)?.take(limit + 1).read_to_string(&mut text)?;
                    if text.len() as u64 > limit {
                        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 4 KiB"));
                    }
                    Ok(text)
                };
                let text = read(&path).map_err(|source| Error::ProfileFile {
                    path: path.clone(),
                    source,
                })?;
                let profile = Profile::parse(&text).map_err(|source| Error::Profile {
                    path: path.clone(),
                    source,
                })?;
                Some((path, profile))
            }
            None => None,
        };
        let path = |name| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        Ok(Self {
            dir,
            origin,
            profile,
            cgroup: path("SOFT_GPU_CGROUP"),
            caps: path("SOFT_GPU_CAPS"),
        })
    }
}

fn given(dir: &Path) -> Result<PathBuf, Error> {
    let error = |source| Error::Folder {
        origin: "SOFT_GPU_STATE",
        path: dir.into(),
        source,
    };
    match fs::metadata(dir) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => return Err(error(io::ErrorKind::NotADirectory.into())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().recursive(true).create(dir).map_err(error)?;
        }
        Err(e) => return Err(error(e)),
    }
    // Absolute, because the program may change its working directory.
    fs::canonicalize(dir).map_err(error)
}

/// The user on whose behalf this process acts.
pub(crate) fn user() -> u32 {
    // SAFETY: geteuid always succeeds and touches no memory.
    unsafe { libc::geteuid() }
}

/// Returns a folder for this user, which no other user can have prepared.
fn default_dir() -> Result<PathBuf, Error> {
    // SAFETY: getuid always succeeds and touches no memory.
    let uid = unsafe { libc::getuid() };
    let runtime = std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|dir| dir.is_absolute());
    let dir = match runtime.filter(|dir| fs::metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid)) {
        Some(runtime) => runtime.join("soft-gpu"),
        None => PathBuf::from(format!("/tmp/soft-gpu-{uid}")),
    };
    let error = |source| Error::Folder {
        origin: "the default of SOFT_GPU_STATE",
        path: dir.clone(),
        source,
    };
    match DirBuilder::new().mode(0o700).create(&dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(error(e)),
        _ => {}
    }
    let meta = fs::symlink_metadata(&dir).map_err(error)?;
    if !meta.is_dir() || meta.uid() != uid || meta.mode() & 0o077 != 0 {
        let why = "not a folder of this user alone (mode 0700); remove it or set SOFT_GPU_STATE";
        return Err(error(io::Error::new(io::ErrorKind::PermissionDenied, why)));
    }
    Ok(dir)
}

//! Facts about the mount of an opened folder. They show whether the node mounted a folder at this path, or whether root
//! of a container created it there.
//!
//! How it fails: a kernel before 5.8, or a seccomp filter that denies statx, does not report the root of a mount. Then
//! a folder is taken for a mount's root if its parent is on another file system; a bind mount within one file system is
//! refused, because it looks like a folder. A mount in the tenant's own user namespace looks like the node's.
#![allow(unsafe_code)] // openat, fstat, fstatfs and statx, which std does not have for descriptors.

use super::file;
use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const TMPFS_MAGIC: i64 = 0x0102_1994;
/// Root of an outer user namespace is shown as this user.
const UNMAPPED: u32 = 65_534;

/// Facts about an opened folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// True if it is the root of a mount.
    pub mount_root: bool,
    pub tmpfs: bool,
    pub read_only: bool,
    pub owner: u32,
    pub device: u64,
}

impl Facts {
    /// Returns why the node cannot have mounted the folder, or None. `tmpfs`: the node mounts a tmpfs there.
    #[must_use]
    pub fn objection(&self, tmpfs: bool) -> Option<&'static str> {
        if !self.mount_root {
            Some("is no mount")
        } else if tmpfs && !self.tmpfs {
            Some("is no tmpfs")
        } else if !self.read_only {
            Some("can be written to")
        } else if self.owner != 0 && self.owner != UNMAPPED {
            Some("does not belong to root")
        } else {
            None
        }
    }
}

/// Opens a folder, without following a link at its end.
///
/// # Errors
/// Errors of open(2).
pub fn open_folder(path: &Path) -> io::Result<OwnedFd> {
    open_at(libc::AT_FDCWD, path, libc::O_DIRECTORY)
}

/// Opens `name` in `folder` for reading, without following a link and without waiting for a FIFO's writer. `flags`:
/// additional flags of open(2).
///
/// # Errors
/// Errors of open(2).
pub fn open_in(folder: &OwnedFd, name: &Path, flags: libc::c_int) -> io::Result<OwnedFd> {
    open_at(folder.as_raw_fd(), name, flags)
}

fn open_at(folder: libc::c_int, path: &Path, flags: libc::c_int) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = flags | libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: `path` is a C string.
    let raw = unsafe { libc::openat(folder, path.as_ptr(), flags) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Returns the facts about an opened folder.
///
/// # Errors
/// Errors of fstat(2), fstatfs(2) and fstatvfs(3).
pub fn facts(folder: &OwnedFd) -> io::Result<Facts> {
    let status = file::status(folder.as_raw_fd())?;
    let mut system = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: `system` is to be written.
    if unsafe { libc::fstatfs(folder.as_raw_fd(), system.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all-zero is a value, and fstatfs has written another.
    let system = unsafe { system.assume_init() };
    let mut flags = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: `flags` is to be written.
    if unsafe { libc::fstatvfs(folder.as_raw_fd(), flags.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all-zero is a value, and fstatvfs has written another.
    let flags = unsafe { flags.assume_init() };
    let mount_root = match is_mount_root(folder) {
        Some(known) => known,
        None => {
            let parent = open_in(folder, Path::new(".."), libc::O_DIRECTORY)?;
            file::status(parent.as_raw_fd())?.st_dev != status.st_dev
        }
    };
    Ok(Facts {
        mount_root,
        tmpfs: system.f_type == TMPFS_MAGIC,
        read_only: flags.f_flag & libc::ST_RDONLY != 0,
        owner: status.st_uid,
        device: status.st_dev,
    })
}

/// Returns None if the kernel does not report mount roots.
fn is_mount_root(folder: &OwnedFd) -> Option<bool> {
    const MOUNT_ROOT: u64 = 0x2000;
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    // By number, because glibc has the function only since 2.28. SAFETY: the path is an empty C string, and `found` is
    // to be written.
    let result = unsafe {
        libc::syscall(
            libc::SYS_statx,
            folder.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            0,
            found.as_mut_ptr(),
        )
    };
    if result != 0 {
        return None;
    }
    // SAFETY: all-zero is a value, and statx has written another.
    let found = unsafe { found.assume_init() };
    (found.stx_attributes_mask & MOUNT_ROOT != 0).then_some(found.stx_attributes & MOUNT_ROOT != 0)
}

#[cfg(all(test, not(miri)))] // The tests use files.
mod tests {
    use super::*;

    #[test]
    fn each_missing_fact_is_an_objection() {
        let good = Facts {
            mount_root: true,
            tmpfs: true,
            read_only: true,
            owner: 0,
            device: 7,
        };
        assert_eq!(good.objection(true), None);
        let unmapped = Facts {
            owner: UNMAPPED,
            ..good
        };
        assert_eq!(
            unmapped.objection(true),
            None,
            "the node's root, seen from a user namespace"
        );
        for (facts, expected) in [
            (
                Facts {
                    mount_root: false,
                    ..good
                },
                "is no mount",
            ),
            (Facts { tmpfs: false, ..good }, "is no tmpfs"),
            (
                Facts {
                    read_only: false,
                    ..good
                },
                "can be written to",
            ),
            (Facts { owner: 1000, ..good }, "does not belong to root"),
        ] {
            assert_eq!(facts.objection(true), Some(expected));
        }
        assert_eq!(Facts { tmpfs: false, ..good }.objection(false), None);
    }

    #[test]
    fn a_folder_is_no_mount_and_a_mount_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |path: &Path| open_folder(path).expect("a folder");
        let plain = facts(&open(folder.path())).expect("facts");
        assert!(!plain.mount_root && !plain.read_only, "{plain:?}");
        let mounted = facts(&open(Path::new("/proc"))).expect("facts");
        assert!(mounted.mount_root && !mounted.tmpfs, "{mounted:?}");
        std::os::unix::fs::symlink("/proc", folder.path().join("link")).expect("a link");
        assert!(
            open_folder(&folder.path().join("link")).is_err(),
            "links are not followed"
        );
    }
}

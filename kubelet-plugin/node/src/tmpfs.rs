//! Mounts a tmpfs of limited size, so that a tenant's writable files cannot grow.
//!
//! Mounting needs CAP_SYS_ADMIN. An existing tmpfs of a folder is kept; mounts that a crash stacked on each other are
//! all removed. Containers have their own mounts, so unmounting here does not affect them.
//!
//! Where the kernel enforces SELinux, a container may only use files with a label for containers. A file's label is fixed
//! by the mount, because the runtime does not relabel what CDI mounts.

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use vgpu_abi::paths::TMPFS_SOURCE;

use crate::selinux;

const TMPFS_MAGIC: i64 = 0x0102_1994;

/// The capacity of a tmpfs, which counts in the kernel's pages: of 4 KiB, and on arm64 of up to 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub bytes: u64,
    /// Number of files, without the root folder.
    pub files: u64,
}

// === impl Size ===

impl Size {
    /// Room for files of these lengths and no more.
    #[must_use]
    pub fn of_files(lengths: impl IntoIterator<Item = u64>) -> Self {
        Self::of_pages(page_size(), lengths)
    }

    fn of_pages(page: u64, lengths: impl IntoIterator<Item = u64>) -> Self {
        let (bytes, files) = lengths.into_iter().fold((0, 0), |(bytes, files), length| {
            (bytes + length.next_multiple_of(page), files + 1)
        });
        Self { bytes, files }
    }

    fn options(self, label: Option<&CStr>) -> CString {
        let bytes = self.bytes.next_multiple_of(page_size());
        let label = label.map(CStr::to_string_lossy);
        let context = label.map(|label| format!(",context=\"{label}\"")).unwrap_or_default();
        // The root folder has an inode too.
        let text = format!("size={bytes},nr_inodes={},mode=0755{context}", self.files + 1);
        CString::new(text).unwrap_or_default()
    }
}

/// Returns the size of the kernel's pages: a file of a tmpfs takes whole ones.
#[must_use]
pub fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// Returns true if `folder` is a tmpfs and not on its parent's file system.
///
/// # Errors
/// The folder or its parent cannot be read.
pub fn is_mounted(folder: &Path) -> io::Result<bool> {
    let parent = folder.parent().unwrap_or(folder);
    let apart = std::fs::metadata(folder)?.dev() != std::fs::metadata(parent)?.dev();
    Ok(apart && rustix::fs::statfs(folder)?.f_type == TMPFS_MAGIC)
}

/// Mounts a tmpfs of `size` on `folder`, which must exist, unless it has one.
///
/// # Errors
/// Mounting fails, for example without CAP_SYS_ADMIN.
pub fn ensure(folder: &Path, size: Size) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    if is_mounted(folder)? {
        return Ok(());
    }
    let mount_with = |label| mount(TMPFS_SOURCE, folder, "tmpfs", flags, size.options(label).as_c_str());
    let label = selinux::label_of_mounts();
    match mount_with(label) {
        // The label is unknown to the node's policy: it is not container-selinux.
        Err(Errno::INVAL) if label.is_some() => mount_with(None)?,
        result => result?,
    }
    Ok(())
}

/// Removes every tmpfs from `folder`.
///
/// # Errors
/// Unmounting fails.
pub fn remove(folder: &Path) -> io::Result<()> {
    loop {
        match unmount(folder, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Not a mount point (any more), or no such folder.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            // Without the capability, this process cannot have mounted anything.
            Err(Errno::PERM) if matches!(is_mounted(folder), Ok(false)) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
#[path = "can_mount_test.rs"]
mod can_mount_test;

#[cfg(test)]
pub(crate) mod tests {
    pub(crate) use super::can_mount_test::can_mount;
    use super::*;

    /// No kernel of our machines has SELinux, so the mount itself was not tried.
    #[test]
    fn where_the_kernel_has_selinux_the_files_get_a_label_for_containers() {
        let size = Size { bytes: 1, files: 1 };
        assert_eq!(size.options(None).as_c_str(), c"size=4096,nr_inodes=2,mode=0755");
        assert_eq!(
            size.options(Some(selinux::WRITABLE)).as_c_str(),
            c"size=4096,nr_inodes=2,mode=0755,context=\"system_u:object_r:container_file_t:s0\""
        );
    }

    #[test]
    fn each_file_takes_whole_pages() {
        let sizes = |page| Size::of_pages(page, [192 << 10, 4096, 1]);
        let sized = |bytes| Size { bytes, files: 3 };
        assert_eq!(sizes(4 << 10), sized(200 << 10));
        assert_eq!(sizes(64 << 10), sized(320 << 10));
    }

    #[test]
    fn a_tmpfs_cannot_grow_and_goes_without_trace() {
        if !can_mount("a_tmpfs_cannot_grow_and_goes_without_trace") {
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path().join("t");
        std::fs::create_dir(&folder).expect("a folder");
        let size = Size { bytes: 8000, files: 1 };
        ensure(&folder, size).expect("mounted");
        ensure(&folder, size).expect("still mounted");
        assert!(is_mounted(&folder).expect("looked at"));
        std::fs::write(folder.join("full"), vec![1; 8192]).expect("two pages fit");
        assert!(
            std::fs::write(folder.join("full"), vec![1; 8193]).is_err(),
            "a third page does not"
        );
        assert!(
            std::fs::write(folder.join("more"), "").is_err(),
            "nor does a second file"
        );
        mount("vgpu", &folder, "tmpfs", MountFlags::empty(), c"size=4096").expect("stacked as by a crash");
        remove(&folder).expect("unmounted");
        remove(&folder).expect("nothing left to do");
        assert!(!is_mounted(&folder).expect("looked at"));
        remove(&dir.path().join("absent")).expect("nothing there");
    }
}

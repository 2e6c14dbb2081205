//! Finds processes in a mount namespace of a `vgpu run` by root. Such a process still needs its share, even
//! if it has closed its descriptors and does not use the GPU yet.
//!
//! Failure mode: a process in a PID namespace that is not visible here is not found. It loses the share, and
//! cuInit refuses it.
#![forbid(unsafe_code)]

use rustix::fs::{AtFlags, StatxFlags};
use std::fs;
use std::path::{Path, PathBuf};
use vgpu_node::mounts::{Mount, Namespaces, numbered_folders};

/// Returns true if the share below `folder` is mounted in a namespace with processes, other than this one.
#[must_use]
pub fn any(folder: &Path) -> bool {
    let own = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let device = mount_id(folder).and_then(|id| device_of(&own, id));
    let Some(part) = part(folder) else { return false };
    let mut namespaces = Namespaces::default();
    namespaces.leave_out(Path::new("/proc/self"));
    let wanted = |mount: &Mount<'_>| is_of_share(mount, &part, device).then_some(());
    let has_share = |process: PathBuf| {
        let found = namespaces.of_process(&process, false, wanted);
        found.is_ok_and(|found| found.is_some_and(|found| !found.is_empty()))
    };
    let processes = numbered_folders(Path::new("/proc")).unwrap_or_default();
    processes.into_iter().any(has_share)
}

/// The id of the mount that `folder` is on; none on kernels before 5.8.
fn mount_id(folder: &Path) -> Option<u64> {
    let stat = rustix::fs::statx(rustix::fs::CWD, folder, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
    let is_known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::MNT_ID);
    is_known.then_some(stat.stx_mnt_id)
}

/// The file system of the mount `id`, as `major:minor`. Not taken from stat(2), which differs from it on btrfs.
fn device_of(mountinfo: &str, id: u64) -> Option<&str> {
    let id = id.to_string();
    let mut mounts = mountinfo.lines().filter_map(Mount::parse);
    Some(mounts.find(|mount| mount.id == id)?.device)
}

/// Returns the last part of the path of `folder`/shares, by which its mounts are recognised: a mount's root is a path
/// within its file system, so its beginning may differ from `folder`'s.
fn part(folder: &Path) -> Option<String> {
    let mut own = folder.components().rev().map(|part| part.as_os_str().to_string_lossy());
    let (id, run_dir) = (own.next()?, own.next()?);
    Some(format!("/{run_dir}/{id}/shares/"))
}

/// A container may have a folder of the same name in its own file system. `device` tells the two apart; without it, any
/// mount matches.
fn is_of_share(mount: &Mount<'_>, part: &str, device: Option<&str>) -> bool {
    device.is_none_or(|device| mount.device == device) && mount.root.contains(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                          30 22 0:5 /vgpu-run/a/shares/a /run/vgpu/a ro - tmpfs run rw\n";

    fn has_share_of(folder: &str, device: Option<&str>) -> bool {
        let mut mounts = MOUNTS.lines().filter_map(Mount::parse);
        let part = part(Path::new(folder)).unwrap();
        mounts.any(|mount| is_of_share(&mount, &part, device))
    }

    #[test]
    fn a_shares_mount_is_known_by_the_end_of_its_root() {
        let has = |folder| has_share_of(folder, Some("0:5"));
        assert!(has("/run/vgpu-run/a"));
        assert!(!has("/run/vgpu-run/b"));
        assert!(!has("/run/vgpu-run/shares"));
    }

    #[test]
    fn a_folder_of_the_same_name_in_another_file_system_is_another() {
        let has = |device| has_share_of("/run/vgpu-run/a", device);
        assert!(!has(Some("0:6")));
        assert!(has(None), "where the file system is not known, any counts");
    }

    #[test]
    fn the_file_system_is_that_of_the_mount_in_proc() {
        assert_eq!((device_of(MOUNTS, 30), device_of(MOUNTS, 5)), (Some("0:5"), None));
        let own = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let Some(id) = mount_id(Path::new("/proc")) else {
            return vgpu_skip::skip(
                "the_file_system_is_that_of_the_mount_in_proc",
                "statx of this kernel has no mount id",
            );
        };
        let line = own
            .lines()
            .find(|line| line.split(' ').nth(4) == Some("/proc"))
            .unwrap();
        assert_eq!(device_of(&own, id), line.split(' ').nth(2));
    }
}

//! Finds processes in a mount namespace of a `vgpu run` by root. Such a process still needs its share, even
//! if it has closed its descriptors and does not use the GPU yet.
//!
//! Failure mode: a process in a PID namespace that is not visible here is not found. It loses the share, and
//! cuInit refuses it.
#![forbid(unsafe_code)]

use rustix::fs::{AtFlags, StatxFlags};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns true if the share below `folder` is mounted in a namespace with processes, other than this one.
#[must_use]
pub fn any(folder: &Path) -> bool {
    let own = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let device = mount_id(folder).and_then(|id| device_of(&own, id));
    let mut seen: HashSet<PathBuf> = fs::read_link("/proc/self/ns/mnt").into_iter().collect();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.map(|entry| entry.path()).any(|process| {
        let first = fs::read_link(process.join("ns/mnt")).is_ok_and(|namespace| seen.insert(namespace));
        first && fs::read_to_string(process.join("mountinfo")).is_ok_and(|mounts| has_share_of(&mounts, folder, device))
    })
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
    mountinfo.lines().find_map(|line| {
        let mut words = line.split(' ');
        (words.next()? == id).then(|| words.nth(1)).flatten()
    })
}

/// Returns true if one of the mounts is of a folder in `folder`/shares. A container may have a folder of the same name
/// in a file system of its own, which `device` tells apart; without it, any counts.
fn has_share_of(mountinfo: &str, folder: &Path, device: Option<&str>) -> bool {
    let mut own = folder.components().rev().map(|part| part.as_os_str().to_string_lossy());
    let (Some(id), Some(run_dir)) = (own.next(), own.next()) else {
        return false;
    };
    // A mount's root is a path within its file system, so only its end can be compared.
    let part = format!("/{run_dir}/{id}/shares/");
    mountinfo.lines().any(|line| {
        let mut words = line.split(' ').skip(2);
        let on = words.next();
        device.is_none_or(|device| on == Some(device)) && words.next().is_some_and(|root| root.contains(&part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                          30 22 0:5 /vgpu-run/a/shares/a /run/vgpu/a ro - tmpfs run rw\n";

    #[test]
    fn a_shares_mount_is_known_by_the_end_of_its_root() {
        let has = |folder| has_share_of(MOUNTS, Path::new(folder), Some("0:5"));
        assert!(has("/run/vgpu-run/a"));
        assert!(!has("/run/vgpu-run/b"));
        assert!(!has("/run/vgpu-run/shares"));
    }

    #[test]
    fn a_folder_of_the_same_name_in_another_file_system_is_another() {
        let has = |device| has_share_of(MOUNTS, Path::new("/run/vgpu-run/a"), device);
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

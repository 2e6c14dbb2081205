//! Finds processes in a mount namespace of a `vgpu run` by root. Such a process still needs its share, even
//! if it has closed its descriptors and does not use the GPU yet.
//!
//! Failure mode: a process in a PID namespace that is not visible here is not found. It loses the share, and
//! cuInit refuses it.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns true if the share below `folder` is mounted in a namespace with processes, other than this one.
#[must_use]
pub fn any(folder: &Path) -> bool {
    let mut seen: HashSet<PathBuf> = fs::read_link("/proc/self/ns/mnt").into_iter().collect();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.map(|entry| entry.path()).any(|process| {
        let first = fs::read_link(process.join("ns/mnt")).is_ok_and(|namespace| seen.insert(namespace));
        first && fs::read_to_string(process.join("mountinfo")).is_ok_and(|mounts| has_share_of(&mounts, folder))
    })
}

/// Returns true if one of the mounts is of a folder in `folder`/shares.
fn has_share_of(mountinfo: &str, folder: &Path) -> bool {
    let mut own = folder.components().rev().map(|part| part.as_os_str().to_string_lossy());
    let (Some(id), Some(run_dir)) = (own.next(), own.next()) else {
        return false;
    };
    // A mount's root is a path within its file system, so only its end can be compared.
    let part = format!("/{run_dir}/{id}/shares/");
    let mut roots = mountinfo.lines().filter_map(|line| line.split(' ').nth(3));
    roots.any(|root| root.contains(&part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shares_mount_is_known_by_the_end_of_its_root() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                      30 22 0:5 /vgpu-run/a/shares/a /run/vgpu/a ro - tmpfs run rw\n";
        assert!(has_share_of(mounts, Path::new("/run/vgpu-run/a")));
        assert!(!has_share_of(mounts, Path::new("/run/vgpu-run/b")));
        assert!(!has_share_of(mounts, Path::new("/run/vgpu-run/shares")));
    }
}

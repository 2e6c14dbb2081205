//! Whether a process lives in a mount namespace of root's run, and so still needs its share: one that
//! has closed its descriptors and is not on the GPU yet is told by nothing else.
//!
//! How it fails: a process of a PID namespace that this one does not see is not found. It loses the
//! share, and cuInit refuses it.
#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Whether the share below `folder` is mounted in a namespace other than this one that has processes.
#[must_use]
pub fn any(folder: &Path) -> bool {
    let mut seen: HashSet<PathBuf> = fs::read_link("/proc/self/ns/mnt").into_iter().collect();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.map(|entry| entry.path()).any(|process| {
        let first = fs::read_link(process.join("ns/mnt")).is_ok_and(|namespace| seen.insert(namespace));
        first && fs::read_to_string(process.join("mountinfo")).is_ok_and(|mounts| has_share_of(&mounts, folder))
    })
}

/// Whether one of the mounts is of what lies in `folder`/shares.
fn has_share_of(mountinfo: &str, folder: &Path) -> bool {
    let mut own = folder.components().rev().map(|part| part.as_os_str().to_string_lossy());
    let (Some(id), Some(run_dir)) = (own.next(), own.next()) else {
        return false;
    };
    // The root of a mount is told within its file system, of which we see only the end.
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

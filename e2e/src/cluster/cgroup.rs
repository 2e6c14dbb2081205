//! The cluster's cgroups: one folder in every hierarchy, which the kubelet is given as its root.
//!
//! Works on v1 (a hierarchy a controller), on hybrid hosts (those and an empty v2) and on v2. The kubelet kills what it
//! does not know below its root, so the root is never shared with anyone.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, bail};

/// The folder's name in each hierarchy.
pub(super) fn name(cluster: &str) -> String {
    format!("vgpu-e2e-{cluster}")
}

/// The mount points of all hierarchies, of v1 and v2.
fn hierarchies(mountinfo: &str) -> Vec<(PathBuf, bool)> {
    let mut found: Vec<(PathBuf, bool)> = Vec::new();
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        let Some(point) = left.split(' ').nth(4) else { continue };
        let unified = match right.split(' ').next() {
            Some("cgroup") => false,
            Some("cgroup2") => true,
            _ => continue,
        };
        let point = PathBuf::from(point);
        if point.starts_with("/sys/fs/cgroup") && !found.iter().any(|(other, _)| *other == point) {
            found.push((point, unified));
        }
    }
    found
}

fn of_this_machine() -> Result<Vec<(PathBuf, bool)>> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").context("cannot read /proc/self/mountinfo")?;
    let found = hierarchies(&mountinfo);
    if found.is_empty() {
        bail!("no cgroup hierarchy is mounted under /sys/fs/cgroup: the kubelet needs one, mount it");
    }
    Ok(found)
}

/// Makes the folders.
pub(super) fn create(cluster: &str) -> Result<()> {
    for (root, unified) in of_this_machine()? {
        let folder = root.join(name(cluster));
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        if unified {
            delegate(&root, &folder)?;
        } else {
            fill_cpuset(&root, &folder)?;
        }
    }
    Ok(())
}

/// v1: a new cpuset has no CPU and no memory node, and nothing can run in it.
fn fill_cpuset(root: &Path, folder: &Path) -> Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let Ok(value) = fs::read_to_string(root.join(file)) else {
            continue;
        };
        fs::write(folder.join(file), value.trim())
            .with_context(|| format!("cannot set {file} of {}", folder.display()))?;
    }
    Ok(())
}

/// v2: controllers that the root already gives to its children are given on. The root's own list is the machine's, and
/// stays: a controller that is missing there is missing for the cluster too, and the kubelet says so.
fn delegate(root: &Path, folder: &Path) -> Result<()> {
    let enabled = fs::read_to_string(root.join("cgroup.subtree_control")).unwrap_or_default();
    for controller in enabled.split_whitespace() {
        fs::write(folder.join("cgroup.subtree_control"), format!("+{controller}"))
            .with_context(|| format!("cannot enable {controller} in {}", folder.display()))?;
    }
    Ok(())
}

/// Removes the folders with all below them. The kernel takes a moment to let go of what processes have just left.
pub(super) fn remove(cluster: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    for (root, _) in of_this_machine()? {
        let folder = root.join(name(cluster));
        while folder.exists() {
            remove_tree(&folder);
            if folder.exists() && Instant::now() > deadline {
                bail!("{} cannot be removed: something still runs in it", folder.display());
            }
            if folder.exists() {
                thread::sleep(Duration::from_millis(50));
            }
        }
    }
    Ok(())
}

/// A cgroup's files cannot be deleted, and go with the folder.
fn remove_tree(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    let _ = fs::remove_dir(folder);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_and_unified_hosts_are_told_apart() {
        let hybrid = "25 24 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
            26 25 0:23 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
            27 25 0:24 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        assert_eq!(
            hierarchies(hybrid),
            [
                ("/sys/fs/cgroup/cpu,cpuacct".into(), false),
                ("/sys/fs/cgroup/unified".into(), true)
            ]
        );
        let unified = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(hierarchies(unified), [("/sys/fs/cgroup".into(), true)]);
    }
}

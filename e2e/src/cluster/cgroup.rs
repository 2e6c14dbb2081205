//! The cluster's cgroups: one folder in every hierarchy, which contains all processes of the cluster.
//!
//! ```text
//! <hierarchy>/vgpu-e2e-<cluster>/processes   keeper, init and the components: only in the tracking hierarchy
//!                               /<node>      the kubelet's root, with the pods below it
//! ```
//! Works on v1 (a hierarchy per controller), on hybrid hosts (v1 hierarchies and an empty v2) and on v2. The kubelet
//! kills unknown processes below its root, so the root is never shared. Every process that the cluster starts inherits
//! the keeper's cgroup, so a process belongs to the cluster exactly if it is in this folder of the tracking hierarchy.
//!
//! In v2, a folder only has a controller if every folder above enables it for its children. systemd's root enables
//! cpu, memory and pids; the kubelet needs more ([`NEEDED`]). They are enabled here, and [`super::host`] disables them
//! after the last cluster.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, ensure};

use crate::patience;

/// The mount point of v2, if it is the only version.
pub(crate) const UNIFIED: &str = "/sys/fs/cgroup";
/// The prefix of every cluster's folder.
pub(crate) const PREFIX: &str = "vgpu-e2e-";
/// Prefix of a folder that shows the settings of a new folder, followed by the PID of its creator.
const FRESH: &str = "vgpu-e2e-fresh-";
/// Controllers without which the kubelet does not start, if the kernel has them.
pub(crate) const NEEDED: [&str; 5] = ["cpu", "cpuset", "hugetlb", "memory", "pids"];
const PROCESSES: &str = "processes";
const SUBTREE: &str = "cgroup.subtree_control";

/// The name of the cluster's folder in each hierarchy.
fn name(cluster: &str) -> String {
    format!("{PREFIX}{cluster}")
}

/// The kubelet's root on a node, as a path in every hierarchy.
pub(super) fn kubelet_root(cluster: &str, node: &str) -> String {
    format!("/{}/{node}", name(cluster))
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Hierarchy {
    root: PathBuf,
    unified: bool,
}

/// All hierarchies below /sys/fs/cgroup.
fn hierarchies(mountinfo: &str) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        let Some(root) = left.split(' ').nth(4) else { continue };
        let unified = match right.split(' ').next() {
            Some("cgroup") => false,
            Some("cgroup2") => true,
            _ => continue,
        };
        let root = PathBuf::from(root);
        if root.starts_with(UNIFIED) && !found.iter().any(|other| other.root == root) {
            found.push(Hierarchy { root, unified });
        }
    }
    found
}

/// Mount points of this machine's hierarchies.
pub(crate) fn roots() -> Result<Vec<PathBuf>> {
    Ok(visible()?.into_iter().map(|one| one.root).collect())
}

/// All hierarchies that are not hidden by a mount over them.
fn visible() -> Result<Vec<Hierarchy>> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").context("cannot read /proc/self/mountinfo")?;
    let mut found = hierarchies(&mountinfo);
    found.retain(|one| one.root.exists());
    Ok(found)
}

fn of_this_machine() -> Result<Vec<Hierarchy>> {
    let found = visible()?;
    ensure!(
        !found.is_empty(),
        "no cgroup hierarchy is mounted under {UNIFIED}: the kubelet needs one, mount it"
    );
    Ok(found)
}

/// The hierarchy used to list the cluster's processes: v2 if mounted (on hybrid hosts it has no controllers), else pids,
/// else any.
fn tracking(all: &[Hierarchy]) -> Option<&Hierarchy> {
    all.iter()
        .find(|one| one.unified)
        .or_else(|| all.iter().find(|one| one.root.ends_with("pids")))
        .or(all.first())
}

/// The cluster's folder in the tracking hierarchy.
fn tracked(cluster: &str) -> Result<PathBuf> {
    let all = of_this_machine()?;
    let one = tracking(&all).context("no cgroup hierarchy")?;
    Ok(one.root.join(name(cluster)))
}

/// Creates the cluster's folders and moves this process into them. Its children start there.
pub(super) fn enter(cluster: &str) -> Result<()> {
    for hierarchy in of_this_machine()? {
        if hierarchy.is_the_only_one() {
            give_down(&hierarchy.root)?;
        }
        make(&hierarchy, &hierarchy.root.join(name(cluster)))?;
    }
    let processes = tracked(cluster)?.join(PROCESSES);
    fs::create_dir_all(&processes).with_context(|| format!("cannot create {}", processes.display()))?;
    move_here(&processes)
}

/// Creates the root folder of a node's kubelet.
pub(super) fn add_node(cluster: &str, node: &str) -> Result<()> {
    for hierarchy in of_this_machine()? {
        make(&hierarchy, &hierarchy.root.join(name(cluster)).join(node))?;
    }
    Ok(())
}

impl Hierarchy {
    /// Returns true if v2 is mounted and v1 is not.
    fn is_the_only_one(&self) -> bool {
        self.unified && self.root == Path::new(UNIFIED)
    }
}

fn make(hierarchy: &Hierarchy, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    if hierarchy.is_the_only_one() {
        give_down(folder)
    } else {
        fill_cpuset(folder)
    }
}

/// v1: nothing can run in a new cpuset, which has no CPU and no memory node. Copies both from the folder above.
fn fill_cpuset(folder: &Path) -> Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let Some(Ok(value)) = folder.parent().map(|above| fs::read_to_string(above.join(file))) else {
            continue;
        };
        fs::write(folder.join(file), value.trim())
            .with_context(|| format!("cannot set {file} of {}", folder.display()))?;
    }
    Ok(())
}

/// v2: enables the controllers that the kubelet needs for the folder's children.
fn give_down(folder: &Path) -> Result<()> {
    let given = subtree(folder)?;
    for controller in available(folder)? {
        if NEEDED.contains(&controller.as_str()) && !given.contains(&controller) {
            fs::write(folder.join(SUBTREE), format!("+{controller}")).with_context(|| {
                format!(
                    "cannot enable the cgroup controller {controller} for the children of {}: in a container, run on the \
                     machine itself",
                    folder.display()
                )
            })?;
        }
    }
    Ok(())
}

/// The controllers that a v2 folder has and may enable for its children.
fn available(folder: &Path) -> Result<Vec<String>> {
    words(&folder.join("cgroup.controllers"))
}

/// The controllers that a v2 folder enables for its children.
fn subtree(folder: &Path) -> Result<Vec<String>> {
    words(&folder.join(SUBTREE))
}

fn words(file: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

/// Controllers that the root of v2 enables for its children; empty unless v2 is the only version.
pub(super) fn root_controllers() -> Result<Vec<String>> {
    match of_this_machine()?.iter().find(|one| one.is_the_only_one()) {
        Some(one) => subtree(&one.root),
        None => Ok(Vec::new()),
    }
}

/// Controllers that the root of v2 enables for its children although none of them uses them.
#[must_use]
pub(crate) fn idle_root_controllers() -> Vec<String> {
    let given = root_controllers().unwrap_or_default();
    let used = |controller: &String| is_used(Path::new(UNIFIED), controller);
    given.into_iter().filter(|controller| !used(controller)).collect()
}

/// Disables the controllers at the v2 root that are not in `before`, except those that another program uses now.
pub(super) fn restore_root_controllers(before: &[String]) -> Result<()> {
    let root = Path::new(UNIFIED);
    for controller in root_controllers()?.iter().filter(|one| !before.contains(one)) {
        if is_used(root, controller) {
            continue;
        }
        match fs::write(root.join(SUBTREE), format!("-{controller}")) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy => {}
            written => {
                written
                    .with_context(|| format!("cannot take the cgroup controller {controller} back from {UNIFIED}"))?;
            }
        }
    }
    Ok(())
}

/// Returns true if a folder below `root` enables the controller for its children, or has settings of it. In the first
/// case the kernel refuses to disable the controller. In the second case it would disable it, and the settings would
/// be lost.
fn is_used(root: &Path, controller: &str) -> bool {
    let is_ours = |folder: &PathBuf| {
        let name = folder.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with(PREFIX)
    };
    // v1 hierarchies may be mounted in folders of v2. Their files say nothing about v2.
    let is_of_root = |folder: &PathBuf| device(folder) == device(root);
    let children: Vec<PathBuf> = folders(root)
        .filter(|folder| !is_ours(folder) && is_of_root(folder))
        .collect();
    let hands_on = |child: &PathBuf| subtree(child).is_ok_and(|list| list.iter().any(|one| one == controller));
    children.iter().any(hands_on) || has_settings(root, &children, controller)
}

fn device(folder: &Path) -> Option<u64> {
    Some(fs::metadata(folder).ok()?.dev())
}

/// Returns true if a setting of the controller differs from that of a new folder, or cannot be read. A threaded folder
/// has fewer files than a new one, so only its own files are compared.
fn has_settings(root: &Path, children: &[PathBuf], controller: &str) -> bool {
    remove_of_killed(root, FRESH);
    let fresh = root.join(format!("{FRESH}{}", std::process::id()));
    if fs::create_dir(&fresh).is_err() {
        return true;
    }
    let new = settings(&fresh, controller);
    let _ = fs::remove_dir(&fresh);
    let all = children.iter().flat_map(|child| settings(child, controller));
    all.into_iter().any(|(file, text)| new.get(&file) != Some(&text))
}

/// Removes folders below `root` that are named after dead processes, which were killed before they removed them.
pub(crate) fn remove_of_killed(root: &Path, prefix: &str) {
    for folder in folders(root) {
        let name = folder.file_name().and_then(|name| name.to_str());
        let process = name.and_then(|name| name.strip_prefix(prefix));
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            let _ = fs::remove_dir(folder); // somebody else may have removed it
        }
    }
}

/// The setting files of a controller with their contents. A write-only file reads as empty.
fn settings(folder: &Path, controller: &str) -> BTreeMap<String, String> {
    let prefix = format!("{controller}.");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_setting = |entry: &fs::DirEntry| {
        let mode = entry.metadata().map_or(0, |found| found.permissions().mode());
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let measures = [".pressure", ".peak"].iter().any(|end| name.ends_with(end));
        name.starts_with(&prefix) && mode & 0o200 != 0 && !measures
    };
    entries
        .filter(is_setting)
        .map(|entry| {
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            (entry.file_name().to_string_lossy().into_owned(), text)
        })
        .collect()
}

/// PIDs in the cluster's folder of the tracking hierarchy, including pods.
pub(super) fn processes(cluster: &str) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    collect(&tracked(cluster)?, &mut found);
    Ok(found)
}

fn collect(folder: &Path, found: &mut Vec<u32>) {
    let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    found.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
    for child in folders(folder) {
        collect(&child, found);
    }
}

fn folders(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
}

fn move_here(folder: &Path) -> Result<()> {
    fs::write(folder.join("cgroup.procs"), "0").with_context(|| format!("cannot move into {}", folder.display()))
}

/// The cgroup of this process before it entered a cluster's.
#[derive(Debug)]
pub(super) struct Origin(PathBuf);

impl Origin {
    pub(super) fn of_this_process() -> Result<Self> {
        let all = of_this_machine()?;
        let one = tracking(&all).context("no cgroup hierarchy")?;
        let text = fs::read_to_string("/proc/self/cgroup").context("cannot read /proc/self/cgroup")?;
        let path = path_in(one, &text).unwrap_or("/");
        Ok(Self(one.root.join(path.trim_start_matches('/'))))
    }

    /// Moves this process back, or to the root if its folder no longer exists because its session has ended.
    pub(super) fn go_back(&self) -> Result<()> {
        move_here(&self.0).or_else(|_| {
            let all = of_this_machine()?;
            move_here(&tracking(&all).context("no cgroup hierarchy")?.root)
        })
    }
}

/// The path of a process in a hierarchy, from its /proc/PID/cgroup.
fn path_in<'a>(hierarchy: &Hierarchy, text: &'a str) -> Option<&'a str> {
    let last = hierarchy.root.file_name()?.to_str()?;
    text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let found = match hierarchy.unified {
            true => controllers.is_empty(),
            false => controllers == last || controllers.strip_prefix("name=") == Some(last),
        };
        found.then_some(path)
    })
}

/// Removes the cluster's folders. The kernel needs a moment after the last process has ended.
pub(super) fn remove(cluster: &str) -> Result<()> {
    let deadline = Instant::now() + patience::stretched(Duration::from_secs(10));
    for hierarchy in of_this_machine()? {
        let folder = hierarchy.root.join(name(cluster));
        while folder.exists() {
            remove_tree(&folder);
            ensure!(
                !folder.exists() || Instant::now() <= deadline,
                "{} cannot be removed: something still runs in it",
                folder.display()
            );
            if folder.exists() {
                thread::sleep(Duration::from_millis(50));
            }
        }
    }
    Ok(())
}

/// Removes folders only: a cgroup's files cannot be deleted, and disappear with the folder.
fn remove_tree(folder: &Path) {
    for child in folders(folder) {
        remove_tree(&child);
    }
    let _ = fs::remove_dir(folder);
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "25 24 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
        26 25 0:23 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
        27 25 0:24 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    const V1: &str = "26 25 0:23 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
        27 25 0:24 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n";
    const UNIFIED_ONLY: &str = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";

    fn roots(mountinfo: &str) -> Vec<(String, bool)> {
        let all = hierarchies(mountinfo);
        all.iter()
            .map(|one| (one.root.display().to_string(), one.unified))
            .collect()
    }

    #[test]
    fn hybrid_and_unified_hosts_are_told_apart() {
        assert_eq!(
            roots(HYBRID),
            [
                ("/sys/fs/cgroup/cpu,cpuacct".to_owned(), false),
                ("/sys/fs/cgroup/unified".to_owned(), true)
            ]
        );
        assert!(!hierarchies(HYBRID).iter().any(Hierarchy::is_the_only_one));
        assert_eq!(roots(UNIFIED_ONLY), [("/sys/fs/cgroup".to_owned(), true)]);
        assert!(hierarchies(UNIFIED_ONLY)[0].is_the_only_one());
    }

    #[test]
    fn a_controller_that_somebody_has_set_something_of_is_used() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let file = root.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let used = |controller: &str| is_used(root.path(), controller);
        // On an ordinary disk a new folder has no files, so every file is a setting.
        write("user.slice/cgroup.subtree_control", "memory pids\n");
        write("vgpu-e2e-demo/cpuset.cpus", "0-1\n");
        assert!(used("memory") && !used("cpuset") && !used("hugetlb"));
        write("user.slice/cpuset.cpus", "0\n");
        write("user.slice/cpu.pressure", "some avg10=1.00\n");
        assert!(used("cpuset") && !used("cpu"));
        let left: Vec<PathBuf> = folders(root.path()).collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }

    #[test]
    fn folders_of_killed_processes_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let (gone, alive) = ("a-999999999".to_owned(), format!("a-{}", std::process::id()));
        for name in [gone.as_str(), alive.as_str(), "other"] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        remove_of_killed(root.path(), "a-");
        let left = |name: &str| root.path().join(name).exists();
        assert!(!left(&gone) && left(&alive) && left("other"));
    }

    #[test]
    fn processes_are_tracked_where_nothing_is_limited_by_it() {
        let root = |mountinfo| tracking(&hierarchies(mountinfo)).map(|one| one.root.display().to_string());
        assert_eq!(root(HYBRID).as_deref(), Some("/sys/fs/cgroup/unified"));
        assert_eq!(root(V1).as_deref(), Some("/sys/fs/cgroup/pids"));
        assert_eq!(root(UNIFIED_ONLY).as_deref(), Some("/sys/fs/cgroup"));
        assert_eq!(root(""), None);
    }

    #[test]
    fn the_path_of_a_process_is_read_in_its_hierarchy() {
        let text = "9:name=systemd:/user\n8:pids:/a/b\n3:cpu,cpuacct:/c:d\n0::/u\n";
        let path = |mountinfo, at: usize| path_in(&hierarchies(mountinfo)[at], text).map(str::to_owned);
        assert_eq!(path(HYBRID, 0).as_deref(), Some("/c:d"));
        assert_eq!(path(HYBRID, 1).as_deref(), Some("/u"));
        assert_eq!(path(V1, 1).as_deref(), Some("/a/b"));
    }
}

//! The machine's state outside any cluster, to compare before and after.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::cluster::{self, cgroup};
use crate::layout;

/// Facts about this machine, one per line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot(BTreeSet<String>);

/// Folders in which a careless cluster might leave files.
const FOLDERS: [&str; 11] = [
    "/etc",
    "/etc/cdi",
    "/etc/cni",
    "/opt",
    "/run",
    "/run/containerd",
    "/run/netns",
    "/var/lib",
    "/var/lib/kubelet",
    "/var/log",
    "/usr/libexec",
];
const FILES: [&str; 8] = [
    "/proc/sys/kernel/panic",
    "/proc/sys/kernel/panic_on_oops",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/panic_on_oom",
    "/proc/sys/kernel/keys/root_maxkeys",
    "/proc/sys/kernel/keys/root_maxbytes",
    "/proc/sys/net/ipv4/ip_forward",
    "/sys/kernel/security/apparmor/profiles",
];

impl Snapshot {
    /// Records the machine's state now.
    #[must_use]
    pub fn take() -> Self {
        let mut lines = BTreeSet::new();
        let home = std::env::var_os("HOME").unwrap_or_default();
        let of_clients = Path::new(&home).join(".kube/cache/discovery"); // a folder for each cluster
        for folder in FOLDERS.map(Path::new).into_iter().chain([of_clients.as_path()]) {
            for name in names(folder) {
                lines.insert(format!("file {}/{name}", folder.display()));
            }
        }
        for file in FILES {
            for line in fs::read_to_string(file).unwrap_or_default().lines() {
                lines.insert(format!("{file}: {line}"));
            }
        }
        for line in fs::read_to_string("/proc/self/mountinfo").unwrap_or_default().lines() {
            let words: Vec<&str> = line.split(' ').collect();
            if let Some(point) = words.get(4) {
                lines.insert(format!("mount {point}"));
            }
        }
        for name in names(Path::new("/sys/class/net")) {
            lines.insert(format!("network device {name}"));
        }
        for name in cluster::names() {
            lines.insert(format!("{CLUSTER}{name}"));
        }
        cgroups(Path::new("/sys/fs/cgroup"), 2, &mut lines);
        for controller in cgroup::idle_root_controllers() {
            lines.insert(format!("controller {controller} of the cgroup root"));
        }
        processes(&mut lines);
        Self(lines)
    }

    /// Facts that contain this text.
    #[must_use]
    pub fn lines_with(&self, text: &str) -> Vec<String> {
        self.0.iter().filter(|line| line.contains(text)).cloned().collect()
    }

    /// The differences: added facts, and missing facts. Clusters whose names do not start with `own` may start and end
    /// meanwhile: their facts are ignored, and so are facts shared by all clusters if one of them was running.
    #[must_use]
    pub fn changes(&self, after: &Self, own: &str) -> Vec<String> {
        let is_other = |name: &str| !name.starts_with(own);
        let clusters = self.0.union(&after.0).filter_map(|line| line.strip_prefix(CLUSTER));
        let has_others = { clusters }.any(is_other);
        let is_others = |line: &str| named_cluster(line).is_some_and(is_other) || of_all_clusters(line) && has_others;
        let counts = |line: &&String| !is_others(line);
        let added = after.0.difference(&self.0).filter(counts);
        let removed = self.0.difference(&after.0).filter(counts);
        added
            .map(|line| format!("added: {line}"))
            .chain(removed.map(|line| format!("gone: {line}")))
            .collect()
    }

    /// New facts in `after` that the cluster with this name has caused. On a machine in use, other programs and
    /// clusters cause new facts meanwhile.
    #[must_use]
    pub fn left_by(&self, cluster: &str, after: &Self) -> Vec<String> {
        let is_last = !after.0.iter().any(|line| line.starts_with(CLUSTER));
        let new = after.0.difference(&self.0);
        new.filter(|line| named_cluster(line) == Some(cluster) || of_all_clusters(line) && is_last)
            .cloned()
            .collect()
    }
}

/// Prefix of the fact that a cluster has a state folder.
const CLUSTER: &str = "state of cluster ";

/// The cluster that a line names directly, or by its cgroup or its state folder as part of a path.
fn named_cluster(line: &str) -> Option<&str> {
    let of_state = || {
        line.split_once(&format!("{}/", layout::STATE))?
            .1
            .split(['/', ' ', ':'])
            .next()
    };
    let mut parts = line.split([' ', '/', ':']);
    let of_cgroup = || parts.find_map(|part| part.strip_prefix(cgroup::PREFIX));
    line.strip_prefix(CLUSTER).or_else(of_cgroup).or_else(of_state)
}

/// Returns true for facts shared by all clusters, which disappear with the last of them.
fn of_all_clusters(line: &str) -> bool {
    let names_none = !line.contains(&format!("{}/", layout::STATE)) && !line.contains(cgroup::PREFIX);
    names_none
        && (line.contains("vgpu")
            || ["controller ", "/proc/sys/kernel/", "/proc/sys/vm/"]
                .iter()
                .any(|sign| line.starts_with(sign))
            || line.contains("apparmor") && line.contains("cri-containerd"))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Folders of cgroup hierarchies, down to a hierarchy's first level.
fn cgroups(folder: &Path, levels: u32, lines: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            lines.insert(format!("cgroup {}", entry.path().display()));
            if levels > 1 {
                cgroups(&entry.path(), levels - 1, lines);
            }
        }
    }
}

/// Processes of clusters, by their cgroup: a cluster's cgroup has all of its processes and no others.
fn processes(lines: &mut BTreeSet<String>) {
    for pid in names(Path::new("/proc")) {
        if !pid.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let folder = Path::new("/proc").join(&pid);
        let stat = fs::read_to_string(folder.join("stat")).unwrap_or_default();
        if is_dead(&stat) {
            continue; // its parent has to reap it, which may be the machine's init
        }
        let cgroups = fs::read_to_string(folder.join("cgroup")).unwrap_or_default();
        if let Some(cgroup) = of_a_cluster(&cgroups) {
            let line = fs::read(folder.join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            lines.insert(format!("process {pid} of {cgroup}: {line}"));
        }
    }
}

/// Returns true for a zombie, by its /proc/PID/stat. The name before the state may contain anything.
fn is_dead(stat: &str) -> bool {
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// The name of the cluster's folder in a /proc/PID/cgroup.
fn of_a_cluster(cgroups: &str) -> Option<&str> {
    let paths = cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let mut names = paths.filter_map(|path| path.split('/').nth(1));
    names.find(|name| name.starts_with(cgroup::PREFIX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_a_clusters_by_its_cgroup_alone() {
        let text = |path: &str| format!("9:name=systemd:/\n4:memory:/user/a\n0::{path}\n");
        assert_eq!(of_a_cluster(&text("/vgpu-e2e-demo/processes")), Some("vgpu-e2e-demo"));
        assert_eq!(of_a_cluster(&text("/vgpu-e2e-a/node1/kubepods/x")), Some("vgpu-e2e-a"));
        assert_eq!(of_a_cluster(&text("/user.slice/vgpu-e2e-demo")), None);
    }

    #[test]
    fn a_zombie_is_known_whatever_its_name_is() {
        assert!(is_dead("7 (a) S (b) Z 1 7 7 0"));
        assert!(!is_dead("7 (a) Z (b) S 1 7 7 0") && !is_dead(""));
    }

    #[test]
    fn changes_name_what_came_and_what_went() {
        let of = |lines: &[&str]| Snapshot(lines.iter().map(ToString::to_string).collect());
        assert_eq!(
            of(&["a", "b"]).changes(&of(&["b", "c"]), "test"),
            ["added: c", "gone: a"]
        );
        assert!(of(&["a"]).changes(&of(&["a"]), "test").is_empty());
    }

    #[test]
    fn changes_of_other_clusters_do_not_count() {
        let of = |lines: &[&str]| Snapshot(lines.iter().map(ToString::to_string).collect());
        let left = ["file /var/lib/vgpu-e2e", "process 8 of vgpu-e2e-test-1-a: etcd"];
        let others = [
            "mount /var/lib/vgpu-e2e/demo/node1/run",
            "process 9 of vgpu-e2e-demo: etcd",
            "state of cluster demo",
        ];
        let added = |lines: &[&str]| of(&[]).changes(&of(lines), "test-1-");
        let expected = left.map(|line| format!("added: {line}"));
        assert_eq!(added(&left), expected);
        assert_eq!(
            added(&[&left[..], &others].concat()),
            expected[1..],
            "the folder is theirs too"
        );
        assert_eq!(of(&others).changes(&of(&[]), "test-1-"), [""; 0]);
    }

    #[test]
    fn a_cluster_is_blamed_for_what_is_its_own_alone() {
        let of = |lines: &[&str]| Snapshot(lines.iter().map(ToString::to_string).collect());
        let own = [
            "cgroup /sys/fs/cgroup/vgpu-e2e-demo",
            "mount /var/lib/vgpu-e2e/demo/node1/run",
            "process 7 of vgpu-e2e-demo: etcd",
            "state of cluster demo",
        ];
        let in_common = [
            "/proc/sys/vm/overcommit_memory: 1",
            "/sys/kernel/security/apparmor/profiles: cri-containerd.apparmor.d (enforce)",
            "controller misc of the cgroup root",
            "file /run/vgpu",
            "file /var/lib/vgpu-e2e",
        ];
        let of_others = [
            "/proc/sys/net/ipv4/ip_forward: 1",
            "/sys/kernel/security/apparmor/profiles: docker-default (enforce)",
            "cgroup /sys/fs/cgroup/user.slice/session-7.scope",
            "cgroup /sys/fs/cgroup/vgpu-e2e-demo2",
            "file /run/docker.pid",
            "mount /var/lib/docker/overlay2/demo",
            "mount /var/lib/vgpu-e2e/demo2/node1/run",
            "network device veth1",
            "process 8 of vgpu-e2e-demo2: etcd",
        ];
        let before = of(&["file /etc/passwd", "state of cluster old"]);
        let all = |more: &[&str]| of(&[&own[..], &in_common, &of_others, more].concat());
        assert_eq!(before.left_by("demo", &all(&["state of cluster demo2"])), own);
        assert_eq!(
            before.left_by("demo", &of(&[&in_common[..], &of_others].concat())),
            in_common
        );
    }
}

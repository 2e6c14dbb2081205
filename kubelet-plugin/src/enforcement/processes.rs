//! The map of the node's processes: the shares that each mount namespace has, and the container of each process. Everything
//! that asks which processes have a share reads it.
//!
//! A process belongs to the shares whose tmpfs its mount namespace has, by device number. That is the kernel's word: a
//! tenant can change its name, its cgroup and its files, and unmount its own share, but cannot get a neighbour's mounts.
//!
//! How it fails:
//! - A process ends while it is read: it is left out.
//! - The first thread of a process has ended, or left for a mount namespace of its own: its other threads are read too, the
//!   latter only if the process uses a GPU.
//! - A namespace that may not be read: the whole reading fails, because a share that is not seen would be misjudged.
//! - 10,000 processes: each costs a link and a small file; each namespace is read once. The caller waits longer between
//!   readings that take long.
//! - A PID that is used again between NVML's answer and this reading: that is why findings are settled.

use crate::dra::mount_users::{Keeper, MountUsers, ShareMount, user};
use crate::dra::share::{ShareKey, ShareKeys};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use vgpu_node::cgroup::{Container, Outside, container};
use vgpu_node::mounts::{Namespaces, numbered_folders};

/// No file of /proc that is read here is longer, except lists of mounts, which are read by lines.
const LONGEST: u64 = 64 << 10;

/// Reads the processes of the node.
#[derive(Clone, Debug)]
pub struct Processes {
    folder: PathBuf,
    outside: Outside,
    /// Why nothing can be known of processes here.
    blind: Option<String>,
}

/// The result of one reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// By PID: the processes that were asked about and exist, and the first user of each share.
    pub processes: BTreeMap<u32, Process>,
    /// The shares of each container with a process.
    pub containers: BTreeMap<Container, ShareKeys>,
    /// The process with the lowest PID of each share that has any.
    pub users: BTreeMap<ShareKey, u32>,
    /// How many processes were read.
    pub count: usize,
}

/// A process that uses a GPU or has a share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    pub shares: ShareKeys,
    pub container: Option<Container>,
    /// Its name, which it may change.
    pub name: String,
    /// Its PID in its own PID namespace, and the inode of that namespace. A ledger identifies processes in this way.
    pub inner: Option<(u32, u64)>,
    /// When it started, in ticks since the machine did.
    pub started: u64,
}

/// Which processes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All processes. If there are no shares, mounts do not matter, and only those that were asked about are read.
    All,
    /// Only the processes that were asked about.
    Asked,
}

// === impl Processes ===

impl Processes {
    /// The processes that this one sees. `pod_uid` is that of this process' pod.
    #[must_use]
    pub fn of_node(pod_uid: Option<&str>) -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let alone = "the plugin has its own PID namespace; set plugin.hostPID: true".to_owned();
        Self {
            folder: PathBuf::from("/proc"),
            outside: Outside::of(&own, pod_uid),
            blind: (std::process::id() == 1).then_some(alone),
        }
    }

    #[cfg(test)]
    pub(crate) fn in_folder(folder: &Path) -> Self {
        Self {
            folder: folder.to_path_buf(),
            outside: Outside::default(),
            blind: None,
        }
    }

    #[cfg(test)]
    pub(crate) fn that_sees_nothing(why: &str) -> Self {
        Self {
            blind: Some(why.to_owned()),
            ..Self::in_folder(Path::new("/proc"))
        }
    }

    /// The container with this cgroup, a path of the unified hierarchy.
    pub(super) fn container_of(&self, cgroup: &str) -> Option<Container> {
        container(&format!("0::{cgroup}"), &self.outside)
    }

    /// Why nothing can be known of processes.
    #[must_use]
    pub fn blind(&self) -> Option<&str> {
        self.blind.as_deref()
    }

    /// Reads the container and the shares of each process, and more of those in `asked`.
    ///
    /// # Errors
    /// Why nothing is known.
    pub fn read(&self, shares: &[ShareMount], asked: &BTreeSet<u32>, extent: Extent) -> Result<Seen, String> {
        if let Some(why) = &self.blind {
            return Err(why.clone());
        }
        let read = self
            .pids(shares, asked, extent)
            .and_then(|pids| self.read_each(shares, asked, pids));
        read.map_err(|error| format!("{}: {error}", self.folder.display()))
    }

    fn pids(&self, shares: &[ShareMount], asked: &BTreeSet<u32>, extent: Extent) -> io::Result<BTreeSet<u32>> {
        if shares.is_empty() || extent == Extent::Asked {
            return Ok(asked.clone());
        }
        let folders = numbered_folders(&self.folder)?;
        let pid = |folder: &PathBuf| folder.file_name()?.to_str()?.parse().ok();
        Ok(folders.iter().filter_map(pid).collect())
    }

    fn read_each(&self, shares: &[ShareMount], asked: &BTreeSet<u32>, pids: BTreeSet<u32>) -> io::Result<Seen> {
        let (mut seen, mut namespaces) = (Seen::default(), Namespaces::default());
        for pid in pids {
            let folder = self.folder.join(pid.to_string());
            let is_asked = asked.contains(&pid);
            let own = match shares {
                [] => Some(ShareKeys::new()),
                _ => namespaces.of_process(&folder, is_asked, |mount| user(mount, shares))?,
            };
            let Some(own) = own else { continue };
            seen.count += 1;
            let is_first = own.iter().any(|share| !seen.users.contains_key(share));
            for share in &own {
                seen.users.entry(share.clone()).or_insert(pid);
            }
            let cgroups = text(&folder.join("cgroup")).unwrap_or_default();
            let container = container(&cgroups, &self.outside);
            if let Some(container) = &container {
                let of_container = seen.containers.entry(container.clone()).or_default();
                of_container.extend(own.iter().cloned());
            }
            if (is_asked || is_first)
                && let Some(started) = started(&folder)
            {
                let process = Process {
                    shares: own,
                    container,
                    name: name(&folder),
                    inner: inner(&folder),
                    started,
                };
                seen.processes.insert(pid, process);
            }
        }
        Ok(seen)
    }
}

impl MountUsers for Processes {
    fn keepers(&self, shares: &[ShareMount]) -> Result<BTreeMap<ShareKey, Keeper>, String> {
        let mut seen = self.read(shares, &BTreeSet::new(), Extent::All)?;
        let keepers = seen.users.into_iter().map(|(share, pid)| {
            // A process that has ended since then has neither name nor pod.
            let process = seen.processes.entry(pid).or_default();
            let keeper = Keeper {
                pid,
                name: process.name.clone(),
                pod: process.container.as_ref().map(|container| container.pod.clone()),
            };
            (share, keeper)
        });
        Ok(keepers.collect())
    }
}

fn text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(LONGEST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Field 22 of /proc/<pid>/stat. A name may have blanks and brackets, so fields are counted after the last bracket.
fn started(folder: &Path) -> Option<u64> {
    let stat = text(&folder.join("stat"))?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Printable and short: it goes into events.
fn name(folder: &Path) -> String {
    let comm = text(&folder.join("comm")).unwrap_or_default();
    let clean = |c: char| if c.is_ascii_graphic() || c == ' ' { c } else { '?' };
    comm.trim_end_matches('\n').chars().take(16).map(clean).collect()
}

fn inner(folder: &Path) -> Option<(u32, u64)> {
    let status = text(&folder.join("status"))?;
    let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    let pid = pids.split_ascii_whitespace().next_back()?.parse().ok()?;
    let link = fs::read_link(folder.join("ns/pid")).ok()?;
    let inode = link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()?;
    Some((pid, inode))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::dra::mount_users::Device;
    use std::os::unix::fs::symlink;

    pub(crate) fn mount(uid: &str, share: &str, minor: u32) -> ShareMount {
        ShareMount {
            key: (uid.into(), share.into()),
            device: Device::Number(rustix::fs::makedev(0, minor)),
        }
    }

    /// A process in a made-up /proc: its namespace, the device numbers of its mounts, its cgroup.
    pub(crate) fn process(folder: &Path, namespace: u32, minors: &[u32], cgroup: &str) {
        fs::create_dir_all(folder.join("ns")).expect("a folder");
        let _ = fs::remove_file(folder.join("ns/mnt"));
        symlink(format!("mnt:[{namespace}]"), folder.join("ns/mnt")).expect("a link");
        let _ = fs::remove_file(folder.join("ns/pid"));
        symlink("pid:[77]", folder.join("ns/pid")).expect("a link");
        let line = |minor: &u32| format!("36 35 0:{minor} / /dev/vgpu/s{minor} ro shared:1 - tmpfs vgpu rw\n");
        fs::write(folder.join("mountinfo"), minors.iter().map(line).collect::<String>()).expect("written");
        fs::write(folder.join("cgroup"), cgroup).expect("written");
        fs::write(folder.join("comm"), "py)th (on\u{1b}[31m\n").expect("written");
        let stat = format!("5 (py)th (on) S {} 4711 0 0", "1 ".repeat(18).trim());
        fs::write(folder.join("stat"), stat).expect("written");
        fs::write(folder.join("status"), "Name:\tx\nNSpid:\t500\t5\n").expect("written");
    }

    pub(crate) fn in_pod(pod: char, container: char) -> String {
        let uid = format!("{0}-{1}-{1}-{1}-{2}", hex(pod, 8), hex(pod, 4), hex(pod, 12));
        format!("0::/kubepods/pod{uid}/{}\n", hex(container, 64))
    }

    pub(crate) fn hex(digit: char, count: usize) -> String {
        digit.to_string().repeat(count)
    }

    fn keys(of: &ShareKeys) -> Vec<&str> {
        of.iter().map(|(uid, _)| uid.as_str()).collect()
    }

    #[test]
    fn processes_have_the_shares_of_their_mounts_and_the_pods_of_their_cgroups() {
        let proc = tempfile::tempdir().expect("a folder");
        let at = |pid: &str| proc.path().join(pid);
        process(&at("1"), 1, &[], "0::/init.scope");
        process(&at("10"), 10, &[1], &in_pod('a', '1'));
        process(&at("11"), 10, &[1], &in_pod('a', '1'));
        process(&at("20"), 20, &[2, 3], &in_pod('b', '2'));
        // This process has unmounted its whole share.
        process(&at("30"), 30, &[], &in_pod('c', '3'));
        // Its first thread left for another namespace.
        process(&at("40"), 40, &[], &in_pod('d', '4'));
        process(&at("40/task/40"), 40, &[], "");
        process(&at("40/task/41"), 41, &[2], "");
        // It has ended.
        fs::create_dir_all(at("50")).expect("a folder");
        let mounts = [mount("u1", "s", 1), mount("u2", "s", 2), mount("u3", "s", 3)];
        let asked = BTreeSet::from([1, 11, 20, 30, 40, 50, 60]);
        let seen = Processes::in_folder(proc.path())
            .read(&mounts, &asked, Extent::All)
            .expect("read");
        let shares = |pid: u32| seen.processes.get(&pid).map(|process| keys(&process.shares));
        assert_eq!(shares(1), Some(vec![]));
        assert_eq!([shares(10), shares(11)], [Some(vec!["u1"]), Some(vec!["u1"])]);
        assert_eq!(shares(20), Some(vec!["u2", "u3"]));
        assert_eq!(shares(30), Some(vec![]));
        assert_eq!(shares(40), Some(vec!["u2"]));
        assert_eq!([shares(50), shares(60)], [None, None]);
        let of_20 = &seen.processes[&20];
        assert_eq!((of_20.inner, of_20.started), (Some((5, 77)), 4711));
        assert_eq!(of_20.name, "py)th (on?[31m");
        let only = BTreeSet::from([20]);
        let only = Processes::in_folder(proc.path()).read(&mounts, &only, Extent::Asked);
        assert_eq!(only.expect("read").processes, [(20, of_20.clone())].into());
        let users: Vec<_> = seen.users.iter().map(|((uid, _), pid)| (uid.as_str(), *pid)).collect();
        assert_eq!(users, [("u1", 10), ("u2", 20), ("u3", 20)]);
        let containers: Vec<_> = seen.containers.values().map(keys).collect();
        assert_eq!(containers, [vec!["u1"], vec!["u2", "u3"], vec![], vec!["u2"]]);
        let container = seen.processes[&30].container.clone().expect("a container");
        assert!(container.pod.starts_with("cccccccc-") && container.id == Some(hex('3', 64)));
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let proc = tempfile::tempdir().expect("a folder");
        let mounts = [mount("u1", "s", 1)];
        let none = BTreeSet::new();
        let blind = Processes::that_sees_nothing("no hostPID");
        assert_eq!(blind.read(&mounts, &none, Extent::All), Err("no hostPID".to_owned()));
        assert!(
            Processes::in_folder(&proc.path().join("none"))
                .read(&mounts, &none, Extent::All)
                .is_err()
        );
        // A namespace that may not be read.
        fs::create_dir_all(proc.path().join("1/mountinfo")).expect("a folder");
        fs::create_dir_all(proc.path().join("1/ns")).expect("a folder");
        symlink("mnt:[1]", proc.path().join("1/ns/mnt")).expect("a link");
        assert!(
            Processes::in_folder(proc.path())
                .read(&mounts, &none, Extent::All)
                .is_err()
        );
        assert_eq!(
            Processes::in_folder(proc.path())
                .read(&[], &none, Extent::All)
                .expect("nothing to read")
                .count,
            0
        );
    }

    #[test]
    fn damaged_files_are_no_facts() {
        use proptest::prelude::*;
        let proc = tempfile::tempdir().expect("a folder");
        proptest!(ProptestConfig::with_cases(64), |(bytes in prop::collection::vec(any::<u8>(), 0..200), which in 0..5_usize)| {
            process(&proc.path().join("5"), 9, &[1], &in_pod('a', '1'));
            let file = ["stat", "status", "comm", "cgroup", "mountinfo"][which];
            fs::write(proc.path().join("5").join(file), bytes).expect("written");
            let seen = Processes::in_folder(proc.path()).read(&[mount("u1", "s", 1)], &BTreeSet::from([5]), Extent::All);
            prop_assert!(seen.is_ok());
        });
    }

    #[test]
    fn this_process_is_found_on_this_kernel() {
        let own = std::process::id();
        let mounts = [ShareMount {
            device: Device::None,
            ..mount("u", "s", 1)
        }];
        // A /proc with this process alone, because this machine may forbid reading other processes.
        let proc = tempfile::tempdir().expect("a folder");
        symlink(format!("/proc/{own}"), proc.path().join(own.to_string())).expect("a link");
        let seen = Processes::in_folder(proc.path())
            .read(&mounts, &BTreeSet::from([own]), Extent::All)
            .expect("read");
        let found = &seen.processes[&own];
        assert!(
            found.started > 0 && found.inner.is_some_and(|(pid, _)| pid == own),
            "{found:?}"
        );
    }
}

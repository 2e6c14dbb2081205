//! What /proc says of processes: their mount namespaces, the shares that each namespace has, and their containers.
//!
//! A process belongs to the shares whose tmpfs its mount namespace has, by device number. That is the kernel's word: a
//! tenant can change its name, its cgroup and its files, and unmount its own share, but cannot get a neighbour's mounts.
//!
//! How it fails:
//! - A process ends while it is read: it is left out.
//! - The first thread of a process has ended, or left for a mount namespace of its own: its other threads are read too,
//!   if the process uses a GPU.
//! - A namespace that may not be read: the whole reading fails, because a share that is not seen would be misjudged.
//! - 10,000 processes: each costs a link and a small file; each namespace is read once. The caller waits longer between
//!   readings that take long.
//! - A PID that is used again between NVML's answer and this reading: that is why findings are settled before they count.

use super::cgroup::{Container, Outside, container};
use crate::mount_users::{ShareMount, is_end, numbered_folders, user};
use crate::share::{ShareKey, ShareKeys};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

/// No file of /proc that is read here is longer, but for lists of mounts, which are read by lines.
const LONGEST: u64 = 64 << 10;
/// A tenant may have as many mounts as the kernel allows it (100,000 by default).
const MOUNTS: usize = 200_000;

/// Reads the processes of the node.
#[derive(Clone, Debug)]
pub struct Proc {
    folder: PathBuf,
    outside: Outside,
    /// Why processes cannot be told apart here.
    blind: Option<String>,
}

/// What one reading found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The processes that were asked about and are there, by PID.
    pub asked: BTreeMap<u32, Process>,
    /// The shares of each container of which a process was seen.
    pub containers: BTreeMap<Container, ShareKeys>,
    /// The process with the lowest PID of each share that has any.
    pub users: BTreeMap<ShareKey, u32>,
    /// Processes that were read.
    pub processes: usize,
}

/// A process that uses a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    pub shares: ShareKeys,
    pub container: Option<Container>,
    /// Its name, which it may change.
    pub name: String,
    /// Its PID in its own PID namespace, and the inode of that: as a ledger names it.
    pub inner: Option<(u32, u64)>,
    /// When it started, in ticks since the machine did.
    pub started: u64,
}

// === impl Proc ===

impl Proc {
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

    /// Why nothing can be known of processes.
    #[must_use]
    pub fn blind(&self) -> Option<&str> {
        self.blind.as_deref()
    }

    /// Reads every process' container and shares, and more of those in `asked`.
    ///
    /// # Errors
    /// Why nothing is known.
    pub fn read(&self, shares: &[ShareMount], asked: &BTreeSet<u32>) -> Result<Seen, String> {
        if let Some(why) = &self.blind {
            return Err(why.clone());
        }
        let shares: Vec<&ShareMount> = shares.iter().collect();
        let read = self.read_all(&shares, asked);
        read.map_err(|error| format!("{}: {error}", self.folder.display()))
    }

    fn read_all(&self, shares: &[&ShareMount], asked: &BTreeSet<u32>) -> io::Result<Seen> {
        let (mut seen, mut namespaces) = (Seen::default(), Namespaces::default());
        // Without shares nobody's mounts matter.
        let folders = match shares {
            [] => asked.iter().map(|pid| self.folder.join(pid.to_string())).collect(),
            _ => numbered_folders(&self.folder)?,
        };
        for folder in folders {
            let Some(pid) = folder.file_name().and_then(|name| name.to_str()?.parse().ok()) else {
                continue;
            };
            let wanted = asked.contains(&pid);
            let Some(mut own) = at_end(namespaces.shares(&folder, shares), ShareKeys::new())? else {
                continue;
            };
            if own.1 || wanted && own.0.is_empty() {
                for thread in numbered_folders(&folder.join("task")).unwrap_or_default() {
                    if let Some((more, _)) = at_end(namespaces.shares(&thread, shares), ShareKeys::new())? {
                        own.0.extend(more);
                    }
                }
            }
            seen.processes += 1;
            for share in &own.0 {
                let first = seen.users.entry(share.clone()).or_insert(pid);
                *first = pid.min(*first);
            }
            let cgroups = text(&folder.join("cgroup")).unwrap_or_default();
            let container = container(&cgroups, &self.outside);
            if let Some(container) = &container {
                let of_container = seen.containers.entry(container.clone()).or_default();
                of_container.extend(own.0.iter().cloned());
            }
            if wanted && let Some(started) = started(&folder) {
                let process = Process {
                    shares: own.0,
                    container,
                    name: name(&folder),
                    inner: inner(&folder),
                    started,
                };
                seen.asked.insert(pid, process);
            }
        }
        Ok(seen)
    }
}

/// What was read, and if it was empty because the first thread has ended. None: the process has ended.
type Own = (ShareKeys, bool);

fn at_end(read: io::Result<ShareKeys>, empty: ShareKeys) -> io::Result<Option<Own>> {
    match read {
        Ok(shares) => Ok(Some((shares, false))),
        // EINVAL and ENOENT: the first thread has none any more, and others may run.
        Err(error) if is_end(&error) => Ok(Some((empty, true))),
        Err(error) => Err(error),
    }
}

/// The shares of the mount namespaces that were read.
#[derive(Default)]
struct Namespaces(BTreeMap<PathBuf, ShareKeys>);

// === impl Namespaces ===

impl Namespaces {
    /// The shares that a process or thread has mounted.
    fn shares(&mut self, folder: &Path, wanted: &[&ShareMount]) -> io::Result<ShareKeys> {
        if wanted.is_empty() {
            return Ok(ShareKeys::new());
        }
        let name = fs::read_link(folder.join("ns/mnt"))?;
        if let Some(found) = self.0.get(&name) {
            return Ok(found.clone());
        }
        let mut found = ShareKeys::new();
        let lines = BufReader::new(File::open(folder.join("mountinfo"))?).split(b'\n');
        for line in lines.take(MOUNTS) {
            found.extend(user(&String::from_utf8_lossy(&line?), wanted));
        }
        self.0.insert(name, found.clone());
        Ok(found)
    }
}

fn text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(LONGEST).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Field 22 of /proc/<pid>/stat. A name may have blanks and brackets, so what counts is after the last bracket.
pub(super) fn started(folder: &Path) -> Option<u64> {
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
    use crate::mount_users::Device;
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
        // Unmounted all of it.
        process(&at("30"), 30, &[], &in_pod('c', '3'));
        // Its first thread left for another namespace.
        process(&at("40"), 40, &[], &in_pod('d', '4'));
        process(&at("40/task/40"), 40, &[], "");
        process(&at("40/task/41"), 41, &[2], "");
        // It has ended.
        fs::create_dir_all(at("50")).expect("a folder");
        let mounts = [mount("u1", "s", 1), mount("u2", "s", 2), mount("u3", "s", 3)];
        let asked = BTreeSet::from([1, 11, 20, 30, 40, 50, 60]);
        let seen = Proc::in_folder(proc.path()).read(&mounts, &asked).expect("read");
        let shares = |pid: u32| seen.asked.get(&pid).map(|process| keys(&process.shares));
        assert_eq!(shares(1), Some(vec![]));
        assert_eq!(shares(11), Some(vec!["u1"]));
        assert_eq!(shares(20), Some(vec!["u2", "u3"]));
        assert_eq!(shares(30), Some(vec![]));
        assert_eq!(shares(40), Some(vec!["u2"]));
        assert_eq!([shares(50), shares(60), shares(10)], [None, None, None]);
        let of_20 = &seen.asked[&20];
        assert_eq!((of_20.inner, of_20.started), (Some((5, 77)), 4711));
        assert_eq!(of_20.name, "py)th (on?[31m");
        let users: Vec<_> = seen.users.iter().map(|((uid, _), pid)| (uid.as_str(), *pid)).collect();
        assert_eq!(users, [("u1", 10), ("u2", 20), ("u3", 20)]);
        let containers: Vec<_> = seen.containers.values().map(keys).collect();
        assert_eq!(containers, [vec!["u1"], vec!["u2", "u3"], vec![], vec!["u2"]]);
        let container = seen.asked[&30].container.clone().expect("a container");
        assert!(container.pod.starts_with("cccccccc-") && container.id == Some(hex('3', 64)));
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let proc = tempfile::tempdir().expect("a folder");
        let mounts = [mount("u1", "s", 1)];
        let none = BTreeSet::new();
        let blind = Proc::that_sees_nothing("no hostPID");
        assert_eq!(blind.read(&mounts, &none), Err("no hostPID".to_owned()));
        assert!(Proc::in_folder(&proc.path().join("none")).read(&mounts, &none).is_err());
        // A namespace that may not be read.
        fs::create_dir_all(proc.path().join("1/mountinfo")).expect("a folder");
        fs::create_dir_all(proc.path().join("1/ns")).expect("a folder");
        symlink("mnt:[1]", proc.path().join("1/ns/mnt")).expect("a link");
        assert!(Proc::in_folder(proc.path()).read(&mounts, &none).is_err());
        assert_eq!(
            Proc::in_folder(proc.path())
                .read(&[], &none)
                .expect("nothing to read")
                .processes,
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
            let seen = Proc::in_folder(proc.path()).read(&[mount("u1", "s", 1)], &BTreeSet::from([5]));
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
        // Only its own: this machine may forbid others.
        let proc = tempfile::tempdir().expect("a folder");
        symlink(format!("/proc/{own}"), proc.path().join(own.to_string())).expect("a link");
        let seen = Proc::in_folder(proc.path())
            .read(&mounts, &BTreeSet::from([own]))
            .expect("read");
        let found = &seen.asked[&own];
        assert!(
            found.started > 0 && found.inner.is_some_and(|(pid, _)| pid == own),
            "{found:?}"
        );
    }
}

//! Which shares have a container: those whose tmpfs is in a mount namespace of some process.
//!
//! Each share has a tmpfs of its own, whose device number /proc/<pid>/mountinfo shows for every process of the container, on
//! any runtime and cgroup version. The node's own mount of it is no container's: its mount point ends with
//! `/<claim uid>/<share>`, also where a monitoring pod has the node's whole root mounted.
//!
//! How it fails:
//! - A process ends while it is read: it is left out. Another one of its namespace is read instead.
//! - The first thread of a process has ended and others run: the process shows no mounts, and its threads do.
//! - A namespace that may not be read, or no process of the node at all (a pod without hostPID): nothing is known, which
//!   is an error and no "nobody".
//! - A tenant with CAP_SYS_ADMIN unmounts its share or hides it below such a name: it counts as gone, and so loses its own
//!   place once the API server has no such claim. It cannot make a neighbour's look gone.

use crate::share::{ShareKey, ShareKeys};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};

/// A share's tmpfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareMount {
    pub key: ShareKey,
    pub device: Device,
}

/// The file system of a share on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// Its device number.
    Number(u64),
    /// There is none, so that no container can have it: since the machine started, the claim was not prepared.
    None,
    /// Its folder is there without its mount, or cannot be read. A container may have it.
    Unknown,
}

/// Finds the shares that have a container.
pub trait MountUsers: Clone + Send + Sync + 'static {
    /// # Errors
    /// Why nothing is known.
    fn living(&self, shares: &[ShareMount]) -> Result<ShareKeys, String>;
}

/// The processes of the node.
#[derive(Clone, Debug)]
pub struct Processes {
    proc: PathBuf,
    /// True if this process is the first one that it sees.
    is_alone: bool,
}

// === impl Processes ===

impl Processes {
    /// All processes that this one sees.
    #[must_use]
    pub fn of_node() -> Self {
        Self {
            proc: PathBuf::from("/proc"),
            is_alone: std::process::id() == 1,
        }
    }
}

impl MountUsers for Processes {
    fn living(&self, shares: &[ShareMount]) -> Result<ShareKeys, String> {
        let of = |wanted: Device| shares.iter().filter(move |share| share.device == wanted);
        let unknown = of(Device::Unknown)
            .map(|share| share.key.clone())
            .collect::<ShareKeys>();
        let numbered = |share: &&ShareMount| matches!(share.device, Device::Number(_));
        let numbered: Vec<&ShareMount> = shares.iter().filter(numbered).collect();
        if numbered.is_empty() {
            return Ok(unknown);
        }
        if self.is_alone {
            return Err("this pod has its own PID namespace; set hostPID: true on the plugin's DaemonSet".into());
        }
        let found = scan(&self.proc, &numbered);
        let mut living = found.map_err(|error| format!("{}: {error}", self.proc.display()))?;
        living.extend(unknown);
        Ok(living)
    }
}

/// Reads each mount namespace once.
fn scan(proc: &Path, shares: &[&ShareMount]) -> io::Result<ShareKeys> {
    let (mut living, mut read) = (ShareKeys::new(), BTreeSet::new());
    for process in numbered_folders(proc)? {
        if namespace(&process, shares, &mut living, &mut read)? {
            continue;
        }
        // It ended, or its first thread did.
        for thread in numbered_folders(&process.join("task")).unwrap_or_default() {
            namespace(&thread, shares, &mut living, &mut read)?;
        }
    }
    Ok(living)
}

/// Reads the mount namespace of a process or thread, unless that was read. Returns false if it has none (any more).
fn namespace(
    folder: &Path,
    shares: &[&ShareMount],
    living: &mut ShareKeys,
    read: &mut BTreeSet<PathBuf>,
) -> io::Result<bool> {
    let mut look = || {
        let name = fs::read_link(folder.join("ns/mnt"))?;
        if read.contains(&name) {
            return Ok(());
        }
        for line in BufReader::new(File::open(folder.join("mountinfo"))?).split(b'\n') {
            let line = line?;
            living.extend(user(&String::from_utf8_lossy(&line), shares));
        }
        read.insert(name);
        Ok(())
    };
    match look() {
        Ok(()) => Ok(true),
        Err(error) if is_end(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The share that a line of mountinfo says a container has.
pub(crate) fn user(line: &str, shares: &[&ShareMount]) -> Option<ShareKey> {
    let mut fields = line.split(' ').skip(2);
    let (device, root, at) = (fields.next()?, fields.next()?, fields.next()?);
    let (major, minor) = device.split_once(':')?;
    let number = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
    let share = shares.iter().find(|share| share.device == Device::Number(number))?;
    let (uid, name) = &share.key;
    let is_nodes = root == "/" && at.ends_with(&format!("/{uid}/{name}"));
    (!is_nodes).then(|| share.key.clone())
}

/// How the kernel says that a process has ended, or at least the thread that was asked about.
pub(crate) fn is_end(error: &io::Error) -> bool {
    let codes = [
        rustix::io::Errno::NOENT,
        rustix::io::Errno::SRCH,
        rustix::io::Errno::INVAL,
    ];
    codes
        .iter()
        .any(|code| error.raw_os_error() == Some(code.raw_os_error()))
}

pub(crate) fn numbered_folders(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        if name
            .to_str()
            .is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        {
            found.push(folder.join(name));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tmpfs::{self, Size, tests::can_mount};
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::{MetadataExt as _, symlink};
    use std::process::{Command, Stdio};

    fn share(uid: &str, name: &str, minor: u32) -> ShareMount {
        ShareMount {
            key: (uid.into(), name.into()),
            device: Device::Number(rustix::fs::makedev(0, minor)),
        }
    }

    fn line(minor: u32, root: &str, at: &str) -> String {
        format!("36 35 0:{minor} {root} {at} ro,nosuid shared:1 - tmpfs vgpu rw,size=200k\n")
    }

    /// A thread or process with these mounts.
    fn process(folder: &Path, namespace: &str, mounts: &str) {
        fs::create_dir_all(folder.join("ns")).expect("a folder");
        symlink(namespace, folder.join("ns/mnt")).expect("a link");
        fs::write(folder.join("mountinfo"), mounts).expect("written");
    }

    fn processes(proc: &Path) -> Processes {
        Processes {
            proc: proc.to_path_buf(),
            is_alone: false,
        }
    }

    fn uids(living: &ShareKeys) -> Vec<&str> {
        living.iter().map(|(uid, _)| uid.as_str()).collect()
    }

    #[test]
    fn a_share_lives_while_a_container_has_its_mount() {
        let proc = tempfile::tempdir().expect("a folder");
        let at = |pid: &str| proc.path().join(pid);
        let node = |prefix: &str| {
            (1..=5)
                .map(|n| line(n, "/", &format!("{prefix}/run/vgpu/claims/u{n}/s")))
                .collect::<String>()
        };
        process(&at("1"), "mnt:[1]", &node(""));
        process(&at("20"), "mnt:[1]", "");
        process(&at("30"), "mnt:[3]", &node("/host"));
        process(&at("40"), "mnt:[4]", &line(1, "/", "/dev/vgpu/s"));
        // The folder was unmounted there, and the ledger not.
        process(&at("50"), "mnt:[5]", &line(2, "/ledger", "/x/u2/s"));
        // Its first thread has ended.
        process(&at("60/task/61"), "mnt:[6]", &line(3, "/", "/dev/vgpu/s"));
        // It ended while it was read.
        fs::create_dir_all(at("70/task")).expect("a folder");
        fs::create_dir_all(at("self")).expect("a folder");
        let shares: Vec<_> = (1..=4).map(|n| share(&format!("u{n}"), "s", n)).collect();
        let living = processes(proc.path()).living(&shares).expect("known");
        assert_eq!(uids(&living), ["u1", "u2", "u3"]);
    }

    #[test]
    fn what_cannot_be_read_is_not_nobody() {
        let proc = tempfile::tempdir().expect("a folder");
        let shares = [share("u1", "s", 1)];
        let alone = Processes {
            is_alone: true,
            ..processes(proc.path())
        };
        assert!(alone.living(&shares).expect_err("alone").contains("hostPID"));
        assert!(processes(&proc.path().join("none")).living(&shares).is_err());
        // As a namespace that may not be read: another error than that of a process that ended.
        fs::create_dir_all(proc.path().join("1/mountinfo")).expect("a folder");
        fs::create_dir_all(proc.path().join("1/ns")).expect("a folder");
        symlink("mnt:[1]", proc.path().join("1/ns/mnt")).expect("a link");
        assert!(processes(proc.path()).living(&shares).is_err());
        let unknown = |device| ShareMount {
            device,
            ..share("u2", "s", 1)
        };
        let living = alone.living(&[unknown(Device::Unknown)]).expect("nothing to look for");
        assert_eq!(uids(&living), ["u2"], "perhaps");
        assert_eq!(alone.living(&[unknown(Device::None)]), Ok(ShareKeys::new()));
    }

    #[test]
    fn on_this_kernel_too() {
        if !can_mount("on_this_kernel_too") {
            return;
        }
        let dir = tempfile::tempdir().expect("a folder");
        let (folder, inside) = (dir.path().join("u1/s"), dir.path().join("inside"));
        for path in [&folder, &inside] {
            fs::create_dir_all(path).expect("a folder");
        }
        tmpfs::ensure(&folder, Size { bytes: 1, files: 1 }).expect("mounted");
        let share = ShareMount {
            device: Device::Number(fs::metadata(&folder).expect("there").dev()),
            ..share("u1", "s", 0)
        };
        // With PIDs of its own, because this process may not look at all of this machine's.
        let script = "mount -t proc proc \"$3\" && mount --bind \"$1\" \"$2\" && umount \"$1\" && echo && read -r _ &&
            umount \"$2\" && echo && read -r _";
        let of_container = dir.path().join("proc");
        fs::create_dir(&of_container).expect("a folder");
        let mut container = Command::new("unshare")
            .args([
                "--mount",
                "--pid",
                "--fork",
                "--propagation",
                "private",
                "sh",
                "-c",
                script,
                "sh",
            ])
            .args([&folder, &inside, &of_container])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare");
        let (mut input, mut output) = (container.stdin.take(), container.stdout.take());
        let mut is_ready = || {
            output
                .as_mut()
                .is_some_and(|output| output.read_exact(&mut [0]).is_ok())
        };
        let proc = format!("/proc/{}/root{}", container.id(), of_container.display());
        let living = || {
            let found = processes(Path::new(&proc)).living(std::slice::from_ref(&share));
            found.map(|living| living.len())
        };
        let has_mount = is_ready();
        let during = living();
        // Its files live on with the container.
        tmpfs::remove(&folder).expect("unmounted");
        let unmounted = living();
        if let Some(input) = &mut input {
            let _ = input.write_all(b"\n");
        }
        let has_none = is_ready();
        let after = living();
        drop(input);
        let ended = container.wait().expect("ended");
        assert!(has_mount && has_none, "{ended}");
        assert_eq!([during, unmounted, after], [Ok(1), Ok(1), Ok(0)]);
    }
}

//! Finds out which shares have a container: those whose tmpfs is in a mount namespace of some process
//! (`enforcement::processes` reads them).
//!
//! Each share has a tmpfs of its own, whose device number /proc/<pid>/mountinfo shows for every process of the container,
//! on any runtime and cgroup version. The node's own mount of it is recognised by its mount point, which ends with `/<claim
//! uid>/<share>`, also where a monitoring pod has the node's whole root mounted.
//!
//! How it fails:
//! - A namespace may not be read, or no process of the node can be seen (a pod without hostPID): an error, which is never
//!   taken for "no container".
//! - A tenant with CAP_SYS_ADMIN unmounts its share, or moves it to a mount point with such a name: its own share looks
//!   unused, and is lost once the API server has no such claim. It cannot do that to a neighbour's share.

use crate::dra::share::{ShareKey, ShareKeys};
use std::collections::BTreeMap;
use vgpu_node::mounts::Mount;

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
    /// There is none, so no container can have it: the claim was not prepared since the machine started.
    None,
    /// Its folder is there without its mount, or cannot be read. A container may have it.
    Unknown,
}

/// A process that has a share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeper {
    pub pid: u32,
    /// Its name, which the process may change.
    pub name: String,
    /// UID of its pod; None if it is in no pod's cgroup.
    pub pod: Option<String>,
}

/// Finds the processes that have a share.
pub trait MountUsers: Clone + Send + Sync + 'static {
    /// Returns one process for each of these shares that is in use.
    ///
    /// # Errors
    /// Why nothing is known.
    fn keepers(&self, shares: &[ShareMount]) -> Result<BTreeMap<ShareKey, Keeper>, String>;

    /// Returns the shares that have a container, or may have one.
    ///
    /// # Errors
    /// Why nothing is known.
    fn living(&self, shares: &[ShareMount]) -> Result<ShareKeys, String> {
        let unknown = shares.iter().filter(|share| share.device == Device::Unknown);
        let mut living: ShareKeys = unknown.map(|share| share.key.clone()).collect();
        let has_number = |share: &&ShareMount| matches!(share.device, Device::Number(_));
        let numbered: Vec<ShareMount> = shares.iter().filter(has_number).cloned().collect();
        if !numbered.is_empty() {
            living.extend(self.keepers(&numbered)?.into_keys());
        }
        Ok(living)
    }
}

/// Returns the share that this mount gives a container.
pub(crate) fn user(mount: &Mount<'_>, shares: &[ShareMount]) -> Option<ShareKey> {
    let (major, minor) = mount.device.split_once(':')?;
    let number = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
    let share = shares.iter().find(|share| share.device == Device::Number(number))?;
    let (uid, name) = &share.key;
    let is_nodes = mount.root == "/" && mount.at.ends_with(&format!("/{uid}/{name}"));
    (!is_nodes).then(|| share.key.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enforcement::Processes;
    use crate::enforcement::process_tests::mount;
    use crate::tmpfs::{self, Size, tests::can_mount};
    use std::fs;
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::{MetadataExt as _, symlink};
    use std::path::Path;
    use std::process::{Command, Stdio};

    fn line(minor: u32, root: &str, at: &str) -> String {
        format!("36 35 0:{minor} {root} {at} ro,nosuid shared:1 - tmpfs vgpu rw,size=200k\n")
    }

    /// A thread or process with these mounts.
    fn process(folder: &Path, namespace: &str, mounts: &str) {
        fs::create_dir_all(folder.join("ns")).expect("a folder");
        symlink(namespace, folder.join("ns/mnt")).expect("a link");
        fs::write(folder.join("mountinfo"), mounts).expect("written");
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
        // There the folder was unmounted, but the ledger is still mounted.
        process(&at("50"), "mnt:[5]", &line(2, "/ledger", "/x/u2/s"));
        // Its first thread has ended.
        process(&at("60/task/61"), "mnt:[6]", &line(3, "/", "/dev/vgpu/s"));
        // It ended while it was read.
        fs::create_dir_all(at("70/task")).expect("a folder");
        fs::create_dir_all(at("self")).expect("a folder");
        let shares: Vec<_> = (1..=4).map(|n| mount(&format!("u{n}"), "s", n)).collect();
        let living = Processes::in_folder(proc.path()).living(&shares).expect("known");
        assert_eq!(uids(&living), ["u1", "u2", "u3"]);
    }

    #[test]
    fn what_cannot_be_read_is_not_nobody() {
        let alone = Processes::that_sees_nothing("no hostPID");
        let error = alone.living(&[mount("u1", "s", 1)]).expect_err("alone");
        assert!(error.contains("hostPID"));
        let unknown = |device| ShareMount {
            device,
            ..mount("u2", "s", 1)
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
            ..mount("u1", "s", 0)
        };
        // In its own PID namespace, because this test may not read all processes of the machine.
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
            let found = Processes::in_folder(Path::new(&proc)).living(std::slice::from_ref(&share));
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

//! The sockets of one instance of the plugin. During a rolling update two instances run, and each has its own:
//!
//! ```text
//! <kubelet>/plugins/dra.vgpu/dra-<pod UID>.sock                     kubelet's calls
//! <kubelet>/plugins/dra.vgpu/dra-<pod UID>.lock                     locked while the instance lives
//! <kubelet>/plugins_registry/registration-<pod UID>@dra.vgpu.sock   by which kubelet finds the other socket; or
//!                               registration-<pod UID>.2@dra.vgpu.sock   the containers of a pod take these in turn
//! ```
//!
//! Failure modes:
//! - An instance that is killed leaves its sockets, and kubelet would go on calling them. The next one removes them: their
//!   lock is free.
//! - A container of the same pod that starts again finds its own sockets. It binds the socket for calls again, and registers
//!   by the other name (`registration::name_in_turn`).
//! - Two processes with one pod UID: the second one does not start, and leaves the first alone.
//! - Two instances that start at once: both do this under the lock of the node.
//! - A disk without a free inode: a container that starts again has its lock, and its sockets take the place of the former
//!   ones. A new pod uses the inodes of an instance that has ended; beside an instance that lives it does not start.

use std::io;
use std::path::PathBuf;
use vgpu_api::DRIVER_NAME;
use vgpu_node::files::{Failed, failed};
use vgpu_node::lock_file::{LockFile, Locked};

const DRA: &str = "dra-";
const LOCK: &str = ".lock";
const SOCKET: &str = ".sock";

/// The folders in which kubelet and the plugins meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folders {
    pub plugin: PathBuf,
    pub registry: PathBuf,
}

/// This instance, until dropped.
#[derive(Debug)]
pub struct Instance {
    _lock: Locked,
}

/// Why this instance cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "another process has the sockets of this instance: {} is locked; give each instance its own --pod-uid (POD_UID)",
        .0.display()
    )]
    Running(PathBuf),
    #[error(transparent)]
    File(#[from] Failed),
}

// === impl Folders ===

impl Folders {
    /// The socket for kubelet's calls to the instance with this pod UID.
    #[must_use]
    pub fn dra_socket(&self, pod_uid: &str) -> PathBuf {
        self.plugin.join(format!("{DRA}{pod_uid}{SOCKET}"))
    }

    /// The two names that the containers of one pod give in turn to the socket by which kubelet finds them. kubelet sends
    /// this path, percent-encoded, as the :authority of its calls, and our server (h2) refuses a host name with `%2F`. The
    /// part before an `@` is user information, in which the encoding is allowed, and kubelet does not encode `@`.
    #[must_use]
    pub fn registration_sockets(&self, pod_uid: &str) -> [PathBuf; 2] {
        ["", ".2"].map(|turn| {
            self.registry
                .join(format!("registration-{pod_uid}{turn}@{DRIVER_NAME}{SOCKET}"))
        })
    }

    fn lock_of(&self, pod_uid: &str) -> PathBuf {
        self.plugin.join(format!("{DRA}{pod_uid}{LOCK}"))
    }

    /// The pod UIDs of all instances that left a lock.
    fn pod_uids(&self) -> io::Result<Vec<String>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.plugin)? {
            let Ok(name) = entry?.file_name().into_string() else {
                continue;
            };
            let stem = name.strip_suffix(LOCK);
            found.extend(stem.and_then(|stem| stem.strip_prefix(DRA)).map(str::to_owned));
        }
        found.sort();
        Ok(found)
    }
}

// === impl Instance ===

impl Instance {
    /// Becomes the instance with this pod UID, and removes the sockets of instances that have ended. `_locked` is the
    /// lock of the node.
    ///
    /// # Errors Another process is the instance with this pod UID, or the folder of the sockets cannot be read.
    pub fn start(folders: &Folders, pod_uid: &str, _locked: &Locked) -> Result<Self, Error> {
        let path = folders.lock_of(pod_uid);
        let found = folders.pod_uids().map_err(failed("list", &folders.plugin))?;
        // Remove ended instances first: a file system that is short of inodes may have room for one instance alone.
        for other in found.iter().filter(|found| *found != pod_uid) {
            match LockFile::open(&folders.lock_of(other)).and_then(|lock| lock.try_lock()) {
                Ok(None) => {}
                Ok(Some(_dead)) => remove(folders, other),
                Err(error) => tracing::warn!("the sockets of another instance stay: {error}"),
            }
        }
        let lock = LockFile::open(&path)?.try_lock()?;
        let lock = lock.ok_or_else(|| Error::Running(path.clone()))?;
        Ok(Self { _lock: lock })
    }
}

/// Removes the registration first, so that kubelet calls nobody, and the lock last, so that a crash leaves the rest to the
/// next start.
fn remove(folders: &Folders, pod_uid: &str) {
    let [first, second] = folders.registration_sockets(pod_uid);
    for path in [first, second, folders.dra_socket(pod_uid), folders.lock_of(pod_uid)] {
        match std::fs::remove_file(&path) {
            Ok(()) => tracing::info!("removed {} of an instance that has ended", path.display()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                tracing::warn!(
                    "cannot remove {} of an instance that has ended: {error}",
                    path.display()
                );
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    struct Scene {
        dir: tempfile::TempDir,
        folders: Folders,
        node: LockFile,
    }

    fn scene() -> Scene {
        let dir = tempfile::tempdir().expect("a folder");
        let folders = Folders {
            plugin: dir.path().join("plugins/dra.vgpu"),
            registry: dir.path().join("plugins_registry"),
        };
        std::fs::create_dir_all(&folders.registry).expect("a folder");
        let node = LockFile::open(&folders.plugin.join("lock")).expect("a lock");
        Scene { dir, folders, node }
    }

    impl Scene {
        /// Starts an instance and binds its sockets.
        fn start(&self, pod_uid: &str) -> (Result<Instance, Error>, Vec<UnixListener>) {
            let locked = self.node.try_lock().expect("a lock file").expect("free");
            let instance = Instance::start(&self.folders, pod_uid, &locked);
            (instance, self.bind(pod_uid))
        }

        fn bind(&self, pod_uid: &str) -> Vec<UnixListener> {
            let [registration, _] = self.folders.registration_sockets(pod_uid);
            let sockets = [self.folders.dra_socket(pod_uid), registration];
            sockets
                .iter()
                .filter_map(|socket| UnixListener::bind(socket).ok())
                .collect()
        }

        /// The names of all files but the node's lock.
        fn files(&self) -> Vec<String> {
            let folders = [&self.folders.plugin, &self.folders.registry].into_iter();
            let entries = folders.flat_map(|folder| std::fs::read_dir(folder).expect("listed").flatten());
            let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            let mut names: Vec<String> = names.filter(|name| name != "lock").collect();
            names.sort();
            names
        }
    }

    const OF_A: [&str; 3] = ["dra-a.lock", "dra-a.sock", "registration-a@dra.vgpu.sock"];
    const OF_B: [&str; 3] = ["dra-b.lock", "dra-b.sock", "registration-b@dra.vgpu.sock"];

    #[test]
    fn the_sockets_of_the_dead_go_and_those_of_the_living_stay() {
        let scene = scene();
        let (a, listening) = scene.start("a");
        let (b, _listening) = scene.start("b");
        let mut both = [OF_A, OF_B].concat();
        both.sort_unstable();
        assert_eq!(scene.files(), both);
        // It lives although nobody answers: it hangs, or has its lock but not its sockets yet.
        drop(listening);
        let (c, _listening) = scene.start("c");
        assert_eq!(scene.files().len(), 9, "{:?}", scene.files());
        drop((a, c.expect("an instance")));
        let (d, _listening) = scene.start("d");
        let mut both = [OF_B, OF_B.map(|name| name.replace("-b", "-d").leak() as &str)].concat();
        both.sort_unstable();
        assert_eq!(scene.files(), both);
        drop((b.expect("an instance"), d.expect("an instance"), scene.dir));
    }

    #[test]
    fn a_new_instance_takes_the_inodes_of_a_dead_one() {
        if !crate::tmpfs::tests::can_mount("a_new_instance_takes_the_inodes_of_a_dead_one") {
            return;
        }
        let scene = scene();
        // A disk with inodes for three folders, the node's lock, and the three files of an instance.
        let (disk, kubelet) = (scene.dir.path().join("disk"), scene.dir.path());
        std::fs::create_dir(&disk).expect("a folder");
        let size = crate::tmpfs::Size {
            bytes: 1 << 20,
            files: 7,
        };
        crate::tmpfs::ensure(&disk, size).expect("mounted");
        let folders = Folders {
            plugin: disk.join("plugins/dra.vgpu"),
            registry: disk.join("plugins_registry"),
        };
        std::fs::create_dir_all(&folders.plugin).expect("a folder");
        std::fs::create_dir(&folders.registry).expect("a folder");
        let node = LockFile::open(&folders.plugin.join("lock")).expect("a lock");
        let full = Scene {
            dir: tempfile::tempdir_in(kubelet).expect("a folder"),
            folders,
            node,
        };
        let (first, listening) = full.start("a");
        assert_eq!(listening.len(), 2);
        assert!(
            std::fs::File::create_new(disk.join("more")).is_err(),
            "no inode is free"
        );
        drop((first.expect("an instance"), listening));
        let (second, listening) = full.start("b");
        let outcome = (second.is_ok(), listening.len(), full.files());
        drop((second, listening, full));
        crate::tmpfs::remove(&disk).expect("unmounted");
        assert_eq!(outcome, (true, 2, OF_B.map(str::to_owned).to_vec()));
    }

    #[test]
    fn one_place_has_one_process_and_a_container_takes_over_its_former_ones() {
        let scene = scene();
        let (first, listening) = scene.start("a");
        let files = scene.files();
        let (second, bound) = scene.start("a");
        let error = second.expect_err("a second process").to_string();
        assert!(error.contains("--pod-uid") && error.contains(".lock"), "{error}");
        assert_eq!((scene.files(), bound.len()), (files.clone(), 0));
        drop((first, listening));
        scene.start("a").0.expect("the next container");
        assert_eq!(scene.files(), files, "its own, which it binds again");
    }
}

//! The state machine on real folders, and on real mounts where the tests run as root: common parts of its
//! tests.

mod calls;
mod driver_limit;
#[cfg(target_arch = "x86_64")]
mod exhaustion;
mod full_disk;
pub(crate) mod instances;
mod metadata;
mod mig;
mod model;
mod pages;
mod rebuild;
mod renew;
mod rounds;

use super::*;
use crate::config::Flags;
use crate::dra::library::tests::release;
use crate::publish::inventory::tests::gpu;
use clap::Parser as _;
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::json;
use std::path::Path;
use tempfile::TempDir;
use vgpu_node::lock_file::Locked;

#[cfg(not(target_arch = "x86_64"))]
#[test]
fn exhaustion() {
    vgpu_skip::skip(
        "dra::node::tests::exhaustion",
        "its tracer knows the registers of x86-64 only",
    );
}

/// A node's folders, which outlive the plugin instances that run on them.
pub(crate) struct Rig {
    root: PathBuf,
    tmpfs: bool,
    /// None: another process owns the folder.
    owned: Option<TempDir>,
}

impl Rig {
    pub(crate) fn new(tmpfs: bool) -> Self {
        Self::in_folder(tempfile::tempdir().expect("a folder"), tmpfs)
    }

    /// Makes a rig in memory if possible, for tests that make many.
    pub(crate) fn fast(tmpfs: bool) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        Self::in_folder(dir.expect("a folder"), tmpfs)
    }

    /// A rig that another process set up.
    #[cfg(target_arch = "x86_64")]
    fn at(root: &Path, tmpfs: bool) -> Self {
        Self {
            root: root.to_path_buf(),
            tmpfs,
            owned: None,
        }
    }

    fn in_folder(dir: TempDir, tmpfs: bool) -> Self {
        release(&dir.path().join("image"), "one");
        std::fs::create_dir(dir.path().join("driver")).expect("a folder");
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            std::fs::write(dir.path().join("driver").join(name), "").expect("written");
        }
        Self {
            root: dir.path().to_path_buf(),
            tmpfs,
            owned: Some(dir),
        }
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    pub(crate) fn config(&self) -> Config {
        let mut arguments = vec![
            "p".to_owned(),
            "--node-name=n1".into(),
            "--pod-uid=p1".into(),
            format!("--ledger-tmpfs={}", self.tmpfs),
        ];
        for (flag, folder) in [
            ("driver-root", "driver"),
            ("library-dir", "image"),
            ("library-store", "store"),
            ("kubelet-root", "kubelet"),
            ("cdi-dir", "cdi"),
            ("run-dir", "run"),
        ] {
            arguments.push(format!("--{flag}={}", self.path(folder).display()));
        }
        let flags = Flags::try_parse_from(arguments).expect("flags");
        let mut config = flags.validate().expect("a config");
        // As `--soft-gpu-state` sets it, without this process's environment.
        config.soft_gpu_state = Some(self.path("soft"));
        config
    }

    pub(crate) fn try_open(&self) -> Result<Node, Error> {
        let config = self.config();
        let lock = LockFile::open(&config.lock).map_err(Error::Lock)?;
        let locked = take(&lock);
        let mut node = Node::open(config, lock.clone(), &locked, self.living())?;
        node.set_inventory(Ok(Inventory::new(vec![gpu(0), gpu(1)])));
        Ok(node)
    }

    /// The file `living` names the share that has a container, or says `unknown`.
    fn living(&self) -> Living {
        let file = self.path("living");
        Box::new(move |shares| match std::fs::read_to_string(&file).as_deref() {
            Ok("unknown") => Err("no processes are seen".into()),
            Ok(name) => Ok(shares
                .iter()
                .map(|share| share.key.clone())
                .filter(|key| key.1 == name)
                .collect()),
            Err(_) => Ok(BTreeSet::new()),
        })
    }

    pub(crate) fn open(&self) -> Node {
        self.try_open().expect("a node")
    }

    /// The claims with a valid record.
    fn checkpoint(&self) -> Checkpoint {
        let mut checkpoint = Checkpoint::default();
        let dirs = ClaimDirs::new(self.config().claims_dir, self.tmpfs);
        for (uid, record) in dirs.records().expect("listed") {
            if let Some(Ok(record)) = record {
                checkpoint.gpus.extend(record.gpus);
                checkpoint.claims.insert(uid, record.claim);
            }
        }
        checkpoint
    }

    /// The record of a claim.
    pub(crate) fn record(&self, uid: &str) -> PathBuf {
        self.path(&format!("run/claims/{uid}/entry.json"))
    }

    /// Another boot: `run` is empty, and so is the folder of the CDI files.
    pub(crate) fn reboot(&self) {
        self.unmount();
        for folder in ["run", "cdi"] {
            let _ = std::fs::remove_dir_all(self.path(folder));
        }
    }

    fn unmount(&self) {
        for uid in std::fs::read_dir(self.path("run/claims"))
            .into_iter()
            .flatten()
            .flatten()
        {
            for share in std::fs::read_dir(uid.path()).into_iter().flatten().flatten() {
                let _ = crate::tmpfs::remove(&share.path());
            }
        }
        for gpu in std::fs::read_dir(self.path("run/gpus")).into_iter().flatten().flatten() {
            let _ = crate::tmpfs::remove(&gpu.path());
        }
    }

    /// Files of claims on the machine.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let list = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten();
        let folders = ["run/claims", "cdi"].map(|folder| self.path(folder));
        let names = folders.into_iter().flat_map(list);
        names
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }
}

impl Node {
    /// Takes the lock, in a test without another instance that could have it.
    pub(crate) fn locked(&self) -> Locked {
        take(&self.lock)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if self.owned.is_some() {
            self.unmount();
        }
    }
}

/// Takes the lock of the turns, which no instance has. A process that another test is starting has a copy of its descriptor for
/// a moment.
pub(crate) fn take(lock: &LockFile) -> Locked {
    let start = Instant::now();
    loop {
        if let Some(locked) = lock.try_lock().expect("a lock file") {
            return locked;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "the lock is not free");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn id(uid: &str) -> ClaimId {
    ClaimId {
        namespace: "d".into(),
        name: format!("claim-{uid}"),
        uid: uid.into(),
    }
}

/// A claim with a share of GPU 0 for each (shareID, GiB, cores).
pub(crate) fn claim(uid: &str, shares: &[(&str, u64, u32)]) -> (ClaimId, ResourceClaim) {
    let result = |(share, memory, cores): &(&str, u64, u32)| {
        json!({"request": "gpu", "driver": "dra.vgpu", "pool": "n1/vgpu", "device": "gpu-3f8a1c20", "shareID": share,
               "consumedCapacity": {"memory": format!("{memory}Gi"), "cores": cores.to_string(), "shares": "1"}})
    };
    let results: Vec<_> = shares.iter().map(result).collect();
    let claim = json!({"metadata": {"name": format!("claim-{uid}"), "namespace": "d", "uid": uid}, "spec": {},
        "status": {"allocation": {"devices": {"results": results}}}});
    (id(uid), serde_json::from_value(claim).expect("a claim"))
}

pub(crate) fn prepare(node: &mut Node, claim: (ClaimId, ResourceClaim)) -> Result<Vec<Prepared>, Error> {
    node.prepare(&node.locked(), &[claim]).0.remove(0)
}

/// A node on which claim `u1` has a share `s1` with this many GiB and cores.
pub(crate) fn prepared(memory: u64, cores: u32) -> (Rig, Node) {
    let rig = Rig::new(false);
    let mut node = rig.open();
    prepare(&mut node, claim("u1", &[("s1", memory, cores)])).expect("prepared");
    (rig, node)
}

fn unprepare(node: &mut Node, uid: &str) -> Result<(), Error> {
    node.unprepare(&node.locked(), &[uid]).remove(0)
}

/// Runs the test with folders only, and then with mounts if possible.
fn on_each_file_system(check: &str, test: impl Fn(&Rig)) {
    test(&Rig::new(false));
    if crate::tmpfs::tests::can_mount(check) {
        test(&Rig::new(true));
    }
}

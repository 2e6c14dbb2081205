//! The state machine on real folders, and on real mounts where the tests run as root.

use super::*;
use crate::config::Flags;
use crate::inventory::tests::gpu;
use crate::library::tests::release;
use crate::steps::{Always, StopAfter};
use clap::Parser as _;
use serde_json::json;
use std::path::Path;
use tempfile::TempDir;

/// A node's folders, which outlive the plugins that run on them.
pub(crate) struct Rig {
    pub(crate) dir: TempDir,
    tmpfs: bool,
}

impl Rig {
    pub(crate) fn new(tmpfs: bool) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        release(&dir.path().join("image"), "one");
        std::fs::create_dir(dir.path().join("driver")).expect("a folder");
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            std::fs::write(dir.path().join("driver").join(name), "").expect("written");
        }
        Self { dir, tmpfs }
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    pub(crate) fn config(&self) -> Config {
        let mut arguments = vec![
            "p".to_owned(),
            "--node-name=n1".into(),
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
        // As by --soft-gpu-state, without this process's environment.
        config.soft_gpu_state = Some(self.path("soft"));
        config
    }

    pub(crate) fn open_with(&self, steps: Box<dyn Steps>) -> Result<Node, Error> {
        let config = self.config();
        let library = Library::install(&config.library_dir, &config.library_store).expect("a library");
        let mut node = Node::open(config, library, steps)?;
        node.set_inventory(Ok(Inventory::new(vec![gpu(0), gpu(1)])));
        Ok(node)
    }

    pub(crate) fn open(&self) -> Node {
        self.open_with(Box::new(Always)).expect("a node")
    }

    fn checkpoint(&self) -> Checkpoint {
        let store = Store::new(self.config().checkpoint);
        store.load().expect("a checkpoint").unwrap_or_default()
    }

    /// Files of claims on the machine, entries included.
    fn leftovers(&self) -> Vec<String> {
        let list = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten();
        let names = list(self.path("run/claims")).chain(list(self.path("cdi")));
        let files = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        files.chain(self.checkpoint().claims.into_keys()).collect()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
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

fn prepare(node: &mut Node, claim: (ClaimId, ResourceClaim)) -> Result<Vec<Prepared>, Error> {
    node.prepare(&[claim]).remove(0)
}

fn unprepare(node: &mut Node, uid: &str) -> Result<(), Error> {
    node.unprepare(&[uid]).remove(0)
}

/// Folders always; mounts too where that is possible.
fn on_each_file_system(check: &str, test: impl Fn(&Rig)) {
    test(&Rig::new(false));
    if crate::tmpfs::tests::can_mount(check) {
        test(&Rig::new(true));
    }
}

#[test]
fn prepare_is_idempotent_and_makes_what_is_missing() {
    on_each_file_system("prepare_is_idempotent_and_makes_what_is_missing", |rig| {
        let mut node = rig.open();
        let first = prepare(&mut node, claim("u1", &[("s1", 20, 25)])).expect("prepared");
        assert_eq!(
            first,
            [Prepared {
                request: "gpu".into(),
                pool: "n1/vgpu".into(),
                device: "gpu-3f8a1c20".into(),
                cdi_device: "dra.vgpu/claim=u1-s1".into(),
                share_id: Some("s1".into()),
            }]
        );
        let cdi = rig.path("cdi/dra.vgpu-claim_u1.json");
        let before = std::fs::read(&cdi).expect("a CDI file");
        std::fs::write(rig.path("run/claims/u1/s1/ledger"), "in use").expect("written");
        for _ in 0..2 {
            std::fs::remove_file(&cdi).expect("removed");
            std::fs::remove_file(rig.path("run/claims/u1/s1/limits")).expect("removed");
            assert_eq!(
                prepare(&mut node, claim("u1", &[("s1", 20, 25)])).expect("prepared"),
                first
            );
            assert_eq!(std::fs::read(&cdi).expect("a CDI file"), before);
            assert!(rig.path("run/claims/u1/s1/limits").exists());
            // And so does the instance that comes next.
            node = rig.open();
        }
        assert_eq!(
            std::fs::read(rig.path("run/claims/u1/s1/ledger")).expect("kept"),
            b"in use"
        );
        std::fs::write(&cdi, "{").expect("damaged");
        prepare(&mut node, claim("u1", &[("s1", 20, 25)])).expect("prepared");
        assert_eq!(std::fs::read(&cdi).expect("a CDI file"), before);
        unprepare(&mut node, "u1").expect("unprepared");
        assert_eq!(rig.leftovers(), [""; 0]);
        unprepare(&mut node, "u1").expect("again");
        unprepare(&mut node, "never-seen").expect("without an entry");
    });
}

#[test]
fn a_crash_after_any_step_is_repaired() {
    on_each_file_system("a_crash_after_any_step_is_repaired", |rig| {
        let shares = [("s1", 20, 25), ("s2", 10, 0)];
        for stop in 0.. {
            let mut node = rig.open_with(Box::new(StopAfter(stop))).expect("a node");
            let whole = prepare(&mut node, claim("u1", &shares)).is_ok();
            drop(node);
            // The next instance answers the repeated call.
            let mut node = rig.open();
            if !whole {
                assert_eq!(
                    node.claims().claims.len(),
                    usize::from(rig.checkpoint().claims.len() == 1)
                );
            }
            assert_eq!(
                prepare(&mut node, claim("u1", &shares)).expect("repaired").len(),
                2,
                "stop {stop}"
            );
            assert_eq!(rig.checkpoint().claims["u1"].shares.len(), 2);
            unprepare(&mut node, "u1").expect("unprepared");
            assert_eq!(rig.leftovers(), [""; 0], "stop {stop}");
            if whole {
                assert!(stop > 8, "only {stop} steps");
                return;
            }
        }
    });
}

#[test]
fn a_crash_after_any_step_of_unprepare_is_repaired() {
    on_each_file_system("a_crash_after_any_step_of_unprepare_is_repaired", |rig| {
        for stop in 0.. {
            let mut node = rig.open();
            prepare(&mut node, claim("u1", &[("s1", 20, 25)])).expect("prepared");
            drop(node);
            let mut node = rig.open_with(Box::new(StopAfter(stop))).expect("a node");
            let whole = unprepare(&mut node, "u1").is_ok();
            drop(node);
            let mut node = rig.open();
            unprepare(&mut node, "u1").expect("repaired");
            assert_eq!(rig.leftovers(), [""; 0], "stop {stop}");
            if whole {
                assert!(stop >= 3, "only {stop} steps");
                return;
            }
        }
    });
}

#[test]
fn a_crash_that_nobody_follows_up_leaves_nothing() {
    on_each_file_system("a_crash_that_nobody_follows_up_leaves_nothing", |rig| {
        prepare(&mut rig.open(), claim("other", &[("s0", 1, 0)])).expect("prepared");
        for stop in 0..20 {
            let mut node = rig.open_with(Box::new(StopAfter(stop))).expect("a node");
            if prepare(&mut node, claim("u1", &[("s1", 20, 25)])).is_ok() {
                return;
            }
            drop(node);
            let node = rig.open();
            if !node.claims().claims.contains_key("u1") {
                let left = rig.leftovers();
                assert!(left.iter().all(|name| name.contains("other")), "stop {stop}: {left:?}");
            }
        }
        panic!("more than 20 steps");
    });
}

#[test]
fn other_results_replace_what_was_prepared() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    prepare(&mut node, claim("u1", &[("s1", 60, 0)])).expect("prepared");
    let answer = prepare(&mut node, claim("u1", &[("s2", 70, 10)])).expect("prepared again");
    assert_eq!(answer[0].cdi_device, "dra.vgpu/claim=u1-s2");
    assert!(!rig.path("run/claims/u1/s1").exists());
    assert_eq!(rig.checkpoint().claims["u1"].shares.len(), 1);
    assert_eq!(rig.checkpoint().claims["u1"].shares[0].share.memory, 70 << 30);
}

#[test]
fn over_commitment_is_refused_and_names_the_holder() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    prepare(&mut node, claim("u1", &[("s1", 60, 80)])).expect("prepared");
    for (wanted, what) in [((30, 0), "memory"), ((1, 30), "cores")] {
        let (memory, cores) = wanted;
        let error = prepare(&mut node, claim("u2", &[("s2", memory, cores)])).expect_err("full");
        assert!(matches!(&error, Error::Full(full) if full.what == what), "{error}");
        assert!(
            error.to_string().contains("d/claim-u1") && error.to_string().contains("gpu-3f8a1c20"),
            "{error}"
        );
    }
    let error = prepare(&mut node, claim("u3", &[("s3", 15, 0), ("s4", 15, 0)])).expect_err("full with itself");
    assert!(matches!(error, Error::Full(_)), "{error}");
    assert_eq!(rig.checkpoint().claims.len(), 1);
    unprepare(&mut node, "u1").expect("unprepared");
    prepare(&mut node, claim("u2", &[("s2", 30, 30)])).expect("room now");
}

#[test]
fn slots_are_given_once_and_run_out() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    let batch: Vec<_> = (0..64)
        .map(|n| {
            let (uid, share) = (format!("u{n}"), format!("s{n}"));
            claim(&uid, &[(share.as_str(), 1, 0)])
        })
        .collect();
    assert!(node.prepare(&batch).iter().all(Result::is_ok));
    let mut slots: Vec<_> = rig
        .checkpoint()
        .claims
        .values()
        .map(|entry| entry.shares[0].slot)
        .collect();
    slots.sort();
    slots.dedup();
    assert_eq!(slots.len(), 64);
    let error = prepare(&mut node, claim("more", &[("more", 1, 0)])).expect_err("no slot");
    assert!(matches!(&error, Error::Full(full) if full.what == "shares"), "{error}");
    let freed = rig.checkpoint().claims["u7"].shares[0].slot;
    unprepare(&mut node, "u7").expect("unprepared");
    prepare(&mut node, claim("more", &[("more", 1, 0)])).expect("a slot");
    assert_eq!(rig.checkpoint().claims["more"].shares[0].slot, freed);
}

#[test]
fn a_damaged_checkpoint_is_rebuilt_and_told() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    prepare(&mut node, claim("u1", &[("s1", 60, 80)])).expect("prepared");
    prepare(&mut node, claim("u2", &[("s2", 10, 10)])).expect("prepared");
    let before = rig.checkpoint().claims;
    let path = rig.config().checkpoint;
    for garbage in ["", "{", "{\"version\":9}"] {
        drop(node);
        std::fs::write(&path, garbage).expect("damaged");
        node = rig.open();
        assert_eq!(rig.checkpoint().claims, before, "after {garbage:?}");
        let damages = node.take_damages();
        assert!(damages.len() == 1 && damages[0].contains("damaged-"), "{damages:?}");
        assert!(node.take_damages().is_empty());
    }
    // While running, and gone instead of damaged.
    std::fs::write(&path, "garbage").expect("damaged");
    prepare(&mut node, claim("u1", &[("s1", 60, 80)])).expect("prepared");
    assert_eq!(rig.checkpoint().claims, before);
    std::fs::remove_file(&path).expect("removed");
    drop(node);
    rig.open();
    assert_eq!(rig.checkpoint().claims, before);
    let kept = std::fs::read_dir(path.parent().expect("a folder")).expect("listed");
    assert_eq!(
        kept.flatten()
            .filter(|e| e.file_name().to_string_lossy().contains(".damaged-"))
            .count(),
        4
    );
}

#[test]
fn a_checkpoint_that_goes_while_running_forgets_nothing() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    prepare(&mut node, claim("u1", &[("s1", 60, 80)])).expect("prepared");
    let before = rig.checkpoint();
    std::fs::remove_file(rig.config().checkpoint).expect("removed");
    let error = prepare(&mut node, claim("u2", &[("s2", 60, 80)])).expect_err("u1 still holds 60");
    assert!(matches!(error, Error::Full(_)), "{error}");
    assert_eq!(rig.checkpoint(), before);
    let damages = node.take_damages();
    assert!(damages.len() == 1 && damages[0].contains("is gone"), "{damages:?}");
    drop(node);
    assert_eq!(rig.open().claims(), &before);
    assert!(rig.path("cdi/dra.vgpu-claim_u1.json").exists() && rig.path("run/claims/u1/s1/limits").exists());
}

#[test]
fn a_crash_in_the_very_first_prepare_is_no_damage() {
    let rig = Rig::new(false);
    for stop in 0..20 {
        let mut node = rig.open_with(Box::new(StopAfter(stop))).expect("a node");
        if prepare(&mut node, claim("u1", &[("s1", 20, 25)])).is_ok() {
            assert!(stop > 4, "only {stop} steps");
            return;
        }
        drop(node);
        let mut node = rig.open();
        assert_eq!(node.take_damages(), [""; 0], "stop {stop}");
        unprepare(&mut node, "u1").expect("unprepared");
    }
    panic!("more than 20 steps");
}

#[test]
fn cdi_files_of_a_wiped_kubelet_folder_are_removed() {
    let rig = Rig::new(false);
    prepare(&mut rig.open(), claim("u1", &[("s1", 20, 25)])).expect("prepared");
    for folder in ["kubelet", "run"] {
        std::fs::remove_dir_all(rig.path(folder)).expect("removed");
    }
    let mut node = rig.open();
    assert_eq!(node.take_damages(), [""; 0]);
    assert_eq!(rig.leftovers(), [""; 0]);
}

#[test]
fn limits_files_are_the_last_resort_of_a_rebuilding() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    prepare(&mut node, claim("u1", &[("s1", 60, 80)])).expect("prepared");
    prepare(&mut node, claim("u2", &[("s2", 10, 10)])).expect("prepared");
    drop(node);
    std::fs::write(rig.config().checkpoint, "garbage").expect("damaged");
    std::fs::write(rig.path("run/claims/u1/entry.json"), "garbage").expect("damaged");
    std::fs::create_dir(rig.path("run/claims/u3")).expect("a folder that tells nothing");
    let mut node = rig.open();
    assert!(node.take_damages()[0].contains("u3"));
    let error = prepare(&mut node, claim("u4", &[("s4", 30, 0)])).expect_err("u1 still holds 60");
    assert!(matches!(error, Error::Full(_)), "{error}");
    std::fs::write(rig.path("run/claims/u1/s1/ledger"), "in use").expect("written");
    prepare(&mut node, claim("u1", &[("s1", 60, 80)])).expect("the same results");
    assert_eq!(
        std::fs::read(rig.path("run/claims/u1/s1/ledger")).expect("kept"),
        b"in use"
    );
    assert_eq!(rig.checkpoint().claims["u1"].name, "claim-u1");
    let slots: Vec<_> = rig
        .checkpoint()
        .claims
        .values()
        .map(|entry| entry.shares[0].slot)
        .collect();
    assert_ne!(slots[0], slots[1]);
}

#[test]
fn a_claim_rebuilt_from_limits_files_keeps_its_library_and_names_what_is_missing() {
    let rig = Rig::new(false);
    let shares = [("s1", 20, 25), ("s2", 10, 0)];
    prepare(&mut rig.open(), claim("u1", &shares)).expect("prepared");
    let bound = rig.checkpoint().claims["u1"].library.clone();
    release(&rig.path("image"), "two");
    std::fs::write(rig.path("run/claims/u1/entry.json"), "garbage").expect("damaged");
    std::fs::remove_file(rig.path("run/claims/u1/s2/limits")).expect("removed");
    std::fs::remove_file(rig.config().checkpoint).expect("removed");
    let damages = rig.open().take_damages();
    assert!(damages[0].contains("nothing can be told of u1/s2"), "{damages:?}");
    assert_eq!(rig.checkpoint().claims["u1"].library, bound);
    rig.open();
    assert!(rig.path("store").join(&bound).exists(), "the CDI spec names it");
}

#[test]
fn a_claim_whose_entry_cannot_be_read_keeps_its_files() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    let (id, mut claim) = claim("u1", &[]);
    let monitor = json!([{"request": "gpu", "driver": "dra.vgpu", "pool": "n1/vgpu",
        "device": "gpu-3f8a1c20-monitor", "adminAccess": true}]);
    let status = claim.status.as_mut().and_then(|status| status.allocation.as_mut());
    let devices = status.and_then(|allocation| allocation.devices.as_mut());
    devices.expect("devices").results = serde_json::from_value(monitor).expect("results");
    prepare(&mut node, (id, claim)).expect("prepared");
    drop(node);
    // As after going back from a release that writes version 2; a monitor has no limits files.
    std::fs::write(rig.path("run/claims/u1/entry.json"), "{\"version\":2}").expect("written");
    std::fs::write(rig.config().checkpoint, "{\"version\":2}").expect("written");
    assert!(rig.open().take_damages()[0].contains("u1"));
    let mut node = rig.open();
    assert!(
        rig.path("cdi/dra.vgpu-claim_u1.json").exists(),
        "its pod can start containers"
    );
    unprepare(&mut node, "u1").expect("unprepared");
    assert_eq!(rig.leftovers(), [""; 0]);
}

#[test]
fn two_instances_do_not_lose_each_others_claims() {
    let rig = Rig::new(false);
    let (mut old, mut new) = (rig.open(), rig.open());
    prepare(&mut old, claim("u1", &[("s1", 40, 0)])).expect("prepared");
    prepare(&mut new, claim("u2", &[("s2", 40, 0)])).expect("prepared");
    assert_eq!(rig.checkpoint().claims.len(), 2);
    let error = prepare(&mut old, claim("u3", &[("s3", 1, 0)])).expect_err("full by the other's claim");
    assert!(error.to_string().contains("claim-u2"), "{error}");
    unprepare(&mut old, "u2").expect("unprepared");
    prepare(&mut new, claim("u3", &[("s3", 40, 0)])).expect("room");
}

#[test]
fn a_claim_stays_bound_to_its_library_and_a_reboot_takes_only_run() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    prepare(&mut node, claim("u1", &[("s1", 20, 25)])).expect("prepared");
    let first = rig.checkpoint().claims["u1"].library.clone();
    release(&rig.path("image"), "two");
    let mut node = rig.open();
    std::fs::remove_dir_all(rig.path("run")).expect("rebooted");
    std::fs::remove_dir_all(rig.path("cdi")).expect("rebooted");
    prepare(&mut node, claim("u1", &[("s1", 20, 25)])).expect("prepared");
    prepare(&mut node, claim("u2", &[("s2", 20, 25)])).expect("prepared");
    let spec = |uid: &str| {
        let path = rig.path(&format!("cdi/dra.vgpu-claim_{uid}.json"));
        std::fs::read_to_string(path).expect("a CDI file")
    };
    assert!(spec("u1").contains(&first) && !spec("u2").contains(&first));
    assert!(Path::new(&rig.path("store")).join(&first).exists(), "in use");
    unprepare(&mut node, "u1").expect("unprepared");
    rig.open();
    assert!(!rig.path("store").join(&first).exists(), "not used any more");
}

#[test]
fn a_claim_whose_library_was_lost_is_bound_to_the_next_for_good() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    prepare(&mut node, claim("u1", &[("s1", 20, 25)])).expect("prepared");
    let lost = rig.checkpoint().claims["u1"].library.clone();
    release(&rig.path("image"), "two");
    std::fs::remove_dir_all(rig.path("store").join(&lost)).expect("lost");
    let mut node = rig.open();
    prepare(&mut node, claim("u1", &[("s1", 20, 25)])).expect("prepared");
    let bound = rig.checkpoint().claims["u1"].library.clone();
    assert_ne!(bound, lost);
    let spec = std::fs::read_to_string(rig.path("cdi/dra.vgpu-claim_u1.json")).expect("a CDI file");
    assert!(spec.contains(&bound));
    release(&rig.path("image"), "three");
    rig.open();
    assert!(rig.path("store").join(&bound).exists(), "the CDI spec names it");
}

#[test]
fn a_claim_of_several_pods_is_prepared_for_each_and_unprepared_once() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    // kubelet prepares for each pod, and unprepares when the last one has gone.
    let first = prepare(&mut node, claim("u1", &[("s1", 60, 80)])).expect("for one pod");
    let before = rig.checkpoint();
    let second = prepare(&mut node, claim("u1", &[("s1", 60, 80)])).expect("for the other");
    assert_eq!(first, second);
    assert_eq!(rig.checkpoint(), before, "counted once");
    unprepare(&mut node, "u1").expect("unprepared");
    assert_eq!(rig.leftovers(), [""; 0]);
    assert!(rig.checkpoint().gpus.is_empty());
}

#[test]
fn other_users_of_the_node_do_not_reach_a_ledger() {
    use std::os::unix::fs::PermissionsExt as _;
    let rig = Rig::new(false);
    for folder in ["run/claims", "run/gpus"] {
        std::fs::create_dir_all(rig.path(folder)).expect("as an older release made it");
        std::fs::set_permissions(rig.path(folder), std::fs::Permissions::from_mode(0o755)).expect("set");
    }
    let mut node = rig.open();
    for round in ["at the start", "made anew"] {
        for folder in ["run/claims", "run/gpus"] {
            let found = std::fs::metadata(rig.path(folder)).expect("a folder");
            assert_eq!(found.permissions().mode() & 0o777, 0o700, "{folder} {round}");
        }
        std::fs::remove_dir_all(rig.path("run")).expect("removed");
        prepare(&mut node, claim("u1", &[("s1", 20, 25)])).expect("prepared");
    }
}

#[test]
fn refusals_change_nothing() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    let error = prepare(&mut node, claim("../etc", &[("s1", 20, 25)])).expect_err("no UID");
    assert!(matches!(error, Error::Uid(_)), "{error}");
    assert!(matches!(unprepare(&mut node, ".."), Err(Error::Uid(_))));
    assert!(matches!(
        prepare(&mut node, claim("u1", &[("s1", 200, 0)])),
        Err(Error::Claim(_))
    ));
    std::fs::remove_file(rig.path("driver/libcuda.so.1")).expect("removed");
    let error = prepare(&mut node, claim("u1", &[("s1", 20, 25)])).expect_err("no driver");
    assert!(error.to_string().contains("libcuda.so.1"), "{error}");
    node.set_inventory(Err("no driver".into()));
    let error = prepare(&mut node, claim("u1", &[("s1", 20, 25)])).expect_err("no inventory");
    assert!(error.to_string().contains("no driver"), "{error}");
    assert_eq!(rig.leftovers(), [""; 0]);
}

#[test]
fn a_checkpoint_that_cannot_be_written_fails_the_call_and_is_caught_up() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    let blocked = rig.path("kubelet/plugins/dra.vgpu/checkpoint.json.new/x");
    std::fs::create_dir_all(&blocked).expect("in the way");
    let error = prepare(&mut node, claim("u1", &[("s1", 60, 0)])).expect_err("not saved");
    assert!(error.to_string().contains("checkpoint.json"), "{error}");
    std::fs::remove_dir_all(blocked.parent().expect("a folder")).expect("removed");
    prepare(&mut node, claim("u2", &[("s2", 60, 0)])).expect("u1 was not done, so there is room");
    unprepare(&mut node, "u1").expect("cleaned");
    assert_eq!(rig.checkpoint().claims.len(), 1);
}

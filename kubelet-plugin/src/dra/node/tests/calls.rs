//! Prepare and Unprepare, one after the other.

use super::*;

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
        // kubelet prepares for each pod of the claim, and unprepares when the last one has gone.
        let checkpoint = rig.checkpoint();
        let again = prepare(&mut node, claim("u1", &[("s1", 20, 25)])).expect("for another pod");
        assert_eq!((&again, rig.checkpoint()), (&first, checkpoint), "counted once");
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
            // The next instance restores them, too.
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
        assert!(rig.checkpoint().gpus.is_empty());
        unprepare(&mut node, "u1").expect("again");
        unprepare(&mut node, "never-seen").expect("without an entry");
    });
}

#[test]
fn other_results_replace_what_was_prepared() {
    let (rig, mut node) = prepared(60, 0);
    let answer = prepare(&mut node, claim("u1", &[("s2", 70, 10)])).expect("prepared again");
    assert_eq!(answer[0].cdi_device, "dra.vgpu/claim=u1-s2");
    assert!(!rig.path("run/claims/u1/s1").exists());
    assert_eq!(rig.checkpoint().claims["u1"].shares.len(), 1);
    assert_eq!(rig.checkpoint().claims["u1"].shares[0].share.memory, 70 << 30);
}

#[test]
fn other_results_wait_for_a_container_that_has_the_former_share() {
    for (living, says) in [("s1", "still has its share s1"), ("unknown", "no processes are seen")] {
        let (rig, mut node) = prepared(60, 0);
        let before = rig.checkpoint();
        std::fs::write(rig.path("living"), living).expect("written");
        let error = prepare(&mut node, claim("u1", &[("s2", 70, 10)])).expect_err("it is used");
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(rig.checkpoint(), before, "nothing has changed");
        // The former allocation can still be prepared, and the new one once the container is gone.
        prepare(&mut node, claim("u1", &[("s1", 60, 0)])).expect("prepared");
        std::fs::remove_file(rig.path("living")).expect("removed");
        prepare(&mut node, claim("u1", &[("s2", 70, 10)])).expect("prepared again");
    }
}

#[test]
fn over_commitment_is_refused_and_names_the_holder() {
    let (rig, mut node) = prepared(60, 80);
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
    assert!(node.prepare(&node.locked(), &batch).0.iter().all(Result::is_ok));
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
fn a_claim_stays_bound_to_its_library_until_a_reboot() {
    let rig = Rig::new(false);
    prepare(&mut rig.open(), claim("u1", &[("s1", 20, 25)])).expect("prepared");
    let first = rig.checkpoint().claims["u1"].library.clone();
    release(&rig.path("image"), "two");
    let mut node = rig.open();
    node.remove_unused_releases(&node.locked());
    assert!(rig.path("store").join(&first).exists(), "in use");
    drop(node);
    rig.reboot();
    let mut node = rig.open();
    prepare(&mut node, claim("u1", &[("s1", 20, 25)])).expect("prepared");
    let spec = std::fs::read_to_string(rig.path("cdi/dra.vgpu-claim_u1.json")).expect("a CDI file");
    assert!(!spec.contains(&first), "no container of before is left");
    node.remove_unused_releases(&node.locked());
    assert!(!rig.path("store").join(&first).exists(), "not used any more");
}

#[test]
fn a_claim_whose_library_was_lost_is_bound_to_the_next_for_good() {
    let (rig, _node) = prepared(20, 25);
    let lost = rig.checkpoint().claims["u1"].library.clone();
    release(&rig.path("image"), "two");
    std::fs::remove_dir_all(rig.path("store").join(&lost)).expect("lost");
    let mut node = rig.open();
    prepare(&mut node, claim("u1", &[("s1", 20, 25)])).expect("prepared");
    let bound = rig.checkpoint().claims["u1"].library.clone();
    assert_ne!(bound, lost);
    let spec = std::fs::read_to_string(rig.path("cdi/dra.vgpu-claim_u1.json")).expect("a CDI file");
    assert!(spec.contains(&bound));
    drop(node);
    release(&rig.path("image"), "three");
    let mut node = rig.open();
    node.remove_unused_releases(&node.locked());
    assert!(rig.path("store").join(&bound).exists(), "the CDI spec names it");
}

#[test]
fn other_users_of_the_node_do_not_reach_a_ledger() {
    use std::os::unix::fs::PermissionsExt as _;
    let rig = Rig::new(false);
    for folder in ["run/claims", "run/gpus"] {
        std::fs::create_dir_all(rig.path(folder)).expect("as somebody made it");
        std::fs::set_permissions(rig.path(folder), std::fs::Permissions::from_mode(0o755)).expect("set");
    }
    let mut node = rig.open();
    for round in ["at the start", "made again"] {
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

/// A rolling update: the older instance prepares claims until the newer one is ready.
#[test]
fn an_instance_keeps_its_release_while_it_runs() {
    let rig = Rig::new(false);
    let mut old = rig.open();
    let first = old.library().expect("installed").to_owned();
    release(&rig.path("image"), "two");
    let mut new = rig.open();
    new.remove_unused_releases(&new.locked());
    prepare(&mut old, claim("u1", &[("s1", 20, 25)])).expect("prepared");
    assert_eq!(rig.checkpoint().claims["u1"].library, first);
    let mounts = std::fs::read_to_string(rig.path("cdi/dra.vgpu-claim_u1.json")).expect("a CDI file");
    assert!(mounts.contains(&first) && rig.path("store").join(&first).join("libvgpu.so").exists());
    unprepare(&mut new, "u1").expect("unprepared");
    drop(old);
    new.remove_unused_releases(&new.locked());
    assert!(!rig.path("store").join(&first).exists());
}

/// After an upgrade, kubelet may ask for a claim that the older release prepared, and start a container of it: with the
/// library and the hook of that release.
#[test]
fn a_ledger_of_another_release_is_read_or_not_known_and_never_the_tenants_fault() {
    use crate::dra::node::LedgerReading;
    let (rig, node) = prepared(1, 0);
    drop(node);
    release(&rig.path("image"), "two");
    let mut node = rig.open();
    prepare(&mut node, claim("u2", &[("s2", 1, 0)])).expect("prepared");
    let reading = |node: &Node, uid: &str| {
        let entry = &node.claims().claims[uid];
        node.ledger(uid, entry, &entry.shares[0].share, &mut Vec::new())
    };
    let damaged = |node: &Node| ["u1", "u2"].map(|uid| matches!(reading(node, uid), LedgerReading::Damaged(_)));
    assert!(
        ["u1", "u2"]
            .iter()
            .all(|uid| matches!(reading(&node, uid), LedgerReading::Read(_)))
    );
    for file in ["run/claims/u1/s1/ledger", "run/claims/u2/s2/ledger"] {
        let mut bytes = std::fs::read(rig.path(file)).expect("a ledger");
        bytes[vgpu_abi::ledger::VERSION_AT] ^= 0x40;
        std::fs::write(rig.path(file), bytes).expect("written");
    }
    assert!(matches!(reading(&node, "u1"), LedgerReading::OtherFormat));
    assert_eq!(damaged(&node), [false, true]);
    std::fs::write(rig.path("run/claims/u1/s1/ledger"), [0; 4096]).expect("written");
    assert_eq!(damaged(&node), [false, true], "of another size");
}

#[test]
fn a_claim_of_an_older_release_keeps_its_library() {
    let (rig, node) = prepared(1, 0);
    let old = node.library().expect("installed").to_owned();
    drop(node);
    release(&rig.path("image"), "two");
    let mut node = rig.open();
    for (uid, share) in [("u1", "s1"), ("u2", "s2")] {
        prepare(&mut node, claim(uid, &[(share, 1, 0)])).expect("prepared");
    }
    let spec = |uid: &str| {
        let path = rig.path(&format!("cdi/dra.vgpu-claim_{uid}.json"));
        std::fs::read_to_string(path).expect("a CDI file")
    };
    let (first, second) = (spec("u1"), spec("u2"));
    let new = node.library().expect("installed");
    assert!(first.contains(&old) && !first.contains(new), "{first}");
    assert!(second.contains(new) && !second.contains(&old), "{second}");
}

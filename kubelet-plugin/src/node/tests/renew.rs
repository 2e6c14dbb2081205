//! CDI files of claims that nobody prepares again.

use super::*;
use std::os::unix::fs::symlink;

fn spec(rig: &Rig, uid: &str) -> Option<String> {
    std::fs::read_to_string(rig.path(&format!("cdi/dra.vgpu-claim_{uid}.json"))).ok()
}

/// Replaces the driver's library by one of another version, as an upgrade does.
fn upgrade(rig: &Rig, version: &str) {
    let (link, file) = (rig.path("driver/libcuda.so.1"), format!("libcuda.so.{version}"));
    std::fs::write(rig.path("driver").join(&file), "").expect("written");
    std::fs::remove_file(&link).expect("removed");
    symlink(file, link).expect("a link");
}

fn two_claims(rig: &Rig) -> Node {
    let mut node = rig.open();
    for (uid, share) in [("u1", "s1"), ("u2", "s2")] {
        prepare(&mut node, claim(uid, &[(share, 20, 25)])).expect("prepared");
        std::fs::write(rig.path(&format!("run/claims/{uid}/{share}/ledger")), "in use").expect("written");
    }
    node.renew_cdi_files(&node.locked());
    assert!(!node.has_stale_cdi_files());
    node
}

/// Both claims have CDI files with this in it, and their ledgers.
fn assert_renewed(rig: &Rig, text: &str) {
    for (uid, share) in [("u1", "s1"), ("u2", "s2")] {
        let spec = spec(rig, uid).expect("a CDI file");
        assert!(spec.contains(text), "{uid}: {spec}");
        let ledger = std::fs::read(rig.path(&format!("run/claims/{uid}/{share}/ledger")));
        assert_eq!(ledger.expect("kept"), b"in use");
    }
}

#[test]
fn a_driver_that_was_replaced_is_in_the_files_of_prepared_claims() {
    on_each_file_system("a_driver_that_was_replaced_is_in_the_files_of_prepared_claims", |rig| {
        let mut node = two_claims(rig);
        upgrade(rig, "550.1");
        assert!(node.has_stale_cdi_files());
        node.renew_cdi_files(&node.locked());
        assert_renewed(rig, "libcuda.so.550.1");
        assert!(!node.has_stale_cdi_files());
        // While the plugin did not run; the GPUs are not known at the start.
        drop(node);
        upgrade(rig, "555.1");
        rig.open();
        assert_renewed(rig, "libcuda.so.555.1");
    });
}

#[test]
fn a_driver_that_is_being_replaced_changes_nothing() {
    let rig = Rig::new(false);
    let mut node = two_claims(&rig);
    std::fs::remove_file(rig.path("driver/libnvidia-ml.so.1")).expect("removed");
    upgrade(&rig, "550.1");
    assert!(!node.has_stale_cdi_files());
    node.renew_cdi_files(&node.locked());
    assert_renewed(&rig, "libcuda.so.1\"");
    std::fs::write(rig.path("driver/libnvidia-ml.so.1"), "").expect("written");
    assert!(node.has_stale_cdi_files());
    node.renew_cdi_files(&node.locked());
    assert_renewed(&rig, "libcuda.so.550.1");
}

#[test]
fn a_file_that_is_missing_is_written_and_one_that_cannot_be_holds_up_no_other() {
    let rig = Rig::new(false);
    let mut node = two_claims(&rig);
    let before = spec(&rig, "u1");
    for _ in 0..2 {
        for uid in ["u1", "u2"] {
            std::fs::remove_file(rig.path(&format!("cdi/dra.vgpu-claim_{uid}.json"))).expect("removed");
        }
        let in_the_way = rig.path("run/claims/u1/s1/limits");
        std::fs::remove_file(&in_the_way).expect("removed");
        std::fs::create_dir(&in_the_way).expect("in the way");
        assert!(node.has_stale_cdi_files());
        node.renew_cdi_files(&node.locked());
        assert_eq!((spec(&rig, "u1"), spec(&rig, "u2").is_some()), (None, true));
        std::fs::remove_dir(&in_the_way).expect("removed");
        assert!(node.has_stale_cdi_files());
        node.renew_cdi_files(&node.locked());
        assert_eq!(spec(&rig, "u1"), before);
        assert!(!node.has_stale_cdi_files());
        node = rig.open();
        node.renew_cdi_files(&node.locked());
    }
}

#[test]
fn a_claim_of_before_the_reboot_gets_no_files_until_it_is_prepared() {
    let rig = Rig::new(false);
    drop(two_claims(&rig));
    rig.reboot();
    let mut node = rig.open();
    node.renew_cdi_files(&node.locked());
    assert_eq!((spec(&rig, "u1"), node.has_stale_cdi_files()), (None, false));
    prepare(&mut node, claim("u1", &[("s1", 20, 25)])).expect("prepared");
    assert!(spec(&rig, "u1").is_some());
}

#[test]
fn a_crash_while_files_are_renewed_is_repaired_by_the_next_start() {
    let rig = Rig::new(false);
    drop(two_claims(&rig));
    for stop in 0..8 {
        let version = format!("55{stop}.1");
        upgrade(&rig, &version);
        // Some starts stop before the first file, some before the second one.
        let _ = rig.open_with(Box::new(StopAfter(stop)));
        rig.open();
        assert_renewed(&rig, &format!("libcuda.so.{version}"));
    }
}

#[test]
fn two_instances_renew_once_each() {
    let rig = Rig::new(false);
    let (mut one, mut other) = (two_claims(&rig), rig.open());
    other.renew_cdi_files(&other.locked());
    upgrade(&rig, "550.1");
    for node in [&mut one, &mut other] {
        assert!(node.has_stale_cdi_files());
        let locked = node.locked();
        node.renew_cdi_files(&locked);
    }
    assert!(!one.has_stale_cdi_files() && !other.has_stale_cdi_files());
    assert_renewed(&rig, "libcuda.so.550.1");
}

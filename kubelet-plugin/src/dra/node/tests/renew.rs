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
    let _ = node.renew_cdi_files(&node.locked());
    node
}

/// Asserts that both claims have CDI files that contain `text`, and still have their ledgers.
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
        let _ = node.renew_cdi_files(&node.locked());
        assert_renewed(rig, "libcuda.so.550.1");
        // The driver is replaced while the plugin does not run; the new instance does not know the GPUs yet.
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
    let _ = node.renew_cdi_files(&node.locked());
    assert_renewed(&rig, "libcuda.so.1\"");
    std::fs::write(rig.path("driver/libnvidia-ml.so.1"), "").expect("written");
    let _ = node.renew_cdi_files(&node.locked());
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
        let _ = node.renew_cdi_files(&node.locked());
        assert_eq!((spec(&rig, "u1"), spec(&rig, "u2").is_some()), (None, true));
        std::fs::remove_dir(&in_the_way).expect("removed");
        let _ = node.renew_cdi_files(&node.locked());
        assert_eq!(spec(&rig, "u1"), before);
        node = rig.open();
        let _ = node.renew_cdi_files(&node.locked());
    }
}

#[test]
fn a_claim_of_before_the_reboot_gets_no_files_until_it_is_prepared() {
    let rig = Rig::new(false);
    drop(two_claims(&rig));
    rig.reboot();
    let mut node = rig.open();
    let _ = node.renew_cdi_files(&node.locked());
    assert_eq!(spec(&rig, "u1"), None);
    prepare(&mut node, claim("u1", &[("s1", 20, 25)])).expect("prepared");
    assert!(spec(&rig, "u1").is_some());
}

#[test]
fn what_a_newer_release_wrote_stays_until_the_driver_changes() {
    let rig = Rig::new(false);
    let mut old = two_claims(&rig);
    let files = [
        rig.path("cdi/dra.vgpu-claim_u1.json"),
        rig.path("run/claims/u1/s1/limits"),
    ];
    let newer = spec(&rig, "u1")
        .expect("a CDI file")
        .replace("libcuda.so.1\"", "libcuda.so.newer\"");
    std::fs::write(&files[0], newer).expect("written");
    std::fs::write(&files[1], "newer").expect("written");
    let before = files.clone().map(|file| std::fs::read(file).expect("read"));
    assert!(old.renew_cdi_files(&old.locked()).expect("read").is_empty());
    assert_eq!(files.map(|file| std::fs::read(file).expect("read")), before);
    upgrade(&rig, "550.1");
    let _ = old.renew_cdi_files(&old.locked());
    assert_renewed(&rig, "libcuda.so.550.1");
    // A file that cannot be read is replaced.
    std::fs::write(rig.path("cdi/dra.vgpu-claim_u1.json"), "{").expect("written");
    let _ = old.renew_cdi_files(&old.locked());
    assert_renewed(&rig, "libcuda.so.550.1");
}

#[test]
fn two_instances_renew_once_each() {
    let rig = Rig::new(false);
    let (mut one, mut other) = (two_claims(&rig), rig.open());
    let _ = other.renew_cdi_files(&other.locked());
    upgrade(&rig, "550.1");
    for node in [&mut one, &mut other] {
        let locked = node.locked();
        let failed = node.renew_cdi_files(&locked).expect("read");
        assert!(failed.is_empty(), "{failed:?}");
    }
    assert_renewed(&rig, "libcuda.so.550.1");
}

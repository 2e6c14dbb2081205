//! Damaged and missing checkpoints.

use super::*;
use vgpu_abi::limits::{Limits, Version};

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
    // While running, with the file missing instead of damaged.
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
    assert_eq!(slots(&rig), [Some(0), Some(1)], "as their limits say");
}

fn slots(rig: &Rig) -> Vec<Option<u8>> {
    let claims = rig.checkpoint().claims;
    claims.values().map(|entry| entry.shares[0].slot).collect()
}

#[test]
fn a_share_whose_limits_do_not_name_its_slot_gets_one_that_nobody_has() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    for (uid, share) in [("u1", "s1"), ("u2", "s2"), ("u3", "s3")] {
        prepare(&mut node, claim(uid, &[(share, 1, 1)])).expect("prepared");
        std::fs::write(rig.path("run/claims").join(uid).join("entry.json"), "garbage").expect("damaged");
    }
    drop(node);
    std::fs::write(rig.config().checkpoint, "garbage").expect("damaged");
    for (limits, slot) in [
        ("u1/s1/limits", None),
        ("u2/s2/limits", Some(63)),
        ("u3/s3/limits", Some(63)),
    ] {
        let path = rig.path("run/claims").join(limits);
        let written = Limits::parse(&std::fs::read(&path).expect("read")).expect("limits");
        let text = match slot {
            None => written.render_as(Version::V1),
            slot => Limits { slot, ..written }.render(),
        };
        std::fs::remove_file(&path).expect("removed");
        std::fs::write(&path, text).expect("written");
    }
    rig.open();
    assert_eq!(slots(&rig), [Some(62), Some(63), Some(61)]);
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
    assert!(damages[0].contains("u1/s2 cannot be recovered"), "{damages:?}");
    assert_eq!(rig.checkpoint().claims["u1"].library, bound);
    let mut node = rig.open();
    node.remove_unused_releases(&node.locked());
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
    // As after a downgrade from a release that writes version 2; a monitor has no limits files.
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

//! Damaged and missing records.

use super::*;
use vgpu_abi::limits::Limits;

fn damage(rig: &Rig, uid: &str) {
    std::fs::write(rig.record(uid), "garbage").expect("damaged");
}

#[test]
fn a_record_that_is_damaged_or_gone_is_rebuilt_by_the_next_turn_and_told_once() {
    let (rig, mut node) = prepared(60, 80);
    for garbage in [Some(""), Some("{"), Some("{\"version\":9}"), None] {
        match garbage {
            Some(garbage) => std::fs::write(rig.record("u1"), garbage).expect("damaged"),
            None => std::fs::remove_file(rig.record("u1")).expect("removed"),
        }
        let error = prepare(&mut node, claim("u2", &[("s2", 60, 80)])).expect_err("u1 still holds 60");
        assert!(matches!(error, Error::Full(_)), "{error}");
        let damages = node.take_damages();
        let is_damage = usize::from(garbage.is_some());
        assert!(
            damages.len() == 1 + is_damage && damages.iter().any(|damage| damage.contains("u1 is lost; rebuilt")),
            "{damages:?}"
        );
        // kubelet's next call gives it its name back, and it stays without a second report.
        prepare(&mut node, claim("u1", &[("s1", 60, 80)])).expect("the same results");
        assert_eq!(rig.checkpoint().claims["u1"].name, "claim-u1");
        assert_eq!(rig.open().take_damages(), [""; 0]);
    }
    unprepare(&mut node, "u1").expect("unprepared");
    assert_eq!(rig.leftovers(), [""; 0]);
}

#[test]
fn a_kubelet_that_lost_its_folder_finds_every_claim() {
    let (rig, mut node) = prepared(60, 80);
    let before = rig.checkpoint();
    std::fs::remove_dir_all(rig.path("kubelet")).expect("removed");
    let mut other = rig.open();
    assert_eq!(other.claims(), &before);
    let error = prepare(&mut other, claim("u2", &[("s2", 60, 80)])).expect_err("u1 still holds 60");
    assert!(matches!(error, Error::Full(_)), "{error}");
    unprepare(&mut node, "u1").expect("unprepared");
    assert_eq!(rig.leftovers(), [""; 0]);
}

#[test]
fn cdi_files_of_claims_whose_folders_were_wiped_are_removed() {
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
    let (rig, mut node) = prepared(60, 80);
    prepare(&mut node, claim("u2", &[("s2", 10, 10)])).expect("prepared");
    drop(node);
    damage(&rig, "u1");
    std::fs::create_dir(rig.path("run/claims/u3")).expect("a folder that tells nothing");
    damage(&rig, "u3");
    let mut node = rig.open();
    let damages = node.take_damages();
    assert!(
        damages.iter().any(|damage| damage.contains("u3 cannot be recovered")),
        "{damages:?}"
    );
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
    }
    drop(node);
    for uid in ["u1", "u2", "u3"] {
        damage(&rig, uid);
    }
    for (limits, slot) in [
        ("u1/s1/limits", None),
        ("u2/s2/limits", Some(63)),
        ("u3/s3/limits", Some(63)),
    ] {
        let path = rig.path("run/claims").join(limits);
        let written = Limits::parse(&std::fs::read(&path).expect("read")).expect("limits");
        let text = Limits { slot, ..written }.render();
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
    damage(&rig, "u1");
    std::fs::remove_file(rig.path("run/claims/u1/s2/limits")).expect("removed");
    let damages = rig.open().take_damages();
    assert!(
        damages.iter().any(|damage| damage.contains("without s2")),
        "{damages:?}"
    );
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
    let monitor = json!([{"request": "gpu", "driver": "dra.vgpu", "pool": "n1/vgpu-monitor",
        "device": "gpu-3f8a1c20-monitor", "adminAccess": true}]);
    let status = claim.status.as_mut().and_then(|status| status.allocation.as_mut());
    let devices = status.and_then(|allocation| allocation.devices.as_mut());
    devices.expect("devices").results = serde_json::from_value(monitor).expect("results");
    prepare(&mut node, (id, claim)).expect("prepared");
    drop(node);
    // As after a downgrade from a release that writes version 2; a monitor has no limits files.
    std::fs::write(rig.record("u1"), "{\"version\":2}").expect("written");
    assert!(
        rig.open()
            .take_damages()
            .iter()
            .any(|damage| damage.contains("u1 cannot be recovered"))
    );
    let mut node = rig.open();
    assert!(
        rig.path("cdi/dra.vgpu-claim_u1.json").exists(),
        "its pod can start containers"
    );
    unprepare(&mut node, "u1").expect("unprepared");
    assert_eq!(rig.leftovers(), [""; 0]);
}

#[test]
fn a_rebuilt_claim_gets_the_name_of_an_allocation_with_its_shares_alone() {
    let rig = Rig::new(false);
    prepare(&mut rig.open(), claim("u1", &[("s1", 20, 25)])).expect("prepared");
    damage(&rig, "u1");
    let mut node = rig.open();
    let named = |node: &mut Node, (id, claim): (ClaimId, ResourceClaim)| node.name_claim(&node.locked(), &id, &claim);
    let error = named(&mut node, claim("u1", &[("s1", 30, 25)])).expect_err("other shares");
    assert!(error.to_string().contains("delete its pods"), "{error}");
    assert_eq!(node.claims().claims["u1"].name, "");
    assert!(
        matches!(named(&mut node, claim("u2", &[("s1", 20, 25)])), Ok(false)),
        "not prepared"
    );
    for is_new in [true, false] {
        let done = named(&mut node, claim("u1", &[("s1", 20, 25)])).expect("named");
        assert_eq!((done, node.claims().claims["u1"].name.as_str()), (is_new, "claim-u1"));
    }
}

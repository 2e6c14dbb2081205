//! Node pages after each step.

use super::*;
use vgpu_abi::arbitration::{self as abi, entry_flags};

/// The entries of GPU 0's slots that are taken: weight and flags.
fn page(rig: &Rig) -> Vec<(usize, u32, u32)> {
    let bytes = std::fs::read(rig.path("run/gpus").join(&gpu(0).uuid).join("node")).expect("a node page");
    let entries = (0..abi::SLOTS).map(|slot| (slot, abi::entry(&bytes, slot).expect("a page between two writes")));
    let taken = entries.filter(|(_, entry)| entry.weight != 0);
    taken.map(|(slot, entry)| (slot, entry.weight, entry.flags)).collect()
}

#[test]
fn each_call_leaves_what_all_shares_are_entitled_to() {
    on_each_file_system("each_call_leaves_what_all_shares_are_entitled_to", |rig| {
        let mut node = rig.open();
        prepare(&mut node, claim("u1", &[("s1", 20, 30)])).expect("prepared");
        assert_eq!(page(rig), [(0, 30_000, 0)]);
        prepare(&mut node, claim("u2", &[("s2", 20, 0)])).expect("prepared");
        assert_eq!(page(rig), [(0, 30_000, 0), (1, 70_000, entry_flags::BEST_EFFORT)]);
        // Another instance, as during a rolling update.
        let mut other = rig.open();
        prepare(&mut other, claim("u3", &[("s3", 20, 50)])).expect("prepared");
        let three = [(0, 30_000, 0), (1, 20_000, entry_flags::BEST_EFFORT), (2, 50_000, 0)];
        assert_eq!(page(rig), three);
        unprepare(&mut node, "u1").expect("unprepared");
        assert_eq!(page(rig), [(1, 50_000, entry_flags::BEST_EFFORT), (2, 50_000, 0)]);
        let batch: Vec<_> = node
            .unprepare(&node.locked(), &["u2", "u3"])
            .into_iter()
            .collect::<Result<_, _>>()
            .expect("both");
        assert_eq!((batch.len(), page(rig)), (2, vec![]));
    });
}

#[test]
fn a_share_that_is_ignored_is_until_it_is_not() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    prepare(&mut node, claim("u1", &[("s1", 20, 30), ("s2", 20, 20)])).expect("prepared");
    let ignored = ShareKeys::from([("u1".to_owned(), "s2".to_owned()), ("gone".to_owned(), "s".to_owned())]);
    node.set_ignored(&node.locked(), ignored.clone()).expect("written");
    let expected = [(0, 30_000, 0), (1, 20_000, entry_flags::IGNORED)];
    assert_eq!(page(&rig), expected);
    prepare(&mut node, claim("u2", &[("s3", 20, 10)])).expect("prepared");
    assert_eq!(page(&rig)[..2], expected);
    node.set_ignored(&node.locked(), ShareKeys::new()).expect("written");
    assert_eq!(page(&rig), [(0, 30_000, 0), (1, 20_000, 0), (2, 10_000, 0)]);
}

#[test]
fn a_crash_between_checkpoint_and_page_is_made_good_by_the_start() {
    on_each_file_system("a_crash_between_checkpoint_and_page_is_made_good_by_the_start", |rig| {
        prepare(&mut rig.open(), claim("other", &[("s0", 1, 10)])).expect("prepared");
        let (before, after) = (vec![(0, 10_000, 0)], vec![(0, 10_000, 0), (1, 20_000, 0)]);
        let mut behind = 0;
        for stop in 0.. {
            let mut node = rig.open_with(Box::new(StopAfter(stop))).expect("a node");
            let whole = prepare(&mut node, claim("u1", &[("s1", 20, 20)])).is_ok();
            drop(node);
            let prepared = rig.checkpoint().claims.contains_key("u1");
            behind += usize::from(prepared && page(rig) == before);
            let mut node = rig.open();
            assert_eq!(
                page(rig),
                if prepared { after.clone() } else { before.clone() },
                "stop {stop}"
            );
            unprepare(&mut node, "u1").expect("unprepared");
            assert_eq!(page(rig), before);
            if whole {
                break;
            }
        }
        assert!(behind > 0, "no crash came between the two");
    });
}

#[test]
fn a_page_that_cannot_be_written_fails_a_prepare_and_no_unprepare() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    prepare(&mut node, claim("u1", &[("s1", 20, 30)])).expect("prepared");
    prepare(&mut node, claim("u2", &[("s2", 20, 30)])).expect("prepared");
    let path = rig.path("run/gpus").join(&gpu(0).uuid).join("node");
    let bytes = std::fs::read(&path).expect("a node page");
    std::fs::remove_file(&path).expect("removed");
    std::fs::create_dir(&path).expect("in the way");
    unprepare(&mut node, "u1").expect("a pod that is gone does not wait for it");
    let error = prepare(&mut node, claim("u3", &[("s3", 20, 30)])).expect_err("no page");
    assert!(error.to_string().contains("arbitration directory"), "{error}");
    std::fs::remove_dir(&path).expect("removed");
    std::fs::write(&path, bytes).expect("the old page");
    // Any call writes what is behind.
    unprepare(&mut node, "never-seen").expect("without an entry");
    assert_eq!(page(&rig), [(1, 30_000, 0)]);
}

#[test]
fn a_claim_of_an_older_release_has_its_entry_and_no_slot_in_its_limits() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    prepare(&mut node, claim("u1", &[("s1", 20, 30)])).expect("prepared");
    let old = node.library().expect("installed").to_owned();
    drop(node);
    std::fs::write(
        rig.path("store").join(&old).join(crate::release::FILE),
        "vgpu-limits 1\n",
    )
    .expect("written");
    let path = rig.path("run/claims/u1/s1/limits");
    std::fs::remove_file(&path).expect("removed");
    std::fs::remove_file(rig.path("run/gpus").join(&gpu(0).uuid).join("node")).expect("removed");
    release(&rig.path("image"), "two");
    let mut node = rig.open();
    assert_eq!(page(&rig), [(0, 30_000, 0)], "at the start");
    prepare(&mut node, claim("u1", &[("s1", 20, 30)])).expect("prepared");
    let limits = std::fs::read_to_string(&path).expect("limits");
    assert!(
        limits.starts_with("vgpu-limits 1\n") && !limits.contains("slot"),
        "{limits}"
    );
    prepare(&mut node, claim("u2", &[("s2", 20, 0)])).expect("prepared");
    assert_eq!(page(&rig), [(0, 30_000, 0), (1, 70_000, entry_flags::BEST_EFFORT)]);
}

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
    node.set_ignored(&node.locked(), &ignored).expect("written");
    let expected = [(0, 30_000, 0), (1, 20_000, entry_flags::IGNORED)];
    assert_eq!(page(&rig), expected);
    // Another instance, which does not observe the shares.
    prepare(&mut rig.open(), claim("u2", &[("s3", 20, 10)])).expect("prepared");
    assert_eq!(page(&rig)[..2], expected);
    node.set_ignored(&node.locked(), &ShareKeys::new()).expect("written");
    assert_eq!(page(&rig), [(0, 30_000, 0), (1, 20_000, 0), (2, 10_000, 0)]);
}

#[test]
fn an_empty_folder_of_a_gpu_that_nobody_uses_fails_no_prepare() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    std::fs::create_dir_all(rig.path("run/gpus/GPU-gone")).expect("a folder");
    prepare(&mut node, claim("u1", &[("s1", 20, 30)])).expect("prepared");
    assert_eq!(page(&rig), [(0, 30_000, 0)]);
}

#[test]
fn a_page_that_cannot_be_written_fails_a_prepare_and_no_unprepare() {
    let (rig, mut node) = prepared(20, 30);
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
    // Any call writes pages that are out of date.
    unprepare(&mut node, "never-seen").expect("without an entry");
    assert_eq!(page(&rig), [(1, 30_000, 0)]);
}

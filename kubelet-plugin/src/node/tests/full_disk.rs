//! A disk that cannot be written, reboots, and entries that stay behind.

use super::*;
use crate::tmpfs::tests::can_mount;
use rustix::mount::{MountFlags, mount};
use std::os::unix::fs::MetadataExt as _;

/// Something in the way of each checkpoint that is to be written, as a full disk is.
fn block(rig: &Rig) -> PathBuf {
    let blocked = rig.path("kubelet/plugins/dra.vgpu/checkpoint.json.new/x");
    std::fs::create_dir_all(&blocked).expect("in the way");
    blocked.parent().expect("a folder").to_path_buf()
}

#[test]
fn unprepare_needs_no_room_and_prepare_is_refused_without() {
    on_each_file_system("unprepare_needs_no_room_and_prepare_is_refused_without", |rig| {
        let mut node = rig.open();
        for (uid, share) in [("u1", "s1"), ("u2", "s2")] {
            prepare(&mut node, claim(uid, &[(share, 40, 25)])).expect("prepared");
        }
        let blocked = block(rig);
        unprepare(&mut node, "u1").expect("unprepared");
        let error = prepare(&mut node, claim("u3", &[("s3", 40, 0)])).expect_err("not saved");
        assert!(error.to_string().contains("checkpoint.json"), "{error}");
        for gone in ["u1", "u3"] {
            assert!(!rig.path(&format!("run/claims/{gone}")).exists(), "{gone}");
            assert!(!rig.path(&format!("cdi/dra.vgpu-claim_{gone}.json")).exists(), "{gone}");
        }
        prepare(&mut node, claim("u2", &[("s2", 40, 25)])).expect("prepared before");
        // The next instance, on the same full disk.
        drop(node);
        let mut node = rig.open();
        assert_eq!(node.claims().claims.keys().collect::<Vec<_>>(), ["u2"]);
        unprepare(&mut node, "u2").expect("unprepared");
        unprepare(&mut node, "never-seen").expect("without an entry");
        std::fs::remove_dir_all(blocked).expect("room");
        prepare(&mut node, claim("u3", &[("s3", 80, 0)])).expect("the whole GPU is free");
        // The entry of u1 is dormant, and goes when its claim is gone in the API server too.
        assert_eq!(rig.checkpoint().claims.keys().collect::<Vec<_>>(), ["u1", "u3"]);
        unprepare(&mut node, "u1").expect("once more");
        assert_eq!(rig.checkpoint().claims.keys().collect::<Vec<_>>(), ["u3"]);
    });
}

#[test]
fn the_other_instance_does_not_count_what_could_not_be_removed() {
    let rig = Rig::new(false);
    let (mut one, mut other) = (rig.open(), rig.open());
    prepare(&mut one, claim("u1", &[("s1", 60, 0)])).expect("prepared");
    let full = prepare(&mut other, claim("u2", &[("s2", 60, 0)])).expect_err("u1 holds 60");
    assert!(matches!(full, Error::Full(_)), "{full}");
    let blocked = block(&rig);
    unprepare(&mut one, "u1").expect("unprepared");
    std::fs::remove_dir_all(blocked).expect("room");
    prepare(&mut other, claim("u2", &[("s2", 60, 0)])).expect("there is room");
    unprepare(&mut one, "u2").expect("unprepared");
    unprepare(&mut other, "u1").expect("its entry goes");
    assert_eq!(rig.leftovers(), [""; 0]);
}

#[test]
fn a_damaged_checkpoint_on_a_full_disk_keeps_no_claim_from_ending() {
    let rig = Rig::new(false);
    prepare(&mut rig.open(), claim("u1", &[("s1", 60, 0)])).expect("prepared");
    prepare(&mut rig.open(), claim("u2", &[("s2", 10, 0)])).expect("prepared");
    std::fs::write(rig.config().checkpoint, "garbage").expect("damaged");
    let blocked = block(&rig);
    let mut node = rig.open();
    assert_eq!(node.take_damages().len(), 1);
    unprepare(&mut node, "u1").expect("unprepared");
    assert_eq!(node.take_damages(), [""; 0], "told once");
    std::fs::remove_dir_all(blocked).expect("room");
    prepare(&mut node, claim("u3", &[("s3", 70, 0)])).expect("there is room");
    assert_eq!(rig.checkpoint().claims.keys().collect::<Vec<_>>(), ["u2", "u3"]);
}

#[test]
fn claims_of_before_a_reboot_hold_nothing_until_they_are_prepared_again() {
    let rig = Rig::new(false);
    for (uid, share) in [("u1", "s1"), ("u2", "s2")] {
        prepare(&mut rig.open(), claim(uid, &[(share, 30, 30)])).expect("prepared");
    }
    for folder in ["run", "cdi"] {
        std::fs::remove_dir_all(rig.path(folder)).expect("rebooted");
    }
    let mut node = rig.open();
    assert!(node.claims().claims.is_empty() && node.held_gpus().is_empty() && node.entries().count() == 2);
    prepare(&mut node, claim("u3", &[("s3", 60, 60)])).expect("first come");
    let error = prepare(&mut node, claim("u1", &[("s1", 30, 30)])).expect_err("60 of 80 are held");
    assert!(
        error.to_string().contains("claim-u3") && !error.to_string().contains("claim-u2"),
        "{error}"
    );
    unprepare(&mut node, "u3").expect("unprepared");
    prepare(&mut node, claim("u1", &[("s1", 30, 30)])).expect("prepared again");
    unprepare(&mut node, "u2").expect("unprepared");
    assert_eq!(rig.checkpoint().claims.keys().collect::<Vec<_>>(), ["u1"]);
}

/// A tmpfs for the folders that lie on a node's disk. Unmounted at the end, whatever becomes of the test.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn fill(&self) {
        let full = std::fs::write(self.0.join("filler"), vec![1; 8 << 20]);
        assert!(full.is_err(), "the disk is larger than it should be");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = crate::tmpfs::remove(&self.0);
    }
}

#[test]
fn a_new_release_starts_on_a_full_disk_and_ends_claims() {
    if !can_mount("a_new_release_starts_on_a_full_disk_and_ends_claims") {
        return;
    }
    let rig = Rig::new(true);
    let disk = SmallDisk(rig.path("disk"));
    std::fs::create_dir(&disk.0).expect("a folder");
    mount("disk", &disk.0, "tmpfs", MountFlags::empty(), c"size=1m").expect("mounted");
    for folder in ["kubelet", "store"] {
        std::fs::create_dir(disk.0.join(folder)).expect("a folder");
        std::os::unix::fs::symlink(disk.0.join(folder), rig.path(folder)).expect("a link");
    }
    let mut node = rig.open();
    for (uid, share) in [("u1", "s1"), ("u2", "s2")] {
        prepare(&mut node, claim(uid, &[(share, 20, 25)])).expect("prepared");
    }
    drop(node);
    release(&rig.path("image"), "two");
    disk.fill();
    let mut node = rig.open();
    assert_eq!(node.library(), None);
    let error = prepare(&mut node, claim("u3", &[("s3", 20, 25)])).expect_err("no library");
    assert!(error.to_string().contains("the library is not installed"), "{error}");
    assert!(error.to_string().contains("No space left"), "{error}");
    let inode = std::fs::metadata(rig.path("run/claims/u2/s2/ledger"))
        .expect("a ledger")
        .ino();
    prepare(&mut node, claim("u2", &[("s2", 20, 25)])).expect("prepared before, with its own library");
    assert_eq!(
        std::fs::metadata(rig.path("run/claims/u2/s2/ledger"))
            .expect("kept")
            .ino(),
        inode
    );
    unprepare(&mut node, "u1").expect("unprepared");
    std::fs::remove_file(disk.0.join("filler")).expect("room");
    prepare(&mut node, claim("u3", &[("s3", 20, 25)])).expect("the library is installed now");
    assert_eq!(rig.checkpoint().claims.keys().collect::<Vec<_>>(), ["u2", "u3"]);
    for uid in ["u2", "u3"] {
        unprepare(&mut node, uid).expect("unprepared");
    }
    assert_eq!(rig.leftovers(), [""; 0]);
}

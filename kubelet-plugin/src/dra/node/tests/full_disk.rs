//! Disks and `/run` without room, and reboots.

use super::*;
use crate::tmpfs::tests::can_mount;
use rustix::mount::{MountFlags, mount};
use std::os::unix::fs::MetadataExt as _;

/// Blocks the records that are to be written, as a full file system does.
struct Blocked(Vec<PathBuf>);

impl Blocked {
    fn new(rig: &Rig, uids: &[&str]) -> Self {
        let all = uids.iter().map(|uid| rig.record(uid).with_extension("json.new"));
        let all: Vec<PathBuf> = all.collect();
        for path in &all {
            std::fs::create_dir_all(path.join("x")).expect("in the way");
        }
        Self(all)
    }

    fn free(self) {
        for path in self.0.iter().filter(|path| path.exists()) {
            std::fs::remove_dir_all(path).expect("room");
        }
    }
}

#[test]
fn unprepare_needs_no_room_and_neither_does_a_claim_that_is_prepared() {
    on_each_file_system(
        "unprepare_needs_no_room_and_neither_does_a_claim_that_is_prepared",
        |rig| {
            let mut node = rig.open();
            for (uid, share) in [("u1", "s1"), ("u2", "s2")] {
                prepare(&mut node, claim(uid, &[(share, 40, 25)])).expect("prepared");
            }
            let blocked = Blocked::new(rig, &["u1", "u2"]);
            unprepare(&mut node, "u1").expect("unprepared");
            for gone in ["run/claims/u1", "cdi/dra.vgpu-claim_u1.json"] {
                assert!(!rig.path(gone).exists(), "{gone}");
            }
            let (id, mut again) = claim("u2", &[("s2", 40, 25)]);
            let holder = json!([{"resource": "pods", "name": "p", "uid": "pod-uid"}]);
            again.status.as_mut().expect("a status").reserved_for = serde_json::from_value(holder).expect("a pod");
            prepare(&mut node, (id, again)).expect("prepared before, and only its pods are others");
            // The next instance.
            drop(node);
            let mut node = rig.open();
            assert_eq!(node.claims().claims.keys().collect::<Vec<_>>(), ["u2"]);
            unprepare(&mut node, "u2").expect("unprepared");
            unprepare(&mut node, "never-seen").expect("without an entry");
            blocked.free();
            prepare(&mut node, claim("u3", &[("s3", 80, 0)])).expect("the whole GPU is free");
            assert_eq!(rig.checkpoint().claims.keys().collect::<Vec<_>>(), ["u3"]);
        },
    );
}

#[test]
fn claims_of_before_a_reboot_hold_nothing_until_they_are_prepared_again() {
    let rig = Rig::new(false);
    for (uid, share) in [("u1", "s1"), ("u2", "s2")] {
        prepare(&mut rig.open(), claim(uid, &[(share, 30, 30)])).expect("prepared");
    }
    rig.reboot();
    let mut node = rig.open();
    assert!(node.claims().claims.is_empty() && node.claims().gpus.is_empty());
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

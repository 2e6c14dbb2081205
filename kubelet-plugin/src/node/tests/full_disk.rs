//! A disk that cannot be written, reboots, and entries that stay behind.

use super::*;
use crate::tmpfs::tests::can_mount;
use rustix::mount::{MountFlags, mount};
use std::os::unix::fs::MetadataExt as _;

/// Something in the way of the files on the disk that are to be written, as a full disk is.
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
        for path in self.0 {
            std::fs::remove_dir_all(path).expect("room");
        }
    }
}

#[test]
fn unprepare_needs_no_room_and_prepare_is_refused_without() {
    on_each_file_system("unprepare_needs_no_room_and_prepare_is_refused_without", |rig| {
        let mut node = rig.open();
        for (uid, share) in [("u1", "s1"), ("u2", "s2")] {
            prepare(&mut node, claim(uid, &[(share, 40, 25)])).expect("prepared");
        }
        let blocked = Blocked::new(rig, &["u1", "u2", "u3"]);
        unprepare(&mut node, "u1").expect("unprepared");
        let error = prepare(&mut node, claim("u3", &[("s3", 40, 0)])).expect_err("not saved");
        assert!(error.to_string().contains("u3.json"), "{error}");
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
        blocked.free();
        prepare(&mut node, claim("u3", &[("s3", 80, 0)])).expect("the whole GPU is free");
        assert_eq!(rig.checkpoint().claims.keys().collect::<Vec<_>>(), ["u3"]);
    });
}

/// A disk that cannot be written at all, as after an error: read-only from one moment to the next.
struct ReadOnly(PathBuf);

impl ReadOnly {
    /// Mounts a disk for kubelet's folder.
    fn disk(rig: &Rig) -> Self {
        let disk = rig.path("disk");
        std::fs::create_dir_all(disk.join("kubelet")).expect("a folder");
        mount("disk", &disk, "tmpfs", MountFlags::empty(), c"size=1m").expect("mounted");
        std::fs::create_dir(disk.join("kubelet")).expect("a folder");
        std::os::unix::fs::symlink(disk.join("kubelet"), rig.path("kubelet")).expect("a link");
        Self(disk)
    }

    fn set(&self, flags: MountFlags) {
        rustix::mount::mount_remount(&self.0, flags, c"").expect("remounted");
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let _ = crate::tmpfs::remove(&self.0);
    }
}

#[test]
fn claims_end_on_a_disk_that_cannot_be_written_and_their_files_go_later() {
    let name = "claims_end_on_a_disk_that_cannot_be_written_and_their_files_go_later";
    if !can_mount(name) {
        return;
    }
    let rig = Rig::new(true);
    let disk = ReadOnly::disk(&rig);
    prepare(&mut rig.open(), claim("u1", &[("s1", 60, 0)])).expect("prepared");
    prepare(&mut rig.open(), claim("u2", &[("s2", 10, 0)])).expect("prepared");
    let library = rig.checkpoint().claims["u1"].library.clone();
    disk.set(MountFlags::RDONLY);
    let (mut one, mut other) = (rig.open(), rig.open());
    unprepare(&mut one, "u1").expect("unprepared");
    assert!(rig.record("u1").exists() && rig.path("run/ended/u1").exists());
    let error = prepare(&mut other, claim("u3", &[("s3", 60, 0)])).expect_err("not saved");
    assert!(error.to_string().contains("Read-only"), "{error}");
    drop((one, other));
    let mut node = rig.open();
    assert_eq!(node.claims().claims.keys().collect::<Vec<_>>(), ["u2"]);
    assert_eq!(node.entry("u1").map(|entry| entry.library.clone()), Some(library));
    unprepare(&mut node, "u2").expect("unprepared");
    drop(node);
    disk.set(MountFlags::empty());
    let mut node = rig.open();
    prepare(&mut node, claim("u1", &[("s1", 80, 0)])).expect("the whole GPU is free");
    assert!(!rig.path("run/ended/u1").exists());
    unprepare(&mut node, "u2").expect("once more, as the clean-up does");
    unprepare(&mut node, "u1").expect("unprepared");
    assert_eq!(rig.leftovers(), [""; 0]);
}

#[test]
fn a_note_that_a_claim_ended_counts_while_its_copy_in_run_is_gone() {
    let rig = Rig::new(false);
    let mut node = rig.open();
    prepare(&mut node, claim("u1", &[("s1", 60, 0)])).expect("prepared");
    std::fs::create_dir_all(rig.path("run/ended")).expect("a folder");
    std::fs::write(rig.path("run/ended/u1"), "").expect("as of an Unprepare that was repeated");
    assert_eq!(rig.open().claims().claims.len(), 1);
    assert!(!rig.path("run/ended/u1").exists(), "the claim is prepared");
}

#[test]
fn claims_of_before_a_reboot_hold_nothing_until_they_are_prepared_again() {
    let rig = Rig::new(false);
    for (uid, share) in [("u1", "s1"), ("u2", "s2")] {
        prepare(&mut rig.open(), claim(uid, &[(share, 30, 30)])).expect("prepared");
    }
    rig.reboot();
    let mut node = rig.open();
    assert!(node.claims().claims.is_empty() && node.claims().gpus.is_empty() && node.entries().count() == 2);
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

/// A node whose /run is on a disk, or whose plugin alone was in a container that outlived the machine's state.
#[test]
fn a_boot_is_told_by_its_id_also_where_run_is_not_emptied() {
    let rig = Rig::new(false);
    prepare(&mut rig.open(), claim("u1", &[("s1", 60, 0)])).expect("prepared");
    std::fs::write(rig.path("run/claims/u1/s1/ledger"), "of before").expect("written");
    std::fs::write(rig.path("boot_id"), "second").expect("another boot");
    let mut node = rig.open();
    assert!(node.claims().claims.is_empty() && node.entry("u1").is_some());
    assert!(!rig.path("cdi/dra.vgpu-claim_u1.json").exists() && !rig.path("run/claims/u1").exists());
    prepare(&mut node, claim("u1", &[("s1", 60, 0)])).expect("prepared again");
    assert_ne!(
        std::fs::read(rig.path("run/claims/u1/s1/ledger")).expect("new"),
        b"of before"
    );
    drop(node);
    assert_eq!(rig.open().claims().claims.len(), 1);
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

//! Many rounds of Prepare and Unprepare leave nothing: no file, no mount, no descriptor. In a process of its own, because
//! tests beside it open files.
//!
//! 60 rounds of eight claims; `VGPU_ROUNDS=10000` makes them more. Memory is measured by `bench-calls`.

use super::*;
use std::process::{Command, Stdio};

const CLAIMS: usize = 8;
const TEST: &str = "dra::node::tests::rounds::many_rounds_leave_nothing";
/// Set in the process of its own.
const ALONE: &str = "VGPU_ROUNDS_ALONE";

/// Everything that a round may leave.
#[derive(Debug, PartialEq, Eq)]
struct State {
    files: BTreeSet<PathBuf>,
    mounts: Vec<String>,
    descriptors: usize,
}

impl State {
    fn read(folder: &Path) -> Self {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        let mut files = BTreeSet::new();
        list(folder, &mut files);
        Self {
            files,
            mounts: points
                .filter(|point| Path::new(point).starts_with(folder))
                .map(str::to_owned)
                .collect(),
            descriptors: std::fs::read_dir("/proc/self/fd").expect("descriptors").count(),
        }
    }
}

fn list(folder: &Path, files: &mut BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        if entry.file_type().expect("a type").is_dir() {
            list(&entry.path(), files);
        }
        files.insert(entry.path());
    }
}

fn rounds(has_mounts: bool) {
    let count: usize = std::env::var("VGPU_ROUNDS").map_or(60, |count| count.parse().expect("a number"));
    println!("{count} rounds, mounts: {has_mounts}; VGPU_ROUNDS=10000 makes them more");
    let rig = Rig::fast(has_mounts);
    let mut node = rig.open();
    let locked = node.locked();
    let folder = rig.path("");
    let mut round = |number: usize| {
        let uids: Vec<String> = (0..CLAIMS).map(|n| format!("u{number}-{n}")).collect();
        let batch: Vec<_> = uids.iter().map(|uid| claim(uid, &[(uid, 1, 1)])).collect();
        // Twice, as after an answer that was lost.
        for _ in 0..2 {
            assert!(node.prepare(&locked, &batch).0.iter().all(Result::is_ok));
        }
        let during = State::read(&folder);
        let uids: Vec<&str> = uids.iter().map(String::as_str).collect();
        assert!(node.unprepare(&locked, &uids).iter().all(Result::is_ok));
        during
    };
    // The GPU's arbitration directory is made once and stays.
    round(0);
    let before = State::read(&folder);
    let first = round(1);
    assert!(first.files.len() > before.files.len() && (!has_mounts || first.mounts.len() > before.mounts.len()));
    for number in 2..count {
        let during = round(number);
        assert_eq!(
            (during.files.len(), during.mounts.len(), during.descriptors),
            (first.files.len(), first.mounts.len(), first.descriptors)
        );
    }
    assert_eq!(State::read(&folder), before);
}

#[test]
fn many_rounds_leave_nothing() {
    if std::env::var_os(ALONE).is_some() {
        rounds(false);
        if crate::tmpfs::tests::can_mount("many_rounds_leave_nothing") {
            rounds(true);
        }
        return;
    }
    let mut alone = Command::new(std::env::current_exe().expect("this program"));
    alone.args(["--exact", TEST, "--nocapture"]).env(ALONE, "1");
    let ended = alone.stderr(Stdio::inherit()).output().expect("it runs");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success() && said.contains("mounts: false"), "{said}");
}

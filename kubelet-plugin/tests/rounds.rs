//! Many rounds of Prepare and Unprepare leave nothing: no file, no mount, no descriptor. In a program of its own, because
//! tests beside it open files.
//!
//! 60 rounds of eight claims; `VGPU_ROUNDS=10000` makes them more. Memory is measured by `bench-calls`.

use clap::Parser as _;
use k8s_openapi::api::resource::v1::ResourceClaim;
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use vgpu_kubelet_plugin::config::Flags;
use vgpu_kubelet_plugin::crash_points::NeverStop;
use vgpu_kubelet_plugin::inventory::{Gpu, Inventory};
use vgpu_kubelet_plugin::node::Node;
use vgpu_kubelet_plugin::node::lock::LockFile;
use vgpu_kubelet_plugin::share::ClaimId;
use vgpu_kubelet_plugin::tmpfs;

const CLAIMS: usize = 8;

fn gpu() -> Gpu {
    let gpu = json!({"uuid": "GPU-3f8a1c20-1111-2222-3333-444455556666", "index": 0, "minor": 0, "name": "H100",
        "brand": "Nvidia", "architecture": "Hopper", "computeCapability": [9, 0], "driverVersion": "535.161.08",
        "cudaVersion": [12, 2], "memory": 80_u64 << 30});
    serde_json::from_value(gpu).expect("a GPU")
}

fn claim(uid: &str) -> (ClaimId, ResourceClaim) {
    let claim = json!({"metadata": {"name": uid, "namespace": "d", "uid": uid}, "spec": {}, "status": {
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "p"}],
        "allocation": {"devices": {"results": [{"request": "gpu", "driver": "dra.vgpu", "pool": "n1/vgpu",
            "device": "gpu-3f8a1c20", "shareID": uid,
            "consumedCapacity": {"memory": "1Gi", "cores": "1", "shares": "1"}}]}}}});
    let id = ClaimId {
        namespace: "d".into(),
        name: uid.into(),
        uid: uid.into(),
    };
    (id, serde_json::from_value(claim).expect("a claim"))
}

/// Everything that a round may leave.
#[derive(Debug, PartialEq, Eq)]
struct State {
    files: BTreeSet<PathBuf>,
    mounts: Vec<String>,
    descriptors: usize,
}

impl State {
    fn read(folder: &Path) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mounts");
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        let mut files = BTreeSet::new();
        list(folder, &mut files);
        Self {
            files,
            mounts: points
                .filter(|point| Path::new(point).starts_with(folder))
                .map(str::to_owned)
                .collect(),
            descriptors: fs::read_dir("/proc/self/fd").expect("descriptors").count(),
        }
    }
}

fn list(folder: &Path, files: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry"))
    {
        if entry.file_type().expect("a type").is_dir() {
            list(&entry.path(), files);
        }
        files.insert(entry.path());
    }
}

fn rounds(has_mounts: bool) {
    let count: usize = std::env::var("VGPU_ROUNDS").map_or(60, |count| count.parse().expect("a number"));
    println!("{count} rounds, mounts: {has_mounts}; VGPU_ROUNDS=10000 makes them more");
    let dir = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a folder");
    for folder in ["image", "driver"] {
        fs::create_dir(dir.path().join(folder)).expect("a folder");
    }
    for file in [
        "image/libvgpu.so",
        "image/libvgpu-preload.so",
        "image/vgpu-cdi-hook",
        "driver/libcuda.so.1",
        "driver/libnvidia-ml.so.1",
    ] {
        fs::write(dir.path().join(file), "test").expect("written");
    }
    let mut arguments = vec![
        "p".to_owned(),
        "--node-name=n1".into(),
        format!("--ledger-tmpfs={has_mounts}"),
    ];
    for (flag, folder) in [
        ("driver-root", "driver"),
        ("library-dir", "image"),
        ("library-store", "store"),
        ("kubelet-root", "kubelet"),
        ("cdi-dir", "cdi"),
        ("run-dir", "run"),
    ] {
        arguments.push(format!("--{flag}={}", dir.path().join(folder).display()));
    }
    let flags = Flags::try_parse_from(arguments).expect("flags");
    let mut config = flags.validate().expect("a config");
    // Without this process' environment.
    config.soft_gpu_state = Some(dir.path().join("soft"));
    let lock = LockFile::open(&config.lock).expect("a lock");
    let locked = lock.try_lock().expect("a lock").expect("free");
    let mut node = Node::open(
        config,
        lock.clone(),
        &locked,
        // Nothing is run with these claims.
        Box::new(|_| Ok(BTreeSet::new())),
        Box::new(NeverStop),
    )
    .expect("a node");
    node.set_inventory(Ok(Inventory::new(vec![gpu()])));
    let mut round = |number: usize| {
        let uids: Vec<String> = (0..CLAIMS).map(|n| format!("u{number}-{n}")).collect();
        let batch: Vec<_> = uids.iter().map(|uid| claim(uid)).collect();
        // Twice, as after an answer that was lost.
        for _ in 0..2 {
            assert!(node.prepare(&locked, &batch).iter().all(Result::is_ok));
        }
        let during = State::read(dir.path());
        let uids: Vec<&str> = uids.iter().map(String::as_str).collect();
        assert!(node.unprepare(&locked, &uids).iter().all(Result::is_ok));
        during
    };
    // The GPU's arbitration directory is made once and stays.
    round(0);
    let before = State::read(dir.path());
    let first = round(1);
    assert!(first.files.len() > before.files.len() && (!has_mounts || first.mounts.len() > before.mounts.len()));
    for number in 2..count {
        let during = round(number);
        assert_eq!(
            (during.files.len(), during.mounts.len(), during.descriptors),
            (first.files.len(), first.mounts.len(), first.descriptors)
        );
    }
    let after = State::read(dir.path());
    for point in &after.mounts {
        tmpfs::remove(Path::new(point)).expect("unmounted");
    }
    assert_eq!(after, before);
}

#[test]
fn many_rounds_leave_nothing() {
    rounds(false);
    let probe = tempfile::tempdir().expect("a folder");
    let size = tmpfs::Size { bytes: 4096, files: 1 };
    match tmpfs::ensure(probe.path(), size).and_then(|()| tmpfs::remove(probe.path())) {
        Ok(()) => rounds(true),
        Err(error) => vgpu_skip::skip(
            "many_rounds_leave_nothing",
            &format!("a tmpfs cannot be mounted here: {error}"),
        ),
    }
}

//! A share with an empty ledger in a folder, for tests.

use super::Share;
use std::path::{Path, PathBuf};
use vgpu_abi::limits::{ComputePolicy, Limits, Priority};

/// Where the ledger of the share of that name lies.
pub(crate) fn ledger(folder: &Path, name: &str) -> PathBuf {
    folder.join(name)
}

pub(crate) fn share(folder: &Path, name: &str, memory: u64) -> Share {
    let limits = Limits {
        share: name.into(),
        order: 0,
        gpu: "GPU-0".into(),
        memory,
        cores: 0,
        compute_policy: ComputePolicy::default(),
        priority: Priority::default(),
        host_memory: 0,
        context_reserve: 0,
        libcuda: "/libcuda".into(),
        libnvidia_ml: "/libnvidia-ml".into(),
    };
    let path = ledger(folder, name);
    std::fs::write(&path, vgpu_abi::ledger::image(&limits)).expect("a ledger");
    let mark = vgpu_abi::ledger::share_mark(&limits.share, &limits.gpu);
    Share::open(&path, mark, limits.memory).expect("a share")
}

//! A share with an empty ledger in a folder, for tests.

use super::Share;
use std::path::{Path, PathBuf};
use vgpu_abi::limits::Limits;

/// Returns the path of the ledger of share `name`.
pub(crate) fn ledger(folder: &Path, name: &str) -> PathBuf {
    folder.join(name)
}

pub(crate) fn share(folder: &Path, name: &str, memory: u64) -> Share {
    let limits = Limits::of_memory(name, "GPU-0", memory, "/libcuda", "/libnvidia-ml");
    std::fs::write(ledger(folder, name), vgpu_abi::ledger::image(&limits)).expect("a ledger");
    again(folder, name, memory)
}

/// Opens the same share once more, as another process does.
pub(crate) fn again(folder: &Path, name: &str, memory: u64) -> Share {
    let checksum = vgpu_abi::ledger::share_checksum(name, "GPU-0");
    Share::open(&ledger(folder, name), checksum, memory).expect("a share")
}

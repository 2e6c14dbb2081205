//! The software GPU's driver, for tests that load it.

use std::path::{Path, PathBuf};

/// Returns the folder of its libraries in dist/, which must be of these sources: `make dist` builds them.
pub(crate) fn folder() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist");
    let folder = std::env::var_os("VGPU_DIST")
        .map_or(own, PathBuf::from)
        .join("soft-gpu");
    for file in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        vgpu_built_from::assert_fresh(&folder.join(file));
    }
    folder
}

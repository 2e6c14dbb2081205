//! Paths on this machine: the clone, its artefacts, the cache, the clusters' state.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

/// Clusters' state, with a folder for each. On disk, because /run is small and noexec.
pub const STATE: &str = "/var/lib/vgpu-e2e";

/// The clone that this program was built from.
pub fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// The programs that `vgpu run` needs.
const LOCAL: [&str; 3] = ["vgpu", "libvgpu.so", "libvgpu-preload.so"];
/// Additional programs for a cluster.
const REMAINING: [&str; 5] = [
    "vgpu-kubelet-plugin",
    "vgpu-controller",
    "vgpu-cdi-hook",
    "vgpu-driver-limit",
    "vgpu-client",
];

/// The release artefacts: `$VGPU_DIST`, else `dist/` of the clone.
pub fn dist() -> Result<PathBuf> {
    complete(chosen())
}

/// A folder of release artefacts, if it has all of them.
pub fn complete(dist: PathBuf) -> Result<PathBuf> {
    with(dist, &[&LOCAL[..], &REMAINING].concat())
}

/// The same folder, checked only for the programs of a share without a cluster.
pub fn local() -> Result<PathBuf> {
    with(chosen(), &LOCAL)
}

fn chosen() -> PathBuf {
    env::var_os("VGPU_DIST").map_or_else(|| workspace().join("dist"), PathBuf::from)
}

fn with(dist: PathBuf, names: &[&str]) -> Result<PathBuf> {
    for name in names {
        ensure!(
            dist.join(name).exists(),
            "{} is missing: run `make dist`",
            dist.join(name).display()
        );
    }
    Ok(dist)
}

/// The cache, which later runs and other clones reuse.
pub fn cache() -> Result<PathBuf> {
    vgpu_cache::root().map_err(anyhow::Error::msg)
}

/// The folder for files built from this state of the clone: images with its artefacts.
#[must_use]
pub fn output() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from);
    target.join("vgpu-e2e")
}

//! The caller's environment. No other module reads it.
#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The variables of the software GPU.
pub const SOFT_GPU_STATE: &str = "SOFT_GPU_STATE";
pub const SOFT_GPU_PROFILE: &str = "SOFT_GPU_PROFILE";

/// The GPUs that the caller's CUDA programs see.
pub const CUDA_VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// The software GPU's variables; a folder and a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SoftGpu {
    pub state: Option<PathBuf>,
    pub profile: Option<PathBuf>,
}

/// The values of the variables; empty ones count as unset.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Effective user.
    pub uid: u32,
    pub runtime_dir: Option<PathBuf>,
    pub ld_preload: Option<OsString>,
    pub ld_library_path: Option<OsString>,
    pub cuda_visible_devices: Option<OsString>,
    pub soft_gpu: SoftGpu,
    /// Set by an outer `vgpu run`.
    pub outer_run: Option<PathBuf>,
}

impl SoftGpu {
    /// The variables and their values.
    #[must_use]
    pub fn variables(&self) -> [(&'static str, Option<&Path>); 2] {
        [
            (SOFT_GPU_STATE, self.state.as_deref()),
            (SOFT_GPU_PROFILE, self.profile.as_deref()),
        ]
    }
}

impl Environment {
    /// The state folder that a software GPU with the variables `soft_gpu` uses.
    #[must_use]
    pub fn soft_gpu_state(&self, soft_gpu: &SoftGpu) -> PathBuf {
        let is_own = |dir: &&PathBuf| std::fs::metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.uid() == self.uid);
        match (&soft_gpu.state, self.runtime_dir.as_ref().filter(is_own)) {
            (Some(state), _) => state.clone(),
            (None, Some(runtime)) => runtime.join("soft-gpu"),
            (None, None) => PathBuf::from(format!("/tmp/soft-gpu-{}", self.uid)),
        }
    }

    #[must_use]
    pub fn read() -> Self {
        let value = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            uid: rustix::process::geteuid().as_raw(),
            runtime_dir: value("XDG_RUNTIME_DIR").map(PathBuf::from),
            ld_preload: value("LD_PRELOAD"),
            ld_library_path: value("LD_LIBRARY_PATH"),
            cuda_visible_devices: value(CUDA_VISIBLE_DEVICES),
            // Absolute, because COMMAND may change its working directory before it opens the GPU.
            soft_gpu: SoftGpu {
                state: value(SOFT_GPU_STATE).map(|value| absolute(&value)),
                profile: value(SOFT_GPU_PROFILE).map(|value| absolute(&value)),
            },
            outer_run: value(vgpu_abi::paths::RUN_DIR_VARIABLE).map(PathBuf::from),
        }
    }
}

/// Width of the caller's terminal, as `watch` and shells export it.
#[must_use]
pub fn columns() -> Option<usize> {
    std::env::var("COLUMNS")
        .ok()?
        .parse()
        .ok()
        .filter(|columns| *columns > 0)
}

fn absolute(path: &OsStr) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| Path::new(path).to_path_buf())
}

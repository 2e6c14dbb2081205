//! The machine's GPUs, as NVML tells them.
//!
//! A driver's library runs in a helper process, `vgpu list-gpus LIBRARY`: what it starts, opens,
//! prints or crashes is gone with it, and COMMAND begins in a process that never loaded it.
//!
//! ```text
//!  one line a GPU:  index uuid total reserved
//! ```
#![forbid(unsafe_code)]

use crate::environment::SoftGpu;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// NVML's.
    pub index: u32,
    pub uuid: String,
    pub total: u64,
    pub reserved: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    #[error("cannot run {}, the helper that asks NVML: {source}", program.display())]
    Helper { program: PathBuf, source: std::io::Error },
    #[error("{variable} {value:?}: {reason}")]
    SoftGpu {
        variable: &'static str,
        value: PathBuf,
        reason: String,
    },
    #[error("the GPUs cannot be listed through {}: {reason}{}", library.display(), hint(*.soft))]
    Driver {
        library: PathBuf,
        reason: String,
        soft: bool,
    },
}

fn hint(soft: bool) -> &'static str {
    if soft {
        ""
    } else {
        "; without a working NVIDIA driver give --soft-gpu for the software GPU"
    }
}

impl Gpu {
    /// What a share may have in all: as the kubelet plugin publishes it.
    #[must_use]
    pub fn published(&self) -> u64 {
        const STEP: u64 = 1 << 20;
        self.total.saturating_sub(self.reserved) / STEP * STEP
    }

    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(' ');
        let gpu = Self {
            index: fields.next()?.parse().ok()?,
            uuid: fields.next()?.to_owned(),
            total: fields.next()?.parse().ok()?,
            reserved: fields.next()?.parse().ok()?,
        };
        fields.next().is_none().then_some(gpu)
    }
}

/// Asks the NVML at `library`; with `soft_gpu` it is the software GPU's, and these are its variables.
///
/// # Errors
/// What NVML, or the software GPU's variables, got wrong.
pub fn list(library: &Path, soft_gpu: Option<&SoftGpu>) -> Result<Vec<Gpu>, GpuError> {
    let program = PathBuf::from("/proc/self/exe");
    let mut helper = Command::new(&program);
    helper
        .arg0("vgpu")
        .arg("list-gpus")
        .arg(library)
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null());
    for (variable, value) in soft_gpu.into_iter().flat_map(SoftGpu::variables) {
        match value {
            Some(value) => helper.env(variable, value),
            None => helper.env_remove(variable),
        };
    }
    let output = helper.output().map_err(|source| GpuError::Helper { program, source })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let gpus: Option<Vec<_>> = text.lines().map(Gpu::parse).collect();
    match gpus {
        Some(gpus) if output.status.success() && !gpus.is_empty() => Ok(gpus),
        _ => {
            let said = String::from_utf8_lossy(&output.stderr);
            let silent = || format!("the helper ended with {}", output.status);
            let reason = said.lines().next().map_or_else(silent, str::to_owned);
            Err(blame(library, soft_gpu, reason))
        }
    }
}

/// Names the software GPU's variable that its message is about.
fn blame(library: &Path, soft_gpu: Option<&SoftGpu>, reason: String) -> GpuError {
    let set = soft_gpu.into_iter().flat_map(SoftGpu::variables);
    let named = set.filter_map(|(variable, value)| Some((variable, value?)));
    let mut named =
        named.filter(|(variable, value)| reason.contains(variable) || reason.contains(&*value.to_string_lossy()));
    match named.next() {
        Some((variable, value)) => GpuError::SoftGpu {
            variable,
            value: value.to_path_buf(),
            reason,
        },
        None => GpuError::Driver {
            library: library.to_path_buf(),
            reason,
            soft: soft_gpu.is_some(),
        },
    }
}

/// The helper process.
#[must_use]
pub fn helper(library: &Path) -> ExitCode {
    match ask(library) {
        Ok(gpus) => {
            for gpu in gpus {
                println!("{} {} {} {}", gpu.index, gpu.uuid, gpu.total, gpu.reserved);
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn ask(library: &Path) -> Result<Vec<Gpu>, NvmlError> {
    let nvml = Nvml::builder().lib_path(library.as_os_str()).init()?;
    let count = nvml.device_count()?;
    if count == 0 {
        return Err(NvmlError::NotFound);
    }
    (0..count)
        .map(|index| {
            let device = nvml.device_by_index(index)?;
            let memory = device.memory_info()?;
            Ok(Gpu {
                index,
                uuid: device.uuid()?,
                total: memory.total,
                reserved: memory.reserved,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_published_is_what_is_not_reserved_in_whole_mebibytes() {
        let gpu = |total, reserved| Gpu {
            index: 0,
            uuid: "GPU-1".into(),
            total,
            reserved,
        };
        assert_eq!(gpu(80 << 30, 0).published(), 80 << 30);
        assert_eq!(gpu(80 << 30, 1).published(), (80 << 30) - (1 << 20));
        assert_eq!(gpu(1, 2).published(), 0);
    }

    #[test]
    fn a_helpers_line_is_read_whole_or_not_at_all() {
        let gpu = Gpu {
            index: 1,
            uuid: "GPU-1".into(),
            total: 3,
            reserved: 2,
        };
        assert_eq!(Gpu::parse("1 GPU-1 3 2"), Some(gpu));
        for line in ["", "1", "1 GPU-1 3", "1 GPU-1 3 2 5", "x GPU-1 3 2", "1 GPU-1 -3 2"] {
            assert_eq!(Gpu::parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn the_software_gpus_message_names_its_variable() {
        let soft_gpu = SoftGpu {
            state: Some("/nowhere/x".into()),
            profile: None,
        };
        let line = |reason: &str, soft: bool| {
            let error = blame(Path::new("/lib/nvml"), soft.then_some(&soft_gpu), reason.into());
            error.to_string()
        };
        assert!(line("SOFT_GPU_STATE: no", true).starts_with("SOFT_GPU_STATE \"/nowhere/x\": "));
        assert!(line("/nowhere/x: no", true).starts_with("SOFT_GPU_STATE \"/nowhere/x\": "));
        assert!(line("driver not loaded", true).starts_with("the GPUs cannot be listed through /lib/nvml"));
        assert!(line("SOFT_GPU_STATE: no", false).ends_with("give --soft-gpu for the software GPU"));
    }
}

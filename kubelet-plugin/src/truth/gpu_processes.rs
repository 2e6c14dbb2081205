//! NVML's word on the memory of each process of a GPU. Asked in the child process (`crate::nvml`).
//!
//! How it fails: a driver that does not answer, or not about a GPU, is an error and no "nobody". A process whose memory NVML
//! does not know has None. NVML names processes by PIDs of the node.

use crate::inventory::{Error, nvml};
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use vgpu_context_size::probe::whole_list;

/// The memory of each process of a GPU, by PID. None: the driver does not say.
pub type Memory = BTreeMap<u32, Option<u64>>;

/// Something that lists the processes of GPUs.
pub trait GpuProcesses: Send + Sync + 'static {
    /// Lists the processes of the GPU with this UUID. May block for as long as the driver does.
    ///
    /// # Errors
    /// Why they are not known.
    fn of(&self, gpu: &str) -> Result<Memory, String>;
}

/// The driver's NVML.
pub struct NvmlProcesses {
    driver_root: PathBuf,
    nvml: Mutex<Option<Nvml>>,
}

// === impl NvmlProcesses ===

impl NvmlProcesses {
    #[must_use]
    pub fn new(driver_root: PathBuf) -> Self {
        Self {
            driver_root,
            nvml: Mutex::new(None),
        }
    }

    fn list(&self, gpu: &str) -> Result<Memory, Error> {
        let mut kept = self.nvml.lock().unwrap_or_else(PoisonError::into_inner);
        let nvml = match kept.take() {
            Some(nvml) => nvml,
            None => nvml::start(&self.driver_root)?,
        };
        let failed = |error: NvmlError| Error::Field {
            index: 0,
            field: "memory of processes".into(),
            reason: error.to_string(),
        };
        let device = nvml.device_by_uuid(gpu).map_err(failed)?;
        let mut memory = whole_list(|| device.running_compute_processes()).map_err(failed)?;
        // Not every GPU has graphics, and a process with both is in both lists.
        memory.extend(whole_list(|| device.running_graphics_processes()).unwrap_or_default());
        // Kept only if it works: after a driver upgrade an old handle fails for ever.
        *kept = Some(nvml);
        Ok(most(memory.into_iter().map(|process| {
            let used = match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            };
            (process.pid, used)
        })))
    }
}

impl GpuProcesses for NvmlProcesses {
    fn of(&self, gpu: &str) -> Result<Memory, String> {
        self.list(gpu).map_err(|error| error.to_string())
    }
}

/// What is known of each process; of a process that is listed twice, the larger figure.
fn most(listed: impl Iterator<Item = (u32, Option<u64>)>) -> Memory {
    let mut memory = Memory::new();
    for (pid, used) in listed {
        let known = memory.entry(pid).or_insert(used);
        *known = (*known).max(used);
    }
    memory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_in_both_lists_counts_once() {
        let listed = [(1, Some(5)), (2, None), (1, Some(7)), (2, Some(1)), (3, None)];
        let expected = Memory::from([(1, Some(7)), (2, Some(1)), (3, None)]);
        assert_eq!(most(listed.into_iter()), expected);
    }

    #[test]
    fn without_a_driver_nothing_is_known() {
        let root = tempfile::tempdir().expect("a folder");
        let processes = NvmlProcesses::new(root.path().to_path_buf());
        assert!(
            processes
                .of("GPU-1")
                .expect_err("no driver")
                .contains("libnvidia-ml.so.1")
        );
    }
}

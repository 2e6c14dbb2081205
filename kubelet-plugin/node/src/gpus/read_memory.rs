//! Reads the memory of a GPU or an instance through NVML.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

pub(super) const MIB: u64 = 1 << 20;

/// The memory that programs can allocate, in whole MiB. None: NVML has no figure of it.
pub(super) fn memory_by_nvml(device: &Device<'_>) -> Result<Option<u64>, NvmlError> {
    match device.memory_info() {
        Err(NvmlError::NotSupported) => Ok(None),
        memory => {
            memory.map(|memory| Some(memory.total.saturating_sub(memory.reserved) / MIB * MIB).filter(|all| *all > 0))
        }
    }
}

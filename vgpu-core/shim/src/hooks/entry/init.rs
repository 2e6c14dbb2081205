//! cuInit: refused without a share, and if the driver shows none of the share's GPUs.

use crate::codes::{NO_DEVICE, SUCCESS};
use crate::hooks::devices;
use crate::process::Ready;
use core::ffi::c_int;
use vgpu_core::os::stderr;

pub(crate) fn init(ready: &'static Ready, next: impl FnOnce() -> c_int) -> c_int {
    let result = devices::visible::hidden(ready, next);
    if result != SUCCESS {
        return result;
    }
    match ready.devices() {
        // The program has hidden all GPUs by CUDA_VISIBLE_DEVICES.
        Some(devices) if devices.list.is_empty() && devices.shared > 0 => NO_DEVICE,
        Some(devices) if devices.list.is_empty() => {
            let granted: Vec<&str> = ready.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
            stderr::say(&format!(
                "the driver shows none of the GPUs of this process's shares ({}): check the driver",
                granted.join(", ")
            ));
            NO_DEVICE
        }
        _ => SUCCESS,
    }
}

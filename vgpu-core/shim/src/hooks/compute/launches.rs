//! Every way to launch kernels.

use super::{gpus, launch_on};
use crate::process::Ready;
use core::ffi::{c_int, c_uint, c_void};

/// The beginning of CUlaunchConfig.
#[repr(C)]
pub(crate) struct Config {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: usize,
}

/// CUDA_LAUNCH_PARAMS.
#[repr(C)]
pub(crate) struct OnDevice {
    function: usize,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: usize,
    parameters: *mut *mut c_void,
}
const _: () = assert!(size_of::<OnDevice>() == 56 && core::mem::offset_of!(Config, stream) == 32);

/// For most launches, only the stream matters.
pub(crate) use super::launch;

/// cuLaunchKernelEx. `meant` returns the stream that a handle means in this function.
pub(crate) unsafe fn ex(
    ready: &'static Ready,
    config: *const Config,
    meant: impl FnOnce(usize) -> usize,
    next: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: null or the caller's.
    let Some(config) = (unsafe { config.as_ref() }) else {
        return next();
    };
    launch(ready, meant(config.stream), next)
}

/// Launches on several GPUs: asks each of their shares in turn, and then launches all parts.
pub(crate) unsafe fn on_devices(
    ready: &'static Ready,
    list: *mut OnDevice,
    count: c_uint,
    mut next: impl FnMut() -> c_int,
) -> c_int {
    if list.is_null() {
        return next();
    }
    // SAFETY: the caller's list; the driver reads as many elements.
    let parts = unsafe { core::slice::from_raw_parts(list, count as usize) };
    together(ready, parts, &mut next)
}

fn together(ready: &'static Ready, parts: &[OnDevice], call: &mut dyn FnMut() -> c_int) -> c_int {
    let Some((part, rest)) = parts.split_first() else {
        return call();
    };
    let gpu = gpus::of_driver(ready, part.stream);
    launch_on(ready, gpu, part.stream, || together(ready, rest, call))
}

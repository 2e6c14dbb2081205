//! Every way to launch kernels. `PER_THREAD`: the name ends with `_ptsz`.
#![allow(clippy::too_many_arguments)] // They are NVIDIA's.

use super::{gpus, launch, launch_on, of_name};
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

type Kernel = unsafe extern "C" fn(
    usize,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    usize,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;

pub(crate) unsafe fn kernel<const PER_THREAD: bool>(
    ready: &'static Ready,
    real: Kernel,
    function: usize,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    shared: c_uint,
    stream: usize,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> c_int {
    // SAFETY: passed on.
    launch(ready, of_name::<PER_THREAD>(stream), || unsafe {
        real(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra)
    })
}

type Cooperative = unsafe extern "C" fn(
    usize,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    usize,
    *mut *mut c_void,
) -> c_int;

pub(crate) unsafe fn cooperative<const PER_THREAD: bool>(
    ready: &'static Ready,
    real: Cooperative,
    function: usize,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    shared: c_uint,
    stream: usize,
    parameters: *mut *mut c_void,
) -> c_int {
    // SAFETY: passed on.
    launch(ready, of_name::<PER_THREAD>(stream), || unsafe {
        real(function, gx, gy, gz, bx, by, bz, shared, stream, parameters)
    })
}

type Ex = unsafe extern "C" fn(*const Config, usize, *mut *mut c_void, *mut *mut c_void) -> c_int;

pub(crate) unsafe fn ex<const PER_THREAD: bool>(
    ready: &'static Ready,
    real: Ex,
    config: *const Config,
    function: usize,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> c_int {
    // SAFETY: passed on.
    let call = || unsafe { real(config, function, parameters, extra) };
    // SAFETY: null or the caller's.
    let Some(config) = (unsafe { config.as_ref() }) else {
        return call();
    };
    launch(ready, of_name::<PER_THREAD>(config.stream), call)
}

/// One launch on several GPUs: each of their shares is asked in turn, and then all parts go.
pub(crate) unsafe fn on_devices(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut OnDevice, c_uint, c_uint) -> c_int,
    list: *mut OnDevice,
    count: c_uint,
    flags: c_uint,
) -> c_int {
    // SAFETY: passed on.
    let mut call = || unsafe { real(list, count, flags) };
    if list.is_null() {
        return call();
    }
    // SAFETY: the caller's list, of which the driver reads as many.
    let parts = unsafe { core::slice::from_raw_parts(list, count as usize) };
    together(ready, parts, &mut call)
}

fn together(ready: &'static Ready, parts: &[OnDevice], call: &mut dyn FnMut() -> c_int) -> c_int {
    let Some((part, rest)) = parts.split_first() else {
        return call();
    };
    let gpu = gpus::of_driver(ready, part.stream);
    launch_on(ready, gpu, part.stream, || together(ready, rest, call))
}

/// cuLaunch and its like: the block was set before, by cuFuncSetBlockShape.
pub(crate) unsafe fn single(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize) -> c_int,
    function: usize,
) -> c_int {
    // SAFETY: passed on.
    launch(ready, 0, || unsafe { real(function) })
}

pub(crate) unsafe fn grid(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, c_int, c_int) -> c_int,
    function: usize,
    width: c_int,
    height: c_int,
) -> c_int {
    // SAFETY: passed on.
    launch(ready, 0, || unsafe { real(function, width, height) })
}

pub(crate) unsafe fn grid_async(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, c_int, c_int, usize) -> c_int,
    function: usize,
    width: c_int,
    height: c_int,
    stream: usize,
) -> c_int {
    // SAFETY: passed on.
    launch(ready, stream, || unsafe { real(function, width, height, stream) })
}

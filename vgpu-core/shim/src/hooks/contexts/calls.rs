//! Hooks that create and destroy contexts, with device numbers translated. `vgpu_core::memory::context_life` charges
//! them.

use crate::codes::{INVALID_DEVICE, SUCCESS};
use crate::driver::Gpu;
use crate::hooks::compute;
use crate::hooks::contexts::measure::process;
use crate::process::{Devices, Ready};
use crate::real::real;
use core::ffi::{c_int, c_uint, c_void};
use vgpu_core::memory::context_life::{self, Creation, Place};
use vgpu_core::memory::contexts::Contexts;
use vgpu_core::memory::driver::Driver;

/// The real device of virtual ordinal `device`, and its GPU.
fn place(
    ready: &'static Ready,
    devices: &Devices,
    device: c_int,
) -> Option<(c_int, Place<'static, crate::driver::Real>)> {
    let index = devices.gpu(device)?;
    let gpu = ready.gpus.get(index)?;
    Some((devices.real(device)?, Place { index, gpu }))
}

pub(crate) unsafe fn retain(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, c_int) -> c_int,
    context: *mut usize,
    device: c_int,
) -> c_int {
    let devices = match ready.known_devices() {
        Ok(devices) => devices,
        Err(error) => return error,
    };
    let Some((device, place)) = place(ready, devices, device) else {
        return INVALID_DEVICE;
    };
    // SAFETY: null, or the driver has written it where this is asked.
    let handle = || unsafe { context.as_ref() }.map_or(0, |primary| *primary);
    let creation = Creation {
        device,
        is_green: false,
        is_new: |contexts: &Contexts| contexts.is_primary_new(|| place.gpu.driver.is_primary_active(device)),
        count: |contexts: &mut Contexts| {
            contexts.retains += 1;
            contexts.primary = handle();
        },
        // SAFETY: passed on.
        make: || unsafe { real(context, device) },
        handle,
        // SAFETY: what was just retained.
        undo: || unsafe { real!(cuDevicePrimaryCtxRelease_v2(c_int))(device) },
    };
    context_life::begin(&process(ready), &place, creation)
}

/// Releases the primary context: one retain of it, or all.
fn primary_gone(ready: &'static Ready, device: c_int, all: bool, call: impl FnOnce(c_int) -> c_int) -> c_int {
    let devices = match ready.known_devices() {
        Ok(devices) => devices,
        Err(error) => return error,
    };
    let Some((real, place)) = place(ready, devices, device) else {
        return INVALID_DEVICE;
    };
    let mut ending = None;
    if let Some(gpu) = ready.gpus.get(place.index) {
        let (primary, retains) = {
            let contexts = gpu.contexts.lock();
            let contexts = contexts.borrow();
            (contexts.primary, contexts.retains)
        };
        if all || retains <= 1 {
            ending = Some(compute::forget(ready, primary));
        }
    }
    let result = context_life::release_primary(&process(ready), &place, real, all, || call(real));
    if let Some(ending) = &mut ending {
        // A green context may hold it.
        let lives = || !all && place.gpu.driver.is_primary_active(real) == Some(true);
        ending.ended(result == SUCCESS && !lives());
    }
    result
}

pub(crate) unsafe fn release(
    ready: &'static Ready,
    real: unsafe extern "C" fn(c_int) -> c_int,
    device: c_int,
) -> c_int {
    // SAFETY: passed on.
    primary_gone(ready, device, false, |device| unsafe { real(device) })
}

pub(crate) unsafe fn reset(ready: &'static Ready, real: unsafe extern "C" fn(c_int) -> c_int, device: c_int) -> c_int {
    // SAFETY: passed on.
    primary_gone(ready, device, true, |device| unsafe { real(device) })
}

/// Makes a context that is not the primary one.
///
/// # Safety
/// `context` is null or written when `make` succeeds.
unsafe fn made(ready: &'static Ready, context: *mut usize, device: c_int, make: impl FnOnce(c_int) -> c_int) -> c_int {
    // SAFETY: as promised.
    unsafe { made_as(ready, context, device, false, make) }
}

/// # Safety
/// As for [`made`].
unsafe fn made_as(
    ready: &'static Ready,
    context: *mut usize,
    device: c_int,
    is_green: bool,
    make: impl FnOnce(c_int) -> c_int,
) -> c_int {
    let devices = match ready.known_devices() {
        Ok(devices) => devices,
        Err(error) => return error,
    };
    let Some((device, place)) = place(ready, devices, device) else {
        return INVALID_DEVICE;
    };
    let gpu = place.index;
    let creation = Creation {
        device,
        is_green,
        is_new: |_: &Contexts| true,
        count: |contexts: &mut Contexts| contexts.created += 1,
        make: || make(device),
        // SAFETY: as promised; asked once the driver has made it.
        handle: || unsafe { context.as_ref() }.map_or(0, |made| *made),
        undo: || {
            let end = if is_green {
                real!(cuGreenCtxDestroy(usize))
            } else {
                real!(cuCtxDestroy_v2(usize))
            };
            // SAFETY: as promised; the driver has just made it.
            unsafe { context.as_ref() }.map_or(SUCCESS, |context| unsafe { end(*context) })
        },
    };
    let result = context_life::begin(&process(ready), &place, creation);
    if result == SUCCESS && !context.is_null() {
        // SAFETY: as promised.
        context_life::keep(&process(ready), unsafe { *context }, gpu, device, is_green);
    }
    result
}

pub(crate) unsafe fn create(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, c_uint, c_int) -> c_int,
    context: *mut usize,
    flags: c_uint,
    device: c_int,
) -> c_int {
    // SAFETY: passed on.
    unsafe { made(ready, context, device, |device| real(context, flags, device)) }
}

pub(crate) unsafe fn create_v3(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, *mut c_void, c_int, c_uint, c_int) -> c_int,
    context: *mut usize,
    parameters: *mut c_void,
    count: c_int,
    flags: c_uint,
    device: c_int,
) -> c_int {
    // SAFETY: passed on.
    unsafe {
        made(ready, context, device, |device| {
            real(context, parameters, count, flags, device)
        })
    }
}

pub(crate) unsafe fn create_v4(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, *mut c_void, c_uint, c_int) -> c_int,
    context: *mut usize,
    parameters: *mut c_void,
    flags: c_uint,
    device: c_int,
) -> c_int {
    // SAFETY: passed on.
    unsafe {
        made(ready, context, device, |device| {
            real(context, parameters, flags, device)
        })
    }
}

pub(crate) unsafe fn destroy(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize) -> c_int,
    context: usize,
) -> c_int {
    destroyed(ready, context, || {
        // SAFETY: passed on.
        context_life::destroy(&process(ready), context, || unsafe { real(context) })
    })
}

/// Destroys a context by `call`. The driver refuses to destroy a primary one, whose work goes on.
fn destroyed(ready: &'static Ready, context: usize, call: impl FnOnce() -> c_int) -> c_int {
    let is_primary = |gpu: &Gpu| {
        let contexts = gpu.contexts.lock();
        let contexts = contexts.borrow();
        contexts.primary == context && (contexts.retains > 0 || contexts.is_kept)
    };
    if ready.gpus.iter().any(is_primary) {
        return call();
    }
    let mut ending = compute::forget(ready, context);
    let result = call();
    ending.ended(result == SUCCESS);
    result
}

/// One user more of the current context.
pub(crate) unsafe fn attach(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, c_uint) -> c_int,
    context: *mut usize,
    flags: c_uint,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(context, flags) };
    // SAFETY: null, or the driver has written it.
    if let (SUCCESS, Some(context)) = (result, unsafe { context.as_ref() }) {
        context_life::attach(&ready.tables, *context);
    }
    result
}

/// One user less; the last one's going destroys it.
pub(crate) unsafe fn detach(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize) -> c_int,
    context: usize,
) -> c_int {
    // SAFETY: passed on.
    let call = || context_life::detach(&process(ready), context, || unsafe { real(context) });
    if context_life::is_attached(&ready.tables, context) {
        return call();
    }
    destroyed(ready, context, call)
}

/// A context for VDPAU.
pub(crate) unsafe fn create_vdpau(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, c_uint, c_int, c_uint, *mut c_void) -> c_int,
    context: *mut usize,
    flags: c_uint,
    device: c_int,
    vdpau: c_uint,
    functions: *mut c_void,
) -> c_int {
    // SAFETY: passed on.
    unsafe {
        made(ready, context, device, |device| {
            real(context, flags, device, vdpau, functions)
        })
    }
}

/// A green context: resources of the primary one, by a handle of its own.
pub(crate) unsafe fn create_green(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, usize, c_int, c_uint) -> c_int,
    context: *mut usize,
    resources: usize,
    device: c_int,
    flags: c_uint,
) -> c_int {
    // SAFETY: passed on.
    unsafe {
        made_as(ready, context, device, true, |device| {
            real(context, resources, device, flags)
        })
    }
}

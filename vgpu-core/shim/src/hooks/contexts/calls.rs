//! Hooks that create and destroy contexts, with device numbers translated. `vgpu_core::memory::context_life` charges
//! them.

use crate::codes::{INVALID_DEVICE, SUCCESS};
use crate::driver::{Gpu, Real};
use crate::hooks::compute;
use crate::hooks::contexts::measure::process;
use crate::process::Ready;
use crate::real::real;
use core::ffi::c_int;
use vgpu_core::memory::context_life::{self, Creation, Place};
use vgpu_core::memory::contexts::Contexts;
use vgpu_core::memory::driver::Driver;

/// Returns the real device of virtual ordinal `device`, and its GPU, or the error of the call.
fn place(ready: &'static Ready, device: c_int) -> Result<(c_int, Place<'static, Real>), c_int> {
    let devices = ready.known_devices()?;
    let found = devices.gpu(device).zip(devices.real(device));
    let (index, real) = found.ok_or(INVALID_DEVICE)?;
    let gpu = ready.gpus.get(index).ok_or(INVALID_DEVICE)?;
    Ok((real, Place { index, gpu }))
}

pub(crate) unsafe fn retain(
    ready: &'static Ready,
    context: *mut usize,
    device: c_int,
    next: impl FnOnce(c_int) -> c_int,
) -> c_int {
    let (device, place) = match place(ready, device) {
        Ok(found) => found,
        Err(error) => return error,
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
        make: || next(device),
        handle,
        // SAFETY: what was just retained.
        undo: || unsafe { real!(cuDevicePrimaryCtxRelease_v2)(device) },
    };
    context_life::begin(&process(ready), &place, creation)
}

/// Releases the primary context: drops one retain, or all.
pub(crate) fn release_primary(
    ready: &'static Ready,
    device: c_int,
    all: bool,
    next: impl FnOnce(c_int) -> c_int,
) -> c_int {
    let (real, place) = match place(ready, device) {
        Ok(found) => found,
        Err(error) => return error,
    };
    let mut ending = None;
    let (primary, retains) = {
        let contexts = place.gpu.contexts.lock();
        let contexts = contexts.borrow();
        (contexts.primary, contexts.retains)
    };
    if all || retains <= 1 {
        ending = Some(compute::forget(ready, primary));
    }
    let result = context_life::release_primary(&process(ready), &place, real, all, || next(real));
    if let Some(ending) = &mut ending {
        // A green context may still keep the primary context.
        let lives = || !all && place.gpu.driver.is_primary_active(real) == Some(true);
        ending.ended(result == SUCCESS && !lives());
    }
    result
}

/// Creates a context that is not the primary one. A green context is a part of the primary context, with its own handle.
pub(crate) unsafe fn create(
    ready: &'static Ready,
    context: *mut usize,
    device: c_int,
    is_green: bool,
    next: impl FnOnce(c_int) -> c_int,
) -> c_int {
    let (device, place) = match place(ready, device) {
        Ok(found) => found,
        Err(error) => return error,
    };
    let gpu = place.index;
    let creation = Creation {
        device,
        is_green,
        is_new: |_: &Contexts| true,
        count: |contexts: &mut Contexts| contexts.created += 1,
        make: || next(device),
        // SAFETY: as promised; asked once the driver has made it.
        handle: || unsafe { context.as_ref() }.map_or(0, |made| *made),
        undo: || {
            let end = if is_green {
                real!(cuGreenCtxDestroy)
            } else {
                real!(cuCtxDestroy_v2)
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

pub(crate) fn destroy(ready: &'static Ready, context: usize, next: impl FnOnce() -> c_int) -> c_int {
    destroyed(ready, context, || context_life::destroy(&process(ready), context, next))
}

/// Destroys a context by `call`. A primary context is left alone: the driver refuses the call, and its work continues.
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

/// Adds a user of the current context.
pub(crate) unsafe fn attach(ready: &'static Ready, context: *mut usize, next: impl FnOnce() -> c_int) -> c_int {
    let result = next();
    // SAFETY: null, or the driver has written it.
    if let (SUCCESS, Some(context)) = (result, unsafe { context.as_ref() }) {
        context_life::attach(&ready.tables, *context);
    }
    result
}

/// Removes a user of a context. The context is destroyed with its last user.
pub(crate) fn detach(ready: &'static Ready, context: usize, next: impl FnOnce() -> c_int) -> c_int {
    let call = || context_life::detach(&process(ready), context, next);
    if context_life::is_attached(&ready.tables, context) {
        return call();
    }
    destroyed(ready, context, call)
}

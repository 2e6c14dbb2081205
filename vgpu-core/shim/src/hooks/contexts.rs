//! Contexts: a process's first on a GPU is charged the share's reserve, and given back with its last.
//! What was allocated in a context goes with it.

use crate::detour::{INVALID_DEVICE, OUT_OF_MEMORY, SUCCESS};
use crate::hooks::arrays;
use crate::hooks::memory::{charge, sweep};
use crate::real::real;
use crate::state::{Gpu, Ready};
use core::ffi::{c_int, c_uint, c_void};
use vgpu_core::account::Charge;

/// The contexts of one GPU, and what they are charged together.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    retains: u32,
    created: u32,
    /// Handle of the primary context; 0: not retained yet.
    primary: usize,
    reserve: Option<Charge>,
}

/// Makes a context through `make` (given the real device) with the reserve charged; `count` is told
/// that there is one more.
fn charged(
    ready: &'static Ready,
    device: c_int,
    count: impl FnOnce(&mut Contexts),
    make: impl FnOnce(c_int) -> c_int,
) -> c_int {
    let Some(devices) = ready.devices() else {
        return make(device);
    };
    let (Some(gpu), Some(real)) = (
        devices.gpu(device).and_then(|gpu| ready.gpus.get(gpu)),
        devices.real(device),
    ) else {
        return INVALID_DEVICE;
    };
    let mut contexts = gpu.contexts.lock();
    if contexts.reserve.is_none() && gpu.context_reserve > 0 {
        let Some(reserve) = charge(gpu, gpu.context_reserve) else {
            return OUT_OF_MEMORY;
        };
        contexts.reserve = Some(reserve);
    }
    let result = make(real);
    if result == SUCCESS {
        count(&mut contexts);
        gpu.account.note_context();
    } else {
        give_back(gpu, &mut contexts);
    }
    result
}

fn give_back(gpu: &Gpu, contexts: &mut Contexts) {
    // Taken only with the last: a charge that is dropped unreleased is lost until the process ends.
    if contexts.retains == 0
        && contexts.created == 0
        && let Some(reserve) = contexts.reserve.take()
    {
        gpu.account.release(reserve);
    }
}

pub(crate) unsafe fn retain(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, c_int) -> c_int,
    context: *mut usize,
    device: c_int,
) -> c_int {
    // SAFETY: passed on.
    charged(
        ready,
        device,
        |contexts| {
            contexts.retains += 1;
            // SAFETY: the driver has written it.
            contexts.primary = unsafe { context.as_ref() }.map_or(0, |primary| *primary);
        },
        |device| unsafe { real(context, device) },
    )
}

/// After a primary context lost one retain, or all.
fn primary_gone(ready: &'static Ready, device: c_int, all: bool, call: impl FnOnce(c_int) -> c_int) -> c_int {
    let Some(devices) = ready.devices() else {
        return call(device);
    };
    let (Some(index), Some(real)) = (devices.gpu(device), devices.real(device)) else {
        return INVALID_DEVICE;
    };
    let result = call(real);
    if let (SUCCESS, Some(gpu)) = (result, ready.gpus.get(index)) {
        let mut contexts = gpu.contexts.lock();
        contexts.retains = if all { 0 } else { contexts.retains.saturating_sub(1) };
        if contexts.retains == 0 {
            sweep(ready, index);
            // Others may hold it by ways that we do not see: then nothing has gone.
            if !is_active(real) {
                arrays::sweep(ready, contexts.primary);
            }
            give_back(gpu, &mut contexts);
        }
    }
    result
}

/// Whether the primary context of a real device lives.
fn is_active(device: c_int) -> bool {
    let (mut flags, mut active) = (0, 1);
    // SAFETY: both are to be written.
    unsafe { real!(cuDevicePrimaryCtxGetState(c_int, *mut c_uint, *mut c_int))(device, &mut flags, &mut active) };
    active != 0
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

/// Notes a created context.
///
/// # Safety
/// `context` is null or the driver has written it if `result` is success.
unsafe fn created(ready: &'static Ready, context: *mut usize, device: c_int, result: c_int) {
    if let (SUCCESS, false, Some(gpu)) = (result, context.is_null(), ready.devices().and_then(|d| d.gpu(device))) {
        // SAFETY: as promised.
        ready.contexts.insert(unsafe { *context } as u64, gpu);
    }
}

pub(crate) unsafe fn create(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, c_uint, c_int) -> c_int,
    context: *mut usize,
    flags: c_uint,
    device: c_int,
) -> c_int {
    // SAFETY: passed on.
    unsafe {
        let result = charged(
            ready,
            device,
            |contexts| contexts.created += 1,
            |device| real(context, flags, device),
        );
        created(ready, context, device, result);
        result
    }
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
        let make = |device| real(context, parameters, count, flags, device);
        let result = charged(ready, device, |contexts| contexts.created += 1, make);
        created(ready, context, device, result);
        result
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
        let make = |device| real(context, parameters, flags, device);
        let result = charged(ready, device, |contexts| contexts.created += 1, make);
        created(ready, context, device, result);
        result
    }
}

pub(crate) unsafe fn destroy(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize) -> c_int,
    context: usize,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(context) };
    if result != SUCCESS {
        return result;
    }
    if let Some(index) = ready.contexts.remove(context as u64)
        && let Some(gpu) = ready.gpus.get(index)
    {
        let mut contexts = gpu.contexts.lock();
        contexts.created = contexts.created.saturating_sub(1);
        sweep(ready, index);
        arrays::sweep(ready, context);
        give_back(gpu, &mut contexts);
    }
    result
}

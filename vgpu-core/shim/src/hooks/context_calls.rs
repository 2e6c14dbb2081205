//! Contexts: what each takes is measured ([`measure`](super::measure)); a process's first on a GPU is
//! charged the share's reserve before. What was allocated in a context goes with it.

use crate::codes::{INVALID_DEVICE, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS};
use crate::driver::Gpu;
use crate::hooks::measure::{Change, Measurement};
use crate::hooks::{deferred_free, externals, graph_launch};
use crate::process::Ready;
use crate::real::{self, real};
use core::ffi::{c_int, c_uint, c_void};
use vgpu_core::memory::contexts::{Contexts, Made};
use vgpu_core::memory::{deferred, graphs, room};
use vgpu_core::os::thread;

/// Makes a context through `make` (given the real device) with what it takes charged; `count` is told
/// that there is one more; `undo` (given the real device) takes it back.
fn charged(
    ready: &'static Ready,
    device: c_int,
    is_new: impl FnOnce(&Contexts) -> bool,
    count: impl FnOnce(&mut Contexts),
    make: impl FnOnce(c_int) -> c_int,
    undo: impl FnOnce(c_int),
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
    let _outside = ready.calls.outside(thread());
    real::need_nvml();
    let mut contexts = gpu.contexts.lock();
    let (result, fits) = if is_new(&contexts) {
        let first = (!contexts.any()).then_some(gpu.context_reserve);
        let mut measurement = Measurement::of(ready, gpu);
        let (result, fits) = measurement.around(first, Change::Takes, || make(real));
        if !fits {
            measurement.around(None, Change::GivesBack, || {
                undo(real);
                SUCCESS
            });
        }
        (result, fits)
    } else {
        (make(real), true)
    };
    if !fits {
        return OUT_OF_MEMORY;
    }
    if result == SUCCESS {
        count(&mut contexts);
        gpu.account.note_context();
    }
    result
}

/// Ends a context through `end`, and gives back what it took; `count` is told that there is one less.
fn ended(
    ready: &'static Ready,
    index: usize,
    end: impl FnOnce() -> c_int,
    count: impl FnOnce(&mut Contexts),
    sweep_more: impl FnOnce(&Contexts),
) -> c_int {
    real::need_nvml();
    match ready.gpus.get(index) {
        Some(gpu) => ended_of(ready, index, gpu, &mut gpu.contexts.lock(), end, count, sweep_more),
        None => end(),
    }
}

/// The same under the lock of `contexts`.
fn ended_of(
    ready: &'static Ready,
    index: usize,
    gpu: &Gpu,
    contexts: &mut Contexts,
    end: impl FnOnce() -> c_int,
    count: impl FnOnce(&mut Contexts),
    sweep_more: impl FnOnce(&Contexts),
) -> c_int {
    let mut measurement = Measurement::of(ready, gpu);
    let (result, _) = measurement.around(None, Change::GivesBack, || {
        let result = end();
        if result == SUCCESS {
            count(contexts);
            // What went with the context is given back before the second look.
            sweep(ready, index);
            sweep_more(contexts);
            room::refresh(gpu);
        }
        result
    });
    if result == SUCCESS && !contexts.any() {
        measurement.clear();
        if graphs::used() {
            graph_launch::forget(ready, index);
        }
    }
    result
}

pub(crate) unsafe fn retain(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, c_int) -> c_int,
    context: *mut usize,
    device: c_int,
) -> c_int {
    charged(
        ready,
        device,
        |contexts| contexts.retains == 0,
        |contexts| {
            contexts.retains += 1;
            // SAFETY: the driver has written it.
            contexts.primary = unsafe { context.as_ref() }.map_or(0, |primary| *primary);
        },
        // SAFETY: passed on.
        |device| unsafe { real(context, device) },
        |device| {
            // SAFETY: what was just retained.
            unsafe { real!(cuDevicePrimaryCtxRelease_v2(c_int))(device) };
        },
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
    let Some(gpu) = ready.gpus.get(index) else {
        return call(real);
    };
    let _outside = ready.calls.outside(thread());
    real::need_nvml();
    // Held until it is counted: another thread may retain or release it at the same time.
    let mut contexts = gpu.contexts.lock();
    loop {
        if !all && contexts.retains > 1 {
            let result = call(real);
            contexts.retains -= u32::from(result == SUCCESS);
            return result;
        }
        let primary = contexts.primary;
        if primary == 0 || !deferred_free::has_of(ready, primary) {
            break;
        }
        // Work is waited for without the lock; who retains it meanwhile is seen above.
        drop(contexts);
        deferred_free::empty(ready, primary);
        contexts = gpu.contexts.lock();
    }
    ended_of(
        ready,
        index,
        gpu,
        &mut contexts,
        || call(real),
        |contexts| contexts.retains = 0,
        |contexts| {
            // Others may hold it by ways that we do not see: then nothing has gone.
            if !is_active(real) {
                ready.arrays.sweep(&ready.gpus, contexts.primary);
            }
        },
    )
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
    let undo = |_| {
        let end = if is_green {
            real!(cuGreenCtxDestroy(usize))
        } else {
            real!(cuCtxDestroy_v2(usize))
        };
        // SAFETY: as promised; the driver has just made it.
        unsafe { context.as_ref().map(|context| end(*context)) };
    };
    let result = charged(ready, device, |_| true, |contexts| contexts.created += 1, make, undo);
    if let (SUCCESS, false, Some(gpu)) = (result, context.is_null(), ready.devices().and_then(|d| d.gpu(device))) {
        let made = Made {
            gpu,
            attached: 0,
            is_green,
        };
        // SAFETY: as promised.
        ready.contexts.insert(unsafe { *context } as u64, made);
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
    // SAFETY: passed on.
    let end = || unsafe { real(context) };
    let _outside = ready.calls.outside(thread());
    // Out of the table first: once destroyed, the driver may give the handle to another thread.
    let Some(known) = ready.contexts.remove(context as u64) else {
        return end();
    };
    if deferred::used() {
        deferred_free::empty(ready, if known.is_green { behind(context) } else { context });
    }
    let result = ended(
        ready,
        known.gpu,
        end,
        |contexts| contexts.created = contexts.created.saturating_sub(1),
        |_| ready.arrays.sweep(&ready.gpus, context),
    );
    if result != SUCCESS {
        ready.contexts.insert(context as u64, known);
    }
    result
}

/// The context that streams of a green one tell of.
fn behind(green: usize) -> usize {
    let mut context = 0;
    // SAFETY: to be written; a green context that was made here.
    match unsafe { real!(cuCtxFromGreenCtx(*mut usize, usize))(&mut context, green) } {
        SUCCESS => context,
        _ => green,
    }
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
        ready.contexts.with(*context as u64, |known| known.attached += 1);
    }
    result
}

/// One user less; the last one's going destroys it.
pub(crate) unsafe fn detach(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize) -> c_int,
    context: usize,
) -> c_int {
    let others = ready.contexts.with(context as u64, |known| {
        let others = known.attached > 0;
        known.attached -= u32::from(others);
        others
    });
    if others != Some(true) {
        // SAFETY: passed on.
        return unsafe { destroy(ready, real, context) };
    }
    // SAFETY: passed on.
    let result = unsafe { real(context) };
    if result != SUCCESS {
        ready.contexts.with(context as u64, |known| known.attached += 1);
    }
    result
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

/// After contexts went: gives back the pointers that went with them. The driver knows which are left.
fn sweep(ready: &Ready, gpu: usize) {
    const MEMORY_TYPE: c_int = 2;
    let is_gone = |pointer| {
        let mut kind: c_uint = 0;
        let at: *mut c_uint = &mut kind;
        // SAFETY: `kind` is to be written; the driver validates the pointer.
        let result = unsafe {
            real!(cuPointerGetAttribute(*mut core::ffi::c_void, c_int, u64))(at.cast(), MEMORY_TYPE, pointer)
        };
        result == INVALID_VALUE
    };
    ready.live.sweep(&ready.gpus, gpu, is_gone);
    if externals::used() {
        externals::sweep(ready, gpu, is_gone);
    }
}

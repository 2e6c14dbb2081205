//! NVML's list of devices: the GPUs of which this process has shares, in NVML's order.

use crate::codes::{NVML_INVALID_ARGUMENT, NVML_NOT_FOUND, NVML_SUCCESS};
use crate::hooks::nvml::list::{fill, keep};
use crate::out::put;
use crate::process::{NvmlDevice, Ready};
use crate::real::real;
use core::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::Ordering;

pub(crate) unsafe fn init(ready: &'static Ready, real: unsafe extern "C" fn() -> c_int) -> c_int {
    // SAFETY: passed on.
    listed(ready, unsafe { real() })
}

pub(crate) unsafe fn init_with(
    ready: &'static Ready,
    real: unsafe extern "C" fn(c_uint) -> c_int,
    flags: c_uint,
) -> c_int {
    // SAFETY: passed on.
    listed(ready, unsafe { real(flags) })
}

fn listed(ready: &'static Ready, result: c_int) -> c_int {
    if result == NVML_SUCCESS {
        ready.nvml_users.fetch_add(1, Ordering::Relaxed);
        *ready.nvml.lock() = enumerate(ready);
    }
    result
}

pub(crate) unsafe fn shutdown(ready: &'static Ready, real: unsafe extern "C" fn() -> c_int) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real() };
    if result == NVML_SUCCESS {
        let less = |users: u32| Some(users.saturating_sub(1));
        let _ = ready
            .nvml_users
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
    result
}

/// Initialises NVML for ourselves, once: it costs milliseconds. The program does not see that.
pub(crate) fn keep_open(ready: &'static Ready) -> bool {
    let mut own = ready.nvml_own.lock();
    if !*own {
        let mut count = 0;
        // A fork child inherits what its parent has initialised.
        // SAFETY: to be written.
        if unsafe { real!(nvmlDeviceGetCount_v2(*mut c_uint))(&mut count) } == NVML_SUCCESS {
            ready.nvml_users.fetch_max(1, Ordering::Relaxed);
        }
        // SAFETY: takes nothing.
        *own = unsafe { real!(nvmlInit_v2())() } == NVML_SUCCESS;
    }
    *own
}

/// The devices of this process; in a fork child they are looked for again.
pub(crate) fn list(ready: &'static Ready) -> Vec<NvmlDevice> {
    let mut known = ready.nvml.lock();
    if known.is_empty() {
        *known = enumerate(ready);
    }
    known.clone()
}

fn enumerate(ready: &'static Ready) -> Vec<NvmlDevice> {
    let mut count = 0;
    // SAFETY: `count` is to be written.
    if unsafe { real!(nvmlDeviceGetCount_v2(*mut c_uint))(&mut count) } != NVML_SUCCESS {
        return Vec::new();
    }
    (0..count).filter_map(|index| of(ready, index)).collect()
}

fn of(ready: &'static Ready, index: c_uint) -> Option<NvmlDevice> {
    let (mut handle, mut uuid) = (0_usize, [0 as c_char; 96]);
    // SAFETY: handle and text are to be written, the latter within its length.
    let result = unsafe {
        match real!(nvmlDeviceGetHandleByIndex_v2(c_uint, *mut usize))(index, &mut handle) {
            NVML_SUCCESS => real!(nvmlDeviceGetUUID(usize, *mut c_char, c_uint))(handle, uuid.as_mut_ptr(), 95),
            error => error,
        }
    };
    (result == NVML_SUCCESS).then_some(())?;
    // SAFETY: the last byte is zero.
    let uuid = unsafe { CStr::from_ptr(uuid.as_ptr()) }.to_str().ok()?;
    let gpu = ready.gpus.iter().position(|gpu| gpu.uuid.eq_ignore_ascii_case(uuid))?;
    Some(NvmlDevice { handle, gpu })
}

pub(crate) unsafe fn count(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut c_uint) -> c_int,
    count: *mut c_uint,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(count) };
    if result == NVML_SUCCESS {
        // SAFETY: the driver has written there.
        unsafe { put(count, list(ready).len() as c_uint) };
    }
    result
}

pub(crate) unsafe fn by_index(
    ready: &'static Ready,
    real: unsafe extern "C" fn(c_uint, *mut usize) -> c_int,
    index: c_uint,
    device: *mut usize,
) -> c_int {
    let mut count = 0;
    // SAFETY: to be written.
    let result = unsafe { real!(nvmlDeviceGetCount_v2(*mut c_uint))(&mut count) };
    if result != NVML_SUCCESS {
        // Our list outlives nvmlShutdown, a handle does not: NVML returns the right error.
        // SAFETY: passed on.
        return unsafe { real(index, device) };
    }
    let devices = list(ready);
    match (devices.get(index as usize), device.is_null()) {
        (Some(found), false) => {
            // SAFETY: not null, the caller's to be written.
            unsafe { put(device, found.handle) };
            NVML_SUCCESS
        }
        _ => NVML_INVALID_ARGUMENT,
    }
}

/// By a text, or by a UUID in any form.
pub(crate) unsafe fn by_text<T>(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*const T, *mut usize) -> c_int,
    text: *const T,
    device: *mut usize,
) -> c_int {
    let mut found = 0;
    if device.is_null() {
        return NVML_INVALID_ARGUMENT;
    }
    // SAFETY: passed on, with a place of our own.
    match unsafe { real(text, &mut found) } {
        NVML_SUCCESS if list(ready).iter().any(|known| known.handle == found) => {
            // SAFETY: not null, the caller's to be written.
            unsafe { put(device, found) };
            NVML_SUCCESS
        }
        NVML_SUCCESS => NVML_NOT_FOUND,
        error => error,
    }
}

pub(crate) unsafe fn of_cpu(
    ready: &'static Ready,
    real: unsafe extern "C" fn(c_uint, *mut c_uint, *mut usize) -> c_int,
    cpu: c_uint,
    count: *mut c_uint,
    devices: *mut usize,
) -> c_int {
    // SAFETY: passed on; on success NVML has written both.
    unsafe { only_own(ready, real(cpu, count, devices), count, devices) }
}

pub(crate) unsafe fn nearest(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, c_int, *mut c_uint, *mut usize) -> c_int,
    device: usize,
    level: c_int,
    count: *mut c_uint,
    devices: *mut usize,
) -> c_int {
    // SAFETY: passed on; on success NVML has written both.
    unsafe { only_own(ready, real(device, level, count, devices), count, devices) }
}

/// Those of an S-class unit.
pub(crate) unsafe fn of_unit(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, *mut c_uint, *mut usize) -> c_int,
    unit: usize,
    count: *mut c_uint,
    devices: *mut usize,
) -> c_int {
    // Into a buffer of our own, so that not even the GPUs' real number is reported if the caller's buffer is too small.
    let mut all = [0_usize; 256];
    let mut found = all.len() as c_uint;
    // SAFETY: both are to be written, the list within its length.
    let result = unsafe { real(unit, &mut found, all.as_mut_ptr()) };
    if result != NVML_SUCCESS {
        return result;
    }
    let own = list(ready);
    let told = all.iter().take(found as usize).copied();
    let told: Vec<usize> = told
        .filter(|device| own.iter().any(|known| known.handle == *device))
        .collect();
    // SAFETY: the caller's promises to NVML.
    unsafe { fill(&told, count, devices) }
}

/// Takes the GPUs without a share out of a list that NVML has written.
///
/// # Safety
/// As for [`keep`].
unsafe fn only_own(ready: &'static Ready, result: c_int, count: *mut c_uint, devices: *mut usize) -> c_int {
    if result == NVML_SUCCESS {
        let own = list(ready);
        // SAFETY: as promised.
        unsafe { keep(count, devices, |device| own.iter().any(|known| known.handle == *device)) };
    }
    result
}

pub(crate) unsafe fn index(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, *mut c_uint) -> c_int,
    device: usize,
    index: *mut c_uint,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(device, index) };
    let place = list(ready).iter().position(|known| known.handle == device);
    if let (NVML_SUCCESS, Some(place)) = (result, place) {
        // SAFETY: the driver has written there.
        unsafe { put(index, place as c_uint) };
    }
    result
}

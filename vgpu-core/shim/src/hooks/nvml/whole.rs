//! NVML functions that report on a whole GPU, or on any process by its PID: their results are limited to the share.

use crate::codes::{NVML_NOT_FOUND, NVML_SUCCESS};
use crate::hooks::nvml::info::{Memory, figures, gpu, running};
use crate::out::put;
use crate::process::Ready;
use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::atomic::Ordering;

/// nvmlConfComputeMemSizeInfo_t.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    protected_kib: c_ulonglong,
    unprotected_kib: c_ulonglong,
}

/// Protected and unprotected memory: at most the share's limit together.
pub(crate) unsafe fn sizes(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, *mut Sizes) -> c_int,
    device: usize,
    sizes: *mut Sizes,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(device, sizes) };
    // SAFETY: null, or NVML has written there.
    if let (NVML_SUCCESS, Some(gpu), Some(sizes)) = (result, gpu(ready, device), unsafe { sizes.as_mut() }) {
        let limit_kib = gpu.account.limit() >> 10;
        sizes.protected_kib = sizes.protected_kib.min(limit_kib);
        sizes.unprotected_kib = sizes.unprotected_kib.min(limit_kib - sizes.protected_kib);
    }
    result
}

/// Protected memory: the share's figures, where the GPU has as much.
pub(crate) unsafe fn protected(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, *mut Memory) -> c_int,
    device: usize,
    memory: *mut Memory,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(device, memory) };
    // SAFETY: null, or NVML has written there.
    if let (NVML_SUCCESS, Some(gpu), Some(told)) = (result, gpu(ready, device), unsafe { memory.as_ref() }) {
        let (limit, charged) = figures(gpu);
        let total = told.total.min(limit);
        let used = charged.min(total);
        let free = total - used;
        // SAFETY: as above.
        unsafe { put(memory, Memory { total, free, used }) };
    }
    result
}

/// Returns NVML's PID of process `pid` of this PID namespace. None: it is not a process of the share, or its PID is
/// unknown.
///
/// NVML may count in another namespace, where the same number is somebody else's process. That is known once
/// this process has a context, for then its own number there is.
fn of_nvml(ready: &'static Ready, device: usize, pid: c_uint) -> Option<c_uint> {
    let own = running(ready, device)?;
    own.iter().find(|(known, _)| *known == pid)?;
    let this = std::process::id();
    match ready.nvml_pid.load(Ordering::Relaxed) {
        0 => None,
        number if pid == this => Some(number),
        number => (number == this).then_some(pid),
    }
}

pub(crate) unsafe fn accounting(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, c_uint, *mut c_void) -> c_int,
    device: usize,
    pid: c_uint,
    stats: *mut c_void,
) -> c_int {
    match of_nvml(ready, device, pid) {
        // SAFETY: passed on.
        Some(pid) => unsafe { real(device, pid, stats) },
        None => NVML_NOT_FOUND,
    }
}

/// The same; the structure begins with the process's number.
pub(crate) unsafe fn accounting_v2(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, *mut c_uint) -> c_int,
    device: usize,
    stats: *mut c_uint,
) -> c_int {
    // SAFETY: null, or the caller's.
    let Some(pid) = (unsafe { stats.as_ref() }).copied() else {
        // SAFETY: passed on: NVML says what is wrong.
        return unsafe { real(device, stats) };
    };
    let Some(number) = of_nvml(ready, device, pid) else {
        return NVML_NOT_FOUND;
    };
    // SAFETY: not null, the caller's to be read and written; passed on.
    unsafe {
        put(stats, number);
        let result = real(device, stats);
        put(stats, pid);
        result
    }
}

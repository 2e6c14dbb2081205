//! NVML functions that report on a whole GPU, or on any process by its PID: their results are limited to the share.

use crate::codes::{NVML_NOT_FOUND, NVML_SUCCESS};
use crate::hooks::nvml::info::{Memory, figures, gpu, running};
use crate::out::put;
use crate::process::Ready;
use core::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::atomic::Ordering;

/// nvmlConfComputeMemSizeInfo_t.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    protected_kib: c_ulonglong,
    unprotected_kib: c_ulonglong,
}

/// Writes protected and unprotected memory: together at most the share's limit.
pub(crate) unsafe fn sizes(
    ready: &'static Ready,
    device: usize,
    sizes: *mut Sizes,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let result = next();
    // SAFETY: null, or NVML has written there.
    if let (NVML_SUCCESS, Some(gpu), Some(sizes)) = (result, gpu(ready, device), unsafe { sizes.as_mut() }) {
        let limit_kib = gpu.account.limit() >> 10;
        sizes.protected_kib = sizes.protected_kib.min(limit_kib);
        sizes.unprotected_kib = sizes.unprotected_kib.min(limit_kib - sizes.protected_kib);
    }
    result
}

/// Writes protected memory: the share's figures, if the GPU has that much.
pub(crate) unsafe fn protected(
    ready: &'static Ready,
    device: usize,
    memory: *mut Memory,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let result = next();
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
/// NVML may use PIDs of another namespace, where the same number means another process. Whether it does is known once
/// this process has a context, because then NVML's PID of this process is known.
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

pub(crate) fn accounting(
    ready: &'static Ready,
    device: usize,
    pid: c_uint,
    next: impl FnOnce(c_uint) -> c_int,
) -> c_int {
    match of_nvml(ready, device, pid) {
        Some(pid) => next(pid),
        None => NVML_NOT_FOUND,
    }
}

/// The same as [`accounting`] for a structure that begins with the PID.
pub(crate) unsafe fn accounting_v2(
    ready: &'static Ready,
    device: usize,
    stats: *mut c_uint,
    next: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: null, or the caller's.
    let Some(pid) = (unsafe { stats.as_ref() }).copied() else {
        // NVML returns the right error.
        return next();
    };
    let Some(number) = of_nvml(ready, device, pid) else {
        return NVML_NOT_FOUND;
    };
    // SAFETY: not null, the caller's to be read and written.
    unsafe {
        put(stats, number);
        let result = next();
        put(stats, pid);
        result
    }
}

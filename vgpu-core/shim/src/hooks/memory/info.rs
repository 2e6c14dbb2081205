//! The memory that programs see: that of the share, never more than the GPU has. If the share may use host memory,
//! total and free include it.
//!
//! An integrated GPU has the system's memory, and its driver's figure of what is free lacks what the system's page cache
//! would give back. It may be small on an idle machine, so it does not bound what programs see there.

use crate::codes::{INVALID_DEVICE, SUCCESS};
use crate::driver::{Gpu, Real};
use crate::out::put;
use crate::process::Ready;
use crate::real::real;
use core::ffi::{c_int, c_uint};
use vgpu_core::memory::deferred_free;
use vgpu_core::memory::room;

/// CU_DEVICE_ATTRIBUTE_INTEGRATED.
const INTEGRATED: c_int = 18;

/// Returns true if the memory of the current context's GPU is the system's.
#[cold]
fn is_integrated() -> bool {
    let device = Real.current_device();
    device.and_then(|device| Real.device_attribute(INTEGRATED, device)) == Ok(1)
}

/// Returns free and total bytes of a GPU's shares; `physical`: the free bytes of the GPU itself.
fn share(ready: &Ready, gpu: &Gpu, physical: u64) -> (u64, u64) {
    gpu.account.reap();
    gpu.exported.collect();
    room::refresh(gpu);
    if gpu.account.has_host() {
        deferred_free::collect(&ready.gpus, &ready.tables.live, gpu);
    }
    let free = gpu.account.free(physical);
    let unbounded = gpu.account.free(u64::MAX);
    let free = match free < unbounded && is_integrated() {
        true => unbounded,
        false => free,
    };
    (free, gpu.account.limit())
}

/// cuMemGetInfo of either width. Always asks the driver with the wide version, because the numbers of a share may fit
/// in 32 bits where those of the GPU do not.
pub(crate) unsafe fn memory<T: Number>(
    ready: &'static Ready,
    free: *mut T,
    total: *mut T,
    _next: impl FnOnce() -> c_int,
) -> c_int {
    let (mut real_free, mut real_total) = (0, 0);
    // SAFETY: both are to be written.
    let result = unsafe { real!(cuMemGetInfo_v2)(&mut real_free, &mut real_total) };
    if result != SUCCESS {
        return result;
    }
    let gpu = ready.current().and_then(|gpu| ready.gpus.get(gpu));
    let (shown_free, shown_total) = match gpu {
        Some(gpu) => share(ready, gpu, real_free as u64),
        None => (real_free as u64, real_total as u64),
    };
    // SAFETY: null (which a driver tolerates), or the caller's to be written.
    unsafe {
        put(free, T::of(shown_free));
        put(total, T::of(shown_total));
    }
    SUCCESS
}

/// cuDeviceTotalMem of either width.
pub(crate) unsafe fn total<T: Number>(
    ready: &'static Ready,
    bytes: *mut T,
    device: c_int,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let Some(devices) = ready.devices().filter(|_| !bytes.is_null()) else {
        // The driver returns the right error.
        return next();
    };
    let (Some(gpu), Some(device)) = (devices.gpu(device), devices.real(device)) else {
        return INVALID_DEVICE;
    };
    let mut real_total = 0;
    // SAFETY: to be written.
    let result = unsafe { real!(cuDeviceTotalMem_v2)(&mut real_total, device) };
    if result == SUCCESS {
        let limit = ready.gpus.get(gpu).map(|gpu| gpu.account.limit());
        // SAFETY: not null, the caller's to be written.
        unsafe { put(bytes, T::of(limit.unwrap_or(real_total as u64))) };
    }
    result
}

/// A size. Versions of a function differ only in its width.
pub(crate) trait Number {
    /// Returns `bytes`, or the largest number if it does not fit.
    fn of(bytes: u64) -> Self;
}

impl Number for usize {
    fn of(bytes: u64) -> Self {
        bytes as usize
    }
}

impl Number for c_uint {
    fn of(bytes: u64) -> Self {
        c_uint::try_from(bytes).unwrap_or(c_uint::MAX)
    }
}

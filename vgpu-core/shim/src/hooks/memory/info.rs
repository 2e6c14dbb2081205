//! The memory that programs are shown: that of the share, never more than the GPU has. If the share may use host memory
//! as well, total and free contain both.

use crate::codes::{INVALID_DEVICE, SUCCESS};
use crate::driver::Gpu;
use crate::out::put;
use crate::process::Ready;
use core::ffi::{c_int, c_uint};
use vgpu_core::memory::deferred_free;
use vgpu_core::memory::room;

type GetInfo<T> = unsafe extern "C" fn(*mut T, *mut T) -> c_int;
type GetTotal<T> = unsafe extern "C" fn(*mut T, c_int) -> c_int;

/// Free and total bytes of a GPU's shares; `physical`: what the GPU itself has free.
fn share(ready: &Ready, gpu: &Gpu, physical: u64) -> (u64, u64) {
    gpu.account.reap();
    gpu.exported.collect();
    room::refresh(gpu);
    if gpu.account.has_host() {
        deferred_free::collect(&ready.gpus, &ready.tables.live, gpu);
    }
    (gpu.account.free(physical), gpu.account.limit())
}

pub(crate) unsafe fn memory(ready: &'static Ready, real: GetInfo<usize>, free: *mut usize, total: *mut usize) -> c_int {
    let (mut real_free, mut real_total) = (0, 0);
    // SAFETY: both are to be written.
    let result = unsafe { real(&mut real_free, &mut real_total) };
    if result != SUCCESS {
        return result;
    }
    if let Some(gpu) = ready.current().and_then(|gpu| ready.gpus.get(gpu)) {
        let (share_free, limit) = share(ready, gpu, real_free as u64);
        (real_free, real_total) = (share_free as usize, limit as usize);
    }
    // SAFETY: null (which a driver tolerates), or the caller's to be written.
    unsafe {
        put(free, real_free);
        put(total, real_total);
    }
    SUCCESS
}

pub(crate) unsafe fn memory_v1(
    ready: &'static Ready,
    _real: GetInfo<c_uint>,
    free: *mut c_uint,
    total: *mut c_uint,
) -> c_int {
    let (mut wide_free, mut wide_total) = (0, 0);
    // SAFETY: both are to be written.
    let result = unsafe {
        memory(
            ready,
            crate::real::real!(cuMemGetInfo_v2(*mut usize, *mut usize)),
            &mut wide_free,
            &mut wide_total,
        )
    };
    if result == SUCCESS {
        // SAFETY: null, or the caller's to be written.
        unsafe {
            put(free, narrow(wide_free));
            put(total, narrow(wide_total));
        }
    }
    result
}

pub(crate) unsafe fn total(ready: &'static Ready, real: GetTotal<usize>, bytes: *mut usize, device: c_int) -> c_int {
    let Some(devices) = ready.devices() else {
        // SAFETY: passed on: the driver says that it is not initialised.
        return unsafe { real(bytes, device) };
    };
    let (Some(gpu), Some(device)) = (devices.gpu(device), devices.real(device)) else {
        return INVALID_DEVICE;
    };
    // SAFETY: passed on.
    let result = unsafe { real(bytes, device) };
    if let (SUCCESS, Some(gpu)) = (result, ready.gpus.get(gpu)) {
        // SAFETY: the driver has written there.
        unsafe { put(bytes, gpu.account.limit() as usize) };
    }
    result
}

pub(crate) unsafe fn total_v1(
    ready: &'static Ready,
    _real: GetTotal<c_uint>,
    bytes: *mut c_uint,
    device: c_int,
) -> c_int {
    let mut wide = 0;
    // SAFETY: `wide` is to be written.
    let result = unsafe {
        total(
            ready,
            crate::real::real!(cuDeviceTotalMem_v2(*mut usize, c_int)),
            &mut wide,
            device,
        )
    };
    if result == SUCCESS {
        // SAFETY: null, or the caller's to be written.
        unsafe { put(bytes, narrow(wide)) };
    }
    result
}

fn narrow(bytes: usize) -> c_uint {
    c_uint::try_from(bytes).unwrap_or(c_uint::MAX)
}

//! cuMemAlloc and its variants: the size is charged before the driver is called.

use crate::codes::{OUT_OF_MEMORY, SUCCESS};
use crate::hooks::contexts::measure::at_slow_moment;
use crate::hooks::host;
use crate::process::Ready;
use crate::real::real;
use core::ffi::c_int;
use std::sync::atomic::Ordering;
use vgpu_core::account::rounded;
use vgpu_core::memory::charge::charge;
use vgpu_core::memory::free::free_charged;
use vgpu_core::memory::granule::{GRANULE, PITCH, granules};
use vgpu_core::memory::live::Live;
use vgpu_core::memory::refusal;

/// How the driver treats an allocation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The allocation may share a granule with others.
    Packed,
    /// Managed memory: NVML does not attribute it to any process.
    Managed,
}

/// Charges `bytes`, calls the driver by `allocate`, and keeps the charge with the pointer that it returns.
#[inline(always)]
fn allocate_charged(
    ready: &'static Ready,
    gpu: usize,
    bytes: u64,
    kind: Kind,
    allocate: impl FnOnce() -> Result<u64, c_int>,
) -> Result<(), c_int> {
    at_slow_moment(ready);
    let owner = ready.gpus.get(gpu).ok_or(OUT_OF_MEMORY)?;
    let charge = charge(owner, bytes).ok_or(OUT_OF_MEMORY)?;
    match allocate() {
        Ok(pointer) => {
            let mut live = Live::new(gpu, charge);
            if kind == Kind::Managed {
                owner.surplus.fetch_add(live.bytes(), Ordering::Relaxed);
                live = live.unlisted();
            } else if bytes < GRANULE {
                return ready.tables.live.join(&ready.gpus, pointer, bytes, live);
            }
            ready.tables.live.keep(&ready.gpus, pointer, live);
            Ok(())
        }
        Err(error) => {
            if error == OUT_OF_MEMORY {
                refusal::by_driver(owner, bytes);
            }
            owner.account.release(charge);
            Err(error)
        }
    }
}

/// Returns the pointer that a successful call has written.
///
/// # Safety
/// If `result` is success, `pointer` was written.
#[inline(always)]
unsafe fn written<P: Copy + Into<u64>>(result: c_int, pointer: *const P) -> Result<u64, c_int> {
    match result {
        // SAFETY: as promised.
        SUCCESS => Ok(unsafe { *pointer }.into()),
        error => Err(error),
    }
}

/// cuMemAlloc and cuMemAllocManaged. An allocation that does not fit is made in host memory, if the share has some and
/// the caller's pointer is wide enough for the address.
#[inline(always)]
pub(crate) unsafe fn alloc<P: Copy + Into<u64>>(
    ready: &'static Ready,
    pointer: *mut P,
    bytes: usize,
    kind: Kind,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let gpu = match ready.current() {
        Some(gpu) if bytes > 0 && !pointer.is_null() => gpu,
        // The driver returns the right error.
        _ => return next(),
    };
    let result = allocate_charged(ready, gpu, bytes as u64, kind, || {
        // SAFETY: on success the driver has written the pointer.
        unsafe { written(next(), pointer) }
    });
    match result {
        Ok(()) => SUCCESS,
        Err(OUT_OF_MEMORY) if size_of::<P>() == size_of::<u64>() => {
            // SAFETY: the caller passes the pointer to be written.
            unsafe { host::managed::instead(ready, gpu, pointer.cast(), bytes as u64) }
        }
        Err(error) => error,
    }
}

/// Allocates `height` rows of `width` bytes. `allocate` returns what the driver has written: the pointer, and the bytes
/// from one row to the next.
fn pitched(
    ready: &'static Ready,
    gpu: usize,
    width: u64,
    height: u64,
    allocate: impl FnOnce() -> Result<(u64, u64), c_int>,
) -> c_int {
    let size = |row: u64| rounded(row, PITCH).and_then(|row| row.checked_mul(height));
    let Some(bytes) = size(width) else {
        return OUT_OF_MEMORY;
    };
    let (mut pointer, mut row) = (0, 0);
    let result = allocate_charged(ready, gpu, bytes, Kind::Packed, || {
        (pointer, row) = allocate()?;
        Ok(pointer)
    });
    if let Err(error) = result {
        return error;
    }
    if grow(ready, gpu, pointer, bytes, row.saturating_mul(height)) {
        return SUCCESS;
    }
    // The driver's rows are wider than expected, and the share has no room for the difference. `charge` has recorded
    // the refusal.
    // SAFETY: a pointer that the driver has just given.
    free_charged(&ready.gpus, &ready.tables.live, pointer, || unsafe {
        real!(cuMemFree_v2)(pointer)
    });
    OUT_OF_MEMORY
}

pub(crate) unsafe fn pitch<P: Copy + Into<u64>>(
    ready: &'static Ready,
    pointer: *mut P,
    pitch: *mut P,
    width: u64,
    height: u64,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let gpu = match ready.current() {
        Some(gpu) if !pointer.is_null() && !pitch.is_null() => gpu,
        _ => return next(),
    };
    let result = pitched(ready, gpu, width, height, || {
        // SAFETY: on success the driver has written both.
        unsafe { Ok((written(next(), pointer)?, (*pitch).into())) }
    });
    if result == OUT_OF_MEMORY && size_of::<P>() == size_of::<u64>() {
        // SAFETY: the caller passes the pointer to be written.
        return unsafe { host::managed::instead_of_rows(ready, gpu, pointer.cast(), pitch.cast(), width, height) };
    }
    result
}

/// Charges the bytes that an allocation took beyond `expected`. Returns false if they do not fit.
fn grow(ready: &Ready, gpu: usize, handle: u64, expected: u64, taken: u64) -> bool {
    let (Some(expected), Some(taken)) = (granules(expected), granules(taken)) else {
        return false;
    };
    if taken <= expected {
        return true;
    }
    let Some(more) = ready.gpus.get(gpu).and_then(|gpu| charge(gpu, taken - expected)) else {
        return false;
    };
    ready.tables.live.with(handle, |live| live.join_charge(more)).is_some()
}

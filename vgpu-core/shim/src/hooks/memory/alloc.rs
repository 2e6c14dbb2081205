//! cuMemAlloc and its variants: the size is charged before the driver is called.

use crate::codes::{OUT_OF_MEMORY, SUCCESS};
use crate::hooks::contexts::measure::at_slow_moment;
use crate::hooks::host;
use crate::process::Ready;
use crate::real::real;
use core::ffi::{c_int, c_uint};
use std::sync::atomic::Ordering;
use vgpu_core::account::rounded;
use vgpu_core::memory::charge::charge;
use vgpu_core::memory::free::free_charged;
use vgpu_core::memory::granule::{GRANULE, PITCH, granules};
use vgpu_core::memory::live::Live;

/// What the driver makes of an allocation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It may put it into a granule with others.
    Packed,
    /// Managed memory: NVML lists it in no process's figure.
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

type Alloc<P, B> = unsafe extern "C" fn(*mut P, B) -> c_int;

/// # Safety
/// As for the driver's function; so for all below.
#[inline(always)]
pub(crate) unsafe fn alloc(ready: &'static Ready, real: Alloc<u64, usize>, pointer: *mut u64, bytes: usize) -> c_int {
    let gpu = match ready.current() {
        Some(gpu) if bytes > 0 && !pointer.is_null() => gpu,
        // SAFETY: passed on: the driver says what is wrong.
        _ => return unsafe { real(pointer, bytes) },
    };
    let result = allocate_charged(ready, gpu, bytes as u64, Kind::Packed, || {
        // SAFETY: passed on; on success the driver has written the pointer.
        unsafe { written(real(pointer, bytes), pointer) }
    });
    match result {
        Ok(()) => SUCCESS,
        // SAFETY: the caller's, to be written.
        Err(OUT_OF_MEMORY) => unsafe { host::managed::instead(ready, gpu, pointer, bytes as u64) },
        Err(error) => error,
    }
}

pub(crate) unsafe fn alloc_v1(
    ready: &'static Ready,
    real: Alloc<c_uint, c_uint>,
    pointer: *mut c_uint,
    bytes: c_uint,
) -> c_int {
    let gpu = match ready.current() {
        Some(gpu) if bytes > 0 && !pointer.is_null() => gpu,
        // SAFETY: passed on.
        _ => return unsafe { real(pointer, bytes) },
    };
    let result = allocate_charged(ready, gpu, u64::from(bytes), Kind::Packed, || {
        // SAFETY: passed on; on success the driver has written the pointer.
        unsafe { written(real(pointer, bytes), pointer) }
    });
    result.err().unwrap_or(SUCCESS)
}

pub(crate) unsafe fn managed(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut u64, usize, c_uint) -> c_int,
    pointer: *mut u64,
    bytes: usize,
    flags: c_uint,
) -> c_int {
    let gpu = match ready.current() {
        Some(gpu) if bytes > 0 && !pointer.is_null() => gpu,
        // SAFETY: passed on.
        _ => return unsafe { real(pointer, bytes, flags) },
    };
    let result = allocate_charged(ready, gpu, bytes as u64, Kind::Managed, || {
        // SAFETY: passed on; on success the driver has written the pointer.
        unsafe { written(real(pointer, bytes, flags), pointer) }
    });
    match result {
        Ok(()) => SUCCESS,
        // SAFETY: the caller's, to be written.
        Err(OUT_OF_MEMORY) => unsafe { host::managed::instead(ready, gpu, pointer, bytes as u64) },
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
    // Rows are wider than any driver known makes them, and that much is not free.
    // SAFETY: a pointer that the driver has just given.
    free_charged(&ready.gpus, &ready.tables.live, pointer, || unsafe {
        real!(cuMemFree_v2(u64))(pointer)
    });
    OUT_OF_MEMORY
}

pub(crate) unsafe fn pitch(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut u64, *mut usize, usize, usize, c_uint) -> c_int,
    pointer: *mut u64,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> c_int {
    let gpu = match ready.current() {
        Some(gpu) if !pointer.is_null() && !pitch.is_null() => gpu,
        // SAFETY: passed on.
        _ => return unsafe { real(pointer, pitch, width, height, element) },
    };
    let result = pitched(ready, gpu, width as u64, height as u64, || {
        // SAFETY: passed on; on success the driver has written both.
        unsafe {
            let at = written(real(pointer, pitch, width, height, element), pointer)?;
            Ok((at, *pitch as u64))
        }
    });
    if result == OUT_OF_MEMORY {
        // SAFETY: the caller's, to be written.
        return unsafe { host::managed::instead_of_rows(ready, gpu, pointer, pitch, width as u64, height as u64) };
    }
    result
}

pub(crate) unsafe fn pitch_v1(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut c_uint, *mut c_uint, c_uint, c_uint, c_uint) -> c_int,
    pointer: *mut c_uint,
    pitch: *mut c_uint,
    width: c_uint,
    height: c_uint,
    element: c_uint,
) -> c_int {
    let gpu = match ready.current() {
        Some(gpu) if !pointer.is_null() && !pitch.is_null() => gpu,
        // SAFETY: passed on.
        _ => return unsafe { real(pointer, pitch, width, height, element) },
    };
    pitched(ready, gpu, u64::from(width), u64::from(height), || {
        // SAFETY: passed on; on success the driver has written both.
        unsafe {
            let at = written(real(pointer, pitch, width, height, element), pointer)?;
            Ok((at, u64::from(*pitch)))
        }
    })
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

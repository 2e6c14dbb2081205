//! Arrays: charged by their elements, rounded up like all memory. A height or depth of 0 means 1.
//!
//! A driver need not know a handle that it did not give, so what is left after a context's end cannot
//! be asked, as it is for pointers: each array is kept with the context in which it was made.

use crate::detour::{OUT_OF_MEMORY, SUCCESS};
use crate::hooks::memory::{charge, forget};
use crate::real::real;
use crate::state::{Live, Ready};
use core::ffi::{c_int, c_uint};

/// An array, and the handle of the context with which it goes.
#[derive(Debug)]
pub(crate) struct Array {
    context: usize,
    live: Live,
}

/// CUDA_ARRAY_DESCRIPTOR.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Flat {
    width: usize,
    height: usize,
    format: c_uint,
    channels: c_uint,
}

/// CUDA_ARRAY3D_DESCRIPTOR.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Solid {
    width: usize,
    height: usize,
    depth: usize,
    format: c_uint,
    channels: c_uint,
    flags: c_uint,
}
const _: () = assert!(size_of::<Flat>() == 24 && size_of::<Solid>() == 40);

/// Bytes of one channel. Formats that we do not know are taken for the widest.
fn channel(format: c_uint) -> u64 {
    match format {
        0x01 | 0x08 | 0xb0 | 0xc0 | 0xc1 | 0xc2 | 0xc3 | 0xc4 | 0xc5 => 1,
        0x02 | 0x09 | 0x10 | 0xc6 | 0xc7 | 0xc8 | 0xc9 | 0xca | 0xcb => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => 8,
    }
}

impl Solid {
    fn bytes(&self, levels: c_uint) -> Option<u64> {
        let element = channel(self.format).checked_mul(u64::from(self.channels.max(1)))?;
        let mut sum = 0_u64;
        let mut side = [self.width, self.height, self.depth].map(|side| side.max(1) as u64);
        for _ in 0..levels.clamp(1, 32) {
            let level = side
                .iter()
                .try_fold(element, |product, side| product.checked_mul(*side))?;
            sum = sum.checked_add(level)?;
            side = side.map(|side| (side / 2).max(1));
        }
        Some(sum)
    }
}

/// Charges what `shape` takes and keeps it with the handle.
///
/// # Safety
/// `array` is null or may be written.
unsafe fn make(
    ready: &'static Ready,
    array: *mut usize,
    shape: Option<Solid>,
    levels: c_uint,
    allocate: impl FnOnce() -> c_int,
) -> c_int {
    let (Some(shape), Some(gpu), false) = (shape, ready.current(), array.is_null()) else {
        return allocate();
    };
    let (Some(bytes), Some(owner)) = (shape.bytes(levels), ready.gpus.get(gpu)) else {
        return OUT_OF_MEMORY;
    };
    let Some(charge) = charge(owner, bytes) else {
        return OUT_OF_MEMORY;
    };
    let live = Live {
        gpu: gpu as u32,
        charge,
    };
    let result = allocate();
    if result == SUCCESS {
        let context = current();
        // SAFETY: the driver has written it.
        let stale = ready.arrays.insert(unsafe { *array } as u64, Array { context, live });
        // A driver gives a handle again only after it was destroyed: by a context's end that we missed.
        if let Some(stale) = stale {
            forget(ready, stale.live);
        }
    } else {
        forget(ready, live);
    }
    result
}

/// The calling thread's context; 0: none.
fn current() -> usize {
    let mut context = 0;
    // SAFETY: to be written.
    let result = unsafe { real!(cuCtxGetCurrent(*mut usize))(&mut context) };
    if result == SUCCESS { context } else { 0 }
}

/// Gives back the arrays that went with `context`.
pub(crate) fn sweep(ready: &Ready, context: usize) {
    let gone = ready.arrays.drain(|_, array| array.context == context);
    gone.into_iter().for_each(|array| forget(ready, array.live));
}

pub(crate) unsafe fn create(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, *const Flat) -> c_int,
    array: *mut usize,
    descriptor: *const Flat,
) -> c_int {
    // SAFETY: null, or the caller's.
    let shape = unsafe { descriptor.as_ref() }.map(|flat| Solid {
        width: flat.width,
        height: flat.height,
        depth: 0,
        format: flat.format,
        channels: flat.channels,
        flags: 0,
    });
    // SAFETY: passed on.
    unsafe { make(ready, array, shape, 1, || real(array, descriptor)) }
}

pub(crate) unsafe fn create_3d(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, *const Solid) -> c_int,
    array: *mut usize,
    descriptor: *const Solid,
) -> c_int {
    // SAFETY: null, or the caller's; passed on.
    unsafe {
        make(ready, array, descriptor.as_ref().copied(), 1, || {
            real(array, descriptor)
        })
    }
}

pub(crate) unsafe fn create_mipmapped(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, *const Solid, c_uint) -> c_int,
    array: *mut usize,
    descriptor: *const Solid,
    levels: c_uint,
) -> c_int {
    // SAFETY: null, or the caller's; passed on.
    unsafe {
        make(ready, array, descriptor.as_ref().copied(), levels, || {
            real(array, descriptor, levels)
        })
    }
}

pub(crate) unsafe fn destroy(ready: &'static Ready, real: unsafe extern "C" fn(usize) -> c_int, array: usize) -> c_int {
    // Out of the table first: once destroyed, the driver may give the handle to another thread.
    let known = ready.arrays.remove(array as u64);
    // SAFETY: passed on.
    let result = unsafe { real(array) };
    match known {
        Some(known) if result == SUCCESS => forget(ready, known.live),
        Some(known) => {
            ready.arrays.insert(array as u64, known);
        }
        None => {}
    }
    result
}

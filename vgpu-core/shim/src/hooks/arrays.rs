//! Arrays: charged by their elements, rounded up like all memory. A height or depth of 0 means 1.

use crate::detour::{OUT_OF_MEMORY, SUCCESS};
use crate::hooks::memory::{charged, released};
use crate::state::Ready;
use core::ffi::{c_int, c_uint};

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
    let Some(bytes) = shape.bytes(levels) else {
        return OUT_OF_MEMORY;
    };
    charged(ready, gpu, bytes, || match allocate() {
        // SAFETY: the driver has written it.
        SUCCESS => Ok(unsafe { *array } as u64),
        error => Err(error),
    })
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
    // SAFETY: passed on.
    released(ready, array as u64, || unsafe { real(array) })
}

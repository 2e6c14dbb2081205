//! Hooks for arrays: charged by their elements, each array in granules of its own. A height or depth of 0 means 1.
//!
//! Each array is recorded with the context in which it was created. When the context is destroyed, the driver cannot be
//! asked which arrays still exist, as it can for pointers: it need not recognise a handle that is no longer valid.
//!
//! Arrays whose memory comes later (sparse, or of deferred mapping) are not charged: the memory that is mapped into
//! them is physical memory, which they keep and [`vmm`](super::super::physical::vmm) charges.

use crate::codes::{OUT_OF_MEMORY, SUCCESS};
use crate::driver::Real;
use crate::hooks::memory::shapes::Solid;
use crate::process::Ready;
use core::ffi::{c_int, c_uint};
use vgpu_core::memory::charge::charge;
use vgpu_core::memory::driver::Streams;

/// Charges the bytes of `shape` and stores the charge with the handle.
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
    let charge = if bytes > 0 {
        let Some(charge) = charge(owner, bytes) else {
            return OUT_OF_MEMORY;
        };
        Some(charge)
    } else {
        None
    };
    let result = allocate();
    if result == SUCCESS {
        // SAFETY: the driver has written it.
        ready.tables.arrays.keep(
            &ready.gpus,
            unsafe { *array },
            Real.current_context().unwrap_or(0),
            gpu,
            charge,
        );
    } else if let Some(charge) = charge {
        owner.account.release(charge);
    }
    result
}

type Create<D> = unsafe extern "C" fn(*mut usize, *const D) -> c_int;

/// cuArrayCreate and cuArray3DCreate, of either width.
pub(crate) unsafe fn create<D: Copy + Into<Solid>>(
    ready: &'static Ready,
    real: Create<D>,
    array: *mut usize,
    descriptor: *const D,
) -> c_int {
    // SAFETY: null, or the caller's.
    let shape = unsafe { descriptor.as_ref() }.map(|shape| (*shape).into());
    // SAFETY: passed on.
    unsafe { make(ready, array, shape, 1, || real(array, descriptor)) }
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
    ready
        .tables
        .arrays
        .destroy(&ready.gpus, array, || unsafe { real(array) })
}

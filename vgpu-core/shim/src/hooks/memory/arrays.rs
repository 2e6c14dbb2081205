//! Hooks for arrays: charged by their elements, each array in granules of its own. A height or depth of 0 means 1.
//!
//! Each array is recorded with the context in which it was created. When the context is destroyed, the driver cannot be
//! asked which arrays still exist, as it can for pointers: it need not recognise a handle that is no longer valid.
//!
//! Arrays whose memory comes later (sparse arrays, or arrays with deferred mapping) are not charged. Physical memory is
//! mapped into them: the arrays keep it allocated, and [`vmm`](super::super::physical::vmm) charges it.

use crate::codes::{OUT_OF_MEMORY, SUCCESS};
use crate::driver::Real;
use crate::hooks::memory::shapes::Solid;
use crate::process::Ready;
use core::ffi::{c_int, c_uint};
use vgpu_core::memory::charge::charge;
use vgpu_core::memory::driver::Streams;
use vgpu_core::memory::refusal;

/// cuArrayCreate, cuArray3DCreate and cuMipmappedArrayCreate, of either width.
pub(crate) unsafe fn create<D: Copy + Into<Solid>>(
    ready: &'static Ready,
    array: *mut usize,
    descriptor: *const D,
    levels: c_uint,
    next: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: null, or the caller's.
    let shape: Option<Solid> = unsafe { descriptor.as_ref() }.map(|shape| (*shape).into());
    let (Some(shape), Some(gpu), false) = (shape, ready.current(), array.is_null()) else {
        return next();
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
    let result = next();
    if result == SUCCESS {
        // SAFETY: the driver has written it.
        let array = unsafe { *array };
        let context = Real.current_context().unwrap_or(0);
        ready.tables.arrays.keep(&ready.gpus, array, context, gpu, charge);
    } else if let Some(charge) = charge {
        if result == OUT_OF_MEMORY {
            refusal::by_driver(owner, bytes);
        }
        owner.account.release(charge);
    }
    result
}

pub(crate) fn destroy(ready: &'static Ready, array: usize, next: impl FnOnce() -> c_int) -> c_int {
    ready.tables.arrays.destroy(&ready.gpus, array, next)
}

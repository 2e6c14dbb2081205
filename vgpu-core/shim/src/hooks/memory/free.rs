//! cuMemFree: the charge is released after the driver has freed the memory.

use crate::hooks::sharing;
use crate::process::Ready;
use core::ffi::{c_int, c_uint};
use vgpu_core::memory::free::free_charged;
use vgpu_core::memory::room;

#[inline(always)]
pub(crate) fn free(ready: &'static Ready, pointer: u64, next: impl Fn() -> c_int + Copy) -> c_int {
    let result = if sharing::externals::used() {
        // Passes a pointer to a copy, so that `next` itself stays in registers.
        free_any(ready, pointer, &{ next })
    } else {
        free_charged(&ready.gpus, &ready.tables.live, pointer, next)
    };
    room::after_free(&ready.gpus);
    result
}

/// cuMemFree of 32-bit programs.
pub(crate) fn free_v1(ready: &'static Ready, pointer: c_uint, next: impl Fn() -> c_int) -> c_int {
    free_any(ready, pointer.into(), &next)
}

/// Frees the memory that begins at `pointer`, perhaps an imported buffer. A separate function: the more copies of
/// [`free_charged`] there are, the less of it is inlined in cuMemFree_v2.
#[inline(never)]
fn free_any(ready: &'static Ready, pointer: u64, next: &dyn Fn() -> c_int) -> c_int {
    let free = || free_charged(&ready.gpus, &ready.tables.live, pointer, next);
    sharing::externals::freed(ready, pointer, free)
}

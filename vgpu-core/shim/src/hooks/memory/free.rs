//! cuMemFree: the charge is released after the driver has freed the memory.

use crate::hooks::sharing;
use crate::process::Ready;
use core::ffi::{c_int, c_uint};
use vgpu_core::memory::free::free_charged;
use vgpu_core::memory::room;

#[inline(always)]
pub(crate) unsafe fn free(ready: &'static Ready, real: unsafe extern "C" fn(u64) -> c_int, pointer: u64) -> c_int {
    // SAFETY: passed on.
    let pass = || unsafe { real(pointer) };
    let result = if sharing::externals::used() {
        sharing::externals::freed(ready, pointer, || {
            free_charged(&ready.gpus, &ready.tables.live, pointer, pass)
        })
    } else {
        free_charged(&ready.gpus, &ready.tables.live, pointer, pass)
    };
    room::after_free(&ready.gpus);
    result
}

pub(crate) unsafe fn free_v1(
    ready: &'static Ready,
    real: unsafe extern "C" fn(c_uint) -> c_int,
    pointer: c_uint,
) -> c_int {
    // SAFETY: passed on.
    free_charged(&ready.gpus, &ready.tables.live, u64::from(pointer), || unsafe {
        real(pointer)
    })
}

//! cuMemFree: the charge goes after the memory.

use crate::hooks::sharing;
use crate::process::Ready;
use core::ffi::{c_int, c_uint};
use vgpu_core::memory::free::released;
use vgpu_core::memory::room;

#[inline(always)]
pub(crate) unsafe fn free(ready: &'static Ready, real: unsafe extern "C" fn(u64) -> c_int, pointer: u64) -> c_int {
    // SAFETY: passed on.
    let pass = || unsafe { real(pointer) };
    let result = if sharing::externals::used() {
        sharing::externals::freed(ready, pointer, || {
            released(&ready.gpus, &ready.tables.live, pointer, pass)
        })
    } else {
        released(&ready.gpus, &ready.tables.live, pointer, pass)
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
    released(&ready.gpus, &ready.tables.live, u64::from(pointer), || unsafe {
        real(pointer)
    })
}

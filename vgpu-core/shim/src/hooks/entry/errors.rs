//! Error texts: returned even if the process is refused.

use crate::codes::{INVALID_VALUE, SUCCESS};
use crate::detour;
use crate::{real, start};
use core::ffi::{c_char, c_int};

/// The driver's own text, else ours for the refusal.
pub(crate) unsafe fn describe(error: c_int, text: *mut *const c_char, slot: usize) -> c_int {
    let ready = detour::guarded(start::ready).flatten();
    if ready.is_some() && real::has(slot) {
        // SAFETY: the real function of this slot has this signature; the caller's pointer is passed on.
        return unsafe {
            core::mem::transmute::<*const (), unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int>(real::address(
                slot,
            ))(error, text)
        };
    }
    // SAFETY: null, or the caller's to be written.
    let Some(text) = (unsafe { text.as_mut() }) else {
        return INVALID_VALUE;
    };
    *text = c"CUDA_ERROR_NOT_PERMITTED: see the line of vgpu on stderr".as_ptr();
    SUCCESS
}

//! Error texts: returned even if the process is refused.

use crate::codes::{INVALID_VALUE, SUCCESS};
use crate::detour;
use crate::{real, start};
use core::ffi::{c_char, c_int};

/// Writes the driver's own text, or ours for a refusal.
pub(crate) unsafe fn describe(error: c_int, text: *mut *const c_char, slot: usize) -> c_int {
    let ready = detour::guarded(start::ready).flatten();
    if ready.is_some() && real::has(slot) {
        let describe: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int = real::function(slot);
        // SAFETY: both functions have this signature; the caller's pointer is passed on.
        return unsafe { describe(error, text) };
    }
    // SAFETY: null, or the caller's to be written.
    let Some(text) = (unsafe { text.as_mut() }) else {
        return INVALID_VALUE;
    };
    *text = c"CUDA_ERROR_NOT_PERMITTED: see the line of vgpu on stderr".as_ptr();
    SUCCESS
}

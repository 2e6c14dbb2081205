//! cuGetProcAddress: calls the real one, so that versions and stream flags are honoured. If its result is the real
//! function of a hooked name, our hook of exactly this variant is returned instead.

use crate::codes::SUCCESS;
use crate::names::{CUDA, hooked, name as name_of};
use crate::out::put;
use crate::process::Ready;
use crate::real;
use crate::table::compute;
use core::ffi::{CStr, c_char, c_int, c_void};

pub(crate) unsafe fn look_up(
    ready: &'static Ready,
    symbol: *const c_char,
    function: *mut *mut c_void,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let result = next();
    if result == SUCCESS && !symbol.is_null() && !function.is_null() {
        // SAFETY: the caller's C string; the driver has written the function, null if there is none.
        let (name, address) = unsafe { (CStr::from_ptr(symbol), *function) };
        if let Some(ours) = hook_of(ready, name, address) {
            // SAFETY: not null, the caller's to be written.
            unsafe { put(function, ours.cast_mut().cast()) };
        }
    }
    result
}

/// Returns our hook of the real function at `address`. If two names share an address, the requested one is used.
fn hook_of(ready: &'static Ready, name: &CStr, address: *mut c_void) -> Option<*const ()> {
    if address.is_null() {
        return None;
    }
    let mut found = None;
    // Only names of the driver API: asking for NVML's would open NVML. Launches are the driver's own if time is not limited.
    let is_hooked = |slot: usize| slot < CUDA && (ready.hooks_launches() || compute::bound(slot).is_none());
    for (slot, ours) in hooked().filter(|(slot, _)| is_hooked(*slot)) {
        if real::has(slot) && real::address(slot) == address.cast_const().cast() {
            if name_of(slot).to_bytes().starts_with(name.to_bytes()) {
                return Some(ours);
            }
            found.get_or_insert(ours);
        }
    }
    found
}

//! cuGetProcAddress: calls the real one, so that versions and stream flags are honoured. If its result is the real
//! function of a hooked name, our hook of exactly this variant is returned instead.

use crate::codes::SUCCESS;
use crate::names::{CUDA, hooked, name as name_of};
use crate::out::put;
use crate::process::Ready;
use crate::real;
use crate::table::compute;
use core::ffi::{CStr, c_char, c_int, c_ulonglong, c_void};

pub(crate) unsafe fn v1(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, c_ulonglong) -> c_int,
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
) -> c_int {
    // SAFETY: passed on.
    unsafe { answer(ready, symbol, function, || real(symbol, function, version, flags)) }
}

pub(crate) unsafe fn v2(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, c_ulonglong, *mut c_int) -> c_int,
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: c_ulonglong,
    status: *mut c_int,
) -> c_int {
    // SAFETY: passed on.
    unsafe {
        answer(ready, symbol, function, || {
            real(symbol, function, version, flags, status)
        })
    }
}

/// # Safety
/// Pointers are null or the caller's: the symbol to be read, the others to be written.
unsafe fn answer(
    ready: &'static Ready,
    symbol: *const c_char,
    function: *mut *mut c_void,
    ask: impl FnOnce() -> c_int,
) -> c_int {
    let result = ask();
    if result == SUCCESS && !symbol.is_null() && !function.is_null() {
        // SAFETY: as promised; the driver has written the function, null if there is none.
        let (name, address) = unsafe { (CStr::from_ptr(symbol), *function) };
        if let Some(ours) = hook_of(ready, name, address) {
            // SAFETY: as promised.
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
    // Of the driver API alone: to ask for NVML's would open it. Launches are the driver's own where time is not limited.
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

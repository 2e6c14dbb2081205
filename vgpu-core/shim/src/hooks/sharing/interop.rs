//! The CUDA devices on which OpenGL runs: only those of the share, by the program's numbers.

use crate::codes::{INVALID_VALUE, NO_DEVICE, SUCCESS};
use crate::out::put;
use crate::process::Ready;
use core::ffi::{c_int, c_uint};

/// More GPUs than any machine has.
const MOST: usize = 256;

pub(crate) unsafe fn gl_devices(
    ready: &'static Ready,
    count: *mut c_uint,
    list: *mut c_int,
    room: c_uint,
    next: impl FnOnce(*mut c_uint, *mut c_int, c_uint) -> c_int,
) -> c_int {
    let (mut found, mut devices) = (0, [0; MOST]);
    let result = next(&mut found, devices.as_mut_ptr(), MOST as c_uint);
    let (SUCCESS, Some(known)) = (result, ready.devices()) else {
        return result;
    };
    let told = devices.iter().take(found as usize);
    let own: Vec<c_int> = told.filter_map(|device| known.ordinal(*device)).collect();
    if own.is_empty() {
        return NO_DEVICE;
    }
    let room = own.len().min(room as usize);
    if count.is_null() || list.is_null() && room > 0 {
        return INVALID_VALUE;
    }
    // SAFETY: not null; the caller has that much room.
    unsafe {
        put(count, own.len() as c_uint);
        core::ptr::copy_nonoverlapping(own.as_ptr(), list, room);
    }
    SUCCESS
}

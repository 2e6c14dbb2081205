//! The devices of this process. The number that a program gets (its virtual ordinal) is a CUdevice, as in every driver.

use crate::codes::{INVALID_DEVICE, INVALID_VALUE, SUCCESS};
use crate::out::put;
use crate::process::Ready;
use core::ffi::{c_int, c_uint, c_void};

/// Replaces the program's device numbers in the arguments at the positions `places` by the driver's.
pub(crate) fn translate(
    ready: &'static Ready,
    mut registers: [usize; 6],
    places: &[usize],
    next: impl FnOnce(usize, usize, usize, usize, usize, usize) -> c_int,
) -> c_int {
    if let Some(devices) = ready.devices() {
        for place in places {
            let Some(register) = registers.get_mut(*place) else {
                return INVALID_VALUE;
            };
            // The lower half is the int; negative values mean the host.
            let device = *register as u32 as c_int;
            if device >= 0 {
                match devices.real(device) {
                    Some(real) => *register = real as usize,
                    None => return INVALID_DEVICE,
                }
            }
        }
    }
    let [a, b, c, d, e, f] = registers;
    next(a, b, c, d, e, f)
}

pub(crate) unsafe fn count(ready: &'static Ready, count: *mut c_int, next: impl FnOnce() -> c_int) -> c_int {
    let result = next();
    if let (SUCCESS, Some(devices)) = (result, ready.devices()) {
        // SAFETY: the driver has written there.
        unsafe { put(count, devices.list.len() as c_int) };
    }
    result
}

pub(crate) unsafe fn get(
    ready: &'static Ready,
    device: *mut c_int,
    ordinal: c_int,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let Some(devices) = ready.devices() else {
        // The driver says that it is not initialised.
        return next();
    };
    if device.is_null() {
        return INVALID_VALUE;
    }
    if devices.real(ordinal).is_none() {
        return INVALID_DEVICE;
    }
    // SAFETY: not null, the caller's to be written.
    unsafe { put(device, ordinal) };
    SUCCESS
}

/// Replaces the real device that a driver has written by its virtual ordinal.
///
/// # Safety
/// `device` is null or was written.
unsafe fn back(ready: &'static Ready, result: c_int, device: *mut c_int) -> c_int {
    // SAFETY: as promised.
    let written = unsafe { device.as_mut() };
    let (SUCCESS, Some(written), Some(devices)) = (result, written, ready.devices()) else {
        return result;
    };
    match devices.ordinal(*written) {
        Some(ordinal) => {
            *written = ordinal;
            SUCCESS
        }
        None => {
            *written = 0;
            INVALID_DEVICE
        }
    }
}

/// Handles a function that writes a device.
pub(crate) unsafe fn with_ordinal(ready: &'static Ready, device: *mut c_int, next: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: null, or the driver has written it.
    unsafe { back(ready, next(), device) }
}

/// CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL.
const DEVICE_ORDINAL: c_int = 9;

pub(crate) unsafe fn of_pointer(
    ready: &'static Ready,
    value: *mut c_void,
    attribute: c_int,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let result = next();
    if attribute == DEVICE_ORDINAL && result == SUCCESS {
        // SAFETY: for this attribute the driver has written an int. Host memory has no device.
        unsafe { back(ready, result, value.cast()) };
        return SUCCESS;
    }
    result
}

pub(crate) unsafe fn of_pointer_all(
    ready: &'static Ready,
    count: c_uint,
    attributes: *mut c_int,
    values: *mut *mut c_void,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let result = next();
    if result == SUCCESS {
        for at in 0..count as usize {
            // SAFETY: the driver has read `count` of both; for this attribute it has written an int, or
            // -2 where the pointer has none, which is no device.
            unsafe {
                if *attributes.add(at) == DEVICE_ORDINAL {
                    back(ready, result, (*values.add(at)).cast());
                }
            }
        }
    }
    result
}

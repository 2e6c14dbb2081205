//! The devices of this process. The number that a program gets (its virtual ordinal) is a CUdevice, as in every driver.

use crate::codes::{INVALID_DEVICE, INVALID_VALUE, SUCCESS};
use crate::out::put;
use crate::process::Ready;
use core::ffi::{c_char, c_int, c_uint, c_void};

type Out = unsafe extern "C" fn(*mut c_int) -> c_int;

/// Calls the function at `address` with real devices at `places`.
///
/// # Safety
/// The function takes at most six integers or pointers, devices at `places`.
pub(crate) unsafe fn translate(
    ready: &'static Ready,
    address: *const (),
    mut registers: [usize; 6],
    places: &[usize],
) -> c_int {
    if let Some(devices) = ready.devices() {
        for place in places {
            let Some(register) = registers.get_mut(*place) else {
                return INVALID_VALUE;
            };
            // The lower half is the int; negative ones stand for the host.
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
    // SAFETY: as promised: each argument takes one register.
    unsafe {
        core::mem::transmute::<*const (), unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> c_int>(
            address,
        )(a, b, c, d, e, f)
    }
}

pub(crate) unsafe fn count(ready: &'static Ready, real: Out, count: *mut c_int) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(count) };
    if let (SUCCESS, Some(devices)) = (result, ready.devices()) {
        // SAFETY: the driver has written there.
        unsafe { put(count, devices.list.len() as c_int) };
    }
    result
}

pub(crate) unsafe fn get(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut c_int, c_int) -> c_int,
    device: *mut c_int,
    ordinal: c_int,
) -> c_int {
    let Some(devices) = ready.devices() else {
        // SAFETY: passed on: the driver says that it is not initialised.
        return unsafe { real(device, ordinal) };
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

/// Puts the virtual ordinal in the place of the real device that a driver has written.
///
/// # Safety
/// `device` is null or was written.
pub(crate) unsafe fn back(ready: &'static Ready, result: c_int, device: *mut c_int) -> c_int {
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

pub(crate) unsafe fn by_pci(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut c_int, *const c_char) -> c_int,
    device: *mut c_int,
    address: *const c_char,
) -> c_int {
    // SAFETY: passed on.
    unsafe { back(ready, real(device, address), device) }
}

pub(crate) unsafe fn of_context(ready: &'static Ready, real: Out, device: *mut c_int) -> c_int {
    // SAFETY: passed on.
    unsafe { back(ready, real(device), device) }
}

pub(crate) unsafe fn of_that_context(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut c_int, usize) -> c_int,
    device: *mut c_int,
    context: usize,
) -> c_int {
    // SAFETY: passed on.
    unsafe { back(ready, real(device, context), device) }
}

pub(crate) unsafe fn of_stream(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, *mut c_int) -> c_int,
    stream: usize,
    device: *mut c_int,
) -> c_int {
    // SAFETY: passed on.
    unsafe { back(ready, real(stream, device), device) }
}

/// CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL.
const DEVICE_ORDINAL: c_int = 9;

pub(crate) unsafe fn of_pointer(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut c_void, c_int, u64) -> c_int,
    value: *mut c_void,
    attribute: c_int,
    pointer: u64,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(value, attribute, pointer) };
    if attribute == DEVICE_ORDINAL && result == SUCCESS {
        // SAFETY: for this attribute the driver has written an int. Host memory has no device.
        unsafe { back(ready, result, value.cast()) };
        return SUCCESS;
    }
    result
}

pub(crate) unsafe fn of_pointer_all(
    ready: &'static Ready,
    real: unsafe extern "C" fn(c_uint, *mut c_int, *mut *mut c_void, u64) -> c_int,
    count: c_uint,
    attributes: *mut c_int,
    values: *mut *mut c_void,
    pointer: u64,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(count, attributes, values, pointer) };
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

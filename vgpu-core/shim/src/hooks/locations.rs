//! The locations that calls about memory carry: the program's devices in, the driver's out.

use crate::codes::{INVALID_DEVICE, INVALID_VALUE};
use crate::process::{Devices, Ready};
use core::ffi::{c_int, c_uint, c_ulonglong};

const DEVICE: c_int = 1;
/// A part of a device: the low byte of its id is the device, the next the part.
const DEVICE_PART: c_int = 6;
/// Nowhere, the host in three forms, and devices that this process does not see.
const ELSEWHERE: [c_int; 5] = [0, 2, 3, 4, INVISIBLE];
const INVISIBLE: c_int = 5;
/// CU_DEVICE_INVALID.
pub(crate) const NO_DEVICE: c_int = -2;

/// CUmemLocation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    pub(crate) kind: c_int,
    pub(crate) id: c_int,
}

/// CUmemAccessDesc.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Access {
    location: Location,
    flags: c_int,
}
const _: () = assert!(size_of::<Access>() == 12);

impl Location {
    /// The device that it names.
    pub(crate) fn device(self) -> Option<c_int> {
        match self.kind {
            DEVICE => Some(self.id),
            DEVICE_PART => Some(self.id & 0xff),
            _ => None,
        }
    }

    /// The same location on another device; None: it has no room for that number.
    fn on(self, device: c_int) -> Option<Self> {
        let id = if self.kind == DEVICE_PART {
            self.id & !0xff | c_int::from(u8::try_from(device).ok()?)
        } else {
            device
        };
        Some(Self { id, ..self })
    }

    /// A device, by the program's number.
    pub(crate) fn of(device: c_int) -> Self {
        Self {
            kind: DEVICE,
            id: device,
        }
    }

    /// The GPU of a virtual location; None: host memory, or no such device.
    pub(crate) fn gpu(self, devices: &Devices) -> Option<usize> {
        devices.gpu(self.device()?)
    }

    /// The GPU of a real location.
    pub(crate) fn real_gpu(self, devices: &Devices) -> Option<usize> {
        let device = self.device()?;
        let known = devices.list.iter().find(|(real, _)| *real == device);
        known.map(|(_, gpu)| *gpu)
    }

    /// A real location as the program sees it: a device without a share is one that it does not see.
    pub(crate) fn virtual_of(self, devices: &Devices) -> Self {
        let Some(real) = self.device() else { return self };
        let ordinal = devices.ordinal(real).and_then(|ordinal| self.on(ordinal));
        ordinal.unwrap_or(Self {
            kind: INVISIBLE,
            id: NO_DEVICE,
        })
    }

    /// The real location. A kind that is not known here is refused: memory there could not be charged.
    ///
    /// # Errors
    /// What the call answers.
    pub(crate) fn real(self, devices: &Devices) -> Result<Self, c_int> {
        match self.device() {
            Some(device) => {
                let real = devices.real(device).and_then(|real| self.on(real));
                real.ok_or(INVALID_DEVICE)
            }
            None if ELSEWHERE.contains(&self.kind) => Ok(self),
            None => Err(INVALID_VALUE),
        }
    }
}

/// Calls `pass` with real devices in a copy of the caller's `count` descriptions.
///
/// # Safety
/// `access` is null or has `count` entries.
pub(crate) unsafe fn with_real(
    ready: &'static Ready,
    access: *const Access,
    count: usize,
    pass: impl FnOnce(*const Access) -> c_int,
) -> c_int {
    let (Some(devices), false) = (ready.devices(), access.is_null() || count == 0 || count > 1024) else {
        return pass(access);
    };
    // SAFETY: as promised, and not null.
    let given = unsafe { std::slice::from_raw_parts(access, count) };
    let translate = |one: &Access| one.location.real(devices).map(|location| Access { location, ..*one });
    match given.iter().map(translate).collect::<Result<Vec<_>, _>>() {
        Ok(own) => pass(own.as_ptr()),
        Err(error) => error,
    }
}

pub(crate) unsafe fn prefetch(
    ready: &'static Ready,
    real: unsafe extern "C" fn(u64, usize, Location, c_uint, usize) -> c_int,
    pointer: u64,
    bytes: usize,
    location: Location,
    flags: c_uint,
    stream: usize,
) -> c_int {
    match ready.devices().map_or(Ok(location), |devices| location.real(devices)) {
        // SAFETY: passed on, with the real device.
        Ok(own) => unsafe { real(pointer, bytes, own, flags, stream) },
        Err(error) => error,
    }
}

pub(crate) unsafe fn advise(
    ready: &'static Ready,
    real: unsafe extern "C" fn(u64, usize, c_int, Location) -> c_int,
    pointer: u64,
    bytes: usize,
    advice: c_int,
    location: Location,
) -> c_int {
    match ready.devices().map_or(Ok(location), |devices| location.real(devices)) {
        // SAFETY: passed on, with the real device.
        Ok(own) => unsafe { real(pointer, bytes, advice, own) },
        Err(error) => error,
    }
}

pub(crate) unsafe fn set_access(
    ready: &'static Ready,
    real: unsafe extern "C" fn(u64, usize, *const Access, usize) -> c_int,
    pointer: u64,
    bytes: usize,
    access: *const Access,
    count: usize,
) -> c_int {
    // SAFETY: passed on.
    unsafe { with_real(ready, access, count, |access| real(pointer, bytes, access, count)) }
}

pub(crate) unsafe fn set_pool_access(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, *const Access, usize) -> c_int,
    pool: usize,
    access: *const Access,
    count: usize,
) -> c_int {
    // SAFETY: passed on.
    unsafe { with_real(ready, access, count, |access| real(pool, access, count)) }
}

pub(crate) unsafe fn get_access(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut c_ulonglong, *const Location, u64) -> c_int,
    flags: *mut c_ulonglong,
    location: *const Location,
    pointer: u64,
) -> c_int {
    // SAFETY: null, or the caller's.
    match (unsafe { location.as_ref() }, ready.devices()) {
        (Some(given), Some(devices)) => match given.real(devices) {
            // SAFETY: passed on, with the real device in a copy.
            Ok(own) => unsafe { real(flags, &own, pointer) },
            Err(error) => error,
        },
        // SAFETY: passed on.
        _ => unsafe { real(flags, location, pointer) },
    }
}

pub(crate) unsafe fn get_pool_access(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut c_int, usize, *mut Location) -> c_int,
    flags: *mut c_int,
    pool: usize,
    location: *mut Location,
) -> c_int {
    // SAFETY: null, or the caller's.
    match (unsafe { location.as_ref() }, ready.devices()) {
        (Some(given), Some(devices)) => match given.real(devices) {
            // SAFETY: passed on, with the real device in a copy.
            Ok(mut own) => unsafe { real(flags, pool, &mut own) },
            Err(error) => error,
        },
        // SAFETY: passed on.
        _ => unsafe { real(flags, pool, location) },
    }
}

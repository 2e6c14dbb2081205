//! The locations that calls about memory carry: the program's devices in, the driver's out.

use crate::detour::INVALID_DEVICE;
use crate::state::{Devices, Ready};
use core::ffi::{c_int, c_uint, c_ulonglong};

const DEVICE: c_int = 1;

/// CUmemLocation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    kind: c_int,
    id: c_int,
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
    /// The GPU of a virtual location; None: host memory, or no such device.
    pub(crate) fn gpu(self, devices: &Devices) -> Option<usize> {
        (self.kind == DEVICE).then(|| devices.gpu(self.id)).flatten()
    }

    /// The GPU of a real location.
    pub(crate) fn real_gpu(self, devices: &Devices) -> Option<usize> {
        let known = devices.list.iter().find(|(real, _)| *real == self.id);
        known.filter(|_| self.kind == DEVICE).map(|(_, gpu)| *gpu)
    }

    /// The location as the program sees it.
    pub(crate) fn virtual_of(self, devices: &Devices) -> Self {
        let id = if self.kind == DEVICE {
            devices.ordinal(self.id)
        } else {
            None
        };
        Self {
            id: id.unwrap_or(self.id),
            ..self
        }
    }

    /// The real location; None: no such device.
    pub(crate) fn real(self, devices: &Devices) -> Option<Self> {
        let id = if self.kind == DEVICE {
            devices.real(self.id)?
        } else {
            self.id
        };
        Some(Self { id, ..self })
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
    match given.iter().map(translate).collect::<Option<Vec<_>>>() {
        Some(own) => pass(own.as_ptr()),
        None => INVALID_DEVICE,
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
    match ready.devices().map_or(Some(location), |devices| location.real(devices)) {
        // SAFETY: passed on, with the real device.
        Some(own) => unsafe { real(pointer, bytes, own, flags, stream) },
        None => INVALID_DEVICE,
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
    match ready.devices().map_or(Some(location), |devices| location.real(devices)) {
        // SAFETY: passed on, with the real device.
        Some(own) => unsafe { real(pointer, bytes, advice, own) },
        None => INVALID_DEVICE,
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
            Some(own) => unsafe { real(flags, &own, pointer) },
            None => INVALID_DEVICE,
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
            Some(mut own) => unsafe { real(flags, pool, &mut own) },
            None => INVALID_DEVICE,
        },
        // SAFETY: passed on.
        _ => unsafe { real(flags, pool, location) },
    }
}

//! Memory locations in arguments and results: translates between the program's device numbers and the driver's. None of
//! these calls allocates memory that is not charged elsewhere.
#![allow(clippy::too_many_arguments)] // They are NVIDIA's.

use crate::codes::{INVALID_DEVICE, INVALID_VALUE, SUCCESS};
use crate::process::{Devices, Ready};
use crate::real::real;
use core::ffi::{c_int, c_uint, c_ulonglong, c_void};

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

type Batch =
    unsafe extern "C" fn(*mut u64, *mut usize, usize, *mut Location, *mut usize, usize, c_ulonglong, usize) -> c_int;

/// Prefetches of many ranges to several locations.
pub(crate) unsafe fn prefetch_batch(
    ready: &'static Ready,
    real: Batch,
    pointers: *mut u64,
    sizes: *mut usize,
    count: usize,
    locations: *mut Location,
    starts: *mut usize,
    places: usize,
    flags: c_ulonglong,
    stream: usize,
) -> c_int {
    // SAFETY: passed on.
    let pass = |own| unsafe { real(pointers, sizes, count, own, starts, places, flags, stream) };
    // More locations than ranges are an error of the driver's to tell.
    let (Some(devices), false) = (ready.devices(), locations.is_null() || places > count) else {
        return pass(locations);
    };
    // SAFETY: the caller's list.
    let given = unsafe { core::slice::from_raw_parts(locations, places) };
    match given.iter().map(|one| one.real(devices)).collect::<Result<Vec<_>, _>>() {
        Ok(mut own) => pass(own.as_mut_ptr()),
        Err(error) => error,
    }
}

/// Calls `pass` with the real location in a copy, and answers the GPU too.
///
/// # Safety
/// `location` is null or the caller's.
unsafe fn at_real(
    ready: &Ready,
    location: *mut Location,
    pass: impl FnOnce(*mut Location) -> c_int,
) -> (c_int, Option<usize>) {
    // SAFETY: as promised.
    let (Some(given), Some(devices)) = (unsafe { location.as_ref() }, ready.devices()) else {
        return (pass(location), None);
    };
    match given.real(devices) {
        Ok(mut own) => (pass(&mut own), given.gpu(devices)),
        Err(error) => (error, None),
    }
}

/// The pool of a location, chosen or default.
pub(crate) unsafe fn pool_of(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, *mut Location, c_int) -> c_int,
    pool: *mut usize,
    location: *mut Location,
    kind: c_int,
) -> c_int {
    // SAFETY: passed on.
    let (result, gpu) = unsafe { at_real(ready, location, |own| real(pool, own, kind)) };
    // SAFETY: null, or the driver has written it.
    let told = unsafe { pool.as_ref() };
    if let (SUCCESS, Some(pool), Some(gpu)) = (result, told, gpu.and_then(|gpu| ready.gpus.get(gpu))) {
        // That of a part of a GPU, or of managed memory, is told nowhere else.
        gpu.pools.know(*pool, false);
    }
    result
}

pub(crate) unsafe fn set_pool(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut Location, c_int, usize) -> c_int,
    location: *mut Location,
    kind: c_int,
    pool: usize,
) -> c_int {
    // SAFETY: passed on.
    unsafe { at_real(ready, location, |own| real(own, kind, pool)).0 }
}

/// CU_MEMPOOL_ATTR_LOCATION_ID and CU_MEMPOOL_ATTR_LOCATION_TYPE.
const POOL_ID: c_int = 11;
const POOL_KIND: c_int = 12;

pub(crate) unsafe fn pool_attribute(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, c_int, *mut c_void) -> c_int,
    pool: usize,
    attribute: c_int,
    value: *mut c_void,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(pool, attribute, value) };
    if attribute != POOL_ID && attribute != POOL_KIND || result != SUCCESS {
        return result;
    }
    let mut lies = Location { kind: 0, id: 0 };
    let (kind, id): (*mut c_int, *mut c_int) = (&mut lies.kind, &mut lies.id);
    // SAFETY: both attributes are ints, to be written.
    let asked = unsafe { [real(pool, POOL_KIND, kind.cast()), real(pool, POOL_ID, id.cast())] };
    // SAFETY: null, or the driver has written an int.
    let told = unsafe { value.cast::<c_int>().as_mut() };
    if let ([SUCCESS, SUCCESS], Some(told), Some(devices)) = (asked, told, ready.devices()) {
        let seen = lies.virtual_of(devices);
        *told = if attribute == POOL_ID { seen.id } else { seen.kind };
    }
    result
}

/// CUmem_range_attribute. The number of an id attribute is that of its kind attribute plus one.
mod range {
    use core::ffi::c_int;
    pub(super) const PREFERRED: c_int = 2;
    pub(super) const ACCESSED_BY: c_int = 3;
    pub(super) const PREFETCHED: c_int = 4;
    pub(super) const PREFERRED_KIND: c_int = 5;
    pub(super) const PREFERRED_ID: c_int = 6;
    pub(super) const PREFETCHED_KIND: c_int = 7;
    pub(super) const PREFETCHED_ID: c_int = 8;
}

/// Translates a device to the share's number. Values below 0 are the host or no device.
fn seen(devices: &Devices, real: c_int) -> c_int {
    if real < 0 {
        return real;
    }
    devices.ordinal(real).unwrap_or(NO_DEVICE)
}

/// Puts the share's devices in place of the driver's in the answer to `attribute` of a range.
///
/// # Safety
/// `data` is null, or the driver has written `size` bytes there.
unsafe fn told(devices: &Devices, data: *mut c_void, size: usize, attribute: c_int, (start, bytes): (u64, usize)) {
    if data.is_null() || size < size_of::<c_int>() {
        return;
    }
    // SAFETY: as promised: ints, as all of these attributes are.
    let data = unsafe { core::slice::from_raw_parts_mut(data.cast::<c_int>(), size / size_of::<c_int>()) };
    match attribute {
        range::PREFERRED | range::PREFETCHED => data[0] = seen(devices, data[0]),
        range::ACCESSED_BY => {
            let mut own: Vec<c_int> = data.iter().map(|real| seen(devices, *real)).collect();
            own.retain(|device| *device != NO_DEVICE);
            own.resize(data.len(), NO_DEVICE);
            data.copy_from_slice(&own);
        }
        range::PREFERRED_KIND | range::PREFERRED_ID | range::PREFETCHED_KIND | range::PREFETCHED_ID => {
            let kind = if attribute < range::PREFETCHED_KIND {
                range::PREFERRED_KIND
            } else {
                range::PREFETCHED_KIND
            };
            let ask = real!(cuMemRangeGetAttribute(*mut c_void, usize, c_int, u64, usize));
            let mut lies = Location { kind: 0, id: 0 };
            let (at, id): (*mut c_int, *mut c_int) = (&mut lies.kind, &mut lies.id);
            // SAFETY: both attributes are ints, to be written.
            let asked = unsafe {
                [
                    ask(at.cast(), 4, kind, start, bytes),
                    ask(id.cast(), 4, kind + 1, start, bytes),
                ]
            };
            if asked == [SUCCESS; 2] {
                let seen = lies.virtual_of(devices);
                data[0] = if attribute == kind { seen.kind } else { seen.id };
            }
        }
        _ => {}
    }
}

pub(crate) unsafe fn range_attribute(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut c_void, usize, c_int, u64, usize) -> c_int,
    data: *mut c_void,
    size: usize,
    attribute: c_int,
    pointer: u64,
    bytes: usize,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(data, size, attribute, pointer, bytes) };
    if let (SUCCESS, Some(devices)) = (result, ready.devices()) {
        // SAFETY: the driver has written it.
        unsafe { told(devices, data, size, attribute, (pointer, bytes)) };
    }
    result
}

pub(crate) unsafe fn range_attributes(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut *mut c_void, *mut usize, *mut c_int, usize, u64, usize) -> c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    attributes: *mut c_int,
    count: usize,
    pointer: u64,
    bytes: usize,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(data, sizes, attributes, count, pointer, bytes) };
    if let (SUCCESS, Some(devices)) = (result, ready.devices()) {
        for at in 0..count {
            // SAFETY: the driver has read `count` of each, and written where they say.
            unsafe {
                told(
                    devices,
                    *data.add(at),
                    *sizes.add(at),
                    *attributes.add(at),
                    (pointer, bytes),
                )
            };
        }
    }
    result
}

/// Where the parts of a range lie, a location each.
pub(crate) unsafe fn location_info(
    ready: &'static Ready,
    real: unsafe extern "C" fn(u64, usize, usize, usize, *mut Location) -> c_int,
    pointer: u64,
    bytes: usize,
    part: usize,
    sample: usize,
    locations: *mut Location,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(pointer, bytes, part, sample, locations) };
    if let (SUCCESS, Some(devices), false) = (result, ready.devices(), locations.is_null() || part == 0) {
        // SAFETY: the driver has written one for each part.
        let told = unsafe { core::slice::from_raw_parts_mut(locations, bytes.div_ceil(part)) };
        told.iter_mut().for_each(|one| *one = one.virtual_of(devices));
    }
    result
}

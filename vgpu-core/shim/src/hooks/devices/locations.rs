//! Memory locations in arguments and results: translates between the program's device numbers and the driver's. None of
//! these calls allocates memory that is not charged elsewhere.
use crate::codes::{INVALID_DEVICE, INVALID_VALUE, SUCCESS};
use crate::driver::Gpu;
use crate::process::{Devices, Ready};
use crate::real::real;
use core::ffi::{c_int, c_void};

const DEVICE: c_int = 1;
/// A part of a device: the low byte of its id is the device, the next the part.
const DEVICE_PART: c_int = 6;
/// Kinds without a device of this process: none, three kinds of host memory, and devices that it does not see.
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
    /// Returns the device of this location.
    pub(crate) fn device(self) -> Option<c_int> {
        match self.kind {
            DEVICE => Some(self.id),
            DEVICE_PART => Some(self.id & 0xff),
            _ => None,
        }
    }

    /// Returns the same location on another device; None: the id has no room for this number.
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

    /// Returns the GPU of a real location.
    pub(crate) fn real_gpu(self, devices: &Devices) -> Option<usize> {
        let device = self.device()?;
        let known = devices.list.iter().find(|(real, _)| *real == device);
        known.map(|(_, gpu)| *gpu)
    }

    /// Returns a real location as the program sees it. A device without a share is invisible.
    pub(crate) fn virtual_of(self, devices: &Devices) -> Self {
        let Some(real) = self.device() else { return self };
        let ordinal = devices.ordinal(real).and_then(|ordinal| self.on(ordinal));
        ordinal.unwrap_or(Self {
            kind: INVISIBLE,
            id: NO_DEVICE,
        })
    }

    /// Returns the real location. An unknown kind is refused, because memory there could not be charged.
    ///
    /// # Errors
    /// The code that the call returns.
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

/// A structure of the driver's that names a location.
pub(crate) trait Located: Copy {
    fn location(&mut self) -> &mut Location;

    /// Returns a copy with the real location.
    ///
    /// # Errors
    /// The code that the call returns.
    fn with_real(mut self, devices: &Devices) -> Result<Self, c_int> {
        let location = self.location();
        *location = location.real(devices)?;
        Ok(self)
    }
}

impl Located for Location {
    fn location(&mut self) -> &mut Location {
        self
    }
}

impl Located for Access {
    fn location(&mut self) -> &mut Location {
        &mut self.location
    }
}

/// Calls `next` with the real location in a copy, and returns the GPU of the location too.
///
/// # Safety
/// `given` is null or the caller's.
pub(crate) unsafe fn on_gpu<T: Located>(
    ready: &'static Ready,
    given: *const T,
    next: impl FnOnce(*const T) -> c_int,
) -> (c_int, Option<&'static Gpu>) {
    // SAFETY: as promised.
    let (Some(mut asked), Some(devices)) = (unsafe { given.as_ref() }.copied(), ready.devices()) else {
        return (next(given), None);
    };
    match asked.with_real(devices) {
        Ok(own) => {
            let gpu = asked.location().gpu(devices);
            (next(&own), gpu.and_then(|gpu| ready.gpus.get(gpu)))
        }
        Err(error) => (error, None),
    }
}

pub(crate) unsafe fn with_real<T: Located>(
    ready: &'static Ready,
    given: *const T,
    next: impl FnOnce(*const T) -> c_int,
) -> c_int {
    // SAFETY: as promised.
    unsafe { on_gpu(ready, given, next) }.0
}

/// Calls `next` with the real locations in a copy of a list of `count`.
pub(crate) unsafe fn with_all_real<T: Located>(
    ready: &'static Ready,
    list: *const T,
    count: usize,
    next: impl FnOnce(*const T) -> c_int,
) -> c_int {
    /// A longer list must be a mistake of the program. The driver reports it.
    const MOST: usize = 1 << 16;
    let (Some(devices), false) = (ready.devices(), list.is_null() || count == 0 || count > MOST) else {
        return next(list);
    };
    // SAFETY: as promised, and not null.
    let given = unsafe { core::slice::from_raw_parts(list, count) };
    match given
        .iter()
        .map(|one| one.with_real(devices))
        .collect::<Result<Vec<_>, _>>()
    {
        Ok(own) => next(own.as_ptr()),
        Err(error) => error,
    }
}

/// Calls `next` with the real location, for a location that is passed by value.
pub(crate) fn at_real(ready: &'static Ready, location: Location, next: impl FnOnce(Location) -> c_int) -> c_int {
    match ready.devices().map_or(Ok(location), |devices| location.real(devices)) {
        Ok(own) => next(own),
        Err(error) => error,
    }
}

/// Calls `next`, which returns a chosen or default pool of a location, and records the pool.
pub(crate) unsafe fn pool_of(
    ready: &'static Ready,
    pool: *mut usize,
    location: *const Location,
    next: impl FnOnce(*const Location) -> c_int,
) -> c_int {
    // SAFETY: as promised.
    let (result, gpu) = unsafe { on_gpu(ready, location, next) };
    // SAFETY: null, or the driver has written it.
    if let (SUCCESS, Some(pool), Some(gpu)) = (result, unsafe { pool.as_ref() }, gpu) {
        // No other call shows us the pool of a part of a GPU, or that of managed memory.
        gpu.pools.know(*pool, false);
    }
    result
}

/// CU_MEMPOOL_ATTR_LOCATION_ID and CU_MEMPOOL_ATTR_LOCATION_TYPE.
const POOL_ID: c_int = 11;
const POOL_KIND: c_int = 12;

pub(crate) unsafe fn pool_attribute(
    ready: &'static Ready,
    attribute: c_int,
    value: *mut c_void,
    next: impl Fn(c_int, *mut c_void) -> c_int,
) -> c_int {
    let result = next(attribute, value);
    if attribute != POOL_ID && attribute != POOL_KIND || result != SUCCESS {
        return result;
    }
    let mut lies = Location { kind: 0, id: 0 };
    let (kind, id): (*mut c_int, *mut c_int) = (&mut lies.kind, &mut lies.id);
    let asked = [next(POOL_KIND, kind.cast()), next(POOL_ID, id.cast())];
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

/// Translates a device to the program's number. Values below 0 mean the host or no device.
fn seen(devices: &Devices, real: c_int) -> c_int {
    if real < 0 {
        return real;
    }
    devices.ordinal(real).unwrap_or(NO_DEVICE)
}

/// Replaces the driver's devices by the program's in the answer to `attribute` of a range.
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
            let ask = real!(cuMemRangeGetAttribute);
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
    data: *mut c_void,
    size: usize,
    attribute: c_int,
    range: (u64, usize),
    next: impl FnOnce() -> c_int,
) -> c_int {
    let result = next();
    if let (SUCCESS, Some(devices)) = (result, ready.devices()) {
        // SAFETY: the driver has written it.
        unsafe { told(devices, data, size, attribute, range) };
    }
    result
}

pub(crate) unsafe fn range_attributes(
    ready: &'static Ready,
    data: *mut *mut c_void,
    sizes: *mut usize,
    attributes: *mut c_int,
    count: usize,
    range: (u64, usize),
    next: impl FnOnce() -> c_int,
) -> c_int {
    let result = next();
    if let (SUCCESS, Some(devices)) = (result, ready.devices()) {
        for at in 0..count {
            // SAFETY: the driver has read `count` of each, and written where they say.
            unsafe { told(devices, *data.add(at), *sizes.add(at), *attributes.add(at), range) };
        }
    }
    result
}

/// Returns one location for each part of a range.
pub(crate) unsafe fn location_info(
    ready: &'static Ready,
    locations: *mut Location,
    bytes: usize,
    part: usize,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let result = next();
    if let (SUCCESS, Some(devices), false) = (result, ready.devices(), locations.is_null() || part == 0) {
        // SAFETY: the driver has written one for each part.
        let told = unsafe { core::slice::from_raw_parts_mut(locations, bytes.div_ceil(part)) };
        told.iter_mut().for_each(|one| *one = one.virtual_of(devices));
    }
    result
}

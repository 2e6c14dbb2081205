//! Physical memory by handle: charged to the device that it lies on, until the last handle and the
//! last mapping are gone. Also translates the locations that these calls carry.

use crate::detour::{INVALID_DEVICE, OUT_OF_MEMORY, SUCCESS};
use crate::hooks::memory::charge;
use crate::state::{Devices, Ready};
use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::Arc;
use vgpu_core::account::Charge;
use vgpu_core::os::spin::Spin;

const DEVICE: c_int = 1;

/// CUmemLocation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    kind: c_int,
    id: c_int,
}

/// CUmemAllocationProp.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    metadata: *mut c_void,
    flags: [u8; 8],
}

/// CUmemAccessDesc.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Access {
    location: Location,
    flags: c_int,
}
const _: () = assert!(size_of::<Properties>() == 32 && size_of::<Access>() == 12);

/// Physical memory: charged as long as a handle or a mapping refers to it.
#[derive(Debug)]
pub(crate) struct Backing {
    ready: &'static Ready,
    gpu: usize,
    charge: Spin<Option<Charge>>,
}

impl Drop for Backing {
    fn drop(&mut self) {
        if let (Some(gpu), Some(charge)) = (self.ready.gpus.get(self.gpu), self.charge.lock().take()) {
            gpu.account.release(charge);
        }
    }
}

impl Location {
    /// The GPU of a virtual location; None: host memory, or no such device.
    pub(crate) fn gpu(self, devices: &Devices) -> Option<usize> {
        (self.kind == DEVICE).then(|| devices.gpu(self.id)).flatten()
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

pub(crate) unsafe fn create(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut u64, usize, *const Properties, c_ulonglong) -> c_int,
    handle: *mut u64,
    bytes: usize,
    properties: *const Properties,
    flags: c_ulonglong,
) -> c_int {
    // SAFETY: null, or the caller's properties.
    let own = unsafe { properties.as_ref() }.copied();
    let (Some(mut own), Some(devices), false) = (own, ready.devices(), handle.is_null()) else {
        // SAFETY: passed on: the driver says what is wrong.
        return unsafe { real(handle, bytes, properties, flags) };
    };
    let gpu = own.location.gpu(devices);
    let Some(location) = own.location.real(devices) else {
        return INVALID_DEVICE;
    };
    own.location = location;
    // SAFETY: passed on, with the real device in a copy.
    let create = || unsafe { real(handle, bytes, &own, flags) };
    let Some(gpu) = gpu else { return create() };
    let Some(charge) = ready.gpus.get(gpu).and_then(|owner| charge(owner, bytes as u64)) else {
        return OUT_OF_MEMORY;
    };
    let backing = Arc::new(Backing {
        ready,
        gpu,
        charge: Spin::new(Some(charge)),
    });
    let result = create();
    if result == SUCCESS {
        // SAFETY: the driver has written it.
        ready.vmm_handles.insert(unsafe { *handle }, (backing, 1));
    }
    result
}

pub(crate) unsafe fn release(ready: &'static Ready, real: unsafe extern "C" fn(u64) -> c_int, handle: u64) -> c_int {
    // Out of the table first: the driver may give the value again at once.
    let last = ready.vmm_handles.with(handle, |(_, count)| *count == 1) == Some(true);
    let taken = last.then(|| ready.vmm_handles.remove(handle)).flatten();
    // SAFETY: passed on.
    let result = unsafe { real(handle) };
    match (result, taken) {
        (SUCCESS, None) => {
            ready
                .vmm_handles
                .with(handle, |(_, count)| *count = count.saturating_sub(1));
        }
        (SUCCESS, Some(_)) => {}
        (_, Some(kept)) => {
            ready.vmm_handles.insert(handle, kept);
        }
        (_, None) => {}
    }
    result
}

pub(crate) unsafe fn retain(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut u64, *mut c_void) -> c_int,
    handle: *mut u64,
    address: *mut c_void,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(handle, address) };
    if result == SUCCESS && !handle.is_null() {
        // SAFETY: the driver has written it.
        let handle = unsafe { *handle };
        let known = ready.vmm_handles.with(handle, |(_, count)| *count += 1);
        if known.is_none()
            && let Some(backing) = ready.vmm_maps.with(address as u64, |(backing, _)| backing.clone())
        {
            ready.vmm_handles.insert(handle, (backing, 1));
        }
    }
    result
}

pub(crate) unsafe fn map(
    ready: &'static Ready,
    real: unsafe extern "C" fn(u64, usize, usize, u64, c_ulonglong) -> c_int,
    pointer: u64,
    bytes: usize,
    offset: usize,
    handle: u64,
    flags: c_ulonglong,
) -> c_int {
    let backing = ready.vmm_handles.with(handle, |(backing, _)| backing.clone());
    // SAFETY: passed on.
    let result = unsafe { real(pointer, bytes, offset, handle, flags) };
    if let (SUCCESS, Some(backing)) = (result, backing) {
        ready.vmm_maps.insert(pointer, (backing, bytes as u64));
    }
    result
}

pub(crate) unsafe fn unmap(
    ready: &'static Ready,
    real: unsafe extern "C" fn(u64, usize) -> c_int,
    pointer: u64,
    bytes: usize,
) -> c_int {
    // A call may cover several mappings, so it is the cheaper one that is looked for first.
    let end = pointer.saturating_add(bytes as u64);
    let within = |at: u64, size: u64| at >= pointer && at.saturating_add(size) <= end;
    let gone: Vec<(u64, (Arc<Backing>, u64))> = match ready.vmm_maps.remove(pointer) {
        Some(one) if one.1 == bytes as u64 => vec![(pointer, one)],
        first => {
            let mut gone: Vec<_> = first.into_iter().map(|one| (pointer, one)).collect();
            let mut at = Vec::new();
            let more = ready.vmm_maps.drain(|key, (_, size)| {
                let take = within(key, *size);
                if take {
                    at.push(key);
                }
                take
            });
            gone.extend(at.into_iter().zip(more));
            gone
        }
    };
    // SAFETY: passed on.
    let result = unsafe { real(pointer, bytes) };
    if result != SUCCESS {
        gone.into_iter().for_each(|(at, one)| {
            ready.vmm_maps.insert(at, one);
        });
    }
    result
}

pub(crate) unsafe fn granularity(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, *const Properties, c_int) -> c_int,
    granularity: *mut usize,
    properties: *const Properties,
    option: c_int,
) -> c_int {
    // SAFETY: null, or the caller's properties.
    let own = unsafe { properties.as_ref() }.copied();
    let (Some(mut own), Some(devices)) = (own, ready.devices()) else {
        // SAFETY: passed on.
        return unsafe { real(granularity, properties, option) };
    };
    let Some(location) = own.location.real(devices) else {
        return INVALID_DEVICE;
    };
    own.location = location;
    // SAFETY: passed on, with the real device in a copy.
    unsafe { real(granularity, &own, option) }
}

/// Calls `pass` with real devices in a copy of the caller's `count` descriptions.
///
/// # Safety
/// `access` is null or has `count` entries.
unsafe fn with_real(
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

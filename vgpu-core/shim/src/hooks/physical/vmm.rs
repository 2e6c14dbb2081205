//! Physical memory by handle: charged to its device until the last handle, the last mapping and the last binding are
//! gone ([`Backing`]).
//!
//! Memory that another process of the share has exported, and that can be matched to the export ([`export_identity`]),
//! is held together with that process and charged once. All other imported memory is charged here as well, by the size
//! that is mapped: the exporter may die first and its charge with it, while the memory stays as long as it is mapped.
//! Such memory counts twice while both processes have it. The driver does not report its size before it is mapped.

use crate::codes::{INVALID_VALUE, OUT_OF_MEMORY, SUCCESS};
use crate::driver::Backing;
use crate::hooks::devices::locations::Location;
use crate::hooks::host;
use crate::hooks::physical::properties::Properties;
use crate::process::Ready;
use crate::real::real;
use core::ffi::{c_int, c_ulonglong, c_void};
use std::sync::Arc;
use vgpu_core::memory::backing::at;
use vgpu_core::memory::charge::charge;
use vgpu_core::memory::imports::Held;
use vgpu_core::memory::{export_identity, refcounts};

/// CU_MEM_ALLOC_GRANULARITY_MINIMUM.
const MINIMUM: c_int = 0;

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
    let location = match own.location.real(devices) {
        Ok(location) => location,
        Err(error) => return error,
    };
    own.location = location;
    // SAFETY: passed on, with the real device in a copy.
    let create = || unsafe { real(handle, bytes, &own, flags) };
    let Some(gpu) = gpu else { return create() };
    let charge = ready.gpus.get(gpu).and_then(|owner| charge(owner, bytes as u64));
    let mut result = OUT_OF_MEMORY;
    if let Some(charge) = charge {
        let backing = Arc::new(Backing::new(&ready.gpus, gpu, Some(charge)));
        result = create();
        if result == SUCCESS {
            // SAFETY: the driver has written it.
            ready.tables.vmm_handles.insert(unsafe { *handle }, (backing, 1));
        }
    } else {
        let wrong = wrong_arguments(&own, bytes, flags);
        if wrong != SUCCESS {
            return wrong;
        }
    }
    if result == OUT_OF_MEMORY {
        // SAFETY: the caller's, to be written.
        return unsafe { host::physical::instead(ready, gpu, handle, bytes, &own, flags) };
    }
    result
}

/// Returns what the driver says of the arguments of a cuMemCreate that does not fit in the share: it checks them before
/// it looks for memory. It is asked for the granularity, because a cuMemCreate might succeed.
#[cold]
fn wrong_arguments(properties: &Properties, bytes: usize, flags: c_ulonglong) -> c_int {
    let mut step = 0;
    let ask = real!(cuMemGetAllocationGranularity(*mut usize, *const Properties, c_int));
    // SAFETY: `step` may be written, the properties are read.
    match unsafe { ask(&mut step, properties, MINIMUM) } {
        SUCCESS if flags == 0 && bytes != 0 && bytes.checked_rem(step).is_none_or(|rest| rest == 0) => SUCCESS,
        SUCCESS => INVALID_VALUE,
        error => error,
    }
}

pub(crate) unsafe fn release(ready: &'static Ready, real: unsafe extern "C" fn(u64) -> c_int, handle: u64) -> c_int {
    // SAFETY: passed on.
    let result = refcounts::release(&ready.tables.vmm_handles, handle, || unsafe { real(handle) });
    ready.collect_exported();
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
        if !refcounts::retain(&ready.tables.vmm_handles, handle)
            && let Some(backing) = at(&ready.tables.vmm_maps, address as u64)
        {
            refcounts::acquire(&ready.tables.vmm_handles, handle, backing);
        }
    }
    result
}

pub(crate) unsafe fn import(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut u64, *mut c_void, c_int) -> c_int,
    handle: *mut u64,
    from: *mut c_void,
    kind: c_int,
) -> c_int {
    // Held before the driver is called, because the exporter may die meanwhile. A descriptor is passed as a pointer.
    let held =
        export_identity::of_descriptor(kind, || from as usize as c_int).and_then(|key| Held::of(&ready.gpus, key));
    // SAFETY: passed on.
    let result = unsafe { real(handle, from, kind) };
    if result != SUCCESS || handle.is_null() {
        return result;
    }
    // SAFETY: the driver has written it.
    let handle = unsafe { *handle };
    if refcounts::retain(&ready.tables.vmm_handles, handle) {
        return result;
    }
    let mut properties = core::mem::MaybeUninit::<Properties>::zeroed();
    // SAFETY: to be written; all-zero is a value, of no location.
    let location = unsafe {
        real!(cuMemGetAllocationPropertiesFromHandle(*mut Properties, u64))(properties.as_mut_ptr(), handle);
        properties.assume_init().location
    };
    // On no GPU: host memory, or a multicast object, which is there for what will be bound to it.
    let gpu = ready.devices().and_then(|devices| location.real_gpu(devices));
    let charge = held.and_then(|held| held.on(gpu?));
    let mut backing = Backing::new(&ready.gpus, gpu.unwrap_or(0), charge);
    backing.imported = gpu.is_some();
    refcounts::acquire(&ready.tables.vmm_handles, handle, Arc::new(backing));
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
    let backing = ready.tables.vmm_handles.with(handle, |(backing, _)| backing.clone());
    let end = (offset as u64).saturating_add(bytes as u64);
    if backing.as_ref().is_some_and(|backing| !backing.reach(end)) {
        return OUT_OF_MEMORY;
    }
    // SAFETY: passed on.
    let result = unsafe { real(pointer, bytes, offset, handle, flags) };
    if let (SUCCESS, Some(backing)) = (result, backing) {
        ready.tables.vmm_maps.insert(pointer, (backing, bytes as u64));
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
    let gone: Vec<(u64, (Arc<Backing>, u64))> = match ready.tables.vmm_maps.remove(pointer) {
        Some(one) if one.1 == bytes as u64 => vec![(pointer, one)],
        first => {
            let mut gone: Vec<_> = first.into_iter().map(|one| (pointer, one)).collect();
            let mut at = Vec::new();
            let more = ready.tables.vmm_maps.drain(|key, (_, size)| {
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
            ready.tables.vmm_maps.insert(at, one);
        });
    } else {
        drop(gone);
    }
    ready.collect_exported();
    result
}

pub(crate) unsafe fn properties(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut Properties, u64) -> c_int,
    properties: *mut Properties,
    handle: u64,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(properties, handle) };
    // SAFETY: null, or the driver has written it.
    if let (SUCCESS, Some(told), Some(devices)) = (result, unsafe { properties.as_mut() }, ready.devices()) {
        let gpu = ready
            .tables
            .vmm_handles
            .with(handle, |(backing, _)| backing.is_host().then_some(backing.gpu));
        let device = gpu.flatten().and_then(|gpu| devices.ordinal(devices.of_gpu(gpu)?));
        told.location = match device {
            Some(device) => Location::of(device),
            None => told.location.virtual_of(devices),
        };
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
    let location = match own.location.real(devices) {
        Ok(location) => location,
        Err(error) => return error,
    };
    own.location = location;
    // SAFETY: passed on, with the real device in a copy.
    unsafe { real(granularity, &own, option) }
}

//! Physical memory by handle: charged to its device until the last handle, the last mapping and the last binding are
//! gone ([`Backing`]).
//!
//! Memory that another process of the share has exported, and that can be matched to the export ([`export_identity`]),
//! is held together with that process and charged once. All other imported memory is charged here as well, by the size
//! that is mapped: the exporter may die first, which ends its charge, while the memory stays as long as it is mapped.
//! Such memory is charged twice while both processes have it. The driver does not report its size before it is mapped.

use crate::codes::{INVALID_VALUE, OUT_OF_MEMORY, SUCCESS};
use crate::driver::Backing;
use crate::hooks::devices::locations::{Located, Location};
use crate::hooks::host;
use crate::hooks::physical::properties::Properties;
use crate::process::Ready;
use crate::real::real;
use core::ffi::{c_int, c_ulonglong, c_void};
use std::sync::Arc;
use vgpu_core::memory::backing::at;
use vgpu_core::memory::charge::charge;
use vgpu_core::memory::imports::Held;
use vgpu_core::memory::{export_identity, refcounts, refusal};

pub(crate) unsafe fn create(
    ready: &'static Ready,
    handle: *mut u64,
    bytes: usize,
    properties: *const Properties,
    flags: c_ulonglong,
    next: impl FnOnce(*const Properties) -> c_int,
) -> c_int {
    // SAFETY: null, or the caller's properties.
    let asked = unsafe { properties.as_ref() };
    let (Some(asked), Some(devices), false) = (asked, ready.devices(), handle.is_null()) else {
        // The driver returns the right error.
        return next(properties);
    };
    let own = match asked.with_real(devices) {
        Ok(own) => own,
        Err(error) => return error,
    };
    let gpu = asked.location.gpu(devices);
    let create = || next(&own);
    let Some(gpu) = gpu else { return create() };
    let charge = ready.gpus.get(gpu).and_then(|owner| charge(owner, bytes as u64));
    let mut result = OUT_OF_MEMORY;
    if let Some(charge) = charge {
        let backing = Arc::new(Backing::new(&ready.gpus, gpu, Some(charge)));
        result = create();
        if result == SUCCESS {
            // SAFETY: the driver has written it.
            ready.tables.vmm_handles.insert(unsafe { *handle }, (backing, 1));
        } else if let (OUT_OF_MEMORY, Some(owner)) = (result, ready.gpus.get(gpu)) {
            refusal::by_driver(owner, bytes as u64);
        }
    } else {
        let wrong = wrong_arguments(&own, bytes, flags);
        if wrong != SUCCESS {
            refusal::forget();
            return wrong;
        }
    }
    if result == OUT_OF_MEMORY {
        // SAFETY: the caller's, to be written.
        return unsafe { host::physical::instead(ready, gpu, handle, bytes, &own, flags) };
    }
    result
}

/// For a cuMemCreate that does not fit in the share: returns the driver's error for wrong arguments, which a driver
/// checks before it looks for memory. Only asks the driver for the granularity, because a real cuMemCreate might
/// succeed.
#[cold]
fn wrong_arguments(properties: &Properties, bytes: usize, flags: c_ulonglong) -> c_int {
    match properties.granularity() {
        Ok(step) if flags == 0 && bytes != 0 && bytes.checked_rem(step).is_none_or(|rest| rest == 0) => SUCCESS,
        Ok(_) => INVALID_VALUE,
        Err(error) => error,
    }
}

pub(crate) fn release(ready: &'static Ready, handle: u64, next: impl FnOnce() -> c_int) -> c_int {
    let result = refcounts::release(&ready.tables.vmm_handles, handle, next);
    ready.collect_exported();
    result
}

pub(crate) unsafe fn retain(
    ready: &'static Ready,
    handle: *mut u64,
    address: *mut c_void,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let result = next();
    // SAFETY: null, or the driver has written it.
    if let (SUCCESS, Some(&handle)) = (result, unsafe { handle.as_ref() })
        && !refcounts::retain(&ready.tables.vmm_handles, handle)
        && let Some(backing) = at(&ready.tables.vmm_maps, address as u64)
    {
        refcounts::acquire(&ready.tables.vmm_handles, handle, backing);
    }
    result
}

pub(crate) unsafe fn import(
    ready: &'static Ready,
    handle: *mut u64,
    from: *mut c_void,
    kind: c_int,
    next: impl FnOnce() -> c_int,
) -> c_int {
    // Held before the driver is called, because the exporter may die meanwhile. A descriptor is passed as a pointer.
    let held =
        export_identity::of_descriptor(kind, || from as usize as c_int).and_then(|key| Held::of(&ready.gpus, key));
    let result = next();
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
        real!(cuMemGetAllocationPropertiesFromHandle)(properties.as_mut_ptr(), handle);
        properties.assume_init().location
    };
    // If it is on no GPU, it is host memory, or a multicast object, to which memory will be bound.
    let gpu = ready.devices().and_then(|devices| location.real_gpu(devices));
    let charge = held.and_then(|held| held.on(gpu?));
    let mut backing = Backing::new(&ready.gpus, gpu.unwrap_or(0), charge);
    backing.imported = gpu.is_some();
    refcounts::acquire(&ready.tables.vmm_handles, handle, Arc::new(backing));
    result
}

pub(crate) fn map(
    ready: &'static Ready,
    pointer: u64,
    bytes: usize,
    offset: usize,
    handle: u64,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let backing = ready.tables.vmm_handles.with(handle, |(backing, _)| backing.clone());
    let end = (offset as u64).saturating_add(bytes as u64);
    if backing.as_ref().is_some_and(|backing| !backing.reach(end)) {
        return OUT_OF_MEMORY;
    }
    let result = next();
    if let (SUCCESS, Some(backing)) = (result, backing) {
        ready.tables.vmm_maps.insert(pointer, (backing, bytes as u64));
    }
    result
}

pub(crate) fn unmap(ready: &'static Ready, pointer: u64, bytes: usize, next: impl FnOnce() -> c_int) -> c_int {
    // The cheap case first: one mapping of exactly this size. A call may also unmap several mappings.
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
    let result = next();
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
    properties: *mut Properties,
    handle: u64,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let result = next();
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

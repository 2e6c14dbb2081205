//! Physical memory by handle: charged to the device that it lies on, until the last handle, the last
//! mapping and the last binding are gone.
//!
//! ```text
//!  handle (counted) ──┐
//!  mapping ───────────┼─► Backing ─► its charge
//!  tile of an array ──┤      │
//!  multicast object ──┘      └─► imported: charged by what is mapped of it
//! ```
//!
//! What another process of the share has exported and can be recognised by ([`marks`]) is held with it, and
//! charged once. All else that another process has made is charged here as well, by what is mapped of it:
//! who made it may die first, and its charge with it, while the memory stays for as long as it is mapped. So
//! such memory counts twice while both have it. The driver does not tell how large it is before.

use crate::codes::{OUT_OF_MEMORY, SUCCESS};
use crate::hooks::bindings::Bindings;
use crate::hooks::counted;
use crate::hooks::host_physical;
use crate::hooks::imports::Held;
use crate::hooks::locations::Location;
use crate::hooks::marks;
use crate::hooks::memory::{GRANULE, charge};
use crate::process::Ready;
use crate::real::real;
use core::ffi::{c_int, c_ulonglong, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vgpu_core::account::{Charge, rounded};
use vgpu_core::ledger::Key;
use vgpu_core::os::spin::Spin;

/// CUmemAllocationProp.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    kind: c_int,
    handle_types: c_int,
    pub(crate) location: Location,
    metadata: *mut c_void,
    /// Compression, RDMA, and two bytes of what it is for.
    flags: [u8; 8],
}

const _: () = assert!(size_of::<Properties>() == 32);

impl Properties {
    /// Whether memory of any kind does.
    pub(crate) fn is_plain(&self) -> bool {
        const PINNED: c_int = 1;
        let [compression, _, purpose @ .., _, _, _, _] = self.flags;
        self.kind == PINNED && compression == 0 && purpose == [0; 2]
    }

    pub(crate) fn without_rdma(&mut self) {
        self.flags[1] = 0;
    }
}

/// Physical memory: charged as long as something refers to it.
#[derive(Debug)]
pub(crate) struct Backing {
    ready: &'static Ready,
    pub(crate) gpu: usize,
    charge: Spin<Option<Charge>>,
    /// Made by another process: charged by what is mapped of it.
    imported: bool,
    /// How much of its charge the driver's figure of this process does not have.
    surplus: AtomicU64,
    /// What is bound to it: a multicast object's.
    pub(crate) bound: Spin<Bindings>,
}

impl Drop for Backing {
    fn drop(&mut self) {
        if let (Some(gpu), Some(charge)) = (self.ready.gpus.get(self.gpu), self.charge.lock().take()) {
            gpu.surplus
                .fetch_sub(self.surplus.load(Ordering::Relaxed), Ordering::Relaxed);
            gpu.account.release(charge);
        }
    }
}

impl Backing {
    pub(crate) fn new(ready: &'static Ready, gpu: usize, charge: Option<Charge>) -> Self {
        Self {
            ready,
            gpu,
            charge: Spin::new(charge),
            imported: false,
            surplus: AtomicU64::new(0),
            bound: Spin::default(),
        }
    }

    /// Memory that is charged here although the driver counts it elsewhere, or once alone.
    pub(crate) fn surplus(ready: &'static Ready, gpu: usize, charge: Charge) -> Self {
        let bytes = charge.bytes();
        let backing = Self::new(ready, gpu, Some(charge));
        backing.note_surplus(bytes);
        backing
    }

    fn note_surplus(&self, bytes: u64) {
        if let Some(gpu) = self.ready.gpus.get(self.gpu) {
            self.surplus.fetch_add(bytes, Ordering::Relaxed);
            gpu.surplus.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Whether it lies on the host, in the place of its GPU's memory.
    pub(crate) fn is_host(&self) -> bool {
        self.charge.lock().as_ref().is_some_and(Charge::is_host)
    }

    /// What it is charged of device memory that the driver counts as this process's.
    pub(crate) fn own_bytes(&self) -> u64 {
        if self.imported {
            return 0;
        }
        let charge = self.charge.lock();
        let bytes = charge
            .as_ref()
            .filter(|charge| !charge.is_host())
            .map_or(0, Charge::bytes);
        bytes.saturating_sub(self.surplus.load(Ordering::Relaxed))
    }

    /// Whether another process made it.
    pub(crate) fn is_imported(&self) -> bool {
        self.imported
    }

    /// Has the charge found by `key` by who imports it.
    pub(crate) fn export(&self, key: Key) {
        if let (Some(gpu), Some(charge)) = (self.ready.gpus.get(self.gpu), self.charge.lock().as_mut()) {
            gpu.account.export(charge, key);
        }
    }

    /// Charges imported memory up to `end`; false: that is not free.
    pub(crate) fn reach(&self, end: u64) -> bool {
        if !self.imported {
            return true;
        }
        let mut held = self.charge.lock();
        let have = held.as_ref().map_or(0, Charge::bytes);
        let (Some(end), Some(gpu)) = (rounded(end, GRANULE), self.ready.gpus.get(self.gpu)) else {
            return false;
        };
        if end <= have {
            return true;
        }
        let Some(more) = charge(gpu, end - have) else {
            return false;
        };
        self.note_surplus(more.bytes());
        match held.as_mut() {
            Some(charge) => charge.join(more),
            None => *held = Some(more),
        }
        true
    }
}

/// What lies at `address`, inside a mapping or at its start.
pub(crate) fn at(ready: &Ready, address: u64) -> Option<Arc<Backing>> {
    let exact = ready.vmm_maps.with(address, |(backing, _)| backing.clone());
    exact.or_else(|| {
        let mut found = None;
        ready.vmm_maps.drain(|start, (backing, size)| {
            if address >= start && address - start < *size {
                found = Some(backing.clone());
            }
            false
        });
        found
    })
}

/// What lies at any of the `bytes` at `address`.
pub(crate) fn within(ready: &Ready, address: u64, bytes: u64) -> Vec<Arc<Backing>> {
    let end = address.saturating_add(bytes);
    let mut found = Vec::new();
    ready.vmm_maps.drain(|start, (backing, size)| {
        if start < end && start.saturating_add(*size) > address {
            found.push(backing.clone());
        }
        false
    });
    found
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
        let backing = Arc::new(Backing::new(ready, gpu, Some(charge)));
        result = create();
        if result == SUCCESS {
            // SAFETY: the driver has written it.
            ready.vmm_handles.insert(unsafe { *handle }, (backing, 1));
        }
    }
    if result == OUT_OF_MEMORY {
        // SAFETY: the caller's, to be written.
        return unsafe { host_physical::instead(ready, gpu, handle, bytes, &own, flags) };
    }
    result
}

pub(crate) unsafe fn release(ready: &'static Ready, real: unsafe extern "C" fn(u64) -> c_int, handle: u64) -> c_int {
    // SAFETY: passed on.
    counted::release(&ready.vmm_handles, handle, || unsafe { real(handle) })
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
        if !counted::again(&ready.vmm_handles, handle)
            && let Some(backing) = at(ready, address as u64)
        {
            counted::come(&ready.vmm_handles, handle, backing);
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
    // Held before the driver is asked: whoever made it may die meanwhile. A descriptor is passed as a pointer.
    let held = marks::of_descriptor(kind, || from as usize as c_int).and_then(|key| Held::of(ready, key));
    // SAFETY: passed on.
    let result = unsafe { real(handle, from, kind) };
    if result != SUCCESS || handle.is_null() {
        return result;
    }
    // SAFETY: the driver has written it.
    let handle = unsafe { *handle };
    if counted::again(&ready.vmm_handles, handle) {
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
    let mut backing = Backing::new(ready, gpu.unwrap_or(0), charge);
    backing.imported = gpu.is_some();
    counted::come(&ready.vmm_handles, handle, Arc::new(backing));
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
    let end = (offset as u64).saturating_add(bytes as u64);
    if backing.as_ref().is_some_and(|backing| !backing.reach(end)) {
        return OUT_OF_MEMORY;
    }
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

//! Multicast objects: they have no memory of their own, but hold on to the physical memory that is bound
//! to them, until it is unbound or the object's last handle and mapping are gone.
//!
//! How it fails: what a driver keeps for an object beyond that (page tables) is in no account of its
//! own; NVML's figure of the process shows it, and the next measured call charges it.
#![allow(clippy::too_many_arguments)] // They are NVIDIA's.

use crate::detour::{INVALID_DEVICE, OUT_OF_MEMORY, SUCCESS};
use crate::hooks::imports;
use crate::hooks::memory::charge;
use crate::hooks::vmm::{Backing, Tile, within};
use crate::real::real;
use crate::state::Ready;
use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::Arc;

pub(crate) unsafe fn create(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut u64, *const c_void) -> c_int,
    handle: *mut u64,
    properties: *const c_void,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(handle, properties) };
    if result == SUCCESS && !handle.is_null() {
        // SAFETY: the driver has written it.
        let handle = unsafe { *handle };
        ready
            .vmm_handles
            .insert(handle, (Arc::new(Backing::new(ready, 0, None)), 1));
    }
    result
}

/// What a binding of the `bytes` at `address` holds on to; None: it cannot be charged.
///
/// Memory of a pool is charged once more for as long as it is bound: the pool may shrink meanwhile, and the
/// driver does not tell by how much it could not.
pub(crate) fn bindable(ready: &'static Ready, address: u64, bytes: u64) -> Option<Vec<Arc<Backing>>> {
    let mapped = within(ready, address, bytes);
    if !mapped.is_empty() {
        return Some(mapped);
    }
    let Some((gpu, _)) = imports::extent(ready, address).filter(|_| !is_host(address)) else {
        return Some(mapped);
    };
    let charge = charge(ready.gpus.get(gpu)?, bytes)?;
    Some(vec![Arc::new(Backing::new(ready, gpu, Some(charge)))])
}

/// Whether host memory lies at an address: that too has a device, the one that it was made for.
fn is_host(address: u64) -> bool {
    const MEMORY_TYPE: c_int = 2;
    const HOST: c_uint = 1;
    let mut kind: c_uint = 0;
    let at: *mut c_uint = &mut kind;
    let ask = real!(cuPointerGetAttribute(*mut c_void, c_int, u64));
    // SAFETY: `kind` is to be written.
    (unsafe { ask(at.cast(), MEMORY_TYPE, address) }) == SUCCESS && kind == HOST
}

/// Notes that `what` is bound to `object` at `offset`, if the driver has done so.
fn bound(ready: &Ready, result: c_int, object: u64, offset: usize, bytes: usize, what: Vec<Arc<Backing>>) -> c_int {
    if result == SUCCESS && !what.is_empty() {
        let bindings = what.into_iter().map(|what| {
            let tile = [offset as u64, bytes as u64, what.gpu as u64, 0, 0];
            (tile, what)
        });
        ready
            .vmm_handles
            .with(object, |(object, _)| object.bound.lock().extend(bindings));
    }
    result
}

type BindMem = unsafe extern "C" fn(u64, usize, u64, usize, usize, c_ulonglong) -> c_int;
type BindMemV2 = unsafe extern "C" fn(u64, c_int, usize, u64, usize, usize, c_ulonglong) -> c_int;
type BindAddr = unsafe extern "C" fn(u64, usize, u64, usize, c_ulonglong) -> c_int;
type BindAddrV2 = unsafe extern "C" fn(u64, c_int, usize, u64, usize, c_ulonglong) -> c_int;

fn handle(ready: &Ready, memory: u64) -> Vec<Arc<Backing>> {
    let known = ready.vmm_handles.with(memory, |(backing, _)| backing.clone());
    known.into_iter().collect()
}

/// The real device of a virtual ordinal.
fn real_device(ready: &Ready, device: c_int) -> Option<c_int> {
    ready.devices().map_or(Some(device), |devices| devices.real(device))
}

pub(crate) unsafe fn bind_memory(
    ready: &'static Ready,
    real: BindMem,
    object: u64,
    offset: usize,
    memory: u64,
    from: usize,
    bytes: usize,
    flags: c_ulonglong,
) -> c_int {
    let what = handle(ready, memory);
    // SAFETY: passed on.
    let result = unsafe { real(object, offset, memory, from, bytes, flags) };
    bound(ready, result, object, offset, bytes, what)
}

pub(crate) unsafe fn bind_memory_v2(
    ready: &'static Ready,
    real: BindMemV2,
    object: u64,
    device: c_int,
    offset: usize,
    memory: u64,
    from: usize,
    bytes: usize,
    flags: c_ulonglong,
) -> c_int {
    let what = handle(ready, memory);
    let Some(device) = real_device(ready, device) else {
        return INVALID_DEVICE;
    };
    // SAFETY: passed on, with the real device.
    let result = unsafe { real(object, device, offset, memory, from, bytes, flags) };
    bound(ready, result, object, offset, bytes, what)
}

pub(crate) unsafe fn bind_address(
    ready: &'static Ready,
    real: BindAddr,
    object: u64,
    offset: usize,
    address: u64,
    bytes: usize,
    flags: c_ulonglong,
) -> c_int {
    let Some(what) = bindable(ready, address, bytes as u64) else {
        return OUT_OF_MEMORY;
    };
    // SAFETY: passed on.
    let result = unsafe { real(object, offset, address, bytes, flags) };
    bound(ready, result, object, offset, bytes, what)
}

pub(crate) unsafe fn bind_address_v2(
    ready: &'static Ready,
    real: BindAddrV2,
    object: u64,
    device: c_int,
    offset: usize,
    address: u64,
    bytes: usize,
    flags: c_ulonglong,
) -> c_int {
    let Some(what) = bindable(ready, address, bytes as u64) else {
        return OUT_OF_MEMORY;
    };
    let Some(device) = real_device(ready, device) else {
        return INVALID_DEVICE;
    };
    // SAFETY: passed on, with the real device.
    let result = unsafe { real(object, device, offset, address, bytes, flags) };
    bound(ready, result, object, offset, bytes, what)
}

pub(crate) unsafe fn unbind(
    ready: &'static Ready,
    real: unsafe extern "C" fn(u64, c_int, usize, usize) -> c_int,
    object: u64,
    device: c_int,
    offset: usize,
    bytes: usize,
) -> c_int {
    let (gpu, device) = match ready.devices() {
        Some(devices) => match (devices.gpu(device), devices.real(device)) {
            (Some(gpu), Some(device)) => (gpu as u64, device),
            _ => return INVALID_DEVICE,
        },
        None => (u64::MAX, device),
    };
    // SAFETY: passed on, with the real device.
    let result = unsafe { real(object, device, offset, bytes) };
    if result == SUCCESS {
        let end = (offset as u64).saturating_add(bytes as u64);
        let gone = ready.vmm_handles.with(object, |(object, _)| {
            let mut bound = object.bound.lock();
            let (gone, left) = std::mem::take(&mut *bound)
                .into_iter()
                .partition(|(tile, _): &(Tile, _)| {
                    tile[2] == gpu && tile[0] >= offset as u64 && tile[0].saturating_add(tile[1]) <= end
                });
            *bound = left;
            gone
        });
        // Released here, not under the locks.
        let _: Option<Vec<_>> = gone;
    }
    result
}

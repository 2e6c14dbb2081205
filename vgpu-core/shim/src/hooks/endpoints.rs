//! Logical endpoints: names in a fabric for memory that is bound to them, and that they hold on to until it
//! is unbound or the endpoint is destroyed.
//!
//! An endpoint that was imported binds memory of this process too, so bindings are kept by the endpoint's
//! number, whoever made it. The program chooses that number, and 0 is one.

#![allow(clippy::too_many_arguments)] // They are NVIDIA's.

use crate::detour::{INVALID_DEVICE, OUT_OF_MEMORY, SUCCESS};
use crate::hooks::multicast;
use crate::hooks::vmm::{Backing, Tile};
use crate::state::Ready;
use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::Arc;

/// CUlogicalEndpointProp.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    kind: c_int,
    /// Of one GPU: its device; of several: how many.
    device: c_int,
    bytes: u64,
    handle_types: c_uint,
    flags: c_uint,
}
const _: () = assert!(size_of::<Properties>() == 24);

/// CU_LOGICAL_ENDPOINT_TYPE_UNICAST.
const OF_ONE_GPU: c_int = 1;

/// What is bound to an endpoint, and where.
pub(crate) type Bindings = Vec<(Tile, Arc<Backing>)>;

fn key(endpoint: c_uint) -> u64 {
    1 << 32 | u64::from(endpoint)
}

/// Calls `pass` with the real device in a copy.
///
/// # Safety
/// `properties` is null or the caller's.
unsafe fn with_real(
    ready: &Ready,
    properties: *const Properties,
    pass: impl FnOnce(*const Properties) -> c_int,
) -> c_int {
    // SAFETY: as promised.
    let own = unsafe { properties.as_ref() }.copied();
    let (Some(mut own), Some(devices)) = (own, ready.devices()) else {
        return pass(properties);
    };
    if own.kind == OF_ONE_GPU {
        match devices.real(own.device) {
            Some(device) => own.device = device,
            None => return INVALID_DEVICE,
        }
    }
    pass(&own)
}

pub(crate) unsafe fn create(
    ready: &'static Ready,
    real: unsafe extern "C" fn(c_uint, *const Properties) -> c_int,
    endpoint: c_uint,
    properties: *const Properties,
) -> c_int {
    // SAFETY: passed on.
    unsafe { with_real(ready, properties, |own| real(endpoint, own)) }
}

pub(crate) unsafe fn limits(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut u64, *mut u64, *const Properties) -> c_int,
    alignment: *mut u64,
    largest: *mut u64,
    properties: *const Properties,
) -> c_int {
    // SAFETY: passed on.
    unsafe { with_real(ready, properties, |own| real(alignment, largest, own)) }
}

/// Where on which GPU something is bound.
struct Place {
    endpoint: c_uint,
    device: c_int,
    offset: u64,
    bytes: u64,
}

/// Binds through `bind` (given the real device), and keeps `what` for as long as it is bound.
fn bound(ready: &Ready, at: &Place, what: Vec<Arc<Backing>>, bind: impl FnOnce(c_int) -> c_int) -> c_int {
    let Some(devices) = ready.devices() else {
        return bind(at.device);
    };
    let (Some(gpu), Some(device)) = (devices.gpu(at.device), devices.real(at.device)) else {
        return INVALID_DEVICE;
    };
    let result = bind(device);
    if result == SUCCESS && !what.is_empty() {
        let tile = [at.offset, at.bytes, gpu as u64, 0, 0];
        keep(ready, at.endpoint, what.into_iter().map(|what| (tile, what)).collect());
    }
    result
}

type BindMemory = unsafe extern "C" fn(c_uint, c_int, u64, u64, u64, u64, c_ulonglong) -> c_int;
type BindAddress = unsafe extern "C" fn(c_uint, c_int, u64, *mut c_void, u64, c_ulonglong) -> c_int;

pub(crate) unsafe fn bind_memory(
    ready: &'static Ready,
    real: BindMemory,
    endpoint: c_uint,
    device: c_int,
    offset: u64,
    memory: u64,
    from: u64,
    bytes: u64,
    flags: c_ulonglong,
) -> c_int {
    let what = ready.vmm_handles.with(memory, |(backing, _)| backing.clone());
    let at = Place {
        endpoint,
        device,
        offset,
        bytes,
    };
    bound(ready, &at, what.into_iter().collect(), |device| {
        // SAFETY: passed on, with the real device.
        unsafe { real(endpoint, device, offset, memory, from, bytes, flags) }
    })
}

pub(crate) unsafe fn bind_address(
    ready: &'static Ready,
    real: BindAddress,
    endpoint: c_uint,
    device: c_int,
    offset: u64,
    address: *mut c_void,
    bytes: u64,
    flags: c_ulonglong,
) -> c_int {
    let Some(what) = multicast::bindable(ready, address as u64, bytes) else {
        return OUT_OF_MEMORY;
    };
    let at = Place {
        endpoint,
        device,
        offset,
        bytes,
    };
    bound(ready, &at, what, |device| {
        // SAFETY: passed on, with the real device.
        unsafe { real(endpoint, device, offset, address, bytes, flags) }
    })
}

pub(crate) unsafe fn unbind(
    ready: &'static Ready,
    real: unsafe extern "C" fn(c_uint, c_int, u64, u64) -> c_int,
    endpoint: c_uint,
    device: c_int,
    offset: u64,
    bytes: u64,
) -> c_int {
    let (gpu, device) = match ready.devices() {
        Some(devices) => match (devices.gpu(device), devices.real(device)) {
            (Some(gpu), Some(device)) => (gpu as u64, device),
            _ => return INVALID_DEVICE,
        },
        None => (u64::MAX, device),
    };
    let end = offset.saturating_add(bytes);
    let within = |tile: &Tile| tile[2] == gpu && tile[0] >= offset && tile[0].saturating_add(tile[1]) <= end;
    // Out of the table first: once unbound, another thread may bind there.
    let gone = ready.endpoints.with(key(endpoint), |bindings| {
        let all = std::mem::take(bindings).into_iter();
        let (gone, left): (Bindings, Bindings) = all.partition(|(tile, _)| within(tile));
        *bindings = left;
        gone
    });
    // SAFETY: passed on, with the real device.
    let result = unsafe { real(endpoint, device, offset, bytes) };
    if result != SUCCESS {
        keep(ready, endpoint, gone.unwrap_or_default());
    }
    result
}

pub(crate) unsafe fn destroy(
    ready: &'static Ready,
    real: unsafe extern "C" fn(c_uint) -> c_int,
    endpoint: c_uint,
) -> c_int {
    // Out of the table first: once destroyed, another thread may make one of this number.
    let gone = ready.endpoints.remove(key(endpoint));
    // SAFETY: passed on.
    let result = unsafe { real(endpoint) };
    if result != SUCCESS {
        keep(ready, endpoint, gone.unwrap_or_default());
    }
    result
}

/// Adds to what is bound to an endpoint.
fn keep(ready: &Ready, endpoint: c_uint, bindings: Bindings) {
    if !bindings.is_empty() {
        let key = key(endpoint);
        ready.endpoints.run(key, |run| match run.get(key) {
            Some(known) => known.extend(bindings),
            None => {
                run.insert(key, bindings);
            }
        });
    }
}

//! Logical endpoints: names in a fabric. They keep the memory that is bound to them until it is unbound or the endpoint
//! is destroyed.
//!
//! Memory of this process can also be bound to an imported endpoint. So bindings are recorded by the endpoint's number,
//! whichever process created it. The program chooses that number, and 0 is valid.
//!
//! How it fails: if the driver refuses to destroy an endpoint, its bindings stay. If a thread binds while another
//! destroys the endpoint, the entry may stay: the memory is charged until an endpoint of that number is destroyed. For
//! unbinding, and for calls that fail, see [`vgpu_core::bindings`].

#![allow(clippy::too_many_arguments)] // They are NVIDIA's.

use crate::codes::{INVALID_DEVICE, OUT_OF_MEMORY, SUCCESS};
use crate::driver::Bindings;
use crate::hooks::physical;
use crate::hooks::physical::bindings::Memory;
use crate::process::Ready;
use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use vgpu_core::bindings::{Object, Part, bind, unbind as unbound};

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

/// An endpoint by its number.
struct Endpoint<'a> {
    ready: &'a Ready,
    number: c_uint,
}

impl Endpoint<'_> {
    fn key(&self) -> u64 {
        1 << 32 | u64::from(self.number)
    }
}

impl Object<Memory> for Endpoint<'_> {
    fn add(&self, more: Bindings) {
        let key = self.key();
        self.ready.tables.endpoints.run(key, |run| {
            run.meet(key, more, |known, more| {
                known.add(more);
                None
            })
        });
    }

    fn take(&self, part: Part) -> Bindings {
        let taken = self.ready.tables.endpoints.with(self.key(), |known| known.take(part));
        taken.unwrap_or_default()
    }
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

type BindMemory = unsafe extern "C" fn(c_uint, c_int, u64, u64, u64, u64, c_ulonglong) -> c_int;
type BindAddress = unsafe extern "C" fn(c_uint, c_int, u64, *mut c_void, u64, c_ulonglong) -> c_int;

pub(crate) unsafe fn bind_memory(
    ready: &'static Ready,
    real: BindMemory,
    number: c_uint,
    device: c_int,
    offset: u64,
    memory: u64,
    from: u64,
    bytes: u64,
    flags: c_ulonglong,
) -> c_int {
    physical::bindings::on_gpu(ready, device, |gpu, device| {
        let Some(known) = physical::bindings::up_to(ready, memory, from.saturating_add(bytes)) else {
            return OUT_OF_MEMORY;
        };
        let what = physical::bindings::at(Part { gpu, offset, bytes }, known);
        bind(&Endpoint { ready, number }, what, || {
            // SAFETY: passed on, with the real device.
            unsafe { real(number, device, offset, memory, from, bytes, flags) }
        })
    })
}

pub(crate) unsafe fn bind_address(
    ready: &'static Ready,
    real: BindAddress,
    number: c_uint,
    device: c_int,
    offset: u64,
    address: *mut c_void,
    bytes: u64,
    flags: c_ulonglong,
) -> c_int {
    physical::bindings::on_gpu(ready, device, |gpu, device| {
        let Some(memory) = physical::bindings::of_address(ready, address as u64, bytes) else {
            return OUT_OF_MEMORY;
        };
        let what = physical::bindings::at(Part { gpu, offset, bytes }, memory);
        bind(&Endpoint { ready, number }, what, || {
            // SAFETY: passed on, with the real device.
            unsafe { real(number, device, offset, address, bytes, flags) }
        })
    })
}

pub(crate) unsafe fn unbind(
    ready: &'static Ready,
    real: unsafe extern "C" fn(c_uint, c_int, u64, u64) -> c_int,
    number: c_uint,
    device: c_int,
    offset: u64,
    bytes: u64,
) -> c_int {
    physical::bindings::on_gpu(ready, device, |gpu, device| {
        unbound(&Endpoint { ready, number }, Part { gpu, offset, bytes }, || {
            // SAFETY: passed on, with the real device.
            unsafe { real(number, device, offset, bytes) }
        })
    })
}

pub(crate) unsafe fn destroy(
    ready: &'static Ready,
    real: unsafe extern "C" fn(c_uint) -> c_int,
    number: c_uint,
) -> c_int {
    let endpoint = Endpoint { ready, number };
    // Out of the table first: once destroyed, another thread may make one of this number.
    let gone = ready.tables.endpoints.remove(endpoint.key());
    // SAFETY: passed on.
    let result = unsafe { real(number) };
    if let Some(kept) = gone.filter(|_| result != SUCCESS) {
        endpoint.add(kept);
    }
    result
}

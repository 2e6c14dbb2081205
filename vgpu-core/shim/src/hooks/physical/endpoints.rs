//! Logical endpoints: names in a fabric. They keep the memory that is bound to them until it is unbound or the endpoint
//! is destroyed.
//!
//! Memory of this process can also be bound to an imported endpoint. So bindings are recorded by the endpoint's number,
//! whichever process created it. The program chooses that number, and 0 is valid.
//!
//! How it fails: if the driver refuses to destroy an endpoint, its bindings stay. If a thread binds while another
//! destroys the endpoint, the entry may stay: the memory stays charged until an endpoint with that number is destroyed.
//! For unbinding, and for calls that fail, see [`vgpu_core::bindings`].

use crate::codes::{INVALID_DEVICE, SUCCESS};
use crate::driver::Bindings;
use crate::hooks::physical::bindings::Memory;
use crate::process::Ready;
use core::ffi::{c_int, c_uint};
use vgpu_core::bindings::{Object, Part};

/// CUlogicalEndpointProp.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    kind: c_int,
    /// The device, or the number of GPUs if there are several.
    device: c_int,
    bytes: u64,
    handle_types: c_uint,
    flags: c_uint,
}
const _: () = assert!(size_of::<Properties>() == 24);

/// CU_LOGICAL_ENDPOINT_TYPE_UNICAST.
const OF_ONE_GPU: c_int = 1;

/// An endpoint by its number.
pub(crate) struct Endpoint {
    ready: &'static Ready,
    number: c_uint,
}

/// Finds the endpoint of a number.
pub(crate) fn of(number: c_uint) -> impl FnOnce(&'static Ready) -> Endpoint {
    move |ready| Endpoint { ready, number }
}

impl Endpoint {
    fn key(&self) -> u64 {
        1 << 32 | u64::from(self.number)
    }
}

impl Object<Memory> for Endpoint {
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

pub(crate) unsafe fn with_real(
    ready: &'static Ready,
    properties: *const Properties,
    next: impl FnOnce(*const Properties) -> c_int,
) -> c_int {
    // SAFETY: null, or the caller's.
    let own = unsafe { properties.as_ref() }.copied();
    let (Some(mut own), Some(devices)) = (own, ready.devices()) else {
        return next(properties);
    };
    if own.kind == OF_ONE_GPU {
        match devices.real(own.device) {
            Some(device) => own.device = device,
            None => return INVALID_DEVICE,
        }
    }
    next(&own)
}

pub(crate) fn destroy(ready: &'static Ready, number: c_uint, next: impl FnOnce() -> c_int) -> c_int {
    let endpoint = Endpoint { ready, number };
    // Remove it from the table first: once it is destroyed, another thread may create one with this number.
    let gone = ready.tables.endpoints.remove(endpoint.key());
    let result = next();
    if let Some(kept) = gone.filter(|_| result != SUCCESS) {
        endpoint.add(kept);
    }
    result
}

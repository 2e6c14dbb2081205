//! Bindings of memory to multicast objects and logical endpoints: finds the memory of this process that a binding keeps
//! allocated, and its GPU. [`vgpu_core::bindings`] tells when bindings are added and removed.
//!
//! ```text
//!  handle  ─► its Backing ───────────────────────┐
//!  address ─► the memory mapped there ───────────┼─► kept while it is bound
//!          └► memory of a pool: charged again ───┘
//! ```
//!
//! Memory of a pool is charged a second time while it is bound: the pool may shrink meanwhile, and the driver does not
//! report how much of it the binding keeps.
//!
//! How it fails: if the second charge does not fit, the binding is refused before the driver is called. Memory whose
//! handle this process did not get from a known call is not charged by its binding either.

use crate::codes::{INVALID_DEVICE, SUCCESS};
use crate::driver::{Backing, Bindings};
use crate::hooks::sharing;
use crate::process::Ready;
use crate::real::real;
use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use vgpu_core::bindings::Part;
use vgpu_core::memory::backing::within;
use vgpu_core::memory::charge::charge;

pub(crate) type Memory = Arc<Backing>;

/// The memory, or the object, of a handle.
pub(crate) fn of_handle(ready: &Ready, handle: u64) -> Option<Memory> {
    ready.tables.vmm_handles.with(handle, |(backing, _)| backing.clone())
}

/// The same, charged up to `end` if another process made it; None: that is not free.
pub(crate) fn up_to(ready: &Ready, handle: u64, end: u64) -> Option<Option<Memory>> {
    let memory = of_handle(ready, handle);
    memory.as_ref().is_none_or(|memory| memory.reach(end)).then_some(memory)
}

/// The memory of the `bytes` at `address`; None: it cannot be charged.
pub(crate) fn of_address(ready: &'static Ready, address: u64, bytes: u64) -> Option<Vec<Memory>> {
    let mapped = within(&ready.tables.vmm_maps, address, bytes);
    if !mapped.is_empty() {
        return Some(mapped);
    }
    let Some((gpu, _)) = sharing::imports::extent(ready, address).filter(|_| !is_host(address)) else {
        return Some(mapped);
    };
    let charge = charge(ready.gpus.get(gpu)?, bytes)?;
    Some(vec![Arc::new(Backing::surplus(&ready.gpus, gpu, charge))])
}

/// Returns true if host memory lies at an address: that too has a device, the one that it was made for.
fn is_host(address: u64) -> bool {
    const MEMORY_TYPE: c_int = 2;
    const HOST: c_uint = 1;
    let mut kind: c_uint = 0;
    let at: *mut c_uint = &mut kind;
    let ask = real!(cuPointerGetAttribute(*mut c_void, c_int, u64));
    // SAFETY: `kind` is to be written.
    (unsafe { ask(at.cast(), MEMORY_TYPE, address) }) == SUCCESS && kind == HOST
}

/// Calls `pass` with the GPU that the program calls `device`, and the driver's number of it.
pub(crate) fn on_gpu(ready: &Ready, device: c_int, pass: impl FnOnce(usize, c_int) -> c_int) -> c_int {
    let Some(devices) = ready.devices() else {
        // Not initialised, as the driver will say: nothing can be bound yet.
        return pass(usize::MAX, device);
    };
    match devices.gpu(device).zip(devices.real(device)) {
        Some((gpu, real)) => pass(gpu, real),
        None => INVALID_DEVICE,
    }
}

/// `memory`, all of it bound to one part.
pub(crate) fn at(part: Part, memory: impl IntoIterator<Item = Memory>) -> Bindings {
    memory.into_iter().map(|memory| (part, memory)).collect()
}

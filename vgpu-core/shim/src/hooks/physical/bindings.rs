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

use crate::codes::{INVALID_DEVICE, OUT_OF_MEMORY};
use crate::driver::{Backing, Real};
use crate::hooks::sharing;
use crate::process::Ready;
use core::ffi::{c_int, c_uint};
use std::sync::Arc;
use vgpu_core::bindings::{self, Object, Part, bind};
use vgpu_core::memory::backing::within;
use vgpu_core::memory::charge::charge;

pub(crate) type Memory = Arc<Backing>;

/// Returns the memory, or the object, of a handle.
pub(crate) fn of_handle(ready: &Ready, handle: u64) -> Option<Memory> {
    ready.tables.vmm_handles.with(handle, |(backing, _)| backing.clone())
}

/// Returns the memory of a handle, charged up to `end` if another process made it. None: there is not enough room.
pub(crate) fn up_to(ready: &Ready, handle: u64, end: u64) -> Option<Option<Memory>> {
    let memory = of_handle(ready, handle);
    memory.as_ref().is_none_or(|memory| memory.reach(end)).then_some(memory)
}

/// Returns the memory of the `bytes` at `address`. None: it cannot be charged.
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

/// Returns true if an address is host memory. The driver names a device for host memory too: the one for which it was
/// allocated.
fn is_host(address: u64) -> bool {
    const HOST: c_uint = 1;
    Real.memory_type(address) == Ok(HOST)
}

/// Calls `pass` with the GPU that the program calls `device`, and the driver's number of this GPU.
fn on_gpu(ready: &Ready, device: c_int, pass: impl FnOnce(usize, c_int) -> c_int) -> c_int {
    let Some(devices) = ready.devices() else {
        // The driver is not initialised, and its call returns that error. Nothing can be bound yet.
        return pass(usize::MAX, device);
    };
    match devices.gpu(device).zip(devices.real(device)) {
        Some((gpu, real)) => pass(gpu, real),
        None => INVALID_DEVICE,
    }
}

/// An offset and a size in an object.
pub(crate) type Range = (u64, u64);

/// Binds the memory of a handle, starting at offset `from`, to a range of an object on one GPU. `find` finds the
/// object.
pub(crate) fn bind_memory<O: Object<Memory>>(
    ready: &'static Ready,
    find: impl FnOnce(&'static Ready) -> O,
    device: c_int,
    (offset, bytes): Range,
    memory: u64,
    from: u64,
    next: impl FnOnce(c_int) -> c_int,
) -> c_int {
    let memory = || Some(up_to(ready, memory, from.saturating_add(bytes))?.into_iter().collect());
    bind_on(ready, find, device, (offset, bytes), memory, next)
}

/// Binds the memory at an address.
pub(crate) fn bind_address<O: Object<Memory>>(
    ready: &'static Ready,
    find: impl FnOnce(&'static Ready) -> O,
    device: c_int,
    (offset, bytes): Range,
    address: u64,
    next: impl FnOnce(c_int) -> c_int,
) -> c_int {
    let memory = || of_address(ready, address, bytes);
    bind_on(ready, find, device, (offset, bytes), memory, next)
}

fn bind_on<O: Object<Memory>>(
    ready: &'static Ready,
    find: impl FnOnce(&'static Ready) -> O,
    device: c_int,
    (offset, bytes): Range,
    memory: impl FnOnce() -> Option<Vec<Memory>>,
    next: impl FnOnce(c_int) -> c_int,
) -> c_int {
    on_gpu(ready, device, |gpu, device| {
        let Some(memory) = memory() else {
            return OUT_OF_MEMORY;
        };
        let part = Part { gpu, offset, bytes };
        let bindings = memory.into_iter().map(|memory| (part, memory)).collect();
        bind(&find(ready), bindings, || next(device))
    })
}

pub(crate) fn unbind<O: Object<Memory>>(
    ready: &'static Ready,
    find: impl FnOnce(&'static Ready) -> O,
    device: c_int,
    (offset, bytes): Range,
    next: impl FnOnce(c_int) -> c_int,
) -> c_int {
    on_gpu(ready, device, |gpu, device| {
        bindings::unbind(&find(ready), Part { gpu, offset, bytes }, || next(device))
    })
}

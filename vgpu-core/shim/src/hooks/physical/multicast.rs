//! Multicast objects: they have no memory of their own, but keep the physical memory that is bound to them, until it is
//! unbound or the object's last handle and mapping are gone.
//!
//! How it fails: memory that a driver needs for the object itself (page tables) is not charged at once. NVML's figure
//! of the process contains it, and the next measured call charges it. Memory that is bound to an object which no known
//! call has created or imported stays charged until the process ends. For threads that bind and unbind at once, and for
//! calls that fail, see [`vgpu_core::bindings`].
#![allow(clippy::too_many_arguments)] // They are NVIDIA's.

use crate::codes::{OUT_OF_MEMORY, SUCCESS};
use crate::driver::{Backing, Bindings};
use crate::hooks::physical;
use crate::hooks::physical::bindings::Memory;

use crate::process::Ready;
use core::ffi::{c_int, c_ulonglong, c_void};
use std::sync::Arc;
use vgpu_core::bindings::{Object, Part, bind, unbind as unbound};

/// The object of a call, which lives at least as long as that; None: it is unknown.
struct Multicast(Option<Memory>);

impl Object<Memory> for Multicast {
    fn add(&self, more: Bindings) {
        match &self.0 {
            Some(object) => object.bound.lock().add(more),
            None => core::mem::forget(more),
        }
    }

    fn take(&self, part: Part) -> Bindings {
        let take = |object: &Memory| object.bound.lock().take(part);
        self.0.as_ref().map(take).unwrap_or_default()
    }
}

impl Multicast {
    fn of(ready: &Ready, handle: u64) -> Self {
        Self(physical::bindings::of_handle(ready, handle))
    }
}

/// `memory`, bound where it lies.
fn at_home(offset: usize, bytes: usize, memory: impl IntoIterator<Item = Memory>) -> Bindings {
    let place = |memory: Memory| (part(memory.gpu, offset, bytes), memory);
    memory.into_iter().map(place).collect()
}

fn part(gpu: usize, offset: usize, bytes: usize) -> Part {
    Part {
        gpu,
        offset: offset as u64,
        bytes: bytes as u64,
    }
}

fn end(from: usize, bytes: usize) -> u64 {
    (from as u64).saturating_add(bytes as u64)
}

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
            .tables
            .vmm_handles
            .insert(handle, (Arc::new(Backing::new(&ready.gpus, 0, None)), 1));
    }
    result
}

type BindMemory = unsafe extern "C" fn(u64, usize, u64, usize, usize, c_ulonglong) -> c_int;
type BindMemoryV2 = unsafe extern "C" fn(u64, c_int, usize, u64, usize, usize, c_ulonglong) -> c_int;
type BindAddress = unsafe extern "C" fn(u64, usize, u64, usize, c_ulonglong) -> c_int;
type BindAddressV2 = unsafe extern "C" fn(u64, c_int, usize, u64, usize, c_ulonglong) -> c_int;

pub(crate) unsafe fn bind_memory(
    ready: &'static Ready,
    real: BindMemory,
    object: u64,
    offset: usize,
    memory: u64,
    from: usize,
    bytes: usize,
    flags: c_ulonglong,
) -> c_int {
    let Some(known) = physical::bindings::up_to(ready, memory, end(from, bytes)) else {
        return OUT_OF_MEMORY;
    };
    bind(&Multicast::of(ready, object), at_home(offset, bytes, known), || {
        // SAFETY: passed on.
        unsafe { real(object, offset, memory, from, bytes, flags) }
    })
}

pub(crate) unsafe fn bind_memory_v2(
    ready: &'static Ready,
    real: BindMemoryV2,
    object: u64,
    device: c_int,
    offset: usize,
    memory: u64,
    from: usize,
    bytes: usize,
    flags: c_ulonglong,
) -> c_int {
    physical::bindings::on_gpu(ready, device, |gpu, device| {
        let Some(known) = physical::bindings::up_to(ready, memory, end(from, bytes)) else {
            return OUT_OF_MEMORY;
        };
        let what = physical::bindings::at(part(gpu, offset, bytes), known);
        bind(&Multicast::of(ready, object), what, || {
            // SAFETY: passed on, with the real device.
            unsafe { real(object, device, offset, memory, from, bytes, flags) }
        })
    })
}

pub(crate) unsafe fn bind_address(
    ready: &'static Ready,
    real: BindAddress,
    object: u64,
    offset: usize,
    address: u64,
    bytes: usize,
    flags: c_ulonglong,
) -> c_int {
    let Some(memory) = physical::bindings::of_address(ready, address, bytes as u64) else {
        return OUT_OF_MEMORY;
    };
    bind(&Multicast::of(ready, object), at_home(offset, bytes, memory), || {
        // SAFETY: passed on.
        unsafe { real(object, offset, address, bytes, flags) }
    })
}

pub(crate) unsafe fn bind_address_v2(
    ready: &'static Ready,
    real: BindAddressV2,
    object: u64,
    device: c_int,
    offset: usize,
    address: u64,
    bytes: usize,
    flags: c_ulonglong,
) -> c_int {
    physical::bindings::on_gpu(ready, device, |gpu, device| {
        let Some(memory) = physical::bindings::of_address(ready, address, bytes as u64) else {
            return OUT_OF_MEMORY;
        };
        let what = physical::bindings::at(part(gpu, offset, bytes), memory);
        bind(&Multicast::of(ready, object), what, || {
            // SAFETY: passed on, with the real device.
            unsafe { real(object, device, offset, address, bytes, flags) }
        })
    })
}

pub(crate) unsafe fn unbind(
    ready: &'static Ready,
    real: unsafe extern "C" fn(u64, c_int, usize, usize) -> c_int,
    object: u64,
    device: c_int,
    offset: usize,
    bytes: usize,
) -> c_int {
    physical::bindings::on_gpu(ready, device, |gpu, device| {
        unbound(&Multicast::of(ready, object), part(gpu, offset, bytes), || {
            // SAFETY: passed on, with the real device.
            unsafe { real(object, device, offset, bytes) }
        })
    })
}

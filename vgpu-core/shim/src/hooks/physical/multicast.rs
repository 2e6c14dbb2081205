//! Multicast objects: they have no memory themselves, but keep the physical memory that is bound to them, until it is
//! unbound or the object's last handle and mapping are gone.
//!
//! How it fails: memory that a driver needs for the object itself (page tables) is not charged at once. NVML's figure
//! of the process contains it, and the next measured call charges it. Memory that is bound to an object which no known
//! call has created or imported stays charged until the process ends. For threads that bind and unbind at once, and for
//! calls that fail, see [`vgpu_core::bindings`].

use crate::codes::{OUT_OF_MEMORY, SUCCESS};
use crate::driver::{Backing, Bindings};
use crate::hooks::physical::bindings::{Memory, Range, of_address, of_handle, up_to};
use crate::process::Ready;
use core::ffi::c_int;
use std::sync::Arc;
use vgpu_core::bindings::{Object, Part, bind};

/// The object of a call, which lives at least as long as the call; None: the object is unknown.
pub(crate) struct Multicast(Option<Memory>);

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

/// Finds the object of a handle.
pub(crate) fn of(handle: u64) -> impl FnOnce(&'static Ready) -> Multicast {
    move |ready| Multicast(of_handle(ready, handle))
}

/// Offset and size of a part, as [`bindings`](super::bindings) takes them.
pub(crate) fn range(offset: usize, bytes: usize) -> Range {
    (offset as u64, bytes as u64)
}

/// Binds pieces of `memory`, each on the GPU to which it belongs.
fn bind_at_home(
    ready: &'static Ready,
    object: u64,
    (offset, bytes): Range,
    memory: Option<Vec<Memory>>,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let Some(memory) = memory else {
        return OUT_OF_MEMORY;
    };
    let part = |memory: &Memory| Part {
        gpu: memory.gpu,
        offset,
        bytes,
    };
    let bindings = memory.into_iter().map(|memory| (part(&memory), memory)).collect();
    bind(&of(object)(ready), bindings, next)
}

pub(crate) unsafe fn create(ready: &'static Ready, handle: *mut u64, next: impl FnOnce() -> c_int) -> c_int {
    let result = next();
    // SAFETY: null, or the driver has written it.
    if let (SUCCESS, Some(handle)) = (result, unsafe { handle.as_ref() }) {
        let object = Arc::new(Backing::new(&ready.gpus, 0, None));
        ready.tables.vmm_handles.insert(*handle, (object, 1));
    }
    result
}

pub(crate) fn bind_memory(
    ready: &'static Ready,
    object: u64,
    offset: usize,
    memory: u64,
    from: usize,
    bytes: usize,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let memory = up_to(ready, memory, (from as u64).saturating_add(bytes as u64));
    let memory = memory.map(|memory| memory.into_iter().collect());
    bind_at_home(ready, object, range(offset, bytes), memory, next)
}

pub(crate) fn bind_address(
    ready: &'static Ready,
    object: u64,
    offset: usize,
    address: u64,
    bytes: usize,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let memory = of_address(ready, address, bytes as u64);
    bind_at_home(ready, object, range(offset, bytes), memory, next)
}

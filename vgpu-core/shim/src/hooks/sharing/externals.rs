//! Memory that is imported from other interfaces (Vulkan, NvSci): charged to this process, because no other call
//! charges it, until the memory and all its mappings are gone. The caller passes the size, so it is charged before the
//! driver is called.
//!
//! Resources that OpenGL, EGL and VDPAU share (cuGraphics*) are not charged: these interfaces allocated them in this
//! process, and the driver reports no size before they are mapped.

use crate::codes::{OUT_OF_MEMORY, SUCCESS};
use crate::driver::Backing;
use crate::driver::Real;
use crate::process::Ready;
use core::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vgpu_core::memory::charge::charge;
use vgpu_core::memory::driver::Streams;
use vgpu_core::memory::refusal;

/// Set once this process has mapped external memory. Processes that never do so skip the look-up at each free.
static USED: AtomicBool = AtomicBool::new(false);

/// CUDA_EXTERNAL_MEMORY_HANDLE_DESC.
#[repr(C)]
pub(crate) struct Descriptor {
    kind: c_int,
    handle: [u64; 2],
    bytes: u64,
    flags: u32,
    reserved: [u32; 16],
}
const _: () = assert!(size_of::<Descriptor>() == 104);

pub(crate) unsafe fn import(
    ready: &'static Ready,
    memory: *mut usize,
    descriptor: *const Descriptor,
    next: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: null, or the caller's.
    let (Some(asked), Some(index), false) = (unsafe { descriptor.as_ref() }, ready.current(), memory.is_null()) else {
        return next();
    };
    let Some(charge) = ready.gpus.get(index).and_then(|gpu| charge(gpu, asked.bytes)) else {
        return OUT_OF_MEMORY;
    };
    let backing = Arc::new(Backing::new(&ready.gpus, index, Some(charge)));
    let result = next();
    if result == SUCCESS {
        // SAFETY: the driver has written it.
        ready.tables.externals.insert(unsafe { *memory } as u64, backing);
    } else if let (OUT_OF_MEMORY, Some(gpu)) = (result, ready.gpus.get(index)) {
        refusal::by_driver(gpu, asked.bytes);
    }
    result
}

pub(crate) unsafe fn buffer(
    ready: &'static Ready,
    pointer: *mut u64,
    memory: usize,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let backing = ready.tables.externals.with(memory as u64, |backing| backing.clone());
    let result = next();
    if let (SUCCESS, Some(backing), false) = (result, backing, pointer.is_null()) {
        USED.store(true, Ordering::Relaxed);
        // SAFETY: the driver has written it.
        ready.tables.buffers.insert(unsafe { *pointer }, backing);
    }
    result
}

pub(crate) unsafe fn array(
    ready: &'static Ready,
    array: *mut usize,
    memory: usize,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let backing = ready.tables.externals.with(memory as u64, |backing| backing.clone());
    let result = next();
    if let (SUCCESS, Some(backing), false) = (result, backing, array.is_null()) {
        let context = Real.current_context().unwrap_or(0);
        // SAFETY: the driver has written it.
        ready
            .tables
            .arrays
            .adopt(&ready.gpus, unsafe { *array }, context, backing);
    }
    result
}

pub(crate) fn destroy(ready: &'static Ready, memory: usize, next: impl FnOnce() -> c_int) -> c_int {
    // Remove it from the table first: once it is destroyed, the driver may give the handle to another thread.
    let known = ready.tables.externals.remove(memory as u64);
    let result = next();
    if let (Some(known), true) = (known, result != SUCCESS) {
        ready.tables.externals.insert(memory as u64, known);
    }
    result
}

/// Returns true if this process has ever mapped a buffer.
#[inline(always)]
pub(crate) fn used() -> bool {
    USED.load(Ordering::Relaxed)
}

/// Frees the memory at `pointer` by `free`. Needed because cuMemFree and cuMemFreeAsync also free mapped buffers.
#[cold]
pub(crate) fn freed(ready: &Ready, pointer: u64, free: impl FnOnce() -> c_int) -> c_int {
    // Remove it from the table first: once it is freed, the driver may give the address to another thread.
    let buffer = ready.tables.buffers.remove(pointer);
    let result = free();
    if let (Some(buffer), true) = (buffer, result != SUCCESS) {
        ready.tables.buffers.insert(pointer, buffer);
    }
    result
}

/// Stores the charge of an address that cuMemFree frees.
pub(crate) fn keep(ready: &Ready, pointer: u64, memory: Backing) {
    USED.store(true, Ordering::Relaxed);
    ready.tables.buffers.insert(pointer, Arc::new(memory));
}

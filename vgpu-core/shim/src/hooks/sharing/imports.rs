//! Memory of other processes (cuIpc*, pointers of imported pools). `vgpu_core::memory::imports` explains which process
//! is charged. A pool is charged by the bytes that it reserves, which cannot be assigned to single pointers. So
//! pointers of an imported pool are charged twice while both processes have them.

use crate::codes::{OUT_OF_MEMORY, SUCCESS};
use crate::driver::{Backing, Real};
use crate::hooks::sharing;
use crate::process::Ready;
use crate::real::real;
use core::ffi::c_int;
use std::sync::Arc;
use vgpu_core::memory::charge::charge;
use vgpu_core::memory::imports::{self, Held};
use vgpu_core::memory::{export_identity, refcounts};

/// CUipcMemHandle.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Handle(pub(crate) [u64; 8]);

/// Returns the GPU and the size of the allocation around `pointer`.
pub(crate) fn extent(ready: &Ready, pointer: u64) -> Option<(usize, u64)> {
    let device = Real.pointer_device(pointer).ok()?;
    let (_, bytes) = Real.address_range(pointer).ok()?;
    let gpu = ready.devices()?.list.iter().find(|(real, _)| *real == device)?.1;
    Some((gpu, bytes as u64))
}

pub(crate) unsafe fn open(
    ready: &'static Ready,
    pointer: *mut u64,
    handle: Handle,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let held = export_identity::of_handle(handle.0).and_then(|key| Held::of(&ready.gpus, key));
    let result = next();
    if result != SUCCESS || pointer.is_null() {
        return result;
    }
    // SAFETY: the driver has written it.
    let pointer = unsafe { *pointer };
    if refcounts::retain(&ready.tables.imports, pointer) {
        return result;
    }
    match imports::mapped(&ready.gpus, extent(ready, pointer), held) {
        Ok(Some(mapped)) => refcounts::acquire(&ready.tables.imports, pointer, Arc::new(mapped)),
        Ok(None) => {}
        Err(error) => {
            // SAFETY: just opened.
            unsafe { real!(cuIpcCloseMemHandle)(pointer) };
            return error;
        }
    }
    SUCCESS
}

pub(crate) fn close(ready: &'static Ready, pointer: u64, next: impl FnOnce() -> c_int) -> c_int {
    refcounts::release(&ready.tables.imports, pointer, next)
}

/// Imports a pointer of an imported pool. cuMemFree and cuMemFreeAsync release it.
pub(crate) unsafe fn pool_pointer(ready: &'static Ready, pointer: *mut u64, next: impl FnOnce() -> c_int) -> c_int {
    let result = next();
    if result != SUCCESS || pointer.is_null() {
        return result;
    }
    // SAFETY: the driver has written it.
    let pointer = unsafe { *pointer };
    let Some((gpu, bytes)) = extent(ready, pointer) else {
        return result;
    };
    match ready.gpus.get(gpu).and_then(|owner| charge(owner, bytes)) {
        Some(charge) => {
            sharing::externals::keep(ready, pointer, Backing::surplus(&ready.gpus, gpu, charge));
            SUCCESS
        }
        None => {
            // SAFETY: just imported.
            unsafe { real!(cuMemFree_v2)(pointer) };
            OUT_OF_MEMORY
        }
    }
}

//! Memory of other processes (cuIpc*, pointers of imported pools). `vgpu_core::memory::imports` tells which process is
//! charged. A pool is charged by the bytes that it reserves, which cannot be assigned to single pointers. So pointers
//! of an imported pool count twice while both processes have them.

use crate::codes::{OUT_OF_MEMORY, SUCCESS};
use crate::driver::Backing;
use crate::hooks::sharing;
use crate::process::Ready;
use crate::real::real;
use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use vgpu_core::memory::charge::charge;
use vgpu_core::memory::imports::{self, Held};
use vgpu_core::memory::{export_identity, refcounts};

/// CUipcMemHandle.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Handle(pub(crate) [u64; 8]);

/// GPU and size of what lies at `pointer`.
pub(crate) fn extent(ready: &Ready, pointer: u64) -> Option<(usize, u64)> {
    const DEVICE_ORDINAL: c_int = 9;
    let (mut device, mut start, mut bytes) = (-1_i32, 0_u64, 0_usize);
    let at: *mut c_int = &mut device;
    // SAFETY: all are to be written.
    let results = unsafe {
        [
            real!(cuPointerGetAttribute(*mut c_void, c_int, u64))(at.cast(), DEVICE_ORDINAL, pointer),
            real!(cuMemGetAddressRange_v2(*mut u64, *mut usize, u64))(&mut start, &mut bytes, pointer),
        ]
    };
    let gpu = ready.devices()?.list.iter().find(|(real, _)| *real == device)?.1;
    (results == [SUCCESS; 2]).then_some((gpu, bytes as u64))
}

pub(crate) unsafe fn open(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut u64, Handle, c_uint) -> c_int,
    pointer: *mut u64,
    handle: Handle,
    flags: c_uint,
) -> c_int {
    let held = export_identity::of_handle(handle.0).and_then(|key| Held::of(&ready.gpus, key));
    // SAFETY: passed on.
    let result = unsafe { real(pointer, handle, flags) };
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
            unsafe { real!(cuIpcCloseMemHandle(u64))(pointer) };
            return error;
        }
    }
    SUCCESS
}

pub(crate) unsafe fn close(ready: &'static Ready, real: unsafe extern "C" fn(u64) -> c_int, pointer: u64) -> c_int {
    // SAFETY: passed on.
    refcounts::release(&ready.tables.imports, pointer, || unsafe { real(pointer) })
}

/// A pointer of an imported pool: given back by cuMemFree and cuMemFreeAsync.
pub(crate) unsafe fn pool_pointer(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut u64, usize, *mut c_void) -> c_int,
    pointer: *mut u64,
    pool: usize,
    data: *mut c_void,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(pointer, pool, data) };
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
            unsafe { real!(cuMemFree_v2(u64))(pointer) };
            OUT_OF_MEMORY
        }
    }
}

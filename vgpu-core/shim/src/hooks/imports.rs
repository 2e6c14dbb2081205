//! Memory of other processes (cuIpc*, pointers of imported pools): charged to who maps it.
//!
//! Who made it is charged as well, and may die first: its charge goes, the memory stays for as long as it
//! is mapped here, and is charged here. So memory that two processes share counts twice while both have
//! it: no call tells whose it is, so neither could take over from the other at the right moment.
//! Mapping takes no memory, so the charge may follow the call, which alone tells the size.

use crate::detour::{OUT_OF_MEMORY, SUCCESS};
use crate::hooks::counted;
use crate::hooks::granules::Live;
use crate::hooks::memory::{charge, keep};
use crate::hooks::vmm::Backing;
use crate::real::real;
use crate::state::Ready;
use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

/// CUipcMemHandle.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Handle([u64; 8]);

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
    // SAFETY: passed on.
    let result = unsafe { real(pointer, handle, flags) };
    if result != SUCCESS || pointer.is_null() {
        return result;
    }
    // SAFETY: the driver has written it.
    let pointer = unsafe { *pointer };
    if counted::again(&ready.imports, pointer) {
        return result;
    }
    let Some((gpu, bytes)) = extent(ready, pointer) else {
        return result;
    };
    match ready.gpus.get(gpu).and_then(|owner| charge(owner, bytes)) {
        Some(charge) => {
            let mapped = Arc::new(Backing::new(ready, gpu, Some(charge)));
            ready.imports.insert(pointer, (mapped, 1));
            SUCCESS
        }
        None => {
            // SAFETY: just opened.
            unsafe { real!(cuIpcCloseMemHandle(u64))(pointer) };
            OUT_OF_MEMORY
        }
    }
}

pub(crate) unsafe fn close(ready: &'static Ready, real: unsafe extern "C" fn(u64) -> c_int, pointer: u64) -> c_int {
    // SAFETY: passed on.
    counted::release(&ready.imports, pointer, || unsafe { real(pointer) })
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
            keep(ready, pointer, Live::new(gpu, charge));
            SUCCESS
        }
        None => {
            // SAFETY: just imported.
            unsafe { real!(cuMemFree_v2(u64))(pointer) };
            OUT_OF_MEMORY
        }
    }
}

//! Memory of other processes (cuIpc*, pointers of imported pools): charged to who maps it, unless a process
//! of the same share made it and it can be recognised ([`export_identity`]): then it is charged once, for as long as
//! either has it.
//!
//! ```text
//!  recognised: hold the object ─► driver ─ done, and as large as that ──► it is ours too
//!  else:                          driver ─► charge, or close it again
//! ```
//!
//! An object is held before the driver is asked, for its other holders may die meanwhile. All else is charged
//! after the call, which alone tells the size: to who maps it as well as to who made it, who may die first.
//! So memory of another share, and pointers of pools (a pool is charged by what it keeps reserved, which no
//! pointer has a part of), count twice while both have them.
//!
//! How it fails: between the driver's call and the charge of what was not recognised, its maker may die, and
//! it is charged to nobody for that moment.

use crate::codes::{OUT_OF_MEMORY, SUCCESS};
use crate::driver::Backing;
use crate::driver::Gpu;
use crate::hooks::{export_identity, externals};
use crate::process::Ready;
use crate::real::real;
use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use vgpu_core::account::Charge;
use vgpu_core::ledger::Key;
use vgpu_core::memory::charge::charge;
use vgpu_core::memory::granule::granules;
use vgpu_core::memory::refcounts;

/// CUipcMemHandle.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Handle(pub(crate) [u64; 8]);

/// Memory that a process of the share exported, held here too; dropped, it is let go.
pub(crate) struct Held {
    ready: &'static Ready,
    gpu: usize,
    charge: Option<Charge>,
}

impl Held {
    /// What is found by `key`.
    pub(crate) fn of(ready: &'static Ready, key: Key) -> Option<Self> {
        let find = |(gpu, owner): (usize, &Gpu)| Some((gpu, owner.account.import(key)?));
        let (gpu, charge) = ready.gpus.iter().enumerate().find_map(find)?;
        Some(Self {
            ready,
            gpu,
            charge: Some(charge),
        })
    }

    /// Its charge, if the driver says that it lies there.
    pub(crate) fn on(mut self, gpu: usize) -> Option<Charge> {
        if gpu == self.gpu { self.charge.take() } else { None }
    }

    fn bytes(&self) -> u64 {
        self.charge.as_ref().map_or(0, Charge::bytes)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let (Some(gpu), Some(charge)) = (self.ready.gpus.get(self.gpu), self.charge.take()) {
            gpu.account.release(charge);
        }
    }
}

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
    let held = export_identity::of_handle(handle.0).and_then(|key| Held::of(ready, key));
    // SAFETY: passed on.
    let result = unsafe { real(pointer, handle, flags) };
    if result != SUCCESS || pointer.is_null() {
        return result;
    }
    // SAFETY: the driver has written it.
    let pointer = unsafe { *pointer };
    if refcounts::retain(&ready.imports, pointer) {
        return result;
    }
    let together = |gpu, charge| Backing::new(&ready.gpus, gpu, Some(charge));
    let mapped = match (extent(ready, pointer), held) {
        (None, None) => return result,
        (None, Some(mut held)) => held.charge.take().map(|charge| together(held.gpu, charge)),
        (Some((gpu, bytes)), held) => {
            // Of another size, it is something else than what we hold.
            let held = held.filter(|held| Some(held.bytes()) == granules(bytes));
            let held = held.and_then(|held| held.on(gpu)).map(|charge| together(gpu, charge));
            let pay = || Some(Backing::surplus(&ready.gpus, gpu, charge(ready.gpus.get(gpu)?, bytes)?));
            held.or_else(pay)
        }
    };
    match mapped {
        Some(mapped) => {
            refcounts::acquire(&ready.imports, pointer, Arc::new(mapped));
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
    refcounts::release(&ready.imports, pointer, || unsafe { real(pointer) })
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
            externals::keep(ready, pointer, Backing::surplus(&ready.gpus, gpu, charge));
            SUCCESS
        }
        None => {
            // SAFETY: just imported.
            unsafe { real!(cuMemFree_v2(u64))(pointer) };
            OUT_OF_MEMORY
        }
    }
}

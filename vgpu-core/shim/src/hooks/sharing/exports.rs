//! Exports memory of this process. If an import can be matched to the export ([`export_identity`]), the charge moves to
//! an object of the ledger before the handle is returned. So an importer of the same share is not charged again, and
//! keeps the charge when this process frees the memory or dies.
//!
//! A handle (descriptor, fabric handle, dma-buf) keeps the memory as long as any process has the handle, even after
//! cuMemRelease and cuMemFree. So exported memory stays charged until its descriptor is closed everywhere, if that can
//! be detected ([`exported`](vgpu_core::memory::exported)), else until this process ends. After that it stays charged
//! until its importers have released it.
//!
//! ```text
//!  cuIpcGetMemHandle             ─► the charge of the allocation, or of its shared granule, moves to an object
//!  cuMemExportToShareableHandle  ─► a reference to the Backing is kept with a watch of the descriptor
//!  cuMemGetHandleForAddressRange ─► one is never dropped, for the memory mapped there; the charge of a cuMemAlloc
//!                                   leaves the table of live allocations and is never released
//! ```
//!
//! An exported dma-buf stays charged even after its last handle is closed, because no call reports this: copies of a
//! descriptor may be in other processes and in messages between them.
//!
//! Locking: an allocation stays in the table while its charge moves, under the table's lock, so no other thread frees
//! it or a neighbour in its granule meanwhile. The lock is held during the waits of the ledger, in each share that has
//! a part of the charge: up to 0.2 s each for another process's reap, for a fork of this process, and for a busy lane,
//! counting only time in which this thread could run. After a timeout on a reaper, no thread waits for it for the next
//! ten seconds.
//!
//! How it fails:
//! - Memory that is exported by two handles (two descriptors, two small allocations in one granule) is found only by
//!   the first handle; importers by the second handle are charged as well.
//! - When this process ends, exported memory that no process of the share has imported is no longer charged. Memory
//!   that only a descriptor in another process keeps is charged to nobody, until a process maps it
//!   ([`imports`](super::imports)). NVML's figures contain it, so the node's comparison with them shows it.
//!
//! Host memory that replaces device memory ([`host`](super::super::host::physical)) cannot be exported: an importer
//! could not recognise it, and it would be charged to nobody when this process ends.
//!
//! A pool's handle keeps no memory: a pool that reserves memory is not destroyed here
//! ([`pools`](super::super::memory::pools)), and memory of the pool that other processes map is charged to them.

use crate::codes::{NOT_SUPPORTED, SUCCESS};
use crate::driver::Real;
use crate::hooks::sharing::imports::Handle;
use crate::process::Ready;
use core::ffi::{c_int, c_void};
use vgpu_core::memory::backing::within;
use vgpu_core::memory::export_identity;
use vgpu_core::os::last_close::LastClose;

pub(crate) unsafe fn ipc_handle(
    ready: &'static Ready,
    handle: *mut Handle,
    pointer: u64,
    next: impl FnOnce() -> c_int,
) -> c_int {
    let result = next();
    if result != SUCCESS || handle.is_null() {
        return result;
    }
    // SAFETY: the driver has written it.
    let words = unsafe { handle.read_unaligned() }.0;
    if let Some(key) = export_identity::of_handle(words) {
        let mut known = false;
        let start = start_of(pointer).unwrap_or(pointer);
        ready.tables.live.with_charge(&ready.gpus, start, |gpu, charge| {
            known = true;
            gpu.account.export(charge, key);
        });
        if !known {
            ready.gpus.iter().for_each(|gpu| gpu.account.hide(key));
        }
    }
    result
}

/// Exports physical memory as a handle.
pub(crate) unsafe fn physical(
    ready: &'static Ready,
    shared: *mut c_void,
    handle: u64,
    kind: c_int,
    next: impl FnOnce() -> c_int,
) -> c_int {
    // Held before the call: another thread may release it meanwhile.
    let backing = ready.tables.vmm_handles.with(handle, |(backing, _)| backing.clone());
    if backing.as_ref().is_some_and(|backing| backing.is_host()) {
        return NOT_SUPPORTED;
    }
    ready.collect_exported();
    let result = next();
    if let (SUCCESS, Some(backing)) = (result, backing) {
        // SAFETY: the driver has written what this kind is; a descriptor is an int.
        let descriptor = || unsafe { shared.cast::<c_int>().read_unaligned() };
        if let Some(key) = export_identity::of_descriptor(kind, descriptor) {
            backing.export(key);
        }
        let watch = (kind == export_identity::DESCRIPTOR).then(|| LastClose::new(descriptor()));
        match ready.gpus.get(backing.gpu) {
            Some(gpu) => gpu.exported.keep(watch.flatten(), Box::new(backing)),
            None => core::mem::forget(backing),
        }
    }
    result
}

/// Exports the memory at an address as a handle.
pub(crate) fn range(ready: &'static Ready, pointer: u64, bytes: usize, next: impl FnOnce() -> c_int) -> c_int {
    let mapped = within(&ready.tables.vmm_maps, pointer, bytes as u64);
    if mapped.iter().any(|backing| backing.is_host()) {
        return NOT_SUPPORTED;
    }
    let start = if mapped.is_empty() { start_of(pointer) } else { None };
    // Removed from the table before the call, so that memory that another thread frees meanwhile stays charged.
    let taken = start.map(|start| (start, ready.tables.live.take(start)));
    let result = next();
    if result == SUCCESS {
        core::mem::forget(mapped);
    }
    match taken {
        Some((start, taken)) if result == SUCCESS => ready.tables.live.keep_charged(start, taken),
        Some((start, taken)) => ready.tables.live.finish_free(&ready.gpus, start, taken, false),
        None => {}
    }
    result
}

/// Returns the start of the allocation around `pointer`. None: the driver does not know it.
fn start_of(pointer: u64) -> Option<u64> {
    Real.address_range(pointer).ok().map(|(start, _)| start)
}

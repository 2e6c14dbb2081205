//! Allocations beyond the share's device memory: if the share has host memory too (memoryPolicy Oversubscribe), an
//! allocation that does not fit becomes managed memory that stays on the host, charged to the second ledger of the
//! share.
//!
//! ```text
//!  cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged ─┬─► device ledger ─ full ─► host ledger ─► cuMemAllocManaged
//!  cuMemAllocAsync, cuMemAllocFromPoolAsync ───────┘   (pools trimmed)                       + prefer the host
//! ```
//!
//! The pages of managed memory stay on the host and the GPU reads them over the bus. So the charge of device memory
//! stays correct: pages that migrated to the GPU would use a neighbour's memory. A program may still move pages to the
//! GPU by its own advice or prefetches. That is tolerable, because the driver evicts such pages from the GPU as soon as
//! any process allocates.
//!
//! An allocation is either device or host memory as a whole, because one pointer has one kind of memory. Memory that
//! cannot be managed memory stays on the device: arrays, graphs and allocations that are captured into them, and pools
//! with further properties (exported, a largest size). Physical memory by handle has a host kind of its own:
//! [`physical`](super::physical). The attributes of a pool include only its device memory.
//!
//! [`deferred_free`] keeps the order of streams.
//!
//! Difference from a pool: managed memory is freed with the context in which it was allocated, here the stream's
//! context, while memory of a device's pool would outlive that context.
//!
//! How it fails: a GPU that cannot share managed memory with the host while it works (before Pascal, or under a
//! hypervisor without support) would keep all managed memory on the GPU. On such a GPU the call returns out of memory,
//! as in a share without host memory. If the advice is refused, the pages may migrate, and the driver evicts them
//! again.

use crate::codes::{OUT_OF_MEMORY, SUCCESS};
use crate::driver::{Gpu, Real};
use crate::process::Ready;
use crate::real::real;
use core::ffi::{c_int, c_uint};
use vgpu_core::account::rounded;
use vgpu_core::memory::deferred_free;
use vgpu_core::memory::driver::is_captured;
use vgpu_core::memory::granule::{PITCH, granules};
use vgpu_core::memory::live::Live;
use vgpu_core::memory::refusal;

/// CU_MEM_ATTACH_HOST: begins on the host; a GPU with concurrent access sees the memory nevertheless.
const ATTACH_HOST: c_uint = 2;
const CONCURRENT_MANAGED_ACCESS: c_int = 89;
const PREFER: c_int = 3;
const HOST: c_int = -1;

/// Allocates `bytes` in host memory.
///
/// # Safety
/// `pointer` may be written.
#[cold]
pub(crate) unsafe fn instead(ready: &Ready, gpu: usize, pointer: *mut u64, bytes: u64) -> c_int {
    let Some(owner) = ready.gpus.get(gpu).filter(|owner| owner.account.has_host()) else {
        return OUT_OF_MEMORY;
    };
    let Some(whole) = granules(bytes).filter(|_| is_shared(ready, gpu)) else {
        return OUT_OF_MEMORY;
    };
    let Some(charge) = deferred_free::reserve(&ready.gpus, &ready.tables.live, owner, whole) else {
        return OUT_OF_MEMORY;
    };
    let mut address = 0;
    // SAFETY: `address` is to be written.
    let result = unsafe { real!(cuMemAllocManaged)(&mut address, bytes as usize, ATTACH_HOST) };
    if result != SUCCESS {
        owner.account.release(charge);
        return OUT_OF_MEMORY;
    }
    // SAFETY: the range just allocated.
    unsafe { real!(cuMemAdvise(u64, usize, c_int, c_int))(address, bytes as usize, PREFER, HOST) };
    ready.tables.live.keep(&ready.gpus, address, Live::new(gpu, charge));
    refusal::forget();
    // SAFETY: as promised.
    unsafe { pointer.write(address) };
    SUCCESS
}

/// Allocates `bytes` in host memory in the order of `stream`, instead of a pool's memory. The context is the stream's.
///
/// # Safety
/// `pointer` may be written.
#[cold]
pub(crate) unsafe fn instead_in_order(
    ready: &Ready,
    owner: &Gpu,
    pointer: *mut u64,
    bytes: u64,
    stream: usize,
) -> c_int {
    let gpu = ready.gpus.iter().position(|one| core::ptr::eq(one, owner));
    let (Some(gpu), Some(whole), true) = (gpu, granules(bytes), owner.account.has_host()) else {
        return OUT_OF_MEMORY;
    };
    if is_captured(&owner.driver, stream) {
        return OUT_OF_MEMORY;
    }
    let Ok(order) = deferred_free::InOrder::of(&owner.driver, stream) else {
        return OUT_OF_MEMORY;
    };
    match deferred_free::again(&ready.gpus, &ready.tables.live, owner, whole, stream, &order) {
        Some(address) => {
            refusal::forget();
            // SAFETY: as promised.
            unsafe { pointer.write(address) };
            SUCCESS
        }
        // SAFETY: as promised.
        None => unsafe { instead(ready, gpu, pointer, bytes) },
    }
}

/// Allocates rows in host memory, for a pitched allocation.
///
/// # Safety
/// `pointer` and `pitch` may be written.
#[cold]
pub(crate) unsafe fn instead_of_rows(
    ready: &Ready,
    gpu: usize,
    pointer: *mut u64,
    pitch: *mut u64,
    width: u64,
    height: u64,
) -> c_int {
    let rows = rounded(width, PITCH).and_then(|row| Some((row, row.checked_mul(height)?)));
    let Some((row, bytes)) = rows.filter(|(_, bytes)| *bytes > 0) else {
        return OUT_OF_MEMORY;
    };
    // SAFETY: as promised.
    let result = unsafe { instead(ready, gpu, pointer, bytes) };
    if result == SUCCESS {
        // SAFETY: the caller promises that `pitch` may be written.
        unsafe { pitch.write(row) };
    }
    result
}

/// Returns true if the GPU can use managed memory while it stays on the host.
fn is_shared(ready: &Ready, gpu: usize) -> bool {
    let Some(device) = ready.devices().and_then(|devices| devices.of_gpu(gpu)) else {
        return false;
    };
    Real.device_attribute(CONCURRENT_MANAGED_ACCESS, device)
        .is_ok_and(|value| value != 0)
}

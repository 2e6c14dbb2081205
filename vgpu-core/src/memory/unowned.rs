//! Memory of a context that NVML lists for no process: page tables and buffers of the driver. The share that has the
//! context is charged for it, so that the shares of a GPU never get more than the GPU has. The limits file has the
//! amount for one context.
//!
//! How it fails: if this memory was not measured, nothing is charged. Then an allocation on a full GPU may fail
//! although its share has room.

use super::charge::charge_now;
use super::contexts::Contexts;
use super::driver::Driver;
use super::gpu::Gpu;
use std::sync::atomic::Ordering;

/// Charges for one more context, before the driver creates it. Returns false if that much is not free. The caller holds
/// the lock of the overhead, because a measurement would count the charge as allocated memory.
pub fn reserve<D: Driver>(gpu: &Gpu<D>, contexts: &Contexts) -> bool {
    let mut charge = gpu.unowned.charge.lock();
    let wanted = gpu.unowned.each.saturating_mul(u64::from(contexts.number()) + 1);
    let Some(missing) = wanted.checked_sub(charge.bytes()).filter(|missing| *missing > 0) else {
        return true;
    };
    let Some(more) = charge_now(gpu, missing) else {
        return false;
    };
    gpu.surplus.fetch_add(more.bytes(), Ordering::Relaxed);
    charge.add(more);
    true
}

/// Releases the charge for contexts that no longer exist. The caller holds the lock of the overhead.
pub fn settle<D: Driver>(gpu: &Gpu<D>, contexts: &Contexts) {
    let mut charge = gpu.unowned.charge.lock();
    let before = charge.bytes();
    let wanted = gpu.unowned.each.saturating_mul(u64::from(contexts.number()));
    charge.set(&gpu.account, wanted.min(before));
    gpu.surplus.fetch_sub(before - charge.bytes(), Ordering::Relaxed);
}

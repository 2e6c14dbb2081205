//! Memory that a GPU has less while a context exists, and that NVML lists for no process: page tables and buffers of the
//! driver. It is charged to the share that has the context, so that the shares of a GPU never have more than it. The
//! limits file says how much it is for one context.
//!
//! How it fails: where nobody measured it, nothing is charged, and the last allocation on a full GPU may get the driver's own
//! out of memory within its limit.

use super::charge::charge_now;
use super::contexts::Contexts;
use super::driver::Driver;
use super::gpu::Gpu;
use std::sync::atomic::Ordering;

/// Charges one more context than there are, before the driver is asked for it. Returns false if that much is not free. The
/// caller holds the lock of the overhead: a measurement would take the charge for allocated memory.
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

/// Releases what is charged for more contexts than there are, under the lock of the overhead.
pub fn settle<D: Driver>(gpu: &Gpu<D>, contexts: &Contexts) {
    let mut charge = gpu.unowned.charge.lock();
    let before = charge.bytes();
    let wanted = gpu.unowned.each.saturating_mul(u64::from(contexts.number()));
    charge.set(&gpu.account, wanted.min(before));
    gpu.surplus.fetch_sub(before - charge.bytes(), Ordering::Relaxed);
}

//! Makes room for an allocation that would exceed the limit: makes the driver free unused memory of pools and graphs,
//! and releases the charge of exported memory that nobody holds any more.

use super::driver::{Driver, OUT_OF_MEMORY};
use super::first_contexts::FirstContexts;
use super::gpu::Gpu;
use super::pools::{Attempt, Growth, Wanted};
use super::{graphs, pools, refusal};
use crate::os::spin::Patience;
use core::cell::Cell;
use core::ffi::c_int;

/// Makes room. Returns false if there is nothing to free.
#[cold]
pub fn make_room<D: Driver>(gpu: &Gpu<D>) -> bool {
    let exported = gpu.exported.collect();
    let pools = gpu.pools.trim_all(&gpu.driver, &gpu.account);
    gpu.graphs.trim_all(&gpu.driver, &gpu.account) || pools || exported
}

/// Updates the charges of pools and graphs to what they reserve now.
#[inline(always)]
pub fn refresh<D: Driver>(gpu: &Gpu<D>) {
    gpu.pools.refresh(&gpu.driver, &gpu.account);
    gpu.graphs.refresh(&gpu.driver, &gpu.account);
}

/// Like [`refresh`]. Returns false if other threads hold the locks for longer than `patience`.
pub fn refresh_with<D: Driver>(gpu: &Gpu<D>, patience: &mut Patience) -> bool {
    gpu.pools.refresh_with(&gpu.driver, &gpu.account, patience)
        && gpu.graphs.refresh_with(&gpu.driver, &gpu.account, patience)
}

/// Updates the charges of pools and graphs after a free: the pointer may have been of a pool or a graph.
#[inline(always)]
pub fn after_free<D: Driver>(gpus: &[Gpu<D>]) {
    if pools::used() || graphs::used() {
        gpus.iter().for_each(refresh);
    }
}

/// Allocates from a pool and charges the pool's growth. If the growth exceeds the limit, frees unused memory of graphs,
/// waits for processes that are creating their first context, and tries once more.
pub fn grow<D: Driver>(gpu: &Gpu<D>, wanted: Wanted, allocate: impl Fn() -> Result<u64, c_int>) -> Result<(), c_int> {
    let bytes = wanted.bytes;
    let has_driver_refused = Cell::new(false);
    let result = grow_with_room(gpu, wanted, || {
        let answer = allocate();
        has_driver_refused.set(answer == Err(OUT_OF_MEMORY));
        answer
    });
    match result {
        Err(OUT_OF_MEMORY) if has_driver_refused.get() => refusal::by_driver(gpu, bytes),
        Err(OUT_OF_MEMORY) => refusal::by_limit(gpu, bytes),
        _ => {}
    }
    result
}

fn grow_with_room<D: Driver>(
    gpu: &Gpu<D>,
    wanted: Wanted,
    allocate: impl Fn() -> Result<u64, c_int>,
) -> Result<(), c_int> {
    let attempt = |attempt| match gpu.pools.grow(&gpu.driver, &gpu.account, wanted, attempt, &allocate) {
        Growth::Done(result) => Some(result),
        Growth::NoRoom => None,
    };
    if let Some(result) = attempt(Attempt::First) {
        return result;
    }
    gpu.exported.collect();
    // Must not be under the lock of pools: the launch of a graph locks graphs first and then pools.
    gpu.graphs.trim_all(&gpu.driver, &gpu.account);
    let mut first_contexts = FirstContexts::awaited();
    while first_contexts.wait(gpu) {
        if let Some(result) = attempt(Attempt::First) {
            return result;
        }
    }
    attempt(Attempt::Last).unwrap_or(Err(OUT_OF_MEMORY))
}

#[cfg(all(test, not(miri)))] // The tests map files.
mod tests {
    use super::super::charge::charge;
    use super::super::fake::{DEFAULT_POOL, DEVICE, FakePool, MIB, gpu};
    use super::*;

    #[test]
    fn what_a_pool_keeps_unused_gives_way_to_an_allocation() {
        let gpu = gpu(16 * MIB);
        gpu.pools.know(DEFAULT_POOL, true);
        let kept = FakePool {
            reserved: 12 * MIB,
            used: 2 * MIB,
        };
        gpu.driver.state().pools.insert(DEFAULT_POOL, kept);
        refresh(&gpu);
        assert_eq!(gpu.account.charged(), 12 * MIB);
        assert!(charge(&gpu, 16 * MIB).is_none(), "2 MiB are used");
        let charged = charge(&gpu, 13 * MIB).expect("room");
        assert_eq!(
            (charged.bytes(), gpu.account.charged()),
            (14 * MIB, 16 * MIB),
            "whole granules"
        );
        gpu.account.release(charged);
    }

    #[test]
    fn graphs_give_way_to_a_pool_that_has_to_grow() {
        graphs::note_used();
        let gpu = gpu(16 * MIB);
        gpu.graphs.enter(Some(DEVICE), 12 * MIB);
        (gpu.driver.state().graphs_reserved, gpu.driver.state().graphs_unused) = (12 * MIB, 10 * MIB);
        refresh(&gpu);
        let wanted = |bytes| Wanted {
            pool: DEFAULT_POOL,
            bytes,
            stream: 0,
        };
        let allocate = || {
            let grown = FakePool {
                reserved: 8 * MIB,
                used: 8 * MIB,
            };
            gpu.driver.state().pools.insert(DEFAULT_POOL, grown);
            Ok(0x1000)
        };
        assert_eq!(grow(&gpu, wanted(8 * MIB), allocate), Ok(()));
        assert_eq!(gpu.account.charged(), 10 * MIB, "2 MiB of graphs are left");
        assert_eq!(grow(&gpu, wanted(8 * MIB), allocate), Err(OUT_OF_MEMORY));
    }
}

//! Makes room for an allocation that would exceed the limit: lets the driver free what pools and graphs keep unused, and
//! releases the charge of exported memory that nobody has any more.

use super::driver::{Driver, OUT_OF_MEMORY};
use super::gpu::Gpu;
use super::newcomers::Newcomers;
use super::pools::{Attempt, Growth, Wanted};
use super::{graphs, pools};
use crate::log;
use crate::os::spin::Patience;
use core::ffi::c_int;

/// Lets the driver free what pools and graphs keep unused, and exported memory go. Returns false if there is none.
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

/// Updates these charges after a free: the pointer may have been one of a pool or a graph.
#[inline(always)]
pub fn after_free<D: Driver>(gpus: &[Gpu<D>]) {
    if pools::used() || graphs::used() {
        gpus.iter().for_each(refresh);
    }
}

/// Allocates from a pool and charges the pool's growth. If that exceeds the limit, frees what graphs keep unused, waits
/// for newcomers and tries once more.
pub fn grow<D: Driver>(gpu: &Gpu<D>, wanted: Wanted, allocate: impl Fn() -> Result<u64, c_int>) -> Result<(), c_int> {
    let bytes = wanted.bytes;
    let result = grow_with_room(gpu, wanted, allocate);
    if result == Err(OUT_OF_MEMORY) {
        log::refused(&gpu.uuid, &gpu.account, bytes);
    }
    result
}

fn grow_with_room<D: Driver>(
    gpu: &Gpu<D>,
    wanted: Wanted,
    allocate: impl Fn() -> Result<u64, c_int>,
) -> Result<(), c_int> {
    if let Growth::Done(result) = gpu
        .pools
        .grow(&gpu.driver, &gpu.account, wanted, Attempt::First, &allocate)
    {
        return result;
    }
    gpu.exported.collect();
    // Not under the lock of pools: the launch of a graph locks graphs first and then pools.
    gpu.graphs.trim_all(&gpu.driver, &gpu.account);
    let mut newcomers = Newcomers::awaited();
    while newcomers.wait(gpu) {
        if let Growth::Done(result) = gpu
            .pools
            .grow(&gpu.driver, &gpu.account, wanted, Attempt::First, &allocate)
        {
            return result;
        }
    }
    match gpu
        .pools
        .grow(&gpu.driver, &gpu.account, wanted, Attempt::Last, allocate)
    {
        Growth::Done(result) => result,
        Growth::NoRoom => Err(OUT_OF_MEMORY),
    }
}

#[cfg(test)]
mod tests {
    use super::super::charge::charge;
    use super::super::fake::{DEFAULT_POOL, DEVICE, FakePool, MIB, gpu};
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "maps a file")]
    fn what_a_pool_keeps_unused_gives_way_to_an_allocation() {
        let folder = tempfile::tempdir().expect("a folder");
        let gpu = gpu(&folder, 16 * MIB);
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
    #[cfg_attr(miri, ignore = "maps a file")]
    fn graphs_give_way_to_a_pool_that_has_to_grow() {
        graphs::note_used();
        let folder = tempfile::tempdir().expect("a folder");
        let gpu = gpu(&folder, 16 * MIB);
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

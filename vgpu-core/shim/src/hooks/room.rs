//! Room for an allocation that would be refused: the driver gives back what pools and graphs keep unused.

use crate::codes::OUT_OF_MEMORY;
use crate::gpu::Gpu;
use crate::hooks::pools::{Attempt, Growth, Wanted};
use core::ffi::c_int;
use vgpu_core::os::spin::Patience;

/// Has the driver give back what it keeps unused. Returns false if there was nothing to ask for.
#[cold]
pub(crate) fn make_room(gpu: &Gpu) -> bool {
    let pools = gpu.pools.trim_all(&gpu.account);
    gpu.graphs.trim_all(&gpu.account) || pools
}

/// Charges pools and graphs what they reserve now.
#[inline(always)]
pub(crate) fn refresh(gpu: &Gpu) {
    gpu.pools.refresh(&gpu.account);
    gpu.graphs.refresh(&gpu.account);
}

/// The same. Returns false if the calls that other threads are in outlast `patience`.
pub(crate) fn refresh_with(gpu: &Gpu, patience: &mut Patience) -> bool {
    gpu.pools.refresh_with(&gpu.account, patience) && gpu.graphs.refresh_with(&gpu.account, patience)
}

/// After a pointer was freed, which may have been one of a pool or a graph.
#[inline(always)]
pub(crate) fn after_free(gpus: &[Gpu]) {
    use crate::hooks::{graphs, pools};
    if pools::used() || graphs::used() {
        gpus.iter().for_each(refresh);
    }
}

/// Allocates from a pool with its growth charged; where the limit is reached, once more with what graphs keep
/// unused given back.
pub(crate) fn grow(gpu: &Gpu, wanted: Wanted, allocate: impl Fn() -> c_int) -> c_int {
    if let Growth::Done(result) = gpu.pools.grow(&gpu.account, wanted, Attempt::First, &allocate) {
        return result;
    }
    // A launch holds the lock of graphs and takes that of pools: never the other way round.
    gpu.graphs.trim_all(&gpu.account);
    match gpu.pools.grow(&gpu.account, wanted, Attempt::Last, allocate) {
        Growth::Done(result) => result,
        Growth::NoRoom => OUT_OF_MEMORY,
    }
}

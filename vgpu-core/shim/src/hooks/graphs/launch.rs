//! Launches of graphs that allocate, and the needs of executable graphs on every GPU ([`graphs`]).

use crate::codes::OUT_OF_MEMORY;
use crate::process::Ready;
use core::ffi::c_int;
use vgpu_core::memory::graphs::{self, Needs};
use vgpu_core::memory::refusal;

/// Charges `needs` and calls `launch`, which gives a graph this memory.
pub(crate) fn mapped(ready: &Ready, needs: &Needs, stream: usize, launch: impl FnOnce() -> c_int) -> c_int {
    let mut held = Vec::with_capacity(needs.len());
    let mut fits = true;
    // In the order of GPUs, so that two threads never wait for each other.
    for (index, need) in needs {
        if let Some(gpu) = ready.gpus.get(*index) {
            let Some(memory) = gpu.graphs.lock() else { continue };
            let reserve = || {
                let mut memory = memory.borrow_mut();
                memory.reserve(&gpu.driver, &gpu.account, &gpu.pools, *need, stream)
            };
            if fits && !reserve() {
                fits = false;
                refusal::by_limit(gpu, *need);
            }
            held.push((gpu, memory));
        }
    }
    let result = if fits { launch() } else { OUT_OF_MEMORY };
    held.iter()
        .for_each(|(gpu, memory)| memory.borrow_mut().settle(&gpu.driver, &gpu.account));
    result
}

/// Adds the needs of a new executable graph.
pub(crate) fn enter(ready: &Ready, needs: &Needs) {
    graphs::note_used();
    for (index, need) in needs {
        if let (Some(gpu), Some(devices)) = (ready.gpus.get(*index), ready.devices()) {
            gpu.graphs.enter(devices.of_gpu(*index), *need);
        }
    }
}

/// Removes the needs of an executable graph that is gone.
pub(crate) fn leave(ready: &Ready, needs: &Needs) {
    for (index, need) in needs {
        if let Some(gpu) = ready.gpus.get(*index) {
            gpu.graphs.leave(*need);
        }
    }
}

/// Adjusts the charge of graphs on every GPU to the driver's current reservation.
#[cold]
pub(crate) fn settle_all(ready: &Ready) {
    ready
        .gpus
        .iter()
        .for_each(|gpu| gpu.graphs.settle(&gpu.driver, &gpu.account));
}

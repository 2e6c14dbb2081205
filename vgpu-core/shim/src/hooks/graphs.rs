//! Memory of graphs: charged by what the driver keeps reserved for them, which it tells.
//!
//! A node that allocates only reserves an address, whether it was added or captured. The driver takes
//! memory when an executable graph is uploaded or launched, keeps it for the next launch, lets graphs
//! that do not run at once share it, and gives it back when the device's graph memory is trimmed.
//!
//! ```text
//!  instantiate ─► sum of the allocating nodes, a GPU: what the graph can need
//!  launch      ─► charge ahead what it can grow by ─► driver ─► ask what is reserved ─► charge that
//!  refused     ─► trim pools and graph memory, ask again ─► wait for the stream, trim ─► once more
//! ```
//!
//! What a launch can grow by is at most what its graph needs, and at most what all executable graphs
//! of the process need together beyond what is charged already. So a graph that is launched again and
//! again charges nothing ahead once its memory is there, and the driver never has more than is charged.
//! Memory that outlives its executable graph is counted among the needs for as long as anything is
//! reserved. Conditional bodies cannot allocate.
//!
//! How it fails: a driver that does not tell what is reserved (before 11.4): charged is what all
//! executable graphs need, which is more than it takes, and what they needed stays charged.

use crate::codes::{OUT_OF_MEMORY, SUCCESS};
use crate::hooks::level::Level;
use crate::hooks::pools;
use crate::process::{Gpu, Ready};
use crate::real::real;
use core::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use vgpu_core::os::spin::Patience;

const RESERVED_MEM_CURRENT: c_int = 2;

/// Whether this process has ever had a graph that allocates: spares the others the look.
static USED: AtomicBool = AtomicBool::new(false);

/// What one GPU's graphs are charged, and what bounds it.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    level: Level,
    /// What the executable graphs can need together.
    need: u64,
    /// What destroyed ones may have left behind.
    left: u64,
    /// The driver's device, once a graph has needed it.
    device: Option<c_int>,
}

/// What an executable graph needs of each GPU.
pub(crate) type Needs = Vec<(usize, u64)>;

impl Memory {
    /// Charges what the driver says is reserved.
    fn settle(&mut self, gpu: &Gpu) {
        let Some(device) = self.device else { return };
        let mut reserved = 0_u64;
        let at: *mut u64 = &mut reserved;
        // SAFETY: the attribute is 8 bytes, to be written.
        let result = unsafe {
            real!(cuDeviceGetGraphMemAttribute(c_int, c_int, *mut c_void))(device, RESERVED_MEM_CURRENT, at.cast())
        };
        if result == SUCCESS {
            self.left = self.left.min(reserved);
            // A launch grows by what was charged ahead at most, so this has room.
            self.level.set(gpu, reserved);
        }
    }

    fn trim(&mut self, gpu: &Gpu) {
        if let Some(device) = self.device {
            // SAFETY: a device of the driver's.
            unsafe { real!(cuDeviceGraphMemTrim(c_int))(device) };
            self.settle(gpu);
        }
    }

    /// Charges what a launch of a graph that needs `need` can grow by.
    fn reserve(&mut self, gpu: &Gpu, need: u64, stream: usize) -> bool {
        self.settle(gpu);
        if self.attempt(gpu, need) {
            return true;
        }
        pools::trim_all(gpu);
        self.trim(gpu);
        if self.attempt(gpu, need) {
            return true;
        }
        if pools::is_captured(stream) {
            // Nothing is launched: it becomes part of the graph that is being captured.
            return true;
        }
        // SAFETY: the caller's stream.
        unsafe { real!(cuStreamSynchronize(usize))(stream) };
        self.trim(gpu);
        self.attempt(gpu, need)
    }

    fn attempt(&mut self, gpu: &Gpu, need: u64) -> bool {
        let room = self.need.saturating_add(self.left).saturating_sub(self.level.bytes());
        match need.min(room) {
            0 => true,
            want => gpu.account.reserve(want).map(|ahead| self.level.add(ahead)).is_ok(),
        }
    }
}

/// Calls `launch`, by which a graph with `needs` gets its memory, with that charged.
pub(crate) fn mapped(ready: &Ready, needs: &Needs, stream: usize, launch: impl FnOnce() -> c_int) -> c_int {
    let mut held = Vec::with_capacity(needs.len());
    let mut fits = true;
    // In the order of GPUs, so that two threads never wait for each other.
    for (index, need) in needs {
        if let Some(gpu) = ready.gpus.get(*index) {
            let mut memory = gpu.graphs.lock();
            fits = fits && memory.reserve(gpu, *need, stream);
            held.push((gpu, memory));
        }
    }
    let result = if fits { launch() } else { OUT_OF_MEMORY };
    held.iter_mut().for_each(|(gpu, memory)| memory.settle(gpu));
    result
}

/// Counts the needs of a new executable graph.
pub(crate) fn enter(ready: &Ready, needs: &Needs) {
    USED.store(true, Ordering::Relaxed);
    for (index, need) in needs {
        if let (Some(gpu), Some(devices)) = (ready.gpus.get(*index), ready.devices()) {
            let mut memory = gpu.graphs.lock();
            memory.need = memory.need.saturating_add(*need);
            memory.device = devices.of_gpu(*index);
        }
    }
}

/// Counts them out; what it may leave behind is known only by what stays reserved.
pub(crate) fn leave(ready: &Ready, needs: &Needs) {
    for (index, need) in needs {
        if let Some(gpu) = ready.gpus.get(*index) {
            let mut memory = gpu.graphs.lock();
            memory.need = memory.need.saturating_sub(*need);
            memory.left = memory.left.saturating_add(*need);
        }
    }
}

/// After the last context of a GPU went, and with it all graphs that need it.
pub(crate) fn forget(ready: &Ready, index: usize) {
    ready.graphs.drain(|_, needs| {
        needs.retain(|(gpu, _)| *gpu != index);
        needs.is_empty()
    });
    if let Some(gpu) = ready.gpus.get(index) {
        let mut memory = gpu.graphs.lock();
        memory.need = 0;
        memory.settle(gpu);
        memory.left = memory.level.bytes();
    }
}

/// What the graphs of `gpu` are charged; None: somebody is launching one.
pub(crate) fn reserved(gpu: &Gpu) -> Option<u64> {
    Some(gpu.graphs.try_lock()?.level.bytes())
}

/// Whether this process has ever had a graph that allocates.
#[inline(always)]
pub(crate) fn used() -> bool {
    USED.load(Ordering::Relaxed)
}

/// Charges the graphs of every GPU what the driver reserves now.
#[cold]
pub(crate) fn settle_all(ready: &Ready) {
    ready.gpus.iter().for_each(|gpu| gpu.graphs.lock().settle(gpu));
}

/// cuMemFree and cuMemFreeAsync take pointers of graphs too.
#[inline(always)]
pub(crate) fn after_free(ready: &Ready) {
    if used() {
        settle_all(ready);
    }
}

#[inline(always)]
pub(crate) fn refresh(gpu: &Gpu) {
    if used() {
        gpu.graphs.lock().settle(gpu);
    }
}

/// The same, if nobody launches one for longer than `patience` lasts.
pub(crate) fn refresh_with(gpu: &Gpu, patience: &mut Patience) -> bool {
    !used()
        || gpu
            .graphs
            .lock_with(patience)
            .map(|mut graphs| graphs.settle(gpu))
            .is_some()
}

/// Has the driver give back what graphs of `gpu` keep unused; whether there are any.
#[cold]
pub(crate) fn trim_all(gpu: &Gpu) -> bool {
    let any = used();
    if any {
        gpu.graphs.lock().trim(gpu);
    }
    any
}

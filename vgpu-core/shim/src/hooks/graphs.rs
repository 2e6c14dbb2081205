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

use crate::codes::SUCCESS;
use crate::hooks::capture::is_captured;
use crate::hooks::pools::Pools;
use crate::real::real;
use core::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use vgpu_core::account::Account;
use vgpu_core::memory::tracked_charge::TrackedCharge;
use vgpu_core::os::spin::{Held, Patience, Spin};

const RESERVED_MEM_CURRENT: c_int = 2;

/// Set once this process has had a graph that allocates: other processes skip the look at their graphs.
static USED: AtomicBool = AtomicBool::new(false);

/// The memory of one GPU's graphs.
#[derive(Debug, Default)]
pub(crate) struct Graphs(Spin<Memory>);

/// The charge for one GPU's graphs, and its bounds.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    charge: TrackedCharge,
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
    pub(crate) fn settle(&mut self, account: &Account) {
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
            self.charge.set(account, reserved);
        }
    }

    fn trim(&mut self, account: &Account) {
        if let Some(device) = self.device {
            // SAFETY: a device of the driver's.
            unsafe { real!(cuDeviceGraphMemTrim(c_int))(device) };
            self.settle(account);
        }
    }

    /// Charges what a launch of a graph that needs `need` can grow by. Returns false if that is not free.
    pub(crate) fn reserve(&mut self, account: &Account, pools: &Pools, need: u64, stream: usize) -> bool {
        self.settle(account);
        if self.attempt(account, need) {
            return true;
        }
        pools.trim_all(account);
        self.trim(account);
        if self.attempt(account, need) {
            return true;
        }
        if is_captured(stream) {
            // Nothing is launched: it becomes part of the graph that is being captured.
            return true;
        }
        // SAFETY: the caller's stream.
        unsafe { real!(cuStreamSynchronize(usize))(stream) };
        self.trim(account);
        self.attempt(account, need)
    }

    fn attempt(&mut self, account: &Account, need: u64) -> bool {
        let room = self.need.saturating_add(self.left).saturating_sub(self.charge.bytes());
        match need.min(room) {
            0 => true,
            want => account.reserve(want).map(|ahead| self.charge.add(ahead)).is_ok(),
        }
    }
}

impl Graphs {
    pub(crate) fn lock(&self) -> Held<'_, Memory> {
        self.0.lock()
    }

    /// Counts the need of a new executable graph. `device`: the driver's number of their GPU.
    pub(crate) fn enter(&self, device: Option<c_int>, need: u64) {
        let mut memory = self.0.lock();
        memory.need = memory.need.saturating_add(need);
        memory.device = device;
    }

    /// Counts it out; what it may leave behind is known only by what stays reserved.
    pub(crate) fn leave(&self, need: u64) {
        let mut memory = self.0.lock();
        memory.need = memory.need.saturating_sub(need);
        memory.left = memory.left.saturating_add(need);
    }

    /// After the last context of the GPU went, and with it all graphs that need it.
    pub(crate) fn clear(&self, account: &Account) {
        let mut memory = self.0.lock();
        memory.need = 0;
        memory.settle(account);
        memory.left = memory.charge.bytes();
    }

    /// Returns the bytes that the graphs are charged, or None if another thread is launching one.
    pub(crate) fn reserved(&self) -> Option<u64> {
        Some(self.0.try_lock()?.charge.bytes())
    }

    /// Charges the graphs what the driver reserves for them now.
    #[inline(always)]
    pub(crate) fn refresh(&self, account: &Account) {
        if used() {
            self.0.lock().settle(account);
        }
    }

    /// The same. Returns false if another thread was launching one for longer than `patience` lasts.
    pub(crate) fn refresh_with(&self, account: &Account, patience: &mut Patience) -> bool {
        !used()
            || self
                .0
                .lock_with(patience)
                .map(|mut graphs| graphs.settle(account))
                .is_some()
    }

    /// Has the driver give back what graphs keep unused. Returns true if there are any.
    #[cold]
    pub(crate) fn trim_all(&self, account: &Account) -> bool {
        let any = used();
        if any {
            self.0.lock().trim(account);
        }
        any
    }
}

/// Returns true if this process has ever had a graph that allocates.
#[inline(always)]
pub(crate) fn used() -> bool {
    USED.load(Ordering::Relaxed)
}

/// Notes that this process has a graph that allocates.
pub(crate) fn note_used() {
    USED.store(true, Ordering::Relaxed);
}

//! Memory of graphs. The charge follows the size that the driver reports as reserved for them.
//!
//! A node that allocates only reserves an address, whether it was added or captured. The driver takes memory when an
//! executable graph is uploaded or launched, keeps it for the next launch, lets graphs that do not run at once share
//! it, and releases it when the device's graph memory is trimmed.
//!
//! ```text
//!  instantiate ─► sum of the allocating nodes on each GPU: the most that the graph can need
//!  launch      ─► charge the most that it can grow by ─► driver ─► ask what is reserved ─► charge that
//!  refused     ─► trim pools and graph memory, ask again ─► wait for the stream, trim ─► once more
//! ```
//!
//! A launch can grow the reserved memory by at most what its graph needs, and by at most what all executable graphs of
//! the process need together beyond the present charge. So a graph that is launched again and again charges nothing
//! ahead once its memory is there, and the driver never has more than is charged. Memory that outlives its executable
//! graph is included in the needs as long as anything is reserved. Conditional bodies cannot allocate.
//!
//! How it fails: with a driver that does not report what is reserved (before 11.4), the needs of all executable graphs
//! are charged, which is more than the driver takes, and those of destroyed graphs stay charged.

use super::driver::{Driver, is_captured};
use super::pools::Pools;
use super::tracked_charge::TrackedCharge;
use crate::account::Account;
use crate::os::spin::{Entered, Patience, Reentrant};
use core::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set once this process has had a graph that allocates. Other processes skip the check of their graphs.
static USED: AtomicBool = AtomicBool::new(false);

/// The memory of one GPU's graphs.
#[derive(Debug, Default)]
pub struct Graphs(Reentrant<Memory>);

/// The charge for one GPU's graphs, and its bounds.
#[derive(Debug, Default)]
pub struct Memory {
    charge: TrackedCharge,
    /// The most that all executable graphs together can need.
    need: u64,
    /// The most that destroyed graphs may have left behind.
    left: u64,
    /// The driver's device, once a graph has needed it.
    device: Option<c_int>,
}

/// The memory that an executable graph needs, by GPU.
pub type Needs = Vec<(usize, u64)>;

impl Memory {
    /// Sets the charge to what the driver reports as reserved.
    pub fn settle(&mut self, driver: &impl Driver, account: &Account) {
        let Some(device) = self.device else { return };
        if let Ok(reserved) = driver.graphs_reserved(device) {
            self.left = self.left.min(reserved);
            // A launch grows by at most the bytes that were charged before it, so this fits.
            self.charge.set(account, reserved);
        }
    }

    fn trim(&mut self, driver: &impl Driver, account: &Account) {
        if let Some(device) = self.device {
            driver.trim_graphs(device);
            self.settle(driver, account);
        }
    }

    /// Charges the most by which a launch of a graph that needs `need` bytes can grow the reserved memory. Returns
    /// false if it does not fit.
    pub fn reserve(
        &mut self,
        driver: &impl Driver,
        account: &Account,
        pools: &Pools,
        need: u64,
        stream: usize,
    ) -> bool {
        self.settle(driver, account);
        if self.attempt(account, need) {
            return true;
        }
        pools.trim_all(driver, account);
        self.trim(driver, account);
        if self.attempt(account, need) {
            return true;
        }
        if is_captured(driver, stream) {
            // Nothing is launched: the launch becomes a node of the captured graph.
            return true;
        }
        driver.synchronize(stream);
        self.trim(driver, account);
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
    /// Locks the memory. Returns None if this thread is already launching a graph and the driver has called the program
    /// back. The memory of an inner launch is charged with the outer launch.
    pub fn lock(&self) -> Option<Entered<'_, Memory>> {
        self.0.lock_unless_within()
    }

    /// Calls `change` unless this thread is launching a graph already.
    fn with(&self, change: impl FnOnce(&mut Memory)) {
        if let Some(memory) = self.lock() {
            change(&mut memory.borrow_mut());
        }
    }

    /// Sets the charge to the memory that the driver reserves for graphs now.
    pub fn settle(&self, driver: &impl Driver, account: &Account) {
        self.with(|memory| memory.settle(driver, account));
    }

    /// Counts the need of a new executable graph. `device`: the driver's number of their GPU.
    pub fn enter(&self, device: Option<c_int>, need: u64) {
        self.with(|memory| {
            memory.need = memory.need.saturating_add(need);
            memory.device = device;
        });
    }

    /// Removes the need of a destroyed graph. Its memory may stay reserved.
    pub fn leave(&self, need: u64) {
        self.with(|memory| {
            memory.need = memory.need.saturating_sub(need);
            memory.left = memory.left.saturating_add(need);
        });
    }

    /// Resets the needs after the last context of the GPU has ended, and all graphs with it.
    pub fn clear(&self, driver: &impl Driver, account: &Account) {
        self.with(|memory| {
            memory.need = 0;
            memory.settle(driver, account);
            memory.left = memory.charge.bytes();
        });
    }

    /// Returns the charge of the graphs, or None if another thread is launching one.
    pub fn reserved(&self) -> Option<u64> {
        let memory = self.0.try_lock()?;
        let charged = memory.borrow().charge.bytes();
        Some(charged)
    }

    /// Does the same as [`Graphs::settle`], if a graph may have memory.
    #[inline(always)]
    pub fn refresh(&self, driver: &impl Driver, account: &Account) {
        if used() {
            self.settle(driver, account);
        }
    }

    /// Like [`Graphs::refresh`]. Returns false if another thread is launching a graph for longer than `patience`.
    pub fn refresh_with(&self, driver: &impl Driver, account: &Account, patience: &mut Patience) -> bool {
        !used()
            || self
                .0
                .lock_with(patience)
                .map(|graphs| graphs.borrow_mut().settle(driver, account))
                .is_some()
    }

    /// Makes the driver free the unused memory of graphs. Returns true if the process has used graphs.
    #[cold]
    pub fn trim_all(&self, driver: &impl Driver, account: &Account) -> bool {
        let any = used();
        if any {
            self.with(|memory| memory.trim(driver, account));
        }
        any
    }
}

/// Returns true if this process has ever had a graph that allocates.
#[inline(always)]
pub fn used() -> bool {
    USED.load(Ordering::Relaxed)
}

/// Records that this process has a graph that allocates.
pub fn note_used() {
    USED.store(true, Ordering::Relaxed);
}

#[cfg(all(test, not(miri)))] // The tests map files.
mod tests {
    use super::super::fake::{DEVICE, Fake, MIB, gpu};
    use super::super::gpu::Gpu;
    use super::*;

    const STREAM: usize = 5;

    /// Launches a graph that needs `need`. Afterwards the driver reserves `reserved` for graphs.
    fn launch(gpu: &Gpu<Fake>, need: u64, reserved: u64) -> bool {
        let memory = gpu.graphs.lock().expect("not within another launch");
        let mut memory = memory.borrow_mut();
        let fits = memory.reserve(&gpu.driver, &gpu.account, &gpu.pools, need, STREAM);
        if fits {
            gpu.driver.state().graphs_reserved = reserved;
        }
        memory.settle(&gpu.driver, &gpu.account);
        fits
    }

    #[test]
    fn a_launch_charges_ahead_what_it_can_grow_by_and_then_what_is_reserved() {
        note_used();
        let gpu = gpu(16 * MIB);
        gpu.graphs.enter(Some(DEVICE), 8 * MIB);
        assert_eq!(gpu.account.charged(), 0, "nothing is launched yet");
        assert!(launch(&gpu, 8 * MIB, 6 * MIB));
        assert_eq!(gpu.account.charged(), 6 * MIB);
        let filler = gpu.account.reserve(8 * MIB).expect("room");
        assert!(launch(&gpu, 8 * MIB, 8 * MIB), "it can grow by 2 MiB, which are free");
        assert_eq!(gpu.account.charged(), 16 * MIB);
        assert!(launch(&gpu, 8 * MIB, 8 * MIB), "again and again");
        gpu.account.release(filler);
    }

    #[test]
    fn a_launch_without_room_waits_for_its_stream_unless_it_is_captured() {
        note_used();
        let gpu = gpu(8 * MIB);
        let filler = gpu.account.reserve(6 * MIB).expect("room");
        gpu.graphs.enter(Some(DEVICE), 4 * MIB);
        assert!(!launch(&gpu, 4 * MIB, 4 * MIB));
        assert_eq!(gpu.driver.state().log, ["synchronize 5"]);
        gpu.driver.state().capturing.push(STREAM);
        assert!(launch(&gpu, 4 * MIB, 0), "it becomes a part of another graph");
        gpu.account.release(filler);
    }

    #[test]
    fn memory_that_outlives_its_graph_stays_charged_until_it_is_trimmed() {
        note_used();
        let gpu = gpu(16 * MIB);
        gpu.graphs.enter(Some(DEVICE), 8 * MIB);
        assert!(launch(&gpu, 8 * MIB, 8 * MIB));
        gpu.graphs.leave(8 * MIB);
        gpu.graphs.refresh(&gpu.driver, &gpu.account);
        assert_eq!(gpu.graphs.reserved(), Some(8 * MIB));
        gpu.driver.state().graphs_unused = 8 * MIB;
        assert!(gpu.graphs.trim_all(&gpu.driver, &gpu.account));
        assert_eq!(gpu.account.charged(), 0);
        gpu.graphs.clear(&gpu.driver, &gpu.account);
    }
}

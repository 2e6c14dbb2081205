//! A GPU of which this process has shares, and everything that is charged to them.

use super::contexts::{Contexts, Unowned};
use super::deferred::Deferred;
use super::driver::Driver;
use super::exported::Exported;
use super::graphs::Graphs;
use super::live::Live;
use super::overhead::Overhead;
use super::pools::Pools;
use crate::account::Account;
use crate::os::spin::{Reentrant, Spin};
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug)]
pub struct Gpu<D> {
    pub driver: D,
    pub uuid: String,
    pub account: Account,
    /// Charged bytes that NVML does not report for this process: memory of another process, or memory charged twice.
    pub surplus: AtomicU64,
    /// The size of a context on this GPU and driver; None: not measured.
    pub context_reserve: Option<u64>,
    /// The charge for each context in addition to its overhead.
    pub unowned: Unowned,
    pub contexts: Reentrant<Contexts>,
    pub overhead: Reentrant<Overhead>,
    pub pools: Pools,
    /// Host memory whose free waits for a stream.
    pub deferred: Spin<Vec<Deferred>>,
    pub graphs: Graphs,
    pub exported: Exported,
}

/// The GPUs of this process. Allocation and free pass a reference to this. A slice would need two registers instead of
/// one across the driver's call.
pub type Gpus<D> = Vec<Gpu<D>>;

impl<D: Driver> Gpu<D> {
    /// A GPU with the shares of `account`. `context_reserve`: the size of a context, if it is known.
    #[must_use]
    pub fn new(driver: D, uuid: String, account: Account, context_reserve: Option<u64>) -> Self {
        Self {
            driver,
            uuid,
            account,
            surplus: AtomicU64::new(0),
            context_reserve,
            unowned: Unowned::default(),
            contexts: Reentrant::default(),
            overhead: Reentrant::default(),
            pools: Pools::default(),
            deferred: Spin::default(),
            graphs: Graphs::default(),
            exported: Exported::default(),
        }
    }
}

/// Releases the charge of a freed allocation.
#[inline(always)]
pub fn release<D>(gpus: &[Gpu<D>], live: Live) {
    if let Some(gpu) = gpus.get(live.gpu()) {
        if live.is_unlisted() {
            gpu.surplus.fetch_sub(live.bytes(), Ordering::Relaxed);
        }
        gpu.account.release(live.into_charge());
    }
}

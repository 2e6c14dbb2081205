//! One GPU of which this process has shares, and everything that is charged to them.

use crate::hooks::contexts::Contexts;
use crate::hooks::deferred::Deferred;
use crate::hooks::graphs::Graphs;
use crate::hooks::live::Live;
use crate::hooks::overhead::Overhead;
use crate::hooks::pools::Pools;
use std::sync::atomic::AtomicU64;
use vgpu_core::account::Account;
use vgpu_core::grants::GpuGrants;
use vgpu_core::os::spin::Spin;

#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) uuid: String,
    pub(crate) account: Account,
    /// Bytes of it that the driver does not count as this process's, or counts once where they are charged twice.
    pub(crate) surplus: AtomicU64,
    pub(crate) context_reserve: u64,
    pub(crate) contexts: Spin<Contexts>,
    pub(crate) overhead: Spin<Overhead>,
    pub(crate) pools: Pools,
    /// Host memory whose free waits for a stream.
    pub(crate) deferred: Spin<Vec<Deferred>>,
    pub(crate) graphs: Graphs,
}

impl Gpu {
    /// The GPU of `grant`, whose shares are opened as `account`.
    pub(crate) fn new(grant: &GpuGrants, account: Account) -> Self {
        Self {
            uuid: grant.gpu.clone(),
            account,
            surplus: AtomicU64::new(0),
            context_reserve: grant.shares.first().map_or(0, |share| share.limits.context_reserve),
            contexts: Spin::default(),
            overhead: Spin::default(),
            pools: Pools::default(),
            deferred: Spin::default(),
            graphs: Graphs::default(),
        }
    }
}

/// Releases the charge of an allocation that is gone.
#[inline(always)]
pub(crate) fn release(gpus: &[Gpu], live: Live) {
    if let Some(gpu) = gpus.get(live.gpu()) {
        gpu.account.release(live.into_charge());
    }
}

//! Physical memory, charged while something refers to it.
//!
//! ```text
//!  handle (counted) ──┐
//!  mapping ───────────┼─► Backing ─► its charge
//!  tile of an array ──┤      │
//!  multicast object ──┘      └─► imported: charged by what is mapped of it
//! ```

use super::charge::charge;
use super::driver::Driver;
use super::gpu::Gpu;
use super::granule::granules;
use crate::account::Charge;
use crate::ledger::Key;
use crate::os::spin::Spin;
use crate::table::Table;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory that is bound to an object of the driver.
pub type Bindings<D> = crate::bindings::Bindings<Arc<Backing<D>>>;
/// Mappings by address, with their sizes.
pub type Mappings<D> = Table<(Arc<Backing<D>>, u64)>;

/// Physical memory, charged while something refers to it.
#[derive(Debug)]
pub struct Backing<D: 'static> {
    gpus: &'static [Gpu<D>],
    pub gpu: usize,
    charge: Spin<Option<Charge>>,
    /// Another process made it. Only the part that is mapped here is charged.
    pub imported: bool,
    /// The part of the charge that is not in the driver's figure for this process.
    surplus: AtomicU64,
    /// The memory that is bound to this object, if it is a multicast object.
    pub bound: Spin<Bindings<D>>,
}

impl<D: 'static> Drop for Backing<D> {
    fn drop(&mut self) {
        if let (Some(gpu), Some(charge)) = (self.gpus.get(self.gpu), self.charge.lock().take()) {
            gpu.surplus
                .fetch_sub(self.surplus.load(Ordering::Relaxed), Ordering::Relaxed);
            gpu.account.release(charge);
        }
    }
}

impl<D: Driver + 'static> Backing<D> {
    pub fn new(gpus: &'static [Gpu<D>], gpu: usize, charge: Option<Charge>) -> Self {
        Self {
            gpus,
            gpu,
            charge: Spin::new(charge),
            imported: false,
            surplus: AtomicU64::new(0),
            bound: Spin::default(),
        }
    }

    /// Creates a backing that is charged here although the driver counts the memory for another process, or counts it
    /// only once.
    pub fn surplus(gpus: &'static [Gpu<D>], gpu: usize, charge: Charge) -> Self {
        let bytes = charge.bytes();
        let backing = Self::new(gpus, gpu, Some(charge));
        backing.note_surplus(bytes);
        backing
    }

    fn note_surplus(&self, bytes: u64) {
        if let Some(gpu) = self.gpus.get(self.gpu) {
            self.surplus.fetch_add(bytes, Ordering::Relaxed);
            gpu.surplus.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Returns true if this is host memory that stands in for device memory.
    pub fn is_host(&self) -> bool {
        self.charge.lock().as_ref().is_some_and(Charge::is_host)
    }

    /// Returns the charge for device memory that is in the driver's figure for this process.
    pub fn own_bytes(&self) -> u64 {
        if self.imported {
            return 0;
        }
        let charge = self.charge.lock();
        let bytes = charge
            .as_ref()
            .filter(|charge| !charge.is_host())
            .map_or(0, Charge::bytes);
        bytes.saturating_sub(self.surplus.load(Ordering::Relaxed))
    }

    /// Returns true if another process made it.
    pub fn is_imported(&self) -> bool {
        self.imported
    }

    /// Makes the charge known by `key` to importers.
    pub fn export(&self, key: Key) {
        if let (Some(gpu), Some(charge)) = (self.gpus.get(self.gpu), self.charge.lock().as_mut()) {
            gpu.account.export(charge, key);
        }
    }

    /// Charges imported memory up to offset `end`. Returns false if the charge does not fit.
    pub fn reach(&self, end: u64) -> bool {
        if !self.imported {
            return true;
        }
        let mut held = self.charge.lock();
        let have = held.as_ref().map_or(0, Charge::bytes);
        let (Some(end), Some(gpu)) = (granules(end), self.gpus.get(self.gpu)) else {
            return false;
        };
        if end <= have {
            return true;
        }
        let Some(more) = charge(gpu, end - have) else {
            return false;
        };
        self.note_surplus(more.bytes());
        match held.as_mut() {
            Some(charge) => charge.join(more),
            None => *held = Some(more),
        }
        true
    }
}

/// Returns the memory at `address`, which may be inside a mapping.
pub fn at<D>(maps: &Mappings<D>, address: u64) -> Option<Arc<Backing<D>>> {
    let exact = maps.with(address, |(backing, _)| backing.clone());
    exact.or_else(|| {
        let mut found = None;
        maps.drain(|start, (backing, size)| {
            if address >= start && address - start < *size {
                found = Some(backing.clone());
            }
            false
        });
        found
    })
}

/// Returns the memory of all mappings that overlap the `bytes` at `address`.
pub fn within<D>(maps: &Mappings<D>, address: u64, bytes: u64) -> Vec<Arc<Backing<D>>> {
    let end = address.saturating_add(bytes);
    let mut found = Vec::new();
    maps.drain(|start, (backing, size)| {
        if start < end && start.saturating_add(*size) > address {
            found.push(backing.clone());
        }
        false
    });
    found
}

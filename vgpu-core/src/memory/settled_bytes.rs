//! Counts the charged memory that is in a table. The driver certainly holds these bytes, even while a thread is inside
//! a call that does not end.
//!
//! ```text
//!  charged ─► driver ─► in its table ─► taken out ─► driver ─► released
//!  \_ in a call ____/  \__ settled __/  \____ in a call __________/
//! ```
//!
//! The sum is rarely needed, so it is computed each time instead of stored. It leaves out memory that only a binding or
//! a tile of a sparse array keeps, memory of other processes, and pools and graphs that another thread has locked. That
//! is safe: the measurement then assumes that calls hold more memory than they do.
//!
//! How it fails: the tables are read one after the other and may change meanwhile. So the caller counts twice; if both
//! results are equal, nothing has changed in between.

use super::backing::Backing;
use super::driver::Driver;
use super::gpu::Gpu;
use super::tables::Tables;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Device memory on one GPU, without contexts and code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettledBytes {
    pub bytes: u64,
    /// A hash of the counted entries, so that other memory of the same size compares as different.
    hash: u64,
}

impl SettledBytes {
    fn note(&mut self, key: u64, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        let mixed = (key ^ bytes.rotate_left(40)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.hash = self.hash.wrapping_add(mixed ^ mixed >> 29);
    }

    /// Counts the memory on `gpu`, which is GPU `index` of the tables.
    #[cold]
    pub fn of<D: Driver>(tables: &Tables<D>, gpu: &Gpu<D>, index: usize) -> Self {
        let mut found = Self::default();
        // Counted by backing, because several handles and mappings may share one.
        let mut backings = BTreeMap::new();
        let mut note = |backing: &Arc<Backing<D>>| {
            if backing.gpu == index {
                backings.insert(Arc::as_ptr(backing) as u64, backing.own_bytes());
            }
        };
        tables.vmm_handles.each(|_, (backing, _)| note(backing));
        tables.vmm_maps.each(|_, (backing, _)| note(backing));
        tables.externals.each(|_, backing| note(backing));
        tables.buffers.each(|_, backing| note(backing));
        backings.into_iter().for_each(|(key, bytes)| found.note(key, bytes));
        tables.live.settled(index, |key, bytes| found.note(key, bytes));
        tables.arrays.settled(index, |key, bytes| found.note(key, bytes));
        found.note(1, gpu.pools.reserved().unwrap_or(0));
        found.note(2, gpu.graphs.reserved().unwrap_or(0));
        found
    }
}

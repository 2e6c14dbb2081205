//! The bytes that the driver holds for sure while some thread is in a call that does not end: everything that is
//! charged and lies in a table.
//!
//! ```text
//!  charged ─► driver ─► in its table ─► taken out ─► driver ─► released
//!  \_ under way ____/  \__ settled __/  \____ under way __________/
//! ```
//!
//! Asked for rarely, so it is counted then. Left out is memory that only a binding or a tile keeps, or that another
//! process made, and pools and graphs that another thread is at: the measurement asks what may be under way, and
//! may assume too much.
//!
//! How it fails: the tables are read one after the other, and before or after whatever they are compared with.
//! So they are read twice: if the two results are equal, nothing has changed in between.

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
    /// Over what it is: other memory of as many bytes has another mark.
    mark: u64,
}

impl SettledBytes {
    fn note(&mut self, key: u64, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        let mixed = (key ^ bytes.rotate_left(40)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.mark = self.mark.wrapping_add(mixed ^ mixed >> 29);
    }

    /// Counts the memory on `gpu`, which is GPU `index` of the tables.
    #[cold]
    pub fn of<D: Driver>(tables: &Tables<D>, gpu: &Gpu<D>, index: usize) -> Self {
        let mut found = Self::default();
        // By the charge: several handles and mappings may be of one.
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

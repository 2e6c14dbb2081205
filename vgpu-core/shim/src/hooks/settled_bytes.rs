//! The bytes that the driver holds for sure while some thread is in a call that does not end: everything that is
//! charged and lies in a table.
//!
//! ```text
//!  charged ─► driver ─► in its table ─► taken out ─► driver ─► given back
//!  \_ under way ____/  \__ settled __/  \____ under way ____________/
//! ```
//!
//! Asked for rarely, so it is counted then. What only a binding or a tile keeps, what another process made, and
//! pools and graphs that somebody is at are left out: who asks wants to know what may be under way, and may take
//! too much for it.
//!
//! How it fails: the tables are looked at one after the other, and before or after whatever it is compared with.
//! So it is looked at twice: if the two are equal, it was that all the while.

use crate::driver::Backing;
use crate::driver::Gpu;
use crate::process::Ready;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Device memory on one GPU; contexts and code apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SettledBytes {
    pub(crate) bytes: u64,
    /// Of what it is: others of as many bytes add up to another sum.
    mark: u64,
}

impl SettledBytes {
    fn note(&mut self, key: u64, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        let mixed = (key ^ bytes.rotate_left(40)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.mark = self.mark.wrapping_add(mixed ^ mixed >> 29);
    }

    #[cold]
    pub(crate) fn of(ready: &Ready, gpu: &Gpu) -> Self {
        let mut found = Self::default();
        let Some(index) = ready.gpus.iter().position(|one| core::ptr::eq(one, gpu)) else {
            return found;
        };
        // By what is charged: several handles and mappings may be of one.
        let mut backings = BTreeMap::new();
        let mut note = |backing: &Arc<Backing>| {
            if backing.gpu == index {
                backings.insert(Arc::as_ptr(backing) as u64, backing.own_bytes());
            }
        };
        ready.vmm_handles.each(|_, (backing, _)| note(backing));
        ready.vmm_maps.each(|_, (backing, _)| note(backing));
        ready.externals.each(|_, backing| note(backing));
        ready.buffers.each(|_, backing| note(backing));
        backings.into_iter().for_each(|(key, bytes)| found.note(key, bytes));
        ready.live.settled(index, |key, bytes| found.note(key, bytes));
        ready.arrays.settled(index, |key, bytes| found.note(key, bytes));
        found.note(1, gpu.pools.reserved().unwrap_or(0));
        found.note(2, gpu.graphs.reserved().unwrap_or(0));
        found
    }
}

//! The exported objects that one process holds, each with the lock that says so.

use crate::os::pinned::{MOST_SHARED, PinnedLock};
use crate::os::spin::Spin;
use std::sync::atomic::AtomicU64;

/// All holds of this process.
#[derive(Debug, Default)]
pub(super) struct Holds {
    pub(super) list: Spin<Vec<Hold>>,
    /// How often the objects have changed that it has made and still holds.
    pub(super) changes: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Hold {
    pub(super) object: usize,
    pub(super) generation: u64,
    pub(super) bytes: u64,
    /// Made by this process, so that the driver counts it as its use of the GPU.
    pub(super) made: bool,
    pub(super) _lock: PinnedLock,
}

impl Holds {
    /// Returns true if one more would be refused for sure: cheaper to ask here than for each place of a lock.
    pub(super) fn is_full(&self) -> bool {
        self.list.lock().len() >= MOST_SHARED
    }
}

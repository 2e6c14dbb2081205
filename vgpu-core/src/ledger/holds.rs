//! The exported objects that one process holds, each with its lock.

use crate::os::pinned::{MOST_SHARED, PinnedLock};
use crate::os::spin::Spin;
use std::sync::atomic::AtomicU64;

/// All holds of this process.
#[derive(Debug, Default)]
pub(super) struct Holds {
    pub(super) list: Spin<Vec<Hold>>,
    /// How often the set of objects that this process exported and still holds has changed.
    pub(super) changes: AtomicU64,
}

#[derive(Debug)]
pub(super) struct Hold {
    pub(super) object: usize,
    pub(super) generation: u64,
    pub(super) bytes: u64,
    /// This process exported it, so the driver reports the memory as used by this process.
    pub(super) made: bool,
    pub(super) _lock: PinnedLock,
}

impl Holds {
    /// Returns true if no further hold is possible. This is cheaper than trying every place for a lock.
    pub(super) fn is_full(&self) -> bool {
        self.list.lock().len() >= MOST_SHARED
    }
}

//! Host memory that the program has freed in the order of a stream, until the stream has come so far.
//! Who frees it then: [`deferred_free`](super::deferred_free).

use crate::hooks::live::Live;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set once this process has deferred a free: other processes skip the look.
static USED: AtomicBool = AtomicBool::new(false);

/// Freed once `event` is reached.
#[derive(Debug)]
pub(crate) struct Deferred {
    pub(crate) pointer: u64,
    /// The context with which the memory goes; 0: the driver does not tell.
    pub(crate) home: usize,
    /// The stream's, with which the event goes.
    pub(crate) context: usize,
    pub(crate) event: usize,
    pub(crate) bytes: u64,
    /// None: it is being freed, outside the list's lock.
    pub(crate) live: Option<Live>,
}

/// What was taken out to be freed.
pub(crate) struct Leaving {
    pub(crate) pointer: u64,
    pub(crate) home: usize,
    pub(crate) context: usize,
    pub(crate) event: usize,
    pub(crate) live: Live,
}

/// Returns true if this process has ever deferred a free.
#[inline(always)]
pub(crate) fn used() -> bool {
    USED.load(Ordering::Relaxed)
}

/// Notes that this process has deferred a free.
pub(crate) fn note_used() {
    USED.store(true, Ordering::Relaxed);
}

impl Deferred {
    /// Whether it cannot outlive a context.
    pub(crate) fn is_of(&self, context: usize) -> bool {
        self.home == context || self.context == context || self.home == 0
    }

    /// Takes it out of the list, where its place stays until it is freed.
    pub(crate) fn leave(&mut self) -> Option<Leaving> {
        Some(Leaving {
            pointer: self.pointer,
            home: self.home,
            context: self.context,
            event: self.event,
            live: self.live.take()?,
        })
    }
}

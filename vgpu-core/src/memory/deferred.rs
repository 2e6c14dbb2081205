//! Host memory that the program has freed in stream order, while the stream has not reached the free yet.
//! [`deferred_free`](super::deferred_free) describes the rules.

use super::live::Live;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set once this process has deferred a free. Other processes skip the check.
static USED: AtomicBool = AtomicBool::new(false);

/// Memory that is freed once `event` is reached.
#[derive(Debug)]
pub struct Deferred {
    pub pointer: u64,
    /// The context of the memory, which ends with it; 0: the driver does not say.
    pub home: usize,
    /// The context of the stream; the event ends with it.
    pub context: usize,
    pub event: usize,
    pub bytes: u64,
    /// None: a thread is freeing the memory, outside the list's lock.
    pub live: Option<Live>,
}

/// Deferred memory that a thread is freeing.
pub struct Leaving {
    pub pointer: u64,
    pub home: usize,
    pub context: usize,
    pub event: usize,
    pub live: Live,
}

/// Returns true if this process has ever deferred a free.
#[inline(always)]
pub fn used() -> bool {
    USED.load(Ordering::Relaxed)
}

/// Records that this process has deferred a free.
pub fn note_used() {
    USED.store(true, Ordering::Relaxed);
}

impl Deferred {
    /// Returns true if the memory or its event ends with `context` at the latest.
    pub fn is_of(&self, context: usize) -> bool {
        self.home == context || self.context == context || self.home == 0
    }

    /// Takes the charge, to free the memory. The entry stays in the list until then.
    pub fn leave(&mut self) -> Option<Leaving> {
        Some(Leaving {
            pointer: self.pointer,
            home: self.home,
            context: self.context,
            event: self.event,
            live: self.live.take()?,
        })
    }
}

//! Host memory that the program has freed in the order of a stream, until the stream has come so far:
//! [`deferred_free`](super::deferred_free) has the rules.

use super::live::Live;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set once this process has deferred a free: other processes skip the look.
static USED: AtomicBool = AtomicBool::new(false);

/// Freed once `event` is reached.
#[derive(Debug)]
pub struct Deferred {
    pub pointer: u64,
    /// The context with which the memory goes; 0: the driver does not tell.
    pub home: usize,
    /// The stream's, with which the event goes.
    pub context: usize,
    pub event: usize,
    pub bytes: u64,
    /// None: it is being freed, outside the list's lock.
    pub live: Option<Live>,
}

/// What was taken out to be freed.
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

/// Notes that this process has deferred a free.
pub fn note_used() {
    USED.store(true, Ordering::Relaxed);
}

impl Deferred {
    /// Returns true if it cannot outlive `context`.
    pub fn is_of(&self, context: usize) -> bool {
        self.home == context || self.context == context || self.home == 0
    }

    /// Takes it out of the list, where its place stays until it is freed.
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

//! Who waits for a decision.

use std::time::Duration;

use crate::time::Time;

/// Pods that wait to be bound, without scheduling gates, and have claims of the controller's that nothing is given to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Queue {
    pub pods: usize,
    /// What they wait for; a claim that several use is one.
    pub claims: usize,
    /// When the first of them was made.
    oldest: Option<Time>,
}

impl Queue {
    pub(crate) fn add(&mut self, created: Time) {
        self.pods += 1;
        self.oldest = Some(self.oldest.map_or(created, |oldest| oldest.min(created)));
    }

    /// For how long the oldest pod has been there; nothing, if there is none.
    #[must_use]
    pub fn oldest(&self, now: Time) -> Duration {
        self.oldest.map_or(Duration::ZERO, |oldest| now.since(oldest))
    }
}

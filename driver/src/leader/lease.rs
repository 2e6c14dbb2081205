//! The lease, as far as this replica knows.

use std::sync::Arc;

use tokio::sync::watch;
use vgpu_planner::Term;

use super::clock::Clock;

/// The current term of this replica, by which each write is checked right before it is sent.
#[derive(Debug, Clone)]
pub(crate) struct HeldLease {
    clock: Arc<Clock>,
    term: watch::Receiver<Option<Term>>,
}

impl HeldLease {
    pub(crate) fn new(clock: Arc<Clock>, term: watch::Receiver<Option<Term>>) -> Self {
        Self { clock, term }
    }

    /// The term, while it lasts.
    pub(crate) fn term(&self) -> Option<Term> {
        let term = self.term.borrow();
        term.clone().filter(|term| self.clock.now() < term.until)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.term().is_some()
    }

    /// Returns true in the term with this epoch. Another term of this process has another epoch.
    pub(crate) fn is_held_in(&self, epoch: &str) -> bool {
        self.term().is_some_and(|term| term.epoch == epoch)
    }

    /// Waits until the term was renewed, or is another, or is over.
    pub(crate) async fn changed(&mut self) {
        if self.term.changed().await.is_err() {
            // The election ends only with the process.
            std::future::pending::<()>().await;
        }
    }
}

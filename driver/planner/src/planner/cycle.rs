//! The progress of a cycle: one turn for every pod that waits.

use std::collections::HashSet;

use crate::time::Time;

/// One turn for every pod that waits. It may take several passes.
#[derive(Debug, Default)]
pub(crate) struct Cycle {
    /// Pods and gangs that had their turn.
    pub(super) had_turn: HashSet<String>,
    /// True if something has changed since the cycle began, so another must follow.
    pub(super) again: bool,
    /// The earliest time at which one of the cycle's passes wants the next plan.
    pub(super) wake: Option<Time>,
}

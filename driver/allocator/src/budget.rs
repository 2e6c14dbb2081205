//! Limits the steps of a search, over all nodes together.
//!
//! Backtracking over devices that fit one by one but not together can take forever, and everyone who may create claims
//! can write one that causes it on every node. So all attempts of one question draw from one budget: one step for each
//! device that is tried, and the CEL cost for selectors. A node may use only a part of the remaining steps, so that a
//! node without an answer does not keep the others from being tried. When the budget is spent there is no answer at
//! all; the caller decides when to ask again, and with which budget.

use crate::error::AllocateError;

/// The default budget of a question: about a second.
const MOST_STEPS: u64 = 3_000_000;

/// A node may use 1/PARTS of the remaining steps, and more if there are fewer nodes.
const PARTS: usize = 8;

/// The least budget of a node: more than any search needs that does not backtrack.
const LEAST: u64 = 1_000;

/// The CEL cost that counts as one step: both take some hundred nanoseconds.
const COST_OF_STEP: u64 = 4;

/// Steps that may still be taken.
#[derive(Debug, Clone)]
pub struct Budget {
    total: u64,
    left: u64,
    /// The steps that the present node must leave for the others.
    floor: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(MOST_STEPS)
    }
}

impl Budget {
    #[must_use]
    pub const fn new(steps: u64) -> Self {
        Self {
            total: steps,
            left: steps,
            floor: 0,
        }
    }

    /// The part of the default budget for each of `nodes` nodes.
    #[must_use]
    pub fn of_each(nodes: usize) -> u64 {
        (MOST_STEPS / nodes.max(1) as u64).max(LEAST)
    }

    #[must_use]
    pub const fn left(&self) -> u64 {
        self.left
    }

    #[must_use]
    pub const fn spent(&self) -> u64 {
        self.total - self.left
    }

    /// Starts the next node. `nodes`: how many are left.
    ///
    /// # Errors
    /// No steps are left.
    pub(crate) fn next_node(&mut self, nodes: usize) -> Result<(), AllocateError> {
        let part = self.left / nodes.clamp(1, PARTS) as u64;
        self.floor = self.left.saturating_sub(part.max(LEAST));
        match self.left {
            0 => Err(self.exhausted()),
            _ => Ok(()),
        }
    }

    pub(crate) fn step(&mut self) -> Result<(), AllocateError> {
        if self.left <= self.floor {
            return Err(self.exhausted());
        }
        self.left -= 1;
        Ok(())
    }

    /// Charges the cost of a selector, even if fewer steps are left: it has been evaluated already.
    pub(crate) fn charge(&mut self, cost: u64) {
        self.left = self.left.saturating_sub(cost / COST_OF_STEP);
    }

    fn exhausted(&self) -> AllocateError {
        AllocateError::Exhausted { steps: self.spent() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_takes_a_part_and_all_together_no_more_than_there_is() {
        let mut budget = Budget::new(80_000);
        let mut nodes = 0;
        while budget.next_node(5_000).is_ok() {
            let before = budget.spent();
            while budget.step().is_ok() {}
            let taken = budget.spent() - before;
            assert!(taken > 0 && taken <= 10_000, "{taken}");
            nodes += 1;
        }
        assert_eq!(budget.spent(), 80_000);
        assert!(nodes > 20, "{nodes}");
    }

    #[test]
    fn a_node_alone_has_it_all() {
        let mut budget = Budget::new(3);
        budget.next_node(1).unwrap();
        assert_eq!((0..9).filter(|_| budget.step().is_ok()).count(), 3);
        assert_eq!(budget.step(), Err(AllocateError::Exhausted { steps: 3 }));
    }

    #[test]
    fn selectors_cost_too() {
        let mut budget = Budget::new(1_000);
        budget.next_node(1).unwrap();
        budget.charge(400);
        assert_eq!(budget.spent(), 100);
        budget.charge(1_000_000);
        assert!(budget.step().is_err() && budget.next_node(1).is_err());
    }
}

//! Answers whether claims fit on one node, and why not, for explanations.

use super::Index;
use crate::budget::Budget;
use crate::error::AllocateError;
use crate::explain::Answer;
use crate::model::{Allocation, ResourceClaim};
use crate::policy::Order;
use crate::selectors::SelectorCache;
use vgpu_api::config::AllocationPolicy;

impl Index {
    /// Returns how the claims fit on a node, or why they do not; `None` for an unknown node. `steps`: for the search, and
    /// again for the explanation.
    ///
    /// # Errors
    /// A mistake in the claims, which is the same on every node, or in slices that are for all nodes.
    pub fn answer(
        &mut self,
        claims: &[&ResourceClaim],
        node: &str,
        steps: u64,
        cache: &mut SelectorCache<'_>,
    ) -> Result<Option<Answer>, AllocateError> {
        let Some(view) = self.view(node)? else {
            return Ok(None);
        };
        // Every policy finds a place if there is one; first-fit is the fastest.
        let attempt = self.attempt(claims, AllocationPolicy::FirstFit);
        attempt.answer(&view, steps, cache).map(Some)
    }

    /// Allocates the claims together on this node; `None` if they do not fit there, or for an unknown node.
    ///
    /// # Errors
    /// The errors of [`Self::allocate_within`].
    pub fn allocate_on(
        &mut self,
        node: &str,
        claims: &[&ResourceClaim],
        budget: &mut Budget,
        cache: &mut SelectorCache<'_>,
        share_id: &mut dyn FnMut() -> String,
    ) -> Result<Option<Vec<Allocation>>, AllocateError> {
        let Some(view) = self.view(node)? else {
            return Ok(None);
        };
        budget.next_node(1)?;
        let attempt = self.attempt(claims, AllocationPolicy::FirstFit);
        let order = Order::of_policy(AllocationPolicy::FirstFit)[0];
        attempt.in_order(&view, order, budget, cache, share_id)
    }
}

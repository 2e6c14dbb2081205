//! Answers whether claims fit on one node, and why not, for explanations.

use super::Index;
use crate::error::AllocateError;
use crate::explain::Answer;
use crate::model::ResourceClaim;
use crate::selectors::SelectorCache;
use vgpu_api::config::AllocationPolicy;

/// The steps for one node, for the search and again for the explanation: some ten milliseconds, because the caller
/// works in turns.
const STEPS: u64 = 30_000;

impl Index {
    /// Returns how the claims fit on a node, or why they do not; `None` for an unknown node.
    ///
    /// # Errors
    /// A mistake in the claims, which is the same on every node, or in slices that are for all nodes.
    pub fn answer(
        &mut self,
        claims: &[&ResourceClaim],
        node: &str,
        cache: &mut SelectorCache<'_>,
    ) -> Result<Option<Answer>, AllocateError> {
        let Some(view) = self.view(node)? else {
            return Ok(None);
        };
        // Whether claims fit does not depend on the policy; this one takes the least time.
        let attempt = self.attempt(claims, AllocationPolicy::FirstFit);
        attempt.answer(&view, STEPS, cache).map(Some)
    }
}

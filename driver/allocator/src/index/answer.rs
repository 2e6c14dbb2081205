//! What there is to say about claims on one of the nodes.

use super::Index;
use crate::error::AllocateError;
use crate::explain::Answer;
use crate::model::ResourceClaim;
use crate::selectors::SelectorCache;
use vgpu_api::config::AllocationPolicy;

/// What an answer about one node may take, twice: some ten milliseconds, for whoever asks does so in turns.
const STEPS: u64 = 30_000;

impl Index {
    /// Whether the claims fit on a node, and if not, why; `None` for a node that is not known.
    ///
    /// # Errors
    /// A mistake in the claims, which is no matter of this node, or in what is published for all nodes.
    pub fn answer(
        &mut self,
        claims: &[&ResourceClaim],
        node: &str,
        cache: &mut SelectorCache<'_>,
    ) -> Result<Option<Answer>, AllocateError> {
        let Some(view) = self.view(node)? else {
            return Ok(None);
        };
        // What fits does so by any policy; this one takes the least time.
        let attempt = self.attempt(claims, AllocationPolicy::FirstFit);
        attempt.answer(&view, STEPS, cache).map(Some)
    }
}

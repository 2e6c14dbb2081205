//! What there is to say about claims on one of the nodes.

use super::Index;
use crate::error::AllocateError;
use crate::explain::Answer;
use crate::model::ResourceClaim;
use crate::policy::Policy;
use crate::selectors::SelectorCache;

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
        self.attempt(claims, Policy::FirstFit).answer(&view, cache).map(Some)
    }
}

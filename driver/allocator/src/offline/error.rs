//! Why there is no answer for the objects in files.

use vgpu_api::decode::DecodeError;

use crate::error::AllocateError;
use crate::model::ResourceClaim;
use crate::pools::ViewError;

/// Mistakes in the input that are not about a single object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OfflineError {
    #[error("there is no Node in the input; give the Node objects too")]
    NoNode,
    #[error("node {name:?} is not in the input, which has {}", .known.join(", "))]
    UnknownNode { name: String, known: Vec<String> },
    #[error("Pod {0}: {1}")]
    Pod(String, DecodeError),
    /// A mistake in the claims, with their names.
    #[error("{0}")]
    Claims(String),
}

impl OfflineError {
    pub(super) fn of_view(error: ViewError) -> Self {
        Self::Claims(AllocateError::from(error).to_string())
    }

    pub(super) fn of_claims<'e>(claims: &'e [&'e ResourceClaim]) -> impl Fn(AllocateError) -> Self + 'e {
        |error| Self::Claims(error.of_claims(claims))
    }
}

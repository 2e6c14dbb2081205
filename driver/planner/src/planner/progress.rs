//! How far a pass is.

use std::collections::HashSet;

use crate::time::Time;

/// A pass over all that wait, while it takes more than one round.
#[derive(Debug, Default)]
pub(crate) struct Pass {
    /// Who had a turn.
    pub(super) asked: HashSet<String>,
    /// Something has changed since it began.
    pub(super) again: bool,
    /// What the rounds before wanted to be asked again for.
    pub(super) wake: Option<Time>,
}

//! The cluster's state that is needed to count a claim.

use crate::class::Classes;
use crate::gpus::Gpus;
use crate::time::Wall;

/// The state that is common to all namespaces.
pub(crate) struct View<'a> {
    pub(crate) classes: &'a Classes,
    pub(crate) gpus: &'a Gpus,
    pub(crate) wall: Wall,
}

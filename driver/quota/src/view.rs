//! What counting needs besides a claim.

use crate::class::Classes;
use crate::gpus::Gpus;
use crate::time::Wall;

/// What is the same for all namespaces.
pub(crate) struct View<'a> {
    pub(crate) classes: &'a Classes,
    pub(crate) gpus: &'a Gpus,
    pub(crate) wall: Wall,
}

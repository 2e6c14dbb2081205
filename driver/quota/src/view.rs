//! The state that is common to all namespaces: what is needed to count a claim, and who leads.

use crate::class::Classes;
use crate::gpus::Gpus;
use crate::time::Wall;

pub(crate) struct View<'a> {
    pub(crate) classes: &'a Classes,
    pub(crate) gpus: &'a Gpus,
    pub(crate) wall: Wall,
    /// The epoch of this leader's term.
    pub(crate) epoch: &'a str,
}

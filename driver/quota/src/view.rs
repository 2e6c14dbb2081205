//! The state that is common to all namespaces: what is needed to count a claim, and who leads.

use vgpu_allocator::Index;
use vgpu_planner::Time;

use crate::gpus::Gpus;

pub(crate) struct View<'a> {
    pub(crate) index: &'a Index,
    pub(crate) gpus: &'a Gpus,
    pub(crate) wall: Time,
    /// The epoch of this leader's term.
    pub(crate) epoch: &'a str,
}

//! The sources of the figures that are read at each scrape.

use crate::containers::Containers;
use crate::dra::node::SharedNode;
use crate::enforcement::Observations;
use crate::ready::Readiness;

#[derive(Clone)]
pub struct Sources {
    pub node: SharedNode,
    pub observations: Observations,
    pub containers: Containers,
    pub readiness: Readiness,
}

// === impl Sources ===

impl Sources {
    /// Returns the sources with the node alone; observations, containers and readiness are empty.
    #[must_use]
    pub fn new(node: SharedNode) -> Self {
        Self {
            node,
            observations: Observations::default(),
            containers: Containers::default(),
            readiness: Readiness::new(&[]),
        }
    }
}

//! Nodes in a policy's order, kept for recently requested claims: pods of one template have equal claims.
//!
//! ```text
//!  event ─► the nodes that it changes are stale, in every shape
//!  claims ─► their shape ─► its stale nodes are ranked again ─► nodes, the best first
//! ```
//!
//! A shape that was not used for a long time is dropped, and starts again with all nodes stale. With a wrong rank nodes
//! are tried in the wrong order, but a device is never allocated twice: the search itself checks what is in use.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::model::{ClaimSpec, ResourceClaim};
use crate::policy::NodeRank;
use vgpu_api::config::AllocationPolicy;

/// Number of shapes that are kept. A shape for a thousand nodes takes about 300 KiB.
const MOST_SHAPES: usize = 16;

/// The shapes, the most recently used one last.
#[derive(Debug, Default)]
pub(super) struct Rankings {
    shapes: Vec<Shape>,
}

/// Equal claims with one policy.
#[derive(Debug)]
pub(super) struct Shape {
    policy: AllocationPolicy,
    claims: Vec<Arc<ClaimSpec>>,
    order: BTreeSet<Place>,
    places: HashMap<Arc<str>, Place>,
    stale: Stale,
}

#[derive(Debug)]
pub(super) enum Stale {
    All,
    Nodes(HashSet<Arc<str>>),
}

/// `first-fit` has no ranks: nodes are ordered by name alone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    rank: Option<NodeRank>,
    node: Arc<str>,
}

impl Rankings {
    /// Takes the shape of these claims out; call [`Self::put_back`] after using it.
    pub(super) fn take(&mut self, policy: AllocationPolicy, claims: &[&ResourceClaim]) -> Shape {
        let specs = || claims.iter().map(|claim| &claim.spec);
        let known = self.shapes.iter();
        let known = known
            .enumerate()
            .find(|(_, shape)| shape.policy == policy && shape.claims.iter().eq(specs()));
        if let Some((at, _)) = known {
            return self.shapes.remove(at);
        }
        Shape {
            policy,
            claims: specs().cloned().collect(),
            order: BTreeSet::new(),
            places: HashMap::new(),
            stale: Stale::All,
        }
    }

    pub(super) fn put_back(&mut self, shape: Shape) {
        if self.shapes.len() >= MOST_SHAPES {
            self.shapes.remove(0);
        }
        self.shapes.push(shape);
    }

    /// Marks the node as stale, because something about it has changed.
    pub(super) fn touch(&mut self, node: &str) {
        for shape in &mut self.shapes {
            if let Stale::Nodes(nodes) = &mut shape.stale
                && !nodes.contains(node)
            {
                nodes.insert(node.into());
            }
        }
    }

    pub(super) fn touch_all(&mut self) {
        for shape in &mut self.shapes {
            shape.forget();
        }
    }
}

impl Shape {
    /// Returns the nodes to rank again, and marks them as fresh.
    pub(super) fn take_stale(&mut self) -> Stale {
        let stale = std::mem::replace(&mut self.stale, Stale::Nodes(HashSet::new()));
        if matches!(stale, Stale::All) {
            self.order.clear();
            self.places.clear();
        }
        stale
    }

    /// Marks these nodes as stale again after a ranking that was not finished.
    pub(super) fn leave(&mut self, nodes: &[Arc<str>]) {
        self.stale = Stale::Nodes(nodes.iter().cloned().collect());
    }

    /// Makes all nodes stale, because any may have changed.
    fn forget(&mut self) {
        self.stale = Stale::All;
    }

    /// Sets the node's rank; `None` removes the node.
    pub(super) fn set(&mut self, node: &str, rank: Option<NodeRank>) {
        if let Some(old) = self.places.remove(node) {
            self.order.remove(&old);
        }
        if let Some(rank) = rank {
            let place = Place {
                rank: Some(rank).filter(|_| self.policy != AllocationPolicy::FirstFit),
                node: node.into(),
            };
            self.places.insert(place.node.clone(), place.clone());
            self.order.insert(place);
        }
    }

    /// The nodes that have a device for the first request, the best first.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &str> {
        self.order.iter().map(|place| &*place.node)
    }
}

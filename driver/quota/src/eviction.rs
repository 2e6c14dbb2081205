//! Chooses the pods to evict for one that waits: the fewest on one node, and of these those that lose the least GPU time.
//!
//! A claim's shares are free when all pods that hold it are gone. Sets of pods are tried by size, so the first set that
//! makes enough room is as small as possible. If half of a plan's remaining steps are used without success, a set is
//! chosen from which no pod can be left out; it may not be the smallest.

use std::sync::Arc;

use vgpu_allocator::model::{Allocation, ResourceClaim};
use vgpu_api::PodRef;
use vgpu_planner::Time;

use crate::free_capacity::{FreeCapacity, Tries};

/// A pod over budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) pod: PodRef,
    pub(crate) created: Time,
    /// Its GPU time so far, in millionths of a GPU times milliseconds.
    pub(crate) lost: u128,
}

/// A claim whose shares become free when all of these candidates are gone.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    /// Their numbers.
    pub(crate) by: Vec<usize>,
    pub(crate) key: String,
    pub(crate) allocation: Arc<Allocation>,
}

/// The pods of a node that may be evicted, and the claims that they hold.
#[derive(Debug, Clone, Default)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) held: Vec<Held>,
}

/// The pods to evict, all on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) node: String,
    pub(crate) victims: Vec<PodRef>,
}

/// A set of candidates of a node.
struct Found<'a> {
    node: &'a Node,
    chosen: Vec<usize>,
    lost: u128,
}

impl Node {
    /// The claims that nobody holds when these are gone.
    fn freed(&self, gone: &[usize]) -> impl Iterator<Item = &Held> {
        let is_free = |held: &&Held| held.by.iter().all(|pod| gone.contains(pod));
        self.held.iter().filter(is_free)
    }

    fn lost(&self, chosen: &[usize]) -> u128 {
        let each = chosen.iter().map(|at| self.candidates[*at].lost);
        each.fold(0, u128::saturating_add)
    }

    /// The cheapest first; of equals, the youngest.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.candidates.len()).collect();
        order.sort_by_key(|at| {
            let candidate = &self.candidates[*at];
            let youngest_first = std::cmp::Reverse(candidate.created);
            (candidate.lost, youngest_first, candidate.pod.clone())
        });
        order
    }
}

/// The pod that waits, and where its claims could be.
struct Search<'a, 'n> {
    free: &'a mut FreeCapacity,
    claims: &'a [ResourceClaim],
    best: Option<Found<'n>>,
}

impl<'n> Search<'_, 'n> {
    /// Returns true if the claims fit on the node when these are gone.
    fn fits(&mut self, node: &Node, gone: &[usize], tries: &mut Tries) -> bool {
        node.freed(gone).for_each(|held| self.free.set_claim(&held.key, None));
        let found = self.free.allocate_on(&node.name, self.claims, tries);
        node.freed(gone)
            .for_each(|held| self.free.set_claim(&held.key, Some(&held.allocation)));
        found.is_some()
    }

    /// Searches for the cheapest set with `missing` more candidates from the order.
    fn extend(&mut self, node: &'n Node, order: &[usize], missing: usize, chosen: &mut Vec<usize>, tries: &mut Tries) {
        let lost = node.lost(chosen);
        if self.best.as_ref().is_some_and(|best| best.lost <= lost) {
            return;
        }
        if missing == 0 {
            if self.fits(node, chosen, tries) {
                let chosen = chosen.clone();
                self.best = Some(Found { node, chosen, lost });
            }
            return;
        }
        for (at, pod) in order.iter().enumerate() {
            if order.len() - at < missing || tries.are_over() {
                return;
            }
            chosen.push(*pod);
            self.extend(node, &order[at + 1..], missing - 1, chosen, tries);
            chosen.pop();
        }
    }

    /// A set from which no pod can be left out; `None` if there is none, or if the steps ran out. The most expensive are
    /// left out first.
    fn irreducible(&mut self, node: &'n Node, tries: &mut Tries) -> Option<Found<'n>> {
        let mut chosen: Vec<usize> = (0..node.candidates.len()).collect();
        if !self.fits(node, &chosen, tries) {
            return None;
        }
        for pod in node.order().into_iter().rev() {
            let without: Vec<usize> = chosen.iter().copied().filter(|other| *other != pod).collect();
            if self.fits(node, &without, tries) {
                chosen = without;
            }
            if tries.are_over() {
                // Pods that were not tried may be unnecessary.
                return None;
            }
        }
        let lost = node.lost(&chosen);
        Some(Found { node, chosen, lost })
    }
}

/// Chooses the pods to evict for a pod that fits nowhere. `None` if no node would have room without its candidates, or
/// if that is not known because the steps are used up.
pub(crate) fn choose(
    free: &mut FreeCapacity,
    nodes: &[&Node],
    claims: &[ResourceClaim],
    tries: &mut Tries,
) -> Option<Choice> {
    let mut search = Search {
        free,
        claims,
        best: None,
    };
    let mut hopeful = nodes.to_vec();
    hopeful.retain(|node| {
        let all: Vec<usize> = (0..node.candidates.len()).collect();
        search.fits(node, &all, tries)
    });
    let most = hopeful.iter().map(|node| node.candidates.len()).max()?;
    let mut second = tries.split();
    for size in 1..=most {
        for node in hopeful.iter().copied() {
            search.extend(node, &node.order(), size, &mut Vec::new(), tries);
        }
        if search.best.is_some() || tries.are_over() {
            break;
        }
    }
    let best = search.best.take().or_else(|| {
        let nodes = hopeful.iter().copied();
        let found = nodes.filter_map(|node| search.irreducible(node, &mut second));
        found.min_by_key(|found| (found.chosen.len(), found.lost))
    });
    tries.join(&second);
    let Found { node, chosen, .. } = best?;
    Some(Choice {
        node: node.name.clone(),
        victims: chosen.iter().map(|at| node.candidates[*at].pod.clone()).collect(),
    })
}

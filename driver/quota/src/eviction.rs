//! Chooses the pods to evict for one that waits: the fewest on one node, and of these those that lose the least GPU time.
//!
//! A claim's shares are free when all pods that hold it are gone. Sets of pods are tried by size, so the first that makes
//! room is as small as can be. When half of the tries that there are for a plan have led nowhere, a set is taken of which
//! no pod can be left out; it may not be the smallest.

use crate::amount::Amount;
use crate::plan::PodRef;
use crate::room::{Free, Tries, Want, pack};

/// A pod over budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) pod: PodRef,
    /// When it was created, as Kubernetes writes it.
    pub(crate) created: String,
    /// Its GPU time so far, in millionths of a GPU times milliseconds.
    pub(crate) lost: u128,
}

/// The shares of one claim: they become free when all of these candidates are gone.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    /// Their numbers.
    pub(crate) by: Vec<usize>,
    pub(crate) shares: Vec<(usize, Amount)>,
}

/// A node: what is free, and what would be without some pods.
#[derive(Debug, Clone, Default)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) free: Vec<Free>,
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) held: Vec<Held>,
}

/// The pods to evict, and the alternative of the waiting pod that then has room.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) node: String,
    pub(crate) victims: Vec<PodRef>,
    /// The number of the way.
    pub(crate) way: usize,
}

impl Node {
    /// The first of the ways that fits when these are gone.
    fn fits(&self, gone: &[usize], ways: &[Vec<Want>], tries: &mut Tries) -> Option<usize> {
        let mut free = self.free.clone();
        for held in self
            .held
            .iter()
            .filter(|held| held.by.iter().all(|pod| gone.contains(pod)))
        {
            for (device, share) in &held.shares {
                if let Some(device) = free.get_mut(*device) {
                    device.give_back(*share);
                }
            }
        }
        ways.iter().position(|way| pack(&free, way, tries).is_some())
    }

    /// The cheapest set of this size that makes room.
    fn search(&self, size: usize, ways: &[Vec<Want>], best: &mut Option<Found>, tries: &mut Tries) {
        let mut order: Vec<usize> = (0..self.candidates.len()).collect();
        order.sort_by_key(|at| {
            let candidate = &self.candidates[*at];
            // The youngest first: times as Kubernetes writes them have the order of their texts.
            let youngest = std::cmp::Reverse(candidate.created.clone());
            (candidate.lost, youngest, candidate.pod.clone())
        });
        self.extend(&order, size, &mut Vec::new(), ways, best, tries);
    }

    fn extend(
        &self,
        order: &[usize],
        missing: usize,
        chosen: &mut Vec<usize>,
        ways: &[Vec<Want>],
        best: &mut Option<Found>,
        tries: &mut Tries,
    ) {
        let lost = self.lost(chosen);
        if best.as_ref().is_some_and(|best| best.lost <= lost) {
            return;
        }
        if missing == 0 {
            if let Some(way) = self.fits(chosen, ways, tries) {
                *best = Some(Found {
                    node: self.name.clone(),
                    chosen: chosen.clone(),
                    lost,
                    way,
                });
            }
            return;
        }
        for (at, pod) in order.iter().enumerate() {
            if order.len() - at < missing || tries.are_over() {
                return;
            }
            chosen.push(*pod);
            self.extend(&order[at + 1..], missing - 1, chosen, ways, best, tries);
            chosen.pop();
        }
    }

    /// A set of which no pod can be left out: the dearest are left out first.
    fn irreducible(&self, ways: &[Vec<Want>], tries: &mut Tries) -> Option<Found> {
        let mut chosen: Vec<usize> = (0..self.candidates.len()).collect();
        let mut way = self.fits(&chosen, ways, tries)?;
        let mut dearest = chosen.clone();
        dearest.sort_by_key(|at| std::cmp::Reverse(self.candidates[*at].lost));
        for pod in dearest {
            let without: Vec<usize> = chosen.iter().copied().filter(|other| *other != pod).collect();
            if let Some(fitting) = self.fits(&without, ways, tries) {
                (chosen, way) = (without, fitting);
            }
        }
        Some(Found {
            node: self.name.clone(),
            lost: self.lost(&chosen),
            chosen,
            way,
        })
    }

    fn lost(&self, chosen: &[usize]) -> u128 {
        let each = chosen.iter().map(|at| self.candidates[*at].lost);
        each.fold(0, u128::saturating_add)
    }
}

struct Found {
    node: String,
    chosen: Vec<usize>,
    lost: u128,
    way: usize,
}

/// Chooses for a pod that fits nowhere as it is. `None`: no node would have room without its candidates, or that is not
/// known because the tries are over.
pub(crate) fn choose(nodes: &[&Node], ways: &[Vec<Want>], tries: &mut Tries) -> Option<Choice> {
    let all = |node: &Node| (0..node.candidates.len()).collect::<Vec<_>>();
    let mut hopeful = nodes.to_vec();
    hopeful.retain(|node| node.fits(&all(node), ways, tries).is_some());
    let most = hopeful.iter().map(|node| node.candidates.len()).max()?;
    let mut second = tries.split();
    let mut best = None;
    for size in 1..=most {
        for node in &hopeful {
            node.search(size, ways, &mut best, tries);
        }
        if best.is_some() || tries.are_over() {
            break;
        }
    }
    let best = best.or_else(|| {
        let found = hopeful.iter().filter_map(|node| node.irreducible(ways, &mut second));
        found.min_by_key(|found| (found.chosen.len(), found.lost))
    });
    tries.join(&second);
    let best = best?;
    let node = hopeful.into_iter().find(|node| node.name == best.node)?;
    Some(Choice {
        victims: best.chosen.iter().map(|at| node.candidates[*at].pod.clone()).collect(),
        node: best.node,
        way: best.way,
    })
}

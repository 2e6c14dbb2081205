//! Chooses the pods to evict for one that waits: the fewest on one node, and of these those that lose the least GPU time.
//!
//! A claim's shares are free when all pods that hold it are gone. Sets of pods are tried by size, so the first that makes
//! room is as small as can be. After [`TRIALS`] sets that have led nowhere, one is taken of which no pod can be left out;
//! it may not be the smallest.

use crate::amount::Amount;
use crate::plan::PodRef;
use crate::room::{Free, Want, pack};

/// The limit of sets that are tried for one pod.
const TRIALS: u32 = 200_000;

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
    fn fits(&self, gone: &[usize], ways: &[Vec<Want>]) -> Option<usize> {
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
        ways.iter().position(|way| pack(&free, way).is_some())
    }

    /// The cheapest set of this size that makes room.
    fn search(&self, size: usize, ways: &[Vec<Want>], best: &mut Option<Found>, trials: &mut u32) {
        let mut order: Vec<usize> = (0..self.candidates.len()).collect();
        order.sort_by_key(|at| {
            let candidate = &self.candidates[*at];
            // The youngest first: times as Kubernetes writes them have the order of their texts.
            let youngest = std::cmp::Reverse(candidate.created.clone());
            (candidate.lost, youngest, candidate.pod.clone())
        });
        self.extend(&order, size, &mut Vec::new(), ways, best, trials);
    }

    fn extend(
        &self,
        order: &[usize],
        missing: usize,
        chosen: &mut Vec<usize>,
        ways: &[Vec<Want>],
        best: &mut Option<Found>,
        trials: &mut u32,
    ) {
        let lost = self.lost(chosen);
        if best.as_ref().is_some_and(|best| best.lost <= lost) {
            return;
        }
        if missing == 0 {
            let Some(left) = trials.checked_sub(1) else { return };
            *trials = left;
            if let Some(way) = self.fits(chosen, ways) {
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
            if order.len() - at < missing || *trials == 0 {
                return;
            }
            chosen.push(*pod);
            self.extend(&order[at + 1..], missing - 1, chosen, ways, best, trials);
            chosen.pop();
        }
    }

    /// A set of which no pod can be left out: the dearest are left out first.
    fn irreducible(&self, ways: &[Vec<Want>]) -> Option<Found> {
        let mut chosen: Vec<usize> = (0..self.candidates.len()).collect();
        let mut way = self.fits(&chosen, ways)?;
        let mut dearest = chosen.clone();
        dearest.sort_by_key(|at| std::cmp::Reverse(self.candidates[*at].lost));
        for pod in dearest {
            let without: Vec<usize> = chosen.iter().copied().filter(|other| *other != pod).collect();
            if let Some(fitting) = self.fits(&without, ways) {
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

/// Chooses for a pod that fits nowhere as it is. `None`: no node would have room without its candidates.
pub(crate) fn choose(nodes: &[&Node], ways: &[Vec<Want>]) -> Option<Choice> {
    let all = |node: &Node| (0..node.candidates.len()).collect::<Vec<_>>();
    let hopeful = nodes.iter().copied();
    let hopeful: Vec<&Node> = hopeful.filter(|node| node.fits(&all(node), ways).is_some()).collect();
    let most = hopeful.iter().map(|node| node.candidates.len()).max()?;
    let mut trials = TRIALS;
    let mut best = None;
    for size in 1..=most {
        for node in &hopeful {
            node.search(size, ways, &mut best, &mut trials);
        }
        if best.is_some() || trials == 0 {
            break;
        }
    }
    let best = best.or_else(|| {
        let found = hopeful.iter().filter_map(|node| node.irreducible(ways));
        found.min_by_key(|found| (found.chosen.len(), found.lost))
    })?;
    let node = hopeful.into_iter().find(|node| node.name == best.node)?;
    Some(Choice {
        victims: best.chosen.iter().map(|at| node.candidates[*at].pod.clone()).collect(),
        node: best.node,
        way: best.way,
    })
}

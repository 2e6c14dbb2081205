//! The allocator's answers for all waiting pods: one answer for all pods with equal claims (a shape).
//!
//! ```text
//!  waiting pods ─► Question::of ─► shapes ─► queue: new ones, and those whose answer is older than the state
//!                                                │ first in, first out
//!                                                ▼
//!                         node after node: Index::answer ─► Summary ─► Answer, kept until there is a newer one
//! ```
//!
//! In controller mode the planner decides by the same state, so explanations and decisions agree.
//!
//! Failure modes:
//! - **A thousand nodes and five hundred shapes:** the work is done in turns whose length the caller decides, and
//!   continues where it stopped. So the nodes of one answer may have been checked seconds apart.
//! - **A claim that takes the allocator seconds on every node:** its shape gets [`MOST_TURNS`] and then waits behind
//!   all others; the answer says how many nodes were checked.
//! - **A mistake in a claim, a class or a slice:** it becomes the answer of the shapes that use it.

use std::collections::{HashMap, HashSet, VecDeque};

use vgpu_allocator::AllocateError;
use vgpu_allocator::model::{Allocation, ResourceClaim};

use crate::device_ownership::Unallocatable;
use crate::model::Pod;
use crate::state::State;

use super::question::{Question, Shape};
use super::summary::Summary;

/// The steps for one node: some ten milliseconds, because the work is done in turns.
const STEPS: u64 = 30_000;
/// The number of turns after which a shape is answered from the nodes checked so far.
pub const MOST_TURNS: u32 = 20;

/// The answer for one shape.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The claims fit on this node. For each device the claim's index, the request and the device.
    Fits {
        node: String,
        devices: Vec<(usize, String, String)>,
    },
    Not {
        summary: Box<Summary>,
        looked_at: usize,
        nodes: usize,
    },
    /// No node is within reach of the pod's allocated claims (`held`), or the cluster has no node.
    Nowhere {
        held: bool,
    },
    Mistake(AllocateError),
    /// Nobody may allocate a claim: its index, and why.
    Nobody(usize, Unallocatable),
}

impl Answer {
    pub(super) fn fits(node: &str, allocations: &[Allocation]) -> Self {
        let results = allocations.iter().enumerate().flat_map(|(claim, allocation)| {
            let results = allocation.devices.results.iter();
            results.map(move |result| (claim, result.request.clone(), result.device.clone()))
        });
        Self::Fits {
            node: node.to_owned(),
            devices: results.collect(),
        }
    }
}

/// The answers for all shapes, and the queue of shapes to work on.
#[derive(Debug, Default)]
pub struct Answers {
    known: HashMap<Shape, Known>,
    queue: VecDeque<Shape>,
    under_way: Option<Progress>,
    /// Keys of pods for which the planner has allocated a claim that the watch does not show yet: there is nothing to
    /// explain.
    served: HashSet<String>,
}

#[derive(Debug)]
struct Known {
    answer: Answer,
    /// The state's version when work on it began.
    version: u64,
}

/// The work on one shape, node by node.
#[derive(Debug)]
struct Progress {
    shape: Shape,
    /// The claims to allocate, or the index of a claim that nobody may allocate, and why.
    claims: Result<Vec<ResourceClaim>, (usize, Unallocatable)>,
    nodes: Vec<String>,
    next: usize,
    summary: Summary,
    version: u64,
    turns: u32,
}

impl Answers {
    /// Queues the shapes of the pods that wait now, and drops shapes without a waiting pod.
    pub fn update_queue(&mut self, state: &State) {
        let waiting = state.pods().filter(|pod| pod.is_unschedulable);
        let (served, waiting): (Vec<&Pod>, Vec<&Pod>) = waiting.partition(|pod| is_served(pod, state));
        self.served = served.into_iter().map(Pod::key).collect();
        let wanted: HashSet<Shape> = waiting
            .into_iter()
            .filter_map(|pod| Question::of(pod, state))
            .map(|question| question.shape)
            .collect();
        self.known.retain(|shape, _| wanted.contains(shape));
        self.queue.retain(|shape| wanted.contains(shape));
        self.under_way.take_if(|progress| !wanted.contains(&progress.shape));
        let version = state.version();
        let queued: HashSet<&Shape> = self.queue.iter().collect();
        let is_asked = |shape: &Shape| {
            queued.contains(shape) || self.under_way.as_ref().is_some_and(|progress| progress.shape == *shape)
        };
        let is_known = |shape: &Shape| self.known.get(shape).is_some_and(|known| known.version == version);
        let wanted = wanted.into_iter();
        let news: Vec<Shape> = wanted.filter(|shape| !is_asked(shape) && !is_known(shape)).collect();
        self.queue.extend(news);
    }

    /// Checks nodes, at least one, until `may_continue` returns false. Returns true if nothing is left to do.
    pub fn work(&mut self, state: &mut State, may_continue: &mut dyn FnMut() -> bool) -> bool {
        loop {
            let next = self.under_way.take().or_else(|| {
                let shape = self.queue.pop_front()?;
                Some(Progress::new(shape, state))
            });
            let Some(mut progress) = next else {
                return true;
            };
            match progress.look_at_nodes(state, may_continue) {
                Some(answer) => {
                    let version = progress.version;
                    self.known.insert(progress.shape, Known { answer, version });
                }
                None => self.under_way = Some(progress),
            }
            if !may_continue() {
                return self.under_way.is_none() && self.queue.is_empty();
            }
        }
    }

    /// The latest answer for a pod of this shape.
    pub fn get(&self, pod: &Pod, shape: &Shape) -> Option<&Answer> {
        if self.served.contains(&pod.key()) {
            return None;
        }
        self.known.get(shape).map(|known| &known.answer)
    }

    /// The number of shapes with an answer.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

/// Returns true if an allocation for the pod is in flight.
fn is_served(pod: &Pod, state: &State) -> bool {
    pod.claim_keys().any(|key| {
        let is_waiting = state.claim(&key).is_some_and(|claim| claim.allocation().is_none());
        is_waiting && state.is_allocated(&key)
    })
}

impl Progress {
    fn new(shape: Shape, state: &State) -> Self {
        let reachable = state.nodes().filter(|node| shape.reaches(node, state));
        Self {
            claims: shape.to_claims(state),
            nodes: reachable.map(|node| node.metadata.name.clone()).collect(),
            next: 0,
            summary: Summary::default(),
            version: state.version(),
            turns: 0,
            shape,
        }
    }

    /// Returns the answer if this turn completes it.
    fn look_at_nodes(&mut self, state: &mut State, may_continue: &mut dyn FnMut() -> bool) -> Option<Answer> {
        let claims: Vec<&ResourceClaim> = match &self.claims {
            Ok(claims) => claims.iter().collect(),
            Err((claim, why)) => return Some(Answer::Nobody(*claim, why.clone())),
        };
        self.turns += 1;
        while let Some(node) = self.nodes.get(self.next) {
            self.next += 1;
            match state.answer(&claims, node, STEPS) {
                Ok(Some(vgpu_allocator::Answer::Fits(allocations))) => {
                    return Some(Answer::fits(node, &allocations));
                }
                Ok(Some(vgpu_allocator::Answer::Not(why))) => self.summary.add(*why),
                // The node was deleted since the work began.
                Ok(None) => {}
                Err(error) => return Some(Answer::Mistake(error)),
            }
            if self.summary.is_of_every_node() {
                break;
            }
            if self.next < self.nodes.len() && !may_continue() {
                if self.turns < MOST_TURNS {
                    return None;
                }
                break;
            }
        }
        if self.nodes.is_empty() {
            let held = !self.shape.held.is_empty();
            return Some(Answer::Nowhere { held });
        }
        Some(Answer::Not {
            summary: Box::new(std::mem::take(&mut self.summary)),
            looked_at: self.next,
            nodes: self.nodes.len(),
        })
    }
}

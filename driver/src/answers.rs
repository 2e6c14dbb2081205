//! The allocator's answers for all waiting pods, one for all that ask alike.
//!
//! ```text
//!  waiting pods ─► Question::of ─► shapes ─► queue: new ones, and those whose answer is older than the cluster
//!                                                │ first in, first out
//!                                                ▼
//!                         node after node: Index::answer ─► Summary ─► Answer, kept until there is a newer one
//! ```
//!
//! How it fails, and what follows:
//! - **A thousand nodes and five hundred kinds of pods:** the work is done in turns whose end the caller decides,
//!   and is taken up where it was left. The nodes of one answer may so be looked at seconds apart.
//! - **A claim that takes the allocator seconds on every node:** its shape has [`MOST_TURNS`] and then to wait behind
//!   all others; the answer says how many nodes were looked at.
//! - **A mistake in a claim, a class or a slice:** it is the answer of the shapes that meet it.

use std::collections::{HashMap, HashSet, VecDeque};

use vgpu_allocator::model::{Node, ResourceClaim};
use vgpu_allocator::{Index, SelectorCache, node_selector};

use crate::cluster::Cluster;
use crate::object::Claim;
use crate::question::{Question, Shape};
use crate::summary::Summary;

/// Turns after which a shape is answered with what is known.
pub const MOST_TURNS: u32 = 20;

/// What there is to say of claims.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// They fit on this node: claim, request and device.
    Fits {
        node: String,
        devices: Vec<(String, String, String)>,
    },
    Not {
        summary: Box<Summary>,
        looked_at: usize,
        nodes: usize,
    },
    /// No node is where the pod's other claims are, or there is no node.
    Nowhere { held: bool },
    /// In the allocator's words.
    Mistake(String),
}

/// All answers.
#[derive(Debug, Default)]
pub struct Answers {
    cache: SelectorCache<'static>,
    known: HashMap<Shape, Known>,
    queue: VecDeque<Shape>,
    under_way: Option<Pass>,
}

#[derive(Debug)]
struct Known {
    answer: Answer,
    /// The index's version that it is about.
    version: u64,
}

/// One shape, as far as its nodes were looked at.
#[derive(Debug)]
struct Pass {
    shape: Shape,
    claims: Vec<ResourceClaim>,
    nodes: Vec<String>,
    next: usize,
    summary: Summary,
    version: u64,
    turns: u32,
}

impl Answers {
    /// Takes in who waits now. What nobody asks any more is forgotten.
    pub fn ask(&mut self, cluster: &Cluster) {
        let waiting = cluster.pods.values().filter(|pod| pod.unschedulable);
        let wanted: HashSet<Shape> = waiting
            .filter_map(|pod| Question::of(pod, cluster))
            .map(|question| question.shape)
            .collect();
        self.known.retain(|shape, _| wanted.contains(shape));
        self.queue.retain(|shape| wanted.contains(shape));
        self.under_way.take_if(|pass| !wanted.contains(&pass.shape));
        let version = cluster.world.index.version();
        let queued: HashSet<&Shape> = self.queue.iter().collect();
        let is_asked =
            |shape: &Shape| queued.contains(shape) || self.under_way.as_ref().is_some_and(|pass| pass.shape == *shape);
        let is_known = |shape: &Shape| self.known.get(shape).is_some_and(|known| known.version == version);
        let wanted = wanted.into_iter();
        let news: Vec<Shape> = wanted.filter(|shape| !is_asked(shape) && !is_known(shape)).collect();
        self.queue.extend(news);
    }

    /// Looks at nodes until `go_on` says no, at one at least. Gives whether nothing is left to do.
    pub fn work(&mut self, cluster: &mut Cluster, go_on: &mut dyn FnMut() -> bool) -> bool {
        loop {
            let next = self.under_way.take().or_else(|| {
                let shape = self.queue.pop_front()?;
                Some(Pass::new(shape, cluster))
            });
            let Some(mut pass) = next else {
                return true;
            };
            match pass.go(&mut cluster.world.index, &mut self.cache, go_on) {
                Some(answer) => {
                    let version = pass.version;
                    self.known.insert(pass.shape, Known { answer, version });
                }
                None => self.under_way = Some(pass),
            }
            if !go_on() {
                return self.under_way.is_none() && self.queue.is_empty();
            }
        }
    }

    /// The latest answer.
    pub fn get(&self, shape: &Shape) -> Option<&Answer> {
        self.known.get(shape).map(|known| &known.answer)
    }

    /// How many kinds of pods are asked about.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

impl Pass {
    fn new(shape: Shape, cluster: &Cluster) -> Self {
        let index = &cluster.world.index;
        let held: Vec<_> = shape
            .held
            .iter()
            .filter_map(|key| match cluster.claim(key)? {
                Claim::Allocated(selector) => selector.as_deref(),
                Claim::Waiting(_) => None,
            })
            .collect();
        let reachable = |node: &&Node| {
            held.iter()
                .all(|selector| node_selector::matches(selector, node).unwrap_or(false))
        };
        Self {
            claims: shape.to_claims(cluster.is_controllers),
            nodes: index
                .nodes()
                .filter(reachable)
                .map(|node| node.metadata.name.clone())
                .collect(),
            next: 0,
            summary: Summary::default(),
            version: index.version(),
            turns: 0,
            shape,
        }
    }

    /// The answer, when there is one at the end of this turn.
    fn go(
        &mut self,
        index: &mut Index,
        cache: &mut SelectorCache<'_>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Option<Answer> {
        let claims: Vec<&ResourceClaim> = self.claims.iter().collect();
        self.turns += 1;
        while let Some(node) = self.nodes.get(self.next) {
            self.next += 1;
            match index.answer(&claims, node, cache) {
                Ok(Some(vgpu_allocator::Answer::Fits(allocations))) => {
                    let results = claims.iter().zip(&allocations).flat_map(|(claim, allocation)| {
                        let results = allocation.devices.results.iter();
                        results.map(|result| (claim.key(), result.request.clone(), result.device.clone()))
                    });
                    return Some(Answer::Fits {
                        node: node.clone(),
                        devices: results.collect(),
                    });
                }
                Ok(Some(vgpu_allocator::Answer::Not(why))) => self.summary.add(*why),
                // It went away since the pass began.
                Ok(None) => {}
                Err(error) => return Some(Answer::Mistake(error.to_string())),
            }
            if self.summary.is_of_every_node() {
                break;
            }
            if self.next < self.nodes.len() && !go_on() {
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

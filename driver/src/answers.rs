//! The allocator's answers for all waiting pods, one for all that ask alike.
//!
//! ```text
//!  waiting pods ─► Question::of ─► shapes ─► queue: new ones, and those whose answer is older than the cluster
//!                                                │ first in, first out
//!                                                ▼
//!                         node after node: Index::answer ─► Summary ─► Answer, kept until there is a newer one
//! ```
//!
//! The index is the cluster's own, where kube-scheduler allocates, and in controller mode the planner's: what a pod
//! waits for is then said by what is decided by.
//!
//! How it fails, and what follows:
//! - **A thousand nodes and five hundred kinds of pods:** the work is done in turns whose end the caller decides,
//!   and is taken up where it was left. The nodes of one answer may so be looked at seconds apart.
//! - **A claim that takes the allocator seconds on every node:** its shape has [`MOST_TURNS`] and then to wait behind
//!   all others; the answer says how many nodes were looked at.
//! - **A mistake in a claim, a class or a slice:** it is the answer of the shapes that meet it.

use std::collections::{HashMap, HashSet, VecDeque};

use vgpu_allocator::model::{Node, ResourceClaim};
use vgpu_allocator::{SelectorCache, node_selector};
use vgpu_planner::{Eyes, Planner};

use crate::cluster::{Cluster, Table};
use crate::model::{Key, Pod};
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
    /// Pods that the planner has given something, which the watches have yet to bring: there is nothing to explain.
    served: HashSet<Key>,
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
    /// What is asked for, or why nobody may allocate it.
    claims: Result<Vec<ResourceClaim>, String>,
    nodes: Vec<String>,
    next: usize,
    summary: Summary,
    version: u64,
    turns: u32,
}

impl Answers {
    /// Takes in who waits now. What nobody asks any more is forgotten. `planner` is who decides in controller mode.
    pub fn ask(&mut self, cluster: &Cluster, planner: Option<&Planner>) {
        let waiting = cluster.pods.values().filter(|pod| pod.unschedulable);
        let (served, waiting): (Vec<&Pod>, Vec<&Pod>) =
            waiting.partition(|pod| planner.is_some_and(|planner| is_served(pod, cluster, planner)));
        self.served = served.into_iter().map(|pod| pod.key.clone()).collect();
        let wanted: HashSet<Shape> = waiting
            .into_iter()
            .filter_map(|pod| Question::of(pod, cluster))
            .map(|question| question.shape)
            .collect();
        self.known.retain(|shape, _| wanted.contains(shape));
        self.queue.retain(|shape| wanted.contains(shape));
        self.under_way.take_if(|pass| !wanted.contains(&pass.shape));
        let version = planner.map_or_else(|| cluster.world.index.version(), Planner::version);
        let queued: HashSet<&Shape> = self.queue.iter().collect();
        let is_asked =
            |shape: &Shape| queued.contains(shape) || self.under_way.as_ref().is_some_and(|pass| pass.shape == *shape);
        let is_known = |shape: &Shape| self.known.get(shape).is_some_and(|known| known.version == version);
        let wanted = wanted.into_iter();
        let news: Vec<Shape> = wanted.filter(|shape| !is_asked(shape) && !is_known(shape)).collect();
        self.queue.extend(news);
    }

    /// Looks at nodes until `go_on` says no, at one at least. Gives whether nothing is left to do.
    pub fn work(
        &mut self,
        cluster: &mut Cluster,
        planner: Option<&mut Planner>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> bool {
        let Cluster { world, claims, .. } = cluster;
        let mut eyes = match planner {
            Some(planner) => planner.eyes(),
            None => Eyes::of_scheduler(&mut world.index),
        };
        loop {
            let next = self.under_way.take().or_else(|| {
                let shape = self.queue.pop_front()?;
                Some(Pass::new(shape, claims, &eyes))
            });
            let Some(mut pass) = next else {
                return true;
            };
            match pass.go(&mut eyes, &mut self.cache, go_on) {
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

    /// The latest answer to a pod that asks for this.
    pub fn get(&self, pod: &Key, shape: &Shape) -> Option<&Answer> {
        if self.served.contains(pod) {
            return None;
        }
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

fn is_served(pod: &Pod, cluster: &Cluster, planner: &Planner) -> bool {
    pod.claims.iter().any(|name| {
        let key = format!("{}/{name}", pod.key.namespace);
        matches!(cluster.claim(&key), Some(Claim::Waiting(_))) && planner.has_given(&key)
    })
}

impl Pass {
    fn new(shape: Shape, known: &Table<ResourceClaim>, eyes: &Eyes<'_>) -> Self {
        let held: Vec<_> = shape
            .held
            .iter()
            .filter_map(|key| match known.get(key)? {
                Claim::Allocated(selector) => selector.as_deref(),
                Claim::Waiting(_) => None,
            })
            .collect();
        let reachable = |node: &&Node| {
            held.iter()
                .all(|selector| node_selector::matches(selector, node).unwrap_or(false))
        };
        Self {
            claims: shape.to_claims(eyes).map_err(|verdict| verdict.to_string()),
            nodes: eyes
                .index
                .nodes()
                .filter(reachable)
                .map(|node| node.metadata.name.clone())
                .collect(),
            next: 0,
            summary: Summary::default(),
            version: eyes.index.version(),
            turns: 0,
            shape,
        }
    }

    /// The answer, when there is one at the end of this turn.
    fn go(
        &mut self,
        eyes: &mut Eyes<'_>,
        cache: &mut SelectorCache<'_>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Option<Answer> {
        let claims: Vec<&ResourceClaim> = match &self.claims {
            Ok(claims) => claims.iter().collect(),
            Err(mistake) => return Some(Answer::Mistake(mistake.clone())),
        };
        self.turns += 1;
        while let Some(node) = self.nodes.get(self.next) {
            self.next += 1;
            match eyes.index.answer(&claims, node, cache) {
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

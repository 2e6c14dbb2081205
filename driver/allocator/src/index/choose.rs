//! Chooses the node: by the free index, or by the rank of all nodes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::free_index::Wanted;
use super::rankings::{Shape, Stale};
use super::{Index, Placement};
use crate::allocate::Start;
use crate::budget::Budget;
use crate::error::AllocateError;
use crate::model::{Exactly, Mode, ResourceClaim, Selector};
use crate::plan::Classes;
use crate::policy::{NodeRank, Order};
use crate::pools::Candidate;
use crate::selectors::SelectorCache;
use vgpu_api::config::AllocationPolicy;

/// The claims to allocate, the nodes to try, and the budget for that.
pub(super) struct Question<'q, 's> {
    pub(super) claims: &'q [&'q ResourceClaim],
    pub(super) policy: AllocationPolicy,
    pub(super) allowed: &'q mut dyn FnMut(&str) -> bool,
    pub(super) budget: &'q mut Budget,
    pub(super) cache: &'q mut SelectorCache<'s>,
    pub(super) share_id: &'q mut dyn FnMut() -> String,
}

impl Index {
    /// Allocates the claims together on the best node by policy; `None` if they fit on none.
    ///
    /// # Errors
    /// A mistake in the claims that makes every answer wrong, on any node.
    pub fn allocate(
        &mut self,
        claims: &[&ResourceClaim],
        policy: AllocationPolicy,
        cache: &mut SelectorCache<'_>,
        share_id: &mut dyn FnMut() -> String,
    ) -> Result<Option<Placement>, AllocateError> {
        self.allocate_where(claims, policy, &mut |_| true, cache, share_id)
    }

    /// Like [`Self::allocate`], on a node for which `allowed` returns true. `allowed` is called at most once for a
    /// node, and only for nodes that are tried.
    ///
    /// # Errors
    /// A mistake in the claims that makes every answer wrong, on any node.
    pub fn allocate_where(
        &mut self,
        claims: &[&ResourceClaim],
        policy: AllocationPolicy,
        allowed: &mut dyn FnMut(&str) -> bool,
        cache: &mut SelectorCache<'_>,
        share_id: &mut dyn FnMut() -> String,
    ) -> Result<Option<Placement>, AllocateError> {
        self.allocate_within(claims, policy, allowed, &mut Budget::default(), cache, share_id)
    }

    /// Like [`Self::allocate_where`], with a budget for all nodes together.
    ///
    /// # Errors
    /// A mistake in the claims that makes every answer wrong, on any node; or [`AllocateError::Exhausted`] if the
    /// budget was spent before an answer was found.
    pub fn allocate_within(
        &mut self,
        claims: &[&ResourceClaim],
        policy: AllocationPolicy,
        allowed: &mut dyn FnMut(&str) -> bool,
        budget: &mut Budget,
        cache: &mut SelectorCache<'_>,
        share_id: &mut dyn FnMut() -> String,
    ) -> Result<Option<Placement>, AllocateError> {
        let question = Question {
            claims,
            policy,
            allowed,
            budget,
            cache,
            share_id,
        };
        match policy {
            AllocationPolicy::Binpack if is_plain(claims) && !self.could_be_astray(claims, question.cache) => {
                self.by_free_index(question)
            }
            _ => self.by_rank(question),
        }
    }

    /// Returns for each device of a slice, in its order, if the selectors of a class match; empty for an unknown class
    /// or slice. A device on which a selector fails does not match.
    pub fn devices_of_class(&self, class: &str, slice: &str, cache: &mut SelectorCache<'_>) -> Vec<bool> {
        let known = self.slices.get(slice).and_then(|handle| self.inventory.get(*handle));
        let (Some(class), Some(slice)) = (self.classes.get(class), known) else {
            return Vec::new();
        };
        let devices = (0..slice.spec.devices.len()).map(|index| Candidate::alone(slice, index));
        devices
            .map(|device| all_match(&class.spec.selectors, &device, cache, false))
            .collect()
    }

    /// Returns true if the first request could have a device that is not in the free index. A device on which a
    /// selector fails is included.
    fn could_be_astray(&self, claims: &[&ResourceClaim], cache: &mut SelectorCache<'_>) -> bool {
        self.free_index.strays().any(|device| {
            first_asks(claims).any(|ask| {
                let of_class = self.classes.get(&ask.class).map(|class| &class.spec.selectors);
                let selectors = of_class.into_iter().flatten().chain(&ask.selectors);
                all_match(selectors, &device, cache, true)
            })
        })
    }

    /// Tries the nodes in the order of their devices in the free index: an earlier alternative of the first request
    /// before any later one.
    fn by_free_index(&mut self, question: Question<'_, '_>) -> Result<Option<Placement>, AllocateError> {
        let Question { claims, budget, .. } = question;
        let (allowed, cache, share_id) = (question.allowed, question.cache, question.share_id);
        let mut tried = BTreeSet::new();
        let mut let_through = BTreeSet::new();
        let mut unanswered = None;
        for (alternative, ask) in first_asks(claims).enumerate() {
            let wanted = Wanted::of(ask);
            let mut from = None;
            while let Some(spot) = self.free_index.next(&wanted, from.as_ref()) {
                let spot = from.insert(spot);
                let node = spot.node();
                if tried.contains(node) {
                    continue;
                }
                if !let_through.contains(node) {
                    let asked = if allowed(node) { &mut let_through } else { &mut tried };
                    asked.insert(node.to_owned());
                    if tried.contains(node) {
                        continue;
                    }
                }
                let Some(view) = self.view(node)? else {
                    continue;
                };
                budget.next_node(self.nodes.len())?;
                let attempt = self.attempt(claims, AllocationPolicy::Binpack);
                let device = (alternative, spot.serial());
                match attempt.on_device(&view, device, budget, cache, share_id) {
                    // This device of the node does not fit; later ones may.
                    Ok(Start::Elsewhere) => {}
                    Ok(Start::Here(Some(allocations))) => {
                        let node = node.to_owned();
                        return Ok(Some(Placement { node, allocations }));
                    }
                    Ok(Start::Here(None)) => {
                        tried.insert(node.to_owned());
                    }
                    Err(error) => {
                        keep_on(error, &mut unanswered)?;
                        tried.insert(node.to_owned());
                    }
                }
            }
        }
        unanswered.map_or(Ok(None), Err)
    }

    /// Tries the nodes in the policy's order. Nodes that have not changed since equal claims were last asked about are
    /// not ranked again.
    pub(super) fn by_rank(&mut self, mut question: Question<'_, '_>) -> Result<Option<Placement>, AllocateError> {
        let mut shape = self.rankings.take(question.policy, question.claims);
        let found = match self.rank_again(&mut shape, &mut question) {
            Ok(()) => self.first_of(&shape, question),
            Err(error) => Err(error),
        };
        self.rankings.put_back(shape);
        found
    }

    /// Ranks the stale nodes. If the budget is spent before the end, the remaining nodes stay stale.
    fn rank_again(&mut self, shape: &mut Shape, question: &mut Question<'_, '_>) -> Result<(), AllocateError> {
        let stale: Vec<Arc<str>> = match shape.take_stale() {
            Stale::All => self.nodes.keys().map(|name| name.as_str().into()).collect(),
            Stale::Nodes(names) => names.into_iter().collect(),
        };
        for (at, name) in stale.iter().enumerate() {
            let ranked = self.rank(name, question);
            match ranked {
                Ok(rank) => shape.set(name, rank),
                Err(error) => {
                    shape.leave(&stale[at..]);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn rank(&mut self, node: &str, question: &mut Question<'_, '_>) -> Result<Option<NodeRank>, AllocateError> {
        let Some(view) = self.view(node)? else {
            return Ok(None);
        };
        question.budget.next_node(1)?;
        let attempt = self.attempt(question.claims, question.policy);
        match attempt.rank(&view, question.budget, question.cache) {
            Err(error) if error.is_of_devices() => Ok(None),
            ranked => ranked,
        }
    }

    fn first_of(&mut self, shape: &Shape, question: Question<'_, '_>) -> Result<Option<Placement>, AllocateError> {
        let Question {
            claims, policy, budget, ..
        } = question;
        let (allowed, cache, share_id) = (question.allowed, question.cache, question.share_id);
        let mut let_through = HashMap::new();
        let mut unanswered = None;
        for order in Order::of_policy(policy) {
            for node in shape.nodes() {
                if !*let_through.entry(node).or_insert_with(|| allowed(node)) {
                    continue;
                }
                let Some(view) = self.view(node)? else {
                    continue;
                };
                budget.next_node(self.nodes.len())?;
                let attempt = self.attempt(claims, policy);
                match attempt.in_order(&view, order, budget, cache, share_id) {
                    Ok(Some(allocations)) => {
                        let node = node.to_owned();
                        return Ok(Some(Placement { node, allocations }));
                    }
                    Ok(None) => {}
                    Err(error) => keep_on(error, &mut unanswered)?,
                }
            }
        }
        unanswered.map_or(Ok(None), Err)
    }
}

/// Continues with the next node after an error that is only about the devices of one node. If a node has used its part
/// of the budget, that is the result unless another node has an answer.
fn keep_on(error: AllocateError, unanswered: &mut Option<AllocateError>) -> Result<(), AllocateError> {
    match error {
        AllocateError::Exhausted { .. } => *unanswered = Some(error),
        _ if error.is_of_devices() => {}
        _ => return Err(error),
    }
    Ok(())
}

/// Returns true if a device matches all selectors; `doubtful` is the result for a selector that fails.
fn all_match<'a>(
    selectors: impl IntoIterator<Item = &'a Selector>,
    device: &Candidate,
    cache: &mut SelectorCache<'_>,
    doubtful: bool,
) -> bool {
    selectors.into_iter().all(|selector| match &selector.cel {
        Some(cel) => cache.matches(&cel.expression, device).unwrap_or(doubtful),
        None => doubtful,
    })
}
/// Returns true if the free index can answer the first request: it asks neither for all devices nor for admin access.
fn is_plain(claims: &[&ResourceClaim]) -> bool {
    let mut asks = first_asks(claims).peekable();
    asks.peek().is_some()
        && asks.all(|ask| matches!(ask.mode, Mode::Exact(count) if count > 0) && !ask.admin_access.unwrap_or(false))
}

/// The alternatives of the first request, in order.
fn first_asks<'a>(claims: &[&'a ResourceClaim]) -> impl Iterator<Item = &'a Exactly> {
    let request = claims.first().and_then(|claim| claim.spec.devices.requests.first());
    request.into_iter().flat_map(|request| {
        let alternatives = request.first_available.iter().map(|alternative| &alternative.ask);
        // As in a plan: the list of alternatives takes precedence.
        let exactly = request.exactly.as_ref().filter(|_| request.first_available.is_empty());
        exactly.into_iter().chain(alternatives)
    })
}

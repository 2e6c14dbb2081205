//! Which node: by the shelves, or by the nodes' ranks.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::rankings::{Shape, Stale};
use super::shelves::Wanted;
use super::{Index, Placement};
use crate::allocate::Start;
use crate::error::AllocateError;
use crate::model::{Exactly, Mode, ResourceClaim};
use crate::plan::Classes;
use crate::policy::Policy;
use crate::pools::Candidate;
use crate::selectors::SelectorCache;

impl Index {
    /// Where the claims fit together, by policy.
    ///
    /// # Errors
    /// Something is wrong with the claims, so that there is no right answer on any node.
    pub fn allocate(
        &mut self,
        claims: &[&ResourceClaim],
        policy: Policy,
        cache: &mut SelectorCache<'_>,
        share_id: &mut dyn FnMut() -> String,
    ) -> Result<Option<Placement>, AllocateError> {
        self.allocate_where(claims, policy, &mut |_| true, cache, share_id)
    }

    /// The same among the nodes that `allowed` lets through. It is asked about a node once at most, and only about
    /// those that come up.
    ///
    /// # Errors
    /// Something is wrong with the claims, so that there is no right answer on any node.
    pub fn allocate_where(
        &mut self,
        claims: &[&ResourceClaim],
        policy: Policy,
        allowed: &mut dyn FnMut(&str) -> bool,
        cache: &mut SelectorCache<'_>,
        share_id: &mut dyn FnMut() -> String,
    ) -> Result<Option<Placement>, AllocateError> {
        match policy {
            Policy::Binpack if is_plain(claims) && !self.could_be_astray(claims, cache) => {
                self.by_shelves(claims, allowed, cache, share_id)
            }
            _ => self.by_rank(claims, policy, allowed, cache, share_id),
        }
    }

    /// Which devices of a slice match the selectors of a class, in the slice's order; empty for a class or a slice that
    /// is not known. A device on which a selector fails does not match.
    pub fn devices_of_class(&self, class: &str, slice: &str, cache: &mut SelectorCache<'_>) -> Vec<bool> {
        let known = self.slices.get(slice).and_then(|handle| self.inventory.get(*handle));
        let (Some(class), Some(slice)) = (self.classes.get(class), known) else {
            return Vec::new();
        };
        let devices = (0..slice.spec.devices.len()).map(|index| Candidate::alone(slice, index));
        let mut matches = |device: Candidate| {
            class.spec.selectors.iter().all(|selector| match &selector.cel {
                Some(cel) => cache.matches(&cel.expression, &device).unwrap_or(false),
                None => false,
            })
        };
        devices.map(&mut matches).collect()
    }

    /// Whether the first request could have a device that is not on the shelves. One that nobody can judge might.
    fn could_be_astray(&self, claims: &[&ResourceClaim], cache: &mut SelectorCache<'_>) -> bool {
        self.shelves.strays().any(|device| {
            first_asks(claims).any(|ask| {
                let of_class = self.classes.get(&ask.class).map(|class| &class.spec.selectors);
                let mut selectors = of_class.into_iter().flatten().chain(&ask.selectors);
                selectors.all(|selector| match &selector.cel {
                    Some(cel) => cache.matches(&cel.expression, &device).unwrap_or(true),
                    None => true,
                })
            })
        })
    }

    /// The nodes in the order of their devices on the shelves: an earlier alternative of the first request before any
    /// later one.
    fn by_shelves(
        &mut self,
        claims: &[&ResourceClaim],
        allowed: &mut dyn FnMut(&str) -> bool,
        cache: &mut SelectorCache<'_>,
        share_id: &mut dyn FnMut() -> String,
    ) -> Result<Option<Placement>, AllocateError> {
        let mut tried = BTreeSet::new();
        let mut let_through = BTreeSet::new();
        for (alternative, ask) in first_asks(claims).enumerate() {
            let wanted = Wanted::of(ask);
            let mut from = None;
            while let Some(spot) = self.shelves.next(&wanted, from.as_ref()) {
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
                let attempt = self.attempt(claims, Policy::Binpack);
                match attempt.on_device(&view, alternative, spot.serial(), cache, share_id) {
                    // Not this device of the node; others may follow.
                    Ok(Start::Elsewhere) => {}
                    Ok(Start::Here(Some(allocations))) => {
                        let node = node.to_owned();
                        return Ok(Some(Placement { node, allocations }));
                    }
                    Err(error) if !error.is_of_devices() => return Err(error),
                    Ok(Start::Here(None)) | Err(_) => {
                        tried.insert(node.to_owned());
                    }
                }
            }
        }
        Ok(None)
    }

    /// The nodes in the policy's order. What no event has touched since claims like these were last asked about is not
    /// looked at again.
    pub(super) fn by_rank(
        &mut self,
        claims: &[&ResourceClaim],
        policy: Policy,
        allowed: &mut dyn FnMut(&str) -> bool,
        cache: &mut SelectorCache<'_>,
        share_id: &mut dyn FnMut() -> String,
    ) -> Result<Option<Placement>, AllocateError> {
        let mut shape = self.rankings.take(policy, claims);
        let ranked = self.rank_again(&mut shape, claims, policy, cache);
        let found = match ranked {
            Ok(()) => self.first_of(&shape, claims, policy, allowed, cache, share_id),
            Err(error) => {
                shape.forget();
                Err(error)
            }
        };
        self.rankings.put_back(shape);
        found
    }

    fn rank_again(
        &mut self,
        shape: &mut Shape,
        claims: &[&ResourceClaim],
        policy: Policy,
        cache: &mut SelectorCache<'_>,
    ) -> Result<(), AllocateError> {
        let stale: Vec<Arc<str>> = match shape.take_stale() {
            Stale::All => self.nodes.keys().map(|name| name.as_str().into()).collect(),
            Stale::Nodes(names) => names.into_iter().collect(),
        };
        for name in stale {
            let Some(view) = self.view(&name)? else {
                shape.set(&name, None);
                continue;
            };
            match self.attempt(claims, policy).rank(&view, cache) {
                Ok(rank) => shape.set(&name, rank),
                Err(error) if error.is_of_devices() => shape.set(&name, None),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn first_of(
        &mut self,
        shape: &Shape,
        claims: &[&ResourceClaim],
        policy: Policy,
        allowed: &mut dyn FnMut(&str) -> bool,
        cache: &mut SelectorCache<'_>,
        share_id: &mut dyn FnMut() -> String,
    ) -> Result<Option<Placement>, AllocateError> {
        let mut let_through = HashMap::new();
        for order in policy.orders() {
            for node in shape.nodes() {
                if !*let_through.entry(node).or_insert_with(|| allowed(node)) {
                    continue;
                }
                let Some(view) = self.view(node)? else {
                    continue;
                };
                match self.attempt(claims, policy).in_order(&view, order, cache, share_id) {
                    Ok(Some(allocations)) => {
                        let node = node.to_owned();
                        return Ok(Some(Placement { node, allocations }));
                    }
                    Ok(None) => {}
                    Err(error) if error.is_of_devices() => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(None)
    }
}

/// Whether the first request is one that the shelves answer: not all devices, no look at devices in use.
fn is_plain(claims: &[&ResourceClaim]) -> bool {
    let mut asks = first_asks(claims).peekable();
    asks.peek().is_some()
        && asks.all(|ask| matches!(ask.mode, Mode::Exact(count) if count > 0) && !ask.admin_access.unwrap_or(false))
}

/// What the first request asks for, alternative by alternative.
fn first_asks<'a>(claims: &[&'a ResourceClaim]) -> impl Iterator<Item = &'a Exactly> {
    let request = claims.first().and_then(|claim| claim.spec.devices.requests.first());
    request.into_iter().flat_map(|request| {
        let alternatives = request.first_available.iter().map(|alternative| &alternative.ask);
        // As in a plan: a list, if there is one.
        let exactly = request.exactly.as_ref().filter(|_| request.first_available.is_empty());
        exactly.into_iter().chain(alternatives)
    })
}

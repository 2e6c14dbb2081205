//! The cluster as a whole, kept up to date event by event, so that one claim is allocated without a look at every
//! device.
//!
//! ```text
//!  event ─► apply ─► inventory, ledger, classes ─► shelves: devices by memory left, cores left, name, node
//!                                                      │ from the memory that is asked for on
//!                                                      ▼
//!  claims ─► allocate ─► a device that the first request can have ─► its node's view ─► search ─► allocations
//! ```
//!
//! The shelves are `binpack`'s order of devices and nodes at once: the first node on which everything fits is the one
//! that a comparison of all nodes would choose. Other policies, and first requests for all devices, with admin access, or
//! that match a device of no single node, are answered by that comparison (`first-fit` goes through the nodes by name). Nothing is written: the caller writes the allocation, and its event comes back as any other's.

mod shelves;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::allocate::{Attempt, Start};
use crate::error::AllocateError;
use crate::features::Features;
use crate::inventory::{Inventory, Slice, SliceHandle};
use crate::ledger::Ledger;
use crate::model::{
    Allocation, DeviceClass, DeviceResult, DeviceTaintRule, Exactly, Node, ResourceClaim, ResourceSlice,
};
use crate::plan::Classes;
use crate::policy::{NodeRank, Policy};
use crate::pools::NodeView;
use crate::selectors::SelectorCache;
use shelves::Shelves;

/// What changed. An object that is there already is replaced.
#[derive(Debug, Clone)]
pub enum Event {
    Node(Node),
    NodeGone {
        name: String,
    },
    Slice(ResourceSlice),
    SliceGone {
        name: String,
    },
    Class(DeviceClass),
    ClassGone {
        name: String,
    },
    /// All of them: there are few.
    Rules(Vec<DeviceTaintRule>),
    /// Only its allocation counts; one without is as good as gone.
    Claim(ResourceClaim),
    /// `namespace/name`.
    ClaimGone {
        key: String,
    },
}

/// Claims and where they fit.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    pub node: String,
    /// One a claim.
    pub allocations: Vec<Allocation>,
}

/// The state of the cluster, as far as allocation goes.
#[derive(Debug)]
pub struct Index {
    features: Features,
    nodes: BTreeMap<String, Node>,
    inventory: Inventory,
    slices: HashMap<String, SliceHandle>,
    classes: ByName,
    ledger: Ledger,
    /// What each claim holds.
    claims: HashMap<Arc<str>, Box<[DeviceResult]>>,
    shelves: Shelves,
    /// Views that were needed and still hold.
    views: HashMap<String, Arc<NodeView>>,
}

#[derive(Debug, Default)]
struct ByName(HashMap<String, DeviceClass>);

impl Classes for ByName {
    fn get(&self, name: &str) -> Option<&DeviceClass> {
        self.0.get(name)
    }
}

impl Index {
    #[must_use]
    pub fn new(features: Features) -> Self {
        Self {
            features,
            nodes: BTreeMap::new(),
            inventory: Inventory::default(),
            slices: HashMap::new(),
            classes: ByName::default(),
            ledger: Ledger::default(),
            claims: HashMap::new(),
            shelves: Shelves::default(),
            views: HashMap::new(),
        }
    }

    /// Takes in one change.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Node(node) => {
                let name = node.metadata.name.clone();
                // Heartbeats change nothing that is looked at here.
                if self.nodes.get(&name) != Some(&node) {
                    self.views.remove(&name);
                    self.nodes.insert(name, node);
                }
            }
            Event::NodeGone { name } => {
                self.views.remove(&name);
                self.nodes.remove(&name);
            }
            Event::Slice(slice) => {
                self.remove_slice(&slice.metadata.name);
                let slice = Arc::new(Slice::new(slice));
                self.forget_views(&slice);
                self.shelves.insert(&slice, &self.ledger);
                self.slices
                    .insert(slice.name.clone(), self.inventory.insert(slice.clone()));
            }
            Event::SliceGone { name } => self.remove_slice(&name),
            Event::Class(class) => {
                self.classes.0.insert(class.metadata.name.clone(), class);
            }
            Event::ClassGone { name } => {
                self.classes.0.remove(&name);
            }
            Event::Rules(rules) => {
                self.inventory.set_rules(rules);
                self.views.clear();
            }
            Event::Claim(claim) => {
                let key: Arc<str> = claim.key().into();
                self.release(&key);
                if let Some(allocation) = claim.status.allocation {
                    let results = allocation.devices.results;
                    self.ledger.add(&key, &results, self.features);
                    self.shelves.update(&results, &self.ledger);
                    self.claims.insert(key, results.into_boxed_slice());
                }
            }
            Event::ClaimGone { key } => self.release(&Arc::from(key)),
        }
    }

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
        match policy {
            Policy::Binpack if is_plain(claims) && !self.could_be_astray(claims, cache) => {
                self.by_shelves(claims, cache, share_id)
            }
            Policy::FirstFit => self.by_name(claims, cache, share_id),
            _ => self.by_rank(claims, policy, cache, share_id),
        }
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
        cache: &mut SelectorCache<'_>,
        share_id: &mut dyn FnMut() -> String,
    ) -> Result<Option<Placement>, AllocateError> {
        let mut tried = BTreeSet::new();
        for (alternative, ask) in first_asks(claims).enumerate() {
            let wanted = shelves::Wanted::of(ask);
            let mut from = None;
            while let Some(spot) = self.shelves.next(&wanted, from.as_ref()) {
                let spot = from.insert(spot);
                let node = spot.node();
                if tried.contains(node) {
                    continue;
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

    fn by_name(
        &mut self,
        claims: &[&ResourceClaim],
        cache: &mut SelectorCache<'_>,
        share_id: &mut dyn FnMut() -> String,
    ) -> Result<Option<Placement>, AllocateError> {
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        for node in names {
            let Some(view) = self.view(&node)? else {
                continue;
            };
            match self.attempt(claims, Policy::FirstFit).on_node(&view, cache, share_id) {
                Ok(Some(allocations)) => return Ok(Some(Placement { node, allocations })),
                Err(error) if !error.is_of_devices() => return Err(error),
                Ok(None) | Err(_) => {}
            }
        }
        Ok(None)
    }

    /// Every node is looked at.
    fn by_rank(
        &mut self,
        claims: &[&ResourceClaim],
        policy: Policy,
        cache: &mut SelectorCache<'_>,
        share_id: &mut dyn FnMut() -> String,
    ) -> Result<Option<Placement>, AllocateError> {
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        let mut ranked: Vec<(NodeRank, Arc<NodeView>)> = Vec::new();
        for name in &names {
            let Some(view) = self.view(name)? else {
                continue;
            };
            match self.attempt(claims, policy).rank(&view, cache) {
                Ok(Some(rank)) => ranked.push((rank, view)),
                Ok(None) => {}
                Err(error) if error.is_of_devices() => {}
                Err(error) => return Err(error),
            }
        }
        ranked.sort_by(|(a, _), (b, _)| a.cmp(b)); // stable: by name where they are equal
        let attempt = self.attempt(claims, policy);
        for order in policy.orders() {
            for (_, view) in &ranked {
                match attempt.in_order(view, order, cache, share_id) {
                    Ok(Some(allocations)) => {
                        return Ok(Some(Placement {
                            node: view.node().to_owned(),
                            allocations,
                        }));
                    }
                    Ok(None) => {}
                    Err(error) if error.is_of_devices() => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(None)
    }

    fn attempt<'a>(&'a self, claims: &'a [&'a ResourceClaim], policy: Policy) -> Attempt<'a> {
        Attempt {
            claims,
            classes: &self.classes,
            ledger: &self.ledger,
            features: self.features,
            policy,
        }
    }

    /// What a node can use; `None` for a node that is not known.
    fn view(&mut self, name: &str) -> Result<Option<Arc<NodeView>>, AllocateError> {
        if let Some(view) = self.views.get(name) {
            return Ok(Some(view.clone()));
        }
        let Some(node) = self.nodes.get(name) else {
            return Ok(None);
        };
        let view = Arc::new(NodeView::new(node, &self.inventory, self.features)?);
        self.views.insert(name.to_owned(), view.clone());
        Ok(Some(view))
    }

    fn remove_slice(&mut self, name: &str) {
        let slice = self
            .slices
            .remove(name)
            .and_then(|handle| self.inventory.remove(handle));
        if let Some(slice) = slice {
            self.forget_views(&slice);
            self.shelves.remove(&slice);
        }
    }

    /// Forgets what a slice is a part of: its node, and every node that has a slice of the same pool.
    fn forget_views(&mut self, slice: &Slice) {
        let own = slice.spec.node_name.as_deref().filter(|node| !node.is_empty());
        let Some(own) = own else {
            return self.views.clear();
        };
        self.views.remove(own);
        for other in self.inventory.of_pool(&slice.spec.driver, &slice.spec.pool.name) {
            match other.spec.node_name.as_deref().filter(|node| !node.is_empty()) {
                Some(node) => self.views.remove(node),
                None => return self.views.clear(),
            };
        }
    }

    fn release(&mut self, key: &Arc<str>) {
        if let Some(results) = self.claims.remove(key) {
            self.ledger.remove(key, &results, self.features);
            self.shelves.update(&results, &self.ledger);
        }
    }
}

/// Whether the first request is one that the shelves answer: not all devices, no look at devices in use.
fn is_plain(claims: &[&ResourceClaim]) -> bool {
    let mut asks = first_asks(claims).peekable();
    asks.peek().is_some()
        && asks.all(|ask| {
            matches!(ask.mode, crate::model::Mode::Exact(count) if count > 0) && !ask.admin_access.unwrap_or(false)
        })
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

#[cfg(test)]
mod tests;

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
//! that a comparison of all nodes would choose. Other policies, and slices that are not of one node, are answered by
//! that comparison. Nothing is written: the caller writes the allocation, and its event comes back as any other's.

mod shelves;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::allocate::Attempt;
use crate::error::AllocateError;
use crate::features::Features;
use crate::inventory::{Inventory, Slice, SliceHandle};
use crate::ledger::Ledger;
use crate::model::{Allocation, DeviceClass, DeviceTaintRule, Node, ResourceClaim, ResourceSlice};
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
    claims: HashMap<Arc<str>, Allocation>,
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
                    self.ledger.add(&key, &allocation, self.features);
                    self.shelves.update(&allocation, &self.ledger);
                    self.claims.insert(key, allocation);
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
        if policy == Policy::Binpack && self.shelves.hold_everything() && is_plain(claims) {
            self.from_shelves(claims, cache, share_id)
        } else {
            self.from_all_nodes(claims, policy, cache, share_id)
        }
    }

    fn from_shelves(
        &mut self,
        claims: &[&ResourceClaim],
        cache: &mut SelectorCache<'_>,
        share_id: &mut dyn FnMut() -> String,
    ) -> Result<Option<Placement>, AllocateError> {
        let wanted = shelves::Wanted::of(claims);
        let mut tried = BTreeSet::new();
        let mut from = None;
        while let Some((spot, node)) = self.shelves.next(&wanted, from.as_ref()) {
            let node = node.to_owned();
            from = Some(spot);
            if tried.contains(&node) {
                continue;
            }
            let Some(view) = self.view(&node)? else {
                continue;
            };
            let attempt = self.attempt(claims, Policy::Binpack);
            match attempt.rank(&view, cache).map(|rank| rank.map(|rank| rank.device)) {
                // Not this device of the node: its turn comes with the one that does.
                Ok(Some(device)) if Some(device.as_str()) != from.as_ref().map(shelves::Spot::device) => continue,
                Ok(Some(_)) => {}
                Ok(None) => {
                    tried.insert(node);
                    continue;
                }
                Err(error) if error.is_of_devices() => {
                    tried.insert(node);
                    continue;
                }
                Err(error) => return Err(error),
            }
            match attempt.on_node(&view, cache, share_id) {
                Ok(Some(allocations)) => return Ok(Some(Placement { node, allocations })),
                Err(error) if !error.is_of_devices() => return Err(error),
                Ok(None) | Err(_) => tried.insert(node),
            };
        }
        Ok(None)
    }

    fn from_all_nodes(
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
        if policy != Policy::FirstFit {
            ranked.sort_by(|(a, _), (b, _)| a.cmp(b)); // stable: by name where they are equal
        }
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
        if let Some(allocation) = self.claims.remove(key) {
            self.ledger.remove(key, &allocation, self.features);
            self.shelves.update(&allocation, &self.ledger);
        }
    }
}

/// Whether the first request is one that the shelves answer: no list, not all devices, no look at devices in use.
fn is_plain(claims: &[&ResourceClaim]) -> bool {
    let request = claims.first().and_then(|claim| claim.spec.devices.requests.first());
    request
        .and_then(|request| request.exactly.as_ref())
        .is_some_and(|exactly| {
            matches!(exactly.mode, crate::model::Mode::Exact(count) if count > 0)
                && !exactly.admin_access.unwrap_or(false)
        })
}

#[cfg(test)]
mod tests;

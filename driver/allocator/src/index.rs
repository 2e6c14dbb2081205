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
//! that match a device of no single node, are answered by that comparison, which is kept for claims that ask alike: only
//! nodes that events have touched are compared again. Nothing is written: the caller writes the allocation, and its event comes back as any other's.

mod answer;
mod choose;
mod free;
mod rankings;
mod shelves;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::allocate::Attempt;
use crate::error::AllocateError;
use crate::features::Features;
use crate::inventory::{Inventory, Slice, SliceHandle};
use crate::ledger::Ledger;
use crate::model::{
    Allocation, DeviceClass, DeviceResult, DeviceTaintRule, Metadata, Node, ResourceClaim, ResourceSlice,
};
use crate::plan::Classes;
use crate::pools::NodeView;
pub use free::Free;
use rankings::Rankings;
use shelves::Shelves;
use vgpu_api::config::AllocationPolicy;

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
    rankings: Rankings,
    /// Views that were needed and still hold.
    views: HashMap<String, Arc<NodeView>>,
    version: u64,
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
            rankings: Rankings::default(),
            views: HashMap::new(),
            version: 0,
        }
    }

    /// Takes in one change.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Node(node) => {
                let name = node.metadata.name.clone();
                // Heartbeats change nothing that is looked at here.
                if self.nodes.get(&name) != Some(&node) {
                    self.version += 1;
                    self.touch(&name);
                    self.nodes.insert(name, node);
                }
            }
            Event::NodeGone { name } => {
                self.version += 1;
                self.touch(&name);
                self.nodes.remove(&name);
            }
            Event::Slice(slice) => {
                // A watch that starts over brings what is known.
                let known = self.slices.get(&slice.metadata.name);
                if known
                    .and_then(|handle| self.inventory.get(*handle))
                    .is_some_and(|known| known.spec == slice.spec)
                {
                    return;
                }
                self.version += 1;
                self.remove_slice(&slice.metadata.name);
                let slice = Arc::new(Slice::new(slice));
                self.forget_views(&slice);
                self.shelves.insert(&slice, &self.ledger);
                self.slices
                    .insert(slice.name.clone(), self.inventory.insert(slice.clone()));
            }
            Event::SliceGone { name } => self.remove_slice(&name),
            Event::Class(class) => {
                if self.classes.get(&class.metadata.name) == Some(&class) {
                    return;
                }
                self.version += 1;
                self.rankings.touch_all();
                self.classes.0.insert(class.metadata.name.clone(), class);
            }
            Event::ClassGone { name } => {
                self.version += 1;
                self.rankings.touch_all();
                self.classes.0.remove(&name);
            }
            Event::Rules(rules) => {
                if self.inventory.rules == rules {
                    return;
                }
                self.version += 1;
                self.inventory.set_rules(rules);
                self.touch_all();
            }
            Event::Claim(claim) => {
                let key: Arc<str> = claim.key().into();
                let results = claim.status.allocation.map(|allocation| allocation.devices.results);
                // Most of what happens to a claim leaves what it holds: reservations, the status of its devices.
                if self.claims.get(&key).map(|held| &**held) == results.as_deref() {
                    return;
                }
                self.release(&key);
                if let Some(results) = results {
                    self.version += 1;
                    self.ledger.add(&key, &results, self.features);
                    self.shelves.update(&results, &self.ledger);
                    self.touch_users(&results);
                    self.claims.insert(key, results.into_boxed_slice());
                }
            }
            Event::ClaimGone { key } => self.release(&Arc::from(key)),
        }
    }

    /// Grows with every event that may change an answer.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// What the driver's devices have left together.
    #[must_use]
    pub fn free(&self, driver: &str) -> Free {
        self.shelves.free(driver)
    }

    /// A slice as it was told.
    #[must_use]
    pub fn slice(&self, name: &str) -> Option<ResourceSlice> {
        let slice = self.inventory.get(*self.slices.get(name)?)?;
        Some(ResourceSlice {
            metadata: Metadata {
                name: slice.name.clone(),
                ..Metadata::default()
            },
            spec: slice.spec.clone(),
        })
    }

    /// All nodes that are known, by name.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values()
    }

    fn attempt<'a>(&'a self, claims: &'a [&'a ResourceClaim], policy: AllocationPolicy) -> Attempt<'a> {
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
            self.version += 1;
            self.forget_views(&slice);
            self.shelves.remove(&slice);
        }
    }

    /// Forgets what a slice is a part of: its node, and every node that has a slice of the same pool.
    fn forget_views(&mut self, slice: &Slice) {
        let own = slice.spec.node_name.clone().filter(|node| !node.is_empty());
        match (own, self.nodes_of_pool(&slice.spec.driver, &slice.spec.pool.name)) {
            (Some(own), Some(others)) => {
                self.touch(&own);
                others.iter().for_each(|node| self.touch(node));
            }
            _ => self.touch_all(),
        }
    }

    /// Whoever has devices of the same pools stands elsewhere now: counters are the pool's.
    fn touch_users(&mut self, results: &[DeviceResult]) {
        for result in results {
            match self.nodes_of_pool(&result.driver, &result.pool) {
                Some(nodes) => nodes.iter().for_each(|node| self.rankings.touch(node)),
                None => self.rankings.touch_all(),
            }
        }
    }

    /// The nodes that have a slice of the pool; `None` if that may be any.
    fn nodes_of_pool(&self, driver: &str, pool: &str) -> Option<Vec<String>> {
        let slices = self.inventory.of_pool(driver, pool);
        let nodes = slices.map(|slice| slice.spec.node_name.clone().filter(|node| !node.is_empty()));
        nodes.collect()
    }

    fn touch(&mut self, node: &str) {
        self.views.remove(node);
        self.rankings.touch(node);
    }

    fn touch_all(&mut self) {
        self.views.clear();
        self.rankings.touch_all();
    }

    fn release(&mut self, key: &Arc<str>) {
        if let Some(results) = self.claims.remove(key) {
            self.version += 1;
            self.ledger.remove(key, &results, self.features);
            self.shelves.update(&results, &self.ledger);
            self.touch_users(&results);
        }
    }
}

#[cfg(test)]
mod tests;

//! The whole cluster, updated change by change, so that a claim is allocated without looking at every device.
//!
//! ```text
//!  set_*, remove_* ─► inventory, allocated, classes ─► free index: devices by memory left, cores left, name, node
//!                                                         │ from the requested memory on
//!                                                         ▼
//!  claims ─► allocate ─► a device that the first request can have ─► its node's view ─► search ─► allocations
//! ```
//!
//! The free index has the order in which `binpack` tries devices and nodes, so the first node on which everything fits
//! is the same that a comparison of all nodes would choose. Other questions need that comparison: all other policies,
//! and first requests that ask for all devices or admin access, or that match a device that belongs to no single node.
//! Its result is kept for equal claims, and only nodes that have changed are compared again. Nothing is written to the
//! cluster: the caller writes the allocation, and its event comes back like any other.

mod answer;
mod choose;
mod free;
mod free_index;
mod rankings;
mod unmatched;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::allocate::Attempt;
use crate::allocated::AllocatedDevices;
use crate::error::AllocateError;
use crate::features::Features;
use crate::inventory::{Inventory, Slice, SliceHandle};
use crate::model::{
    Allocation, Device, DeviceClass, DeviceResult, DeviceTaintRule, Metadata, Node, RequestPolicy, ResourceClaim,
    ResourceSlice,
};
use crate::plan::Classes;
use crate::pools::NodeView;
use crate::shared::Shared;
pub use free::Free;
use free_index::FreeIndex;
use rankings::Rankings;
pub use unmatched::Unmatched;
use vgpu_api::config::AllocationPolicy;

/// The chosen node, and the claims' allocations on it.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    pub node: String,
    /// One for each claim, in their order.
    pub allocations: Vec<Allocation>,
}

/// The state of the cluster that allocation depends on.
#[derive(Debug)]
pub struct Index {
    features: Features,
    nodes: BTreeMap<String, Arc<Node>>,
    inventory: Inventory,
    slices: HashMap<String, SliceHandle>,
    classes: ByName,
    allocated: AllocatedDevices,
    /// The allocation of each allocated claim.
    claims: HashMap<Arc<str>, Arc<Allocation>>,
    free_index: FreeIndex,
    rankings: Rankings,
    /// The cached views of nodes.
    views: HashMap<String, Arc<NodeView>>,
    /// The request policies of all devices; equal ones are stored once.
    policies: Shared<RequestPolicy>,
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
            allocated: AllocatedDevices::default(),
            claims: HashMap::new(),
            free_index: FreeIndex::default(),
            rankings: Rankings::default(),
            views: HashMap::new(),
            policies: Shared::default(),
            version: 0,
        }
    }

    /// Inserts or replaces a node. A heartbeat changes nothing that is stored here.
    pub fn set_node(&mut self, node: impl Into<Arc<Node>>) {
        let node = node.into();
        if self.nodes.get(&node.metadata.name) != Some(&node) {
            self.version += 1;
            self.touch(&node.metadata.name);
            self.nodes.insert(node.metadata.name.clone(), node);
        }
    }

    pub fn remove_node(&mut self, name: &str) {
        self.version += 1;
        self.touch(name);
        self.nodes.remove(name);
    }

    /// Inserts or replaces a slice. An unchanged slice is ignored: a restarted watch sends all slices again.
    pub fn set_slice(&mut self, mut slice: ResourceSlice) {
        if self
            .known_slice(&slice.metadata.name)
            .is_some_and(|known| known.spec == slice.spec)
        {
            return;
        }
        self.version += 1;
        self.remove_slice(&slice.metadata.name);
        let capacity = slice
            .spec
            .devices
            .iter_mut()
            .flat_map(|device| device.capacity.iter_mut());
        for policy in capacity.filter_map(|(_, capacity)| capacity.request_policy.as_mut()) {
            self.policies.share(policy);
        }
        let slice = Arc::new(Slice::new(slice));
        self.forget_views(&slice);
        self.free_index.insert(&slice, &self.allocated);
        self.slices
            .insert(slice.name.clone(), self.inventory.insert(slice.clone()));
    }

    pub fn remove_slice(&mut self, name: &str) {
        let slice = self
            .slices
            .remove(name)
            .and_then(|handle| self.inventory.remove(handle));
        if let Some(slice) = slice {
            self.version += 1;
            self.forget_views(&slice);
            self.free_index.remove(&slice);
        }
    }

    /// Inserts or replaces a class.
    pub fn set_class(&mut self, class: DeviceClass) {
        if self.classes.get(&class.metadata.name) == Some(&class) {
            return;
        }
        self.version += 1;
        self.rankings.touch_all();
        self.classes.0.insert(class.metadata.name.clone(), class);
    }

    pub fn remove_class(&mut self, name: &str) {
        self.version += 1;
        self.rankings.touch_all();
        self.classes.0.remove(name);
    }

    /// Replaces all taint rules: there are few.
    pub fn set_rules(&mut self, rules: Vec<DeviceTaintRule>) {
        if self.inventory.rules == rules {
            return;
        }
        self.version += 1;
        self.inventory.set_rules(rules);
        self.touch_all();
    }

    /// Replaces the allocation of a claim, by its key `namespace/name`.
    pub fn set_claim(&mut self, key: &str, allocation: Option<&Arc<Allocation>>) {
        // Most changes of a claim leave its devices unchanged: reservations, the status of its devices.
        let held = self.claims.get_mut(key);
        if held.as_ref().map(|held| &held.devices.results) == allocation.map(|new| &new.devices.results) {
            if let (Some(held), Some(new)) = (held, allocation) {
                *held = new.clone(); // so that the caller and the index share one
            }
            return;
        }
        self.release(key);
        if let Some(allocation) = allocation {
            let key: Arc<str> = key.into();
            let results = &allocation.devices.results;
            self.version += 1;
            self.allocated.add(&key, results, self.features);
            self.free_index.update(results, &self.allocated);
            self.touch_users(results);
            self.claims.insert(key, allocation.clone());
        }
    }

    /// Like [`Self::set_claim`] without an allocation.
    pub fn remove_claim(&mut self, key: &str) {
        self.release(key);
    }

    /// A number that increases with every event that may change an answer.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The sum of what is free on the driver's devices.
    #[must_use]
    pub fn free(&self, driver: &str) -> Free {
        self.free_index.free(driver)
    }

    /// The devices of a slice, as passed to [`Self::set_slice`]; none of an unknown slice.
    #[must_use]
    pub fn devices_of_slice(&self, name: &str) -> &[Device] {
        self.known_slice(name).map_or(&[], |slice| &slice.spec.devices)
    }

    /// The device of a result, as in its slice.
    #[must_use]
    pub fn device_of_result(&self, result: &DeviceResult) -> Option<&Device> {
        let mut slices = self.inventory.of_pool(&result.driver, &result.pool);
        slices.find_map(|slice| slice.spec.devices.iter().find(|device| device.name == result.device))
    }

    /// A slice, as passed to [`Self::set_slice`].
    #[must_use]
    pub fn slice(&self, name: &str) -> Option<ResourceSlice> {
        let slice = self.known_slice(name)?;
        Some(ResourceSlice {
            metadata: Metadata {
                name: slice.name.clone(),
                ..Metadata::default()
            },
            spec: slice.spec.clone(),
        })
    }

    #[must_use]
    pub fn class(&self, name: &str) -> Option<&DeviceClass> {
        self.classes.get(name)
    }

    /// All classes that are known, in no order.
    pub fn classes(&self) -> impl Iterator<Item = &DeviceClass> {
        self.classes.0.values()
    }

    /// All nodes that are known, by name.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values().map(Arc::as_ref)
    }

    fn known_slice(&self, name: &str) -> Option<&Arc<Slice>> {
        self.inventory.get(*self.slices.get(name)?)
    }

    fn attempt<'a>(&'a self, claims: &'a [&'a ResourceClaim], policy: AllocationPolicy) -> Attempt<'a> {
        Attempt {
            claims,
            classes: &self.classes,
            allocated: &self.allocated,
            features: self.features,
            policy,
        }
    }

    /// Returns the devices that a node can use, cached; `None` for an unknown node.
    fn view(&mut self, name: &str) -> Result<Option<Arc<NodeView>>, AllocateError> {
        if let Some(view) = self.views.get(name) {
            return Ok(Some(view.clone()));
        }
        let Some(node) = self.nodes.get(name) else {
            return Ok(None);
        };
        let view = Arc::new(NodeView::new(node.clone(), &self.inventory, self.features)?);
        self.views.insert(name.to_owned(), view.clone());
        Ok(Some(view))
    }

    /// Drops the views that may contain the slice: of its node, and of every node that has a slice of the same pool.
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

    /// Marks the ranks of all nodes with devices of these pools as stale, because shared counters belong to the pool.
    fn touch_users(&mut self, results: &[DeviceResult]) {
        for result in results {
            match self.nodes_of_pool(&result.driver, &result.pool) {
                Some(nodes) => nodes.iter().for_each(|node| self.rankings.touch(node)),
                None => self.rankings.touch_all(),
            }
        }
    }

    /// The nodes that have a slice of the pool; `None` if it may be any node.
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

    fn release(&mut self, key: &str) {
        if let Some((key, allocation)) = self.claims.remove_entry(key) {
            let results = &allocation.devices.results;
            self.version += 1;
            self.allocated.remove(&key, results, self.features);
            self.free_index.update(results, &self.allocated);
            self.touch_users(results);
        }
    }
}

#[cfg(test)]
mod tests;

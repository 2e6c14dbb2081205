//! The devices that one node can use, from pools that are complete, in Kubernetes' order.
//!
//! ```text
//!  slices of the node, slices of no single node
//!      │ those that target the node, newest generation of each pool
//!      ▼
//!  pool: all slices there? ── no ─► look among the slices of other nodes ── no ─► Incomplete
//!      │ yes
//!      ▼
//!  names and counter sets unique, counters known? ── no ─► Invalid
//!      │ yes
//!      ▼
//!  devices: pools without binding conditions first, then driver, pool, slice name, place in the slice
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::features::Features;
use crate::inventory::{Inventory, Slice, device_target};
use crate::model::{CounterSet, Device, Node, NodeSelector, Taint};
use crate::node_selector::SelectorError;
use crate::taint;

/// The pools and devices that one node can use, at one state of the inventory.
#[derive(Debug)]
pub struct NodeView {
    pub(crate) node: Arc<Node>,
    /// Selects this node alone. Shared by all allocations of devices that only this node has.
    pub(crate) only: Arc<NodeSelector>,
    pub(crate) pools: Vec<PoolView>,
    /// The devices of the usable pools, in Kubernetes' order.
    pub(crate) candidates: Vec<Candidate>,
}

#[derive(Debug)]
pub(crate) struct PoolView {
    pub(crate) driver: String,
    pub(crate) name: String,
    pub(crate) state: PoolState,
    /// Slices whose devices target the node.
    slices: Vec<Arc<Slice>>,
    /// The pool's other slices, whose devices draw from the same counters.
    elsewhere: Vec<Arc<Slice>>,
    counters: Vec<Arc<Slice>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PoolState {
    Usable,
    Incomplete,
    Invalid(PoolError),
}

/// Why a complete pool is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    #[error("two devices are named {0:?}; the driver must rename one")]
    Device(String),
    #[error("two counter sets are named {0:?}; the driver must rename one")]
    CounterSet(String),
    #[error("device {device:?} consumes of counter set {set:?}, which the pool does not have")]
    UnknownSet { device: String, set: String },
    #[error("device {device:?} consumes of counter {counter:?}, which counter set {set:?} does not have")]
    UnknownCounter {
        device: String,
        set: String,
        counter: String,
    },
}

/// A slice whose node selector is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("slice {slice:?}{}: {source}", .device.as_ref().map(|device| format!(", device {device:?}")).unwrap_or_default())]
pub struct ViewError {
    pub slice: String,
    pub device: Option<String>,
    #[source]
    pub source: Box<SelectorError>,
}

/// A device that a node might use.
#[derive(Debug)]
pub(crate) struct Candidate {
    /// The pool's index in [`NodeView::pools`].
    pub(crate) pool: usize,
    pub(crate) slice: Arc<Slice>,
    index: usize,
    /// Taints from rules, in addition to the device's own.
    rule_taints: Vec<Taint>,
}

impl Candidate {
    /// A device without its pool and without rules, for evaluating its selectors.
    pub(crate) fn alone(slice: &Arc<Slice>, index: usize) -> Self {
        Self {
            pool: 0,
            slice: slice.clone(),
            index,
            rule_taints: Vec::new(),
        }
    }

    pub(crate) fn device(&self) -> &Device {
        &self.slice.spec.devices[self.index]
    }

    pub(crate) fn driver(&self) -> &str {
        &self.slice.spec.driver
    }

    pub(crate) fn serial(&self) -> u64 {
        self.slice.serial(self.index)
    }

    pub(crate) fn taints(&self) -> impl Iterator<Item = &Taint> {
        self.device().taints.iter().chain(&self.rule_taints)
    }

    /// Returns true if the device targets the node, for slices where each device has its own node selection.
    pub(crate) fn includes(&self, node: &Node) -> Result<bool, SelectorError> {
        if self.slice.selects_per_device() {
            device_target(self.device()).includes(node)
        } else {
            Ok(true)
        }
    }

    pub(crate) fn path(&self) -> String {
        format!("{}/{}/{}", self.driver(), self.slice.spec.pool.name, self.device().name)
    }
}

impl PoolView {
    pub(crate) fn counter_sets(&self) -> impl Iterator<Item = &CounterSet> {
        self.counters.iter().flat_map(|slice| &slice.spec.shared_counters)
    }

    /// All devices that may draw from the pool's counters.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &Device> {
        self.slices
            .iter()
            .chain(&self.elsewhere)
            .flat_map(|slice| &slice.spec.devices)
    }

    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.driver, self.name)
    }
}

impl NodeView {
    /// Finds what the node can use.
    ///
    /// # Errors
    /// A slice that belongs to no single node has an invalid selector.
    pub fn new(node: impl Into<Arc<Node>>, inventory: &Inventory, features: Features) -> Result<Self, ViewError> {
        let node = node.into();
        let mut view = Self {
            node: node.clone(),
            only: Arc::new(NodeSelector::only(&node.metadata.name)),
            pools: Vec::new(),
            candidates: Vec::new(),
        };
        let mut with_conditions = Vec::new();
        for ((driver, name), slices) in targeting(&node, inventory, features)? {
            let Some(pool) = pool(driver, name, slices, inventory, features) else {
                continue;
            };
            let mut devices = pool.slices.iter().flat_map(|slice| &slice.spec.devices);
            if devices.any(|device| device.binding_conditions.is_some()) {
                with_conditions.push(pool);
            } else {
                view.pools.push(pool);
            }
        }
        view.pools.append(&mut with_conditions);
        view.candidates = candidates(&view.pools, inventory, features);
        Ok(view)
    }

    #[must_use]
    pub fn node(&self) -> &str {
        &self.node.metadata.name
    }
}

/// Slices by driver and pool.
type ByPool<'a> = BTreeMap<(&'a str, &'a str), Vec<&'a Arc<Slice>>>;

/// The slices that target the node, of the newest generation among them, by driver and pool.
fn targeting<'a>(node: &Node, inventory: &'a Inventory, features: Features) -> Result<ByPool<'a>, ViewError> {
    let mut pools = ByPool::new();
    for slice in inventory.candidates_for(&node.metadata.name) {
        let spec = &slice.spec;
        let partitioned = spec.per_device_node_selection.is_some() || !spec.shared_counters.is_empty();
        if partitioned && !features.partitionable_devices || slice.uses_compatibility_groups() {
            continue;
        }
        if !is_relevant(slice, node)? {
            continue;
        }
        let known = pools.entry((&*spec.driver, &*spec.pool.name)).or_default();
        match known.first().map(|first| first.spec.pool.generation) {
            Some(generation) if spec.pool.generation < generation => {}
            Some(generation) if spec.pool.generation > generation => *known = vec![slice],
            _ => known.push(slice),
        }
    }
    Ok(pools)
}

/// Returns true if a slice has something for the node.
pub(crate) fn is_relevant(slice: &Slice, node: &Node) -> Result<bool, ViewError> {
    let target = slice.target();
    let error = |device: Option<&Device>, source| ViewError {
        slice: slice.name.clone(),
        device: device.map(|device| device.name.clone()),
        source: Box::new(source),
    };
    if target.name.is_some_and(|name| !name.is_empty()) || target.all || target.selector.is_some() {
        return target.includes(node).map_err(|source| error(None, source));
    }
    // A slice whose node field is not known here is from a later version, and is left out.
    if slice.selects_per_device() {
        for device in &slice.spec.devices {
            if device_target(device)
                .includes(node)
                .map_err(|source| error(Some(device), source))?
            {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// `None` if a newer generation is being written that has no device for the node.
fn pool(
    driver: &str,
    name: &str,
    mut slices: Vec<&Arc<Slice>>,
    inventory: &Inventory,
    features: Features,
) -> Option<PoolView> {
    let wanted = &slices.first()?.spec.pool;
    let (count, generation) = (wanted.resource_slice_count, wanted.generation);
    let is_all = |length: usize| i64::try_from(length).is_ok_and(|length| length == count);
    let mut view = PoolView {
        driver: driver.to_owned(),
        name: name.to_owned(),
        state: PoolState::Incomplete,
        slices: Vec::new(),
        elsewhere: Vec::new(),
        counters: Vec::new(),
    };
    let mut others = Vec::new();
    if !is_all(slices.len()) {
        let mut all = inventory.of_pool(driver, name);
        if all.any(|slice| slice.spec.pool.generation > generation) {
            return None;
        }
        let same = inventory
            .of_pool(driver, name)
            .filter(|slice| slice.spec.pool.generation == generation && !slice.uses_compatibility_groups());
        let all: Vec<_> = same.collect();
        if !is_all(all.len()) {
            return Some(view);
        }
        if slices.len() < all.len() {
            others = all;
            others.retain(|slice| !slices.iter().any(|known| known.name == slice.name));
        }
    }
    slices.sort_by(|a, b| a.name.cmp(&b.name));
    let holds_counters = |slice: &Slice| features.partitionable_devices && !slice.spec.shared_counters.is_empty();
    let own = slices.into_iter().map(|slice| (slice, true));
    for (slice, is_own) in own.chain(others.into_iter().map(|slice| (slice, false))) {
        let list = match is_own {
            _ if holds_counters(slice) => &mut view.counters,
            true => &mut view.slices,
            false => &mut view.elsewhere,
        };
        list.push(slice.clone());
    }
    match validate(&view, features) {
        Ok(()) => view.state = PoolState::Usable,
        Err(error) => {
            view.state = PoolState::Invalid(error);
            view.slices.clear();
        }
    }
    Some(view)
}

fn validate(pool: &PoolView, features: Features) -> Result<(), PoolError> {
    let mut names = BTreeSet::new();
    for device in pool.slices.iter().flat_map(|slice| &slice.spec.devices) {
        if !names.insert(&device.name) {
            return Err(PoolError::Device(device.name.clone()));
        }
    }
    if !features.partitionable_devices {
        return Ok(());
    }
    let mut sets = BTreeMap::new();
    for set in pool.counter_sets() {
        if sets.insert(&set.name, set).is_some() {
            return Err(PoolError::CounterSet(set.name.clone()));
        }
    }
    for device in pool.devices() {
        for consumed in &device.consumes_counters {
            let Some(set) = sets.get(&consumed.counter_set) else {
                return Err(PoolError::UnknownSet {
                    device: device.name.clone(),
                    set: consumed.counter_set.clone(),
                });
            };
            if let Some(counter) = consumed.counters.keys().find(|name| !set.counters.contains_key(*name)) {
                return Err(PoolError::UnknownCounter {
                    device: device.name.clone(),
                    set: consumed.counter_set.clone(),
                    counter: counter.clone(),
                });
            }
        }
    }
    Ok(())
}

fn candidates(pools: &[PoolView], inventory: &Inventory, features: Features) -> Vec<Candidate> {
    let rules = if features.device_taints && features.device_taint_rules {
        &inventory.rules[..]
    } else {
        &[]
    };
    let mut candidates = Vec::new();
    for (pool, view) in pools.iter().enumerate() {
        for slice in &view.slices {
            for (index, device) in slice.spec.devices.iter().enumerate() {
                let rules = rules
                    .iter()
                    .filter(|rule| taint::applies(rule, &slice.spec, &device.name));
                candidates.push(Candidate {
                    pool,
                    slice: slice.clone(),
                    index,
                    rule_taints: rules.map(|rule| rule.spec.taint.clone()).collect(),
                });
            }
        }
    }
    candidates
}

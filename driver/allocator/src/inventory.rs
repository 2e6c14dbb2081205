//! The published slices, by node and by pool.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::model::{Device, DeviceTaintRule, ResourceSlice, SliceSpec};
use crate::node_selector::Target;

/// One version of a published slice.
#[derive(Debug)]
pub struct Slice {
    pub(crate) name: String,
    pub(crate) spec: SliceSpec,
    /// The devices' serial numbers start here.
    first_serial: u64,
}

/// A slice of an [`Inventory`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SliceHandle(usize);

/// The slices, with their indices by node and by pool.
#[derive(Debug, Default)]
pub struct Inventory {
    slices: Vec<Option<Arc<Slice>>>,
    /// Unused indices of `slices`.
    free: Vec<usize>,
    on_node: HashMap<String, Vec<usize>>,
    /// Slices that do not belong to one node.
    shared: Vec<usize>,
    pools: HashMap<String, HashMap<String, Vec<usize>>>,
    pub(crate) rules: Vec<DeviceTaintRule>,
}

/// Every device of every version of a slice has its own number while the process runs, so that a cached result is never
/// used for another device.
static SERIALS: AtomicU64 = AtomicU64::new(0);

impl Slice {
    #[must_use]
    pub fn new(slice: ResourceSlice) -> Self {
        let count = slice.spec.devices.len() as u64;
        Self {
            name: slice.metadata.name,
            spec: slice.spec,
            first_serial: SERIALS.fetch_add(count, Ordering::Relaxed),
        }
    }

    pub(crate) fn serial(&self, device: usize) -> u64 {
        self.first_serial + device as u64
    }

    pub(crate) fn target(&self) -> Target<'_> {
        Target {
            name: self.spec.node_name.as_deref(),
            all: self.spec.all_nodes.unwrap_or(false),
            selector: self.spec.node_selector.as_ref(),
        }
    }

    pub(crate) fn selects_per_device(&self) -> bool {
        self.spec.per_device_node_selection.unwrap_or(false)
    }

    pub(crate) fn uses_compatibility_groups(&self) -> bool {
        let mut consumed = self.spec.devices.iter().flat_map(|device| &device.consumes_counters);
        consumed.any(|consumed| !consumed.compatibility_groups.is_empty())
    }
}

pub(crate) fn device_target(device: &Device) -> Target<'_> {
    Target {
        name: device.node_name.as_deref(),
        all: device.all_nodes.unwrap_or(false),
        selector: device.node_selector.as_ref(),
    }
}

impl Inventory {
    pub fn insert(&mut self, slice: Arc<Slice>) -> SliceHandle {
        let at = self.free.pop().unwrap_or(self.slices.len());
        self.list_of_node(&slice).push(at);
        self.list_of_pool(&slice).push(at);
        if at == self.slices.len() {
            self.slices.push(Some(slice));
        } else {
            self.slices[at] = Some(slice);
        }
        SliceHandle(at)
    }

    /// Removes a slice and returns it; `None` if it was removed already.
    pub fn remove(&mut self, handle: SliceHandle) -> Option<Arc<Slice>> {
        let slice = self.slices.get_mut(handle.0)?.take()?;
        self.list_of_node(&slice).retain(|at| *at != handle.0);
        self.list_of_pool(&slice).retain(|at| *at != handle.0);
        self.free.push(handle.0);
        self.drop_empty(&slice);
        Some(slice)
    }

    pub(crate) fn get(&self, handle: SliceHandle) -> Option<&Arc<Slice>> {
        self.slices.get(handle.0)?.as_ref()
    }

    /// Replaces the taint rules, which add to the taints in slices.
    pub fn set_rules(&mut self, rules: Vec<DeviceTaintRule>) {
        self.rules = rules;
    }

    /// The node's own slices, then those of no single node.
    pub(crate) fn candidates_for<'a>(&'a self, node: &str) -> impl Iterator<Item = &'a Arc<Slice>> {
        let own = self.on_node.get(node).into_iter().flatten();
        own.chain(&self.shared).filter_map(|at| self.slices[*at].as_ref())
    }

    pub(crate) fn of_pool<'a>(&'a self, driver: &str, pool: &str) -> impl Iterator<Item = &'a Arc<Slice>> {
        let all = self.pools.get(driver).and_then(|pools| pools.get(pool));
        all.into_iter().flatten().filter_map(|at| self.slices[*at].as_ref())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Slice>> {
        self.slices.iter().flatten()
    }

    /// Removes empty lists, because nodes come and go.
    fn drop_empty(&mut self, slice: &Slice) {
        if let Some(node) = slice.spec.node_name.as_deref()
            && self.on_node.get(node).is_some_and(Vec::is_empty)
        {
            self.on_node.remove(node);
        }
        if let Some(pools) = self.pools.get_mut(&slice.spec.driver)
            && pools.get(&slice.spec.pool.name).is_some_and(Vec::is_empty)
        {
            pools.remove(&slice.spec.pool.name);
        }
    }

    fn list_of_node(&mut self, slice: &Slice) -> &mut Vec<usize> {
        match slice.spec.node_name.as_deref() {
            Some(node) if !node.is_empty() => self.on_node.entry(node.to_owned()).or_default(),
            _ => &mut self.shared,
        }
    }

    fn list_of_pool(&mut self, slice: &Slice) -> &mut Vec<usize> {
        self.pools
            .entry(slice.spec.driver.clone())
            .or_default()
            .entry(slice.spec.pool.name.clone())
            .or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(name: &str, node: &str) -> Arc<Slice> {
        let text = format!(
            r#"{{"metadata":{{"name":"{name}"}},"spec":{{"driver":"d","pool":{{"name":"p"}},"nodeName":"{node}","devices":[{{"name":"x"}}]}}}}"#
        );
        Arc::new(Slice::new(serde_json::from_str(&text).unwrap()))
    }

    #[test]
    fn slices_are_found_until_they_are_taken_out() {
        let mut inventory = Inventory::default();
        let first = inventory.insert(slice("a", "n1"));
        let shared = inventory.insert(slice("b", ""));
        let names = |inventory: &Inventory, node| -> Vec<String> {
            inventory.candidates_for(node).map(|slice| slice.name.clone()).collect()
        };
        assert_eq!(names(&inventory, "n1"), ["a", "b"]);
        assert_eq!(names(&inventory, "n2"), ["b"]);
        assert_eq!(inventory.of_pool("d", "p").count(), 2);
        assert!(inventory.remove(first).is_some() && inventory.remove(first).is_none());
        assert_eq!(names(&inventory, "n1"), ["b"]);
        assert_eq!(inventory.insert(slice("c", "n1")), first, "places are used again");
        inventory.remove(shared);
        assert_eq!(names(&inventory, "n1"), ["c"]);
        assert_eq!(inventory.all().count(), 1);
    }

    #[test]
    fn no_two_devices_have_one_serial() {
        assert_ne!(slice("a", "n").serial(0), slice("a", "n").serial(0));
    }
}

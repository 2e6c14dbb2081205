//! Free capacity of our GPUs, as the allocator's Index sees it with some claims left out. CPU, taints and labels of nodes are
//! ignored, so it may find a place where kube-scheduler finds none.

use std::collections::BTreeMap;
use std::sync::Arc;

use vgpu_allocator::model::{Allocation, DeviceClass, Metadata, Node, ResourceClaim, ResourceSlice};
use vgpu_allocator::{AllocateError, Budget, Features, Index, SelectorCache};
use vgpu_api::allocator_taint;
use vgpu_api::config::AllocationPolicy;

/// The most steps of the allocator for one question about all nodes.
const STEPS_MAX: u64 = 100_000;
/// The most steps for one question about one node.
const STEPS_OF_NODE: u64 = 10_000;
/// The basic cost of an answer, even if no device is checked.
const STEPS_OF_ANSWER: u64 = 20;

/// The steps that are left for one plan. Limited because tenants decide how many pods wait and what they ask for.
#[derive(Debug)]
pub(crate) struct Tries(u64);

impl Tries {
    pub(crate) const fn new(steps: u64) -> Self {
        Self(steps)
    }

    /// Returns true if the steps are used up, so that no further question can be answered.
    pub(crate) const fn are_over(&self) -> bool {
        self.0 == 0
    }

    /// Sets half of the steps aside.
    pub(crate) const fn split(&mut self) -> Self {
        let half = self.0 / 2;
        self.0 -= half;
        Self(half)
    }

    pub(crate) const fn join(&mut self, rest: &Self) {
        self.0 += rest.0;
    }

    fn ask<T>(
        &mut self,
        most: u64,
        question: impl FnOnce(&mut Budget) -> Result<T, AllocateError>,
    ) -> Result<T, AllocateError> {
        let mut budget = Budget::new(self.0.min(most));
        let answer = question(&mut budget);
        self.0 = self.0.saturating_sub(budget.spent() + STEPS_OF_ANSWER);
        answer
    }
}

/// The allocator's index of our slices, the classes and all allocated claims.
#[derive(Debug)]
pub(crate) struct FreeCapacity {
    index: Index,
    cache: SelectorCache<'static>,
    /// The node of each slice. Nodes have no labels here: our slices name theirs.
    nodes: BTreeMap<String, String>,
}

impl Default for FreeCapacity {
    fn default() -> Self {
        Self {
            index: Index::new(Features::default()),
            cache: SelectorCache::default(),
            nodes: BTreeMap::new(),
        }
    }
}

impl FreeCapacity {
    /// Returns true if its devices changed.
    pub(crate) fn set_slice(&mut self, mut slice: ResourceSlice) -> bool {
        // A device's free capacity does not depend on who allocates it.
        for device in &mut slice.spec.devices {
            device.taints.retain(|taint| taint.key != allocator_taint::KEY);
        }
        let name = slice.metadata.name.clone();
        let is_new = !self.nodes.contains_key(&name) || self.index.devices_of_slice(&name) != slice.spec.devices;
        let node = slice.spec.node_name.clone().unwrap_or_default();
        self.index.set_slice(slice);
        self.index.set_node(Node {
            metadata: Metadata {
                name: node.clone(),
                ..Metadata::default()
            },
        });
        let before = self.nodes.insert(name, node);
        self.forget_node(before);
        is_new
    }

    pub(crate) fn remove_slice(&mut self, name: &str) {
        self.index.remove_slice(name);
        let node = self.nodes.remove(name);
        self.forget_node(node);
    }

    fn forget_node(&mut self, node: Option<String>) {
        let node = node.filter(|node| self.nodes.values().all(|of_slice| of_slice != node));
        if let Some(node) = node {
            self.index.remove_node(&node);
        }
    }

    /// Returns true if it is new or changed.
    pub(crate) fn set_class(&mut self, class: DeviceClass) -> bool {
        let is_new = self.index.class(&class.metadata.name) != Some(&class);
        self.index.set_class(class);
        is_new
    }

    pub(crate) const fn index(&self) -> &Index {
        &self.index
    }

    pub(crate) fn remove_class(&mut self, name: &str) {
        self.index.remove_class(name);
    }

    /// Replaces the devices that a claim holds, by its UID.
    pub(crate) fn set_claim(&mut self, uid: &str, allocation: Option<&Arc<Allocation>>) {
        self.index.set_claim(uid, allocation);
    }

    /// Returns true if the claims fit together on a node that is allowed.
    ///
    /// # Errors
    /// A mistake in the claims, or the steps were not enough to find out.
    pub(crate) fn fits(
        &mut self,
        claims: &[ResourceClaim],
        mut is_allowed: impl FnMut(&str) -> bool,
        tries: &mut Tries,
    ) -> Result<bool, AllocateError> {
        let claims: Vec<&ResourceClaim> = claims.iter().collect();
        let placement = tries.ask(STEPS_MAX, |budget| {
            let policy = AllocationPolicy::Binpack;
            let (allowed, cache) = (&mut is_allowed, &mut self.cache);
            self.index
                .allocate_within(&claims, policy, allowed, budget, cache, &mut share_id)
        });
        Ok(placement?.is_some())
    }

    /// Returns the claims' allocations on this node; `None` if they do not fit there, or it is not known.
    pub(crate) fn allocate_on(
        &mut self,
        node: &str,
        claims: &[ResourceClaim],
        tries: &mut Tries,
    ) -> Option<Vec<Allocation>> {
        let claims: Vec<&ResourceClaim> = claims.iter().collect();
        let (index, cache) = (&mut self.index, &mut self.cache);
        tries
            .ask(STEPS_OF_NODE, |budget| {
                index.allocate_on(node, &claims, budget, cache, &mut share_id)
            })
            .ok()?
    }
}

/// No allocation of this index is ever written, so the share ID does not matter.
fn share_id() -> String {
    "free".to_owned()
}

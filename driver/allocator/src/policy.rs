//! Policies: the order in which devices that fit are tried.
//!
//! A policy decides the order only, the search what fits. `first-fit` is the order of Kubernetes' own allocator, and
//! therefore chooses the same devices. Devices with binding conditions come last with every policy, as in Kubernetes.

use std::cmp::Reverse;
use std::rc::Rc;

use vgpu_api::config::AllocationPolicy;

use crate::capacity::{CORES, MEMORY};
use crate::constraint::{Asker, Tracked, lookup};
use crate::model::Attribute;
use crate::pools::Candidate;

/// The devices of a node as a policy compares them, by their index among the candidates.
pub(crate) trait Stock<'a> {
    fn candidates(&self) -> &'a [Candidate];

    /// Returns what is left of a device's capacity: 0 if the device lacks the capacity or is allocated as a whole.
    fn free(&self, index: usize, name: &str) -> i128;

    /// Returns true if the device, or a share of it, can still be allocated.
    fn has_room(&self, index: usize) -> bool;

    /// Returns true if no claim uses the device.
    fn is_unused(&self, index: usize) -> bool;
}

/// An order of devices, possibly with an attribute that they must have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    policy: AllocationPolicy,
    scope: Scope,
}

/// The devices that must have the policy's attribute in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Pod,
    Claim,
    None,
}

/// A node's rank: the node with the least is tried first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeRank {
    /// The alternative of the first request: nodes with an earlier one come first.
    alternative: usize,
    key: Key,
    device: String,
}

/// The sort key of devices: the smallest is tried first. Each policy gives the fields its own meaning.
type Key = (bool, Reverse<i128>, i128, i128, i128);

impl Order {
    /// The orders to try, one after the other.
    pub(crate) fn of_policy(policy: AllocationPolicy) -> Vec<Self> {
        let scopes = match policy {
            AllocationPolicy::Numa | AllocationPolicy::Pcie | AllocationPolicy::Nvlink => {
                vec![Scope::Pod, Scope::Claim, Scope::None]
            }
            _ => vec![Scope::None],
        };
        scopes.into_iter().map(|scope| Self { policy, scope }).collect()
    }

    /// The attribute whose value devices should share.
    fn attribute(self) -> Option<&'static str> {
        match self.policy {
            AllocationPolicy::Numa => Some("resource.kubernetes.io/numaNode"),
            AllocationPolicy::Pcie => Some("resource.kubernetes.io/pcieRoot"),
            AllocationPolicy::Nvlink => Some("dra.vgpu/nvlinkClique"),
            _ => None,
        }
    }

    /// Returns what is tracked for the policy: one entry for all claims, one for each claim, or none.
    pub(crate) fn affinity<'a>(self, claims: usize) -> Vec<Tracked<'a>> {
        let count = match self.scope {
            Scope::Pod => 1,
            Scope::Claim => claims,
            Scope::None => 0,
        };
        let attribute = self.attribute().into_iter().cycle();
        attribute.take(count).map(Tracked::sharing).collect()
    }

    /// Adds a device. Returns false if its value of the attribute differs from the others'. A device without the
    /// attribute never differs.
    pub(crate) fn add_affinity<'a>(
        self,
        affinity: &mut [Tracked<'a>],
        claim: usize,
        asker: Asker<'_>,
        candidate: &'a Candidate,
    ) -> bool {
        match self.tracker(affinity, claim, candidate) {
            Some(tracked) => tracked.add(asker, candidate.driver(), candidate.device()),
            None => true,
        }
    }

    pub(crate) fn remove_affinity(
        self,
        affinity: &mut [Tracked<'_>],
        claim: usize,
        asker: Asker<'_>,
        candidate: &Candidate,
    ) {
        if let Some(tracked) = self.tracker(affinity, claim, candidate) {
            tracked.remove(asker);
        }
    }

    fn tracker<'t, 'a>(
        self,
        affinity: &'t mut [Tracked<'a>],
        claim: usize,
        candidate: &Candidate,
    ) -> Option<&'t mut Tracked<'a>> {
        self.place(candidate)?;
        affinity.get_mut(if self.scope == Scope::Pod { 0 } else { claim })
    }

    /// The device's value of the attribute that the policy compares.
    fn place(self, candidate: &Candidate) -> Option<&Attribute> {
        lookup(candidate.device(), candidate.driver(), self.attribute()?)
    }

    /// The order in which a request tries the devices; `None` is that of the view.
    pub(crate) fn of_devices<'a>(self, stock: &impl Stock<'a>) -> Option<Rc<[usize]>> {
        if self.policy == AllocationPolicy::FirstFit {
            return None;
        }
        let groups = self.groups(stock);
        let candidates = stock.candidates();
        let mut order: Vec<_> = (0..candidates.len())
            .map(|index| (self.key(stock, index, &groups), &candidates[index].device().name, index))
            .collect();
        order.sort_unstable();
        Some(order.into_iter().map(|(_, _, index)| index).collect())
    }

    /// The rank of a node without any request.
    pub(crate) fn of_no_request() -> NodeRank {
        NodeRank {
            alternative: 0,
            key: Key::default(),
            device: String::new(),
        }
    }

    /// The rank of a node by this device, its best one for an alternative of the first request.
    pub(crate) fn of_node<'a>(self, stock: &impl Stock<'a>, alternative: usize, index: usize) -> NodeRank {
        NodeRank {
            alternative,
            key: self.node_key(stock, index, &self.groups(stock)),
            device: stock.candidates()[index].device().name.clone(),
        }
    }

    fn key<'a>(self, stock: &impl Stock<'a>, index: usize, groups: &Groups<'_>) -> Key {
        let candidate = &stock.candidates()[index];
        let conditions = candidate.device().binding_conditions.is_some();
        let (memory, cores) = (stock.free(index, MEMORY), stock.free(index, CORES));
        let (first, second, third) = match self.policy {
            AllocationPolicy::Binpack => (0, memory, cores),
            AllocationPolicy::Spread => (0, memory.saturating_neg(), cores.saturating_neg()),
            AllocationPolicy::WholeGpus => (i128::from(stock.is_unused(index)), memory, cores),
            AllocationPolicy::Numa | AllocationPolicy::Pcie | AllocationPolicy::Nvlink => {
                (self.tightness(candidate, groups), memory, cores)
            }
            AllocationPolicy::FirstFit => (0, 0, 0),
        };
        (conditions, Reverse(0), first, second, third)
    }

    fn node_key<'a>(self, stock: &impl Stock<'a>, index: usize, groups: &Groups<'_>) -> Key {
        let (conditions, _, first, second, third) = self.key(stock, index, groups);
        let all = 0..stock.candidates().len();
        match self.policy {
            AllocationPolicy::Spread => {
                let left = all.fold(0i128, |sum, index| sum.saturating_add(stock.free(index, MEMORY)));
                (conditions, Reverse(left), first, second, third)
            }
            // Prefer nodes on which this choice leaves the fewest unused devices.
            AllocationPolicy::WholeGpus if stock.is_unused(index) => {
                let unused = all.filter(|index| stock.is_unused(*index)).count();
                (
                    conditions,
                    Reverse(0),
                    first.saturating_add(unused as i128),
                    second,
                    third,
                )
            }
            AllocationPolicy::Numa | AllocationPolicy::Pcie | AllocationPolicy::Nvlink => {
                (conditions, Reverse(0), 0, second, third)
            }
            _ => (conditions, Reverse(0), first, second, third),
        }
    }

    /// Sorts by the size of a device's group (the devices with the same attribute value). If all devices must share a
    /// group, the smallest sufficient group comes first; otherwise the largest, so that few groups are used.
    fn tightness(self, candidate: &Candidate, groups: &Groups<'_>) -> i128 {
        let Some(place) = self.place(candidate) else {
            return i128::MAX;
        };
        let size = groups
            .iter()
            .find(|(known, _)| *known == place)
            .map_or(0, |(_, size)| *size);
        match self.scope {
            Scope::None => -size,
            Scope::Pod | Scope::Claim => size,
        }
    }

    /// The number of devices with something left in each group.
    fn groups<'a>(self, stock: &impl Stock<'a>) -> Groups<'a> {
        let mut groups: Groups<'a> = Vec::new();
        for (index, candidate) in stock.candidates().iter().enumerate() {
            let Some(place) = self.place(candidate).filter(|_| stock.has_room(index)) else {
                continue;
            };
            match groups.iter_mut().find(|(known, _)| *known == place) {
                Some((_, size)) => *size += 1,
                None => groups.push((place, 1)),
            }
        }
        groups
    }
}

/// The groups' attribute values and sizes. A list, because there are few.
type Groups<'a> = Vec<(&'a Attribute, i128)>;

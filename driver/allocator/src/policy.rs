//! Policies: which of the devices that fit is taken.
//!
//! A policy only orders; what fits is the search's business. `first-fit` is the order of Kubernetes' own allocator and
//! so its choice. Devices with binding conditions come last with every policy, as they do in Kubernetes.

use std::cmp::Reverse;
use std::rc::Rc;
use std::str::FromStr;

use crate::constraint::{Asker, Tracked, lookup};
use crate::error::AllocateError;
use crate::model::Attribute;
use crate::pools::Candidate;
use crate::search::{CORES, MEMORY, Search};

/// How devices are chosen among those that fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// The device with least memory left, then least cores, then by name; across nodes the same.
    #[default]
    Binpack,
    /// The node with most memory left, and there the device with most.
    Spread,
    /// All devices of a pod on one NUMA node, or those of each claim, or as few NUMA nodes as possible.
    Numa,
    /// The same with PCIe roots.
    Pcie,
    /// Devices in use before unused ones, and nodes with few unused ones before nodes with many.
    WholeGpus,
    /// Kubernetes' own choice.
    FirstFit,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("policy {0:?} is unknown; known are {known}", known = Policy::ALL.map(Policy::name).join(", "))]
pub struct UnknownPolicy(String);

impl Policy {
    pub const ALL: [Self; 6] = [
        Self::Binpack,
        Self::Spread,
        Self::Numa,
        Self::Pcie,
        Self::WholeGpus,
        Self::FirstFit,
    ];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Binpack => "binpack",
            Self::Spread => "spread",
            Self::Numa => "numa",
            Self::Pcie => "pcie",
            Self::WholeGpus => "whole-gpus",
            Self::FirstFit => "first-fit",
        }
    }

    /// The orders to try, one after the other.
    pub(crate) fn orders(self) -> Vec<Order> {
        let scopes = match self {
            Self::Numa | Self::Pcie => vec![Scope::Pod, Scope::Claim, Scope::None],
            _ => vec![Scope::None],
        };
        let order = |scope| Order { policy: self, scope };
        scopes.into_iter().map(order).collect()
    }

    /// The attribute that devices should share.
    fn attribute(self) -> Option<&'static str> {
        match self {
            Self::Numa => Some("resource.kubernetes.io/numaNode"),
            Self::Pcie => Some("resource.kubernetes.io/pcieRoot"),
            _ => None,
        }
    }
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == name);
        found.ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

/// One order of devices, perhaps with something that they must share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    policy: Policy,
    scope: Scope,
}

/// Which devices must share the policy's attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Pod,
    Claim,
    None,
}

/// Where a node stands among the nodes: the least is tried first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeRank {
    /// An earlier alternative of the first request before any later one.
    alternative: usize,
    key: Key,
    device: String,
}

/// The least is tried first; what it says is the policy's.
type Key = (bool, Reverse<i128>, i128, i128, i128);

impl Order {
    /// What is tracked for the policy: one for all claims, or one a claim, or nothing.
    pub(crate) fn affinity<'a>(self, claims: usize) -> Vec<Tracked<'a>> {
        let count = match self.scope {
            Scope::Pod => 1,
            Scope::Claim => claims,
            Scope::None => 0,
        };
        let attribute = self.policy.attribute().into_iter().cycle();
        attribute.take(count).map(Tracked::sharing).collect()
    }

    /// Adds a device to what is shared, if it shares it. One that does not say where it is may be anywhere.
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

    /// Where the device is, of what the policy looks at.
    fn place(self, candidate: &Candidate) -> Option<&Attribute> {
        lookup(candidate.device(), candidate.driver(), self.policy.attribute()?)
    }

    /// The order in which a request tries the devices; `None` is that of the view.
    pub(crate) fn of_devices(self, search: &Search<'_, '_, '_>) -> Option<Rc<[usize]>> {
        if self.policy == Policy::FirstFit {
            return None;
        }
        let groups = self.groups(search);
        let candidates = &search.view.candidates;
        let mut order: Vec<_> = (0..candidates.len())
            .map(|index| {
                (
                    self.key(search, index, &groups),
                    &candidates[index].device().name,
                    index,
                )
            })
            .collect();
        order.sort_unstable();
        Some(order.into_iter().map(|(_, _, index)| index).collect())
    }

    /// Where the node stands by its best device for the first request; `None` if it has none.
    pub(crate) fn of_node(self, search: &mut Search<'_, '_, '_>) -> Result<Option<NodeRank>, AllocateError> {
        let Some(alternatives) = search.first_request() else {
            return Ok(Some(NodeRank {
                alternative: 0,
                key: Key::default(),
                device: String::new(),
            }));
        };
        let groups = self.groups(search);
        let order = self
            .of_devices(search)
            .unwrap_or_else(|| (0..search.view.candidates.len()).collect());
        for alternative in 0..alternatives {
            for index in order.iter().copied() {
                if search.would_take(0, 0, alternative, index)? {
                    return Ok(Some(NodeRank {
                        alternative,
                        key: self.node_key(search, index, &groups),
                        device: search.view.candidates[index].device().name.clone(),
                    }));
                }
            }
        }
        Ok(None)
    }

    fn key(self, search: &Search<'_, '_, '_>, index: usize, groups: &Groups<'_>) -> Key {
        let candidate = &search.view.candidates[index];
        let conditions = candidate.device().binding_conditions.is_some();
        let (memory, cores) = (search.free(index, MEMORY), search.free(index, CORES));
        let (first, second, third) = match self.policy {
            Policy::Binpack => (0, memory, cores),
            Policy::Spread => (0, memory.saturating_neg(), cores.saturating_neg()),
            Policy::WholeGpus => (i128::from(search.is_unused(index)), memory, cores),
            Policy::Numa | Policy::Pcie => (self.tightness(candidate, groups), memory, cores),
            Policy::FirstFit => (0, 0, 0),
        };
        (conditions, Reverse(0), first, second, third)
    }

    fn node_key(self, search: &Search<'_, '_, '_>, index: usize, groups: &Groups<'_>) -> Key {
        let (conditions, _, first, second, third) = self.key(search, index, groups);
        let all = 0..search.view.candidates.len();
        match self.policy {
            Policy::Spread => {
                let left = all.fold(0i128, |sum, index| sum.saturating_add(search.free(index, MEMORY)));
                (conditions, Reverse(left), first, second, third)
            }
            // Opening an unused device costs least where the fewest others stay unused.
            Policy::WholeGpus if search.is_unused(index) => {
                let unused = all.filter(|index| search.is_unused(*index)).count();
                (
                    conditions,
                    Reverse(0),
                    first.saturating_add(unused as i128),
                    second,
                    third,
                )
            }
            Policy::Numa | Policy::Pcie => (conditions, Reverse(0), 0, second, third),
            _ => (conditions, Reverse(0), first, second, third),
        }
    }

    /// Where all must share a place, the smallest place that may do; otherwise the largest, so that few do.
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

    /// How many devices with something left there are in each place.
    fn groups<'a>(self, search: &Search<'a, '_, '_>) -> Groups<'a> {
        let view = search.view;
        let mut groups: Groups<'a> = Vec::new();
        for (index, candidate) in view.candidates.iter().enumerate() {
            let Some(place) = self.place(candidate).filter(|_| search.has_room(index)) else {
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

/// Places and how many devices are there: a handful.
type Groups<'a> = Vec<(&'a Attribute, i128)>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_named() {
        for policy in Policy::ALL {
            assert_eq!(policy.name().parse(), Ok(policy));
        }
        assert!(
            "best"
                .parse::<Policy>()
                .unwrap_err()
                .to_string()
                .contains("binpack, spread")
        );
    }
}

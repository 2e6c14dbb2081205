//! Allocation for objects in files: `vgpu allocate` without its input and output, and the input of `vgpu explain`.
//!
//! ```text
//!  documents ─► Objects (by kind, checked as far as needed) ─► run: nodes in the policy's order ─► Report
//!                                                                                                  │
//!       a List of the claims that were waiting, with allocations, or with reasons  ◄───────────────┘
//! ```
//!
//! Claims with an allocation are considered in use. The others are allocated together, in the order given, on one node.

mod error;
mod objects;
mod report;

use std::collections::HashMap;
use std::sync::Arc;

use crate::allocate::Attempt;
use crate::allocated::AllocatedDevices;
use crate::budget::Budget;
use crate::error::AllocateError;
use crate::explain::Answer;
use crate::features::Features;
use crate::inventory::{Inventory, Slice};
use crate::model::{Allocation, DeviceClass, Node, ResourceClaim};
use crate::plan::Classes;
use crate::policy::Order;
use crate::pools::NodeView;
use crate::reason::{Reason, ReasonKind};
use crate::selectors::SelectorCache;
use vgpu_api::config::AllocationPolicy;

pub use error::OfflineError;
pub use objects::{InputError, Objects};
pub use report::Report;

/// How to allocate.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// If set, only this node is considered.
    pub node: Option<String>,
    pub policy: AllocationPolicy,
    pub features: Features,
}

/// The objects in the form that an attempt reads.
struct Cluster<'o> {
    nodes: Vec<&'o Node>,
    inventory: Inventory,
    classes: ByName<'o>,
    allocated: AllocatedDevices,
    features: Features,
}

struct ByName<'o>(HashMap<&'o str, &'o DeviceClass>);

impl Classes for ByName<'_> {
    fn get(&self, name: &str) -> Option<&DeviceClass> {
        self.0.get(name).copied()
    }
}

/// Allocates the waiting claims among the objects.
///
/// # Errors
/// A mistake in the input that makes an answer impossible.
pub fn run(
    objects: &Objects,
    options: &Options,
    cache: &mut SelectorCache<'_>,
    share_id: &mut dyn FnMut() -> String,
) -> Result<Report, OfflineError> {
    let cluster = Cluster::of(objects, options)?;
    let waiting: Vec<&ResourceClaim> = objects.waiting().map(|given| &given.claim).collect();
    let mut views = Vec::new();
    for node in &cluster.nodes {
        views
            .push(NodeView::new((*node).clone(), &cluster.inventory, options.features).map_err(OfflineError::of_view)?);
    }
    let attempt = Attempt {
        claims: &waiting,
        classes: &cluster.classes,
        allocated: &cluster.allocated,
        features: options.features,
        policy: options.policy,
    };
    match first_that_fits(&attempt, &views, cache, share_id) {
        Ok(Some(allocations)) => return Ok(Report::allocated(objects, &allocations)),
        Ok(None) => {}
        // The error is the same on every node, so it is reported once.
        Err(error) => {
            let reason = error.reason("", &waiting);
            let reason = reason.ok_or_else(|| OfflineError::of_claims(&waiting)(error))?;
            return Ok(Report::refused(objects, vec![reason.named(&waiting)]));
        }
    }
    let mut reasons = Vec::new();
    let steps = Budget::of_each(views.len());
    for view in &views {
        let answer = attempt.answer(view, steps, cache);
        if let Answer::Not(why) = answer.map_err(OfflineError::of_claims(&waiting))? {
            reasons.extend(why.reasons.into_iter().map(|reason| reason.named(&waiting)));
        }
    }
    reasons.extend(cluster.mismatched(&waiting));
    Ok(Report::refused(objects, reasons))
}

/// Tries the nodes in the policy's order, until all claims fit on one. An error of one node's devices does not affect
/// the others; a mistake in the claims ends it.
fn first_that_fits<'a>(
    attempt: &Attempt<'a>,
    views: &'a [NodeView],
    cache: &mut SelectorCache<'_>,
    share_id: &mut dyn FnMut() -> String,
) -> Result<Option<Vec<Allocation>>, AllocateError> {
    let mut budget = Budget::default();
    let mut ranked = Vec::new();
    for view in views {
        budget.next_node(views.len())?;
        match attempt.rank(view, &mut budget, cache) {
            Ok(Some(rank)) => ranked.push((rank, view)),
            Ok(None) => {}
            Err(error) if error.is_of_devices() => {}
            Err(error) => return Err(error),
        }
    }
    ranked.sort_by(|(a, on_a), (b, on_b)| (a, on_a.node()).cmp(&(b, on_b.node())));
    if attempt.policy == AllocationPolicy::FirstFit {
        ranked.sort_by(|(_, a), (_, b)| a.node().cmp(b.node()));
    }
    let mut unanswered = None;
    for order in Order::of_policy(attempt.policy) {
        for (_, view) in &ranked {
            budget.next_node(views.len())?;
            match attempt.in_order(view, order, &mut budget, cache, share_id) {
                Ok(Some(allocations)) => return Ok(Some(allocations)),
                Ok(None) => {}
                Err(error @ AllocateError::Exhausted { .. }) => unanswered = Some(error),
                Err(error) if error.is_of_devices() => {}
                Err(error) => return Err(error),
            }
        }
    }
    unanswered.map_or(Ok(None), Err)
}

impl<'o> Cluster<'o> {
    fn of(objects: &'o Objects, options: &Options) -> Result<Self, OfflineError> {
        let nodes = objects.nodes_of(options.node.as_deref())?;
        let mut inventory = Inventory::default();
        for slice in &objects.slices {
            inventory.insert(Arc::new(Slice::new(slice.clone())));
        }
        inventory.set_rules(objects.rules.clone());
        let mut classes = HashMap::new();
        for class in &objects.classes {
            classes.entry(class.metadata.name.as_str()).or_insert(class);
        }
        let mut allocated = AllocatedDevices::default();
        for given in &objects.claims {
            if let Some(allocation) = &given.claim.status.allocation {
                allocated.add(&given.claim.key().into(), &allocation.devices.results, options.features);
            }
        }
        Ok(Self {
            nodes,
            inventory,
            classes: ByName(classes),
            allocated,
            features: options.features,
        })
    }

    /// Slices that are for none of the nodes, as reasons of the first request.
    fn mismatched(&self, waiting: &[&ResourceClaim]) -> Vec<Reason<String>> {
        let Some(claim) = waiting.first() else {
            return Vec::new();
        };
        let node = match &self.nodes[..] {
            [node] => node.metadata.name.clone(),
            _ => String::new(),
        };
        let mut reasons = Vec::new();
        for slice in self.inventory.all() {
            let is_for_one = self.nodes.iter().any(|node| {
                // A view exists for each node, so every selector here is valid.
                crate::pools::is_relevant(slice, node).unwrap_or(true)
            });
            if is_for_one || !self.features.partitionable_devices && slice.selects_per_device() {
                continue;
            }
            for device in &slice.spec.devices {
                reasons.push(Reason {
                    claim: claim.key(),
                    request: String::new(),
                    node: node.clone(),
                    pool: slice.spec.pool.name.clone(),
                    device: device.name.clone(),
                    instance: crate::reason::Instance::of(device),
                    reason: ReasonKind::NodeMismatch,
                    field: "spec.nodeName".to_owned(),
                    message: format!("slice {} is not for {}", slice.name, self.node_words()),
                    shortages: Vec::new(),
                    holders: Vec::new(),
                    together: Vec::new(),
                });
            }
        }
        reasons
    }

    fn node_words(&self) -> String {
        match &self.nodes[..] {
            [node] => format!("node {}", node.metadata.name),
            nodes => format!("any of the {} nodes", nodes.len()),
        }
    }
}

#[cfg(test)]
mod tests;

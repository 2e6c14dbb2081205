//! Lasting problems of claims and pods that the controller cannot solve, as verdicts: a refused write, an allocation
//! that somebody else wrote, a pod with `spec.nodeName`, an extended resource.

use std::collections::HashMap;

use vgpu_allocator::model::DeviceResult;

use crate::allocation::is_ours;
use crate::device_ownership::ClaimAllocator;
use crate::device_taints::DeviceAllocator;
use crate::model::Pod;
use crate::names::{DRIVER, IMPLICIT_RESOURCE};
use crate::state::State;
use crate::time::Time;
use crate::verdict::{About, Verdict};

/// Returns each problem with its object. `refusals` has the API server's message to a refused write, by claim.
pub(crate) fn of(state: &State, refusals: &HashMap<String, String>) -> Vec<(About, Verdict)> {
    let mut problems = Vec::new();
    for (key, known) in state.claims.iter() {
        let claim = &known.claim;
        if let Some(message) = refusals.get(key) {
            problems.push((About::claim(claim), Verdict::Refused(message.clone())));
        }
        let Some(allocation) = claim.allocation().filter(|allocation| !is_ours(allocation)) else {
            continue;
        };
        let written = allocation.allocation_timestamp.as_deref().and_then(Time::parse);
        let is_controllers = |result: &&DeviceResult| {
            let who = state
                .ownership
                .device_allocator(&result.pool, &result.device, &state.index);
            let is_since = |since| written.is_none_or(|written| written >= since);
            result.driver == DRIVER && matches!(who, Some(DeviceAllocator::Controller { since }) if is_since(since))
        };
        let results = allocation.devices.results.iter().filter(is_controllers);
        let devices: Vec<_> = results
            .map(|result| (result.pool.clone(), result.device.clone()))
            .collect();
        if !devices.is_empty() {
            problems.push((About::claim(claim), Verdict::ThirdParty { devices }));
        }
    }
    for (_, pod) in state
        .cluster
        .pods()
        .filter(|(_, pod)| !pod.is_deleted && !pod.is_finished)
    {
        let verdict = match &pod.node {
            Some(node) => placed_by_hand(state, pod, node),
            None => extended_resource(state, pod),
        };
        if let Some(verdict) = verdict {
            problems.push((About::pod(pod), verdict));
        }
    }
    problems
}

fn placed_by_hand(state: &State, pod: &Pod, node: &str) -> Option<Verdict> {
    let known = pod.claim_keys().filter_map(|key| state.claims.get(&key));
    let mut unallocated = known.filter(|known| {
        known.allocation().is_none()
            && state.ownership.claim_allocator(&known.claim.facts) == ClaimAllocator::Controller
    });
    unallocated.next().map(|known| Verdict::PlacedByHand {
        node: node.to_owned(),
        claim: known.claim.key(),
    })
}

fn extended_resource(state: &State, pod: &Pod) -> Option<Verdict> {
    pod.requests.0.keys().find_map(|resource| {
        let implicit = resource.strip_prefix(IMPLICIT_RESOURCE);
        let classes = state.index.classes().filter(|class| {
            class.spec.extended_resource_name.as_ref() == Some(resource) || implicit == Some(&class.metadata.name)
        });
        let class = classes.map(|class| &class.metadata.name).min()?;
        state
            .ownership
            .is_controllers_alone(class)
            .then(|| Verdict::ExtendedResource {
                resource: resource.clone(),
                class: class.clone(),
            })
    })
}

//! The part of a node's own memory and CPU that a pod's devices take beside its requests (KEP-5517): kube-scheduler adds
//! it to the requests when it tries a node, and writes it to the status of the pod that it binds there.
//!
//! ```text
//!  slices: overhead of a device ─┐
//!  claims: allocated devices ────┼─► of ─► a pod to place: its node must have room for it ([`crate::filter`])
//!  pod: containers that name it ─┘     └─► a pod with a hold: counts on its node ([`crate::cluster`])
//!  pod's status ───────────────────────► a bound pod: counts on its node ([`crate::model::Pod::requests`])
//! ```
//!
//! Failure modes:
//! - The feature gate is off: slices and pods do not have the fields, and nothing is added.
//! - It is off in kube-scheduler alone: a node that lacks only this part is refused here and would be accepted there.
//! - The slices change while a hold exists: the hold counts with what was known when its claim was seen last.
//! - A device is not published any more: it adds nothing, as in kube-scheduler.

use std::collections::BTreeMap;

use vgpu_allocator::Index;
use vgpu_allocator::model::Allocation;

use crate::model::{Pod, Requests};

/// The amounts that the allocated devices of a pod's claims take of the node. `allocations`: by the key of the claim.
pub(crate) fn of(pod: &Pod, allocations: &BTreeMap<String, &Allocation>, index: &Index) -> Requests {
    let mut sum = Requests::default();
    for (claim, allocation) in allocations {
        let references = pod.references(claim);
        let devices = allocation.devices.results.iter();
        let devices = devices.filter_map(|result| index.device_of_result(result));
        for (name, taken) in
            devices.flat_map(|device| device.node_allocatable_resources.as_deref().into_iter().flatten())
        {
            let overhead = &taken.overhead;
            sum.add_overhead(name, &overhead.per_pod, &overhead.per_container, references);
        }
    }
    sum
}

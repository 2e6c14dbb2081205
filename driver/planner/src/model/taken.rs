//! `status.nodeAllocatableResourceClaimStatuses` of a pod (KEP-5517): what its devices take of the node.

use serde::Deserialize;
use vgpu_allocator::model::or_default;
use vgpu_quantity::Quantity;

use super::Requests;

/// The amounts that the devices of a claim take of the node.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct TakenByClaim {
    #[serde(deserialize_with = "or_default")]
    containers: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    mapping: Vec<Mapped>,
    #[serde(deserialize_with = "or_default")]
    overhead: Vec<Overhead>,
}

/// The part of a resource that the devices themselves are.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Mapped {
    #[serde(deserialize_with = "or_default")]
    name: String,
    #[serde(deserialize_with = "or_default")]
    quantity: Quantity,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Overhead {
    #[serde(deserialize_with = "or_default")]
    name: String,
    #[serde(deserialize_with = "or_default")]
    per_pod: Quantity,
    #[serde(deserialize_with = "or_default")]
    per_container: Quantity,
}

/// The sum over all claims of a pod.
pub(super) fn sum(claims: &[TakenByClaim]) -> Requests {
    let mut taken = Requests::default();
    for claim in claims {
        for mapped in &claim.mapping {
            taken.0.entry(mapped.name.clone()).or_default().add(&mapped.quantity);
        }
        for Overhead {
            name,
            per_pod,
            per_container,
        } in &claim.overhead
        {
            taken.add_overhead(name, per_pod, per_container, claim.containers.len());
        }
    }
    taken
}

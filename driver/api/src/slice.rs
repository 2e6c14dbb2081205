//! A GPU's capacity as a ResourceSlice has it, for the plugin, which publishes it, and for templates of nodes.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{CapacityRequestPolicy, CapacityRequestPolicyRange, DeviceCapacity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use vgpu_quantity::format_bytes;

use crate::capacity::{CORES, MEMORY, MULTIPROCESSORS, SHARES};
use crate::request::{CORES_MAX, MEMORY_MIN, MEMORY_STEP};

/// Kubernetes takes 128 devices in a slice, but only 64 if one of them is tainted, and a taint may be added at any time.
pub const MAX_DEVICES: usize = 64;

/// The capacity of a GPU with `memory` bytes that `shares` claims may share, as its slice has it.
#[must_use]
pub fn capacity(memory: u64, shares: u32) -> BTreeMap<String, DeviceCapacity> {
    let range = |min: String, max: Option<String>, step: String| CapacityRequestPolicy {
        valid_range: Some(CapacityRequestPolicyRange {
            min: Quantity(min),
            max: max.map(Quantity),
            step: Some(Quantity(step)),
        }),
        ..CapacityRequestPolicy::default()
    };
    let entry = |value: String, default: String, policy: CapacityRequestPolicy| DeviceCapacity {
        value: Quantity(value),
        request_policy: Some(CapacityRequestPolicy {
            default: Some(Quantity(default)),
            ..policy
        }),
    };
    let memory = format_bytes(memory);
    let cores = CORES_MAX.to_string();
    let one = CapacityRequestPolicy {
        valid_values: Some(vec![Quantity("1".into())]),
        ..CapacityRequestPolicy::default()
    };
    let memory_range = range(format_bytes(MEMORY_MIN), None, format_bytes(MEMORY_STEP));
    let cores_range = range("0".into(), Some(cores.clone()), "1".into());
    BTreeMap::from([
        (MEMORY.to_owned(), entry(memory.clone(), memory, memory_range)),
        (CORES.to_owned(), entry(cores, "0".into(), cores_range)),
        (SHARES.to_owned(), entry(shares.to_string(), "1".into(), one)),
    ])
}

/// The capacity of an instance of a GPU, which `shares` claims may share; None: one claim takes it whole.
#[must_use]
pub fn instance_capacity(memory: u64, multiprocessors: u32, shares: Option<u32>) -> BTreeMap<String, DeviceCapacity> {
    let whole = |value: String| DeviceCapacity {
        value: Quantity(value),
        request_policy: None,
    };
    let multiprocessors = whole(multiprocessors.to_string());
    let Some(shares) = shares else {
        return BTreeMap::from([
            (MEMORY.to_owned(), whole(format_bytes(memory))),
            (MULTIPROCESSORS.to_owned(), multiprocessors),
        ]);
    };
    // Without a policy the first share would take all of them. They are there for selectors; cores divide the time.
    let nothing = CapacityRequestPolicy {
        default: Some(Quantity("0".into())),
        valid_values: Some(vec![Quantity("0".into())]),
        ..CapacityRequestPolicy::default()
    };
    let mut all = capacity(memory, shares);
    let multiprocessors = DeviceCapacity {
        request_policy: Some(nothing),
        ..multiprocessors
    };
    all.insert(MULTIPROCESSORS.to_owned(), multiprocessors);
    all
}

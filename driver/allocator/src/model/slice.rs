//! ResourceSlices and their devices, and DeviceTaintRules.

use std::collections::BTreeMap;
use std::sync::Arc;

use litemap::LiteMap;

use serde::Deserialize;

use super::{Attribute, Metadata, NodeSelector, by_capacity, fitted, or_default, shared_option};
use vgpu_quantity::Quantity;

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceSlice {
    pub metadata: Metadata,
    pub spec: SliceSpec,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SliceSpec {
    pub driver: String,
    pub pool: Pool,
    pub node_name: Option<String>,
    pub node_selector: Option<NodeSelector>,
    pub all_nodes: Option<bool>,
    #[serde(deserialize_with = "fitted")]
    pub devices: Vec<Device>,
    pub per_device_node_selection: Option<bool>,
    #[serde(deserialize_with = "fitted")]
    pub shared_counters: Vec<CounterSet>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Pool {
    pub name: String,
    pub generation: i64,
    pub resource_slice_count: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Device {
    pub name: String,
    #[serde(deserialize_with = "or_default")]
    pub attributes: LiteMap<String, Attribute>,
    #[serde(deserialize_with = "by_capacity")]
    pub capacity: LiteMap<String, Capacity>,
    #[serde(deserialize_with = "fitted")]
    pub consumes_counters: Vec<ConsumedCounters>,
    pub node_name: Option<String>,
    pub node_selector: Option<NodeSelector>,
    pub all_nodes: Option<bool>,
    #[serde(deserialize_with = "fitted")]
    pub taints: Vec<Taint>,
    #[serde(deserialize_with = "or_default")]
    pub binds_to_node: bool,
    /// An empty list differs from a missing one when pools are put in order, as in Kubernetes.
    pub binding_conditions: Option<Vec<String>>,
    #[serde(deserialize_with = "fitted")]
    pub binding_failure_conditions: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub allow_multiple_allocations: bool,
    /// By the name of the node's resource.
    #[serde(deserialize_with = "shared_option")]
    pub node_allocatable_resources: Option<Arc<LiteMap<String, NodeAllocatableResource>>>,
}

/// The amount that a device takes of a resource of its node. Kubernetes also knows a `mapping`, for devices that are themselves
/// CPU or memory; the field is not read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeAllocatableResource {
    #[serde(deserialize_with = "or_default")]
    pub overhead: NodeAllocatableOverhead,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAllocatableOverhead {
    #[serde(deserialize_with = "or_default")]
    pub per_pod: Quantity,
    #[serde(deserialize_with = "or_default")]
    pub per_container: Quantity,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Capacity {
    #[serde(deserialize_with = "or_default")]
    pub value: Quantity,
    /// Shared, because a cluster has many devices and few different policies.
    #[serde(deserialize_with = "shared_option")]
    pub request_policy: Option<Arc<RequestPolicy>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestPolicy {
    pub default: Option<Quantity>,
    pub valid_values: Option<Vec<Quantity>>,
    pub valid_range: Option<Range>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Range {
    pub min: Option<Quantity>,
    pub max: Option<Quantity>,
    pub step: Option<Quantity>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CounterSet {
    pub name: String,
    #[serde(deserialize_with = "or_default")]
    pub counters: BTreeMap<String, Counter>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Counter {
    #[serde(deserialize_with = "or_default")]
    pub value: Quantity,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConsumedCounters {
    pub counter_set: String,
    #[serde(deserialize_with = "or_default")]
    pub counters: BTreeMap<String, Counter>,
    #[serde(deserialize_with = "fitted")]
    pub compatibility_groups: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    #[serde(deserialize_with = "or_default")]
    pub key: String,
    #[serde(deserialize_with = "or_default")]
    pub value: String,
    #[serde(deserialize_with = "or_default")]
    pub effect: String,
    /// Not used by allocation: callers read it when a GPU changes from one allocator to the other.
    #[serde(deserialize_with = "or_default")]
    pub time_added: Option<Box<str>>,
    /// The sentence that explains the taint in a reason, if the caller added or rewrote it.
    #[serde(skip)]
    pub means: Option<&'static str>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct DeviceTaintRule {
    pub metadata: Metadata,
    pub spec: RuleSpec,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuleSpec {
    /// Without a selector the rule matches nothing.
    pub device_selector: Option<RuleSelector>,
    pub taint: Taint,
}

/// A field that is `None` matches anything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RuleSelector {
    pub driver: Option<String>,
    pub pool: Option<String>,
    pub device: Option<String>,
}

//! VgpuNode: one node's GPUs and shares, as its plugin sees them.

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Always empty: the node's plugin writes status
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "dra.vgpu",
    version = "v1alpha1",
    kind = "VgpuNode",
    doc = "The GPUs of a node, what is held and used of them, and how its plugin is. It has the node's name; the plugin there writes it once a minute.",
    printcolumn(name = "GPUs", type_ = "integer", json_path = ".status.gpuCount"),
    printcolumn(name = "Model", type_ = "string", json_path = ".status.model"),
    printcolumn(name = "Memory Held", type_ = "string", json_path = ".status.memory.held"),
    printcolumn(name = "Memory Used", type_ = "string", json_path = ".status.memory.used"),
    printcolumn(name = "Largest Free", type_ = "string", json_path = ".status.largestFree"),
    printcolumn(name = "Shares", type_ = "integer", json_path = ".status.shareCount"),
    printcolumn(
        name = "Without Claim",
        type_ = "integer",
        priority = 1,
        json_path = ".status.withoutClaim"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#
    ),
    printcolumn(name = "Version", type_ = "string", priority = 1, json_path = ".status.version"),
    printcolumn(name = "As Of", type_ = "date", json_path = ".status.asOf"),
    status = "VgpuNodeStatus",
    crates(kube_core = "::kube_core")
)]
#[serde(rename_all = "camelCase")]
pub struct VgpuNodeSpec {}

/// Written by the node's plugin alone
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VgpuNodeStatus {
    /// When the plugin wrote this; older than five minutes: it does not run, or does not reach the API server
    pub as_of: String,
    /// Version of the plugin
    pub version: String,
    /// Number of GPUs; absent before the driver has answered
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_count: Option<u32>,
    /// Number of shares that are prepared on the node
    pub share_count: u32,
    /// Number of those whose claim is gone or was deallocated; the node holds their GPU until their processes
    /// end. Absent while that is not known
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_claim: Option<u32>,
    /// Model of the GPUs, with a comma between several
    pub model: String,
    /// Of all GPUs together
    pub memory: super::HeldAndUsed,
    /// Memory of the largest share that fits on one GPU now; absent before the driver has answered
    #[serde(skip_serializing_if = "String::is_empty")]
    pub largest_free: String,
    /// The node's GPUs, by their device's name
    #[schemars(length(max = 64))]
    pub gpus: Vec<NodeGpu>,
    /// The shares that are prepared on the node, by namespace, claim and device
    #[schemars(length(max = 2048))]
    pub shares: Vec<NodeShare>,
    /// Conditions of the plugin, as Ready
    #[schemars(length(max = 16))]
    pub conditions: Vec<NodeCondition>,
}

/// A GPU of the node
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeGpu {
    /// Name of its device in the ResourceSlice
    pub device: String,
    /// The driver's UUID
    pub uuid: String,
    /// The driver's name of the model
    pub model: String,
    /// Memory that can be held
    pub memory: String,
    /// Memory that shares hold
    pub memory_held: String,
    /// Memory that processes use by the driver; absent while that is not known
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used: Option<String>,
    /// Memory of the largest share that fits now
    pub largest_free: String,
    /// Percent of the GPU's time that shares have reserved
    pub cores_held: u32,
    /// Number of shares on it
    pub shares: u32,
    /// Why no new share is placed on it, as a taint's reason; absent if new ones are
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A share that is prepared on the node
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeShare {
    /// Namespace of the claim
    pub namespace: String,
    /// Name of the claim
    pub claim: String,
    /// UID of the claim
    pub uid: String,
    /// Name of the share on the node: its shareID
    pub share: String,
    /// Name of the device in the ResourceSlice
    pub device: String,
    /// Whether the claim is gone or was deallocated while the node still holds the share
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub without_claim: bool,
    /// What it holds and uses
    #[serde(flatten)]
    pub usage: super::namespace::ShareUse,
}

/// A condition of the node's plugin, like those of other objects
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeCondition {
    /// Name of the condition
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown
    pub status: String,
    /// One word that says why
    pub reason: String,
    /// What is wrong, and what to do
    pub message: String,
    /// When status last changed
    pub last_transition_time: String,
}

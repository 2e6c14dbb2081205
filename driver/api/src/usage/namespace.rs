//! VgpuUsage: what a namespace holds and uses on all nodes.

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The name of each VgpuUsage.
pub const USAGE_NAME: &str = "vgpu";
/// The most claims that a VgpuUsage lists.
pub const MOST_CLAIMS: usize = 200;

/// Always empty: the controller writes status
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "dra.vgpu",
    version = "v1alpha1",
    kind = "VgpuUsage",
    namespaced,
    status = "VgpuUsageStatus",
    doc = "What a namespace holds and uses of the GPUs. It is named vgpu; the controller writes it when a figure has moved.",
    printcolumn(name = "Shares", type_ = "integer", json_path = ".status.shares"),
    printcolumn(name = "Memory Held", type_ = "string", json_path = ".status.memory.held"),
    printcolumn(name = "Memory Used", type_ = "string", json_path = ".status.memory.used"),
    printcolumn(name = "Cores Held", type_ = "integer", json_path = ".status.coresHeld"),
    printcolumn(name = "GPU Time", type_ = "integer", json_path = ".status.gpuTimePercent"),
    printcolumn(name = "GPU Hours", type_ = "string", json_path = ".status.budget.usedGpuHours"),
    printcolumn(name = "Refusals", type_ = "integer", priority = 1, json_path = ".status.refusals"),
    printcolumn(
        name = "Without Claim",
        type_ = "integer",
        priority = 1,
        json_path = ".status.withoutClaim"
    ),
    printcolumn(name = "Waiting", type_ = "integer", json_path = ".status.waiting"),
    printcolumn(name = "As Of", type_ = "date", json_path = ".status.asOf"),
    crates(kube_core = "::kube_core")
)]
#[serde(rename_all = "camelCase")]
pub struct VgpuUsageSpec {}

/// Written by vgpu-controller alone
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct VgpuUsageStatus {
    /// When a figure last moved
    pub as_of: String,
    /// Number of shares that nodes hold for the namespace
    pub shares: u32,
    /// Number of those whose claim is gone; their nodes hold the GPU until their processes end
    pub without_claim: u32,
    /// Number of those whose use is not known, so the sums of use are without it: their nodes have not written for five minutes, or a figure of them cannot be read
    pub use_not_known: u32,
    /// Memory of all shares
    pub memory: HeldAndUsed,
    /// Percent of a GPU's time that all shares have reserved, together
    pub cores_held: u32,
    /// Percent of a GPU's time that all shares used in the last minute, together; absent while that is known of none
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_time_percent: Option<u32>,
    /// How often the library has refused memory to programs of the shares
    pub refusals: u64,
    /// Number of the namespace's pods that wait for a share
    pub waiting: u32,
    /// The budget of the namespace's VgpuQuota; absent without one
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetUse>,
    /// Its claims, at most 200, those with most memory; one with several shares is listed once for each
    pub claims: Vec<ClaimUse>,
    /// Number of shares that are not listed in claims
    pub not_listed: u32,
}

/// Memory that is held and that is used
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HeldAndUsed {
    /// Memory that shares hold
    pub held: String,
    /// Memory that their processes use; absent while that is not known
    #[serde(skip_serializing_if = "String::is_empty")]
    pub used: String,
}

/// GPU hours in the period of the quota
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BudgetUse {
    /// GPU hours of a period
    pub gpu_hours: String,
    /// GPU hours used in this period
    pub used_gpu_hours: String,
    /// InBudget or Spent
    pub state: String,
}

/// A share of a claim
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimUse {
    /// Name of the claim
    pub claim: String,
    /// Node that holds the share
    pub node: String,
    /// Name of the device in the ResourceSlice
    pub device: String,
    /// Whether the claim is gone while the node still holds the share
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub without_claim: bool,
    /// Whether its use now is not known; peaks and means are those that were known last
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub use_not_known: bool,
    /// What it holds and uses
    #[serde(flatten)]
    pub usage: ShareUse,
}

/// What a share holds and uses. Peaks and means are since the node prepared it
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ShareUse {
    /// Memory that it holds
    pub memory: String,
    /// Memory that its processes use now; this and all figures below are absent while they are not known
    #[serde(skip_serializing_if = "String::is_empty")]
    pub memory_used: String,
    /// The most memory that its processes have used
    #[serde(skip_serializing_if = "String::is_empty")]
    pub memory_peak: String,
    /// Mean of the memory that its processes have used
    #[serde(skip_serializing_if = "String::is_empty")]
    pub memory_mean: String,
    /// Percent of the GPU's time that it has reserved
    pub cores: u32,
    /// Percent of the GPU's time that it used in the last minute
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_time_percent: Option<u32>,
    /// The most of it in one minute
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_time_peak_percent: Option<u32>,
    /// Mean of it
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_time_mean_percent: Option<u32>,
    /// Number of its processes
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// How often the library has refused memory to them
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusals: Option<u64>,
    /// When the node prepared it
    #[serde(skip_serializing_if = "String::is_empty")]
    pub since: String,
}

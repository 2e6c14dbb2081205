//! VgpuNode and VgpuUsage: what a node holds and uses, and what a namespace does.
//!
//! ```text
//!  kubelet-plugin ──► VgpuNode, one a node ──► vgpu-controller's leader ──► VgpuUsage, one a namespace
//! ```
//!
//! Nobody writes a spec: both have status alone, without a subresource, because each has one writer. The chart's
//! CustomResourceDefinitions are generated from these types; every doc comment of a field is its description there.
#![allow(
    clippy::duplicated_attributes,
    reason = "columns of the derived kinds have their type and priority in common"
)]

pub mod crd;
mod namespace;
mod node;

pub use namespace::{
    BudgetUse, ClaimUse, HeldAndUsed, MOST_CLAIMS, ShareUse, USAGE_NAME, VgpuUsage, VgpuUsageSpec, VgpuUsageStatus,
};
pub use node::{NodeCondition, NodeGpu, NodeShare, VgpuNode, VgpuNodeSpec, VgpuNodeStatus};

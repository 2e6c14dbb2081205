//! Names that the chart, the API and this crate have in common.

/// Names on pods: the gate, the PriorityClass and annotation of pods over budget, the extended resource of a class.
pub use vgpu_planner::names::{IMPLICIT_RESOURCE as IMPLICIT, OPENED_OVER_BUDGET, OVER_BUDGET, QUOTA_GATE as GATE};

/// The label of a namespace that has a VgpuQuota: its value is a `BudgetState`. The chart's policies depend only on
/// this label.
pub const LABEL: &str = "dra.vgpu/quota";
/// The one name of a VgpuQuota.
pub const QUOTA: &str = "vgpu";
/// The label of a quota that was made from a VgpuQuotaDefault: the default's name.
pub const FROM_DEFAULT: &str = "dra.vgpu/default";
/// The annotation of such a quota with the `spec` that the default gave it. If the two differ, the quota belongs to an
/// administrator.
pub const STAMPED_SPEC: &str = "dra.vgpu/default-spec";

//! Names that the chart, the API and this crate have in common.

/// The scheduling gate of a pod that waits for its quota.
pub const GATE: &str = "dra.vgpu/quota";
/// The label of a namespace that has a VgpuQuota: its value is a `Mark`. The policies of the chart go by it alone.
pub const LABEL: &str = "dra.vgpu/quota";
/// The one name of a VgpuQuota.
pub const QUOTA: &str = "vgpu";
/// The PriorityClass of pods whose namespace has spent its budget.
pub const OVER_BUDGET: &str = "vgpu-over-budget";
/// The annotation that the leader writes on a pod with the removal of its gate, if the namespace was over budget then.
pub const OPENED_OVER_BUDGET: &str = "dra.vgpu/opened-over-budget";
/// The label of a quota that was made from a VgpuQuotaDefault: the default's name.
pub const FROM_DEFAULT: &str = "dra.vgpu/default";
/// The annotation of such a quota: its `spec` as it was stamped. Once the two differ the quota is an administrator's.
pub const STAMPED_SPEC: &str = "dra.vgpu/default-spec";
/// The prefix of the extended resource that each DeviceClass has by itself.
pub const IMPLICIT: &str = "deviceclass.resource.kubernetes.io/";

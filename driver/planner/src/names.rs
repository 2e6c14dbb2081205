//! Names that the controller shares with the kubelet plugin, the chart and users: taint, annotations, finalizer, hold.

/// The driver whose devices are allocated here.
pub use vgpu_api::DRIVER_NAME as DRIVER;
/// The taint that says who allocates a device; without it, kube-scheduler does.
pub use vgpu_api::allocator_taint::{CONTROLLER, EFFECT as TAINT_EFFECT, KEY as TAINT_KEY, RELEASED};

/// The finalizer with which kube-controller-manager deallocates a claim when its last pod is gone.
pub const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// The annotation of claims that kube-scheduler creates for extended resources of pods.
pub const EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";
/// The prefix of the extended resource by which a pod asks for a class without a claim; the class's name follows.
pub const IMPLICIT_RESOURCE: &str = "deviceclass.resource.kubernetes.io/";

/// The annotation of the mark: the epoch of the leader that last marked the claim.
pub const EPOCH: &str = "dra.vgpu/epoch";

/// The scheduling gate of a pod that waits for its quota.
pub const QUOTA_GATE: &str = "dra.vgpu/quota";
/// The PriorityClass of pods whose namespace has spent its budget.
pub const OVER_BUDGET: &str = "vgpu-over-budget";
/// The annotation that the leader writes on a pod with the removal of its gate, if the namespace was over budget then.
pub const OPENED_OVER_BUDGET: &str = "dra.vgpu/opened-over-budget";

/// Group and resource of a hold in `reservedFor`. It has the pod's name, and a UID that no pod has.
pub const HOLD_GROUP: &str = "dra.vgpu";
pub const HOLD_RESOURCE: &str = "holds";

/// The annotations of a gang's pods: its name, and its number of pods.
pub const GANG: &str = "dra.vgpu/gang";
pub const GANG_SIZE: &str = "dra.vgpu/gang-size";

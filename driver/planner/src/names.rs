//! Names that the controller shares with the kubelet plugin, the chart and users: taint, annotations, finalizer, hold.

/// The driver whose devices are allocated here.
pub use vgpu_api::DRIVER_NAME as DRIVER;
/// The taint by which a device says who allocates it; one without is kube-scheduler's.
pub use vgpu_api::allocator_taint::{CONTROLLER, EFFECT as TAINT_EFFECT, KEY as TAINT_KEY, RELEASED};

/// What makes kube-controller-manager deallocate a claim whose last pod is gone.
pub const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// On claims that kube-scheduler makes for pods that ask for an extended resource.
pub const EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";
/// The resource by which a pod may ask for a class without a claim: this and the class's name.
pub const IMPLICIT_RESOURCE: &str = "deviceclass.resource.kubernetes.io/";

/// The fence: which leader wrote to the claim last, before it was allocated.
pub const EPOCH: &str = "dra.vgpu/epoch";

/// A hold in `reservedFor`: this group and resource, the pod's name, and a uid that no pod has.
pub const HOLD_GROUP: &str = "dra.vgpu";
pub const HOLD_RESOURCE: &str = "holds";

/// Annotations of pods: which gang, and of how many.
pub const GANG: &str = "dra.vgpu/gang";
pub const GANG_SIZE: &str = "dra.vgpu/gang-size";

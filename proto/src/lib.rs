//! The gRPC services between kubelet and a DRA plugin, client and server.
//!
//! ```text
//!  kubelet ──GetInfo, NotifyRegistrationStatus──► registration   (plugins_registry/registration-<pod UID>@<driver>.sock)
//!     │      "DRAPlugin dra.vgpu, at dra-<pod UID>.sock, speaks v1.DRAPlugin, ..."
//!     ├──NodePrepareResources, NodeUnprepareResources──► dra::v1, dra::v1beta1      (dra-<pod UID>.sock)
//!     └──NodeWatchResources──► health::v1, health::v1alpha1                         (dra-<pod UID>.sock)
//!  kubelet ◄──List── pod_resources                                               (pod-resources/kubelet.sock)
//! ```
//!
//! The .proto files in kubelet/ have kubelet's names and field numbers; the tests compare every message with
//! its bytes.
#![forbid(unsafe_code)]
#![allow(unreachable_pub, clippy::all)] // in generated code

/// Prepare and Unprepare.
pub mod dra {
    pub mod v1 {
        tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
    }
    pub mod v1beta1 {
        tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1beta1");
    }
}

/// The health of devices, as a stream.
pub mod health {
    pub mod v1 {
        tonic::include_proto!("v1");
    }
    pub mod v1alpha1 {
        tonic::include_proto!("v1alpha1");
    }
}

/// Which container has which device, as the kubelet knows it. The service's name is not unique, so its methods are
/// called by path.
pub mod pod_resources {
    tonic::include_proto!("v1podresources");

    /// The method that answers [`ListPodResourcesRequest`].
    pub const LIST: &str = "/v1.PodResourcesLister/List";
}

/// Registration of a plugin with kubelet.
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

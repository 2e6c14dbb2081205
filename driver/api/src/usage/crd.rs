//! The CustomResourceDefinitions of VgpuNode and VgpuUsage, as the chart installs them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt as _;
use serde_json::{Value, json};

use super::{VgpuNode, VgpuUsage};
use crate::loosen::loosen;

/// Returns the CustomResourceDefinitions of VgpuNode and VgpuUsage.
#[must_use]
pub fn all() -> [Value; 2] {
    [crd(&VgpuNode::crd()), crd(&VgpuUsage::crd())]
}

/// A definition without the subresource: one request writes the object with its status.
fn crd(derived: &CustomResourceDefinition) -> Value {
    let mut crd = json!(derived);
    let version = &mut crd["spec"]["versions"][0];
    if let Some(version) = version.as_object_mut() {
        version.remove("subresources");
    }
    loosen(&mut version["schema"]["openAPIV3Schema"]);
    crd
}

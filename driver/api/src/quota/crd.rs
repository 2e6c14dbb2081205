//! The CustomResourceDefinitions of quotas, as the chart installs them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt as _;
use serde_json::{Value, json};

use super::{Dimension, VgpuQuota, VgpuQuotaDefault};
use crate::loosen::loosen;

/// Returns the CustomResourceDefinitions of VgpuQuota and VgpuQuotaDefault.
#[must_use]
pub fn all() -> [Value; 2] {
    let of_status = Dimension::ALL.into_iter().flat_map(|dimension| {
        let (title, name) = (dimension.title(), dimension.name());
        let kind = &dimension.unit().schema().to_value()["type"];
        [
            json!({"name": title, "type": kind, "jsonPath": format!(".status.used.{name}")}),
            json!({"name": format!("{title} Limit"), "type": kind, "jsonPath": format!(".status.hard.{name}")}),
        ]
    });
    let of_default = Dimension::ALL.into_iter().map(|dimension| {
        let path = format!(".spec.quota.hard.{}", dimension.name());
        json!({"name": dimension.title(), "type": "string", "jsonPath": path})
    });
    [
        crd(VgpuQuota::crd(), of_status.collect()),
        crd(VgpuQuotaDefault::crd(), of_default.collect()),
    ]
}

/// A definition with a column of each dimension before its own.
fn crd(derived: CustomResourceDefinition, mut columns: Vec<Value>) -> Value {
    let mut crd = json!(derived);
    let version = &mut crd["spec"]["versions"][0];
    if let Some(own) = version["additionalPrinterColumns"].as_array_mut() {
        columns.append(own);
    }
    version["additionalPrinterColumns"] = columns.into();
    loosen(&mut version["schema"]["openAPIV3Schema"]);
    crd
}

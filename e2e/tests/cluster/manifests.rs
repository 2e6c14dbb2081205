//! Manifests of the tests' own pods and claims.

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// A template for one request with these capacities, and an opaque configuration for these drivers.
pub(crate) fn template(name: &str, class: &str, capacity: Value, configs: &[(&str, Value)]) -> String {
    let mut exactly = json!({"deviceClassName": class});
    if !capacity.is_null() {
        exactly["capacity"] = json!({"requests": capacity});
    }
    let configs: Vec<Value> = configs
        .iter()
        .map(|(driver, parameters)| json!({"opaque": {"driver": driver, "parameters": parameters}}))
        .collect();
    let object = json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}], "config": configs}}},
    });
    format!("{object}\n---\n")
}

/// A pod with one container and one claim from the template.
pub(crate) fn pod(name: &str, image: &str, command: &[&str], template: &str) -> String {
    let object = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "dnsPolicy": "Default",
            "terminationGracePeriodSeconds": 1,
            "restartPolicy": "Never",
            "containers": [{
                "name": "main",
                "image": format!("dra-driver-vgpu/{image}:dev"),
                "command": command,
                "resources": {"claims": [{"name": "gpu"}]},
            }],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}],
        },
    });
    format!("{object}\n---\n")
}

/// The object of [`pod`], for further changes.
pub(crate) fn pod_object(name: &str, command: &[&str], template: &str) -> Result<Value> {
    let text = pod(name, "client", command, template);
    serde_json::from_str(text.trim_end_matches("\n---\n")).context("a pod that is no JSON")
}

/// A VgpuConfig with these fields.
pub(crate) fn config(fields: &Value) -> Value {
    let mut config = json!({"apiVersion": "dra.vgpu/v1alpha1", "kind": "VgpuConfig"});
    for (key, value) in fields.as_object().into_iter().flatten() {
        config[key] = value.clone();
    }
    config
}

/// The command of a pod that keeps its share until it is deleted.
pub(crate) const HOLD: [&str; 2] = ["vgpu-client", "hold"];

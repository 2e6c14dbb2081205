//! Reads the cluster's objects by kubectl, with its context and credentials.

use std::process::Command;

use serde_json::Value;

/// All kinds that allocation reads, except DeviceTaintRules, which not every cluster has.
const KINDS: &str = "nodes,deviceclasses.v1.resource.k8s.io,resourceslices.v1.resource.k8s.io,\
                     resourceclaims.v1.resource.k8s.io";
const RULES: &str = "devicetaintrules.v1.resource.k8s.io";

const QUOTAS: &str = "vgpuquotas.v1alpha1.dra.vgpu";

#[derive(Debug, thiserror::Error)]
pub(super) enum KubectlError {
    #[error("kubectl: {0}; install it, or give the objects in files by -f")]
    Missing(#[source] std::io::Error),
    #[error("kubectl get {what}: {said}")]
    Failed { what: &'static str, said: String },
    #[error("kubectl get {what}: its output is not JSON: {error}")]
    Json {
        what: &'static str,
        error: serde_json::Error,
    },
}

/// Reads the cluster's objects and the pods of one namespace, as lists.
pub(super) fn lists(namespace: &str) -> Result<Vec<Value>, KubectlError> {
    let mut lists = vec![get(KINDS, &["--all-namespaces"])?];
    match get(RULES, &[]) {
        Ok(rules) => lists.push(rules),
        Err(KubectlError::Failed { said, .. }) if said.contains("doesn't have a resource type") => {}
        Err(error) => return Err(error),
    }
    lists.push(get("pods", &["--namespace", namespace])?);
    Ok(lists)
}

/// Reads the VgpuQuotas of a namespace. `None` where the cluster has no such kind.
pub(super) fn quotas(namespace: &str) -> Result<Option<Value>, KubectlError> {
    match get(QUOTAS, &["--namespace", namespace]) {
        Ok(list) => Ok(Some(list)),
        Err(KubectlError::Failed { said, .. }) if said.contains("doesn't have a resource type") => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads the ResourceQuotas of a namespace.
pub(super) fn resource_quotas(namespace: &str) -> Result<Value, KubectlError> {
    get("resourcequotas", &["--namespace", namespace])
}

fn get(what: &'static str, scope: &[&str]) -> Result<Value, KubectlError> {
    let output = Command::new("kubectl")
        .args(["get", what, "--output", "json"])
        .args(scope)
        .output()
        .map_err(KubectlError::Missing)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said
            .trim()
            .lines()
            .last()
            .unwrap_or("it failed without a message")
            .to_owned();
        return Err(KubectlError::Failed { what, said });
    }
    serde_json::from_slice(&output.stdout).map_err(|error| KubectlError::Json { what, error })
}

//! Reads the cluster's objects by kubectl, with its context and credentials.

use std::process::Command;

use serde_json::Value;
use vgpu_allocator::offline::{InputError, Objects};

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
    #[error(transparent)]
    Input(#[from] InputError),
}

/// Reads the cluster's objects and the pods of one namespace.
pub(super) fn objects(namespace: &str) -> Result<Objects, KubectlError> {
    let mut objects = Objects::default();
    objects.add(get(KINDS, &["--all-namespaces"])?, "kubectl get")?;
    match get(RULES, &[]) {
        Ok(rules) => objects.add(rules, "kubectl get")?,
        Err(KubectlError::Failed { said, .. }) if said.contains("doesn't have a resource type") => {}
        Err(error) => return Err(error),
    }
    objects.add(get("pods", &["--namespace", namespace])?, "kubectl get")?;
    Ok(objects)
}

/// The quota of a namespace in a line. `None` without one, and where the cluster has no such kind. Who may not read it
/// reads that.
pub(super) fn quota(namespace: &str) -> Option<String> {
    let list = match get(QUOTAS, &["--namespace", namespace]) {
        Ok(list) => list,
        Err(KubectlError::Failed { said, .. }) if said.contains("doesn't have a resource type") => return None,
        Err(error) => return Some(format!("the VgpuQuota of namespace {namespace} is not known: {error}")),
    };
    let quotas = list["items"].as_array()?.iter();
    let mut quotas = quotas.filter_map(|quota| serde_json::from_value::<vgpu_quota::Quota>(quota.clone()).ok());
    Some(quotas.find(|quota| quota.name == vgpu_quota::names::QUOTA)?.to_string())
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

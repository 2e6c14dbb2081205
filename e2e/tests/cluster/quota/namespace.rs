//! A namespace with a quota: its label, the gates of its pods, and refusals in it.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::wait::wait;

use crate::manifests::{HOLD, pod};
use crate::shared::LIMIT;

/// Waits until the controller has seen the current quota, and the API server gates pods of the namespace.
pub(super) fn wait_seen(kube: &Kube<'_>) -> Result<()> {
    wait(LIMIT, "the quota to be seen", || {
        let quota = kube.get(&["vgpuquota", "vgpu"])?;
        let is_seen = quota["status"]["observedGeneration"] == quota["metadata"]["generation"];
        Ok(is_seen.then_some(()))
    })?;
    // The API server sees the namespace's label a moment after the write.
    wait(LIMIT, "the policy to gate a pod", || {
        Ok(is_gated_now(kube)?.then_some(()))
    })
}

/// Returns true if a pod that is created now is gated.
pub(super) fn is_gated_now(kube: &Kube<'_>) -> Result<bool> {
    let trial = pod("trial", "client", &HOLD, "none");
    let dry = ["create", "--dry-run=server", "-o", "json", "-f", "-"];
    let said = kube.try_run_with_input(&dry, trial.trim_end_matches("---\n"))?;
    let pod: Value = serde_json::from_str(&said.stdout).with_context(|| said.stderr.clone())?;
    Ok(has_gate(&pod))
}

pub(super) fn has_gate(pod: &Value) -> bool {
    let gates = pod["spec"]["schedulingGates"].as_array();
    gates.is_some_and(|gates| gates.iter().any(|gate| gate["name"] == "dra.vgpu/quota"))
}

/// The label by which policies recognise a namespace with a quota.
pub(super) fn label_of(kube: &Kube<'_>, namespace: &str) -> Result<Option<String>> {
    let namespace = kube.get(&["namespace", namespace])?;
    let label = namespace["metadata"]["labels"]["dra.vgpu/quota"].as_str();
    Ok(label.map(str::to_owned))
}

pub(super) fn wait_label(kube: &Kube<'_>, namespace: &str, wanted: Option<&str>) -> Result<()> {
    wait(LIMIT, &format!("the label of {namespace} to be {wanted:?}"), || {
        let label = label_of(kube, namespace)?;
        (label.as_deref() == wanted)
            .then_some(Some(()))
            .context(format!("{label:?}"))
    })
}

pub(super) fn quota(spec: &Value) -> String {
    json!({"apiVersion": "dra.vgpu/v1alpha1", "kind": "VgpuQuota", "metadata": {"name": "vgpu"}, "spec": spec})
        .to_string()
}

pub(super) fn set_quota(kube: &Kube<'_>, spec: &Value) -> Result<()> {
    kube.apply(&quota(spec))?;
    wait_seen(kube)
}

pub(super) fn is_gated(kube: &Kube<'_>, pod: &str) -> Result<bool> {
    Ok(has_gate(&kube.get(&["pod", pod])?))
}

pub(super) fn refused(kube: &Kube<'_>, arguments: &[&str], input: &str, words: &str) -> Result<()> {
    let said = kube.try_run_with_input(arguments, input)?;
    match said.stderr.contains(words) {
        true if !said.status.success() => Ok(()),
        _ => bail!(
            "{arguments:?} {input}: expected {words}, and it says {}{}",
            said.stdout,
            said.stderr
        ),
    }
}

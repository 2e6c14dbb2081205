//! Claims of instances and the pods that have them.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::wait::wait;

use crate::manifests::pod;
use crate::shared::{self, LIMIT};

/// The memory of the larger instance.
pub(super) const HALF: u64 = 40_448 << 20;
/// The memory of the smallest one.
pub(super) const EIGHTH: u64 = 9_984 << 20;

/// Skips a test on a machine with a real driver. Returns true if it was skipped.
pub(super) fn is_skipped(test: &str) -> bool {
    let is_real = shared::prepared().gpu.is_nvidia();
    if is_real {
        vgpu_skip::skip(test, "the init container refuses this machine, which has a real driver");
    }
    is_real
}

/// Runs a part of a test, and prints how long it took.
pub(super) fn scene(name: &str, run: impl FnOnce() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    run().with_context(|| format!("scene: {name}"))?;
    println!("{name}: {} s", start.elapsed().as_secs());
    Ok(())
}

/// A claim of this spec of a request, and a pod that has it.
pub(super) fn claim(name: &str, exactly: &Value) -> String {
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}});
    let pod = pod(name, "client", &["vgpu-client", "hold"], name);
    let pod = pod.replace("resourceClaimTemplateName", "resourceClaimName");
    format!("{claim}\n---\n{pod}")
}

/// Selectors of instances of this profile, on the GPU with this index.
pub(super) fn selectors(profile: &str, gpu: u64) -> Value {
    let of = "device.attributes['dra.vgpu']";
    let all = [format!("{of}.profile == '{profile}'"), format!("{of}.index == {gpu}")];
    all.map(|expression| json!({"cel": {"expression": expression}})).into()
}

/// A request for a part of an instance.
pub(super) fn part_of(profile: &str, gpu: u64, memory: &str) -> Value {
    json!({"deviceClassName": "vgpu", "selectors": selectors(profile, gpu),
        "capacity": {"requests": {"memory": memory, "cores": "25"}}})
}

/// A request for a whole instance.
pub(super) fn whole_of(profile: &str, gpu: u64) -> Value {
    json!({"deviceClassName": "vgpu-mig", "selectors": selectors(profile, gpu)})
}

/// The memory that CUDA finds in a pod.
pub(super) fn memory_of(kube: &Kube<'_>, pod: &str) -> Result<u64> {
    let line: Value = serde_json::from_str(&kube.exec(pod, &["vgpu-client", "check"])?)?;
    line["total"].as_u64().with_context(|| format!("{pod}: {line}"))
}

/// Waits for a pod, and checks that its CUDA has this much memory and that it has the nodes of one instance.
pub(super) fn runs_with(kube: &Kube<'_>, pod: &str, memory: u64) -> Result<()> {
    kube.wait_running(pod, LIMIT)?;
    let total = memory_of(kube, pod)?;
    ensure!(total == memory, "{pod} has {total} bytes");
    let caps = kube.exec(pod, &["ls", "/dev/nvidia-caps"])?;
    ensure!(caps.split_whitespace().count() == 2, "{pod}: {caps}");
    Ok(())
}

pub(super) fn delete(kube: &Kube<'_>, names: &[&str]) -> Result<()> {
    kube.run(&[&["delete", "pod", "--ignore-not-found"], names].concat())?;
    kube.run(&[&["delete", "resourceclaim"], names].concat()).map(drop)
}

/// Waits until kube-scheduler has found no devices for a pod.
pub(super) fn waits(kube: &Kube<'_>, pod: &str) -> Result<()> {
    wait(LIMIT, &format!("pod {pod} to wait for devices"), || {
        let events = kube.get(&["events", "--field-selector", &format!("involvedObject.name={pod}")])?;
        Ok(events.to_string().contains("FailedScheduling").then_some(()))
    })
}

/// The only device of a claim.
pub(super) fn allocated(kube: &Kube<'_>, claim: &str) -> Result<Value> {
    let claim = kube.get(&["resourceclaim", claim])?;
    Ok(claim["status"]["allocation"]["devices"]["results"][0].clone())
}

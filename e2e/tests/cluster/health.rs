//! Faults of GPUs, simulated with the software GPU's file `control`: taints, pods that stay away, health that the
//! kubelet reports for running pods, a restart of the plugin, and recovery.

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use vgpu_e2e::cluster::{Cluster, Node, SOFT_GPU_STATE};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{install, patience, workload};

use crate::manifests::{HOLD, pod, template};
use crate::shared::{self, LIMIT, Test};

pub(crate) const TESTS: &[Test] = &[("a_fault_is_a_taint_and_a_health_message_until_the_gpu_is_well", faults)];

/// Makes the first node's software GPUs fail like this from now on.
fn control(cluster: &Cluster, text: &str) -> Result<()> {
    let folder = cluster.node(Node::FIRST).path_inside(SOFT_GPU_STATE)?;
    let new = folder.join("control.new");
    fs::write(&new, text)?;
    fs::rename(new, folder.join("control")).context("the software GPU's file control")
}

/// A published GPU.
#[derive(Debug)]
struct Published {
    index: u64,
    /// Effect and time of each taint, keyed by `key=value`.
    taints: BTreeMap<String, (String, String)>,
}

/// The GPUs by device name.
fn published(kube: &Kube<'_>) -> Result<BTreeMap<String, Published>> {
    let slices = kube.get(&["resourceslices"])?;
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let devices = list(&slices, "items")
        .into_iter()
        .flat_map(|slice| list(&slice["spec"], "devices"));
    let gpus = devices.filter(|device| device["attributes"]["type"]["string"] == "gpu");
    let of = |device: Value| {
        let taint = |taint: Value| {
            let name = format!("{}={}", text(&taint["key"]), text(&taint["value"]));
            (name, (text(&taint["effect"]), text(&taint["timeAdded"])))
        };
        let gpu = Published {
            index: device["attributes"]["index"]["int"].as_u64()?,
            taints: list(&device, "taints").into_iter().map(taint).collect(),
        };
        Some((text(&device["name"]), gpu))
    };
    Ok(gpus.filter_map(of).collect())
}

/// Waits until a device has these taints and no others. Returns the time of each.
fn tainted(kube: &Kube<'_>, device: &str, expected: &[(&str, &str)]) -> Result<BTreeMap<String, String>> {
    wait(LIMIT, &format!("the taints {expected:?} of {device}"), || {
        let mut gpus = published(kube)?;
        let taints = gpus.remove(device).context("it is not published")?.taints;
        let found: Vec<(&str, &str)> = taints.iter().map(|(name, (effect, _))| (&**name, &**effect)).collect();
        ensure!(found == expected, "it has {found:?}");
        Ok(Some(taints.into_iter().map(|(name, (_, time))| (name, time)).collect()))
    })
}

fn device_of(kube: &Kube<'_>, name: &str) -> Result<String> {
    let shares = workload::shares(kube)?;
    let own = shares.into_iter().find(|share| share.pod == name);
    own.and_then(|share| share.device)
        .with_context(|| format!("{name} has no device"))
}

/// Waits for the health that the kubelet reports for the pod's share.
fn health(kube: &Kube<'_>, name: &str, health: &str, message: &str) -> Result<()> {
    wait(LIMIT, &format!("{name} to be {health} in its status"), || {
        let found = kube.get(&["pod", name])?;
        let all = found["status"]["containerStatuses"][0]["allocatedResourcesStatus"].clone();
        let one = &all[0]["resources"][0];
        let said = one["message"].as_str().unwrap_or_default();
        ensure!(one["health"] == health && said.contains(message), "it is {all}");
        Ok(Some(()))
    })
}

fn restart_the_plugin(cluster: &Cluster) -> Result<()> {
    let project = Kube::new(cluster, install::NAME);
    let old = shared::plugin_pod(cluster)?;
    project.run(&["delete", "pod", &old])?;
    wait(LIMIT, "another plugin that is ready", || {
        let new = shared::plugin_pod(cluster)?;
        let found = project.get(&["pod", &new])?;
        Ok((new != old && found["status"]["containerStatuses"][0]["ready"] == true).then_some(()))
    })?;
    project
        .run(&["rollout", "status", "daemonset", &patience::timeout(LIMIT)])
        .map(drop)
}

fn faults() -> Result<()> {
    shared::in_namespace("health", |installed, kube| {
        let cluster = &installed.cluster;
        after(steps(cluster, kube), control(cluster, ""))
    })
}

fn steps(cluster: &Cluster, kube: &Kube<'_>) -> Result<()> {
    let runs = |name: &str| -> Result<()> {
        kube.apply(&pod(name, "client", &HOLD, "t"))?;
        kube.wait_running(name, LIMIT)
    };
    kube.apply(&template("t", "vgpu", json!({"memory": "1Gi"}), &[]))?;
    runs("before")?;
    let device = device_of(kube, "before")?;
    let gpus = published(kube)?;
    let index = gpus.get(&device).context("the pod's GPU is not published")?.index;
    let (other, gpu) = gpus.iter().find(|(name, _)| **name != device).context("one GPU")?;
    let other_index = gpu.index;
    health(kube, "before", "Healthy", "")?;

    // An XID after which the driver asks for a reset. Running pods continue; new ones go elsewhere.
    let xid = format!("xid {index} 79\naction {index} reset\n");
    control(cluster, &xid)?;
    let start = Instant::now();
    let both = [
        ("dra.vgpu/recovery=reset", "NoSchedule"),
        ("dra.vgpu/xid=79", "NoSchedule"),
    ];
    let times = tainted(kube, &device, &both)?;
    println!(
        "health: from the fault to the taint {:.1} s",
        start.elapsed().as_secs_f64()
    );
    health(kube, "before", "Unhealthy", "XID 79")?;
    runs("elsewhere")?;
    ensure!(
        device_of(kube, "elsewhere")? == *other,
        "a new pod got the GPU with the fault"
    );

    // Rows of the other GPU cannot be remapped: a new pod gets neither of the two.
    control(cluster, &format!("{xid}remap {other_index} failed\n"))?;
    tainted(kube, other, &[("dra.vgpu/remap=failed", "NoSchedule")])?;
    health(kube, "elsewhere", "Unhealthy", "could not remap")?;
    kube.apply(&pod("waits", "client", &HOLD, "t"))?;
    let waits = || -> Result<Value> { Ok(kube.get(&["pod", "waits"])?["status"]["conditions"].clone()) };
    wait(LIMIT, "kube-scheduler to find no GPU", || {
        let conditions = waits()?;
        let all = conditions.as_array().cloned().unwrap_or_default();
        Ok(all.iter().any(|one| one["reason"] == "Unschedulable").then_some(()))
    })?;

    // The software GPU does not repeat an XID: the new plugin reads it from its files.
    restart_the_plugin(cluster)?;
    ensure!(
        tainted(kube, &device, &both)? == times,
        "the taints are younger after a restart"
    );

    // A pending remapping does not keep pods away.
    control(cluster, &format!("remap {index} pending\n"))?;
    let start = Instant::now();
    tainted(kube, &device, &[("dra.vgpu/remap=pending", "None")])?;
    tainted(kube, other, &[])?;
    println!(
        "health: from the recovery to the end of the taints {:.1} s",
        start.elapsed().as_secs_f64()
    );
    kube.wait_running("waits", LIMIT)?;
    health(kube, "before", "Healthy", "")?;
    control(cluster, "")?;
    tainted(kube, &device, &[]).map(drop)
}

//! The chart's `softGpu.gpus`: its init container puts software GPUs on the node, and pods have shares of them. One of them
//! has the system's memory, and its size is the chart's. Another one is in MIG mode, and a pod has one of its instances.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use vgpu_e2e::cluster::{Cluster, Node};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{image, install, workload};

use crate::load::{PROVES, share};
use crate::manifests::{HOLD, pod};
use crate::plugins;
use crate::releases::roll_back;
use crate::shared::{self, Installed, LIMIT, Test};

pub(crate) const TESTS: &[Test] = &[(
    "the_chart_puts_software_gpus_on_a_node_and_pods_share_them",
    from_the_chart,
)];

/// The state folder differs from that of the cluster's own software GPU, so the GPUs differ too.
const VALUES: &str =
    "driverRoot=/,softGpu.gpus=4,softGpu.state=/var/lib/soft-gpu/of-the-chart,gpuMemory.Software GPU GB10=40Gi";
const STATE: &str = "/var/lib/soft-gpu/of-the-chart";
/// The init container leaves it as it is. The third GPU's memory is also the system's, and the fourth one has instances.
const PROFILE: &str = "gpus = 4\nunified = 2\nmig = 3: 3g.40gb@0, 1g.10gb@4\n";
/// The memory of the larger instance.
const HALF: u64 = 40_448 << 20;

fn from_the_chart() -> Result<()> {
    if shared::prepared().gpu.is_nvidia() {
        vgpu_skip::skip(
            "softgpu::the_chart_puts_software_gpus_on_a_node_and_pods_share_them",
            "the init container refuses this machine, which has a real driver",
        );
        return Ok(());
    }
    shared::in_namespace_of(shared::observed()?, "soft-gpu", |installed, kube| {
        let cluster = &installed.cluster;
        cluster.import(shared::prepared().archive_of(image::SOFT_GPU)?)?;
        let state = cluster.node(Node::FIRST).path_inside(STATE)?;
        std::fs::create_dir_all(&state).with_context(|| format!("cannot create {}", state.display()))?;
        std::fs::write(state.join("profile"), PROFILE).context("cannot write the profile")?;
        let before = plugins::uids(cluster)?;
        let tested = upgrade(cluster).and_then(|()| shares(installed, kube, &before));
        let back = roll_back(cluster).and_then(|()| plugins::settle(cluster, &[]).map(drop));
        after(tested, back.and_then(|()| plugins::published(installed, kube)))
    })
}

fn upgrade(cluster: &Cluster) -> Result<()> {
    let chart = install::chart();
    let chart = chart.to_str().context("the clone's path is not UTF-8")?;
    let upgrade = ["upgrade", install::NAME, chart, "--reuse-values", "--set", VALUES];
    Kube::new(cluster, install::NAME).helm(&upgrade).map(drop)
}

fn shares(installed: &Installed, kube: &Kube<'_>, before: &[String]) -> Result<()> {
    plugins::settle(&installed.cluster, before)?;
    wait(LIMIT, "three other GPUs to be published", || {
        let gpus = install::published(kube)?;
        let are_new = gpus.iter().all(|gpu| !installed.gpus.contains(gpu));
        ensure!(gpus.len() == 3 && are_new, "{} GPUs are published", gpus.len());
        Ok(Some(()))
    })?;
    kube.apply(&share())?;
    kube.apply(&pod("on-a-software-gpu", "client", &HOLD, "load"))?;
    kube.wait_running("on-a-software-gpu", LIMIT)?;
    kube.exec("on-a-software-gpu", &["sh", "-c", PROVES])?;
    configured(kube)?;
    instance(installed, kube)?;
    // Delete the pods now, because the plugin that the rollback restores does not know these GPUs.
    kube.run(&["delete", "pod", "on-a-software-gpu", "unified", "mig"])
        .map(drop)
}

/// The size is the chart's, the limit holds, and nothing says that it was checked.
fn configured(kube: &Kube<'_>) -> Result<()> {
    let sizes: Vec<u64> = install::published(kube)?
        .iter()
        .filter(|gpu| gpu.product == "Software GPU GB10")
        .map(|gpu| gpu.memory)
        .collect();
    ensure!(
        Some(&sizes[..]) == install::bytes("40Gi").as_ref().map(std::slice::from_ref),
        "{sizes:?}"
    );
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "unified"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {
            "deviceClassName": "vgpu", "capacity": {"requests": {"memory": "4Gi"}},
            "selectors": [{"cel": {"expression": "device.attributes['dra.vgpu'].memorySource == 'configured'"}}]}}]}}});
    let hold = ["vgpu-client", "hold", "1073741824"];
    let named = pod("unified", "client", &hold, "unified").replace("resourceClaimTemplateName", "resourceClaimName");
    kube.apply(&format!("{claim}\n---\n{named}"))?;
    kube.wait_running("unified", LIMIT)?;
    let line: Value = serde_json::from_str(&kube.exec("unified", &["vgpu-client", "check"])?)?;
    ensure!(
        line["total"].as_u64() == install::bytes("4Gi") && line["free"].as_u64() == install::bytes("3Gi"),
        "{line}"
    );
    wait(
        LIMIT,
        "MemoryEnforced to say that only the ledger holds the limit",
        || {
            let claim = kube.get(&["resourceclaim", "unified"])?;
            let conditions = claim["status"]["devices"][0]["conditions"].as_array().cloned();
            let mut memory = conditions
                .into_iter()
                .flatten()
                .filter(|of| of["type"] == "MemoryEnforced");
            let memory = memory.next().unwrap_or_default();
            ensure!(memory["status"] != "True", "{memory}");
            Ok((memory["reason"] == "LedgerOnly").then_some(()))
        },
    )
}

/// The instances of the fourth GPU, which is no device itself: the name and the taints of each.
fn instances(kube: &Kube<'_>) -> Result<Vec<(String, Vec<String>)>> {
    let slices = kube.get(&["resourceslices"])?;
    let all = slices["items"].as_array().cloned().unwrap_or_default();
    let devices = all
        .iter()
        .flat_map(|slice| slice["spec"]["devices"].as_array().cloned().unwrap_or_default());
    let instances = devices.filter(|device| device["attributes"]["type"]["string"] == "mig");
    let of = |device: Value| {
        let taints = device["taints"].as_array().cloned().unwrap_or_default();
        let keys = taints.iter().filter_map(|taint| taint["key"].as_str());
        let name = device["name"].as_str().unwrap_or_default().to_owned();
        (name, keys.map(str::to_owned).collect())
    };
    Ok(instances.map(of).collect())
}

/// The documented example gets the instance that is large enough, whole, and sees nothing else. One that is destroyed is tainted.
fn instance(installed: &Installed, kube: &Kube<'_>) -> Result<()> {
    let published = instances(kube)?;
    ensure!(published.len() == 2, "{published:?}");
    kube.apply(&workload::manifests(&install::example("mig"))?)?;
    kube.wait_running("mig", LIMIT)?;
    let line: Value = serde_json::from_str(&kube.exec("mig", &["vgpu-client", "check"])?)?;
    ensure!(line["total"].as_u64() == Some(HALF), "{line}");
    let caps = kube.exec("mig", &["ls", "/dev/nvidia-caps"])?;
    ensure!(caps.split_whitespace().count() == 2, "{caps}");
    let shares = workload::shares(kube)?;
    let of_pod = shares.iter().filter_map(|share| share.device.clone());
    let device = of_pod
        .filter(|device| device.starts_with("mig-"))
        .collect::<Vec<String>>();
    let [device] = &device[..] else {
        anyhow::bail!("{device:?}");
    };
    // The smaller one is not large enough for a second pod.
    let second = workload::manifests(&install::example("mig"))?;
    let second = second.replace("name: mig\n  labels", "name: second\n  labels");
    kube.apply(&second)?;
    wait(LIMIT, "the second pod to wait for an instance", || {
        let events = kube.get(&["events", "--field-selector", "involvedObject.name=second"])?;
        Ok(events.to_string().contains("FailedScheduling").then_some(()))
    })?;
    kube.run(&["delete", "pod", "second", "--wait=false"])?;
    let state = installed.cluster.node(Node::FIRST).path_inside(STATE)?;
    std::fs::write(state.join("control"), "gone 3 1\n").context("cannot write the control file")?;
    wait(LIMIT, "the destroyed instance to be tainted", || {
        let all = instances(kube)?;
        let found = all.iter().find(|(name, _)| name == device);
        Ok(found
            .is_some_and(|(_, taints)| taints.contains(&"dra.vgpu/lost".to_owned()))
            .then_some(()))
    })
}

//! The chart's `softGpu.gpus`: its init container puts software GPUs on the node, and pods have shares of them. One of them
//! has the system's memory, and its size is the chart's. Another one is in MIG mode, and a pod has one of its instances.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use vgpu_e2e::cluster::{Cluster, Node};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{image, install};

use crate::load::{PROVES, share};
use crate::manifests::{HOLD, pod};
use crate::mig;
use crate::plugins;
use crate::releases::roll_back;
use crate::shared::{self, Installed, LIMIT, Test};

pub(crate) const TESTS: &[Test] = &[(
    "the_chart_puts_software_gpus_on_a_node_and_pods_share_them",
    from_the_chart,
)];

/// The state folder differs from that of the cluster's own software GPU, so the GPUs differ too.
pub(crate) const STATE: &str = "/var/lib/soft-gpu/of-the-chart";
const VALUES: &str = "softGpu.gpus=4,gpuMemory.Software GPU GB10=40Gi";
/// The init container leaves it as it is. The driver lists processes; the third GPU's memory is also the system's, and the
/// fourth one has instances.
const PROFILE: &str = "gpus = 4\nnvml_pids = own\nunified = 2\nmig = 3: 3g.40gb@0, 1g.10gb@4\n";

fn from_the_chart() -> Result<()> {
    if shared::prepared().gpu.is_nvidia() {
        vgpu_skip::skip(
            "softgpu::the_chart_puts_software_gpus_on_a_node_and_pods_share_them",
            "the init container refuses this machine, which has a real driver",
        );
        return Ok(());
    }
    shared::in_namespace_of(shared::observed()?, "soft-gpu", |installed, kube| {
        on_gpus_of_the_chart(installed, kube, VALUES, PROFILE, || shares(installed, kube))
    })
}

/// Runs a test on other software GPUs, those of the chart with these values and this profile, and rolls back.
pub(crate) fn on_gpus_of_the_chart(
    installed: &Installed,
    kube: &Kube<'_>,
    values: &str,
    profile: &str,
    test: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let cluster = &installed.cluster;
    cluster.import(shared::prepared().archive_of(image::SOFT_GPU)?)?;
    let state = cluster.node(Node::FIRST).path_inside(STATE)?;
    std::fs::create_dir_all(&state).with_context(|| format!("cannot create {}", state.display()))?;
    std::fs::write(state.join("profile"), profile).context("cannot write the profile")?;
    let before = plugins::uids(cluster)?;
    let settled = upgrade(cluster, values).and_then(|()| plugins::settle(cluster, &before));
    let tested = settled.and_then(|_| test());
    let back = roll_back(cluster).and_then(|()| plugins::settle(cluster, &[]).map(drop));
    after(tested, back.and_then(|()| plugins::published(installed, kube)))
}

fn upgrade(cluster: &Cluster, values: &str) -> Result<()> {
    let chart = install::chart();
    let chart = chart.to_str().context("the clone's path is not UTF-8")?;
    let state = format!("driverRoot=/,softGpu.state={STATE},{values}");
    let upgrade = ["upgrade", install::NAME, chart, "--reuse-values", "--set", &state];
    Kube::new(cluster, install::NAME).helm(&upgrade).map(drop)
}

fn shares(installed: &Installed, kube: &Kube<'_>) -> Result<()> {
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
    mig::whole(installed, kube)?;
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
    memory_enforced(kube, "unified", "Unknown", "LedgerOnly")
}

/// Waits until a claim's condition says so; it is never True before.
pub(crate) fn memory_enforced(kube: &Kube<'_>, claim: &str, status: &str, reason: &str) -> Result<()> {
    let last = std::cell::RefCell::new(Value::Null);
    let what = format!("MemoryEnforced of {claim} to be {status} for the reason {reason}");
    let found = wait(LIMIT, &what, || {
        let claim = kube.get(&["resourceclaim", claim])?;
        let conditions = claim["status"]["devices"][0]["conditions"].as_array().cloned();
        let mut conditions = conditions.into_iter().flatten();
        let memory = conditions.find(|of| of["type"] == "MemoryEnforced").unwrap_or_default();
        ensure!(status == "True" || memory["status"] != "True", "{memory}");
        let is_there = memory["status"] == status && memory["reason"] == reason;
        last.replace(memory);
        Ok(is_there.then_some(()))
    });
    found.with_context(|| format!("the condition was {}", last.borrow()))
}

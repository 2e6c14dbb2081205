//! The chart's `softGpu.gpus`: its init container puts software GPUs on the node, and pods have shares of them. One of them
//! has the system's memory, and its size is the chart's.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use vgpu_e2e::install;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::wait::wait;

use crate::load::{PROVES, share};
use crate::manifests::{HOLD, pod};
use crate::of_chart::{STATE, on_gpus_of_the_chart};
use crate::shared::{self, Installed, LIMIT, Test, memory_enforced};

pub(crate) const TESTS: &[Test] = &[(
    "the_chart_puts_software_gpus_on_a_node_and_pods_share_them",
    from_the_chart,
)];

const VALUES: &str = "softGpu.gpus=3,gpuMemory.Software GPU GB10=40Gi";
/// The init container leaves it as it is. The driver lists processes; the third GPU's memory is also the system's.
const PROFILE: &str = "gpus = 3\nnvml_pids = own\nunified = 2\n";

fn from_the_chart() -> Result<()> {
    if shared::prepared().gpu.is_nvidia() {
        vgpu_skip::skip(
            "softgpu::the_chart_puts_software_gpus_on_a_node_and_pods_share_them",
            "the init container refuses this machine, which has a real driver",
        );
        return Ok(());
    }
    shared::in_namespace_of(shared::observed()?, "soft-gpu", |installed, kube| {
        on_gpus_of_the_chart(installed, kube, [STATE, VALUES, PROFILE], || shares(installed, kube))
    })
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
    // Delete the pods now, because the plugin that the rollback restores does not know these GPUs.
    kube.run(&["delete", "pod", "on-a-software-gpu", "unified"]).map(drop)
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

//! The chart's `softGpu.gpus`: its init container puts software GPUs on the node, and a pod has a share of one.

use anyhow::{Context, Result, ensure};
use vgpu_e2e::cluster::Cluster;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{image, install};

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
const VALUES: &str = "driverRoot=/,softGpu.gpus=3,softGpu.state=/var/lib/soft-gpu/of-the-chart";

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
    // Delete the pod now, because the plugin that the rollback restores does not know this GPU.
    kube.run(&["delete", "pod", "on-a-software-gpu"]).map(drop)
}

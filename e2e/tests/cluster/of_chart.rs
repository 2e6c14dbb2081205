//! Software GPUs that the chart puts on the node for a test, in place of the cluster's own.

use anyhow::{Context, Result};
use vgpu_e2e::cluster::{Cluster, Node};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::{image, install};

use crate::plugins;
use crate::releases::{revision, roll_back_to};
use crate::shared::{self, Installed};

/// The state folder differs from that of the cluster's own software GPU, so the GPUs differ too.
pub(crate) const STATE: &str = "/var/lib/soft-gpu/of-the-chart";

/// Runs a test on other software GPUs, those of the chart with this state folder, these values and this profile, and rolls back.
pub(crate) fn on_gpus_of_the_chart(
    installed: &Installed,
    kube: &Kube<'_>,
    [state, values, profile]: [&str; 3],
    test: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let cluster = &installed.cluster;
    cluster.import(shared::prepared().archive_of(image::SOFT_GPU)?)?;
    let inside = cluster.node(Node::FIRST).path_inside(state)?;
    std::fs::create_dir_all(&inside).with_context(|| format!("cannot create {}", inside.display()))?;
    std::fs::write(inside.join("profile"), profile).context("cannot write the profile")?;
    let (before, release) = (plugins::uids(cluster)?, revision(cluster)?);
    let values = format!("driverRoot=/,softGpu.state={state},{values}");
    let settled = upgrade(cluster, &values).and_then(|()| plugins::settle(cluster, &before));
    let tested = settled.and_then(|_| test());
    let back = roll_back_to(cluster, &release).and_then(|()| plugins::settle(cluster, &[]).map(drop));
    after(tested, back.and_then(|()| plugins::published(installed, kube)))
}

/// Upgrades the chart with these values beside the present ones.
pub(crate) fn upgrade(cluster: &Cluster, values: &str) -> Result<()> {
    let chart = install::chart();
    let chart = chart.to_str().context("the clone's path is not UTF-8")?;
    let upgrade = ["upgrade", install::NAME, chart, "--reuse-values", "--set", values];
    Kube::new(cluster, install::NAME).helm(&upgrade).map(drop)
}

//! The instances that NVML lists on the node of a cluster, beside those that claims were allocated.
//!
//! The plugin's own records are not asked: a record that is wrong would agree with itself.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use vgpu_e2e::cluster::{Cluster, Node};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::shell;
use vgpu_e2e::wait::wait;

use crate::shared::{self, LIMIT};

/// Software GPUs of the chart.
#[derive(Clone, Copy)]
pub(super) struct OfChart<'a> {
    pub(super) cluster: &'a Cluster,
    /// Their state folder on the node.
    pub(super) state: &'a str,
    /// NVML's index of the first one.
    pub(super) first: u64,
    pub(super) count: u64,
}

impl OfChart<'_> {
    fn indices(&self) -> std::ops::Range<u64> {
        self.first..self.first + self.count
    }

    /// Each GPU instance by GPU, profile and place, and its compute instances: `1 3g.40gb@4+0`.
    pub(super) fn instances(&self) -> Result<Vec<String>> {
        let client = vgpu_built_from::program("gpu-client");
        let client = client.to_str().context("a path that is not UTF-8")?;
        let mut command = self.cluster.node(Node::FIRST).inside(&[client]);
        command
            .args(self.indices().map(|gpu| format!("miglist:{gpu}")))
            .env("SOFT_GPU_STATE", self.state)
            .env("LD_LIBRARY_PATH", shared::prepared().dist.join("soft-gpu"));
        let said = shell::output(&mut command)?;
        let mut found = Vec::new();
        for (gpu, line) in self.indices().zip(said.lines()) {
            let listed = line.strip_prefix("miglist 0");
            let listed = listed.with_context(|| format!("NVML lists no instances of GPU {gpu}: {line}"))?;
            let places = listed.split_whitespace().filter_map(|one| one.split_once(':'));
            found.extend(places.map(|(_, place)| format!("{gpu} {place}")));
        }
        found.sort();
        Ok(found)
    }

    /// Waits until NVML lists the instances that claims of the namespace were allocated, and no other ones.
    pub(super) fn agrees(&self, kube: &Kube<'_>) -> Result<()> {
        wait(LIMIT, "NVML to list the instances that claims have", || {
            let (listed, allocated) = (self.instances()?, allocated(kube)?);
            ensure!(
                listed == allocated,
                "NVML lists {listed:?}, and claims have {allocated:?}"
            );
            Ok(Some(()))
        })
    }

    /// Has the driver act as these lines say (`soft-gpu/src/control.rs`).
    pub(super) fn control(&self, lines: &str) -> Result<()> {
        let folder = self.cluster.node(Node::FIRST).path_inside(self.state)?;
        let new = folder.join("control.new");
        std::fs::write(&new, lines).context("cannot write the control file")?;
        std::fs::rename(new, folder.join("control")).context("cannot replace the control file")
    }

    /// The folder of the plugin's records of instances, on the host.
    pub(super) fn records(&self) -> Result<Vec<PathBuf>> {
        let folder = self.cluster.node(Node::FIRST).path_inside("/var/lib/vgpu/mig")?;
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let files = files.map(|file| file.path());
        Ok(files
            .filter(|file| file.extension().is_some_and(|end| end == "json"))
            .collect())
    }
}

/// The instances that claims of the namespace were allocated and that claims make, as [`OfChart::instances`] has them.
fn allocated(kube: &Kube<'_>) -> Result<Vec<String>> {
    let published = published(kube)?;
    let claims = kube.get(&["resourceclaims"])?;
    let claims = claims["items"].as_array().cloned().unwrap_or_default();
    let mut found = Vec::new();
    for claim in &claims {
        let results = claim["status"]["allocation"]["devices"]["results"].as_array();
        for result in results.into_iter().flatten() {
            let name = result["device"].as_str().unwrap_or_default();
            if let Some(device) = published.get(name) {
                found.push(place(device)?);
            }
        }
    }
    found.sort();
    found.dedup(); // claims that share one
    Ok(found)
}

/// The published devices whose instances claims make, by name.
pub(super) fn published(kube: &Kube<'_>) -> Result<BTreeMap<String, Value>> {
    let slices = kube.get(&["resourceslices"])?;
    let slices = slices["items"].as_array().cloned().unwrap_or_default();
    let devices = slices.into_iter().flat_map(|mut slice| {
        slice["spec"]["devices"]
            .as_array_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    });
    let named = devices.filter_map(|device| Some((device["name"].as_str()?.to_owned(), device)));
    Ok(named.filter(|(name, _)| name.starts_with("mig-of-")).collect())
}

/// A device's instance as NVML lists it: with one compute instance.
fn place(device: &Value) -> Result<String> {
    let attributes = &device["attributes"];
    let text = |name: &str| {
        attributes[name]["string"]
            .as_str()
            .with_context(|| format!("no {name}: {device}"))
    };
    let start = text("placement")?.split(':').next().unwrap_or_default();
    let gpu = attributes["index"]["int"].as_u64().context("a device without index")?;
    Ok(format!("{gpu} {}@{start}+0", text("profile")?))
}

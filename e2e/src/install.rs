//! Installs this project on a cluster the way a user would: images, then the Helm chart.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cluster::{Cluster, Gpu, SOFT_GPU_STATE};
use crate::kube::Kube;
use crate::prepared::Prepared;
use crate::wait::wait;
use crate::{image, layout, patience};

/// The name of the namespace and of the release.
pub const NAME: &str = "dra-driver-vgpu";
const DRIVER: &str = "dra.vgpu";
const GI: u64 = 1 << 30;

/// Chart values that enable the translation of every dialect, in labelled namespaces.
pub const TRANSLATES: [&str; 2] = [
    "translate.dialects={hami,koordinator,volcano,volcano-vgpu,gpu-manager,kai}",
    "translate.schedulers={hami-scheduler,koord-scheduler,volcano,kai-scheduler}",
];

/// The clone's chart.
#[must_use]
pub fn chart() -> PathBuf {
    layout::workspace().join("deploy/helm/dra-driver-vgpu")
}

/// A documented example.
#[must_use]
pub fn example(name: &str) -> PathBuf {
    layout::workspace().join("deploy/examples").join(name)
}

/// A shareable GPU as published in its ResourceSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedGpu {
    pub node: String,
    pub device: String,
    pub product: String,
    pub memory: u64,
}

/// Imports the images, installs the chart with these additional values, and waits until the GPUs are published.
pub fn install(cluster: &Cluster, prepared: &Prepared, more: &[&str]) -> Result<Vec<PublishedGpu>> {
    // This cluster's nodes have the software GPU already, as a machine has its driver.
    let soft_gpu = prepared.archive_of(image::SOFT_GPU)?;
    for archive in prepared.images.archives.iter().filter(|archive| *archive != soft_gpu) {
        cluster.import(archive)?;
    }
    let kube = Kube::new(cluster, NAME);
    let chart = chart();
    let chart = chart.to_str().context("the clone's path is not UTF-8")?;
    let mut values = vec![
        // Each node has the images under this name.
        "images.registry=docker.io".to_owned(),
        "images.pullPolicy=Never".to_owned(),
        "images.tag=dev".to_owned(),
        format!("driverRoot={}", prepared.gpu.driver_root().display()),
    ];
    values.push(match prepared.gpu {
        Gpu::Soft(_) => format!("softGpu.state={SOFT_GPU_STATE}"),
        // Nothing labels the cluster's nodes.
        _ => "plugin.allNodes=true".to_owned(),
    });
    values.extend(more.iter().map(|value| (*value).to_owned()));
    let values = values.join(",");
    kube.helm(&[
        "install",
        NAME,
        chart,
        "--create-namespace",
        "--set",
        &values,
        "--wait",
        &patience::timeout(Duration::from_secs(90)),
    ])
    .map_err(|error| {
        error.context(format!(
            "the pods of the chart:\n{}",
            kube.run(&["describe", "pods"]).unwrap_or_default()
        ))
    })?;
    // Helm considers a DaemonSet ready even if as many pods are missing as an update may stop, so wait for all of them.
    kube.run(&[
        "rollout",
        "status",
        "daemonset",
        &patience::timeout(Duration::from_secs(60)),
    ])
    .with_context(|| kube.dump())?;
    wait(Duration::from_secs(60), "GPUs in a ResourceSlice", || {
        let gpus = published(&kube)?;
        Ok((!gpus.is_empty()).then_some(gpus))
    })
}

/// The shareable GPUs of all slices of our driver.
pub fn published(kube: &Kube<'_>) -> Result<Vec<PublishedGpu>> {
    Ok(gpus_of(&kube.get(&["resourceslices"])?))
}

fn gpus_of(slices: &Value) -> Vec<PublishedGpu> {
    let of = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let ours = of(slices, "items")
        .into_iter()
        .filter(|slice| slice["spec"]["driver"] == DRIVER);
    ours.flat_map(|slice| {
        let node = slice["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
        of(&slice["spec"], "devices")
            .into_iter()
            .map(move |device| (node.clone(), device))
    })
    .filter(|(_, device)| device["attributes"]["type"]["string"] == "gpu")
    .map(|(node, device)| PublishedGpu {
        node,
        device: device["name"].as_str().unwrap_or_default().to_owned(),
        product: device["attributes"]["productName"]["string"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        memory: device["capacity"]["memory"]["value"]
            .as_str()
            .and_then(bytes)
            .unwrap_or(0),
    })
    .collect()
}

/// Parses a whole quantity of bytes in Kubernetes' form: digits and a binary suffix.
#[must_use]
pub fn bytes(quantity: &str) -> Option<u64> {
    let digits = quantity.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &quantity[digits.len()..] {
        "" => 1,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => GI,
        "Ti" => 1 << 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_gpus_are_counted() {
        let device = |kind: &str| {
            serde_json::json!({"name": "gpu-1", "attributes": {"type": {"string": kind}, "productName": {"string": "P"}},
                "capacity": {"memory": {"value": "80Gi"}}})
        };
        let slices = serde_json::json!({"items": [
            {"spec": {"driver": "dra.vgpu", "nodeName": "node1", "devices": [device("gpu"), device("monitor")]}},
            {"spec": {"driver": "other", "devices": [device("gpu")]}},
        ]});
        let gpu = PublishedGpu {
            node: "node1".to_owned(),
            device: "gpu-1".to_owned(),
            product: "P".to_owned(),
            memory: 80 * GI,
        };
        assert_eq!(gpus_of(&slices), [gpu]);
    }

    #[test]
    fn quantities_as_the_api_server_prints_them() {
        assert_eq!(bytes("20Gi"), Some(20 * GI));
        assert_eq!(bytes("81559Mi"), Some(81_559 << 20));
        assert_eq!(bytes("5"), Some(5));
        assert_eq!(bytes("1.5Gi"), None);
        assert_eq!(bytes("1k"), None);
    }
}

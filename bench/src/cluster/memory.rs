//! Measures vgpu-controller's memory in a large cluster: hand-made nodes with GPUs, and pods with shares of these.
//!
//! This program writes all objects: pods with their node, claims with their allocation, as kube-scheduler and
//! vgpu-controller would have left them. The controller runs in scheduler mode meanwhile and is measured when its
//! watches have delivered everything. Then it is measured after a restart, when it has listed everything, in both
//! modes.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::{Value, json};

use super::deployed::{Deployed, Memory};
use super::fleet::{self, Fleet, Owner};
use crate::common::{NAMESPACE, machine, make_namespace, on_cluster};
use vgpu_e2e::cluster::Cluster;
use vgpu_e2e::hand_made;
use vgpu_e2e::install;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::prepared::Prepared;

const GPUS: usize = 8;
/// Shares per GPU.
const SHARES: usize = 4;

#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Size {
    /// Hand-made nodes, with eight GPUs each.
    #[arg(long, default_value_t = 1000)]
    nodes: usize,
    /// Pods with a quarter of a GPU each.
    #[arg(long, default_value_t = 10_000)]
    claims: usize,
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} hand-made nodes with {GPUS} GPUs, {} pods with a quarter of one",
            self.nodes, self.claims
        )
    }
}

pub(crate) fn run(name: &str, prepared: &Prepared, size: &Size) -> Result<()> {
    println!("machine: {}", machine());
    println!("{size}; VmRSS (highest so far) of each replica, MiB");
    on_cluster(name, prepared, |cluster| figures(cluster, prepared, *size))
}

fn figures(cluster: &Cluster, prepared: &Prepared, size: Size) -> Result<()> {
    let kube = Kube::new(cluster, NAMESPACE);
    make_namespace(&kube)?;
    install::install(cluster, prepared, &[])?;
    let deployed = Deployed::new(cluster);
    report(
        "scheduler mode, nothing but the cluster's own node",
        &deployed.memory_at_rest()?,
    );
    let begun = Instant::now();
    fill(&kube, size)?;
    eprintln!("written after {:.0} s", begun.elapsed().as_secs_f64());
    report("scheduler mode, when all had come", &deployed.memory_at_rest()?);
    deployed.start_anew(1)?;
    report("scheduler mode, restarted", &deployed.memory_at_rest()?);
    let chart = install::chart();
    let chart = chart.to_str().context("the clone's path is not UTF-8")?;
    Kube::new(cluster, install::NAME).helm(&[
        "upgrade",
        install::NAME,
        chart,
        "--reset-then-reuse-values",
        "--set",
        "allocator=controller",
    ])?;
    deployed.wait_for(2)?;
    report("controller mode, restarted", &deployed.memory_at_rest()?);
    Ok(())
}

fn report(what: &str, memory: &[Memory]) {
    let mib = |kib: u64| kib.div_ceil(1024);
    let each = memory
        .iter()
        .map(|of| format!("{} ({})", mib(of.resident), mib(of.peak)));
    println!("{what}: {}", each.collect::<Vec<_>>().join(", "));
}

/// Writes the cluster. Returns its nodes.
pub(super) fn fill(kube: &Kube<'_>, size: Size) -> Result<Fleet> {
    let room = size.nodes * GPUS * SHARES;
    ensure!(
        size.claims <= room,
        "--claims {}: {} nodes have room for {room}",
        size.claims,
        size.nodes
    );
    let fleet = Fleet {
        nodes: size.nodes,
        gpus: GPUS,
    };
    let numbers = || 0..size.claims;
    fleet.make_nodes(kube)?;
    fleet.publish(kube, Owner::Controller)?;
    fleet::write(kube, &["create"], &numbers().map(claim).collect::<Vec<_>>())?;
    let pods: Vec<Value> = numbers().map(|number| pod(number, size.nodes)).collect();
    fleet::write(kube, &["create"], &pods)?;
    let (pods, versions) = (
        of_each(kube, "pods", "uid")?,
        of_each(kube, "resourceclaims", "resourceVersion")?,
    );
    let allocated = numbers().map(|number| {
        let name = name(number);
        let uid = pods.get(&name).with_context(|| format!("pod {name} is gone"))?;
        let mut claim = allocated(number, size.nodes, uid);
        // With the version, kubectl need not read the object first.
        let version = versions.get(&name).with_context(|| format!("claim {name} is gone"))?;
        claim["metadata"]["resourceVersion"] = json!(version);
        Ok(claim)
    });
    let allocated = allocated.collect::<Result<Vec<_>>>()?;
    fleet::write(kube, &["replace", "--subresource=status"], &allocated)?;
    // A missing allocation would make the figures too small.
    let template = r#"{{range .items}}{{if .status.allocation}}x{{"\n"}}{{end}}{{end}}"#;
    let there = kube.run(&["get", "resourceclaims", "-o", "go-template", "--template", template])?;
    ensure!(
        there.lines().count() == size.claims,
        "{} claims are allocated instead of {}",
        there.lines().count(),
        size.claims
    );
    Ok(fleet)
}

/// A metadata field of each object, by name.
fn of_each(kube: &Kube<'_>, kind: &str, field: &str) -> Result<BTreeMap<String, String>> {
    let template =
        format!(r#"{{{{range .items}}}}{{{{.metadata.name}}}} {{{{.metadata.{field}}}}}{{{{"\n"}}}}{{{{end}}}}"#);
    let lines = kube.run(&["get", kind, "-o", "go-template", "--template", &template])?;
    let pairs = lines.lines().filter_map(|line| line.split_once(' '));
    Ok(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

fn name(number: usize) -> String {
    format!("share-{number:05}")
}

fn claim(number: usize) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name(number), "namespace": NAMESPACE,
            "finalizers": ["resource.kubernetes.io/delete-protection"],
            "annotations": {"dra.vgpu/epoch": "made-by-hand#1"}},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu",
            "capacity": {"requests": hand_made::quarter()}}}]}}})
}

fn pod(number: usize, nodes: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name(number), "namespace": NAMESPACE, "labels": {"app": "share"}}, "spec": {
        "nodeName": Fleet::node(number % nodes),
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "main", "image": "dra-driver-vgpu/pause:dev",
            "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name(number)}]}})
}

/// A claim as vgpu-controller allocates it, after it has released its hold.
fn allocated(number: usize, nodes: usize, pod: &str) -> Value {
    let (node, share) = (Fleet::node(number % nodes), number / nodes);
    let mut consumed = hand_made::quarter();
    consumed["shares"] = json!("1");
    let result = json!({"request": "gpu", "driver": "dra.vgpu", "pool": hand_made::pool(&node),
        "device": hand_made::device(share % GPUS), "shareID": format!("00000000-0000-4000-8000-{number:012}"),
        "consumedCapacity": consumed,
        "tolerations": [fleet::toleration()]});
    let mut claim = claim(number);
    claim["status"] = json!({
        "allocation": {"devices": {"results": [result]}, "allocationTimestamp": "2026-01-02T00:00:00Z",
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": [node]}]}]}},
        "reservedFor": [{"resource": "pods", "name": name(number), "uid": pod}]});
    claim
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_gpu_is_given_more_than_once_in_full() {
        let (nodes, mut given) = (10, BTreeMap::<String, usize>::new());
        for number in 0..nodes * GPUS * SHARES {
            let claim = allocated(number, nodes, "u");
            let result = &claim["status"]["allocation"]["devices"]["results"][0];
            assert_eq!(
                claim["status"]["reservedFor"][0]["name"],
                pod(number, nodes)["metadata"]["name"]
            );
            *given
                .entry(format!("{} {}", result["pool"], result["device"]))
                .or_default() += 1;
        }
        assert_eq!(given.len(), nodes * GPUS);
        assert!(given.values().all(|shares| *shares == SHARES));
    }
}

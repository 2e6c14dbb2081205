//! Controller mode and what a pod needs elsewhere: CPU, labels, taints, other pods.

use anyhow::{Result, bail, ensure};
use serde_json::json;

use crate::fleet::{create, many, node_of_pod, on_fleet, wait_bound};
use crate::shared::Test;

pub(crate) const TESTS: &[Test] = &[("controller_looks_at_what_a_pod_needs_elsewhere", needs_elsewhere)];

/// Each pod fits on one node alone, by another rule each.
fn needs_elsewhere() -> Result<()> {
    let seen = on_fleet("elsewhere", 3, |_, kube, fleet| {
        let nodes: Vec<String> = fleet.nodes().collect();
        let [first, second, third] = nodes.as_slice() else {
            bail!("three nodes")
        };
        let is_on = |pod: &str, wanted: &str| -> Result<()> {
            wait_bound(kube, &[pod])?;
            let node = node_of_pod(kube, pod)?;
            ensure!(node == *wanted, "{pod} is on {node} instead of {wanted}");
            Ok(())
        };
        kube.run(&["label", "node", second, "disk=fast"])?;
        let mut selected = fleet.pod("selected", "1");
        selected["spec"]["nodeSelector"]["disk"] = json!("fast");
        create(kube, &many(vec![fleet.filler("full", first), selected]))?;
        is_on("selected", second)?;
        // Not beside it, and not where the CPU is full.
        let mut apart = fleet.pod("apart", "1");
        apart["spec"]["affinity"] = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"role": "selected"}}}]}});
        kube.run(&["label", "pod", "selected", "role=selected"])?;
        create(kube, &apart.to_string())?;
        is_on("apart", third)?;
        // A taint that it does not tolerate, on two of three.
        let mut intolerant = fleet.pod("intolerant", "1");
        intolerant["spec"]["tolerations"] = json!([{"key": "node.kubernetes.io/not-ready", "operator": "Exists"},
            {"key": "node.kubernetes.io/unreachable", "operator": "Exists"}]);
        for node in [first, third] {
            kube.run(&["taint", "node", node, "example.com/mine=yes:NoSchedule"])?;
        }
        create(kube, &intolerant.to_string())?;
        is_on("intolerant", second)
    });
    seen.map(drop)
}

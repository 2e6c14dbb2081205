//! The cluster's part of `make bench`: how long a node, a pod and a Prepare take, on a cluster of its own.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::cluster::Cluster;
use crate::install;
use crate::kube::{Kube, wait};
use crate::prepared::Prepared;

const NAMESPACE: &str = "bench";
const PODS: usize = 20;
const ROUNDS: &str = "1000";

/// Brings a cluster up, prints the figures, takes it down. `prepare_bench` is the kubelet plugin's example program.
pub fn run(name: &str, prepared: &Prepared, prepare_bench: &Path) -> Result<()> {
    let start = Instant::now();
    let cluster = Cluster::up(prepared.config(name))?;
    println!("node Ready after {:.1} s", start.elapsed().as_secs_f64());
    let outcome = figures(&cluster, prepared, prepare_bench);
    cluster.down()?;
    outcome
}

fn figures(cluster: &Cluster, prepared: &Prepared, prepare_bench: &Path) -> Result<()> {
    install::install(cluster, prepared)?;
    let kube = Kube::new(cluster, NAMESPACE);
    kube.run(&["create", "namespace", NAMESPACE])?;
    wait(Duration::from_secs(60), "the namespace's service account", || {
        kube.run(&["get", "serviceaccount", "default"]).map(Some)
    })?;
    kube.apply(TEMPLATE)?;
    pods(&kube)?;
    let program = prepare_bench
        .to_str()
        .context("the path of prepare_bench is not UTF-8")?;
    let status = cluster
        .inside(&[
            program,
            "--node",
            crate::cluster::NODE,
            "--namespace",
            NAMESPACE,
            "--rounds",
            ROUNDS,
        ])
        .status()
        .context("cannot run nsenter")?;
    anyhow::ensure!(status.success(), "{program}: {status}");
    Ok(())
}

/// With a claim and without, in turns, so that a machine that changes its pace meets both alike.
fn pods(kube: &Kube<'_>) -> Result<()> {
    let (mut plain, mut claimed) = (Vec::new(), Vec::new());
    for round in 0..PODS {
        plain.push(start(kube, &format!("plain-{round}"), false)?);
        claimed.push(start(kube, &format!("claim-{round}"), true)?);
    }
    let (plain, claimed) = (median(plain), median(claimed));
    println!("kubectl create to running, median of {PODS}: plain pod {plain:.0} ms, pod with a claim {claimed:.0} ms");
    println!("difference {:+.0} ms, ratio {:.2}", claimed - plain, claimed / plain);
    Ok(())
}

/// Milliseconds from `kubectl create` until a watch shows the container running; the pod is gone afterwards.
fn start(kube: &Kube<'_>, name: &str, claim: bool) -> Result<f64> {
    let manifest = manifest(name, claim);
    let start = Instant::now();
    let said = kube.try_run_with_input(&["create", "-f", "-"], &manifest)?;
    anyhow::ensure!(said.status.success(), "kubectl create {name}: {}", said.stderr.trim());
    kube.run(&[
        "wait",
        "--for=jsonpath={.status.containerStatuses[0].state.running}",
        "--timeout=60s",
        &format!("pod/{name}"),
    ])
    .with_context(|| kube.describe(name))?;
    let taken = start.elapsed().as_secs_f64() * 1000.0;
    kube.run(&["delete", "pod", name, "--timeout=60s"])?;
    Ok(taken)
}

fn manifest(name: &str, claim: bool) -> String {
    let mut pod = serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "dnsPolicy": "Default", "terminationGracePeriodSeconds": 0, "containers": [{
            "name": "main", "image": "dra-driver-vgpu/client:dev", "command": ["sleep", "600"]}]}});
    if claim {
        pod["spec"]["resourceClaims"] = serde_json::json!([{"name": "gpu", "resourceClaimTemplateName": "bench"}]);
        pod["spec"]["containers"][0]["resources"] = serde_json::json!({"claims": [{"name": "gpu"}]});
    }
    pod.to_string()
}

const TEMPLATE: &str = r#"{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
    "metadata": {"name": "bench"}, "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly":
    {"deviceClassName": "vgpu", "capacity": {"requests": {"memory": "1Gi", "cores": "5"}}}}]}}}}"#;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        (values[middle - 1] + values[middle]) / 2.0
    } else {
        values[middle]
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_middle_is_found_among_even_and_odd() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(vec![4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < f64::EPSILON);
    }
}

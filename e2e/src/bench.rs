//! The cluster's part of `make bench`: how long a node, a pod and a Prepare take, on a cluster of its own.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::cluster::Cluster;
use crate::install;
use crate::kube::{Kube, wait};
use crate::prepared::Prepared;

const NAMESPACE: &str = "bench";
const PODS: usize = 20;
const ROUNDS: &str = "1000";
/// For a pod to run.
const LIMIT: Duration = Duration::from_secs(60);
const SETTLE: Duration = Duration::from_secs(2);
const COLUMNS: &str = "custom-columns=NAME:.metadata.name,RUNNING:.status.containerStatuses[0].state.running.startedAt";

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
    install::install(cluster, prepared, &[])?;
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

/// With a claim and without, in turns, so that a machine that changes its pace meets both alike. One
/// watch sees all of them: a kubectl that starts beside a pod would take the CPU that the pod needs.
fn pods(kube: &Kube<'_>) -> Result<()> {
    let mut watch = kube
        .command(["get", "pods", "--watch", "--no-headers", "--output", COLUMNS])?
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run kubectl")?;
    let running = seen(watch.stdout.take().context("kubectl has no stdout")?);
    let measured = in_turns(kube, &running);
    // It watches until it is told to end.
    let _ = watch.kill();
    watch.wait().context("kubectl get --watch")?;
    let (plain, claimed) = measured?;
    println!("kubectl create to running, median of {PODS}: plain pod {plain:.0} ms, pod with a claim {claimed:.0} ms");
    println!("difference {:+.0} ms, ratio {:.2}", claimed - plain, claimed / plain);
    Ok(())
}

fn in_turns(kube: &Kube<'_>, running: &Receiver<(String, Instant)>) -> Result<(f64, f64)> {
    let (mut plain, mut claimed) = (Vec::new(), Vec::new());
    for round in 0..PODS {
        plain.push(start(kube, running, &format!("plain-{round}"), false)?);
        claimed.push(start(kube, running, &format!("claim-{round}"), true)?);
    }
    Ok((median(plain), median(claimed)))
}

/// Names of pods whose container runs, and when the watch said so.
fn seen(output: impl std::io::Read + Send + 'static) -> Receiver<(String, Instant)> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if let [name, since] = line.split_whitespace().collect::<Vec<_>>()[..]
                && since != "<none>"
                && sender.send((name.to_owned(), Instant::now())).is_err()
            {
                return;
            }
        }
    });
    receiver
}

/// Milliseconds from `kubectl create` until the watch shows the container running; the pod is gone afterwards.
fn start(kube: &Kube<'_>, running: &Receiver<(String, Instant)>, name: &str, claim: bool) -> Result<f64> {
    let manifest = manifest(name, claim);
    let start = Instant::now();
    let said = kube.try_run_with_input(&["create", "-f", "-"], &manifest)?;
    anyhow::ensure!(said.status.success(), "kubectl create {name}: {}", said.stderr.trim());
    let at = loop {
        let left = LIMIT.saturating_sub(start.elapsed());
        match running.recv_timeout(left) {
            Ok((pod, at)) if pod == name => break at,
            Ok(_) => {}
            Err(_) => anyhow::bail!(
                "pod {name} does not run after {} s\n{}",
                LIMIT.as_secs(),
                kube.describe(name)
            ),
        }
    };
    kube.run(&["delete", "pod", name, "--timeout=60s"])?;
    // Its claim goes after it, which is work for the controllers and the node.
    std::thread::sleep(SETTLE);
    Ok(at.duration_since(start).as_secs_f64() * 1000.0)
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

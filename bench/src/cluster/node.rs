//! Measures a node's start, a pod's start and a Prepare.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_openapi::jiff::Timestamp;

use crate::common::{NAMESPACE, machine, make_namespace, median, on_cluster};
use vgpu_e2e::cluster::{Cluster, Node};
use vgpu_e2e::install;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::patience;
use vgpu_e2e::prepared::Prepared;

const PODS: usize = 20;
const ROUNDS: &str = "1000";
/// Time for a pod to start.
const LIMIT: Duration = Duration::from_secs(60);
const SETTLE: Duration = Duration::from_secs(2);
const COLUMNS: &str = "custom-columns=NAME:.metadata.name,RUNNING:.status.containerStatuses[0].state.running.startedAt";

/// `prepare` is the program bench-prepare.
pub(crate) fn run(name: &str, prepared: &Prepared, prepare: &Path) -> Result<()> {
    let start = Instant::now();
    on_cluster(name, prepared, |cluster| {
        println!("node Ready after {:.1} s", start.elapsed().as_secs_f64());
        figures(cluster, prepared, prepare)
    })
}

/// `webhook` is the program bench-webhook.
pub(crate) fn translate(name: &str, prepared: &Prepared, webhook: &Path) -> Result<()> {
    println!("machine: {}", machine());
    on_cluster(name, prepared, |cluster| {
        install::install(cluster, prepared, &install::TRANSLATES)?;
        let kube = Kube::new(cluster, NAMESPACE);
        make_namespace(&kube)?;
        kube.run(&["label", "namespace", NAMESPACE, "dra.vgpu/translate=true"])?;
        kube.apply(TEMPLATE)?;
        pods(
            &kube,
            [("pod with a claim", Asks::Claim), ("translated pod", Asks::Hami)],
        )?;
        inside(cluster, webhook, &["--namespace", NAMESPACE])
    })
}

/// Milliseconds from the kubelet's registration of the plugin to its published slices, by the plugin's log.
fn registered_to_published(cluster: &Cluster) -> Result<i128> {
    let log = Kube::new(cluster, install::NAME).run(&[
        "logs",
        "--selector=app.kubernetes.io/component=plugin",
        "--tail=-1",
    ])?;
    let time_of = |words: &str| -> Result<Timestamp> {
        let line = log.lines().find(|line| line.contains(words));
        let line = line.with_context(|| format!("the plugin's log has no {words:?}: {log}"))?;
        let time = line.split_whitespace().next().unwrap_or_default();
        time.parse().with_context(|| format!("no time at the begin of: {line}"))
    };
    let registered = time_of("kubelet has registered the plugin")?;
    let published = time_of("ResourceSlices are up to date")?;
    Ok((published.as_nanosecond() - registered.as_nanosecond()) / 1_000_000)
}

/// Measures pods of ten teams, then the same number of pods of one team, whose quota then has all reservations.
pub(crate) fn quota(name: &str, prepared: &Prepared, gates: &Path) -> Result<()> {
    println!("machine: {}", machine());
    on_cluster(name, prepared, |cluster| {
        install::install(cluster, prepared, &["quota.enabled=true"])?;
        let many: Vec<String> = (0..10).map(|number| format!("{NAMESPACE}-{number}")).collect();
        for namespaces in [&many[..], &[NAMESPACE.to_owned()]] {
            let mut arguments = Vec::new();
            for namespace in namespaces {
                with_quota(cluster, namespace)?;
                arguments.extend(["--namespace", namespace]);
            }
            println!("namespaces count {}", namespaces.len());
            inside(cluster, gates, &arguments)?;
        }
        Ok(())
    })
}

/// Creates a namespace with a quota in force.
fn with_quota(cluster: &Cluster, name: &str) -> Result<()> {
    let kube = Kube::new(cluster, name);
    make_namespace(&kube)?;
    kube.apply(QUOTA)?;
    let label = "--for=jsonpath={.metadata.labels.dra\\.vgpu/quota}";
    kube.run(&["wait", "--timeout=60s", label, "namespace", name]).map(drop)
}

/// Runs a program in the cluster's namespaces.
fn inside(cluster: &Cluster, program: &Path, arguments: &[&str]) -> Result<()> {
    let program = program.to_str().context("the path of a program is not UTF-8")?;
    let mut command = vec![program];
    command.extend(arguments);
    let status = cluster.node(Node::FIRST).inside(&command).status();
    let status = status.context("cannot run nsenter")?;
    anyhow::ensure!(status.success(), "{program}: {status}");
    Ok(())
}

/// How a pod requests its GPU.
#[derive(Clone, Copy)]
enum Asks {
    Nothing,
    Claim,
    Hami,
}

fn figures(cluster: &Cluster, prepared: &Prepared, prepare: &Path) -> Result<()> {
    install::install(cluster, prepared, &[])?;
    println!("registered_to_published ms {}", registered_to_published(cluster)?);
    let kube = Kube::new(cluster, NAMESPACE);
    make_namespace(&kube)?;
    kube.apply(TEMPLATE)?;
    pods(&kube, [("plain pod", Asks::Nothing), ("pod with a claim", Asks::Claim)])?;
    let node = Node::FIRST.name();
    let arguments = ["--node", &node, "--namespace", NAMESPACE, "--rounds", ROUNDS];
    inside(cluster, prepare, &arguments)
}

/// Starts two kinds of pods in turns, so that a machine whose speed changes affects both equally. One watch sees all of
/// them: a kubectl started for each pod would take CPU time from the pod.
fn pods(kube: &Kube<'_>, kinds: [(&str, Asks); 2]) -> Result<()> {
    let mut watch = kube
        .command(["get", "pods", "--watch", "--no-headers", "--output", COLUMNS])?
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run kubectl")?;
    let running = seen(watch.stdout.take().context("kubectl has no stdout")?);
    let measured = in_turns(kube, &running, kinds.map(|(_, asks)| asks));
    // kubectl's watch runs until it is killed.
    let _ = watch.kill();
    watch.wait().context("kubectl get --watch")?;
    let [first, second] = measured?;
    let [(one, _), (other, _)] = kinds;
    println!("kubectl create to running, median of {PODS}: {one} {first:.0} ms, {other} {second:.0} ms");
    println!("difference {:+.0} ms, ratio {:.2}", second - first, second / first);
    Ok(())
}

fn in_turns(kube: &Kube<'_>, running: &Receiver<(String, Instant)>, kinds: [Asks; 2]) -> Result<[f64; 2]> {
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..PODS {
        for (kind, (asks, times)) in kinds.into_iter().zip(&mut times).enumerate() {
            times.push(start(kube, running, &format!("pod-{kind}-{round}"), asks)?);
        }
    }
    Ok(times.map(median))
}

/// Receives names of pods whose container runs, with the time of the watch's event.
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

/// Milliseconds from `kubectl create` until the watch shows the container running. Waits until the pod is deleted.
fn start(kube: &Kube<'_>, running: &Receiver<(String, Instant)>, name: &str, asks: Asks) -> Result<f64> {
    let manifest = manifest(name, asks);
    let limit = patience::stretched(LIMIT);
    let start = Instant::now();
    let said = kube.try_run_with_input(&["create", "-f", "-"], &manifest)?;
    anyhow::ensure!(said.status.success(), "kubectl create {name}: {}", said.stderr.trim());
    let at = loop {
        let left = limit.saturating_sub(start.elapsed());
        match running.recv_timeout(left) {
            Ok((pod, at)) if pod == name => break at,
            Ok(_) => {}
            Err(_) => anyhow::bail!(
                "pod {name} does not run after {} s\n{}",
                limit.as_secs(),
                kube.describe(name)
            ),
        }
    };
    kube.run(&["delete", "pod", name, &patience::timeout(LIMIT)])?;
    // The claim is deleted after the pod, which is work for the controllers and the node.
    std::thread::sleep(SETTLE);
    Ok(at.duration_since(start).as_secs_f64() * 1000.0)
}

fn manifest(name: &str, asks: Asks) -> String {
    let mut pod = serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "dnsPolicy": "Default", "terminationGracePeriodSeconds": 0, "containers": [{
            "name": "main", "image": "dra-driver-vgpu/client:dev", "command": ["sleep", "600"]}]}});
    let resources = &mut pod["spec"]["containers"][0]["resources"];
    match asks {
        Asks::Nothing => {}
        Asks::Claim => {
            *resources = serde_json::json!({"claims": [{"name": "gpu"}]});
            pod["spec"]["resourceClaims"] = serde_json::json!([{"name": "gpu", "resourceClaimTemplateName": "bench"}]);
        }
        Asks::Hami => {
            let limits = serde_json::json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024, "nvidia.com/gpucores": 5});
            *resources = serde_json::json!({ "limits": limits });
        }
    }
    pod.to_string()
}

/// A quota with room for all pods of bench-gates.
const QUOTA: &str = r#"{"apiVersion": "dra.vgpu/v1alpha1", "kind": "VgpuQuota", "metadata": {"name": "vgpu"},
    "spec": {"hard": {"memory": "4Ti"}}}"#;
const TEMPLATE: &str = r#"{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
    "metadata": {"name": "bench"}, "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly":
    {"deviceClassName": "vgpu", "capacity": {"requests": {"memory": "1Gi", "cores": "5"}}}}]}}}}"#;

//! Two real nodes: pods are spread and packed, and a node dies, comes back, is drained and upgraded.
//!
//! The second node joins the shared clusters with the first of these tests and stays until the end, so these are the
//! last tests of each cluster.

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};
use vgpu_e2e::cluster::{Node, NodeHandle};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{install, node, patience, shell, workload};

use crate::fleet::{TAKEOVER, claim_of, clear, name_of, node_of_claim, node_of_pod};
use crate::manifests::{HOLD, config, pod, template};
use crate::shared::{self, Installed, LIMIT, Test};

pub(crate) const ON_KUBE_SCHEDULER: &[Test] = &[
    ("nodes_fill_up_and_each_claim_is_prepared_on_its_own", fill),
    ("nodes_get_pods_that_spread_and_pack_as_they_ask", spread_and_pack),
    ("nodes_that_die_keep_their_shares_until_they_are_back", node_dies),
    ("nodes_that_are_drained_keep_nothing_and_are_used_again", drain),
    ("nodes_are_upgraded_under_running_pods", upgrade),
];

pub(crate) const IN_CONTROLLER_MODE: &[Test] =
    &[("nodes_are_packed_and_spread_over_by_the_controllers_policy", by_policy)];

/// The request in these tests: a quarter of a GPU.
const QUARTER: &str = "20Gi";
const HOSTNAME: &str = "kubernetes.io/hostname";

/// The second node, with its GPUs published.
fn second(installed: &'static Installed) -> Result<NodeHandle<'static>> {
    let node = installed.cluster.node(Node::SECOND);
    if node.runs() && !node.is_ready()? {
        node.end()?; // an earlier test has failed in the middle
    }
    if !node.runs() {
        node.start(&shared::prepared().images.archives)?;
    }
    let kube = Kube::new(&installed.cluster, install::NAME);
    wait(LIMIT, "the GPUs of the second node to be published", || {
        let gpus = install::published(&kube)?;
        Ok(gpus.iter().any(|gpu| gpu.node == node.name()).then_some(()))
    })?;
    Ok(node)
}

/// Returns true, and reports the test as skipped, if both nodes would publish this machine's GPUs.
fn skips(test: &str) -> bool {
    let skips = shared::prepared().gpu.is_nvidia();
    if skips {
        vgpu_skip::skip(test, "two nodes on one machine would publish the same real GPUs");
    }
    skips
}

/// Runs a test with two nodes in its own namespace, which has the template `t` for a quarter.
fn on_two(name: &str, test: impl FnOnce(&Installed, &Kube<'_>, &NodeHandle<'_>) -> Result<()>) -> Result<()> {
    if skips(name) {
        return Ok(());
    }
    let installed = shared::installed()?;
    let second = second(installed)?;
    shared::in_namespace_of(installed, name, |installed, kube| {
        kube.apply(&template("t", "vgpu", json!({"memory": QUARTER}), &[]))?;
        test(installed, kube, &second)
    })
}

/// A Deployment whose pods have a share each, with more fields for the pods' spec.
pub(crate) fn deployment(name: &str, replicas: usize, command: &[&str], more: &Value) -> Result<String> {
    let text = pod(name, "client", command, "t");
    let text = text.split("\n---").next().context("a pod without text")?;
    let mut spec = serde_json::from_str::<Value>(text)?["spec"].take();
    spec["restartPolicy"] = json!("Always");
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
    let labels = json!({"app": name});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": spec}}});
    Ok(format!("{deployment}\n---\n"))
}

/// Fields for pods that prefer the second node, and leave a node as soon as it is unreachable.
fn rather_second(node: &NodeHandle<'_>) -> Value {
    let on = json!({"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [node.name()]}]});
    let gone = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0});
    json!({
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 100, "preference": on}]}},
        "tolerations": [gone("node.kubernetes.io/unreachable"), gone("node.kubernetes.io/not-ready")]})
}

/// Running pods of the namespace that are not being deleted, each with its node.
fn placed(kube: &Kube<'_>) -> Result<Vec<(String, String)>> {
    let pods = kube.get(&["pods"])?;
    let pods = pods["items"].as_array().cloned().unwrap_or_default();
    let runs = |pod: &&Value| pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null();
    let of = |pod: &Value| {
        let node = pod["spec"]["nodeName"].as_str().context("a pod that runs nowhere")?;
        Ok((name_of(pod)?.to_owned(), node.to_owned()))
    };
    pods.iter().filter(runs).map(of).collect()
}

/// Waits until the only running pod of the namespace is on that node. Returns its name.
fn only_pod_on(kube: &Kube<'_>, node: &str) -> Result<String> {
    wait(TAKEOVER, &format!("the pod to run on {node}"), || {
        match &placed(kube)?[..] {
            [(pod, on)] if on == node => Ok(Some(pod.clone())),
            other => Err(anyhow!("these run: {other:?}")),
        }
    })
}

fn sees_its_quarter(kube: &Kube<'_>, pod: &str) -> Result<()> {
    let line: Value = serde_json::from_str(&kube.exec(pod, &["vgpu-client", "check"])?)?;
    let total = &line["total"];
    ensure!(
        total.as_u64() == install::bytes(QUARTER),
        "{pod} sees {total} instead of {QUARTER}"
    );
    Ok(())
}

/// Checks that this number of claims is allocated, each on its pod's node, and prepared only there.
fn each_on_its_own_node(installed: &Installed, kube: &Kube<'_>, count: usize) -> Result<()> {
    let mut shares = workload::shares(kube)?;
    shares.retain(|share| share.device.is_some());
    ensure!(
        shares.len() == count,
        "{} claims are allocated instead of {count}",
        shares.len()
    );
    for share in shares {
        let claim = kube.get(&["resourceclaim", &share.claim])?;
        let node = node_of_pod(kube, &share.pod)?;
        let allocated = node_of_claim(&claim).unwrap_or_default();
        ensure!(
            allocated == node,
            "{} runs on {node} with a GPU of {allocated}",
            share.pod
        );
        let prepared = node::prepared_on(&installed.cluster, &share.claim_uid)?;
        let prepared: Vec<String> = prepared.iter().map(NodeHandle::name).collect();
        ensure!(
            prepared == [node.clone()],
            "{}, on {node}, is prepared on {prepared:?}",
            share.claim
        );
    }
    Ok(())
}

fn fill() -> Result<()> {
    if !shared::prepared().gpu.is_nvidia() {
        // The controller allocates a new node's GPUs only 30 s after they appeared, so the last test's node joins
        // here.
        second(shared::controlled()?)?;
    }
    on_two("two-nodes-full", |installed, kube, _| {
        let gpus = install::published(kube)?;
        kube.apply(&deployment("quarter", gpus.len() * 4 + 1, &HOLD, &json!({}))?)?;
        workload::settle(kube, gpus.len() * 4, 1, LIMIT)?;
        let by_device = workload::by_device(&workload::shares(kube)?);
        ensure!(
            by_device.len() == gpus.len() && by_device.values().all(|pods| pods.len() == 4),
            "four pods a GPU of {} were to run: {by_device:?}",
            gpus.len()
        );
        each_on_its_own_node(installed, kube, gpus.len() * 4)?;
        placed(kube)?
            .iter()
            .try_for_each(|(pod, _)| sees_its_quarter(kube, pod))
    })
}

fn spread_and_pack() -> Result<()> {
    on_two("two-nodes-placed", |installed, kube, _| {
        let labels = |app: &str| json!({"matchLabels": {"app": app}});
        let spread = json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": HOSTNAME,
            "whenUnsatisfiable": "DoNotSchedule", "labelSelector": labels("apart")}]});
        let pack = json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": HOSTNAME, "labelSelector": labels("together")}]}}});
        kube.apply(&(deployment("apart", 4, &HOLD, &spread)? + &deployment("together", 5, &HOLD, &pack)?))?;
        workload::settle(kube, 9, 0, LIMIT)?;
        each_on_its_own_node(installed, kube, 9)?;
        let count = |app: &str| -> Result<Vec<usize>> {
            let placed = placed(kube)?;
            let on = |node: Node| {
                let name = installed.cluster.node(node).name();
                placed
                    .iter()
                    .filter(|(pod, on)| pod.starts_with(app) && *on == name)
                    .count()
            };
            Ok(vec![on(Node::FIRST), on(Node::SECOND)])
        };
        let (apart, together) = (count("apart")?, count("together")?);
        ensure!(apart == [2, 2], "pods that spread are {apart:?} on the nodes");
        ensure!(together.contains(&5), "pods that pack are {together:?} on the nodes");
        Ok(())
    })
}

/// Kubelet and plugin die while the container keeps running: its pod is replaced on another node, and its share is not
/// allocated again. Then the whole node loses power and comes back.
fn node_dies() -> Result<()> {
    on_two("node-dies", |installed, kube, second| {
        let hold = ["vgpu-client", "hold", "1073741824"];
        kube.apply(&deployment("moves", 1, &hold, &rather_second(second))?)?;
        let dead = only_pod_on(kube, &second.name())?;
        let claim = name_of(&claim_of(kube, &dead)?)?.to_owned();
        let uid = kube.run(&["get", "resourceclaim", &claim, "-o", "jsonpath={.metadata.uid}"])?;
        second.stop("kubelet")?;
        shell::run(&mut second.inside(&["pkill", "-KILL", "-x", "vgpu-kubelet-pl"]))?;

        let replacement = only_pod_on(kube, &installed.cluster.node(Node::FIRST).name())?;
        ensure!(replacement != dead, "{dead} has moved");
        sees_its_quarter(kube, &replacement)?;
        // The cluster cannot know whether its container has ended. It has not.
        shell::run(&mut second.inside(&["pgrep", "-f", "vgpu-client hold 1073741824"]))
            .context("the container of the dead node has ended")?;
        let kept = kube.get(&["resourceclaim", &claim])?;
        ensure!(
            node_of_claim(&kept) == Some(&second.name()) && kept["status"]["reservedFor"][0]["name"] == dead.as_str(),
            "a share whose container still runs was given back: {kept}"
        );

        second.end()?;
        second.start(&shared::prepared().images.archives)?;
        wait(TAKEOVER, "the claim of the dead pod to go", || {
            let said = kube.try_run(&["get", "resourceclaim", &claim])?;
            Ok(said.stderr.contains("NotFound").then_some(()))
        })?;
        wait(LIMIT, "the node to forget it", || {
            let left = node::left_of(&installed.cluster, std::slice::from_ref(&uid))?;
            ensure!(left.is_empty(), "left: {left:?}");
            Ok(Some(()))
        })?;
        // All of its GPUs can be allocated again.
        let gpus = install::published(kube)?;
        let room = 4 * gpus.iter().filter(|gpu| gpu.node == second.name()).count();
        let there = json!({"nodeSelector": {HOSTNAME: second.name()}});
        kube.apply(&deployment("again", room, &HOLD, &there)?)?;
        workload::settle(kube, room + 1, 0, TAKEOVER)?;
        each_on_its_own_node(installed, kube, room + 1)
    })
}

fn drain() -> Result<()> {
    on_two("node-drained", |installed, kube, second| {
        kube.apply(&deployment("moves", 1, &HOLD, &rather_second(second))?)?;
        let before = only_pod_on(kube, &second.name())?;
        let uid = claim_of(kube, &before)?["metadata"]["uid"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let name = second.name();
        let drained = kube.run(&[
            "drain",
            &name,
            "--ignore-daemonsets",
            "--delete-emptydir-data",
            &patience::timeout(LIMIT),
        ]);
        let moved = drained.and_then(|_| only_pod_on(kube, &installed.cluster.node(Node::FIRST).name()));
        kube.run(&["uncordon", &name])?;
        sees_its_quarter(kube, &moved?)?;
        wait(LIMIT, "the drained node to forget the claim", || {
            let left = node::left_of(&installed.cluster, std::slice::from_ref(&uid))?;
            ensure!(left.is_empty(), "left: {left:?}");
            Ok(Some(()))
        })?;
        kube.run(&["delete", "deployment", "moves"])?;
        kube.apply(&deployment("back", 1, &HOLD, &rather_second(second))?)?;
        sees_its_quarter(kube, &only_pod_on(kube, &name)?)
    })
}

fn upgrade() -> Result<()> {
    on_two("nodes-upgraded", |installed, kube, _| {
        let hold = ["vgpu-client", "hold", "1073741824"];
        let apart = json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": HOSTNAME,
            "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "before"}}}]});
        kube.apply(&deployment("before", 2, &hold, &apart)?)?;
        workload::settle(kube, 2, 0, LIMIT)?;
        let project = Kube::new(&installed.cluster, install::NAME);
        let plugins = || -> Result<Vec<String>> {
            let names = "jsonpath={.items[*].metadata.name}";
            let said = project.run(&["get", "pods", "-l", "app.kubernetes.io/component=plugin", "-o", names])?;
            Ok(said.split_whitespace().map(str::to_owned).collect())
        };
        let old = plugins()?;
        let chart = install::chart();
        let chart = chart.to_str().context("the clone's path is not UTF-8")?;
        let value = "plugin.podAnnotations.upgraded=yes";
        project.helm(&["upgrade", install::NAME, chart, "--reuse-values", "--set-string", value])?;
        project.run(&["rollout", "status", "daemonset", &patience::timeout(TAKEOVER)])?;
        // Each new plugin first runs together with the old one, which ends after the rollout is complete.
        wait(TAKEOVER, "the plugins of before to end", || {
            let new = plugins()?;
            ensure!(
                new.len() == 2 && !new.iter().any(|name| old.contains(name)),
                "the plugins before were {old:?} and are {new:?}"
            );
            Ok(Some(()))
        })?;
        let pods = kube.get(&["pods"])?;
        for pod in pods["items"].as_array().context("no pods")? {
            let restarts = &pod["status"]["containerStatuses"][0]["restartCount"];
            ensure!(*restarts == 0, "{} was restarted {restarts} times", name_of(pod)?);
            sees_its_quarter(kube, name_of(pod)?)?;
        }
        let after = apart.to_string().replace("before", "after");
        kube.apply(&deployment("after", 2, &HOLD, &serde_json::from_str(&after)?)?)?;
        workload::settle(kube, 4, 0, TAKEOVER)?;
        each_on_its_own_node(installed, kube, 4)
    })
}

fn by_policy() -> Result<()> {
    if skips("nodes_are_packed_and_spread_over_by_the_controllers_policy") {
        return Ok(());
    }
    let installed = shared::controlled()?;
    let second = second(installed)?;
    shared::in_namespace_of(installed, "two-nodes-by-policy", |installed, kube| {
        // Returns the number of GPUs on which this number of quarters was placed.
        let gpus_of = |policy: &str, pods: usize, more: &Value| -> Result<usize> {
            let parameters = config(&json!({"allocationPolicy": policy}));
            kube.apply(&template(
                "t",
                "vgpu",
                json!({"memory": QUARTER}),
                &[("dra.vgpu", parameters)],
            ))?;
            kube.apply(&deployment(policy, pods, &HOLD, more)?)?;
            workload::settle(kube, pods, 0, TAKEOVER)?;
            each_on_its_own_node(installed, kube, pods)?;
            let gpus = workload::by_device(&workload::shares(kube)?).len();
            kube.run(&["delete", "deployment", policy])?;
            kube.run(&["delete", "resourceclaimtemplate", "t"])?;
            clear(kube)?;
            Ok(gpus)
        };
        // Wait until the controller allocates the GPUs of the new node.
        gpus_of("first-fit", 1, &json!({"nodeSelector": {HOSTNAME: second.name()}}))?;
        let packed = gpus_of("binpack", 4, &json!({}))?;
        ensure!(packed == 1, "four quarters are packed on {packed} GPUs");
        let (spread, gpus) = (gpus_of("spread", 4, &json!({}))?, install::published(kube)?.len());
        ensure!(spread == gpus, "four quarters are spread over {spread} of {gpus} GPUs");
        Ok(())
    })
}

//! Karpenter beside this driver (docs/autoscaling.md). Its own provider makes Node objects, and kwok plays their kubelets.
//!
//! ```text
//! vgpu slices --like, --gpu ─► e2e/tools/karpenter ─► NodeClaim ─► Node ─► its slices ─► the pod is bound there
//!
//! install ─► from zero ─► packing ─► another GPU ─► too large ─► consolidation ─► stopped ─► back ─► killed halfway
//!         ─► all nodes gone ─► removed: as before, and a pod with a share runs
//! ```
//! No plugin runs on such a node: its pods are allocated and bound, and kwok says that they run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{install, layout, patience};

use crate::beside::{self, items};
use crate::explain::vgpu;
use crate::fleet::{TAKEOVER, name_of, node_of_claim, wait_for_event};
use crate::manifests::{HOLD, pod_object, template};
use crate::nodes::deployment;
use crate::shared::{self, Installed, LIMIT, Test};

pub(crate) const ON_KUBE_SCHEDULER: &[Test] = &[("karpenter_makes_and_removes_nodes_for_shares", || {
    beside_karpenter(
        "karpenter::karpenter_makes_and_removes_nodes_for_shares",
        "karpenter-shares",
        shared::installed,
        "",
    )
})];

pub(crate) const IN_CONTROLLER_MODE: &[Test] = &[("karpenter_in_controller_mode", || {
    beside_karpenter(
        "karpenter::karpenter_in_controller_mode",
        "karpenter-controlled",
        shared::controlled,
        "controller",
    )
})];

/// The namespaces, each with the name of its release.
const KARPENTER: &str = "karpenter";
const KWOK: &str = "kwok";
/// The name of the NodePool.
const POOL: &str = "gpus";
/// The instance types with GPUs: of this cluster's node, and of the table of `vgpu slices`.
const LIKE_HERE: &str = "gpu.node";
const H100: &str = "h100.node";
const H100_NAME: &str = "NVIDIA H100 80GB HBM3";
/// Time for a consolidation, which Karpenter begins when it thinks that the cluster is quiet.
const CONSOLIDATED: Duration = Duration::from_secs(420);

/// `allocator`: the value of the taint `dra.vgpu/allocator` on new nodes' GPUs, as the plugin sets it.
fn beside_karpenter(
    test: &str,
    namespace: &str,
    cluster: fn() -> Result<&'static Installed>,
    allocator: &str,
) -> Result<()> {
    if beside::skips(test, "karpenter") {
        return Ok(());
    }
    shared::in_namespace_of(cluster()?, namespace, |installed, kube| {
        let before = objects(kube)?;
        let karpenter = Karpenter::new(installed);
        let outcome = karpenter
            .install(installed, allocator)
            .and_then(|()| scenes(kube, &karpenter))
            .map_err(|error| anyhow!("{error:#}\n{}", karpenter.state(kube)));
        after(outcome, karpenter.remove(kube))?;
        wait(LIMIT, "the cluster to be as before", || {
            let left: Vec<_> = objects(kube)?.difference(&before).cloned().collect();
            ensure!(left.is_empty(), "left: {}", left.join(", "));
            Ok(Some(()))
        })?;
        on_the_machine(kube, "without-karpenter")
    })
}

fn scenes(kube: &Kube<'_>, karpenter: &Karpenter<'_>) -> Result<()> {
    for (name, memory) in [("five", "5Gi"), ("t", "40Gi"), ("too-large", "90Gi")] {
        kube.apply(&template(name, "vgpu", json!({"memory": memory}), &[]))?;
    }
    from_zero(kube)?;
    packing(kube)?;
    another_gpu(kube)?;
    too_large(kube)?;
    consolidation(kube)?;
    stopped_and_back(kube, karpenter)?;
    killed_halfway(kube, karpenter)?;
    all_gone(kube)
}

/// The objects that Karpenter and kwok may leave behind, by kind and name.
fn objects(kube: &Kube<'_>) -> Result<BTreeSet<String>> {
    let kinds = "nodes,resourceslices,namespaces,customresourcedefinitions,clusterroles,clusterrolebindings,roles,\
        rolebindings,leases,flowschemas";
    let said = kube.run(&["get", kinds, "--all-namespaces", "--output=name"])?;
    Ok(said.lines().map(str::to_owned).collect())
}

/// Karpenter and kwok on a cluster, by their own charts.
struct Karpenter<'a> {
    system: Kube<'a>,
    kwok: Kube<'a>,
}

impl<'a> Karpenter<'a> {
    fn new(installed: &'a Installed) -> Self {
        Self {
            system: Kube::new(&installed.cluster, KARPENTER),
            kwok: Kube::new(&installed.cluster, KWOK),
        }
    }

    fn install(&self, installed: &Installed, allocator: &str) -> Result<()> {
        for name in ["karpenter", "kwok"] {
            // Their charts name no command.
            beside::import(installed, name, "pause")?;
        }
        self.kinds(&["apply", "--server-side"])?;
        let (karpenter, kwok) = (beside::program("karpenter")?, beside::program("kwok")?);
        let image = |name: &str, at: &str, policy: &str| {
            let image = format!("{at}.repository={},{at}.tag={}", beside::repository(name), beside::TAG);
            vec![image, format!("{policy}=Never")]
        };
        let charts = kwok.module.join("charts");
        let here = image("kwok", "image", "image.pullPolicy");
        beside::install(&self.kwok, "kwok", &charts.join("kwok"), None, &here)?;
        beside::install(&self.kwok, "stages", &charts.join("stage-fast"), None, &[])?;
        self.system.create_namespace()?;
        self.configure(installed, allocator)?;
        let here = image("karpenter", "controller.image", "imagePullPolicy");
        let (chart, values) = (karpenter.module.join("kwok/charts"), file("values.yaml"));
        beside::install(&self.system, "karpenter", &chart, Some(&values), &here)?;
        let pool = file("pool.yaml");
        let pool = std::fs::read_to_string(&pool).with_context(|| format!("cannot read {}", pool.display()))?;
        self.system.apply(&pool)
    }

    /// Runs kubectl on the files with the kinds of both programs.
    fn kinds(&self, words: &[&str]) -> Result<()> {
        let (karpenter, kwok) = (beside::program("karpenter")?, beside::program("kwok")?);
        for folder in [
            karpenter.module.join("kwok/charts/crds"),
            karpenter.module.join("kwok/apis/crds"),
            kwok.module.join("kustomize/crd/bases"),
        ] {
            let folder = folder.to_str().context("a path that is not UTF-8")?;
            self.system.run(&[words, &["-f", folder]].concat())?;
        }
        Ok(())
    }

    /// Writes the instance types and the templates of their slices.
    fn configure(&self, installed: &Installed, allocator: &str) -> Result<()> {
        let node = installed.gpus.first().context("no GPU is published")?.node.clone();
        // Karpenter takes templates of two types in a pool of one name for the same devices, and asks selectors once.
        let slices = |of: &str, words: &[&str]| -> Result<String> {
            let said = vgpu(installed, &[&["slices", "-o", "json", "--name", of], words].concat())?;
            ensure!(said.status.success(), "vgpu slices {words:?}: {}", said.stderr);
            Ok(said.stdout)
        };
        let types = file("types.json");
        let types = std::fs::read_to_string(&types).with_context(|| format!("cannot read {}", types.display()))?;
        for (name, data) in [
            ("types", json!({"types.json": types})),
            (
                "slices",
                json!({format!("{LIKE_HERE}.json"): slices(LIKE_HERE, &["--like", &node])?,
                    format!("{H100}.json"): slices(H100, &["--gpu", "H100-80GB:2"])?}),
            ),
            ("mode", json!({"allocator": allocator})),
        ] {
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data});
            self.system.apply(&object.to_string())?;
        }
        Ok(())
    }

    /// Starts or ends Karpenter's only replica.
    fn scale(&self, replicas: &str) -> Result<()> {
        let name = "deployment/karpenter";
        self.system.run(&["scale", name, &format!("--replicas={replicas}")])?;
        match replicas {
            "0" => wait(LIMIT, "Karpenter to end", || {
                let pods = self.system.get(&["pods"])?;
                Ok(items(&pods).is_empty().then_some(()))
            }),
            _ => {
                let limit = patience::timeout(LIMIT * 2);
                self.system.run(&["rollout", "status", name, &limit]).map(drop)
            }
        }
    }

    /// Returns the objects that explain a failure, as text.
    fn state(&self, kube: &Kube<'_>) -> String {
        let mut text = String::new();
        for (kube, words) in [
            (
                kube,
                ["get", "nodes,nodeclaims,pods,resourceclaims", "-o", "wide"].as_slice(),
            ),
            (kube, &["get", "nodeclaims", "-o", "yaml"]),
            (&self.system, &["logs", "deployment/karpenter", "--tail=80"]),
            (&self.kwok, &["logs", "deployment/kwok-controller", "--tail=20"]),
        ] {
            let said = kube.run(words).unwrap_or_else(|error| format!("{error:#}"));
            text.push_str(&format!("$ kubectl {}\n{said}\n", words.join(" ")));
        }
        text
    }

    /// Takes both off the cluster. Karpenter removes its nodes while it runs, and nobody else takes its finalizers off.
    fn remove(&self, kube: &Kube<'_>) -> Result<()> {
        let limit = patience::timeout(TAKEOVER);
        let emptied = kube
            .run(&["delete", "deployments,pods", "--all", &limit])
            .and_then(|_| kube.run(&["delete", "nodepools,nodeclaims,kwoknodeclasses", "--all", &limit]))
            .map(drop);
        let ended = after(
            beside::uninstall(&self.system, "karpenter"),
            beside::delete_namespace(&self.system),
        );
        let kwok = after(
            beside::uninstall(&self.kwok, "stages"),
            beside::uninstall(&self.kwok, "kwok"),
        );
        let gone = after(after(ended, kwok), beside::delete_namespace(&self.kwok));
        after(
            after(emptied, gone),
            self.kinds(&["delete", "--ignore-not-found", &limit]),
        )
    }
}

fn file(name: &str) -> std::path::PathBuf {
    layout::workspace().join("e2e/tests/cluster/karpenter").join(name)
}

/// A pod of this template that only runs on Karpenter's nodes.
fn on_new_nodes(name: &str, template: &str) -> Result<String> {
    let mut pod = pod_object(name, &HOLD, template)?;
    for (key, value) in only_new_nodes().as_object().into_iter().flatten() {
        pod["spec"][key] = value.clone();
    }
    Ok(pod.to_string())
}

fn only_new_nodes() -> Value {
    json!({"nodeSelector": {"karpenter.sh/nodepool": POOL},
        "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}]})
}

/// The types of Karpenter's nodes, by name.
fn nodes(kube: &Kube<'_>) -> Result<BTreeMap<String, String>> {
    let found = kube.get(&["nodes", "-l", &format!("karpenter.sh/nodepool={POOL}")])?;
    let of = |node: &Value| {
        let kind = &node["metadata"]["labels"]["node.kubernetes.io/instance-type"];
        Ok((name_of(node)?.to_owned(), kind.as_str().unwrap_or_default().to_owned()))
    };
    items(&found).iter().map(of).collect()
}

/// Waits until Karpenter has exactly nodes of these types, each with its NodeClaim.
fn wait_nodes(kube: &Kube<'_>, limit: Duration, wanted: &[&str]) -> Result<()> {
    wait(limit, &format!("nodes of the types {wanted:?}"), || {
        let mut types: Vec<_> = nodes(kube)?.into_values().collect();
        types.sort();
        let claims = kube.get(&["nodeclaims"])?;
        match types == wanted && items(&claims).len() == wanted.len() {
            true => Ok(Some(())),
            false => bail!("nodes of {types:?}, {} NodeClaims", items(&claims).len()),
        }
    })
}

/// Waits until this many pods of the namespace run, each on Karpenter's node that has its GPU. Returns the nodes of the pods.
fn wait_placed(kube: &Kube<'_>, limit: Duration, count: usize) -> Result<BTreeMap<String, String>> {
    let placed = wait(limit, &format!("{count} pods to run"), || {
        let pods = kube.get(&["pods"])?;
        let of = |pod: &Value| {
            Some((
                name_of(pod).ok()?.to_owned(),
                pod["spec"]["nodeName"].as_str()?.to_owned(),
            ))
        };
        let runs = |pod: &&Value| pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null();
        let placed: BTreeMap<_, _> = items(&pods).iter().filter(runs).filter_map(of).collect();
        match placed.len() == count && items(&pods).len() == count {
            true => Ok(Some(placed)),
            false => bail!("{} of {} run", placed.len(), items(&pods).len()),
        }
    })?;
    let claims = kube.get(&["resourceclaims"])?;
    let mut used: BTreeMap<(String, String), u64> = BTreeMap::new();
    for claim in items(&claims) {
        let pod = claim["metadata"]["ownerReferences"][0]["name"]
            .as_str()
            .unwrap_or_default();
        let Some(node) = placed.get(pod) else { continue };
        ensure!(
            node_of_claim(claim) == Some(node),
            "{pod} is on {node} with a GPU of {:?}",
            node_of_claim(claim)
        );
        let result = &claim["status"]["allocation"]["devices"]["results"][0];
        let memory = result["consumedCapacity"]["memory"].as_str().and_then(install::bytes);
        let gpu = (node.clone(), result["device"].to_string());
        *used.entry(gpu).or_default() += memory.with_context(|| format!("{pod} consumes {result}"))?;
    }
    let most = install::bytes("80Gi").unwrap_or_default();
    ensure!(
        used.values().all(|memory| *memory <= most),
        "more than a GPU has: {used:?}"
    );
    Ok(placed)
}

/// Prints how long something took, for docs/autoscaling.md.
fn took(what: &str, begun: Instant) {
    println!("karpenter: {what} after {} s", begun.elapsed().as_secs());
}

/// A pod with a share gets a node with GPUs, although one without costs less.
fn from_zero(kube: &Kube<'_>) -> Result<()> {
    let begun = Instant::now();
    // A Deployment: a pod alone does not come back after a consolidation.
    let mut small = only_new_nodes();
    small["resourceClaims"] = json!([{"name": "gpu", "resourceClaimTemplateName": "five"}]);
    kube.apply(&deployment("first", 1, &HOLD, &small)?)?;
    wait_placed(kube, TAKEOVER, 1)?;
    took("from zero: a pod of 5Gi runs", begun);
    wait_nodes(kube, LIMIT, &[LIKE_HERE])
}

/// Five halves beside it: three fit on its node, and two get one node more.
fn packing(kube: &Kube<'_>) -> Result<()> {
    let begun = Instant::now();
    kube.apply(&deployment("halves", 5, &HOLD, &only_new_nodes())?)?;
    let placed = wait_placed(kube, TAKEOVER, 6)?;
    took("packing: five pods of 40Gi run", begun);
    wait_nodes(kube, LIMIT, &[LIKE_HERE, LIKE_HERE])?;
    let on = |node: &String| placed.values().filter(|other| *other == node).count();
    let first = placed
        .iter()
        .find(|(pod, _)| pod.starts_with("first"))
        .map(|(_, node)| on(node));
    ensure!(first == Some(4), "{first:?} pods are on the first node: {placed:?}");
    Ok(())
}

/// A pod that selects a product gets the type of node that has it. It goes with the pod. The pod takes both of its GPUs:
/// else Karpenter might move others there, and save one of their nodes.
fn another_gpu(kube: &Kube<'_>) -> Result<()> {
    let product = format!("device.attributes[\"dra.vgpu\"].productName == \"{H100_NAME}\"");
    let exactly = json!({"deviceClassName": "vgpu", "count": 2, "selectors": [{"cel": {"expression": product}}]});
    let object = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "h100"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}}});
    kube.apply(&object.to_string())?;
    let begun = Instant::now();
    kube.apply(&on_new_nodes("chooses", "h100")?)?;
    wait_placed(kube, TAKEOVER, 7)?;
    took("another GPU: a pod that selects it runs", begun);
    wait_nodes(kube, LIMIT, &[LIKE_HERE, LIKE_HERE, H100])?;
    kube.run(&["delete", "pod", "chooses"])?;
    let begun = Instant::now();
    wait_nodes(kube, CONSOLIDATED, &[LIKE_HERE, LIKE_HERE])?;
    took("empty: the node is gone", begun);
    Ok(())
}

/// No GPU has as much: Karpenter says so, and makes no node.
fn too_large(kube: &Kube<'_>) -> Result<()> {
    let before = nodes(kube)?;
    kube.apply(&on_new_nodes("large", "too-large")?)?;
    wait_for_event(kube, "large", "FailedScheduling", &["no instance type can satisfy"])?;
    let large = kube.get(&["pod", "large"])?;
    ensure!(
        large["spec"]["nodeName"].is_null(),
        "large is bound: {}",
        large["spec"]["nodeName"]
    );
    ensure!(nodes(kube)? == before, "{:?} became {:?}", before, nodes(kube)?);
    kube.run(&["delete", "pod", "large"])?;
    wait_nodes(kube, Duration::ZERO, &[LIKE_HERE, LIKE_HERE])
}

/// With two halves fewer all fit on one node: Karpenter evicts the others, which get shares there, and removes a node.
fn consolidation(kube: &Kube<'_>) -> Result<()> {
    let begun = Instant::now();
    kube.run(&["scale", "deployment", "halves", "--replicas=3"])?;
    wait_nodes(kube, CONSOLIDATED, &[LIKE_HERE])?;
    wait_placed(kube, TAKEOVER, 4)?;
    took("consolidation: one node of two is left", begun);
    Ok(())
}

/// Without Karpenter, shares are given as before: only new nodes are missing, until it is back.
fn stopped_and_back(kube: &Kube<'_>, karpenter: &Karpenter<'_>) -> Result<()> {
    let before = wait_placed(kube, LIMIT, 4)?;
    karpenter.scale("0")?;
    kube.apply(&on_new_nodes("beside", "five")?)?;
    let placed = wait_placed(kube, LIMIT, 5)?;
    ensure!(
        before.iter().all(|(pod, node)| placed.get(pod) == Some(node)),
        "{before:?} became {placed:?}"
    );
    on_the_machine(kube, "here")?;
    kube.run(&["delete", "pod", "here"])?;
    kube.run(&["scale", "deployment", "halves", "--replicas=4"])?;
    wait(LIMIT, "a half to wait", || {
        let waiting = pending(kube)?;
        Ok((waiting.len() == 1 && !kube.events(&waiting[0], "FailedScheduling")?.is_empty()).then_some(()))
    })?;
    wait_nodes(kube, Duration::ZERO, &[LIKE_HERE])?;
    karpenter.scale("1")?;
    wait_placed(kube, TAKEOVER, 6)?;
    wait_nodes(kube, LIMIT, &[LIKE_HERE, LIKE_HERE])
}

fn pending(kube: &Kube<'_>) -> Result<Vec<String>> {
    let phases = kube.phases()?;
    Ok(phases
        .into_iter()
        .filter(|(_, phase)| phase == "Pending")
        .map(|(name, _)| name)
        .collect())
}

/// Killed once it has decided on a node, Karpenter goes on with it, and makes no second one.
fn killed_halfway(kube: &Kube<'_>, karpenter: &Karpenter<'_>) -> Result<()> {
    kube.apply(&on_new_nodes("chooses", "h100")?)?;
    wait(TAKEOVER, "a third NodeClaim", || {
        let claims = kube.get(&["nodeclaims"])?;
        Ok((items(&claims).len() == 3).then_some(()))
    })?;
    karpenter
        .system
        .run(&["delete", "pods", "--all", "--force", "--grace-period=0"])?;
    wait_placed(kube, TAKEOVER, 7)?;
    wait_nodes(kube, LIMIT, &[LIKE_HERE, LIKE_HERE, H100])
}

/// Without pods Karpenter removes all nodes.
fn all_gone(kube: &Kube<'_>) -> Result<()> {
    let begun = Instant::now();
    kube.run(&["delete", "deployments,pods", "--all"])?;
    wait_nodes(kube, CONSOLIDATED, &[])?;
    took("all empty: every node is gone", begun);
    Ok(())
}

/// A pod with a share runs on the machine's own node.
fn on_the_machine(kube: &Kube<'_>, name: &str) -> Result<()> {
    kube.apply(&pod_object(name, &HOLD, "five")?.to_string())?;
    kube.wait_running(name, LIMIT)
}

//! Hand-made nodes with GPUs, and operations on them for tests.
//!
//! ```text
//! on_fleet ─ namespace ─ nodes and slices ─ checker ─► the test ─► every pod deleted, every claim freed ─► the sums
//! ```
//! Nothing runs on such a node: its pods are only bound. They tolerate every taint, so they do not mind that no
//! kubelet keeps the node ready.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};
use vgpu_e2e::hand_made;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::wait::wait;

use crate::checker::{Checker, Given, Seen, SoFar};
use crate::manifests::template;
use crate::shared::{self, Installed, LIMIT};

/// Time for events that may need a new leader first: it waits until the lease expires, and for writes that its
/// predecessor may have sent.
pub(crate) const TAKEOVER: Duration = Duration::from_secs(120);
/// Time for many pods: claims are created from templates at 20 per second.
pub(crate) const ALL_BOUND: Duration = Duration::from_secs(240);
/// The template for `quarter`, which exists in every fleet's namespace.
pub(crate) const QUARTER: &str = "quarter";
/// Quarters that fit on a node.
pub(crate) const ROOM: usize = 4 * GPUS;

const GPUS: usize = 2;
const CPU: &str = "32";

/// Nodes with two GPUs each, which are deleted when this is dropped.
pub(crate) struct Fleet<'a> {
    kube: Kube<'a>,
    name: &'static str,
    size: usize,
    so_far: SoFar,
}

/// The component that allocates a node's GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The controller, with an old taint: its GPUs can be allocated at once.
    Settled,
    /// The controller from now on, by the server's clock.
    Controller,
    Released,
    Scheduler,
}

impl Mode {
    /// The taints that the plugin would publish. The server adds a missing time.
    pub(crate) fn taints(self) -> Value {
        match self {
            Self::Settled => json!([hand_made::settled()]),
            Self::Controller => json!([hand_made::taint("controller")]),
            Self::Released => json!([hand_made::taint("released")]),
            Self::Scheduler => json!([]),
        }
    }
}

fn slice(fleet: &str, node: &str, mode: Mode) -> Value {
    let gpu = |number: usize| {
        json!({"name": format!("gpu-{number}"), "allowMultipleAllocations": true,
            "attributes": {"type": {"string": "gpu"}}, "capacity": hand_made::capacity(),
            "taints": mode.taints()})
    };
    hand_made::slice(fleet, node, &(0..GPUS).map(gpu).collect::<Vec<_>>())
}

/// Combines many objects for one call of kubectl.
pub(crate) fn many(items: Vec<Value>) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// Runs `kubectl create`, which does not read the objects first.
pub(crate) fn create(kube: &Kube<'_>, manifests: &str) -> Result<()> {
    write(kube, "create", manifests)
}

fn write(kube: &Kube<'_>, verb: &str, manifests: &str) -> Result<()> {
    let said = kube.try_run_with_input(&[verb, "-f", "-"], manifests)?;
    match said.status.success() {
        true => Ok(()),
        false => Err(anyhow!("kubectl {verb}: {}", said.stderr.trim())),
    }
}

impl<'a> Fleet<'a> {
    pub(crate) fn new(kube: Kube<'a>, name: &'static str, size: usize) -> Result<Self> {
        let fleet = Self {
            kube,
            name,
            size,
            so_far: SoFar::default(),
        };
        let nodes = fleet.nodes().map(|node| hand_made::node(name, &node, CPU));
        let slices = fleet.nodes().map(|node| slice(name, &node, Mode::Settled));
        create(&fleet.kube, &many(nodes.chain(slices).collect()))?;
        Ok(fleet)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = String> + use<> {
        let name = self.name;
        (0..self.size).map(move |number| format!("{name}-{number:03}"))
    }

    /// The allocations so far.
    pub(crate) fn given(&self) -> Vec<Given> {
        self.so_far.given()
    }

    /// Publishes the GPUs of these nodes again, in this mode.
    pub(crate) fn turn(&self, nodes: &[String], mode: Mode) -> Result<()> {
        let slices = nodes.iter().map(|node| slice(self.name, node, mode));
        write(&self.kube, "replace", &many(slices.collect()))
    }

    /// The labels by which the fleet's nodes, slices and device classes are deleted.
    pub(crate) fn label(&self) -> Value {
        json!({"fleet": self.name})
    }

    /// A pod that waits for a quarter of a GPU and for some CPU, only on this fleet.
    pub(crate) fn pod(&self, name: &str, cpu: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "nodeSelector": {"fleet": self.name},
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "dra-driver-vgpu/pause:dev",
                "resources": {"requests": {"cpu": cpu}, "claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": QUARTER}]}})
    }

    /// A pod that cannot be bound for a reason that the controller does not check: a missing volume.
    pub(crate) fn stuck(&self, name: &str) -> Value {
        let mut pod = self.pod(name, "100m");
        pod["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "nobody-made-it"}}]);
        pod
    }

    /// Such pods, for one call of kubectl.
    pub(crate) fn pods<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> String {
        many(names.into_iter().map(|name| self.pod(name, "100m")).collect())
    }

    /// A pod that is already bound without a scheduler, and uses all CPU of its node.
    pub(crate) fn filler(&self, name: &str, node: &str) -> Value {
        let mut pod = self.pod(name, "31900m");
        pod["spec"]["nodeName"] = json!(node);
        pod["spec"]["nodeSelector"] = json!({});
        pod["spec"]["resourceClaims"] = json!([]);
        pod["spec"]["containers"][0]["resources"]["claims"] = json!([]);
        pod
    }
}

impl Drop for Fleet<'_> {
    fn drop(&mut self) {
        let selector = format!("fleet={}", self.name);
        for kind in ["resourceslices", "nodes", "deviceclasses"] {
            if let Err(error) = self.kube.run(&["delete", kind, "-l", &selector, "--wait=false"]) {
                eprintln!(
                    "{kind} of {} may be left for the tests that follow: {error:#}",
                    self.name
                );
            }
        }
    }
}

/// Runs a test with this number of nodes in its own namespace, on the cluster of the controller. Even if the test
/// itself failed, nothing may have been allocated twice at any version of any claim, and every claim must be freed.
pub(crate) fn on_fleet(
    name: &'static str,
    size: usize,
    test: impl FnOnce(&Installed, &Kube<'_>, &Fleet<'_>) -> Result<()>,
) -> Result<Seen> {
    on_watched_fleet(name, size, Checker::begin, test)
}

/// The same with a checker that watches differently.
pub(crate) fn on_watched_fleet(
    name: &'static str,
    size: usize,
    watch: impl FnOnce(&Kube<'_>) -> Result<Checker>,
    test: impl FnOnce(&Installed, &Kube<'_>, &Fleet<'_>) -> Result<()>,
) -> Result<Seen> {
    let mut seen = None;
    shared::in_namespace_of(shared::controlled()?, name, |installed, kube| {
        let mut fleet = Fleet::new(*kube, name, size)?;
        let checker = watch(kube)?;
        fleet.so_far = checker.so_far();
        kube.apply(&template(QUARTER, "vgpu", hand_made::quarter(), &[]))?;
        let outcome = test(installed, kube, &fleet).and_then(|()| clear(kube));
        let checked = checker.end(kube).map(|all| seen = Some(all));
        after(outcome, checked)
    })?;
    seen.context("the checker ended")
}

/// Names of bound pods.
pub(crate) fn bound(kube: &Kube<'_>) -> Result<BTreeSet<String>> {
    let pods = kube.get(&["pods"])?;
    let pods = pods["items"].as_array().context("no list of pods")?.iter();
    let bound = pods.filter(|pod| pod["spec"]["nodeName"].is_string());
    Ok(bound
        .filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned))
        .collect())
}

/// Waits until these pods are bound.
pub(crate) fn wait_bound(kube: &Kube<'_>, wanted: &[&str]) -> Result<()> {
    wait(TAKEOVER, &format!("pods {} to be bound", wanted.join(", ")), || {
        let bound = bound(kube)?;
        let missing: Vec<_> = wanted.iter().filter(|name| !bound.contains(**name)).collect();
        match missing.is_empty() {
            true => Ok(Some(())),
            false => Err(anyhow!("not bound: {missing:?}")),
        }
    })
}

/// Waits until as many pods are bound as there is room for. Returns their number.
pub(crate) fn wait_full(kube: &Kube<'_>, room: usize, limit: Duration) -> Result<usize> {
    wait(limit, "as many pods to be bound as there is room for", || {
        let pods = kube.get(&["pods"])?;
        let all = pods["items"].as_array().map_or(0, Vec::len);
        let bound = bound(kube)?.len();
        match bound == all.min(room) {
            true => Ok(Some(all)),
            false => Err(anyhow!("{bound} of {all} are bound, and there is room for {room}")),
        }
    })
}

/// Waits for an event on the object with that reason and all of these words.
pub(crate) fn wait_for_event(kube: &Kube<'_>, object: &str, reason: &str, words: &[&str]) -> Result<()> {
    wait(LIMIT, &format!("{object} to get the event {reason} {words:?}"), || {
        let events = kube.events(object, reason)?;
        let says = events
            .iter()
            .any(|event| words.iter().all(|words| event.contains(words)));
        says.then_some(Some(())).context(events.join(" | "))
    })
}

/// The node to which a pod is bound.
pub(crate) fn node_of_pod(kube: &Kube<'_>, pod: &str) -> Result<String> {
    let found = kube.get(&["pod", pod])?;
    let node = found["spec"]["nodeName"].as_str().map(str::to_owned);
    node.with_context(|| format!("pod {pod} is not bound"))
}

/// The claim that was created for a pod.
pub(crate) fn claim_of(kube: &Kube<'_>, pod: &str) -> Result<Value> {
    let claims = kube.get(&["resourceclaims"])?;
    let claims = claims["items"].as_array().cloned().unwrap_or_default();
    let mut claims = claims.into_iter();
    let claim = claims.find(|claim| claim["metadata"]["ownerReferences"][0]["name"] == pod);
    claim.with_context(|| format!("pod {pod} has no claim"))
}

/// The node of a claim's device.
pub(crate) fn node_of_claim(claim: &Value) -> Option<&str> {
    claim["status"]["allocation"]["devices"]["results"][0]["pool"]
        .as_str()?
        .split('/')
        .next()
}

/// An object's name.
pub(crate) fn name_of(object: &Value) -> Result<&str> {
    object["metadata"]["name"].as_str().context("an object without a name")
}

/// Deletes these pods without waiting.
pub(crate) fn delete<'n>(kube: &Kube<'_>, pods: impl IntoIterator<Item = &'n str>) -> Result<()> {
    let at_once = ["--ignore-not-found", "--force", "--grace-period=0", "--wait=false"];
    let pods: Vec<&str> = pods.into_iter().collect();
    match pods.is_empty() {
        true => Ok(()),
        false => kube.run(&[&["delete", "pod"], &at_once[..], &pods].concat()).map(drop),
    }
}

/// Deletes every pod of the namespace, and waits until all claims created for pods are deleted too.
pub(crate) fn clear(kube: &Kube<'_>) -> Result<()> {
    kube.run(&["delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false"])?;
    wait(ALL_BOUND, "every claim to be freed", || {
        let claims = kube.get(&["resourceclaims"])?;
        match claims["items"].as_array().map_or(0, Vec::len) {
            0 => Ok(Some(())),
            left => Err(anyhow!("{left} claims are left")),
        }
    })
}

//! Hand-made nodes with GPUs, and a checker that adds up each of these at every version of every claim.
//!
//! Nothing runs on such a node: its pods end at being bound. They tolerate every taint, so it matters to nobody that no
//! kubelet keeps the node ready.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use vgpu_e2e::install;
use vgpu_e2e::kube::Kube;

const GPU_MEMORY: &str = "80Gi";
const GPUS: usize = 2;

/// So many nodes with two GPUs each; gone when it is dropped.
pub(crate) struct Fleet<'a> {
    kube: Kube<'a>,
    name: &'static str,
    size: usize,
}

fn node(fleet: &str, name: &str) -> Value {
    let room = json!({"cpu": "32", "memory": "128Gi", "pods": "110"});
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"fleet": fleet, "kubernetes.io/hostname": name}},
        "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True",
            "reason": "HandMade", "lastHeartbeatTime": null, "lastTransitionTime": null}]}})
}

fn slice(fleet: &str, node: &str) -> Value {
    let gpu = |number: usize| {
        json!({"name": format!("gpu-{number}"), "allowMultipleAllocations": true,
            "attributes": {"type": {"string": "gpu"}},
            "capacity": {
                "memory": {"value": GPU_MEMORY,
                    "requestPolicy": {"default": GPU_MEMORY, "validRange": {"min": "64Mi", "step": "1Mi"}}},
                "cores": {"value": "100",
                    "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}}}},
            // Long ago: nobody needs to wait until they may be given out.
            "taints": [{"key": "dra.vgpu/allocator", "value": "controller", "effect": "NoSchedule",
                "timeAdded": "2026-01-01T00:00:00Z"}]})
    };
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": format!("{node}-vgpu"), "labels": {"fleet": fleet}},
        "spec": {"driver": "dra.vgpu", "nodeName": node,
            "pool": {"name": format!("{node}/vgpu"), "generation": 1, "resourceSliceCount": 1},
            "devices": (0..GPUS).map(gpu).collect::<Vec<_>>()}})
}

/// Many objects for one call of kubectl.
pub(crate) fn many(items: Vec<Value>) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// `kubectl create`, which asks nothing first.
pub(crate) fn create(kube: &Kube<'_>, manifests: &str) -> Result<()> {
    let said = kube.try_run_with_input(&["create", "-f", "-"], manifests)?;
    match said.status.success() {
        true => Ok(()),
        false => Err(anyhow!("kubectl create: {}", said.stderr.trim())),
    }
}

impl<'a> Fleet<'a> {
    pub(crate) fn new(kube: Kube<'a>, name: &'static str, size: usize) -> Result<Self> {
        let fleet = Self { kube, name, size };
        let nodes = fleet.nodes().map(|node_name| node(name, &node_name));
        let slices = fleet.nodes().map(|node| slice(name, &node));
        create(&fleet.kube, &many(nodes.chain(slices).collect()))?;
        Ok(fleet)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = String> + use<> {
        let name = self.name;
        (0..self.size).map(move |number| format!("{name}-{number:03}"))
    }

    /// A pod that waits for a claim from the template and for some CPU, on this fleet alone.
    pub(crate) fn pod(&self, name: &str, template: &str, cpu: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
            "nodeSelector": {"fleet": self.name},
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "dra-driver-vgpu/pause:dev",
                "resources": {"requests": {"cpu": cpu}, "claims": [{"name": "gpu"}]}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}]}})
    }
}

impl Drop for Fleet<'_> {
    fn drop(&mut self) {
        let selector = format!("fleet={}", self.name);
        for kind in ["resourceslices", "nodes"] {
            let _ = self.kube.run(&["delete", kind, "-l", &selector, "--wait=false"]);
        }
    }
}

/// Names of the pods that are bound.
pub(crate) fn bound(kube: &Kube<'_>) -> Result<BTreeSet<String>> {
    let pods = kube.get(&["pods"])?;
    let pods = pods["items"].as_array().context("no list of pods")?.iter();
    let bound = pods.filter(|pod| pod["spec"]["nodeName"].is_string());
    Ok(bound
        .filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned))
        .collect())
}

/// What one claim holds of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    device: (String, String),
    /// `None`: all of it.
    share: Option<(u64, u64)>,
}

fn held(claim: &Value) -> Result<Vec<Held>> {
    let results = claim["status"]["allocation"]["devices"]["results"].as_array();
    let ours = results
        .into_iter()
        .flatten()
        .filter(|result| result["driver"] == "dra.vgpu" && result["adminAccess"] != true);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    ours.map(|result| {
        let consumed = |name: &str| {
            let amount = result["consumedCapacity"][name].as_str();
            let amount = amount.and_then(install::bytes);
            amount.with_context(|| format!("no consumed {name} in {result}"))
        };
        let share = match result["shareID"].is_string() {
            true => Some((consumed("memory")?, consumed("cores")?)),
            false => None,
        };
        Ok(Held {
            device: (text(&result["pool"]), text(&result["device"])),
            share,
        })
    })
    .collect()
}

/// All claims as of one version.
#[derive(Debug, Default)]
struct Sums {
    claims: BTreeMap<String, Vec<Held>>,
    capacity: BTreeMap<(String, String), u64>,
}

impl Sums {
    fn set(&mut self, claim: &Value) -> Result<()> {
        let meta = &claim["metadata"];
        let key = format!("{}/{}", meta["namespace"], meta["name"]);
        let held = held(claim)?;
        let devices: BTreeSet<_> = held.iter().map(|held| held.device.clone()).collect();
        self.claims.insert(key.clone(), held);
        for device in devices {
            self.check(&device).with_context(|| format!("after {key} changed"))?;
        }
        Ok(())
    }

    fn check(&self, device: &(String, String)) -> Result<()> {
        let of_device = self.claims.iter().flat_map(|(key, held)| {
            let held = held.iter().filter(|held| held.device == *device);
            held.map(move |held| (key, held))
        });
        let all: Vec<_> = of_device.collect();
        let total = *self.capacity.get(device).unwrap_or(&u64::MAX);
        let sum = |part: fn((u64, u64)) -> u64| all.iter().filter_map(|(_, held)| held.share).map(part).sum::<u64>();
        let (memory, cores) = (sum(|share| share.0), sum(|share| share.1));
        let is_whole = all.iter().any(|(_, held)| held.share.is_none());
        if memory > total || cores > 100 || is_whole && all.len() > 1 {
            bail!("{device:?} gives {memory} of {total} memory and {cores} cores: {all:?}");
        }
        Ok(())
    }
}

/// One watch of all claims that never breaks, added up at every version.
pub(crate) struct Checker {
    child: Child,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<usize>>>,
}

impl Checker {
    pub(crate) fn begin(kube: &Kube<'_>) -> Result<Self> {
        let mut sums = Sums::default();
        let slices = kube.get(&["resourceslices"])?;
        for slice in slices["items"].as_array().into_iter().flatten() {
            for device in slice["spec"]["devices"].as_array().into_iter().flatten() {
                let memory = device["capacity"]["memory"]["value"].as_str().and_then(install::bytes);
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let key = (text(&slice["spec"]["pool"]["name"]), text(&device["name"]));
                sums.capacity.extend(memory.map(|memory| (key, memory)));
            }
        }
        let path = "/apis/resource.k8s.io/v1/resourceclaims";
        let claims: Value = serde_json::from_str(&kube.run(&["get", "--raw", path])?).context("no list of claims")?;
        for claim in claims["items"].as_array().into_iter().flatten() {
            sums.set(claim)?;
        }
        let version = claims["metadata"]["resourceVersion"]
            .as_str()
            .context("a list without version")?;
        let watch = format!("{path}?watch=true&resourceVersion={version}");
        let mut child = kube.command(["get", "--raw", &watch])?;
        let mut child = child.stdout(Stdio::piped()).spawn().context("cannot run kubectl")?;
        let output = child.stdout.take().context("kubectl has no standard output")?;
        let ends = Arc::new(AtomicBool::new(false));
        let told = ends.clone();
        let thread = std::thread::spawn(move || {
            let mut changes = 0;
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { break };
                let event: Value = serde_json::from_str(&line).context("the watch brought no JSON")?;
                let claim = &event["object"];
                match event["type"].as_str() {
                    Some("ADDED" | "MODIFIED") => sums.set(claim)?,
                    Some("DELETED") => {
                        let meta = &claim["metadata"];
                        sums.claims.remove(&format!("{}/{}", meta["namespace"], meta["name"]));
                    }
                    _ => bail!("the watch broke: {line}"),
                }
                changes += 1;
            }
            match told.load(Ordering::SeqCst) {
                true => Ok(changes),
                false => bail!("the watch ended by itself after {changes} changes"),
            }
        });
        Ok(Self {
            child,
            ends,
            thread: Some(thread),
        })
    }

    /// How many versions there were, if none of them gave anything twice.
    pub(crate) fn end(mut self) -> Result<usize> {
        self.stop();
        let thread = self.thread.take().context("it has ended")?;
        thread.join().map_err(|_| anyhow!("the checker panicked"))?
    }

    fn stop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Checker {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// That the checker would notice.
pub(crate) fn the_checker_notices() -> Result<()> {
    let claim = |name: &str, share: Option<&str>, memory: &str, cores: &str| {
        json!({"metadata": {"namespace": "ns", "name": name}, "status": {"allocation": {"devices": {"results": [
            {"driver": "dra.vgpu", "pool": "p", "device": "d", "shareID": share,
                "consumedCapacity": {"memory": memory, "cores": cores}}]}}}})
    };
    let after = |claims: &[Value]| -> Result<()> {
        let mut sums = Sums::default();
        sums.capacity.insert(("p".into(), "d".into()), 80 << 30);
        claims.iter().try_for_each(|claim| sums.set(claim))
    };
    let first = claim("a", Some("1"), "60Gi", "50");
    after(&[first.clone(), claim("b", Some("2"), "20Gi", "50")])?;
    after(&[first.clone(), claim("a", Some("3"), "80Gi", "50")])?;
    for (name, second) in [
        ("memory", claim("b", Some("2"), "21Gi", "0")),
        ("cores", claim("b", Some("2"), "1Gi", "51")),
        ("a whole device", claim("b", None, "1Gi", "0")),
    ] {
        if after(&[first.clone(), second]).is_ok() {
            bail!("too much of {name} goes unnoticed");
        }
    }
    Ok(())
}

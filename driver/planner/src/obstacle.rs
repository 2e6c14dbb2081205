//! Obstacles: reasons why a pod gets no GPUs even if enough are free, such as its own fields, its node, or the state of its claims.
//!
//! The controller's events and `vgpu explain` have these sentences from here. The pod is their subject.

use serde::Deserialize as _;
use vgpu_allocator::model::{DeviceResult, ResourceClaim, ResourceSlice, Taint};
use vgpu_allocator::offline::Objects;

use crate::class::is_ours;
use crate::model::{Node, Pod, UnnamedClaim};
use crate::names::{DRIVER, TAINT_KEY};

/// The gate of namespace quotas, whose state `vgpu explain` reports by itself.
const QUOTA_GATE: &str = "dra.vgpu/quota";
/// The taints of a node that kubelet does not report from.
const NOT_READY: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    #[error(
        "no container names its claim {entry}, so none gets the GPU: add resources.claims: [{{name: {entry}}}] to the \
         container that needs it, and create the pod again"
    )]
    NoContainer { entry: String },
    #[error(
        "only init container {init} names its claim {entry}, so no other gets the GPU: add resources.claims: \
         [{{name: {entry}}}] to the container that needs it, and create the pod again"
    )]
    OnlyInit { entry: String, init: String },
    #[error("is being deleted (Terminating), so it gets nothing more{}", ends(.node.as_deref()))]
    Terminating { node: Option<String> },
    #[error("has ended; only a new pod gets devices")]
    Finished,
    #[error("has the scheduling gate {0}: no scheduler looks at it before whoever set the gate takes it off")]
    Gate(String),
    #[error("node {0} does not exist any more; delete the pod, and a new one gets other devices")]
    NodeGone(String),
    #[error(
        "node {node} is not ready (taint {taint}): nothing starts or ends there before kubelet reports again; see \
         kubectl describe node {node}"
    )]
    NodeNotReady { node: String, taint: String },
    #[error("it fits only on nodes that are not ready: {}", .0.join(", "))]
    OnlyNotReady(Vec<String>),
    #[error(
        "was put on node {node} by spec.nodeName, so no scheduler allocates its claim {}, and it never starts: leave out \
         nodeName, and use nodeSelector {{kubernetes.io/hostname: {node}}}",
        .claims.join(", ")
    )]
    NodeName { node: String, claims: Vec<String> },
    #[error("claim {0} is being deleted, so it is given to no pod any more; create it again once it is gone")]
    ClaimDeleted(String),
    #[error(
        "{device} of pool {pool}, which claim {claim} has, is not published any more: the GPU or its node is lost; delete \
         the pod, and a new one gets another GPU"
    )]
    GpuGone {
        claim: String,
        device: String,
        pool: String,
    },
    #[error(
        "{device} of pool {pool}, which claim {claim} has, has the taint {taint}: the GPU is not well; see the events of \
         its Node, and delete the pod if it cannot go on without the GPU"
    )]
    GpuTainted {
        claim: String,
        device: String,
        pool: String,
        taint: String,
    },
}

fn ends(node: Option<&str>) -> String {
    match node {
        Some(node) => format!("; if it stays, see that kubelet and vgpu-kubelet-plugin run on node {node}"),
        None => String::new(),
    }
}

/// A claim as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimState {
    /// Its devices are ours.
    pub is_ours: bool,
    pub is_deleted: bool,
    pub is_allocated: bool,
}

impl Obstacle {
    /// Returns the obstacles of a pod and its claims. `claim` looks one up by `namespace/name`.
    pub fn of_waiting(pod: &Pod, claim: impl Fn(&str) -> Option<ClaimState>) -> Vec<Self> {
        let mut found = Self::unnamed(pod, &claim);
        let deleted = |key: &String| claim(key).is_some_and(|claim| claim.is_ours && claim.is_deleted);
        found.extend(pod.claim_keys().filter(deleted).map(Self::ClaimDeleted));
        found
    }

    fn unnamed(pod: &Pod, claim: impl Fn(&str) -> Option<ClaimState>) -> Vec<Self> {
        // A claim of another driver, as of a network's, may be the whole pod's.
        let is_ours = |unnamed: &&UnnamedClaim| {
            let key = unnamed.claim.as_ref().map(|name| format!("{}/{name}", pod.namespace));
            key.and_then(|key| claim(&key)).is_some_and(|claim| claim.is_ours)
        };
        let unnamed = pod.unusual().unnamed.iter().filter(is_ours).cloned();
        unnamed
            .map(|UnnamedClaim { entry, init, .. }| match init {
                Some(init) => Self::OnlyInit { entry, init },
                None => Self::NoContainer { entry },
            })
            .collect()
    }

    /// All that can be seen of a pod among these objects.
    pub(crate) fn of_pod(pod: &Pod, objects: &Objects) -> Vec<Self> {
        let claim = |key: &str| state(key, objects);
        let mut found = Vec::new();
        if pod.is_deleted {
            found.push(Self::Terminating { node: pod.node.clone() });
        } else if pod.is_finished {
            found.push(Self::Finished);
        }
        let others = pod.unusual().gates.iter().filter(|gate| *gate != QUOTA_GATE);
        found.extend(others.cloned().map(Self::Gate));
        match &pod.node {
            None => found.extend(Self::of_waiting(pod, claim)),
            Some(node) => {
                found.extend(Self::unnamed(pod, claim));
                let waits = |key: &String| claim(key).is_some_and(|claim| !claim.is_allocated);
                let claims: Vec<String> = pod.claim_keys().filter(waits).collect();
                if !claims.is_empty() && !pod.is_finished {
                    let node = node.clone();
                    found.push(Self::NodeName { node, claims });
                }
            }
        }
        found.extend(pod.node.as_deref().and_then(|node| Self::of_node(node, objects)));
        for key in pod.claim_keys() {
            found.extend(Self::of_claim(&key, objects));
        }
        found
    }

    /// Returns the obstacles of the devices that a claim has, and of their node.
    pub(crate) fn of_claim(key: &str, objects: &Objects) -> Vec<Self> {
        let mut found = Vec::new();
        let Some(claim) = objects.claim(key) else {
            return found;
        };
        let results = claim.status.allocation.iter().flat_map(|of| &of.devices.results);
        for result in results.filter(|result| result.driver == DRIVER) {
            found.extend(Self::of_device(key, result, objects));
        }
        found
    }

    fn of_device(claim: &str, result: &DeviceResult, objects: &Objects) -> Vec<Self> {
        // Files may have claims alone.
        if objects.slices().is_empty() {
            return Vec::new();
        }
        let (claim, device, pool) = (claim.to_owned(), result.device.clone(), result.pool.clone());
        let own = |slice: &&ResourceSlice| slice.spec.driver == DRIVER && slice.spec.pool.name == result.pool;
        let mut devices = objects.slices().iter().filter(own).flat_map(|slice| {
            let devices = slice.spec.devices.iter();
            devices.map(move |device| (slice, device))
        });
        let Some((slice, found)) = devices.find(|(_, device)| device.name == result.device) else {
            return vec![Self::GpuGone { claim, device, pool }];
        };
        let mut all = Vec::new();
        all.extend(
            slice
                .spec
                .node_name
                .as_deref()
                .and_then(|node| Self::of_node(node, objects)),
        );
        let is_of_health = |taint: &&Taint| {
            taint.key.starts_with("dra.vgpu/")
                && taint.key != TAINT_KEY
                && taint.effect.starts_with("No")
                && taint.effect != "None"
        };
        if let Some(taint) = found.taints.iter().find(is_of_health) {
            let value = match taint.value.as_str() {
                "" => String::new(),
                value => format!("={value}"),
            };
            let taint = format!("{}{value}:{}", taint.key, taint.effect);
            all.push(Self::GpuTainted {
                claim,
                device,
                pool,
                taint,
            });
        }
        all
    }

    fn of_node(name: &str, objects: &Objects) -> Option<Self> {
        let documents = objects.node_documents();
        if documents.is_empty() {
            return None;
        }
        let Some(node) = documents.iter().find(|node| node["metadata"]["name"] == name) else {
            return Some(Self::NodeGone(name.to_owned()));
        };
        let taint = not_ready(node)?;
        let node = name.to_owned();
        Some(Self::NodeNotReady { node, taint })
    }

    /// If none of the nodes on which it fits is ready.
    pub(crate) fn of_fits(fits: &[String], objects: &Objects) -> Option<Self> {
        let documents = objects.node_documents();
        let is_not_ready = |name: &&String| {
            let node = documents.iter().find(|node| node["metadata"]["name"] == name.as_str());
            node.is_some_and(|node| not_ready(node).is_some())
        };
        let all = !fits.is_empty() && fits.iter().all(|name| is_not_ready(&name));
        all.then(|| Self::OnlyNotReady(fits.to_vec()))
    }
}

/// The taint that says that a node is not ready.
fn not_ready(node: &serde_json::Value) -> Option<String> {
    let node = Node::deserialize(node).ok()?;
    let taint = node
        .taints
        .into_iter()
        .find(|taint| NOT_READY.contains(&taint.key.as_str()))?;
    Some(taint.key)
}

fn state(key: &str, objects: &Objects) -> Option<ClaimState> {
    let claim = objects.claim(key)?;
    let document = objects.claim_document(key)?;
    Some(ClaimState {
        is_ours: asks_for_ours(claim, objects),
        is_deleted: document["metadata"]["deletionTimestamp"].is_string(),
        is_allocated: claim.status.allocation.is_some(),
    })
}

fn asks_for_ours(claim: &ResourceClaim, objects: &Objects) -> bool {
    let mut asks = claim.spec.devices.requests.iter().flat_map(|request| request.asks());
    asks.any(|ask| {
        let class = objects.classes().iter().find(|class| class.metadata.name == ask.class);
        class.map_or_else(|| vgpu_api::class::is_ours(&ask.class), is_ours)
    })
}

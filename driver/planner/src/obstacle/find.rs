//! Finds the obstacles of a pod or a claim in the state.

use vgpu_allocator::few;
use vgpu_allocator::model::{DeviceResult, Taint};
use vgpu_api::advice;

use super::{Namesake, Obstacle};
use crate::model::{Claim, Node, Pod, PodClaim, UnnamedClaim};
use crate::names::{DRIVER, QUOTA_GATE, TAINT_KEY};
use crate::state::State;

/// The most users of a claim that are checked. Limited because tenants decide how many pods name one claim.
const SHARERS: usize = 20;
/// The taints of a node that kubelet does not report from.
const NOT_READY: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

impl Obstacle {
    /// Returns the obstacles of a pod that waits, and of its claims.
    #[must_use]
    pub fn of_waiting(pod: &Pod, state: &State) -> Vec<Self> {
        let mut found = Self::unnamed(pod, state);
        let deleted = |key: &String| {
            let claim = state.claim(key);
            claim.is_some_and(|claim| claim.is_deleted && state.asks_for_ours(claim))
        };
        found.extend(pod.claim_keys().filter(deleted).map(Self::ClaimDeleted));
        found
    }

    /// Returns the claims that the pod names but that do not exist. `namesake` finds another object with the name.
    pub(crate) fn of_missing(pod: &Pod, state: &State, namesake: impl Fn(&str) -> Option<Namesake>) -> Vec<Self> {
        let missing = named(pod).filter(|name| state.claim(&pod.claim_key(name)).is_none());
        missing
            .map(|name| Self::NoClaim {
                claim: pod.claim_key(name),
                name: name.to_owned(),
                namespace: pod.namespace.clone(),
                namesake: namesake(name),
            })
            .collect()
    }

    /// Returns the scheduling gates of a pod that waits.
    pub(crate) fn of_gates(pod: &Pod) -> Vec<Self> {
        let gates = pod.unusual().gates.iter().filter(|_| pod.is_waiting());
        let gate = |gate: &String| match gate.as_str() {
            QUOTA_GATE => Self::QuotaGate,
            other => Self::Gate(other.to_owned()),
        };
        gates.map(gate).collect()
    }

    /// Says which other pods use the pod's claims. Sharing may be intended, so it is not a reason to wait.
    pub(crate) fn sharers(pod: &Pod, state: &State) -> Vec<String> {
        let claims = named(pod).filter_map(|name| state.claim(&pod.claim_key(name)));
        let of_claim = |claim: &Claim| {
            let key = claim.key();
            let users = state.users(&key).filter(|user| !user.is_finished);
            let users = users.map(|user| user.name.clone());
            let reserved = claim.reserved_for.iter().filter(|entry| entry.resource == "pods");
            let all = users.chain(reserved.map(|entry| entry.name.clone())).take(SHARERS);
            let others: Vec<String> = all.filter(|name| *name != pod.name).collect();
            (!others.is_empty()).then(|| {
                format!(
                    "claim {} is also used by {}: they share its GPU, and its limit is one for all of them. For a share \
                     each, name a ResourceClaimTemplate",
                    key,
                    few("pods ", others)
                )
            })
        };
        claims.filter_map(of_claim).collect()
    }

    fn unnamed(pod: &Pod, state: &State) -> Vec<Self> {
        // A claim of another driver, for example for a network, may be for the pod as a whole.
        let is_ours = |unnamed: &&UnnamedClaim| {
            let claim = unnamed.claim.as_ref().map(|name| pod.claim_key(name));
            let claim = claim.and_then(|key| state.claim(&key));
            claim.is_some_and(|claim| state.asks_for_ours(claim))
        };
        let unnamed = pod.unusual().unnamed.iter().filter(is_ours).cloned();
        unnamed
            .map(|UnnamedClaim { entry, init, .. }| match init {
                Some(init) => Self::OnlyInit { entry, init },
                None => Self::NoContainer { entry },
            })
            .collect()
    }

    /// Returns all obstacles of a pod, even if it is bound or has ended.
    pub(crate) fn of_pod(pod: &Pod, state: &State) -> Vec<Self> {
        let mut found = Vec::new();
        if pod.is_deleted {
            found.push(Self::Terminating { node: pod.node.clone() });
        } else if pod.is_finished {
            found.push(Self::Finished);
        }
        match &pod.node {
            None => found.extend(Self::of_waiting(pod, state)),
            Some(node) => {
                found.extend(Self::unnamed(pod, state));
                let waits = |key: &String| state.claim(key).is_some_and(|claim| claim.allocation().is_none());
                let claims: Vec<String> = pod.claim_keys().filter(waits).collect();
                if !claims.is_empty() && !pod.is_finished {
                    let node = node.clone();
                    found.push(Self::NodeName { node, claims });
                }
            }
        }
        found.extend(pod.node.as_deref().and_then(|node| Self::of_node(node, state)));
        for claim in pod.claim_keys().filter_map(|key| state.claim(&key)) {
            found.extend(Self::of_claim(claim, state));
        }
        found
    }

    /// Returns the obstacles of the devices that a claim has, and of their node.
    pub(crate) fn of_claim(claim: &Claim, state: &State) -> Vec<Self> {
        let results = claim.allocation().into_iter().flat_map(|of| &of.devices.results);
        let ours = results.filter(|result| result.driver == DRIVER);
        ours.flat_map(|result| Self::of_device(&claim.key(), result, state))
            .collect()
    }

    fn of_device(claim: &str, result: &DeviceResult, state: &State) -> Vec<Self> {
        // Files may contain only claims.
        if state.has_no_slices() {
            return Vec::new();
        }
        let (claim, device, pool) = (claim.to_owned(), result.device.clone(), result.pool.clone());
        let Some((found, node)) = state.device(&pool, &device) else {
            return vec![Self::GpuGone { claim, device, pool }];
        };
        let mut all = Vec::new();
        all.extend(node.as_deref().and_then(|node| Self::of_node(node, state)));
        let is_of_health = |taint: &&Taint| {
            taint.key.starts_with("dra.vgpu/")
                && taint.key != TAINT_KEY
                && matches!(&*taint.effect, "NoSchedule" | "NoExecute")
        };
        if let Some(taint) = found.taints.iter().find(is_of_health) {
            all.push(Self::GpuTainted {
                claim,
                device,
                pool,
                taint: taint_text(taint),
                fault: advice::fault(&taint.key, &taint.value),
            });
        }
        all
    }

    fn of_node(name: &str, state: &State) -> Option<Self> {
        let Some(node) = state.cluster.node(name) else {
            // Files may have no nodes.
            let has_nodes = state.cluster.nodes().next().is_some();
            return has_nodes.then(|| Self::NodeGone(name.to_owned()));
        };
        let taint = not_ready(node)?;
        let node = name.to_owned();
        Some(Self::NodeNotReady { node, taint })
    }

    /// If none of the nodes on which it fits is ready.
    pub(crate) fn of_fits(fits: &[String], state: &State) -> Option<Self> {
        let is_not_ready = |name: &String| state.cluster.node(name).is_some_and(|node| not_ready(node).is_some());
        let all = !fits.is_empty() && fits.iter().all(is_not_ready);
        all.then(|| Self::OnlyNotReady(fits.to_vec()))
    }
}

/// The names of the claims that the pod's spec names directly.
fn named(pod: &Pod) -> impl Iterator<Item = &str> {
    pod.claims.iter().filter_map(|claim| match claim {
        PodClaim::Named(name) => Some(&**name),
        PodClaim::Made(_) | PodClaim::NotYet(_) => None,
    })
}

/// Returns `key=value:effect`.
pub(crate) fn taint_text(taint: &Taint) -> String {
    let value = match taint.value.as_str() {
        "" => String::new(),
        value => format!("={value}"),
    };
    format!("{}{value}:{}", taint.key, taint.effect)
}

/// The taint that says that a node is not ready.
fn not_ready(node: &Node) -> Option<String> {
    let mut taints = node.taints.iter().map(|taint| &taint.key);
    taints.find(|key| NOT_READY.contains(&key.as_str())).cloned()
}

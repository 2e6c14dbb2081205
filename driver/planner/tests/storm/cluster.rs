//! The rest of the control plane, as far as it changes claims: kube-scheduler, kube-controller-manager, kubelets.

use std::collections::BTreeMap;

use vgpu_allocator::model::{Allocation, ResourceClaim};
use vgpu_allocator::{Features, Index, SelectorCache, node_selector};
use vgpu_api::config::AllocationPolicy;
use vgpu_planner::model::{Claim, Consumer, Node, Pod, PodClaim, Version};
use vgpu_planner::names::HOLD_GROUP;

use super::api::{Api, SLICES};
use super::random::Random;
use vgpu_planner::Change;

pub(crate) fn entry(pod: &Pod) -> Consumer {
    Consumer {
        api_group: String::new(),
        resource: "pods".into(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
    }
}

/// kube-scheduler, one instance that is never wrong about claims, and sees slices late.
pub(crate) struct Scheduler {
    index: Index,
    cache: SelectorCache<'static>,
    seen: usize,
    /// When the oldest slice event that it has not seen happened.
    pub(crate) behind_since: Option<i64>,
    /// Decided, not yet written.
    decided: Option<Decided>,
    /// Reserved, not yet bound.
    binding: Vec<(String, String, String)>,
    shares: u64,
}

struct Decided {
    pod: Pod,
    given: Vec<(String, Version, Allocation)>,
    at: i64,
}

impl Scheduler {
    pub(crate) fn new() -> Self {
        Self {
            index: Index::new(Features::default()),
            cache: SelectorCache::default(),
            seen: 0,
            behind_since: None,
            decided: None,
            binding: Vec::new(),
            shares: 0,
        }
    }

    /// Reads the pending events of the watch of slices.
    pub(crate) fn look(&mut self, api: &Api) {
        for change in &api.log[SLICES][self.seen..] {
            if let Change::Slice { slice, .. } = change {
                self.index.set_slice(slice.facts.clone());
            }
        }
        if self.seen == 0 {
            for class in api.classes.values() {
                self.index.set_class(class.clone());
            }
        }
        self.seen = api.log[SLICES].len();
        self.behind_since = None;
    }

    pub(crate) fn is_behind(&self, api: &Api) -> bool {
        self.seen < api.log[SLICES].len()
    }

    /// When the decision that is not written yet was made.
    pub(crate) fn pending_since(&self) -> Option<i64> {
        self.decided.as_ref().map(|decided| decided.at)
    }

    /// Drops a decision that takes too long.
    pub(crate) fn forget(&mut self) {
        self.decided = None;
    }

    /// Simulates a restart: reservations in claims stay, but their pods are only bound if they are chosen again.
    pub(crate) fn restart(&mut self) {
        self.decided = None;
        self.binding.clear();
    }

    pub(crate) fn has_work(&self) -> bool {
        self.decided.is_some() || !self.binding.is_empty()
    }

    pub(crate) fn write(&mut self, api: &mut Api) {
        let Some(decided) = self.decided.take() else {
            return;
        };
        for (key, version, allocation) in decided.given {
            if api.allocate(&key, version, allocation, &decided.pod).is_err() {
                return;
            }
        }
    }

    /// Binds a reserved pod, or gives up on it.
    pub(crate) fn bind(&mut self, api: &mut Api, random: &mut Random) {
        if self.binding.is_empty() {
            return;
        }
        let (key, uid, node) = self.binding.swap_remove(random.below(self.binding.len()));
        let Some(pod) = api
            .pods
            .get(&key)
            .filter(|pod| pod.uid == uid && pod.is_waiting())
            .cloned()
        else {
            return;
        };
        if random.one_in(8) || !api.nodes.contains_key(&node) {
            for claim in pod.claim_keys() {
                let own = entry(&pod);
                let is_there = api
                    .claims
                    .get(&claim)
                    .is_some_and(|claim| claim.reserved_for.contains(&own));
                if is_there {
                    let _ = api.update(&claim, None, |claim| claim.reserved_for.retain(|entry| *entry != own));
                }
            }
            return;
        }
        for claim in pod.claim_keys() {
            let is_allocated = api.claims.get(&claim).is_some_and(|claim| claim.allocation().is_some());
            if !is_allocated {
                api.checker.fail(
                    api.now,
                    format!("pod {key} is bound while claim {claim} was taken from it"),
                );
            }
        }
        api.set_pod(Pod {
            node: Some(node),
            ..pod
        });
    }

    /// One attempt at one pod.
    pub(crate) fn schedule(&mut self, api: &mut Api, random: &mut Random) {
        let waiting: Vec<String> = api
            .pods
            .iter()
            .filter(|(key, pod)| pod.is_waiting() && !self.binding.iter().any(|(bound, ..)| bound == *key))
            .map(|(key, _)| key.clone())
            .collect();
        if let Some(key) = random.pick(&waiting) {
            self.attempt(api, &key.clone());
        }
    }

    fn attempt(&mut self, api: &mut Api, key: &str) {
        let pod = api.pods[key].clone();
        let mut claims: Vec<Claim> = Vec::new();
        for claim in &pod.claims {
            let (PodClaim::Named(name) | PodClaim::Made(name)) = claim else {
                return;
            };
            match api.claims.get(&format!("{}/{name}", pod.namespace)) {
                Some(claim) if !claim.is_deleted => claims.push(claim.clone()),
                _ => return,
            }
        }
        let reaches: Vec<String> = api
            .nodes
            .values()
            .filter(|node| has_room(api, &self.binding, node, &pod))
            .map(|node| node.name().to_owned())
            .collect();
        let allocated: Vec<&Claim> = claims.iter().filter(|claim| claim.allocation().is_some()).collect();
        let lets = |claim: &Claim, node: &str| {
            let selector = claim
                .allocation()
                .and_then(|allocation| allocation.node_selector.as_ref());
            let node = &api.nodes[node].facts;
            selector.is_none_or(|selector| node_selector::matches(selector, node).unwrap_or(false))
        };
        let fits: Vec<String> = reaches
            .iter()
            .filter(|node| allocated.iter().all(|claim| lets(claim, node)))
            .cloned()
            .collect();
        if fits.is_empty() {
            let mut kept_away = allocated
                .iter()
                .filter(|claim| reaches.iter().any(|node| !lets(claim, node)));
            let own = entry(&pod);
            let wiped = kept_away.find(|claim| claim.reserved_for.iter().all(|entry| *entry == own));
            if let Some(wiped) = wiped {
                let _ = api.update(&wiped.key(), Some(wiped.version), |claim| {
                    claim.facts.status.allocation = None;
                    claim.reserved_for.clear();
                });
            }
            return;
        }
        let missing: Vec<&Claim> = claims.iter().filter(|claim| claim.allocation().is_none()).collect();
        if !missing.is_empty() {
            return self.decide(api, &pod, &missing, &fits);
        }
        for claim in &claims {
            if !claim.reserved_for.contains(&entry(&pod))
                && api
                    .update(&claim.key(), Some(claim.version), |claim| {
                        claim.reserved_for.push(entry(&pod))
                    })
                    .is_err()
            {
                return;
            }
        }
        self.binding.push((pod.key(), pod.uid.clone(), fits[0].clone()));
    }

    fn decide(&mut self, api: &mut Api, pod: &Pod, missing: &[&Claim], fits: &[String]) {
        if self.decided.is_some() {
            return;
        }
        for node in api.nodes.values() {
            self.index.set_node(node.facts.clone());
        }
        let known: Vec<String> = api.claims.keys().cloned().collect();
        for claim in api.claims.values() {
            self.index
                .set_claim(&claim.key(), claim.facts.status.allocation.as_ref());
        }
        let asked: Vec<&ResourceClaim> = missing.iter().map(|claim| &claim.facts).collect();
        let shares = &mut self.shares;
        let mut share_id = || {
            *shares += 1;
            format!("s-{shares}")
        };
        let mut allowed = |node: &str| fits.iter().any(|fit| fit == node);
        let placed = self.index.allocate_where(
            &asked,
            AllocationPolicy::FirstFit,
            &mut allowed,
            &mut self.cache,
            &mut share_id,
        );
        for key in known {
            self.index.remove_claim(&key);
        }
        if let Ok(Some(placement)) = placed {
            let given = missing
                .iter()
                .zip(placement.allocations)
                .map(|(claim, mut allocation)| {
                    allocation.allocation_timestamp = Some(api.time().to_string());
                    (claim.key(), claim.version, allocation)
                });
            self.decided = Some(Decided {
                given: given.collect(),
                pod: pod.clone(),
                at: api.now,
            });
        }
    }
}

/// Returns true if the node has enough CPU, the only resource that pods request here.
fn has_room(api: &Api, binding: &[(String, String, String)], node: &Node, pod: &Pod) -> bool {
    let mut used = pod.requests.clone();
    for other in api
        .pods
        .values()
        .filter(|other| !other.is_finished && other.key() != pod.key())
    {
        let at = binding
            .iter()
            .find(|(key, ..)| *key == other.key())
            .map(|(_, _, node)| node);
        if other.node.as_ref().or(at).is_some_and(|at| at == node.name()) {
            used.add(&other.requests);
        }
    }
    let selector = pod
        .node_selector
        .iter()
        .all(|(key, value)| node.label(key) == Some(value));
    selector
        && used
            .0
            .iter()
            .all(|(name, used)| node.allocatable.0.get(name).is_some_and(|has| used <= has))
}

/// kube-controller-manager, one claim at a time.
pub(crate) fn manage(api: &mut Api, key: &str) {
    let Some(claim) = api.claims.get(key).cloned() else {
        return;
    };
    let lives = |uid: &str| api.pods.values().any(|pod| pod.uid == uid && !pod.is_finished);
    let valid: Vec<Consumer> = claim
        .reserved_for
        .iter()
        .filter(|entry| entry.api_group == HOLD_GROUP || lives(&entry.uid))
        .cloned()
        .collect();
    if valid.len() < claim.reserved_for.len() {
        let _ = api.update(key, None, |claim| {
            if valid.is_empty() && claim.is_protected {
                claim.facts.status.allocation = None;
                claim.is_protected = false;
            }
            claim.reserved_for = valid;
        });
    } else if claim.is_deleted && claim.is_protected && valid.is_empty() {
        let _ = api.update(key, None, |claim| {
            claim.facts.status.allocation = None;
            claim.is_protected = false;
        });
    } else if claim.owner.as_ref().is_some_and(|owner| !lives(owner)) && valid.is_empty() && !claim.is_deleted {
        api.delete_claim(key);
    }
}

/// Simulates kubelets and the garbage collector: removes deleted pods, and pods of nodes that are gone.
pub(crate) fn reap(api: &mut Api, random: &mut Random) {
    let over: BTreeMap<&String, &Pod> = api
        .pods
        .iter()
        .filter(|(_, pod)| {
            let homeless = pod.node.as_ref().is_some_and(|node| !api.nodes.contains_key(node));
            pod.is_deleted || homeless
        })
        .collect();
    let keys: Vec<String> = over.keys().map(|key| (*key).clone()).collect();
    if let Some(key) = random.pick(&keys) {
        api.remove_pod(key);
    }
}

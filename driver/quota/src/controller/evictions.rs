//! Evictions: a pod in budget that waits long enough gets the place of pods over budget.
//!
//! At most once a second, and only while a namespace is over budget, the leader checks the pods in budget for which
//! kube-scheduler found no place. If such a pod has waited long enough, fits nowhere now, and would fit on a node
//! without some of its pods over budget, as few of these as possible are evicted. Failure modes:
//! - **Shares that are not free yet:** shares of pods that are being deleted count as free until 30 s after these
//!   should be gone, so nobody is evicted for a pod that will fit. Pods that this leader evicted count in the same way
//!   even before the watch shows it, and their room is promised to the waiting pod until it is bound or [`PROMISE`] is
//!   over.
//! - **A crash after some evictions:** the next leader sees the pods' deletionTimestamp, and waits for the full time
//!   again before it evicts anybody. The events may be missing.
//! - **An answer that is lost:** the pods count as evicted as long as a promise lasts, and after that as the watch
//!   shows them.
//! - **A PodDisruptionBudget refuses:** dry runs are made for all pods first, so that none is evicted in vain. Pods
//!   whose eviction is refused are left out for [`REFUSED`], doubled with each further refusal, and others are chosen.
//!   No pod is deleted directly.
//! - **The pod does not start though it has room** (its node selector, its CPU): nobody else is evicted for it, since
//!   it fits.
//! - **Many pods, or pods that are hard to place:** one search takes at most [`STEPS`] of the allocator. If they are
//!   used up, nobody is evicted for the remaining pods; the next search comes 10 s later and begins with these.
//! - **It is not known which GPUs the pod could get** (a missing class, a mistake in a selector): nobody is evicted,
//!   and an event says why.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use vgpu_allocator::AllocateError;
use vgpu_allocator::model::{Allocation, ResourceClaim};
use vgpu_api::PodRef;
use vgpu_planner::model::Pod;
use vgpu_planner::{About, Time};

use crate::Now;
use crate::claim::{NotKnown, allocated_at, amount, pools};
use crate::eviction::{Candidate, Choice, Held, Node, choose};
use crate::evictions::Promise;
use crate::free_capacity::{FreeCapacity, Tries};
use crate::notice::Notice;
use crate::plan::{Outcome, Task, Write};

use super::QuotaController;

/// The shortest time between two searches.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A search is repeated after this time, also if nothing has changed.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// How long the room that evicted pods leave is kept for the waiting pod.
const PROMISE: Duration = Duration::from_secs(60);
/// How long a pod whose eviction was refused is not chosen again.
const REFUSED: Duration = Duration::from_secs(10);
const REFUSED_MAX: Duration = Duration::from_secs(300);

/// The allocator's steps for one search, for all pods together: some tenths of a second.
const STEPS: u64 = 500_000;

/// A pod that has waited long enough.
struct Due {
    pod: PodRef,
    created: Time,
    claims: Vec<ResourceClaim>,
    pools: Vec<String>,
}

/// The pods that may be evicted, and the differences between the index of free capacity and the API server's state
/// during a search.
#[derive(Default)]
struct Places {
    nodes: BTreeMap<String, Node>,
    /// Allocations of pods that are being evicted or chosen for eviction, which count as free.
    left_out: Vec<(String, Arc<Allocation>)>,
    /// The keys under which promised places are in the index.
    promised: Vec<String>,
}

impl QuotaController {
    /// Sets how long a pod in budget waits before others are evicted for it.
    #[must_use]
    pub fn with_evictions_after(mut self, after: Duration) -> Self {
        self.evictions.after = after;
        self
    }

    /// Adds the evictions that are due, and returns when to search again.
    pub(super) fn plan_evictions(&mut self, now: Now, writes: &mut Vec<Write>) -> Option<Now> {
        if !self.namespaces.values().any(|namespace| namespace.is_over_budget()) {
            self.evictions.waiting.clear();
            self.evictions.unheld.clear();
            return None;
        }
        if now < self.evictions.next {
            return Some(self.evictions.next);
        }
        self.evictions.next = now + LOOK_EVERY;
        self.evictions.evicted.retain(|_, until| *until > now);
        let (due, soonest) = self.due_for_eviction(now);
        let promises = &mut self.evictions.promises;
        promises.retain(|_, promise| promise.is_sent || promise.until > now);
        if due.is_empty() {
            return soonest;
        }
        let mut places = self.places(now);
        for (key, _) in &places.left_out {
            self.free.set_claim(key, None);
        }
        let mut tries = Tries::new(STEPS);
        for promise in self.evictions.promises.values() {
            places.promise(&promise.node, &promise.claims, &mut self.free, &mut tries);
        }
        let mut finished = None;
        for due in self.evictions.in_turn(due, |due| &due.pod) {
            if !self.evictions.promises.contains_key(&due.pod) {
                self.evict_for(&due, &mut places, now, writes, &mut tries);
            }
            if tries.are_over() {
                // A pod that needs all steps by itself has had its turn.
                self.evictions.last_tried = finished.or(Some(due.pod));
                self.evictions.next = now + LOOK_AGAIN;
                break;
            }
            finished = Some(due.pod);
        }
        places.restore(&mut self.free);
        Some(soonest.unwrap_or(now + LOOK_AGAIN).min(now + LOOK_AGAIN))
    }

    /// The pods in budget that have waited long enough, the oldest first, and when the next one has.
    fn due_for_eviction(&mut self, now: Now) -> (Vec<Due>, Option<Now>) {
        let (mut due, mut told, mut soonest) = (Vec::new(), Vec::new(), None::<Now>);
        let mut waiting = HashMap::new();
        let mut unbound = HashSet::new();
        for namespace in self.namespaces.values().filter(|namespace| namespace.is_in_budget()) {
            for pod in namespace.unbound() {
                unbound.insert(PodRef::from(pod));
                let wanted = namespace.wanted(pod, self.free.index());
                let Some(wanted) = wanted.filter(|_| pod.is_unschedulable) else {
                    continue;
                };
                let since = *self.evictions.waiting.get(&pod.uid).unwrap_or(&now);
                waiting.insert(pod.uid.clone(), since);
                let at = since + self.evictions.after;
                if at > now {
                    soonest = Some(soonest.map_or(at, |soonest| soonest.min(at)));
                    continue;
                }
                match wanted.not_known {
                    Some(why) => told.push((About::pod(pod), Notice::NotKnown(why))),
                    None => due.push(Due {
                        pod: PodRef::from(pod),
                        created: pod.created,
                        claims: wanted.claims,
                        pools: wanted.pools,
                    }),
                }
            }
        }
        self.notices.extend(told);
        due.sort_by(|a, b| (a.created, &a.pod).cmp(&(b.created, &b.pod)));
        self.evictions.waiting = waiting;
        self.evictions
            .promises
            .retain(|pod, promise| promise.is_sent || unbound.contains(pod));
        (due, soonest)
    }

    /// Computes the room when all deleted pods are gone, and the shares of pods that may be evicted.
    fn places(&mut self, now: Now) -> Places {
        let wall = self.clock.wall(now);
        let mut places = Places::default();
        let mut unheld = HashMap::new();
        let mut freeable = Vec::new();
        for namespace in self.namespaces.values() {
            let is_over = namespace.is_over_budget();
            let holders = namespace.holders();
            for (claim, allocation) in namespace.allocated() {
                let none = Vec::new();
                let held_by = holders.get(claim.uid()).unwrap_or(&none);
                if held_by.is_empty() {
                    // Its last pod is over, and Kubernetes frees it in a moment.
                    let since = *self.evictions.unheld.get(claim.uid()).unwrap_or(&now);
                    unheld.insert(claim.uid().to_owned(), since);
                    if now < since + PROMISE {
                        places.left_out.push((claim.key(), allocation.clone()));
                        continue;
                    }
                }
                let (going, staying): (Vec<&Pod>, Vec<&Pod>) =
                    held_by.iter().partition(|pod| self.evictions.is_going(pod, wall));
                if !going.is_empty() && staying.is_empty() {
                    places.left_out.push((claim.key(), allocation.clone()));
                    continue;
                }
                let may_go = |pod: &&Pod| is_over && self.evictions.may_evict(pod, now);
                if !staying.is_empty() && staying.iter().all(may_go) {
                    freeable.push((claim, allocation, staying));
                }
            }
        }
        for (claim, allocation, pods) in freeable {
            let on: BTreeSet<Option<&str>> = pools(claim).map(|pool| self.gpus.node(pool)).collect();
            // All pods that hold the claim must be on its node; a claim on several nodes is left alone.
            let [Some(name)] = on.into_iter().collect::<Vec<_>>()[..] else {
                continue;
            };
            if pods.iter().any(|pod| pod.node.as_deref() != Some(name)) {
                continue;
            }
            let rate = amount(claim, self.free.index(), &self.gpus).map_or(0, |amount| amount.gpus);
            let node = places.nodes.entry(name.to_owned()).or_default();
            node.name = name.to_owned();
            let mut by = Vec::new();
            for pod in pods {
                let since = allocated_at(claim).unwrap_or(pod.created);
                let lost = u128::from(rate) * wall.since(since).as_millis();
                by.push(node.candidate(pod, lost));
            }
            node.held.push(Held {
                by,
                key: claim.key(),
                allocation: allocation.clone(),
            });
        }
        self.evictions.unheld = unheld;
        places
    }

    fn evict_for(&mut self, due: &Due, places: &mut Places, now: Now, writes: &mut Vec<Write>, tries: &mut Tries) {
        let only: Vec<&str> = due.pools.iter().filter_map(|pool| self.gpus.node(pool)).collect();
        if only.len() < due.pools.len() {
            // A GPU that it has is not published now.
            return;
        }
        let is_allowed = |node: &str| only.iter().all(|only| *only == node);
        let is_known = match self.free.fits(&due.claims, is_allowed, tries) {
            Ok(false) => true,
            // It fits: kube-scheduler is about to bind it, or the obstacle is something other than GPUs.
            Ok(true) => return,
            // It is tried again in the next search.
            Err(AllocateError::Exhausted { .. }) if tries.are_over() => return,
            // Treated as not fitting; otherwise a pod that is hard to place would never get a place.
            Err(AllocateError::Exhausted { .. }) => false,
            Err(mistake) => {
                let why = mistake.in_words(|claim| due.claims[claim].metadata.name.clone());
                return self
                    .notices
                    .push((About::pod(due.pod.clone()), Notice::NotKnown(NotKnown::Refused(why))));
            }
        };
        let nodes: Vec<&Node> = places.nodes.values().filter(|node| is_allowed(&node.name)).collect();
        let Some(choice) = choose(&mut self.free, &nodes, &due.claims, tries) else {
            if !is_known {
                self.notices
                    .push((About::pod(due.pod.clone()), Notice::NotKnown(NotKnown::TooLong)));
            }
            return;
        };
        let task = Task::Eviction(due.pod.clone());
        if self.pauses.get(&task).is_some_and(|(_, until)| *until > now) {
            return;
        }
        places.leave(&choice, &mut self.free);
        places.promise(&choice.node, &due.claims, &mut self.free, tries);
        let promise = Promise {
            node: choice.node.clone(),
            claims: due.claims.clone(),
            victims: choice.victims.clone(),
            until: now + PROMISE,
            is_sent: true,
        };
        self.evictions.promises.insert(due.pod.clone(), promise);
        writes.push(Write::Evict {
            waiting: due.pod.clone(),
            victims: choice.victims,
        });
    }

    /// Reports the outcome of evictions. Returns true if they need no pause.
    pub(super) fn report_eviction(&mut self, waiting: &PodRef, outcome: Outcome, now: Now) -> bool {
        // Plan this namespace again.
        self.dirty.insert(waiting.namespace.clone());
        let Some(mut promise) = self.evictions.promises.remove(waiting) else {
            return true;
        };
        promise.is_sent = false;
        promise.until = now + PROMISE;
        match outcome {
            Outcome::Evicted { gone, kept } => {
                for pod in &gone {
                    self.evictions.evicted.insert(pod.uid.clone(), promise.until);
                    let reset = self.reset_of(&pod.namespace);
                    let (node, waiting) = (promise.node.clone(), waiting.uid.clone());
                    self.notices
                        .push((About::pod(pod.clone()), Notice::Evicted { node, waiting, reset }));
                }
                if !gone.is_empty() {
                    let (count, node) = (gone.len(), promise.node.clone());
                    let notice = Notice::RoomMade { count, node };
                    self.notices.push((About::pod(waiting.clone()), notice));
                }
                for (pod, why) in &kept {
                    let (times, until) = self.evictions.refused.entry(pod.uid.clone()).or_default();
                    *until = now + REFUSED.saturating_mul(1 << (*times).min(10)).min(REFUSED_MAX);
                    *times = times.saturating_add(1);
                    let notice = Notice::EvictionRefused(why.clone());
                    self.notices.push((About::pod(waiting.clone()), notice));
                }
                if kept.is_empty() && !gone.is_empty() {
                    self.evictions.promises.insert(waiting.clone(), promise);
                }
                true
            }
            Outcome::Dropped => true,
            // Some pods may be gone: until that is known, nobody else is evicted for this pod.
            _ => {
                for pod in &promise.victims {
                    self.evictions.evicted.insert(pod.uid.clone(), promise.until);
                }
                self.evictions.promises.insert(waiting.clone(), promise);
                false
            }
        }
    }

    fn reset_of(&self, namespace: &str) -> String {
        let reset = self.namespaces.get(namespace).and_then(|namespace| namespace.reset());
        reset.map_or_else(|| "the end of its period".to_owned(), Time::text)
    }

    /// Forgets the evictions of a pod that is gone.
    pub(super) fn forget_evictions(&mut self, uid: &str) {
        self.evictions.refused.remove(uid);
        self.evictions.evicted.remove(uid);
        self.evictions.waiting.remove(uid);
    }
}

impl Node {
    /// The index of a candidate. Its loss is increased by `lost`.
    fn candidate(&mut self, pod: &Pod, lost: u128) -> usize {
        let at = PodRef::from(pod);
        let known = self.candidates.iter().position(|known| known.pod == at);
        let number = known.unwrap_or_else(|| {
            self.candidates.push(Candidate {
                pod: at,
                created: pod.created,
                lost: 0,
            });
            self.candidates.len() - 1
        });
        let known = &mut self.candidates[number].lost;
        *known = known.saturating_add(lost);
        number
    }
}

impl Places {
    /// Marks the shares of the chosen pods as free, and removes these from further choices.
    fn leave(&mut self, choice: &Choice, free: &mut FreeCapacity) {
        let Some(node) = self.nodes.get_mut(&choice.node) else {
            return;
        };
        let is_victim = |at: &usize| choice.victims.contains(&node.candidates[*at].pod);
        let (gone, left): (Vec<Held>, Vec<Held>) = std::mem::take(&mut node.held)
            .into_iter()
            .partition(|held| held.by.iter().all(is_victim));
        node.held = left;
        for held in gone {
            free.set_claim(&held.key, None);
            self.left_out.push((held.key, held.allocation));
        }
    }

    /// Reserves the promised place of these claims on a node.
    fn promise(&mut self, node: &str, claims: &[ResourceClaim], free: &mut FreeCapacity, tries: &mut Tries) {
        for allocation in free.allocate_on(node, claims, tries).into_iter().flatten() {
            let key = format!("promised {}", self.promised.len());
            free.set_claim(&key, Some(&Arc::new(allocation)));
            self.promised.push(key);
        }
    }

    /// Ends the search: restores the index to the API server's state.
    fn restore(self, free: &mut FreeCapacity) {
        for key in self.promised {
            free.set_claim(&key, None);
        }
        for (key, allocation) in self.left_out {
            free.set_claim(&key, Some(&allocation));
        }
    }
}

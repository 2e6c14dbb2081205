//! Evictions: a pod in budget that waits long enough gets the place of pods over budget.
//!
//! At most once a second, and only while a namespace is over budget, the leader looks at pods in budget for which
//! kube-scheduler found no place. One that has waited long enough, fits nowhere now, and would fit on a node without some
//! of its pods over budget, has the fewest of these evicted. Failure modes:
//! - **Shares that are not free yet:** what pods that are being deleted hold counts as free until 30 s after they
//!   should be gone, so nobody is evicted for a pod that will fit. Those that this leader evicted count so before the
//!   watch shows it, and what they leave is promised to the pod that they went for, until it is bound or
//!   [`PROMISE`] is over.
//! - **A crash after some evictions:** the next leader sees the pods' deletionTimestamp, and waits as long again before it
//!   evicts anybody. The events may be missing.
//! - **An answer that is lost:** the pods count as evicted for as long as a promise holds, and then as they are seen.
//! - **A PodDisruptionBudget refuses:** all are asked by dry runs first, so nobody goes in vain; those that it keeps are
//!   left out for [`REFUSED`], times two for each more, and others are chosen. Nobody is deleted.
//! - **The pod does not start though it has room** (a selector of its node, its CPU): nobody more is evicted for it, since
//!   it fits.
//! - **Many pods, or pods that are hard to place:** one look tries no more than [`TRIES`] placements. If they are used up,
//!   nobody is evicted for the pods that are left; the next look comes 10 s later and begins with these.
//! - **Which GPUs it could have is not known** (selectors by expressions): nobody is evicted, and it is told why.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use crate::demand::Demand;
use crate::eviction::{Candidate, Held, Node, choose};
use crate::evictions::Promise;
use crate::notice::{Kind, Notice};
use crate::plan::{Outcome, PodRef, Task, Write, subject};
use crate::pod::Pod;
use crate::room::{Room, Tries, Want};
use crate::time::{Now, Wall};

use super::Desk;

/// The shortest time between two searches.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A search is repeated after this time, also if nothing has changed.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// How long the room that evicted pods leave is kept for the waiting pod.
const PROMISE: Duration = Duration::from_secs(60);
/// How long a pod whose eviction was refused is not chosen again.
const REFUSED: Duration = Duration::from_secs(10);
const REFUSED_MAX: Duration = Duration::from_secs(300);

/// The limit of placements that are tried in one look, for all pods together: some tenths of a second.
const TRIES: u32 = 50_000;

/// A pod that has waited long enough.
struct Due {
    pod: PodRef,
    created: String,
    ways: Vec<Vec<Demand>>,
    pools: Vec<String>,
}

/// The free room of all nodes, and the shares that evictions could free.
struct Places {
    room: Room,
    nodes: BTreeMap<String, Node>,
}

impl Desk {
    /// Sets how long a pod in budget waits before others are evicted for it.
    #[must_use]
    pub fn with_evictions_after(mut self, after: Duration) -> Self {
        self.evictions.after = after;
        self
    }

    /// Adds the evictions that are due, and returns when to look again.
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
        for promise in self.evictions.promises.values() {
            let wants = places.room.wants(&promise.demands);
            places.room.reserve(&promise.node, &wants);
        }
        let mut tries = Tries::new(TRIES);
        let mut finished = None;
        for due in self.evictions.in_turn(due, |due| &due.pod) {
            if !self.evictions.promises.contains_key(&due.pod) {
                self.evict_for(&due, &mut places, now, writes, &mut tries);
            }
            if tries.are_over() {
                // One that needs all tries alone has had its turn.
                self.evictions.last_tried = finished.or(Some(due.pod));
                self.evictions.next = now + LOOK_AGAIN;
                break;
            }
            finished = Some(due.pod);
        }
        Some(soonest.unwrap_or(now + LOOK_AGAIN).min(now + LOOK_AGAIN))
    }

    /// The pods in budget that have waited long enough, the oldest first, and when the next one has.
    fn due_for_eviction(&mut self, now: Now) -> (Vec<Due>, Option<Now>) {
        let (mut due, mut told, mut soonest) = (Vec::new(), Vec::new(), None::<Now>);
        let mut waiting = HashMap::new();
        let mut unbound = HashSet::new();
        for namespace in self.namespaces.values().filter(|namespace| namespace.is_in_budget()) {
            for pod in namespace.unbound() {
                unbound.insert(PodRef::of(pod));
                let wanted = namespace.wanted(pod, &self.classes, &self.gpus);
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
                    Some(why) => told.push((subject(Kind::Pod, &PodRef::of(pod)), Notice::NotKnown(why))),
                    None => due.push(Due {
                        pod: PodRef::of(pod),
                        created: pod.created.clone(),
                        ways: wanted.ways,
                        pools: wanted.pools,
                    }),
                }
            }
        }
        for (subject, notice) in told {
            self.tell(subject, notice);
        }
        due.sort_by(|a, b| (&a.created, &a.pod).cmp(&(&b.created, &b.pod)));
        self.evictions.waiting = waiting;
        self.evictions
            .promises
            .retain(|pod, promise| promise.is_sent || unbound.contains(pod));
        (due, soonest)
    }

    /// Computes the room when all deleted pods are gone, and the shares of pods that may be evicted.
    fn places(&mut self, now: Now) -> Places {
        let wall = self.clock.wall(now);
        let mut places = Places {
            room: Room::new(&self.gpus),
            nodes: BTreeMap::new(),
        };
        let mut unheld = HashMap::new();
        let mut freeable = Vec::new();
        for namespace in self.namespaces.values() {
            let is_over = namespace.is_over_budget();
            let holders = namespace.holders();
            for claim in namespace.claims().filter(|claim| claim.is_allocated()) {
                let none = Vec::new();
                let held_by = holders.get(claim.uid.as_str()).unwrap_or(&none);
                if held_by.is_empty() {
                    // Its last pod is over, and Kubernetes frees it in a moment.
                    let since = *self.evictions.unheld.get(&claim.uid).unwrap_or(&now);
                    unheld.insert(claim.uid.clone(), since);
                    if now < since + PROMISE {
                        continue;
                    }
                }
                let (going, staying): (Vec<&Pod>, Vec<&Pod>) =
                    held_by.iter().partition(|pod| self.evictions.is_going(pod, wall));
                if !going.is_empty() && staying.is_empty() {
                    continue;
                }
                for (pool, device, share) in claim.given(&self.gpus) {
                    places.room.take(pool, device, share);
                }
                let may_go = |pod: &&Pod| is_over && self.evictions.may_evict(pod, now);
                if !staying.is_empty() && staying.iter().all(may_go) {
                    freeable.push((claim, staying));
                }
            }
        }
        for (claim, pods) in freeable {
            let mut on: BTreeMap<&str, Vec<(usize, crate::amount::Amount)>> = BTreeMap::new();
            for (pool, device, share) in claim.given(&self.gpus) {
                if let Some(place) = places.room.place(pool, device) {
                    on.entry(&place.node).or_default().push((place.device, share));
                }
            }
            // All that hold it are on its node; a claim on several is left alone.
            let [(name, shares)] = &on.into_iter().collect::<Vec<_>>()[..] else {
                continue;
            };
            if pods.iter().any(|pod| pod.node.as_deref() != Some(name)) {
                continue;
            }
            let rate = claim.amount(&self.classes, &self.gpus).map_or(0, |amount| amount.gpus);
            let node = places.nodes.entry((*name).to_owned()).or_default();
            let mut by = Vec::new();
            for pod in pods {
                let since = claim.allocated_at.or_else(|| Wall::parse(&pod.created));
                let lost = u128::from(rate) * u128::from(wall.since(since.unwrap_or(wall)));
                by.push(node.candidate(pod, lost));
            }
            node.held.push(Held {
                by,
                shares: shares.clone(),
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
        let ways: Vec<Vec<Want>> = due.ways.iter().map(|way| places.room.wants(way)).collect();
        // It fits: kube-scheduler is about to bind it, or something else than GPUs is in its way.
        if ways.iter().any(|way| places.room.fits(way, is_allowed, tries)) {
            return;
        }
        if tries.are_over() {
            // It may fit.
            return;
        }
        for (name, free) in places.room.nodes() {
            if let Some(node) = places.nodes.get_mut(name) {
                node.name = name.to_owned();
                node.free = free.to_vec();
            }
        }
        let nodes = places.nodes.values().filter(|node| is_allowed(&node.name));
        let Some(choice) = choose(&nodes.collect::<Vec<_>>(), &ways, tries) else {
            return;
        };
        let task = Task::Eviction(due.pod.clone());
        if self.pauses.get(&task).is_some_and(|(_, until)| *until > now) {
            return;
        }
        places.leave(&choice.node, &choice.victims);
        places.room.reserve(&choice.node, &ways[choice.way]);
        let promise = Promise {
            node: choice.node.clone(),
            demands: due.ways[choice.way].clone(),
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
                    self.tell(subject(Kind::Pod, pod), Notice::Evicted { node, waiting, reset });
                }
                if !gone.is_empty() {
                    let (count, node) = (gone.len(), promise.node.clone());
                    let notice = Notice::RoomMade { count, node };
                    self.tell(subject(Kind::Pod, waiting), notice);
                }
                for (pod, why) in &kept {
                    let (times, until) = self.evictions.refused.entry(pod.uid.clone()).or_default();
                    *until = now + REFUSED.saturating_mul(1 << (*times).min(10)).min(REFUSED_MAX);
                    *times = times.saturating_add(1);
                    let notice = Notice::EvictionRefused(why.clone());
                    self.tell(subject(Kind::Pod, waiting), notice);
                }
                if kept.is_empty() && !gone.is_empty() {
                    self.evictions.promises.insert(waiting.clone(), promise);
                }
                true
            }
            Outcome::Dropped => true,
            // Some may be gone: until it is seen, nobody else goes for it.
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
        reset.map_or_else(|| "the end of its period".to_owned(), Wall::text)
    }

    /// A pod is gone: what is known of its evictions is needed no more.
    pub(super) fn forget_evictions(&mut self, uid: &str) {
        self.evictions.refused.remove(uid);
        self.evictions.evicted.remove(uid);
        self.evictions.waiting.remove(uid);
    }
}

impl Node {
    /// The number of a candidate, which loses this much more.
    fn candidate(&mut self, pod: &Pod, lost: u128) -> usize {
        let at = PodRef::of(pod);
        let known = self.candidates.iter().position(|known| known.pod == at);
        let number = known.unwrap_or_else(|| {
            self.candidates.push(Candidate {
                pod: at,
                created: pod.created.clone(),
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
    /// These go: what they hold is free, and they go no second time.
    fn leave(&mut self, node: &str, victims: &[PodRef]) {
        let Some(node) = self.nodes.get_mut(node) else { return };
        let is_victim = |at: &usize| victims.contains(&node.candidates[*at].pod);
        let (gone, left): (Vec<Held>, Vec<Held>) = std::mem::take(&mut node.held)
            .into_iter()
            .partition(|held| held.by.iter().all(is_victim));
        node.held = left;
        for held in gone {
            for (device, share) in held.shares {
                let place = crate::room::Place {
                    node: node.name.clone(),
                    device,
                };
                if let Some(free) = self.room.device(&place) {
                    free.give_back(share);
                }
            }
        }
    }
}

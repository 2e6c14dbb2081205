//! The leader's desk: what it knows, and what it does next.

mod apply;
mod evictions;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use crate::amount::Amount;
use crate::budget::Steady;
use crate::class::Classes;
use crate::evictions::Evictions;
use crate::gpus::Gpus;
use crate::keeper::Keeper;
use crate::namespace::Namespace;
use crate::notice::{Kind, Notice, Subject};
use crate::plan::{Numbers, Outcome, Plan, PodRef, Task, Write, subject};
use crate::room::{Room, Tries};
use crate::time::{Now, Wall};
use crate::view::View;

/// Kinds that were listed at least once.
#[derive(Debug, Default, Clone, Copy)]
struct Listed {
    quotas: bool,
    claims: bool,
    pods: bool,
    classes: bool,
    slices: bool,
    resource_quotas: bool,
    namespaces: bool,
    defaults: bool,
}

/// The limit of placements that are tried to find out if somebody in budget waits.
const TRIES: u32 = 50_000;
/// How long it is not tried again after that limit.
const UNSURE: Duration = Duration::from_secs(10);
/// A notice that still holds is told again after this time.
const TELL_AGAIN: Duration = Duration::from_secs(1800);
/// A pause after a write that failed, times two for each more, up to the longest.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// See the crate's head. One desk is one term of leading: it begins with lists that were made after the lease was won.
#[derive(Debug)]
pub struct Desk {
    /// The number of this term as leader: no other term has the same.
    epoch: String,
    listed: Listed,
    classes: Classes,
    gpus: Gpus,
    /// Boxed, as are the pods and claims in it: a map keeps room for more of them.
    namespaces: BTreeMap<String, Box<Namespace>>,
    keeper: Keeper,
    clock: Steady,
    /// Namespaces to look at.
    dirty: BTreeSet<String>,
    /// Later.
    due: BTreeMap<String, Now>,
    ungating: HashSet<PodRef>,
    /// Gates that were taken off, until the watch shows it.
    ungated: HashSet<String>,
    pauses: HashMap<Task, (u32, Now)>,
    /// By topic: when it was told.
    told: HashMap<Subject, HashMap<String, Now>>,
    untold: Vec<(Subject, Notice)>,
    evictions: Evictions,
    /// Until when it counts as true, unasked, that somebody in budget waits: to find out took too long.
    unsure_until: Now,
    /// The time of the last call.
    now: Now,
}

impl Desk {
    #[must_use]
    pub fn new(epoch: impl Into<String>, clock: Steady) -> Self {
        Self {
            epoch: epoch.into(),
            listed: Listed::default(),
            classes: Classes::default(),
            gpus: Gpus::default(),
            namespaces: BTreeMap::new(),
            keeper: Keeper::default(),
            clock,
            dirty: BTreeSet::new(),
            due: BTreeMap::new(),
            ungating: HashSet::new(),
            ungated: HashSet::new(),
            pauses: HashMap::new(),
            told: HashMap::new(),
            untold: Vec::new(),
            evictions: Evictions::default(),
            unsure_until: Now::ZERO,
            now: Now::ZERO,
        }
    }

    /// A desk for which the objects that it gets are all there are. It leads nobody.
    pub(crate) fn of_all(clock: Steady) -> Self {
        let mut desk = Self::new("", clock);
        desk.listed = Listed {
            quotas: true,
            claims: true,
            pods: true,
            classes: true,
            slices: true,
            resource_quotas: true,
            namespaces: true,
            defaults: true,
        };
        desk
    }

    /// The clock, for the next term of this process.
    #[must_use]
    pub const fn clock(&self) -> &Steady {
        &self.clock
    }

    /// Nothing is decided before every kind was listed once.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        let listed = self.listed;
        let counted = listed.quotas && listed.claims && listed.pods && listed.classes && listed.slices;
        counted && listed.resource_quotas && listed.namespaces && listed.defaults
    }

    #[must_use]
    pub fn numbers(&self) -> Numbers {
        let mut numbers = Numbers::default();
        for namespace in self.namespaces.values() {
            namespace.count(&mut numbers);
        }
        numbers
    }

    /// Compares with the machine's clock.
    pub fn check_clock(&mut self, now: Now, machine: Wall) {
        self.now = now;
        let before = self.clock.wall(now);
        let Some(by) = self.clock.check(now, machine) else {
            return;
        };
        let mut notices = Vec::new();
        for namespace in self.namespaces.values_mut() {
            notices.extend(namespace.jump(before, by));
        }
        for subject in notices {
            self.told.remove(&subject);
            self.tell(subject, Notice::ClockJumped(by / 1000));
        }
    }

    /// Returns what to do now. What it returns counts as under way until [`Self::report`].
    pub fn plan(&mut self, now: Now) -> Plan {
        self.now = now;
        let mut plan = Plan::default();
        if !self.is_complete() {
            return plan;
        }
        let are_fewer = self.gpus.expire(now);
        self.recount(are_fewer, self.clock.wall(now));
        let due: Vec<String> = self
            .due
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(name, _)| name.clone())
            .collect();
        for name in due {
            self.due.remove(&name);
            self.dirty.insert(name);
        }
        let dirty = std::mem::take(&mut self.dirty);
        let mut waits: Option<bool> = None;
        for name in dirty {
            if let Some(namespace) = self.namespaces.get(&name) {
                // Only a spent budget asks who waits elsewhere.
                let must_yield = namespace.may_yield()
                    && match waits {
                        Some(known) => known,
                        None => *waits.insert(self.is_anyone_in_budget_waiting(now)),
                    };
                if must_yield && now < self.unsure_until {
                    // It is asked again then.
                    self.look(&name, self.unsure_until);
                }
                self.plan_namespace(&name, must_yield, now, &mut plan);
            }
            self.keep(&name, now, &mut plan);
        }
        let look_at = self.plan_evictions(now, &mut plan.writes);
        plan.notices = std::mem::take(&mut self.untold);
        plan.wake = self.due.values().copied().chain(look_at).min();
        plan
    }

    fn plan_namespace(&mut self, name: &str, must_yield: bool, now: Now, plan: &mut Plan) {
        let Some(namespace) = self.namespaces.get_mut(name) else {
            return;
        };
        if namespace.is_empty() {
            self.namespaces.remove(name);
            return;
        }
        let view = View {
            classes: &self.classes,
            gpus: &self.gpus,
            wall: self.clock.wall(now),
            epoch: &self.epoch,
        };
        let was_over_budget = namespace.is_over_budget();
        let mut decided = namespace.decide(&view, must_yield, now);
        let is_over_budget = namespace.is_over_budget();
        let is_other = is_over_budget != was_over_budget;
        if namespace.quota_uid().is_none() && self.keeper.stamps(name) {
            // There is a ceiling in a moment.
            decided.ungate.clear();
        }
        if is_other {
            self.look_at_yielding();
        }
        if !decided.notices.is_empty() {
            // An event is gone after an hour.
            self.look(name, now + TELL_AGAIN);
        }
        for (subject, notice) in decided.notices {
            self.tell(subject, notice);
        }
        if let Some(at) = decided.wake {
            self.look(name, at);
        }
        let mut writes: Vec<Write> = decided.write.into_iter().collect();
        let ungate = decided.ungate.into_iter();
        writes.extend(ungate.map(|(pod, claims)| Write::Ungate {
            pod,
            claims,
            is_over_budget,
        }));
        for write in writes {
            if self.is_paused(name, &write.task(), now) {
                continue;
            }
            match &write {
                Write::Ungate { pod, .. } => {
                    if self.ungated.contains(&pod.uid) || !self.ungating.insert(pod.clone()) {
                        continue;
                    }
                }
                // Not decided on for a namespace.
                Write::Evict { .. } => {}
                Write::Status { .. } | Write::Read { .. } => {
                    let Some(namespace) = self.namespaces.get_mut(name) else {
                        continue;
                    };
                    namespace.begin_write();
                }
                // These come from the keeper, below.
                Write::Label { .. } | Write::Stamp { .. } => {}
            }
            plan.writes.push(write);
        }
    }

    /// The namespace's label, and a quota from a default.
    fn keep(&mut self, name: &str, now: Now, plan: &mut Plan) {
        let known = self.namespaces.get(name).map(Box::as_ref);
        let quota = known.and_then(Namespace::quota);
        let (writes, notices) = self.keeper.decide(name, quota, known.and_then(Namespace::mark));
        for (subject, notice) in notices {
            self.tell(subject, notice);
        }
        for write in writes {
            if !self.is_paused(name, &write.task(), now) {
                self.keeper.begin(&write);
                plan.writes.push(write);
            }
        }
    }

    /// Returns true if a write about this failed a moment ago; then the namespace is looked at again after the pause.
    fn is_paused(&mut self, name: &str, task: &Task, now: Now) -> bool {
        let pause = self.pauses.get(task).map(|(_, until)| *until);
        let Some(until) = pause.filter(|until| *until > now) else {
            return false;
        };
        self.look(name, until);
        true
    }

    /// Reports what became of a write of a plan.
    pub fn report(&mut self, task: &Task, outcome: Outcome, now: Now) {
        self.now = now;
        let is_done = match task {
            Task::Pod(pod) => {
                self.ungating.remove(pod);
                match &outcome {
                    Outcome::Ungated => {
                        // The watch may have shown it already.
                        let namespace = self.namespaces.get(&pod.namespace);
                        if namespace.is_some_and(|namespace| namespace.is_gated(&pod.uid)) {
                            self.ungated.insert(pod.uid.clone());
                        }
                    }
                    Outcome::Refused(why) => {
                        let subject = subject(Kind::Pod, pod);
                        self.tell(subject, Notice::GateRefused(why.clone()));
                    }
                    _ => {}
                }
                self.dirty.insert(pod.namespace.clone());
                matches!(outcome, Outcome::Ungated | Outcome::Dropped)
            }
            Task::Eviction(waiting) => self.report_eviction(waiting, outcome, now),
            Task::Label(name) | Task::Stamp(name) => {
                self.dirty.insert(name.clone());
                if let Some((subject, notice)) = self.keeper.end(task, &outcome) {
                    self.tell(subject, notice);
                }
                match outcome {
                    Outcome::Quota(quota) => {
                        self.set_quota(*quota, now);
                        true
                    }
                    outcome => matches!(outcome, Outcome::Labelled | Outcome::Dropped),
                }
            }
            Task::Namespace(name) => {
                self.dirty.insert(name.clone());
                let Some(namespace) = self.namespaces.get_mut(name) else {
                    return;
                };
                namespace.end_write(matches!(outcome, Outcome::Quota(_) | Outcome::NoQuota));
                match outcome {
                    Outcome::Quota(quota) => {
                        self.set_quota(*quota, now);
                        true
                    }
                    Outcome::NoQuota => {
                        if let Some(uid) = namespace.quota_uid().map(str::to_owned) {
                            self.remove_quota(name, &uid);
                        }
                        true
                    }
                    Outcome::Refused(why) => {
                        let subject = namespace.subject();
                        if let Some(subject) = subject {
                            self.tell(subject, Notice::StatusRefused(why));
                        }
                        false
                    }
                    Outcome::Dropped => true,
                    _ => false,
                }
            }
        };
        if is_done {
            self.pauses.remove(task);
            return;
        }
        let (failures, until) = self.pauses.entry(task.clone()).or_default();
        *until = now + PAUSE.saturating_mul(1 << (*failures).min(10)).min(PAUSE_MAX);
        *failures = failures.saturating_add(1);
    }

    /// The claims that wait for a namespace's quota, for `tests` and metrics: what it holds.
    #[must_use]
    pub fn reserved(&self, namespace: &str) -> Option<Amount> {
        Some(self.namespaces.get(namespace)?.status()?.used)
    }

    fn look(&mut self, name: &str, at: Now) {
        let known = self.due.entry(name.to_owned()).or_insert(at);
        *known = (*known).min(at);
    }

    /// Returns true if a pod in budget waits for GPUs that it could have, if those over budget were not there.
    fn is_anyone_in_budget_waiting(&mut self, now: Now) -> bool {
        if now < self.unsure_until {
            return true;
        }
        let mut room = Room::new(&self.gpus);
        // Pods of one workload want the same.
        let mut waiting = HashSet::new();
        for namespace in self.namespaces.values().filter(|namespace| !namespace.is_over_budget()) {
            for (pool, device, share) in namespace.claims().flat_map(|claim| claim.given(&self.gpus)) {
                room.take(pool, device, share);
            }
            let pods = namespace.unbound();
            let wanted = pods.filter_map(|pod| namespace.wanted(pod, &self.classes, &self.gpus));
            waiting.extend(wanted.flat_map(|wanted| wanted.ways));
        }
        let mut tries = Tries::new(TRIES);
        let fits = waiting
            .iter()
            .any(|way| room.fits(&room.wants(way), |_| true, &mut tries));
        if !fits && tries.are_over() {
            self.unsure_until = now + UNSURE;
            return true;
        }
        fits
    }

    fn tell(&mut self, subject: Subject, notice: Notice) {
        let told = self.told.entry(subject.clone()).or_default();
        let topic = notice.topic();
        if told.get(&topic).is_none_or(|last| self.now >= *last + TELL_AGAIN) {
            told.insert(topic, self.now);
            self.untold.push((subject, notice));
        }
    }
}

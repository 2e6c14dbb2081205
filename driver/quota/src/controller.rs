//! The leader of quotas: its knowledge of all namespaces, and its next writes.

mod apply;
mod evictions;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use vgpu_allocator::model::ResourceClaim;
use vgpu_api::PodRef;
use vgpu_api::quota::BudgetStatus;
use vgpu_planner::{About, Time};

use crate::Now;
use crate::amount::Amount;
use crate::budget::Steady;
use crate::evictions::Evictions;
use crate::free_capacity::{FreeCapacity, Tries};
use crate::gpus::Gpus;
use crate::namespace::Namespace;
use crate::namespace_labels::Labels;
use crate::notice::Notice;
use crate::plan::{Numbers, Outcome, Plan, Task, Write};
use crate::pod::is_gated;
use crate::status::Status;
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

/// The allocator's steps for one search whether a pod in budget waits.
const STEPS: u64 = 500_000;
/// How long the search is not repeated after it has used up these steps.
const UNSURE: Duration = Duration::from_secs(10);
/// How long the result of a search is used.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A condition that lasts is reported again after this time, because its event is only repeated then.
const FIND_AGAIN: Duration = Duration::from_secs(300);
/// The pause after a failed write. It doubles with each further failure, up to the longest.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// See the crate's head. One value is one term of leading: it begins with lists that were made after the lease was won.
#[derive(Debug)]
pub struct QuotaController {
    /// The number of this term as leader: no other term has the same.
    epoch: String,
    listed: Listed,
    /// How long decisions wait for the list of VgpuNodes. `None` if they do not wait, or it has arrived.
    nodes_until: Option<Now>,
    gpus: Gpus,
    free: FreeCapacity,
    /// Boxed, because a map reserves room for more values than it holds. Pods and claims are boxed for the same reason.
    namespaces: BTreeMap<String, Box<Namespace>>,
    labels: Labels,
    /// By node: the namespaces for which it holds shares without a claim.
    holding: BTreeMap<String, BTreeSet<String>>,
    clock: Steady,
    /// Namespaces to plan next.
    dirty: BTreeSet<String>,
    /// Namespaces to plan later, and when.
    due: BTreeMap<String, Now>,
    ungating: HashSet<PodRef>,
    /// Gates that were taken off, until the watch shows it.
    ungated: HashSet<String>,
    pauses: HashMap<Task, (u32, Now)>,
    /// Notices for the next plan.
    notices: Vec<(About, Notice)>,
    evictions: Evictions,
    /// The last answer to [`Self::is_anyone_in_budget_waiting`], and until when it holds.
    waits: Option<(bool, Now)>,
    /// The time of the last call.
    now: Now,
}

impl QuotaController {
    #[must_use]
    pub fn new(epoch: impl Into<String>, clock: Steady) -> Self {
        Self {
            epoch: epoch.into(),
            listed: Listed::default(),
            nodes_until: None,
            gpus: Gpus::default(),
            free: FreeCapacity::default(),
            namespaces: BTreeMap::new(),
            labels: Labels::default(),
            holding: BTreeMap::new(),
            clock,
            dirty: BTreeSet::new(),
            due: BTreeMap::new(),
            ungating: HashSet::new(),
            ungated: HashSet::new(),
            pauses: HashMap::new(),
            notices: Vec::new(),
            evictions: Evictions::default(),
            waits: None,
            now: Now::ZERO,
        }
    }

    /// Makes no decision before the VgpuNodes are listed, so that no gate is opened for room that a share without a
    /// claim still takes. Since they may not be readable, `until` limits the wait.
    #[must_use]
    pub const fn with_nodes(mut self, until: Now) -> Self {
        self.nodes_until = Some(until);
        self
    }

    /// Makes a controller that takes the objects it gets as complete. It is not a leader.
    pub(crate) fn of_all(clock: Steady) -> Self {
        let mut controller = Self::new("", clock);
        controller.listed = Listed {
            quotas: true,
            claims: true,
            pods: true,
            classes: true,
            slices: true,
            resource_quotas: true,
            namespaces: true,
            defaults: true,
        };
        controller
    }

    /// The clock, for the next term of this process.
    #[must_use]
    pub const fn clock(&self) -> &Steady {
        &self.clock
    }

    /// Returns true once every kind was listed; nothing is decided before.
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

    /// For metrics: the used part of each ceiling above zero, with its namespace and the ceiling's name.
    pub fn used(&self) -> impl Iterator<Item = (&str, &'static str, f64)> {
        self.namespaces.iter().flat_map(|(name, namespace)| {
            let used = namespace.status().into_iter().flat_map(Status::used_ratios);
            used.map(move |(resource, ratio)| (name.as_str(), resource, ratio))
        })
    }

    /// The budget of each namespace that has one, as its quota says.
    pub fn budgets(&self) -> impl Iterator<Item = (&str, BudgetStatus)> {
        self.namespaces.iter().filter_map(|(name, namespace)| {
            let sum = namespace.status()?.budget?;
            Some((name.as_str(), sum.into()))
        })
    }

    /// Compares with the machine's clock.
    pub fn check_clock(&mut self, now: Now, machine: Time) {
        self.now = now;
        let before = self.clock.wall(now);
        let Some(by) = self.clock.check(now, machine) else {
            return;
        };
        for namespace in self.namespaces.values_mut() {
            let quota = namespace.jump(before, by);
            self.notices
                .extend(quota.map(|quota| (quota, Notice::ClockJumped(by / 1000))));
        }
    }

    /// Returns what to do now. Its writes count as in progress until [`Self::report`].
    pub fn plan(&mut self, now: Now) -> Plan {
        self.now = now;
        let mut plan = Plan::default();
        if !self.is_complete() {
            return plan;
        }
        if let Some(until) = self.nodes_until.filter(|until| now < *until) {
            plan.wake = Some(until);
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
        for name in dirty {
            if let Some(namespace) = self.namespaces.get(&name) {
                // Only a namespace with a spent budget needs to know who waits elsewhere.
                let must_yield = namespace.may_yield() && {
                    let (is_waiting, until) = self.known_waits(now);
                    if is_waiting {
                        // Plan it again when the answer expires.
                        self.look(&name, until);
                    }
                    is_waiting
                };
                self.plan_namespace(&name, must_yield, now, &mut plan);
            }
            self.plan_labels(&name, now, &mut plan);
        }
        let look_at = self.plan_evictions(now, &mut plan.writes);
        plan.notices = std::mem::take(&mut self.notices);
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
            index: self.free.index(),
            gpus: &self.gpus,
            wall: self.clock.wall(now),
            epoch: &self.epoch,
        };
        let was_over_budget = namespace.is_over_budget();
        let mut decided = namespace.decide(&view, must_yield, now);
        let is_over_budget = namespace.is_over_budget();
        let is_other = is_over_budget != was_over_budget;
        if namespace.quota_uid().is_none() && self.labels.stamps(name) {
            // The ceiling takes effect in a moment, so no gate opens before.
            decided.ungate.clear();
        }
        if is_other {
            self.look_at_yielding();
        }
        if !decided.notices.is_empty() {
            self.look(name, now + FIND_AGAIN);
        }
        self.notices.extend(decided.notices);
        if let Some(at) = decided.wake {
            self.look(name, at);
        }
        // Writes the status, or reads the quota.
        if let Some(write) = decided.write
            && !self.is_paused(name, &write.task(), now)
            && let Some(namespace) = self.namespaces.get_mut(name)
        {
            namespace.begin_write();
            plan.writes.push(write);
        }
        for (pod, claims) in decided.ungate {
            if self.is_paused(name, &Task::Pod(pod.clone()), now)
                || self.ungated.contains(&pod.uid)
                || !self.ungating.insert(pod.clone())
            {
                continue;
            }
            plan.writes.push(Write::Ungate {
                pod,
                claims,
                is_over_budget,
            });
        }
    }

    /// The namespace's label, and a quota from a default.
    fn plan_labels(&mut self, name: &str, now: Now, plan: &mut Plan) {
        let known = self.namespaces.get(name).map(Box::as_ref);
        let quota = known.and_then(Namespace::quota);
        let (writes, notices) = self.labels.decide(name, quota, known.and_then(Namespace::state));
        self.notices.extend(notices);
        for write in writes {
            if !self.is_paused(name, &write.task(), now) {
                self.labels.begin(&write);
                plan.writes.push(write);
            }
        }
    }

    /// Returns true if a write for this task failed a moment ago; the namespace is then planned again after the pause.
    fn is_paused(&mut self, name: &str, task: &Task, now: Now) -> bool {
        let pause = self.pauses.get(task).map(|(_, until)| *until);
        let Some(until) = pause.filter(|until| *until > now) else {
            return false;
        };
        self.look(name, until);
        true
    }

    /// Reports the outcome of a write in a plan.
    pub fn report(&mut self, task: &Task, outcome: Outcome, now: Now) {
        self.now = now;
        let is_done = match task {
            Task::Pod(pod) => self.report_gate(pod, outcome),
            Task::Eviction(waiting) => self.report_eviction(waiting, outcome, now),
            Task::Label(name) | Task::Stamp(name) => self.report_labels(name, task, outcome),
            Task::Namespace(name) => self.report_status(name, outcome),
        };
        if is_done {
            self.pauses.remove(task);
            return;
        }
        let (failures, until) = self.pauses.entry(task.clone()).or_default();
        *until = now + PAUSE.saturating_mul(1 << (*failures).min(10)).min(PAUSE_MAX);
        *failures = failures.saturating_add(1);
    }

    /// Handles the outcome of removing a gate. Like the other handlers, returns true if no pause is needed.
    fn report_gate(&mut self, pod: &PodRef, outcome: Outcome) -> bool {
        self.ungating.remove(pod);
        self.dirty.insert(pod.namespace.clone());
        match outcome {
            Outcome::Ungated => {
                // The watch may have shown it already.
                let known = self.namespaces.get(&pod.namespace);
                let known = known.and_then(|namespace| namespace.pod(&pod.name));
                if known.is_some_and(|known| known.uid == pod.uid && is_gated(known)) {
                    self.ungated.insert(pod.uid.clone());
                }
                true
            }
            Outcome::Refused(why) => {
                self.notices.push((About::pod(pod.clone()), Notice::GateRefused(why)));
                false
            }
            outcome => outcome == Outcome::Dropped,
        }
    }

    /// Handles the outcome of writing a label, or a quota from a default.
    fn report_labels(&mut self, name: &str, task: &Task, outcome: Outcome) -> bool {
        self.dirty.insert(name.to_owned());
        self.notices.extend(self.labels.end(task, &outcome));
        match outcome {
            Outcome::Quota(quota) => {
                self.set_quota(*quota, self.now);
                true
            }
            outcome => matches!(outcome, Outcome::Labelled | Outcome::Dropped),
        }
    }

    /// Handles the outcome of writing a status, or reading the quota.
    fn report_status(&mut self, name: &str, outcome: Outcome) -> bool {
        self.dirty.insert(name.to_owned());
        let Some(namespace) = self.namespaces.get_mut(name) else {
            return true;
        };
        namespace.end_write(matches!(outcome, Outcome::Quota(_) | Outcome::NoQuota));
        match outcome {
            Outcome::Quota(quota) => {
                self.set_quota(*quota, self.now);
                true
            }
            Outcome::NoQuota => {
                if let Some(uid) = namespace.quota_uid().map(str::to_owned) {
                    self.remove_quota(name, &uid);
                }
                true
            }
            Outcome::Refused(why) => {
                let quota = namespace.subject();
                self.notices
                    .extend(quota.map(|quota| (quota, Notice::StatusRefused(why))));
                false
            }
            outcome => outcome == Outcome::Dropped,
        }
    }

    /// The amounts that the status of a namespace's quota counts as used; `None` without a quota. For tests.
    #[must_use]
    pub fn reserved(&self, namespace: &str) -> Option<Amount> {
        Some(self.namespaces.get(namespace)?.status()?.used)
    }

    fn look(&mut self, name: &str, at: Now) {
        let known = self.due.entry(name.to_owned()).or_insert(at);
        *known = (*known).min(at);
    }

    /// Returns the answer to [`Self::is_anyone_in_budget_waiting`], and until when it holds: each takes a search.
    fn known_waits(&mut self, now: Now) -> (bool, Now) {
        if let Some(known) = self.waits.filter(|(_, until)| now < *until) {
            return known;
        }
        let (answer, holds) = match self.is_anyone_in_budget_waiting() {
            Some(answer) => (answer, LOOK_EVERY),
            None => (true, UNSURE),
        };
        *self.waits.insert((answer, now + holds))
    }

    /// Returns true if a pod in budget waits for GPUs that it would get without the pods over budget; `None` if the
    /// steps were not enough to find out. A pod that needs too many steps by itself is ignored; otherwise its owner
    /// could use it to keep the gates of others shut.
    fn is_anyone_in_budget_waiting(&mut self) -> Option<bool> {
        let (over, in_budget): (Vec<&Namespace>, Vec<&Namespace>) = self
            .namespaces
            .values()
            .map(Box::as_ref)
            .partition(|namespace| namespace.is_over_budget());
        let pods = in_budget
            .iter()
            .flat_map(|namespace| namespace.unbound().map(move |pod| (namespace, pod)));
        let wanted = pods.filter_map(|(namespace, pod)| namespace.wanted(pod, self.free.index()));
        // Pods of one workload want the same. Their claims have names of their own, and cannot be hashed.
        let shape =
            |claims: &[ResourceClaim]| format!("{:?}", claims.iter().map(|claim| &claim.spec).collect::<Vec<_>>());
        let wanted = wanted.filter(|wanted| !wanted.claims.is_empty());
        let waiting: HashMap<String, Vec<ResourceClaim>> =
            wanted.map(|wanted| (shape(&wanted.claims), wanted.claims)).collect();
        if waiting.is_empty() {
            return Some(false);
        }
        let held = || over.iter().flat_map(|namespace| namespace.allocated());
        held().for_each(|(claim, _)| self.free.set_claim(&claim.key(), None));
        let mut tries = Tries::new(STEPS);
        let fits = waiting
            .values()
            .any(|claims| self.free.fits(claims, |_| true, &mut tries).unwrap_or(false));
        held().for_each(|(claim, allocation)| self.free.set_claim(&claim.key(), Some(allocation)));
        (fits || !tries.are_over()).then_some(fits)
    }
}

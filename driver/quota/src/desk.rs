//! The leader's desk: what it knows, and what it does next.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use crate::amount::Amount;
use crate::budget::Steady;
use crate::ceilings::ResourceQuota;
use crate::claim::Claim;
use crate::class::{Class, Classes};
use crate::default::QuotaDefault;
use crate::gpus::{Gpus, Slice};
use crate::keeper::{self, Keeper, NamespaceLabels};
use crate::names::QUOTA;
use crate::namespace::{Namespace, View};
use crate::notice::{Kind, Notice, Subject};
use crate::plan::{Numbers, Outcome, Plan, PodRef, Task, Write, subject};
use crate::pod::Pod;
use crate::room::Room;
use crate::status::Quota;
use crate::time::{Now, Wall};

/// One change. The end of a list names all objects there are.
#[derive(Debug, Clone)]
pub enum Change {
    Quota(Box<Quota>),
    QuotaGone {
        namespace: String,
        uid: String,
    },
    Quotas {
        uids: Vec<String>,
    },
    Claim(Claim),
    ClaimGone {
        namespace: String,
        uid: String,
    },
    Claims {
        uids: Vec<String>,
    },
    /// Also one that matters no more: without a gate, claim or extended resource.
    Pod(Pod),
    PodGone {
        namespace: String,
        uid: String,
    },
    Pods {
        uids: Vec<String>,
    },
    Class(Class),
    ClassGone {
        name: String,
    },
    Classes {
        names: Vec<String>,
    },
    Slice(Slice),
    SliceGone {
        name: String,
    },
    Slices {
        names: Vec<String>,
    },
    ResourceQuota(ResourceQuota),
    ResourceQuotaGone {
        namespace: String,
        name: String,
    },
    ResourceQuotas {
        names: Vec<(String, String)>,
    },
    Namespace(NamespaceLabels),
    NamespaceGone {
        name: String,
        uid: String,
    },
    Namespaces {
        uids: Vec<String>,
    },
    Default(QuotaDefault),
    DefaultGone {
        name: String,
    },
    Defaults {
        names: Vec<String>,
    },
}

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

/// A pause after a write that failed, times two for each more, up to the longest.
const PAUSE: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// See the crate's head. One desk is one term of leading: it begins with lists that were made after the lease was won.
#[derive(Debug)]
pub struct Desk {
    listed: Listed,
    classes: Classes,
    gpus: Gpus,
    namespaces: BTreeMap<String, Namespace>,
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
    told: HashMap<Subject, BTreeSet<String>>,
    untold: Vec<(Subject, Notice)>,
}

impl Desk {
    #[must_use]
    pub fn new(clock: Steady) -> Self {
        Self {
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
        }
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

    pub fn apply(&mut self, change: Change, now: Now) {
        let wall = self.clock.wall(now);
        match change {
            Change::Quota(quota) => self.set_quota(*quota, now),
            Change::QuotaGone { namespace, uid } => self.remove_quota(&namespace, &uid),
            Change::Quotas { uids } => {
                let uids: HashSet<String> = uids.into_iter().collect();
                let gone = self.namespaces.iter().filter_map(|(name, namespace)| {
                    let uid = namespace.quota_uid().filter(|uid| !uids.contains(*uid))?;
                    Some((name.clone(), uid.to_owned()))
                });
                for (name, uid) in gone.collect::<Vec<_>>() {
                    self.remove_quota(&name, &uid);
                }
                self.listed.quotas = true;
            }
            Change::Claim(claim) => {
                let name = claim.namespace.clone();
                let view = View {
                    classes: &self.classes,
                    gpus: &self.gpus,
                    wall,
                };
                self.namespaces.entry(name.clone()).or_default().set_claim(claim, &view);
                self.dirty.insert(name);
            }
            Change::ClaimGone { namespace, uid } => self.remove_claim(&namespace, &uid, wall),
            Change::Claims { uids } => {
                let uids: HashSet<String> = uids.into_iter().collect();
                for (namespace, uid) in self.others(&uids, Namespace::claim_uids) {
                    self.remove_claim(&namespace, &uid, wall);
                }
                self.listed.claims = true;
            }
            Change::Pod(pod) => self.set_pod(pod),
            Change::PodGone { namespace, uid } => self.remove_pod(&namespace, &uid),
            Change::Pods { uids } => {
                let uids: HashSet<String> = uids.into_iter().collect();
                for (namespace, uid) in self.others(&uids, Namespace::pod_uids) {
                    self.remove_pod(&namespace, &uid);
                }
                self.listed.pods = true;
            }
            Change::Class(class) => {
                let is_new = self.classes.set(class);
                self.recount(is_new, wall);
            }
            Change::ClassGone { name } => {
                let is_new = self.classes.remove(&name);
                self.recount(is_new, wall);
            }
            Change::Classes { names } => {
                let is_new = self.classes.retain(&names) || !self.listed.classes;
                self.recount(is_new, wall);
                self.listed.classes = true;
            }
            Change::Slice(slice) => {
                let is_new = self.gpus.set(slice);
                self.recount(is_new, wall);
            }
            Change::SliceGone { name } => {
                let is_new = self.gpus.remove(&name);
                self.recount(is_new, wall);
            }
            Change::Slices { names } => {
                let is_new = self.gpus.retain(&names) || !self.listed.slices;
                self.recount(is_new, wall);
                self.listed.slices = true;
            }
            Change::ResourceQuota(quota) => {
                let name = quota.namespace.clone();
                self.namespaces
                    .entry(name.clone())
                    .or_default()
                    .set_resource_quota(quota);
                self.dirty.insert(name);
            }
            Change::ResourceQuotaGone { namespace, name } => {
                if let Some(known) = self.namespaces.get_mut(&namespace) {
                    known.remove_resource_quota(&name);
                    self.dirty.insert(namespace);
                }
            }
            Change::ResourceQuotas { names } => {
                let names: HashSet<(String, String)> = names.into_iter().collect();
                for (namespace, known) in &mut self.namespaces {
                    if known.retain_resource_quotas(|name| names.contains(&(namespace.clone(), name.to_owned()))) {
                        self.dirty.insert(namespace.clone());
                    }
                }
                self.listed.resource_quotas = true;
            }
            Change::Namespace(namespace) => {
                self.dirty.insert(namespace.name.clone());
                self.keeper.set_namespace(namespace);
            }
            Change::NamespaceGone { name, uid } => {
                self.keeper.remove_namespace(&name, &uid);
                self.pauses.remove(&Task::Label(name.clone()));
                self.pauses.remove(&Task::Stamp(name.clone()));
                self.dirty.insert(name);
            }
            Change::Namespaces { uids } => {
                self.dirty.extend(self.keeper.names());
                self.keeper.retain_namespaces(&uids.into_iter().collect());
                self.listed.namespaces = true;
            }
            Change::Default(default) => {
                let subject = keeper::subject(&default);
                self.told.remove(&subject);
                if let Err(problem) = &default.spec {
                    self.tell(subject, Notice::BadDefault(problem.clone()));
                }
                self.keeper.set_default(default);
                self.dirty.extend(self.keeper.names());
            }
            Change::DefaultGone { name } => self.remove_default(&name),
            Change::Defaults { names } => {
                for name in self.keeper.default_names() {
                    if !names.contains(&name) {
                        self.remove_default(&name);
                    }
                }
                self.listed.defaults = true;
            }
        }
    }

    /// Returns what to do now. What it returns counts as under way until [`Self::report`].
    pub fn plan(&mut self, now: Now) -> Plan {
        let mut plan = Plan::default();
        if !self.is_complete() {
            return plan;
        }
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
                let must_yield =
                    namespace.may_yield() && *waits.get_or_insert_with(|| self.is_anyone_in_budget_waiting());
                self.plan_namespace(&name, must_yield, now, &mut plan);
            }
            self.keep(&name, now, &mut plan);
        }
        plan.notices = std::mem::take(&mut self.untold);
        plan.wake = self.due.values().copied().min();
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
        };
        let mut decided = namespace.decide(&view, must_yield, now);
        if namespace.quota_uid().is_none() && self.keeper.stamps(name) {
            // There is a ceiling in a moment.
            decided.ungate.clear();
        }
        for (subject, notice) in decided.notices {
            self.tell(subject, notice);
        }
        if let Some(at) = decided.wake {
            self.look(name, at);
        }
        let mut writes: Vec<Write> = decided.write.into_iter().collect();
        let ungate = decided.ungate.into_iter();
        writes.extend(ungate.map(|(pod, claims)| Write::Ungate { pod, claims }));
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
                Write::Status { .. } | Write::Read { .. } => {
                    let Some(namespace) = self.namespaces.get_mut(name) else {
                        continue;
                    };
                    namespace.begin_write();
                }
                // Those of the keeper.
                Write::Label { .. } | Write::Stamp { .. } => {}
            }
            plan.writes.push(write);
        }
    }

    /// The namespace's label, and a quota from a default.
    fn keep(&mut self, name: &str, now: Now, plan: &mut Plan) {
        let known = self.namespaces.get(name);
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

    fn others<'a, I: Iterator<Item = &'a str>>(
        &'a self,
        listed: &HashSet<String>,
        of: fn(&'a Namespace) -> I,
    ) -> Vec<(String, String)> {
        let all = self
            .namespaces
            .iter()
            .flat_map(|(name, namespace)| of(namespace).map(move |uid| (name, uid)));
        let gone = all.filter(|(_, uid)| !listed.contains(*uid));
        gone.map(|(name, uid)| (name.clone(), uid.to_owned())).collect()
    }

    fn set_quota(&mut self, quota: Quota, now: Now) {
        if quota.name != QUOTA {
            // The policy refuses another name. With several it would not be known which one holds.
            return;
        }
        let name = quota.namespace.clone();
        let view = View {
            classes: &self.classes,
            gpus: &self.gpus,
            wall: self.clock.wall(now),
        };
        self.namespaces
            .entry(name.clone())
            .or_default()
            .set_quota(quota, &view, &self.clock);
        self.dirty.insert(name);
    }

    fn remove_quota(&mut self, namespace: &str, uid: &str) {
        if let Some(known) = self.namespaces.get_mut(namespace)
            && let Some(subject) = known.remove_quota(uid)
        {
            self.told.remove(&subject);
            self.dirty.insert(namespace.to_owned());
        }
    }

    fn remove_default(&mut self, name: &str) {
        if let Some(default) = self.keeper.remove_default(name) {
            self.told.remove(&keeper::subject(&default));
            self.dirty.extend(self.keeper.names());
        }
    }

    fn remove_claim(&mut self, namespace: &str, uid: &str, wall: Wall) {
        if let Some(known) = self.namespaces.get_mut(namespace) {
            known.remove_claim(uid, wall);
            self.dirty.insert(namespace.to_owned());
            self.look_at_yielding();
        }
    }

    fn set_pod(&mut self, pod: Pod) {
        let name = pod.namespace.clone();
        if !pod.is_relevant() {
            self.remove_pod(&name, &pod.uid.clone());
            return;
        }
        if !pod.is_gated {
            self.ungated.remove(&pod.uid);
            self.forget(&pod.namespace, &pod.name, &pod.uid);
        }
        self.namespaces.entry(name.clone()).or_default().set_pod(pod);
        self.dirty.insert(name);
        self.look_at_yielding();
    }

    fn remove_pod(&mut self, namespace: &str, uid: &str) {
        self.ungated.remove(uid);
        if let Some(known) = self.namespaces.get_mut(namespace)
            && let Some(pod) = known.remove_pod(uid)
        {
            self.pauses.remove(&Task::Pod(PodRef::of(&pod)));
            self.forget(namespace, &pod.name, uid);
            self.dirty.insert(namespace.to_owned());
            self.look_at_yielding();
        }
    }

    fn forget(&mut self, namespace: &str, name: &str, uid: &str) {
        self.told.remove(&Subject {
            kind: Kind::Pod,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        });
    }

    /// Classes or GPUs changed, and with them what claims count.
    fn recount(&mut self, is_new: bool, wall: Wall) {
        if !is_new {
            return;
        }
        let view = View {
            classes: &self.classes,
            gpus: &self.gpus,
            wall,
        };
        for (name, namespace) in &mut self.namespaces {
            namespace.recount(&view);
            self.dirty.insert(name.clone());
        }
    }

    /// Pods of spent budgets may go on when one in budget no longer waits.
    fn look_at_yielding(&mut self) {
        let yielding = self.namespaces.iter().filter(|(_, namespace)| namespace.may_yield());
        self.dirty
            .extend(yielding.map(|(name, _)| name.clone()).collect::<Vec<_>>());
    }

    /// Returns true if a pod in budget waits for GPUs that it could have, if those over budget were not there.
    fn is_anyone_in_budget_waiting(&self) -> bool {
        let mut room = Room::new(&self.gpus);
        let mut waiting = Vec::new();
        for namespace in self.namespaces.values() {
            if namespace.is_over_budget() {
                continue;
            }
            namespace.given(|pool, device, amount| room.take(pool, device, amount), &self.gpus);
            waiting.extend(namespace.unplaced(&self.classes, &self.gpus));
        }
        waiting.iter().any(|demands| room.fits(demands))
    }

    fn tell(&mut self, subject: Subject, notice: Notice) {
        if self.told.entry(subject.clone()).or_default().insert(notice.topic()) {
            self.untold.push((subject, notice));
        }
    }
}

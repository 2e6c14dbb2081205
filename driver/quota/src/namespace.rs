//! One namespace: its quota, what holds shares, and who waits. Decides; see the crate's head for how each failure ends.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use crate::amount::{Amount, Dimension, WrittenAmount, millionths};
use crate::budget::{Account, Steady, Sum};
use crate::ceilings::{Effective, ResourceQuota};
use crate::claim::{Claim, Uncounted, extended_amount, extended_key};
use crate::class::Classes;
use crate::gpus::Gpus;
use crate::mark::Mark;
use crate::names::OVER_BUDGET;
use crate::notice::{Kind, Notice, Subject};
use crate::plan::{Numbers, PodRef, SUM_EVERY, Write, subject};
use crate::pod::Pod;
use crate::spec::{Spec, WhenSpent};
use crate::status::{Quota, Status};
use crate::time::{Now, Wall};

/// So long a reservation stays of which nothing is seen: what kube-scheduler had decided before is written by then.
pub const HOLD: Duration = Duration::from_secs(30);
/// So long a claim may be missing before its pod is told: the watch may be a moment behind.
const MISSING: Duration = Duration::from_secs(10);
/// As many reservations fit into an object of etcd, three times.
pub const RESERVATIONS_MAX: usize = 4096;

/// What is the same for all namespaces.
pub(crate) struct View<'a> {
    pub(crate) classes: &'a Classes,
    pub(crate) gpus: &'a Gpus,
    pub(crate) wall: Wall,
}

/// What to do for a namespace.
#[derive(Debug, Default)]
pub(crate) struct Decided {
    pub(crate) write: Option<Write>,
    /// With the names and UIDs of their claims.
    pub(crate) ungate: Vec<(PodRef, Vec<(String, String)>)>,
    pub(crate) notices: Vec<(Subject, Notice)>,
    pub(crate) wake: Option<Now>,
}

impl Decided {
    fn wake(&mut self, at: Now) {
        self.wake = Some(self.wake.map_or(at, |known| known.min(at)));
    }
}

#[derive(Debug, Default)]
pub(crate) struct Namespace {
    quota: Option<Held>,
    claims: HashMap<String, Claim>,
    /// By the claim's name: its UID.
    names: HashMap<String, String>,
    /// By its key, where that is not its UID.
    extended: HashMap<String, String>,
    pods: BTreeMap<String, Pod>,
    resource_quotas: BTreeMap<String, ResourceQuota>,
    /// Since when nothing is seen of a reservation.
    idle: HashMap<String, Now>,
    /// Claims of reservations that were deleted, and those that were freed: nothing holds them any more.
    ended: HashSet<String>,
    /// Since when a pod's claim is missing.
    missing: HashMap<String, Now>,
    waiting: usize,
}

#[derive(Debug)]
struct Held {
    quota: Quota,
    account: Option<Account>,
    /// A write or a read is under way.
    is_busy: bool,
    /// What the API server has is not known: it is read first.
    must_read: bool,
    /// When the sum of the budget was last written.
    summed: Option<Now>,
}

impl Held {
    /// The account of its budget, with the shares that are there.
    fn open(&mut self, claims: &HashMap<String, Claim>, view: &View<'_>, clock: &Steady) {
        let budget = self.quota.spec.as_ref().ok().and_then(|spec| spec.budget);
        let Some(budget) = budget else {
            self.account = None;
            return;
        };
        let last = self.quota.status.budget.map(|sum| Sum {
            as_of: clock.shifted(sum.as_of),
            ..sum
        });
        let mut account = Account::resume(budget, self.quota.created, last.as_ref(), view.wall);
        for claim in claims.values() {
            charge(&mut account, claim, view, Some(claim.allocated_at));
        }
        self.account = Some(account);
    }
}

/// Starts, changes or ends what a claim costs. `found`: it was allocated before it was seen.
fn charge(account: &mut Account, claim: &Claim, view: &View<'_>, found: Option<Option<Wall>>) {
    if !claim.is_allocated() {
        account.end(&claim.uid);
        return;
    }
    // A GPU that is gone for a moment costs what it did.
    if claim.measured(view.gpus).is_none() && account.knows(&claim.uid) {
        return;
    }
    match claim.amount(view.classes, view.gpus).map_or(0, |amount| amount.gpus) {
        0 => account.end(&claim.uid),
        rate => account.set(&claim.uid, rate, found),
    }
}

/// What one pod takes.
#[derive(Debug)]
enum Needs {
    /// By key. What counts nothing is left out.
    Known(Vec<(String, Amount)>),
    /// Kubernetes has not made its claim yet.
    NotMade,
    NoClaim(String),
    Uncounted(String, Uncounted),
}

// === what is known ===

impl Namespace {
    pub(crate) fn is_empty(&self) -> bool {
        self.quota.is_none() && self.claims.is_empty() && self.pods.is_empty() && self.resource_quotas.is_empty()
    }

    pub(crate) fn quota_uid(&self) -> Option<&str> {
        Some(self.quota.as_ref()?.quota.uid.as_str())
    }

    pub(crate) fn quota(&self) -> Option<&Quota> {
        Some(&self.quota.as_ref()?.quota)
    }

    pub(crate) fn status(&self) -> Option<&Status> {
        Some(&self.quota.as_ref()?.quota.status)
    }

    pub(crate) fn subject(&self) -> Option<Subject> {
        let quota = &self.quota.as_ref()?.quota;
        Some(Subject {
            kind: Kind::Quota,
            namespace: quota.namespace.clone(),
            name: quota.name.clone(),
            uid: quota.uid.clone(),
        })
    }

    pub(crate) fn claim_uids(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(self.claims.keys().map(String::as_str))
    }

    pub(crate) fn pod_uids(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(self.pods.keys().map(String::as_str))
    }

    pub(crate) fn is_gated(&self, pod: &str) -> bool {
        self.pods.get(pod).is_some_and(|pod| pod.is_gated)
    }

    pub(crate) fn set_quota(&mut self, quota: Quota, view: &View<'_>, clock: &Steady) {
        if let Some(held) = &mut self.quota {
            if !quota.is_newer_than(&held.quota) {
                return;
            }
            let is_same = held.quota.uid == quota.uid;
            let budget = |quota: &Quota| quota.spec.as_ref().ok().and_then(|spec| spec.budget);
            // What this leader wrote, or somebody changed the spec: the account goes on.
            let goes_on = is_same && held.quota.status.budget == quota.status.budget;
            let new = budget(&quota);
            held.quota = quota;
            held.must_read = false;
            match (&mut held.account, new) {
                (Some(account), Some(budget)) if goes_on => {
                    if *account.budget() != budget {
                        account.advance(view.wall);
                        account.set_budget(budget);
                    }
                }
                _ => held.open(&self.claims, view, clock),
            }
            return;
        }
        let mut held = Held {
            quota,
            account: None,
            is_busy: false,
            must_read: false,
            summed: None,
        };
        held.open(&self.claims, view, clock);
        self.quota = Some(held);
    }

    /// Returns whose told notices are to be forgotten.
    pub(crate) fn remove_quota(&mut self, uid: &str) -> Option<Subject> {
        let subject = self.subject().filter(|subject| subject.uid == uid)?;
        self.quota = None;
        self.idle.clear();
        self.ended.clear();
        Some(subject)
    }

    pub(crate) fn set_claim(&mut self, claim: Claim, view: &View<'_>) {
        let key = claim.key();
        let old = self.claims.get(&claim.uid);
        let was_allocated = old.is_some_and(Claim::is_allocated);
        // One that was never seen before has been allocated for an unknown time.
        let found = old.is_none().then_some(claim.allocated_at);
        if let Some(account) = self.quota.as_mut().and_then(|held| held.account.as_mut()) {
            account.advance(view.wall);
            charge(account, &claim, view, found);
        }
        match claim.is_allocated() {
            true => {
                self.ended.remove(&key);
            }
            // Kubernetes frees a claim when the last pod is gone.
            false if was_allocated => {
                self.ended.insert(key.clone());
            }
            false => {}
        }
        self.names.insert(claim.name.clone(), claim.uid.clone());
        if key != claim.uid {
            self.extended.insert(key, claim.uid.clone());
        }
        self.claims.insert(claim.uid.clone(), claim);
    }

    pub(crate) fn remove_claim(&mut self, uid: &str, wall: Wall) {
        let Some(claim) = self.claims.remove(uid) else { return };
        if self.names.get(&claim.name).is_some_and(|known| known == uid) {
            self.names.remove(&claim.name);
        }
        let key = claim.key();
        self.extended.remove(&key);
        if let Some(account) = self.quota.as_mut().and_then(|held| held.account.as_mut()) {
            account.advance(wall);
            account.end(uid);
        }
        self.ended.insert(key);
    }

    pub(crate) fn set_pod(&mut self, pod: Pod) {
        self.pods.insert(pod.uid.clone(), pod);
    }

    pub(crate) fn remove_pod(&mut self, uid: &str) -> Option<Pod> {
        self.missing.remove(uid);
        self.pods.remove(uid)
    }

    pub(crate) fn set_resource_quota(&mut self, quota: ResourceQuota) {
        match quota.is_relevant() {
            true => drop(self.resource_quotas.insert(quota.name.clone(), quota)),
            false => self.remove_resource_quota(&quota.name),
        }
    }

    pub(crate) fn remove_resource_quota(&mut self, name: &str) {
        self.resource_quotas.remove(name);
    }

    /// Returns true if some are gone.
    pub(crate) fn retain_resource_quotas(&mut self, is_listed: impl Fn(&str) -> bool) -> bool {
        let before = self.resource_quotas.len();
        self.resource_quotas.retain(|name, _| is_listed(name));
        self.resource_quotas.len() != before
    }

    /// Classes or GPUs changed.
    pub(crate) fn recount(&mut self, view: &View<'_>) {
        if let Some(account) = self.quota.as_mut().and_then(|held| held.account.as_mut()) {
            account.advance(view.wall);
            for claim in self.claims.values() {
                charge(account, claim, view, Some(claim.allocated_at));
            }
        }
    }

    /// The clock jumped. Returns the quota to tell it, if that matters.
    pub(crate) fn jump(&mut self, before: Wall, by: i64) -> Option<Subject> {
        let account = self.quota.as_mut()?.account.as_mut()?;
        account.advance(before);
        account.jump(by);
        self.subject()
    }

    pub(crate) fn begin_write(&mut self) {
        if let Some(held) = &mut self.quota {
            held.is_busy = true;
        }
    }

    /// `is_known`: what the API server has is known.
    pub(crate) fn end_write(&mut self, is_known: bool) {
        if let Some(held) = &mut self.quota {
            held.is_busy = false;
            held.must_read = !is_known;
        }
    }

    pub(crate) fn count(&self, numbers: &mut Numbers) {
        numbers.waiting += self.waiting;
        let Some(held) = &self.quota else { return };
        numbers.quotas += 1;
        numbers.refused += usize::from(held.quota.spec.is_err());
        numbers.spent += usize::from(self.is_spent());
        numbers.reservations += held.quota.status.reservations.len();
    }
}

// === who is in budget ===

impl Namespace {
    fn is_spent(&self) -> bool {
        let account = self.quota.as_ref().and_then(|held| held.account.as_ref());
        account.is_some_and(|account| account.sum().is_spent)
    }

    pub(crate) fn is_over_budget(&self) -> bool {
        let account = self.quota.as_ref().and_then(|held| held.account.as_ref());
        account.is_some_and(|account| account.budget().when_spent == WhenSpent::Yield && account.sum().is_spent)
    }

    /// What its label says. `None` without a quota.
    pub(crate) fn mark(&self) -> Option<Mark> {
        let spec = &self.quota.as_ref()?.quota.spec;
        Some(match spec.is_err() {
            true => Mark::Held,
            false if self.is_over_budget() => Mark::OverBudget,
            false if self.is_spent() => Mark::Held,
            false => Mark::InBudget,
        })
    }

    /// Its pods wait while others that are in budget do.
    pub(crate) fn may_yield(&self) -> bool {
        self.pods.values().any(|pod| pod.is_gated) && self.is_over_budget()
    }

    pub(crate) fn given(&self, mut each: impl FnMut(&str, &str, Amount), gpus: &Gpus) {
        for claim in self.claims.values() {
            claim.given(gpus, &mut each);
        }
    }

    /// What each pod wants that may be bound and is not.
    pub(crate) fn unplaced(&self, classes: &Classes, gpus: &Gpus) -> Vec<Vec<Amount>> {
        let waits = |pod: &&Pod| !pod.is_gated && !pod.is_bound && !pod.is_over && !pod.is_deleted;
        let pods = self.pods.values().filter(waits);
        // A pod that chose the low priority itself waits behind.
        let pods = pods.filter(|pod| pod.priority_class.as_deref() != Some(OVER_BUDGET));
        let wanted = pods.map(|pod| {
            let names = pod.claims.iter().filter_map(|(_, name)| self.names.get(name.as_ref()?));
            let claims = names
                .filter_map(|uid| self.claims.get(uid))
                .filter(|claim| !claim.is_allocated());
            let claims = claims.flat_map(|claim| claim.wanted(classes, gpus));
            let extended = pod.extended.iter().filter(|(name, _)| classes.is_extended(name));
            let whole = extended.flat_map(|(_, count)| {
                let count = usize::try_from(*count).unwrap_or(usize::MAX).min(64);
                std::iter::repeat_n(extended_amount(1, gpus).unwrap_or_default(), count)
            });
            claims.chain(whole).collect::<Vec<_>>()
        });
        wanted.filter(|wanted| !wanted.is_empty()).collect()
    }
}

// === decisions ===

impl Namespace {
    pub(crate) fn decide(&mut self, view: &View<'_>, must_yield: bool, now: Now) -> Decided {
        let mut decided = Decided::default();
        let Some(mut held) = self.quota.take() else {
            // No quota, no gate: it was deleted, or somebody set the gate by hand.
            let gated = self.pods.values().filter(|pod| pod.is_gated && !pod.is_deleted);
            decided.ungate = gated.map(|pod| (PodRef::of(pod), Vec::new())).collect();
            self.waiting = 0;
            return decided;
        };
        if !held.is_busy && held.must_read {
            let namespace = held.quota.namespace.clone();
            decided.write = Some(Write::Read { namespace });
        } else if !held.is_busy {
            self.decide_with(&mut held, view, must_yield, now, &mut decided);
        }
        self.quota = Some(held);
        decided
    }

    fn decide_with(&mut self, held: &mut Held, view: &View<'_>, must_yield: bool, now: Now, decided: &mut Decided) {
        let quota_subject = Subject {
            kind: Kind::Quota,
            namespace: held.quota.namespace.clone(),
            name: held.quota.name.clone(),
            uid: held.quota.uid.clone(),
        };
        let spec = held.quota.spec.clone();
        let hard = spec.as_ref().map(|spec| spec.hard).unwrap_or_default();
        let effective = Effective::new(hard, self.resource_quotas.values(), view.classes);
        let mut reservations = self.kept(&held.quota.status.reservations, view, now, decided);
        let counted = self.unreserved(&reservations, &effective, view, decided);

        let sum = held.account.as_mut().map(|account| {
            account.advance(view.wall);
            account.sum()
        });
        let shut = match (&spec, &sum) {
            (Err(problem), _) => Some(Notice::Refused(problem.clone())),
            (Ok(spec), Some(sum)) if sum.is_spent => match spec.budget.map(|budget| budget.when_spent) {
                Some(WhenSpent::Hold) => Some(Notice::Spent {
                    used: sum.used.hours(),
                    hours: millionths(sum.gpu_hours),
                    reset: sum.period_end.text(),
                }),
                _ if must_yield => Some(Notice::Yields {
                    used: sum.used.hours(),
                    hours: millionths(sum.gpu_hours),
                    reset: sum.period_end.text(),
                }),
                _ => None,
            },
            _ => None,
        };
        let queue = Queue {
            held,
            effective: &effective,
            counted: &counted,
            shut,
            backfill: spec.as_ref().is_ok_and(|spec: &Spec| spec.backfill),
        };
        self.walk(&queue, &mut reservations, view, now, decided);
        let others = counted.iter().filter(|(key, _)| !reservations.contains_key(*key));
        let others: Amount = others.map(|(_, amount)| *amount).sum();

        let mut status = Status {
            generation: held.quota.generation,
            problem: spec.as_ref().err().cloned(),
            hard: effective.ceilings.into(),
            limited_by: effective
                .from
                .iter()
                .map(|(field, whose)| ((*field).to_owned(), whose.clone()))
                .collect(),
            used: reservations.values().copied().sum::<Amount>() + others,
            reservations,
            budget: held.quota.status.budget,
        };
        if let Some(problem) = &status.problem {
            decided
                .notices
                .push((quota_subject.clone(), Notice::BadSpec(problem.clone())));
            status.hard = WrittenAmount::default();
        }
        let is_due = self.is_sum_due(held, sum.as_ref(), now, decided);
        if is_due || status != held.quota.status {
            status.budget = sum;
            held.summed = Some(now);
            if let Some(sum) = sum.filter(|sum| sum.is_spent) {
                let notice = spent(&sum, &spec);
                decided.notices.push((quota_subject, notice));
            }
            decided.write = Some(Write::Status {
                namespace: held.quota.namespace.clone(),
                uid: held.quota.uid.clone(),
                version: held.quota.version.clone(),
                status: Box::new(status),
            });
        }
        // What is kept of claims that are gone is needed no longer than their reservations.
        let known = &held.quota.status.reservations;
        self.ended.retain(|key| known.contains_key(key));
        self.idle.retain(|key, _| known.contains_key(key));
    }

    /// The reservations that go on, with what they count now.
    fn kept(
        &mut self,
        old: &BTreeMap<String, Amount>,
        view: &View<'_>,
        now: Now,
        decided: &mut Decided,
    ) -> BTreeMap<String, Amount> {
        let used = self.used_keys();
        let mut kept = BTreeMap::new();
        for (key, amount) in old {
            let uid = self.extended.get(key).unwrap_or(key);
            let claim = self.claims.get(uid);
            let is_used = used.contains(key);
            let amount = match claim {
                Some(claim) if claim.is_allocated() => claim.measured(view.gpus).unwrap_or(*amount),
                // Larger GPUs may have come meanwhile.
                Some(claim) => claim
                    .amount(view.classes, view.gpus)
                    .map_or(*amount, |now| amount.worst(now)),
                None => *amount,
            };
            let is_seen = claim.is_some_and(Claim::is_allocated) || is_used;
            if is_seen {
                self.idle.remove(key);
            } else if self.ended.contains(key) {
                continue;
            } else {
                let until = *self.idle.entry(key.clone()).or_insert(now) + HOLD;
                if until <= now {
                    continue;
                }
                decided.wake(until);
            }
            kept.insert(key.clone(), amount);
        }
        kept
    }

    /// The keys that pods which have not finished name, gated or not.
    fn used_keys(&self) -> HashSet<String> {
        let live = self.pods.values().filter(|pod| !pod.is_over);
        live.flat_map(|pod| {
            let names = pod
                .claims
                .iter()
                .filter_map(|(_, name)| self.names.get(name.as_ref()?).cloned());
            let extended = (!pod.extended.is_empty()).then(|| extended_key(&pod.uid));
            names.chain(extended)
        })
        .collect()
    }

    /// What holds shares, or may, and is not reserved: what was there before the quota, and what passed without its gate.
    /// It counts, and gives nobody a right to start: a watch of pods that lags may name a claim that is another's by now.
    fn unreserved(
        &self,
        reservations: &BTreeMap<String, Amount>,
        effective: &Effective,
        view: &View<'_>,
        decided: &mut Decided,
    ) -> BTreeMap<String, Amount> {
        let mut counted: BTreeMap<String, Amount> = BTreeMap::new();
        let mut add = |key: String, amount: Amount| {
            let is_new = amount != Amount::default() && !reservations.contains_key(&key);
            is_new && counted.insert(key, amount).is_none()
        };
        for claim in self.claims.values().filter(|claim| claim.is_allocated()) {
            if let Ok(amount) = claim.amount(view.classes, view.gpus) {
                add(claim.key(), amount);
            }
        }
        let passed = self
            .pods
            .values()
            .filter(|pod| !pod.is_gated && !pod.is_over && !pod.is_deleted);
        let mut pods = Vec::new();
        for pod in passed {
            if let Needs::Known(needs) = self.needs(pod, view) {
                let mut is_new = false;
                for (key, amount) in needs {
                    is_new |= add(key, amount);
                }
                if is_new && !pod.is_bound {
                    pods.push(pod);
                }
            }
        }
        let used: Amount = reservations.values().chain(counted.values()).copied().sum();
        let mut above = Dimension::ALL.into_iter();
        let above =
            above.find_map(|at| Some((at, effective.ceilings.of(at).filter(|ceiling| used.of(at) > *ceiling)?)));
        for pod in pods {
            if let Some((dimension, ceiling)) = above {
                let notice = Notice::Ungated {
                    dimension,
                    used: dimension.text(used.of(dimension)),
                    ceiling: dimension.text(ceiling),
                };
                decided.notices.push((subject(Kind::Pod, &PodRef::of(pod)), notice));
            }
        }
        counted
    }

    fn claims_of(&self, pod: &Pod) -> Vec<(String, String)> {
        let names = pod.claims.iter().filter_map(|(_, name)| name.as_ref());
        let known = names.filter_map(|name| self.names.get_key_value(name));
        known.map(|(name, uid)| (name.clone(), uid.clone())).collect()
    }

    fn needs(&self, pod: &Pod, view: &View<'_>) -> Needs {
        let mut needs: BTreeMap<String, Amount> = BTreeMap::new();
        for (_, name) in &pod.claims {
            let Some(name) = name else { return Needs::NotMade };
            let Some(claim) = self.names.get(name).and_then(|uid| self.claims.get(uid)) else {
                return Needs::NoClaim(name.clone());
            };
            match claim.amount(view.classes, view.gpus) {
                Ok(amount) => needs.insert(claim.key(), amount),
                Err(why) => return Needs::Uncounted(name.clone(), why),
            };
        }
        let ours = pod.extended.iter().filter(|(name, _)| view.classes.is_extended(name));
        let count: u64 = ours.map(|(_, count)| *count).fold(0, u64::saturating_add);
        if count > 0 {
            match extended_amount(count, view.gpus) {
                Ok(amount) => needs.insert(extended_key(&pod.uid), amount),
                Err(why) => return Needs::Uncounted("of its extended resources".to_owned(), why),
            };
        }
        needs.retain(|_, amount| *amount != Amount::default());
        Needs::Known(needs.into_iter().collect())
    }

    /// Goes through the pods that wait, the oldest first: reserves what fits, and names those whose reservations are
    /// written.
    fn walk(
        &mut self,
        queue: &Queue<'_>,
        reservations: &mut BTreeMap<String, Amount>,
        view: &View<'_>,
        now: Now,
        decided: &mut Decided,
    ) {
        let gated = self
            .pods
            .values()
            .filter(|pod| pod.is_gated && !pod.is_deleted && !pod.is_over);
        let mut gated: Vec<&Pod> = gated.collect();
        gated.sort_by(|a, b| (&a.created, &a.name, &a.uid).cmp(&(&b.created, &b.name, &b.uid)));
        let written = &queue.held.quota.status.reservations;
        let mut used: Amount = reservations.values().chain(queue.counted.values()).copied().sum();
        let mut blocked_by: Option<&str> = None;
        let mut waiting = 0;
        let mut missing = BTreeSet::new();
        for pod in gated {
            let mut say = |notice| decided.notices.push((subject(Kind::Pod, &PodRef::of(pod)), notice));
            let needs = match self.needs(pod, view) {
                Needs::Known(needs) => needs,
                Needs::NotMade => {
                    waiting += 1;
                    continue;
                }
                Needs::NoClaim(name) => {
                    waiting += 1;
                    missing.insert(pod.uid.clone());
                    let until = *self.missing.entry(pod.uid.clone()).or_insert(now) + MISSING;
                    match until <= now {
                        true => say(Notice::NoClaim(name)),
                        false => decided.wake(until),
                    }
                    continue;
                }
                Needs::Uncounted(claim, why) => {
                    waiting += 1;
                    let why = why.to_string();
                    say(Notice::Uncounted { claim, why });
                    continue;
                }
            };
            let open: Vec<&(String, Amount)> = needs
                .iter()
                .filter(|(key, _)| !reservations.contains_key(key))
                .collect();
            if open.is_empty() {
                // Written by whoever led then. Other gates may still be shut.
                if needs.iter().all(|(key, _)| written.contains_key(key)) {
                    decided.ungate.push((PodRef::of(pod), self.claims_of(pod)));
                }
                continue;
            }
            waiting += 1;
            if !pod.other_gates.is_empty() {
                // It would hold what it cannot use.
                continue;
            }
            if let Some(shut) = &queue.shut {
                say(shut.clone());
                continue;
            }
            if let Some(older) = blocked_by {
                let older = older.to_owned();
                say(Notice::Behind { older });
                continue;
            }
            if reservations.len() + open.len() > RESERVATIONS_MAX {
                say(Notice::TooMany(RESERVATIONS_MAX));
                continue;
            }
            // What an allocated claim takes, it takes already; another that counts is decided on now.
            let taken = |key: &str| self.claims.get(key).is_some_and(Claim::is_allocated);
            let wanted = open.iter().filter(|(key, _)| !taken(key)).map(|(_, amount)| *amount);
            let wanted: Amount = wanted.sum();
            let counted = open.iter().filter_map(|(key, _)| queue.counted.get(key));
            let used_by_others = used.less(counted.copied().sum());
            let ceilings = &queue.effective.ceilings;
            if let Some(dimension) = ceilings.exceeded(&Amount::default(), &wanted) {
                // It holds nobody up: it would for ever.
                say(Notice::TooLarge {
                    dimension,
                    ceiling: dimension.text(ceilings.of(dimension).unwrap_or_default()),
                    wanted: dimension.text(wanted.of(dimension)),
                    whose: queue.whose(dimension),
                });
                continue;
            }
            if let Some(dimension) = ceilings.exceeded(&used_by_others, &wanted) {
                say(Notice::Full {
                    dimension,
                    used: dimension.text(used_by_others.of(dimension)),
                    ceiling: dimension.text(ceilings.of(dimension).unwrap_or_default()),
                    wanted: dimension.text(wanted.of(dimension)),
                    whose: queue.whose(dimension),
                });
                if !queue.backfill {
                    blocked_by = Some(&pod.name);
                }
                continue;
            }
            used = used_by_others;
            for (key, amount) in open {
                reservations.insert(key.clone(), *amount);
                used += *amount;
            }
        }
        self.waiting = waiting;
        self.missing.retain(|uid, _| missing.contains(uid));
    }

    /// Returns true if the budget's sum is to be written, though nothing else changed.
    fn is_sum_due(&self, held: &Held, sum: Option<&Sum>, now: Now, decided: &mut Decided) -> bool {
        let written = held.quota.status.budget;
        let (Some(sum), Some(written)) = (sum, written) else {
            return sum.is_some() != written.is_some();
        };
        let is_other = written.is_spent != sum.is_spent
            || written.gpu_hours != sum.gpu_hours
            || written.period_start != sum.period_start
            || written.period_end != sum.period_end;
        if is_other {
            return true;
        }
        let account = held.account.as_ref();
        let millis = sum.period_end.since(sum.as_of).max(1);
        decided.wake(now + Duration::from_millis(millis));
        if account.is_none_or(Account::is_idle) && written.used == sum.used {
            return false;
        }
        let due = held.summed.map_or(now, |at| at + SUM_EVERY);
        if now < due {
            decided.wake(due);
        }
        now >= due
    }
}

/// What holds for all pods of a queue.
struct Queue<'a> {
    held: &'a Held,
    effective: &'a Effective,
    /// What counts without a reservation.
    counted: &'a BTreeMap<String, Amount>,
    /// Why nobody new may start.
    shut: Option<Notice>,
    backfill: bool,
}

impl Queue<'_> {
    /// What an administrator raises.
    fn whose(&self, dimension: Dimension) -> String {
        match self.effective.from.get(dimension.name()) {
            Some(whose) => whose.clone(),
            None => format!("spec.hard.{dimension}"),
        }
    }
}

fn spent(sum: &Sum, spec: &Result<Spec, String>) -> Notice {
    let when = spec
        .as_ref()
        .ok()
        .and_then(|spec| spec.budget)
        .map(|budget| budget.when_spent);
    Notice::BudgetSpent {
        hours: millionths(sum.gpu_hours),
        what: match when {
            Some(WhenSpent::Hold) => "new pods wait",
            _ => "new pods get PriorityClass vgpu-over-budget and come after those in budget",
        },
        reset: sum.period_end.text(),
    }
}

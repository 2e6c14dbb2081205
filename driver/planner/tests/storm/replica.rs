//! One replica of the controller: a planner, watches that lag, a lease, and slow writes.

use vgpu_allocator::Features;
use vgpu_planner::model::Claim;
use vgpu_planner::{Change, Intent, Last, Outcome, Plan, Planner, Read, Seen, Settings, Term, Time, Write, WriteId};

use super::api::{Api, KINDS, Refusal, Sabotage};
use super::random::Random;

const LEASE: i64 = 15_000;
const DEADLINE: i64 = 10_000;

pub(crate) struct Replica {
    name: &'static str,
    /// How far its clock is ahead, in milliseconds.
    skew: i64,
    planner: Planner,
    seen: [usize; KINDS],
    term: Option<Term>,
    terms: u64,
    decided: Vec<Write>,
    /// Past the last check. A crash does not stop these.
    pub(crate) flying: Vec<Flying>,
    outcomes: Vec<(WriteId, Outcome)>,
    asked: Vec<OpenRead>,
    pub(crate) paused_until: i64,
    lives: u64,
}

pub(crate) struct Flying {
    write: Write,
    /// True if anybody waits for its outcome still.
    is_awaited: bool,
    /// Until when its sender is stopped.
    until: i64,
}

struct OpenRead {
    read: Read,
    seen: Seen,
    at: Time,
    answer: Option<Change>,
}

fn planner(name: &'static str, life: u64, sabotage: Option<Sabotage>) -> Planner {
    let mut shares = 0;
    let share = move || {
        shares += 1;
        format!("{name}-{life}-{shares}")
    };
    let mut settings = Settings::default();
    if sabotage == Some(Sabotage::Settling) {
        settings.settle = std::time::Duration::ZERO;
    }
    Planner::new(settings, Features::default(), Box::new(share))
}

/// The list in the form in which it is read: known claims are only named by key.
fn without(seen: &Seen, list: Change) -> Change {
    match list {
        Change::Claims {
            claims, version, read, ..
        } => {
            let (same, claims): (Vec<_>, Vec<_>) = claims.into_iter().partition(|claim| seen.has(claim));
            Change::Claims {
                claims,
                same: same.iter().map(Claim::key).collect(),
                version,
                read,
            }
        }
        list => list,
    }
}

impl Replica {
    pub(crate) fn new(name: &'static str, skew: i64, sabotage: Option<Sabotage>) -> Self {
        let mut new = Self {
            name,
            skew,
            planner: planner(name, 0, sabotage),
            seen: [0; KINDS],
            term: None,
            terms: 0,
            decided: Vec::new(),
            flying: Vec::new(),
            outcomes: Vec::new(),
            asked: Vec::new(),
            paused_until: 0,
            lives: 0,
        };
        new.planner.apply(Change::Rules(Vec::new()), Time::default());
        new
    }

    fn now(&self, api: &Api) -> Time {
        Time::from_millis(api.now + self.skew)
    }

    /// Writes in flight are still applied.
    pub(crate) fn crash(&mut self, api: &Api) {
        self.lives += 1;
        self.planner = planner(self.name, self.lives, api.sabotage);
        self.planner.apply(Change::Rules(Vec::new()), self.now(api));
        self.seen = [0; KINDS];
        self.term = None;
        self.decided.clear();
        self.outcomes.clear();
        self.asked.clear();
        self.flying.iter_mut().for_each(|flying| flying.is_awaited = false);
        for kind in 0..KINDS {
            self.list(api, kind);
        }
    }

    /// Lists from a cache that may lag, so it proves nothing.
    pub(crate) fn list(&mut self, api: &Api, kind: usize) {
        self.seen[kind] = api.log[kind].len();
        let now = self.now(api);
        for change in api.list(kind) {
            self.planner.apply(change, now);
        }
    }

    pub(crate) fn watch(&mut self, api: &Api, kind: usize, most: usize) {
        let now = self.now(api);
        let until = api.log[kind].len().min(self.seen[kind].saturating_add(most));
        for change in &api.log[kind][self.seen[kind]..until] {
            self.planner.apply(change.clone(), now);
        }
        self.seen[kind] = until;
    }

    /// Acquires the lease, renews it, or notices that it was lost.
    pub(crate) fn lease(&mut self, api: &mut Api) {
        let now = self.now(api);
        if api.lease.holder != self.name {
            self.term = None;
        }
        let free = api.now - api.lease.renewed >= LEASE || api.lease.holder.is_empty();
        if api.lease.holder != self.name && free {
            api.lease.holder = self.name.to_owned();
            api.lease.transitions += 1;
        }
        if api.lease.holder == self.name {
            if self.term.is_none() {
                self.terms += 1;
            }
            api.lease.renewed = api.now;
            self.term = Some(Term {
                epoch: format!("{}.{}.{}.{}", api.lease.transitions, self.name, self.lives, self.terms),
                until: now.after(std::time::Duration::from_millis(DEADLINE as u64)),
            });
        }
        self.planner.apply(Change::Lease(self.term.clone()), now);
    }

    /// Makes a plan, and stores its writes and reads.
    pub(crate) fn plan(&mut self, api: &Api) -> Plan {
        let now = self.now(api);
        let plan = self.planner.plan(now);
        self.decided.extend(plan.writes.iter().cloned());
        let seen = self.planner.state().seen();
        let asked = plan.reads.iter().map(|read| OpenRead {
            read: read.clone(),
            seen: seen.clone(),
            at: now,
            answer: None,
        });
        self.asked.extend(asked);
        plan
    }

    /// Either creates the answer to a read, or delivers one that was created before.
    pub(crate) fn answer(&mut self, api: &Api, random: &mut Random) {
        if self.asked.is_empty() {
            return;
        }
        let at = random.below(self.asked.len());
        let asked = &mut self.asked[at];
        if asked.answer.is_none() {
            asked.answer = Some(match &asked.read {
                Read::Claims => without(&asked.seen, api.claims(Some(asked.at))),
                Read::Slice(name) => match api.slice(name) {
                    Some(slice) => Change::Slice {
                        slice,
                        read: Some(asked.at),
                    },
                    None => Change::SliceGone {
                        name: name.clone(),
                        last: Last::Read(asked.at),
                    },
                },
            });
            return;
        }
        if let Some(answer) = self.asked.swap_remove(at).answer {
            let now = Time::from_millis(api.now + self.skew);
            self.planner.apply(answer, now);
        }
    }

    /// Makes the last check of a write, and sends it.
    pub(crate) fn send(&mut self, api: &Api, random: &mut Random) {
        if self.decided.is_empty() {
            return;
        }
        let write = self.decided.swap_remove(random.below(self.decided.len()));
        let now = self.now(api);
        let checked = write.check(self.term.as_ref(), now, Settings::default().oldest_decision);
        if checked.is_err() {
            return self.outcomes.push((write.id, Outcome::Dropped));
        }
        self.flying.push(Flying {
            write,
            is_awaited: true,
            until: 0,
        });
    }

    /// The process stops between the check of some writes and their sending, for longer than a lease or not.
    pub(crate) fn stop(&mut self, api: &Api, random: &mut Random) {
        self.paused_until = api.now + random.below(40_000) as i64;
        for _ in 0..random.below(4) {
            self.send(api, random);
        }
        for flying in &mut self.flying {
            flying.until = self.paused_until;
        }
    }

    pub(crate) fn resume(&mut self) {
        self.paused_until = 0;
        self.flying.iter_mut().for_each(|flying| flying.until = 0);
    }

    /// Gives up waiting for an answer; the write may still be applied.
    pub(crate) fn lose(&mut self, random: &mut Random) {
        if self.flying.is_empty() {
            return;
        }
        let at = random.below(self.flying.len());
        let flying = &mut self.flying[at];
        if std::mem::take(&mut flying.is_awaited) {
            self.outcomes.push((flying.write.id, Outcome::Unknown));
        }
        // Half of them never arrive.
        if random.one_in(2) {
            self.flying.swap_remove(at);
        }
    }

    pub(crate) fn land(&mut self, api: &mut Api, random: &mut Random) {
        let ready = self
            .flying
            .iter()
            .enumerate()
            .filter(|(_, flying)| flying.until <= api.now);
        let ready: Vec<usize> = ready.map(|(at, _)| at).collect();
        let Some(at) = random.pick(&ready) else {
            return;
        };
        let Flying { write, is_awaited, .. } = self.flying.swap_remove(*at);
        let outcome = match api.write(&write) {
            Ok(claim) => Outcome::Done(Box::new(claim)),
            Err(Refusal::Conflict) => Outcome::Conflict,
            Err(Refusal::Invalid(message)) => Outcome::Refused(message.to_owned()),
        };
        if is_awaited {
            self.outcomes.push((write.id, outcome));
        }
    }

    pub(crate) fn hear(&mut self, api: &Api, random: &mut Random) {
        if self.outcomes.is_empty() {
            return;
        }
        let (id, outcome) = self.outcomes.swap_remove(random.below(self.outcomes.len()));
        self.planner.report(id, outcome, self.now(api));
    }

    pub(crate) fn oldest_flying(&self) -> Option<i64> {
        let decided = self
            .flying
            .iter()
            .map(|flying| flying.write.decided.millis() - self.skew);
        decided.min()
    }

    pub(crate) fn has_writes(&self) -> bool {
        self.decided.len() + self.flying.len() + self.outcomes.len() > 0
    }

    pub(crate) fn answer_all(&mut self, api: &Api) {
        let mut random = Random::new(0);
        while !self.asked.is_empty() {
            self.answer(api, &mut random);
        }
    }

    /// Sees all events, plans, and sends and applies marks, but nothing else. Somebody changes a claim before any write
    /// is applied.
    pub(crate) fn turn_in_order(&mut self, api: &mut Api, changed: Option<&str>) {
        let random = &mut Random::new(0);
        self.lease(api);
        for kind in 0..KINDS {
            self.watch(api, kind, usize::MAX);
        }
        self.answer_all(api);
        self.plan(api);
        if let Some(key) = changed {
            api.update(key, None, |_| {}).expect("whoever made it may change it");
        }
        while !self.holds_an_allocation() && self.has_writes() {
            self.send(api, random);
            self.land(api, random);
            self.hear(api, random);
        }
    }

    pub(crate) fn holds_an_allocation(&self) -> bool {
        let mut intents = self.decided.iter().map(|write| &write.intent);
        intents.any(|intent| matches!(intent, Intent::Allocate { .. }))
    }

    /// Does what a process does when nothing interferes, up to a random point.
    pub(crate) fn turn(&mut self, api: &mut Api, random: &mut Random, may_stop: bool) {
        self.lease(api);
        for kind in 0..KINDS {
            if !random.one_in(6) {
                self.watch(api, kind, usize::MAX);
            }
        }
        if !random.one_in(6) {
            self.answer_all(api);
        }
        self.plan(api);
        if may_stop && self.holds_an_allocation() && random.one_in(4) {
            return self.stop(api, random);
        }
        for _ in 0..random.below(12) {
            self.send(api, random);
            if !random.one_in(6) {
                self.land(api, random);
                self.hear(api, random);
            }
        }
    }
}

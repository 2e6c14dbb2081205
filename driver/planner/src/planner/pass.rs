//! One pass of a leader: expires holds, marks claims, and places pods that wait.
//!
//! A pass places pods until its search budget is spent, then emits its decisions. The next pass continues with the
//! remaining pods until all had their turn, which ends a cycle. Pods that only waited for slices come first once these
//! are read, before the slices are too old again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use vgpu_allocator::Budget;

use super::cycle::Cycle;
use super::gangs::{budget_key, search_key_of};
use super::{Plan, Planner, soonest};
use crate::change::Read;
use crate::gang::{self, Gangs};
use crate::hold_expiry::{HoldExpiry, Slow};
use crate::place::{Placed, Placing, Waits};
use crate::problems;
use crate::queue::Queue;
use crate::search_budget::{SearchEnd, Spender};
use crate::suspects::Schedulers;
use crate::term::{Stage, Term};
use crate::time::Time;
use crate::verdict::{About, Verdict};
use crate::write::{Intent, Write};

/// How long a read of a slice may fail before the pods that wait for it get an event.
const UNREAD: Duration = Duration::from_secs(30);

/// A pod or a gang, which is placed as a whole.
struct Unit {
    /// The key of its search budget.
    who: String,
    gang: Option<gang::Name>,
    pods: Vec<String>,
}

/// Failures, traits under suspicion, priority, age and name.
type Rank = (u32, usize, Reverse<i32>, Time, String);

impl Planner {
    /// One pass: finishes fencing first, then decides.
    pub(super) fn run_pass(&mut self, term: &Term, changed: bool, now: Time, plan: &mut Plan) {
        if !self.state.can_decide() {
            return;
        }
        if self.stage != Stage::Leading {
            self.continue_fencing(term, now, plan);
        }
        self.list_after_conflicts(now, plan);
        if self.stage != Stage::Leading {
            return;
        }
        if let Some(ready) = self.state.ownership.next_ready() {
            match ready <= now {
                true => self.request_read(Read::Claims, now, plan),
                false => soonest(&mut plan.wake, ready, now),
            }
        }
        self.expire_holds(term, now, plan);
        self.mark_all(term, now, plan);
        self.place_all(term, changed, now, plan);
        plan.verdicts.extend(problems::of(&self.state, &self.refusals));
    }

    fn expire_holds(&mut self, term: &Term, now: Time, plan: &mut Plan) {
        let expiry = HoldExpiry {
            cluster: &self.state.cluster,
            timeout: self.settings.hold,
            now,
        };
        let mut lapsed = BTreeSet::new();
        for (_, known) in self.state.claims.iter() {
            if let Some(held) = expiry.held(known) {
                soonest(&mut plan.wake, held.until, now);
                if held.until <= now {
                    lapsed.extend(held.pod.and_then(gang::of));
                }
            } else if known.claim.allocation().is_some() {
                soonest(&mut plan.wake, known.since.after(self.settings.hold), now);
            }
        }
        let mut duties = Vec::new();
        for (key, known) in self.state.claims.iter() {
            if let Some(until) = known.paused_until.filter(|until| now < *until) {
                soonest(&mut plan.wake, until, now);
                continue;
            }
            if known.in_flight.is_some() {
                continue;
            }
            let of_gang = expiry.held(known).and_then(|held| gang::of(held.pod?));
            let has_lapsed = of_gang.is_some_and(|gang| lapsed.contains(&gang));
            let mut users = self.state.users(key).filter(|pod| !pod.is_deleted && !pod.is_finished);
            if let Some(duty) = expiry.duty(known, has_lapsed, &mut users) {
                duties.push((key.clone(), duty, About::claim(&known.claim)));
            }
        }
        for (key, duty, about) in duties {
            // If the write was not applied, the decision is repeated. It is not a second expired hold.
            let is_new = self.state.claims.get(&key).is_some_and(|known| !known.is_reported);
            if let Some(slow) = duty.slow.filter(|_| is_new) {
                self.add_strike(&slow, now);
            }
            if let Some(why) = duty.why.filter(|_| is_new) {
                plan.verdicts.push((about, why));
                self.state.claims.set_reported(&key);
            }
            self.write(term, &key, duty.intent, now, plan);
        }
    }

    /// Records that a pod was not bound in time. The first time also casts suspicion on similar pods.
    fn add_strike(&mut self, slow: &Slow, now: Time) {
        let is_first = self.penalties.count(&slow.uid) == 0;
        if let Some(pod) = self.state.cluster.pod(&slow.pod).filter(|_| is_first) {
            let schedulers = Schedulers::of(&self.state.cluster);
            self.suspects.add(pod, &schedulers, self.settings.hold, now);
        }
        self.penalties.add(&slow.uid, &slow.node, now);
    }

    fn place_all(&mut self, term: &Term, changed: bool, now: Time, plan: &mut Plan) {
        let gangs = Gangs::new(&self.state.cluster);
        let mut units: Vec<Unit> = Vec::new();
        let mut together: BTreeMap<gang::Name, Vec<String>> = BTreeMap::new();
        for (key, pod) in self.state.cluster.pods() {
            if !pod.is_waiting() || pod.is_gated || pod.claims.is_empty() {
                continue;
            }
            match gang::of(pod) {
                Some(name) => together.entry(name).or_default().push(key.clone()),
                None => units.push(Unit {
                    who: pod.uid.clone(),
                    gang: None,
                    pods: vec![key.clone()],
                }),
            }
        }
        let keys = together.keys().flat_map(|name| [budget_key(name), search_key_of(name)]);
        self.budgets.forget_gangs(&keys.collect());
        units.extend(together.into_iter().map(|(name, pods)| Unit {
            who: budget_key(&name),
            gang: Some(name),
            pods,
        }));
        // A gang has the rank of its first pod.
        let schedulers = Schedulers::of(&self.state.cluster);
        units.sort_by_cached_key(|unit| {
            let rank = unit
                .pods
                .iter()
                .filter_map(|key| self.rank(key, &schedulers, now))
                .min();
            (self.budgets.reads(&unit.who).is_empty(), rank)
        });
        self.budgets.begin_pass();
        let waiting: Vec<String> = units.iter().flat_map(|unit| &unit.pods).cloned().collect();
        self.cycle.again |= changed && !self.cycle.had_turn.is_empty();
        let mut is_cut = false;
        for unit in units {
            let had_turn = self.cycle.had_turn.contains(&unit.who) && self.budgets.reads(&unit.who).is_empty();
            if had_turn || self.budgets.is_pass_over() {
                is_cut |= !had_turn;
                for key in &unit.pods {
                    self.wait(key, Waits::Until(now), now, plan);
                }
                continue;
            }
            self.cycle.had_turn.insert(unit.who);
            match unit.gang {
                None => self.place_one(term, &unit.pods[0], now, plan),
                Some(gang) => self.place_gang(term, &gang, &gangs, &unit.pods, now, plan),
            }
        }
        self.end_pass(is_cut, now, plan);
        self.queue = Queue::of(&self.state, &waiting);
    }

    /// Decides when the next plan is due: at once if pods are left for this cycle or a new cycle must begin. The
    /// decisions of this pass are emitted before.
    fn end_pass(&mut self, is_cut: bool, now: Time, plan: &mut Plan) {
        let wakes = [self.cycle.wake, plan.wake].into_iter().flatten();
        let wake = wakes.min();
        if is_cut {
            self.cycle.wake = wake;
            plan.wake = Some(now);
            return;
        }
        // All pods had their turn, so reads that none of them has requested again are not needed any more.
        self.open_reads.drop_abandoned(now);
        let again = self.cycle.again || wake.is_some_and(|wake| wake <= now);
        self.cycle = Cycle::default();
        self.is_dirty |= again;
        plan.wake = if again { Some(now) } else { wake };
    }

    /// The order of pods: first those that never lost a hold and never ran out of budget, then those that resemble no
    /// pod that lost one, then by priority, age and name.
    fn rank(&self, key: &str, schedulers: &Schedulers<'_>, now: Time) -> Option<Rank> {
        let pod = self.state.cluster.pod(key)?;
        let of_gang = gang::of(pod).map_or(0, |name| self.budgets.failures(&budget_key(&name)));
        Some((
            self.penalties.count(&pod.uid) + self.budgets.failures(&pod.uid) + of_gang,
            self.suspects.count(pod, schedulers, now),
            Reverse(pod.priority),
            pod.created,
            key.to_owned(),
        ))
    }

    fn place_one(&mut self, term: &Term, key: &str, now: Time, plan: &mut Plan) {
        let Some(pod) = self.state.cluster.pod(key) else {
            return;
        };
        let who = pod.uid.clone();
        let spender = Spender { who: &who, pods: 1 };
        let mut budget = match self.budget(spender, now) {
            Ok(budget) => budget,
            Err(waits) => return self.wait(key, waits, now, plan),
        };
        let placed = self.place(term, key, &BTreeSet::new(), &mut budget, now);
        let is_helped = placed.as_ref().is_err_and(Waits::is_no_fit)
            && self.take_weak_holds(term, &[key.to_owned()], &mut budget, now, plan);
        let answer = match &placed {
            Ok(placed) if !placed.stale.is_empty() => SearchEnd::NeedsReads(placed.stale.clone()),
            Err(waits) if waits.is_unanswered() => SearchEnd::Unanswered,
            _ => SearchEnd::Answered,
        };
        self.spend(spender, budget.spent(), answer, now, plan);
        match placed {
            Ok(placed) if !placed.stale.is_empty() => self.wait(key, Waits::ForSlices(placed.stale), now, plan),
            Ok(placed) => self.write_allocations(term, placed, plan),
            Err(_) if is_helped => {}
            Err(waits) => self.wait(key, waits, now, plan),
        }
    }

    /// Returns the search budget of a pod or gang, unless it waits for slices to be read, or for its turn.
    pub(super) fn budget(&self, spender: Spender<'_>, now: Time) -> Result<Budget, Waits> {
        let reads = self.budgets.reads(spender.who).iter();
        let unread = reads.filter(|slice| self.open_reads.is_open(&Read::Slice((*slice).clone())));
        let unread: Vec<String> = unread.cloned().collect();
        match unread.is_empty() {
            true => self.budgets.budget(spender, now).map_err(Waits::Until),
            false => Err(Waits::ForSlices(unread)),
        }
    }

    /// Charges a search to its budget. A search without an answer is repeated even if nothing changes.
    pub(super) fn spend(&mut self, spender: Spender<'_>, steps: u64, answer: SearchEnd, now: Time, plan: &mut Plan) {
        let is_over = answer == SearchEnd::Answered;
        self.budgets.charge(spender, steps, answer, now);
        if let Err(until) = self.budgets.budget(spender, now)
            && !is_over
        {
            soonest(&mut plan.wake, until, now);
        }
    }

    pub(super) fn place(
        &mut self,
        term: &Term,
        key: &str,
        without: &BTreeSet<String>,
        budget: &mut Budget,
        now: Time,
    ) -> Result<Placed, Waits> {
        let pod = self.state.cluster.pod(key).ok_or(Waits::Done)?;
        let age = i64::try_from(self.settings.oldest_slice.as_millis()).unwrap_or(i64::MAX);
        let mut work = 0;
        let placed = Placing {
            cluster: &self.state.cluster,
            claims: &self.state.claims,
            ownership: &self.state.ownership,
            penalties: &self.penalties,
            without,
            index: &mut self.state.index,
            budget,
            cache: &mut self.state.cache,
            share_id: &mut self.share_id,
            policy: self.settings.policy,
            term,
            now,
            slices_since: Time::from_millis(now.millis().saturating_sub(age)),
            work: &mut work,
        }
        .place(pod);
        self.budgets.add_work(work);
        placed
    }

    /// Adds the writes of a placement to the plan; its devices count as in use from now on.
    pub(super) fn write_allocations(&mut self, term: &Term, placed: Placed, plan: &mut Plan) {
        for (key, allocation, hold) in placed.allocations {
            let allocation = Arc::new(allocation);
            let intent = Intent::Allocate {
                allocation,
                hold,
                policy: placed.policy,
            };
            self.write(term, &key, intent, placed.as_of, plan);
            self.state.recount(&key);
        }
    }

    /// Undoes [`Self::write_allocations`] for writes that were not handed out.
    pub(super) fn cancel_writes(&mut self, writes: &[Write]) {
        for write in writes {
            let key = format!("{}/{}", write.namespace, write.name);
            self.state.claims.cancel(&key);
            self.state.recount(&key);
        }
    }

    /// Does what the reason to wait demands: reports a verdict, requests reads, or plans again later.
    pub(super) fn wait(&mut self, key: &str, waits: Waits, now: Time, plan: &mut Plan) {
        let verdict = match waits {
            Waits::Quietly | Waits::Done => return,
            Waits::ForSlices(slices) => {
                let mut unread = None;
                for slice in slices {
                    let read = Read::Slice(slice.clone());
                    self.request_read(read.clone(), now, plan);
                    if self.open_reads.is_late(&read, UNREAD, now) {
                        unread.get_or_insert(slice);
                    }
                }
                let Some(slice) = unread else { return };
                Verdict::SliceUnread { slice }
            }
            Waits::Until(until) => return soonest(&mut plan.wake, until, now),
            Waits::For(verdict) => *verdict,
        };
        if let Some(pod) = self.state.cluster.pod(key) {
            plan.verdicts.push((About::pod(pod), verdict));
        }
    }
}

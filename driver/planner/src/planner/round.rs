//! One round of a leader: upkeep of holds, marks, and places for pods that wait.
//!
//! A round asks about so many pods as it may, by what they take to think about, and then its decisions go out. The next
//! one goes on with those that were not asked about, until all had their turn: a pass. Who only waited for slices comes
//! first when they are read, before they are too old again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use vgpu_allocator::Budget;
use vgpu_allocator::model::DeviceResult;

use super::gangs::{effort_of, search_of};
use super::progress::Pass;
use super::{ANSWER, Asking, Plan, Planner, soonest};
use crate::allocation::is_ours;
use crate::change::Ask;
use crate::devices::Who;
use crate::effort::{Answer, Asked};
use crate::gang::{self, Gangs};
use crate::model::Pod;
use crate::names::{DRIVER, IMPLICIT_RESOURCE};
use crate::place::{Placed, Placing, Waits};
use crate::queue::Queue;
use crate::supply::Kind;
use crate::term::{Stage, Term};
use crate::time::Time;
use crate::upkeep::Upkeep;
use crate::verdict::{About, Verdict};
use crate::write::{Intent, Write};

/// For how long a slice is asked for in vain before pods are told that they wait for it.
const UNREAD: Duration = Duration::from_secs(30);

/// A pod, or a gang: what is asked about at once.
struct Unit {
    /// By which its effort is known.
    who: String,
    gang: Option<gang::Name>,
    pods: Vec<String>,
}

impl Planner {
    pub(super) fn lead(&mut self, term: &Term, changed: bool, now: Time, plan: &mut Plan) {
        if !self.state.can_decide() {
            return;
        }
        if self.stage != Stage::Leading {
            self.take_lead(term, now, plan);
        }
        self.catch_up(now, plan);
        if self.stage != Stage::Leading {
            return;
        }
        if let Some(ready) = self.state.supply.next_ready() {
            match ready <= now {
                true => self.ask(Ask::Claims, now, plan),
                false => soonest(&mut plan.wake, ready, now),
            }
        }
        self.keep_up(term, now, plan);
        self.mark_all(term, now, plan);
        self.place_all(term, changed, now, plan);
        self.tell();
    }

    fn keep_up(&mut self, term: &Term, now: Time, plan: &mut Plan) {
        let upkeep = Upkeep {
            cluster: &self.state.cluster,
            timeout: self.settings.hold,
            now,
        };
        let mut lapsed = BTreeSet::new();
        for (_, known) in self.state.claims.iter() {
            if let Some(held) = upkeep.held(known) {
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
            if let Some(until) = known.quiet_until.filter(|until| now < *until) {
                soonest(&mut plan.wake, until, now);
                continue;
            }
            if known.flight.is_some() {
                continue;
            }
            let of_gang = upkeep.held(known).and_then(|held| gang::of(held.pod?));
            let has_lapsed = of_gang.is_some_and(|gang| lapsed.contains(&gang));
            let mut users = self.state.users(key).filter(|pod| !pod.is_deleted && !pod.is_finished);
            if let Some(duty) = upkeep.duty(known, has_lapsed, &mut users) {
                duties.push((key.clone(), duty, About::claim(&known.claim)));
            }
        }
        for (key, duty, about) in duties {
            // The same is decided again where a write did not land. It is no second hold that ran out.
            let is_new = self.state.claims.get(&key).is_some_and(|known| !known.is_told);
            if let Some((pod, node)) = duty.slow.filter(|_| is_new) {
                self.avoided.add(&pod, &node, now);
            }
            if let Some(why) = duty.why.filter(|_| is_new) {
                self.told.is(about, why);
                self.state.claims.set_told(&key);
            }
            self.write(term, &key, duty.intent, now, plan);
        }
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
        let keys = together.keys().flat_map(|name| [effort_of(name), search_of(name)]);
        self.efforts.forget_gangs(&keys.collect());
        units.extend(together.into_iter().map(|(name, pods)| Unit {
            who: effort_of(&name),
            gang: Some(name),
            pods,
        }));
        // A gang stands where the first of its pods does.
        units.sort_by_cached_key(|unit| {
            let rank = unit.pods.iter().filter_map(|key| self.rank(key)).min();
            (self.efforts.reads(&unit.who).is_empty(), rank)
        });
        self.efforts.begin_round();
        let waiting: Vec<String> = units.iter().flat_map(|unit| &unit.pods).cloned().collect();
        self.pass.again |= changed && !self.pass.asked.is_empty();
        let mut is_cut = false;
        for unit in units {
            let had_turn = self.pass.asked.contains(&unit.who) && self.efforts.reads(&unit.who).is_empty();
            if had_turn || self.efforts.is_round_over() {
                is_cut |= !had_turn;
                for key in &unit.pods {
                    self.wait(key, Waits::Until(now), now, plan);
                }
                continue;
            }
            self.pass.asked.insert(unit.who);
            match unit.gang {
                None => self.place_one(term, &unit.pods[0], now, plan),
                Some(gang) => self.place_gang(term, &gang, &gangs, &unit.pods, now, plan),
            }
        }
        self.end_round(is_cut, now, plan);
        self.queue = self.still_waiting(&waiting);
    }

    /// Those of the pods that have claims of ours to wait for.
    fn still_waiting(&self, pods: &[String]) -> Queue {
        let mut queue = Queue::default();
        let mut counted = BTreeSet::new();
        for pod in pods.iter().filter_map(|key| self.state.cluster.pod(key)) {
            let waits = pod.claim_keys().filter(|key| {
                let known = self.state.claims.get(key).filter(|known| known.allocation().is_none());
                known.is_some_and(|known| self.state.supply.kind(&known.claim.asked) == Kind::Controller)
            });
            let claims: Vec<String> = waits.collect();
            if !claims.is_empty() {
                queue.add(pod.created);
                counted.extend(claims);
            }
        }
        queue.claims = counted.len();
        queue
    }

    /// What is decided goes out first; then the next round goes on, or the next pass begins if there is a reason.
    fn end_round(&mut self, is_cut: bool, now: Time, plan: &mut Plan) {
        let wakes = [self.pass.wake, plan.wake].into_iter().flatten();
        let wake = wakes.min();
        if is_cut {
            self.pass.wake = wake;
            plan.wake = Some(now);
            return;
        }
        // All that wait had their turn: what none of them has asked for again is not waited for any more.
        self.asked.retain(|_, asking| now.since(asking.last) < ANSWER);
        let again = self.pass.again || wake.is_some_and(|wake| wake <= now);
        self.pass = Pass::default();
        self.is_dirty |= again;
        plan.wake = if again { Some(now) } else { wake };
    }

    /// Those that came when they had a place come first; then by priority, age and name.
    fn rank(&self, key: &str) -> Option<(u32, Reverse<i32>, Time, String)> {
        let pod = self.state.cluster.pod(key)?;
        let of_gang = gang::of(pod).map_or(0, |name| self.efforts.failures(&effort_of(&name)));
        Some((
            self.avoided.count(&pod.uid) + self.efforts.failures(&pod.uid) + of_gang,
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
        let asked = Asked { who: &who, pods: 1 };
        let mut budget = match self.budget(asked, now) {
            Ok(budget) => budget,
            Err(waits) => return self.wait(key, waits, now, plan),
        };
        let placed = self.place(term, key, &BTreeSet::new(), &mut budget, now);
        let answer = match &placed {
            Ok(placed) if !placed.stale.is_empty() => Answer::IfRead(placed.stale.clone()),
            Err(waits) if waits.is_unanswered() => Answer::None,
            _ => Answer::Some,
        };
        self.spend(asked, budget.spent(), answer, now, plan);
        match placed {
            Ok(placed) if !placed.stale.is_empty() => self.wait(key, Waits::ForSlices(placed.stale), now, plan),
            Ok(placed) => self.take_place(term, placed, plan),
            Err(waits) => self.wait(key, waits, now, plan),
        }
    }

    /// What may be spent on a pod or gang, once the slices have been read that it waits for.
    pub(super) fn budget(&self, asked: Asked<'_>, now: Time) -> Result<Budget, Waits> {
        let reads = self.efforts.reads(asked.who).iter();
        let unread = reads.filter(|slice| self.asked.contains_key(&Ask::Slice((*slice).clone())));
        let unread: Vec<String> = unread.cloned().collect();
        match unread.is_empty() {
            true => self.efforts.budget(asked, now).map_err(Waits::Until),
            false => Err(Waits::ForSlices(unread)),
        }
    }

    /// Counts a question. One without an answer is asked again, whether anything changes or not.
    pub(super) fn spend(&mut self, asked: Asked<'_>, steps: u64, answer: Answer, now: Time, plan: &mut Plan) {
        let is_over = answer == Answer::Some;
        self.efforts.spent(asked, steps, answer, now);
        if let Err(until) = self.efforts.budget(asked, now)
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
            supply: &self.state.supply,
            avoided: &self.avoided,
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
        self.efforts.works(work);
        placed
    }

    pub(super) fn take_place(&mut self, term: &Term, placed: Placed, plan: &mut Plan) {
        for (key, allocation, hold) in placed.given {
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

    pub(super) fn take_back(&mut self, writes: &[Write]) {
        for write in writes {
            let key = format!("{}/{}", write.namespace, write.name);
            self.state.claims.ground(&key);
            self.state.recount(&key);
        }
    }

    pub(super) fn wait(&mut self, key: &str, waits: Waits, now: Time, plan: &mut Plan) {
        let verdict = match waits {
            Waits::Quietly | Waits::Done => return,
            Waits::ForSlices(slices) => {
                let mut unread = None;
                for slice in slices {
                    let ask = Ask::Slice(slice.clone());
                    self.ask(ask.clone(), now, plan);
                    let is_late = |asking: &Asking| asking.first.after(UNREAD) <= now;
                    if self.asked.get(&ask).is_some_and(is_late) {
                        unread.get_or_insert(slice);
                    }
                }
                let Some(slice) = unread else {
                    return self.stays(key);
                };
                Verdict::SliceUnread { slice }
            }
            Waits::Until(until) => {
                soonest(&mut plan.wake, until, now);
                return self.stays(key);
            }
            Waits::For(verdict) => *verdict,
        };
        if let Some(pod) = self.state.cluster.pod(key) {
            self.told.is(About::pod(pod), verdict);
        }
    }

    /// What the pod was told last holds still.
    pub(super) fn stays(&mut self, key: &str) {
        if let Some(pod) = self.state.cluster.pod(key) {
            self.told.stays(About::pod(pod));
        }
    }

    /// What lasts, besides why pods wait.
    fn tell(&mut self) {
        for (key, known) in self.state.claims.iter() {
            let claim = &known.claim;
            if let Some(message) = self.refusals.get(key) {
                self.told.is(About::claim(claim), Verdict::Refused(message.clone()));
            }
            let Some(allocation) = claim.allocation().filter(|allocation| !is_ours(allocation)) else {
                continue;
            };
            let written = allocation.allocation_timestamp.as_deref().and_then(Time::parse);
            let is_controllers = |result: &&DeviceResult| {
                let who = self.state.supply.who(&result.pool, &result.device, &self.state.index);
                let is_since = |since| written.is_none_or(|written| written >= since);
                result.driver == DRIVER && matches!(who, Some(Who::Controller { since }) if is_since(since))
            };
            let results = allocation.devices.results.iter().filter(is_controllers);
            let devices: Vec<_> = results
                .map(|result| (result.pool.clone(), result.device.clone()))
                .collect();
            if !devices.is_empty() {
                self.told.is(About::claim(claim), Verdict::ThirdParty { devices });
            }
        }
        for (_, pod) in self
            .state
            .cluster
            .pods()
            .filter(|(_, pod)| !pod.is_deleted && !pod.is_finished)
        {
            let verdict = match &pod.node {
                Some(node) => self.placed_by_hand(pod, node),
                None => self.extended_resource(pod),
            };
            if let Some(verdict) = verdict {
                self.told.is(About::pod(pod), verdict);
            }
        }
    }

    fn placed_by_hand(&self, pod: &Pod, node: &str) -> Option<Verdict> {
        let known = pod.claim_keys().filter_map(|key| self.state.claims.get(&key));
        let mut unallocated = known.filter(|known| {
            known.allocation().is_none() && self.state.supply.kind(&known.claim.asked) == Kind::Controller
        });
        unallocated.next().map(|known| Verdict::PlacedByHand {
            node: node.to_owned(),
            claim: known.claim.asked.metadata.name.clone(),
        })
    }

    fn extended_resource(&self, pod: &Pod) -> Option<Verdict> {
        pod.requests.0.keys().find_map(|resource| {
            let implicit = resource.strip_prefix(IMPLICIT_RESOURCE);
            let classes = self.state.index.classes().filter(|class| {
                class.spec.extended_resource_name.as_ref() == Some(resource) || implicit == Some(&class.metadata.name)
            });
            let class = classes.map(|class| &class.metadata.name).min()?;
            self.state
                .supply
                .is_controllers_alone(class)
                .then(|| Verdict::ExtendedResource {
                    resource: resource.clone(),
                    class: class.clone(),
                })
        })
    }
}

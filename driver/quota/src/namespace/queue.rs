//! The pods that wait behind the gate: the oldest first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::amount::{Amount, Dimension};
use crate::ceilings::Effective;
use crate::decision::Decision;
use crate::notice::{Kind, Notice};
use crate::plan::{PodRef, subject};
use crate::pod::Pod;
use crate::time::Now;
use crate::view::View;

use super::held::Held;
use super::reservations::Needs;
use super::{Namespace, RESERVATIONS_MAX};

/// How long a claim may be missing before its pod gets an event: the watch may be a moment behind.
const MISSING: Duration = Duration::from_secs(10);

/// The state that is common to all pods of a queue.
pub(super) struct Queue<'a> {
    pub(super) held: &'a Held,
    pub(super) effective: &'a Effective,
    /// Amounts that count without a reservation, by key.
    pub(super) counted: &'a BTreeMap<String, Amount>,
    /// Why nobody new may start.
    pub(super) shut: Option<Notice>,
    pub(super) backfill: bool,
}

impl Queue<'_> {
    /// Returns the object that sets this ceiling, for an administrator to raise.
    fn whose(&self, dimension: Dimension) -> String {
        match self.effective.from.get(dimension.name()) {
            Some(whose) => whose.clone(),
            None => format!("spec.hard.{dimension}"),
        }
    }
}

impl Namespace {
    /// Goes through the pods that wait, the oldest first: reserves what fits, and names those whose reservations are
    /// written.
    pub(super) fn walk(
        &mut self,
        queue: &Queue<'_>,
        reservations: &mut BTreeMap<String, Amount>,
        view: &View<'_>,
        now: Now,
        decided: &mut Decision,
    ) {
        let gated = self
            .pods
            .values()
            .map(Box::as_ref)
            .filter(|pod| pod.is_gated && !pod.is_deleted && !pod.is_over);
        let mut gated: Vec<&Pod> = gated.collect();
        gated.sort_by(|a, b| (&a.created, &a.name, &a.uid).cmp(&(&b.created, &b.name, &b.uid)));
        let written = &queue.held.quota.status.reservations;
        let is_ours = queue.held.quota.status.is_of(view.epoch);
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
                // Reserved for another pod that shares the claim, or before the controller was restarted. Our gate goes
                // last, so that what its removal records is true when the pod starts.
                if !pod.other_gates.is_empty() {
                    waiting += 1;
                } else if needs.is_empty() || is_ours && needs.iter().all(|(key, _)| written.contains_key(key)) {
                    decided.ungate.push((PodRef::of(pod), self.claims_of(pod)));
                } else {
                    decided.takes_over |= !is_ours;
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
            // An allocated claim counts already. Only the others need room.
            let taken = |key: &str| self.claims.get(key).is_some_and(|claim| claim.is_allocated());
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
}

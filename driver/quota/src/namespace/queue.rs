//! The pods that wait behind the gate: the oldest first.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use vgpu_api::PodRef;
use vgpu_api::quota::Dimension;
use vgpu_planner::About;
use vgpu_planner::model::Pod;

use crate::Now;
use crate::amount::Amount;
use crate::ceilings::Effective;
use crate::claim::is_allocated;
use crate::decision::Decision;
use crate::notice::Notice;
use crate::pod::{has_other_gates, is_gated};
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
    /// Why no new pod may start.
    pub(super) shut: Option<Notice>,
    pub(super) backfill: bool,
}

/// The state of a walk through the waiting pods.
struct Walk<'a> {
    reservations: &'a mut BTreeMap<String, Amount>,
    /// The sum of all reservations and of everything that counts without one.
    used: Amount,
    /// The pod that does not fit. No younger pod may start before it.
    blocked_by: Option<&'a str>,
}

impl Queue<'_> {
    /// Returns the object that sets this ceiling, for an administrator to raise.
    fn whose(&self, dimension: Dimension) -> String {
        match self.effective.from.get(dimension.name()) {
            Some(whose) => whose.clone(),
            None => format!("spec.hard.{dimension}"),
        }
    }

    fn are_written(&self, needs: &[(String, Amount)]) -> bool {
        let written = &self.held.quota.status.reservations;
        needs.iter().all(|(key, _)| written.contains_key(key))
    }

    /// Returns the use of others if this can be reserved now, or the reason why not. `wanted` is the room that it
    /// needs.
    fn admit(&self, open: &[(String, Amount)], wanted: Amount, walk: &Walk<'_>) -> Result<Amount, Notice> {
        if let Some(shut) = &self.shut {
            return Err(shut.clone());
        }
        if let Some(older) = walk.blocked_by {
            let older = older.to_owned();
            return Err(Notice::Behind { older });
        }
        if walk.reservations.len() + open.len() > RESERVATIONS_MAX {
            return Err(Notice::TooMany(RESERVATIONS_MAX));
        }
        let counted = open.iter().filter_map(|(key, _)| self.counted.get(key));
        let used_by_others = walk.used.less(counted.copied().sum());
        let ceilings = &self.effective.ceilings;
        if let Some(dimension) = ceilings.exceeded(&Amount::default(), &wanted) {
            return Err(Notice::TooLarge {
                dimension,
                ceiling: dimension.text(ceilings.of(dimension).unwrap_or_default()),
                wanted: dimension.text(wanted.of(dimension)),
                whose: self.whose(dimension),
            });
        }
        match ceilings.exceeded(&used_by_others, &wanted) {
            None => Ok(used_by_others),
            Some(dimension) => Err(Notice::Full {
                dimension,
                used: dimension.text(used_by_others.of(dimension)),
                ceiling: dimension.text(ceilings.of(dimension).unwrap_or_default()),
                wanted: dimension.text(wanted.of(dimension)),
                whose: self.whose(dimension),
            }),
        }
    }
}

impl Namespace {
    /// Goes through the waiting pods, the oldest first: reserves what fits, and lists the pods to ungate because their
    /// reservations are written.
    pub(super) fn walk(
        &mut self,
        queue: &Queue<'_>,
        reservations: &mut BTreeMap<String, Amount>,
        view: &View<'_>,
        now: Now,
        decided: &mut Decision,
    ) {
        let is_ours = queue.held.quota.status.is_of(view.epoch);
        let mut walk = Walk {
            used: reservations.values().chain(queue.counted.values()).copied().sum(),
            reservations,
            blocked_by: None,
        };
        let mut waiting = 0;
        let mut missing = HashMap::new();
        for pod in self.gated() {
            let needs = match self.needs(pod, view) {
                Needs::Known(needs) => needs,
                unknown => {
                    waiting += 1;
                    self.note_unknown(pod, unknown, &mut missing, now, decided);
                    continue;
                }
            };
            let is_open = |(key, _): &&(String, Amount)| !walk.reservations.contains_key(key);
            let open: Vec<(String, Amount)> = needs.iter().filter(is_open).cloned().collect();
            if open.is_empty() && !has_other_gates(pod) {
                // Reserved for another pod that shares the claim, or before the controller was restarted.
                if needs.is_empty() || is_ours && queue.are_written(&needs) {
                    decided.ungate.push((PodRef::from(pod), self.claims_of(pod)));
                } else {
                    decided.takes_over |= !is_ours;
                }
                continue;
            }
            waiting += 1;
            if has_other_gates(pod) {
                // With other gates the pod could not use a reservation. Our gate is removed last, so that what is
                // recorded then is still true when the pod starts.
                continue;
            }
            match queue.admit(&open, self.room_for(&open), &walk) {
                Ok(used_by_others) => {
                    walk.used = used_by_others + open.iter().map(|(_, amount)| *amount).sum();
                    walk.reservations.extend(open);
                }
                Err(notice) => {
                    // Only a pod that can fit later blocks younger ones. A pod that never fits does not.
                    if matches!(notice, Notice::Full { .. }) && !queue.backfill {
                        walk.blocked_by = Some(&pod.name);
                    }
                    decided.notices.push((About::pod(pod), notice));
                }
            }
        }
        self.waiting = waiting;
        self.missing = missing;
    }

    /// The room that is needed to reserve this. An allocated claim counts already.
    fn room_for(&self, open: &[(String, Amount)]) -> Amount {
        let is_taken = |key: &str| self.claims.get(key).is_some_and(|claim| is_allocated(claim));
        let untaken = open.iter().filter(|(key, _)| !is_taken(key));
        untaken.map(|(_, amount)| *amount).sum()
    }

    /// The pods that wait behind the gate, the oldest first.
    fn gated(&self) -> Vec<&Pod> {
        let pods = self.pods.values().map(Box::as_ref);
        let gated = pods.filter(|pod| is_gated(pod) && !pod.is_deleted && !pod.is_finished);
        let mut gated: Vec<&Pod> = gated.collect();
        gated.sort_by(|a, b| (&a.created, &a.name, &a.uid).cmp(&(&b.created, &b.name, &b.uid)));
        gated
    }

    /// Reports why it is not known what the pod needs, unless that will resolve itself.
    fn note_unknown(
        &self,
        pod: &Pod,
        needs: Needs,
        missing: &mut HashMap<String, Now>,
        now: Now,
        decided: &mut Decision,
    ) {
        let notice = match needs {
            Needs::Known(_) | Needs::NotMade => return,
            Needs::NoClaim(name) => {
                let since = *self.missing.get(&pod.uid).unwrap_or(&now);
                missing.insert(pod.uid.clone(), since);
                if since + MISSING > now {
                    return decided.wake(since + MISSING);
                }
                Notice::NoClaim(name)
            }
            Needs::Uncounted(claim, why) => {
                let why = why.to_string();
                Notice::Uncounted { claim, why }
            }
        };
        decided.notices.push((About::pod(pod), notice));
    }
}

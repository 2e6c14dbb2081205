//! The steps of a new leader until it may decide, and the marks of claims. [`crate::term`] explains why.

use std::collections::BTreeMap;

use super::{Plan, Planner, soonest};
use crate::change::Read;
use crate::claims::{Known, WriteState};
use crate::device_ownership::ClaimAllocator;
use crate::term::{Stage, Term};
use crate::time::Time;
use crate::write::Intent;

/// If the watch does not show the newer version of a claim after a conflict, all claims are listed after this time.
const LIST_AFTER: std::time::Duration = std::time::Duration::from_secs(5);

impl Planner {
    /// Updates the progress of a new leader after a consistent list of all claims that began at `read`.
    pub(super) fn fence_after_list(&mut self, read: Time, now: Time) {
        match self.stage {
            Stage::FirstList { since } if read >= since => {
                let Some(term) = self.term.clone() else {
                    return;
                };
                let of_others = self
                    .state
                    .claims
                    .iter()
                    .filter(|(_, known)| self.is_of_others(known, &term));
                let of_others: BTreeMap<_, _> = of_others
                    .map(|(key, known)| ((key.clone(), known.claim.uid().to_owned()), known.claim.version))
                    .collect();
                self.stage = match of_others.is_empty() {
                    true => Stage::Leading,
                    false => Stage::Marking {
                        claims: of_others,
                        since: now,
                    },
                };
            }
            Stage::SecondList { since } if read >= since => self.stage = Stage::Leading,
            _ => {}
        }
        if self.stage == Stage::Leading {
            self.wake = Some(now);
        }
    }

    /// Returns true if another leader may have decided on the claim in this version, or may still do so.
    ///
    /// The list of a new term may be complete before slices and classes are known. Then a claim without a mark does not
    /// count. That is safe: a leader allocates a claim only after it was marked in its own term, so no leader can have
    /// decided to allocate this one. This leader marks it once it knows that the controller allocates it.
    fn is_of_others(&self, known: &Known, term: &Term) -> bool {
        let claim = &known.claim;
        let mark = claim.epoch.as_deref();
        let is_mine = mark.is_some_and(|mark| term.is_mark(mark));
        let may_be_ours =
            || !claim.is_extended && self.state.ownership.claim_allocator(&claim.facts) == ClaimAllocator::Controller;
        claim.allocation().is_none() && !claim.is_deleted && !is_mine && (mark.is_some() || may_be_ours())
    }

    /// Marks the claims of other leaders, and requests the lists, until this term leads.
    pub(super) fn continue_fencing(&mut self, term: &Term, now: Time, plan: &mut Plan) {
        if let Stage::Marking { claims, since } = &self.stage {
            let since = *since;
            let patience = since.after(self.settings.settle);
            let still = claims.iter().filter(|((key, uid), version)| {
                // Once there is a newer version, whoever made it, earlier decisions have been applied or never will be.
                let known = self.state.claims.get(key).filter(|known| known.claim.uid() == uid);
                let known = known.filter(|known| known.claim.version <= **version);
                known.is_some_and(|known| {
                    let is_given_up = patience <= now && known.mark_failed_since(since);
                    self.is_of_others(known, term) && !is_given_up
                })
            });
            let claims: BTreeMap<_, _> = still.map(|(claim, version)| (claim.clone(), *version)).collect();
            for (key, _) in claims.keys() {
                self.mark(term, key, now, plan);
            }
            soonest(&mut plan.wake, patience, now);
            self.stage = match claims.is_empty() {
                true => Stage::SecondList { since: now },
                false => Stage::Marking { claims, since },
            };
        }
        if matches!(self.stage, Stage::FirstList { .. } | Stage::SecondList { .. }) {
            self.request_read(Read::Claims, now, plan);
        }
    }

    /// Marks the claims that the controller may allocate and that have no mark of this term, and those with a write in
    /// doubt.
    pub(super) fn mark_all(&mut self, term: &Term, now: Time, plan: &mut Plan) {
        let unmarked: Vec<String> = self
            .state
            .claims
            .iter()
            .filter(|(_, known)| {
                let claim = &known.claim;
                let is_mine = claim.epoch.as_ref().is_some_and(|mark| term.is_mark(mark));
                let wants = known.allocation().is_none() && !(is_mine && claim.is_protected);
                let doubtful = known
                    .in_flight
                    .as_ref()
                    .is_some_and(|flight| flight.state == WriteState::Doubtful);
                doubtful
                    || wants
                        && !claim.is_deleted
                        && !claim.is_extended
                        && self.state.ownership.claim_allocator(&claim.facts) == ClaimAllocator::Controller
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in unmarked {
            self.mark(term, &key, now, plan);
        }
    }

    /// Marks a claim, unless a write is in flight or writes to it are paused.
    fn mark(&mut self, term: &Term, key: &str, now: Time, plan: &mut Plan) {
        let Some(known) = self.state.claims.get(key) else {
            return;
        };
        if let Some(until) = known.paused_until.filter(|until| now < *until) {
            return soonest(&mut plan.wake, until, now);
        }
        if known
            .in_flight
            .as_ref()
            .is_some_and(|flight| flight.state != WriteState::Doubtful)
        {
            return;
        }
        let epoch = term.mark(known.claim.version);
        self.write(term, key, Intent::Mark { epoch }, now, plan);
    }

    /// Requests a list if a write has failed with 409 and the watch does not show the newer version.
    pub(super) fn list_after_conflicts(&mut self, now: Time, plan: &mut Plan) {
        let moved = self
            .state
            .claims
            .iter()
            .filter_map(|(_, known)| match known.in_flight.as_ref()?.state {
                WriteState::Conflict { at } => Some(at.after(LIST_AFTER)),
                WriteState::Sent { .. } | WriteState::Doubtful => None,
            });
        match moved.min() {
            Some(due) if due <= now => self.request_read(Read::Claims, now, plan),
            Some(due) => soonest(&mut plan.wake, due, now),
            None => {}
        }
    }
}

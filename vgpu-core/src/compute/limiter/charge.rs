//! Charges the union of the times in which the share had work on the GPU, each moment once.

use std::sync::atomic::Ordering::{Relaxed, Release};

use vgpu_abi::arbitration::SlotPage;

use super::Limiter;
use super::call::Call;
use super::times::{GRACE, LINGER};
use crate::compute::turn::DRAIN;
use crate::compute::{MS, Ns, US, account};

/// An overlap with another share's turn that is shorter than this is only a context switch.
const SWITCH: Ns = 100 * US;
/// The longest pause between a wait and the next launch from which `gap` is learnt.
const LONGEST_GAP: Ns = 5 * MS;

impl Limiter {
    /// Charges the time until `to`, at which launches have ended.
    pub(super) fn ended(&mut self, call: &mut Call<'_>, launches: u32, to: Ns) {
        if launches == 0 {
            return;
        }
        let from = self.busy.unwrap_or(to).max(self.charged_to).min(to);
        let own = self.own_part(call, from, to);
        let wall = own.unwrap_or(to - from);
        let siblings = account::at_work(call.page, call.now).filter(|work| work.cell != self.cell);
        self.siblings = siblings.count() as u32;
        let at_once = Ns::from(launches) * Ns::from(1 + self.siblings);
        self.pace.took(wall / at_once, self.has_gaps);
        let without_pause = self.without_pause(wall, launches);
        let mean = self.pace.mean;
        self.pace.acknowledged(without_pause.unwrap_or(wall), at_once);
        self.widen(launches);
        self.uncharged = self.uncharged.max(launches);
        let mut at_most = self.bound(call, own, to - from);
        if without_pause.is_some() {
            let worked = Ns::from(self.uncharged) * mean.max(self.pace.sample);
            at_most = Some(at_most.map_or(worked, |bound| bound.min(worked)));
        }
        if self.owns_cell(call.page) {
            // Cleared first: otherwise the work that this process has published would be treated as another process's.
            call.page.cells[self.cell].busy_since.store(0, Release);
        }
        account::charge_work(call.page, self.entry.weight, from, to, at_most);
        self.charged_to = to.max(self.charged_to);
        self.uncharged = 0;
        self.has_gaps = false;
        call.page.ends.seen_at.store(call.now, Relaxed);
        if self.in_flight == 0 {
            self.busy = None;
            call.page.ends.stuck.store(0, Relaxed);
        }
        self.publish(call);
    }

    /// Handles a program that may have paused after launches without an event. Returns the launches' expected time if
    /// it is far shorter than the measured one. Uses the larger of mean and sample: with the mean alone, launches that
    /// have become longer would be treated as pauses, and the mean would never grow.
    fn without_pause(&self, wall: Ns, launches: u32) -> Option<Ns> {
        let worked = Ns::from(launches) * self.pace.mean.max(self.pace.sample);
        let is_pause = self.has_gaps && worked > 0 && wall > 2 * worked + MS;
        is_pause.then_some(worked)
    }

    /// Returns the maximum charge, if any: the expected time of the launches, if the GPU waited for launches or may
    /// have run another share's work.
    fn bound(&self, call: &Call<'_>, own: Option<Ns>, wall: Ns) -> Option<Ns> {
        let launches = Ns::from(self.uncharged);
        let mut bound = own;
        if self.pace.short > 0 && call.pages.has_others_without_turns() {
            bound = Some(bound.unwrap_or(wall).min(launches * self.pace.short));
        }
        if self.has_gaps && self.pace.sample > 0 {
            let worked = launches * self.pace.sample;
            bound = Some(bound.map_or(worked, |bound| bound.min(worked)));
        }
        bound
    }

    /// Returns how much of a period is the share's own if others had turns in it too, because the GPU divides it among
    /// contexts. Only the others' pages show such turns, and they may lie, so a share that is limited to its `cores` is
    /// charged for all of it.
    fn own_part(&self, call: &Call<'_>, from: Ns, to: Ns) -> Option<Ns> {
        if self.is_capped(call.now) {
            return None;
        }
        let (mut others, mut both) = (0, 0);
        for other in call.pages.others(call.now).filter(|other| other.began != 0) {
            // A share whose process ended or stopped launching in its turn may never end the turn.
            let last = other.ends.max(other.until) + DRAIN;
            let has_turn_until = if other.ends == 0 { 0 } else { call.now.min(last) };
            let end = other.until.saturating_sub(GRACE).max(has_turn_until);
            let both_with = end.min(to).saturating_sub(other.began.max(from));
            if both_with > SWITCH {
                others += 1;
                both = both.max(both_with);
            }
        }
        let contexts = others + 1 + Ns::from(self.siblings);
        (others > 0).then(|| to - from - both * others / contexts)
    }

    /// Publishes the work in flight of this process.
    pub(super) fn publish(&self, call: &Call<'_>) {
        self.publish_since(call, self.busy.unwrap_or(0));
    }

    /// Publishes the work in flight of this process, with a launch that is about to be made.
    pub(super) fn publish_since(&self, call: &Call<'_>, since: Ns) {
        if !self.owns_cell(call.page) {
            return;
        }
        let cell = &call.page.cells[self.cell];
        let is_unknown = since != 0 && self.pace.mean == 0;
        account::publish(cell, call.now, since, self.own_left(call.now), is_unknown);
    }

    /// Charges the time between a wait and the next launch, if others wanted the turn meanwhile.
    pub(super) fn charge_gap(&mut self, page: &SlotPage, now: Ns, is_kept_from_others: bool) {
        if let Some(drained_at) = self.drained_at.take() {
            let gap = now.saturating_sub(drained_at).min(LONGEST_GAP);
            self.gap = if gap > self.gap {
                self.gap + (gap - self.gap) / 5
            } else {
                self.gap - (self.gap - gap) / 5
            };
        }
        let idle_since = page.turn.idle_since.swap(0, Relaxed);
        if idle_since != 0 && is_kept_from_others {
            let until = page.turn.until.load(Relaxed).min(now);
            account::charge_time(page, self.entry.weight, until.saturating_sub(idle_since).min(LINGER));
        }
    }
}

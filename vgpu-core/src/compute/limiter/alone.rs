//! A share that is alone on the GPU is not held back, because there is no other share to protect. Its queue is bounded
//! only by time, so that the first neighbour soon gets its part, and it records at most one event a millisecond.
//!
//! How it fails: while the length of launches is unknown, the first ones are allowed two, four, eight at a time.
//! Kernels that suddenly take far longer are noticed by the age of an event that is not reached; until then as many of
//! them are queued as of the short ones. A stream that the CPU cannot keep busy is charged as if it were busy, as in
//! NVML's utilization.

use std::sync::atomic::Ordering::Release;

use super::Limiter;
use super::call::{Answer, Call, Reason};
use super::config::{AGE_ALONE, AHEAD_ALONE};
use super::launches::{Mark, Scope, Stream, WAIT_RETURNS, Waiting};
use crate::compute::{MS, Ns};

/// How often a share that launches looks at the others' pages.
const LOOK: Ns = MS;
/// The most launches without asking the limiter.
const BUDGET: u32 = 128;
/// How long others leave the GPU to a share that is alone, which renews this only rarely.
const LASTS: Ns = 3 * MS;

impl Limiter {
    /// Returns true if a launch may go without [`Limiter::ask`]: the share is alone, and has looked recently.
    #[must_use]
    pub fn needs_no_look(&self, now: Ns) -> bool {
        self.is_alone && self.alone.granted > 0 && now < self.alone.looked + LOOK
    }

    pub(super) fn looks(&mut self, now: Ns) {
        self.alone.looked = now;
        self.alone.granted = 0;
    }

    /// Returns true if an event of a stream has not been reached for so long that much work must be queued.
    pub(super) fn is_deep(&self, now: Ns, stream: Stream) -> bool {
        let of_stream = self.marks.iter().filter(|mark| mark.stream == stream);
        let oldest = of_stream.map(|mark| mark.recorded).min();
        // Two long launches may be queued.
        let longest = AHEAD_ALONE.max(3 * self.pace.mean);
        oldest.is_some_and(|at| now.saturating_sub(at) > longest)
    }

    /// Sometimes measures a single launch. The event in front of it ends the launches before it.
    pub(super) fn sample_alone(&mut self, call: &mut Call<'_>, stream: Stream) {
        if call.now.saturating_sub(self.last_mark) < AGE_ALONE {
            return;
        }
        self.measure_next(call, stream);
    }

    /// Returns how many launches may now go without asking.
    pub(super) fn launched_alone(&mut self, call: &mut Call<'_>, stream: Stream) -> u32 {
        let room = self.room(call.now);
        // Several events per queue: a single one would be reached only when nothing is queued any more.
        let is_due = self.in_flight >= room || self.launches - self.alone.marked >= u64::from(room / 8);
        if self.pace.mean == 0 || self.is_single(stream) || is_due {
            self.mark(call, stream);
            self.alone.marked = self.launches;
            self.publish(call);
            call.page.turn.until.fetch_max(call.now + LASTS, Release);
        }
        if self.alone.granted == 0 {
            let soon = (LOOK / self.pace.mean.max(1)) as u32;
            self.alone.granted = (self.free_room(call.now) / 4).min(soon).max(1);
        }
        self.alone.granted -= 1;
        let budget = self.alone.granted.min(BUDGET);
        self.alone.granted -= budget;
        budget
    }

    pub(super) fn wait_alone(&mut self, call: &mut Call<'_>) -> Answer {
        let marked: u32 = self.marks.iter().map(|mark| mark.launches).sum();
        if marked < self.in_flight / 2 {
            self.mark_all(call);
        }
        Answer::sleep(call.now + AHEAD_ALONE / 32, None, Reason::Queue)
    }

    /// Called when a wait has returned. If nothing is left in flight, the work is assumed to have ended now.
    pub(super) fn after_wait_alone(&mut self, call: &mut Call<'_>, wait: &Waiting) {
        let is_waited_for = |mark: &Mark| wait.scope.covers(mark.stream);
        if wait.scope == Scope::Some || self.marks.iter().any(is_waited_for) {
            self.poll(call);
        }
        let elsewhere = self.marks.iter().filter(|mark| !is_waited_for(mark));
        let kept: u32 = elsewhere.map(|mark| mark.launches).sum();
        let ended = self.close(wait);
        let open: u32 = self.open.iter().map(|open| open.launches).sum();
        let left = self.in_flight.saturating_sub(ended).max(kept + open);
        if left == 0 {
            // If the wait blocked, there was work until it returned. Otherwise there may have been a gap before.
            self.has_caught_up = !wait.has_blocked(call.now);
            self.has_gaps = self.has_caught_up && self.in_flight > 0;
            self.ended(call, self.in_flight, call.now.saturating_sub(WAIT_RETURNS));
        }
        self.in_flight = left;
        self.is_drained = left == 0;
        self.drained_at = None;
    }
}

//! A share that has the GPU for itself is not held back: nobody is to be protected. Its queue is bounded by time alone, so
//! that the first neighbour gets its part soon, and it records an event a millisecond at most.
//!
//! How it fails: launches whose length nobody knows yet go two, four, eight at once. Kernels that suddenly take far longer
//! than those before are noticed by the age of an event that is not reached: until then as many are queued as of the short
//! ones. A stream that the CPU cannot keep busy is charged as if it were, as NVML's utilization counts it too.

use std::sync::atomic::Ordering::Release;

use super::Limiter;
use super::call::{Answer, Call, Reason};
use super::launches::{Mark, Scope, Stream, WAIT_RETURNS, Waiting};
use crate::compute::{MS, Ns};

/// A share looks at the others' pages after so long, or at its next launch.
const LOOK: Ns = MS;
/// Launches without a question at most.
const BUDGET: u32 = 128;
/// A share asks so seldom that others leave the GPU to it for this long.
const LASTS: Ns = 3 * MS;

impl Limiter {
    /// Returns true if a launch may go without [`Limiter::ask`]: the share is alone, and has looked just now.
    #[must_use]
    pub fn needs_no_look(&self, now: Ns) -> bool {
        self.is_alone && self.alone.granted > 0 && now < self.alone.looked + LOOK
    }

    pub(super) fn looks(&mut self, now: Ns) {
        self.alone.looked = now;
        self.alone.granted = 0;
    }

    /// Returns true if so much is queued in a stream that an event has not been reached for long.
    pub(super) fn is_deep(&self, now: Ns, stream: Stream) -> bool {
        let of_stream = self.marks.iter().filter(|mark| mark.stream == stream);
        let oldest = of_stream.map(|mark| mark.recorded).min();
        // Two long ones may be queued.
        let longest = self.config.ahead_alone.max(3 * self.pace.mean);
        oldest.is_some_and(|at| now.saturating_sub(at) > longest)
    }

    /// Now and then a launch is measured by itself: the event in front of it ends what was launched before.
    pub(super) fn sample_alone(&mut self, call: &mut Call<'_>, stream: Stream) {
        if call.now.saturating_sub(self.last_mark) < self.config.age_alone {
            return;
        }
        self.measure_next(call, stream);
    }

    /// Returns how many launches may now go without a question.
    pub(super) fn launched_alone(&mut self, call: &mut Call<'_>, stream: Stream) -> u32 {
        let room = self.room(call.now);
        // Not all that may be queued behind one event: it would be reached when nothing is queued any more.
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
        Answer::sleep(call.now + self.config.ahead_alone / 32, None, Reason::Queue)
    }

    /// A wait has returned: by the clock it says until when there was work, if nothing is left.
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
            // One that has blocked had work to wait for: no gap lies before its end.
            self.has_caught_up = !wait.has_blocked(call.now);
            self.has_gaps = self.has_caught_up && self.in_flight > 0;
            self.ended(call, self.in_flight, call.now.saturating_sub(WAIT_RETURNS));
        }
        self.in_flight = left;
        self.is_drained = left == 0;
        self.drained_at = None;
    }
}

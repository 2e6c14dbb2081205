//! A share that has the GPU for itself is not held back: nobody is to be protected. Its queue is bounded by time alone, so
//! that the first neighbour gets its part soon, and it records an event a millisecond at most.
//!
//! How it fails: launches whose length nobody knows yet go two, four, eight at once. Kernels that suddenly take far longer
//! than those before are noticed by the age of an event that is not reached: until then as many are queued as of the short
//! ones. A stream that the CPU cannot keep busy is charged as if it were, as NVML's utilization counts it too.

use std::sync::atomic::Ordering::Release;

use super::Measured;
use super::launches::Mark;
use crate::law::io::{Answer, Io};
use crate::{MS, Ns};

/// A share looks at the others' pages after so long, or at its next launch.
const LOOK: Ns = MS;
/// Launches without a question at most.
const BUDGET: u32 = 32;
/// A share asks so seldom that others leave the GPU to it for this long.
const LASTS: Ns = 3 * MS;

impl Measured {
    /// Returns true if a launch needs no look at the others' pages.
    pub(super) fn goes_alone(&self, now: Ns) -> bool {
        self.is_alone && self.alone.granted > 0 && now < self.alone.looked + LOOK
    }

    pub(super) fn looks(&mut self, now: Ns) {
        self.alone.looked = now;
        self.alone.granted = 0;
    }

    /// Returns true if so much is queued that an event has not been reached for long.
    pub(super) fn is_deep(&self, now: Ns) -> bool {
        let oldest = self.marks.iter().map(|mark| mark.recorded).min();
        oldest.is_some_and(|at| now.saturating_sub(at) > self.config.ahead_alone)
    }

    /// Now and then a launch is measured by itself: the event in front of it ends what was launched before.
    pub(super) fn sample_alone(&mut self, io: &mut Io<'_>, stream: usize) {
        if io.now.saturating_sub(self.last_mark) < self.config.age_alone {
            return;
        }
        if self.stream(stream).open > 0 {
            self.mark(io, stream);
            self.single = self.marks.back().map(|mark| mark.event.event);
        } else {
            self.record_in_front(io, stream);
        }
    }

    pub(super) fn launched_alone(&mut self, io: &mut Io<'_>, stream: usize) {
        let room = self.room(io.now);
        self.alone.unmarked += 1;
        // Not all that may be queued behind one event: it would be reached when nothing is queued any more.
        let is_due = self.in_flight >= room || self.alone.unmarked >= room / 8;
        if self.pace.mean == 0 || self.single.is_some() || is_due {
            self.mark(io, stream);
            self.alone.unmarked = 0;
            self.publish(io);
            io.page.turn.until.fetch_max(io.now + LASTS, Release);
        }
        if self.alone.granted == 0 {
            let soon = (LOOK / self.pace.mean.max(1)) as u32;
            self.alone.granted = (self.free_room(io.now) / 4).min(soon).max(1);
        }
        self.alone.granted -= 1;
        self.budget = self.alone.granted.min(BUDGET);
        self.alone.granted -= self.budget;
        self.alone.unmarked += self.budget;
    }

    pub(super) fn wait_alone(&self, now: Ns) -> Answer {
        Answer::sleep(now + self.config.ahead_alone / 32, None)
    }

    /// A wait has returned: by the clock it says until when there was work, if nothing is left.
    pub(super) fn after_wait_alone(&mut self, io: &mut Io<'_>, scope: Option<usize>) {
        let is_waited_for = |mark: &Mark| scope.is_none_or(|scope| scope == mark.stream);
        if self.marks.iter().any(is_waited_for) {
            self.poll(io);
        }
        let elsewhere = self.marks.iter().filter(|mark| !is_waited_for(mark));
        let kept: u32 = elsewhere.map(|mark| mark.launches).sum();
        let ended = self.close_streams(scope);
        let left = self.in_flight.saturating_sub(ended).max(kept);
        if left == 0 {
            self.has_gaps = self.has_caught_up;
            self.ended(io, self.in_flight, io.now.saturating_sub(io.hardware.wait));
        }
        self.in_flight = left;
        self.drained_at = None;
    }
}

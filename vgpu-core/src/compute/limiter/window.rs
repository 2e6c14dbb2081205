//! How much may be in flight: a window of launches. Acknowledgements widen it, as in congestion control. It is also
//! limited by GPU time, using the mean time of a launch.

use std::sync::atomic::Ordering::Relaxed;

use super::call::Call;
use super::config::{AHEAD, AHEAD_ALONE, AHEAD_CAPPED, AHEAD_RANKS, MOST, MOST_CAPPED};
use super::launches::InFlight;
use super::{LONG, Limiter, SHARED};
use crate::compute::{MS, Ns, US, account, bucket};

/// The assumed length of a launch before any was acknowledged.
const UNKNOWN: Ns = 200 * US;
const LEAST_LEFT: Ns = 20 * US;
/// A capped share may have this many in flight even with few `cores`.
const LEAST_CAPPED: u32 = 4;
/// The widest window.
const WIDEST: u32 = 1 << 20;
/// The processes of a share may have two launches each in flight if all of them together take no longer than this.
const TWO_EACH: Ns = 6 * MS;

impl Limiter {
    /// Returns how many launches may be in flight.
    pub(super) fn room(&self, now: Ns) -> u32 {
        let (most, ahead) = if self.is_capped(now) {
            let part = u64::from(self.entry.weight) * u64::from(MOST_CAPPED) / bucket::WHOLE;
            ((part as u32).max(LEAST_CAPPED), AHEAD_CAPPED)
        } else if self.is_alone {
            (WIDEST, AHEAD_ALONE)
        } else {
            let part = self.entry.weight * 4 / 3 / 1000;
            let ahead = if self.is_rank(now) { AHEAD_RANKS } else { AHEAD };
            (part.clamp(16, MOST), ahead)
        };
        let deep = match ahead.checked_div(self.pace.mean) {
            Some(fit) => {
                let processes = Ns::from(1 + self.siblings);
                let are_many = processes > 2 && 2 * self.pace.mean * processes > TWO_EACH;
                // With one launch in flight, the GPU is idle until the next. That matters only for a share that is
                // alone.
                let are_long = self.pace.least > LONG && !self.is_alone;
                let least = if are_many || are_long { 1 } else { 2 };
                let each = if self.is_alone { fit } else { fit / processes };
                each.clamp(least, Ns::from(WIDEST)) as u32
            }
            None if self.is_capped(now) => 1,
            None => 2,
        };
        self.window.min(most).min(deep).max(1)
    }

    /// Returns how many more launches may be in flight.
    pub(super) fn free_room(&self, now: Ns) -> u32 {
        self.room(now).saturating_sub(self.queued(now))
    }

    /// Returns how many launches are in flight or about to be.
    pub(super) fn queued(&self, now: Ns) -> u32 {
        self.in_flight.saturating_add(self.allowed.count(now))
    }

    /// Returns true if the share has had turns on several GPUs at once lately.
    pub(super) fn is_rank(&self, now: Ns) -> bool {
        self.sibling_at != 0 && now < self.sibling_at + SHARED
    }

    /// Doubles the window, because launches were acknowledged.
    pub(super) fn widen(&mut self, launches: u32) {
        self.window = (2 * self.window).min(WIDEST);
        self.in_flight = self.in_flight.saturating_sub(launches);
    }

    // === how long the work in flight takes

    /// Returns how much longer the work in flight of this process should take.
    pub(super) fn own_left(&self, now: Ns) -> Ns {
        let queued = self.queued(now);
        if queued == 0 {
            return 0;
        }
        let each = match self.pace.mean {
            0 => UNKNOWN,
            mean => mean * Ns::from(1 + self.siblings),
        };
        let since = self.busy.unwrap_or(now).max(self.charged_to);
        let left = (Ns::from(queued) * each).saturating_sub(now.saturating_sub(since));
        left.max(LEAST_LEFT)
    }

    pub(super) fn share_in_flight(&self, call: &Call<'_>) -> InFlight {
        let (now, page) = (call.now, call.page);
        let others = || account::at_work(page, now).filter(|work| work.cell != self.cell);
        let since = others().map(|work| work.since).chain(self.busy).min();
        let covered = page.covered.load(Relaxed);
        let ran = |since: Ns| now.saturating_sub(since.max(covered));
        let left = others().map(|work| work.estimated.saturating_sub(ran(work.since)));
        InFlight {
            ran: since.map_or(0, ran),
            left: left.max().unwrap_or(0).max(self.own_left(now)),
        }
    }

    /// Returns when the oldest launch in flight was made.
    pub(super) fn oldest(&self) -> Option<Ns> {
        let open = self.open.iter().map(|open| open.since);
        self.marks.iter().map(|mark| mark.first).chain(open).min()
    }

    /// Returns true if the work in flight has taken far longer than expected.
    pub(super) fn is_late(&self, now: Ns, left: Ns) -> bool {
        self.oldest().is_some_and(|first| first + 4 * left + 10 * MS < now)
    }
}

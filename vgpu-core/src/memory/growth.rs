//! Decides when to measure the overhead again while a program runs. A driver loads code at the first launch of a
//! function, keeps memory for executable graphs, and enlarges local memory, all inside calls that are not measured.
//!
//! ```text
//!  a new function, a new graph ─► due in 0.1 s, and not within 1 s of the last time
//!  a slow moment, and due ─► measure, without waiting for anybody ─► changed: due in 1 s
//!                                                                 ─► as before: due in 2, 4, ... 64 s
//! ```
//! A slow moment is a call that takes long or after which the program has waited: an allocation, a wait for a stream,
//! the launch of a graph.
//!
//! How it fails: code that is loaded between two slow moments is charged late. Nothing is measured if another thread is
//! always inside a call that may change memory, or if NVML does not list this process. If a thread ends while it
//! measures, the others never measure again. Memory beyond the limit is charged as soon as there is room, and
//! allocations are refused meanwhile.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

const FIRST_MS: u64 = 100;
const SHORTEST_MS: u64 = 1_000;
const LONGEST_MS: u64 = 64_000;
/// Value of `due`: nothing can have grown.
const NEVER: u64 = 0;
/// Value of `due`: a thread is measuring.
const NOW: u64 = u64::MAX;

/// The time of the next measurement, in milliseconds of a clock that the callers read.
#[derive(Debug, Default)]
pub struct Growth {
    due: AtomicU64,
    last: AtomicU64,
    interval: AtomicU64,
}

/// The result of a measurement. The result of several measurements is the smallest of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Found {
    Changed,
    AsBefore,
    /// The measurement failed.
    Nothing,
}

impl Growth {
    /// Returns true if something may have grown since the last measurement. Cheap: no clock is read.
    #[inline(always)]
    pub fn is_awaited(&self) -> bool {
        self.due.load(Relaxed) != NEVER
    }

    /// Notes that the program has a new function or a new graph.
    #[cold]
    pub fn note_new(&self, now: u64) {
        self.interval.store(SHORTEST_MS, Relaxed);
        let earliest = match self.last.load(Relaxed) {
            0 => 0,
            last => last.saturating_add(SHORTEST_MS),
        };
        let wanted = now.saturating_add(FIRST_MS).max(earliest);
        let sooner = |due| match due {
            NEVER => Some(wanted),
            // A measurement is in progress; its thread will set the next time, one second from now.
            NOW => None,
            due => (wanted < due).then_some(wanted),
        };
        let _ = self.due.fetch_update(Relaxed, Relaxed, sooner);
    }

    /// Returns true if a measurement is due. Only one thread gets true; it measures and then calls [`Growth::looked`].
    #[cold]
    pub fn is_due(&self, now: u64) -> bool {
        let due = self.due.load(Relaxed);
        due <= now && due != NEVER && self.due.compare_exchange(due, NOW, Relaxed, Relaxed).is_ok()
    }

    /// Called after a measurement with its result. Sets the time of the next one.
    pub fn looked(&self, now: u64, found: Found) {
        let interval = self.interval.load(Relaxed).clamp(SHORTEST_MS, LONGEST_MS);
        let next = match found {
            Found::Changed => SHORTEST_MS,
            Found::AsBefore => (interval * 2).min(LONGEST_MS),
            Found::Nothing => interval,
        };
        self.interval.store(next, Relaxed);
        self.last.store(now, Relaxed);
        self.due.store(now.saturating_add(interval.min(next)), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_measured_at_most_once_a_second_and_ever_more_rarely() {
        let growth = Growth::default();
        assert!(!growth.is_awaited() && !growth.is_due(u64::MAX - 1), "nothing is new");
        growth.note_new(5_000);
        assert!(growth.is_awaited() && !growth.is_due(5_099));
        assert!(growth.is_due(5_100));
        assert!(!growth.is_due(9_000), "one thread looks");
        growth.looked(5_100, Found::Changed);
        growth.note_new(5_200);
        assert!(!growth.is_due(6_099) && growth.is_due(6_100));
        let mut now = 6_100;
        for seconds in [1, 2, 4, 8, 16, 32, 64, 64] {
            growth.looked(now, Found::AsBefore);
            assert!(!growth.is_due(now + seconds * 1_000 - 1), "{seconds} s");
            now += seconds * 1_000;
            assert!(growth.is_due(now), "{seconds} s");
        }
        growth.looked(now, Found::AsBefore);
        growth.note_new(now + 5_000);
        assert!(
            !growth.is_due(now + 5_099) && growth.is_due(now + 5_100),
            "a new function"
        );
    }

    #[test]
    fn what_is_new_while_a_thread_looks_is_looked_for_a_second_later() {
        let growth = Growth::default();
        growth.note_new(1_000);
        assert!(growth.is_due(2_000));
        growth.note_new(2_000);
        growth.looked(2_001, Found::AsBefore);
        assert!(growth.is_due(3_001));
    }

    #[test]
    fn a_measurement_that_fails_is_tried_again_at_the_same_pace() {
        let growth = Growth::default();
        growth.note_new(1_000);
        let mut now = 1_100;
        for _ in 0..5 {
            assert!(growth.is_due(now));
            growth.looked(now, Found::Nothing);
            now += 1_000;
        }
    }
}

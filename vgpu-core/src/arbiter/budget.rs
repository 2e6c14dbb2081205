//! Launches that may start without asking the law. The law grants a few at a time, divided among the recently used
//! streams. The launch path has no lock, no clock, no system call and no locked instruction.
//!
//! ```text
//!  launch ─► its stream's place: passed < until? ─ yes ─► go, counted
//!              └ no ─► the law, which first withdraws the rest of the budget and counts its launches   (super::Arbiter)
//! ```
//!
//! A launch writes only `passed` and a grant only `until`, so neither overwrites the other.
//!
//! How it fails: if two threads launch in one stream at the same moment, only one launch may be counted. A launch that
//! starts while the budget is withdrawn is counted at the next withdrawal.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::compute::limiter::Stream;

/// Twice the number of streams that [`super::streams`] remembers, so that few of them collide.
const PLACES: usize = 128;

/// A stream that was not used during this many grants gets no part of the next one.
const FORGOTTEN: u32 = 32;

/// One stream's launches. The numbers wrap.
#[derive(Debug, Default)]
struct Place {
    /// 0: free.
    stream: AtomicU64,
    passed: AtomicU32,
    until: AtomicU32,
    /// The value of `passed` up to which launches were counted.
    counted: AtomicU32,
    /// Grants since its last use.
    idle: AtomicU32,
}

/// The budget of one process on one GPU. All but [`Budget::take`] is called under the arbiter's lock.
#[derive(Debug)]
pub(super) struct Budget {
    places: Box<[Place; PLACES]>,
    /// A bit for each place that was ever used.
    used: [AtomicU64; PLACES / 64],
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            places: Box::new([const { Place::new() }; PLACES]),
            used: Default::default(),
        }
    }
}

impl Place {
    const fn new() -> Self {
        Self {
            stream: AtomicU64::new(0),
            passed: AtomicU32::new(0),
            until: AtomicU32::new(0),
            counted: AtomicU32::new(0),
            idle: AtomicU32::new(0),
        }
    }

    fn grant(&self, launches: u32) {
        self.until
            .store(self.passed.load(Relaxed).wrapping_add(launches), Relaxed);
    }
}

impl Budget {
    /// Returns true, and counts the launch, if it may go now.
    #[inline(always)]
    pub(super) fn take(&self, stream: Stream) -> bool {
        let Some(place) = self.place_of(stream) else {
            return false;
        };
        let passed = place.passed.load(Relaxed);
        if place.until.load(Relaxed).wrapping_sub(passed).cast_signed() <= 0 {
            return false;
        }
        place.passed.store(passed.wrapping_add(1), Relaxed);
        true
    }

    /// Withdraws the rest of the budget, and reports the launches that used it, by stream.
    pub(super) fn withdraw(&self, mut count: impl FnMut(Stream, u32)) {
        for place in self.used() {
            let passed = place.passed.load(Relaxed);
            place.until.store(passed, Relaxed);
            let launches = passed.wrapping_sub(place.counted.swap(passed, Relaxed)).cast_signed();
            // Negative if a thread that was preempted in `take` has written an old value.
            if let Ok(launches @ 1..) = u32::try_from(launches) {
                count(Stream(place.stream.load(Relaxed)), launches);
                place.idle.store(0, Relaxed);
            }
        }
    }

    /// Grants launches to this stream and to the recently used ones.
    pub(super) fn grant(&self, stream: Stream, launches: u32) {
        self.know(stream);
        let Some(asking) = self.place_of(stream) else { return };
        asking.idle.store(0, Relaxed);
        let is_used = |place: &Place| place.stream.load(Relaxed) != 0 && place.idle.load(Relaxed) < FORGOTTEN;
        let used = self.used().filter(|place| is_used(place)).count() as u32;
        let (each, mut left) = ((launches / used.max(1)).max(1), launches);
        for place in self.used().filter(|place| is_used(place)) {
            place.idle.fetch_add(1, Relaxed);
            if !std::ptr::eq(place, asking) {
                let granted = each.min(left.saturating_sub(1));
                place.grant(granted);
                left -= granted;
            }
        }
        asking.grant(left);
    }

    /// Gives a stream a place in the budget.
    fn know(&self, stream: Stream) {
        if self.place_of(stream).is_some() {
            return;
        }
        let [first, second] = places_of(stream);
        let is_free = |place: usize| self.places[place].stream.load(Relaxed) == 0;
        let place = if !is_free(first) && is_free(second) {
            second
        } else {
            first
        };
        self.places[place].grant(0);
        self.places[place].stream.store(stream.0, Relaxed);
        self.used[place / 64].fetch_or(1 << (place % 64), Relaxed);
    }

    /// Removes a stream's entry: its next launch asks the law.
    pub(super) fn forget(&self, stream: Stream) {
        if let Some(place) = self.place_of(stream) {
            place.stream.store(0, Relaxed);
        }
    }

    fn used(&self) -> impl Iterator<Item = &Place> {
        let words = self.used.iter().zip(self.places.chunks(64));
        words.flat_map(|(word, places)| {
            let mut bits = word.load(Relaxed);
            std::iter::from_fn(move || {
                let place = places.get(bits.trailing_zeros() as usize)?;
                bits &= bits - 1;
                Some(place)
            })
        })
    }

    #[inline(always)]
    fn place_of(&self, stream: Stream) -> Option<&Place> {
        let [first, second] = places_of(stream);
        // Written out, because `map` would not be inlined.
        let (first, second) = (&self.places[first], &self.places[second]);
        if first.stream.load(Relaxed) == stream.0 {
            return Some(first);
        }
        (second.stream.load(Relaxed) == stream.0).then_some(second)
    }
}

/// Returns the two places at which a stream may be.
#[inline(always)]
fn places_of(stream: Stream) -> [usize; 2] {
    let place = (stream.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % PLACES;
    [place, place ^ 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: Stream = Stream(64);
    const OTHER: Stream = Stream(80);

    fn granted(launches: u32) -> Budget {
        let found = Budget::default();
        found.grant(STREAM, launches);
        found
    }

    fn counted(budget: &Budget) -> Vec<(u64, u32)> {
        let mut found = Vec::new();
        budget.withdraw(|stream, launches| found.push((stream.0, launches)));
        found
    }

    fn taken(budget: &Budget, stream: Stream) -> usize {
        (0..100).filter(|_| budget.take(stream)).count()
    }

    #[test]
    fn launches_go_until_the_budget_is_used_up_and_are_counted_once() {
        let budget = granted(3);
        assert_eq!(taken(&budget, STREAM), 3);
        assert_eq!(counted(&budget), [(64, 3)]);
        assert_eq!(counted(&budget), []);
    }

    #[test]
    fn what_is_not_granted_was_taken_back_or_has_ended_asks() {
        let budget = granted(3);
        assert!(!budget.take(OTHER) && budget.take(STREAM));
        assert_eq!(counted(&budget), [(64, 1)]);
        assert!(!budget.take(STREAM), "it was taken back");
        budget.grant(STREAM, 3);
        budget.forget(STREAM);
        assert!(!budget.take(STREAM));
    }

    /// A thread reads `passed` in [`Budget::take`] and is then delayed, while others launch and their launches are
    /// counted.
    #[test]
    fn a_thread_that_was_held_up_does_not_count_all_launches_that_there_can_be() {
        let budget = granted(3);
        let place = budget.place_of(STREAM).expect("known");
        let read = place.passed.load(Relaxed);
        assert_eq!(taken(&budget, STREAM), 3);
        assert_eq!(counted(&budget), [(64, 3)]);
        place.passed.store(read + 1, Relaxed);
        assert_eq!(counted(&budget), []);
        budget.grant(STREAM, 2);
        assert_eq!(taken(&budget, STREAM), 2);
        assert_eq!(counted(&budget), [(64, 2)]);
    }

    /// 16 streams take turns: together they ask once for each 16 launches, and are never granted more.
    #[test]
    fn streams_that_are_used_share_the_budget() {
        let budget = Budget::default();
        let streams: Vec<Stream> = (1..=16).map(|nth| Stream(0x7f00_0000_0000 + nth * 0x340)).collect();
        let mut asked = 0;
        for launch in 0..16_000 {
            let stream = streams[launch % 16];
            if !budget.take(stream) {
                asked += 1;
                budget.withdraw(|_, launches| assert!(launches <= 16));
                budget.grant(stream, 16);
                let left: u32 = budget
                    .used()
                    .map(|place| place.until.load(Relaxed) - place.passed.load(Relaxed))
                    .sum();
                assert!(left <= 16, "{left}");
            }
        }
        assert!(asked < 2200, "{asked}");
    }

    #[test]
    fn as_many_streams_as_are_remembered_have_nearly_all_a_place() {
        let budget = Budget::default();
        let streams: Vec<Stream> = (1..=64).map(|nth| Stream(0x7f00_0000_0000 + nth * 0x340)).collect();
        streams.iter().for_each(|stream| budget.know(*stream));
        let known = streams.iter().filter(|stream| budget.place_of(**stream).is_some());
        assert!(known.count() >= 56);
    }

    /// One thread for each stream; the budget is withdrawn and granted all the time. No launch is lost.
    #[test]
    fn all_that_threads_launch_is_counted() {
        let rounds = if cfg!(miri) { 20 } else { 20_000 };
        let budget = Budget::default();
        let (mut sum, mut taken) = (0, 0);
        std::thread::scope(|threads| {
            let launching = [STREAM, OTHER].map(|stream| {
                let budget = &budget;
                threads.spawn(move || (0..20 * rounds).filter(|_| budget.take(stream)).count())
            });
            for round in 0..rounds {
                budget.withdraw(|_, launches| sum += launches as usize);
                budget.grant(if round % 2 == 0 { STREAM } else { OTHER }, 8);
            }
            taken = launching.into_iter().map(|one| one.join().expect("no panic")).sum();
        });
        budget.withdraw(|_, launches| sum += launches as usize);
        assert_eq!(sum, taken);
        assert!(
            taken <= 10 * rounds,
            "{taken}: a launch may go while a budget is taken back, and no more"
        );
    }
}

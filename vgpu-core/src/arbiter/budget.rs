//! Launches that go without asking: the law grants a few at a time, whatever their streams. No lock, no clock, no system
//! call.
//!
//! ```text
//!  launch ─► is its stream known here? ─► one of `left` ─► go, counted for its stream
//!  else   ─► the law, which takes back what is left and counts what has gone first            (super::Arbiter)
//! ```
//!
//! How it fails: two threads that launch in one stream at the same moment may count one launch less for it, which is then
//! counted for another stream; their sum is exact.

use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use crate::compute::limiter::Stream;

/// Twice as many as streams are remembered ([`super::streams`]), so that few of them replace each other.
const PLACES: usize = 128;

/// One stream's launches since they were counted last.
#[derive(Debug, Default)]
struct Place {
    /// 0: free.
    stream: AtomicU64,
    passed: AtomicU32,
}

/// The budget of one process on one GPU.
#[derive(Debug)]
pub(super) struct Budget {
    /// Below 0 if threads have asked for more than there was.
    left: AtomicI32,
    granted: AtomicI32,
    places: Box<[Place]>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            left: AtomicI32::new(0),
            granted: AtomicI32::new(0),
            places: (0..PLACES).map(|_| Place::default()).collect(),
        }
    }
}

impl Budget {
    /// Returns true if a launch may go now. It is counted.
    #[inline(always)]
    pub(super) fn take(&self, stream: Stream) -> bool {
        let Some(place) = self.place_of(stream) else {
            return false;
        };
        if self.left.load(Relaxed) <= 0 || self.left.fetch_sub(1, AcqRel) <= 0 {
            return false;
        }
        // No atomic addition: it costs as much as all the rest, and [`Budget::withdraw`] makes up for what is lost.
        place.passed.store(place.passed.load(Relaxed).wrapping_add(1), Relaxed);
        true
    }

    /// Takes back what is left, and hands out what has gone, by stream.
    pub(super) fn withdraw(&self, mut count: impl FnMut(Stream, u32)) {
        let granted = self.granted.swap(0, Relaxed);
        if granted == 0 {
            return;
        }
        let left = self.left.swap(0, AcqRel).max(0);
        let mut passed = granted.saturating_sub(left).unsigned_abs();
        let mut last = None;
        for place in &self.places {
            if place.passed.load(Relaxed) == 0 {
                continue;
            }
            let counted = place.passed.swap(0, Relaxed).min(passed);
            let stream = Stream(place.stream.load(Relaxed));
            passed -= counted;
            if counted > 0 {
                count(stream, counted);
            }
            last = Some(stream);
        }
        if let Some(stream) = last.filter(|_| passed > 0) {
            count(stream, passed);
        }
    }

    /// Lets so many launches go, in all streams that are known. Called after [`Budget::withdraw`].
    pub(super) fn grant(&self, launches: u32) {
        let launches = i32::try_from(launches).unwrap_or(i32::MAX);
        self.granted.store(launches, Relaxed);
        self.left.store(launches, Release);
    }

    /// Launches in this stream may go within the budget from now on. Called after [`Budget::withdraw`].
    pub(super) fn know(&self, stream: Stream) {
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
        self.places[place].stream.store(stream.0, Release);
    }

    /// The next launch in this stream asks.
    pub(super) fn forget(&self, stream: Stream) {
        if let Some(place) = self.place_of(stream) {
            place.stream.store(0, Relaxed);
        }
    }

    #[inline(always)]
    fn place_of(&self, stream: Stream) -> Option<&Place> {
        let [first, second] = places_of(stream).map(|place| &self.places[place]);
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

    fn granted(launches: u32) -> Budget {
        let found = Budget::default();
        found.know(STREAM);
        found.grant(launches);
        found
    }

    fn counted(budget: &Budget) -> Vec<(u64, u32)> {
        let mut found = Vec::new();
        budget.withdraw(|stream, launches| found.push((stream.0, launches)));
        found
    }

    #[test]
    fn launches_go_until_the_budget_is_used_up_and_are_counted() {
        let budget = granted(3);
        assert_eq!((0..10).filter(|_| budget.take(STREAM)).count(), 3);
        assert_eq!(counted(&budget), [(64, 3)]);
        assert_eq!(counted(&budget), [], "once");
    }

    #[test]
    fn what_is_not_known_or_granted_asks() {
        let budget = granted(3);
        assert!(!budget.take(Stream(80)), "another stream");
        assert!(budget.take(STREAM));
        assert_eq!(counted(&budget), [(64, 1)]);
        assert!(!budget.take(STREAM), "it was taken back");
        budget.grant(3);
        budget.forget(STREAM);
        assert!(!budget.take(STREAM));
    }

    #[test]
    fn as_many_streams_as_are_remembered_have_nearly_all_a_place() {
        let budget = Budget::default();
        let streams: Vec<Stream> = (1..=64).map(|nth| Stream(0x7f00_0000_0000 + nth * 0x340)).collect();
        streams.iter().for_each(|stream| budget.know(*stream));
        let known = streams.iter().filter(|stream| budget.place_of(**stream).is_some());
        assert!(known.count() >= 56);
    }

    #[test]
    fn threads_never_take_more_than_was_granted_and_all_is_counted() {
        let rounds = if cfg!(miri) { 3 } else { 500 };
        let other = Stream(80);
        for _ in 0..rounds {
            let budget = granted(10);
            budget.know(other);
            let taken: usize = std::thread::scope(|threads| {
                let thread = |stream| move |budget: &Budget| (0..20).filter(|_| budget.take(stream)).count();
                let running: Vec<_> = [STREAM, STREAM, other]
                    .map(thread)
                    .into_iter()
                    .map(|run| {
                        threads.spawn({
                            let budget = &budget;
                            move || run(budget)
                        })
                    })
                    .collect();
                running.into_iter().map(|one| one.join().expect("no panic")).sum()
            });
            assert!(taken <= 10, "{taken}");
            let sum: u32 = counted(&budget).iter().map(|(_, launches)| launches).sum();
            assert_eq!(sum as usize, taken);
        }
    }
}

//! Launches that go without asking: the limiter grants a little work at a time, and each launch takes its estimate from
//! it. No lock, no precise clock, no system call.
//!
//! ```text
//!  launch ─► place of (stream, shape): the estimate, if the stream's chunk is open ─► taken from `left` ─► go, counted
//!  else   ─► the limiter, which counts the launches of all places first                      (super::Arbiter)
//! ```
//!
//! How it fails: two threads that launch while the limiter withdraws a credit may pass a launch each that is counted in
//! the next chunk. A program that launches, pauses and launches again uses what is left only for [`VALID`].

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

use crate::compute::Ns;
use crate::compute::estimate::Shape;
use crate::compute::flight::Stream;
use crate::os::coarse_millis;

const PLACES: usize = 256;
const STREAMS: usize = 16;
/// Milliseconds of the coarse clock for which a credit holds.
const VALID: u64 = 6;

/// A shape in a stream.
#[derive(Debug, Default)]
struct Place {
    /// 0: free.
    key: AtomicU64,
    cost: AtomicI64,
    stream: AtomicU64,
    shape: AtomicU64,
    /// Launches since the limiter counted them.
    passed: AtomicU32,
}

/// The credit of one process on one GPU.
#[derive(Debug)]
pub(super) struct Credit {
    left: AtomicI64,
    /// The value of `left` when it was granted: as long as it has not changed, no launch has passed.
    granted: AtomicI64,
    valid_until: AtomicU64,
    /// Streams whose chunk is open, by a hash.
    open: [AtomicU64; STREAMS],
    places: Box<[Place]>,
}

impl Default for Credit {
    fn default() -> Self {
        Self {
            left: AtomicI64::new(0),
            granted: AtomicI64::new(0),
            valid_until: AtomicU64::new(0),
            open: Default::default(),
            places: (0..PLACES).map(|_| Place::default()).collect(),
        }
    }
}

impl Credit {
    /// Returns true if a launch may go now. It is counted.
    #[inline(always)]
    pub(super) fn take(&self, stream: Stream, shape: Shape) -> bool {
        let key = key_of(stream, shape);
        let Some(place) = self.place(key) else { return false };
        if place.key.load(Acquire) != key || self.open_word(stream).load(Relaxed) != stream.0 {
            return false;
        }
        let cost = place.cost.load(Relaxed);
        if self.left.load(Relaxed) < cost || coarse_millis() > self.valid_until.load(Relaxed) {
            return false;
        }
        // Two threads at once may take what is enough for one.
        if self.left.fetch_sub(cost, AcqRel) < cost {
            return false;
        }
        place.passed.fetch_add(1, Release);
        true
    }

    /// Hands out every launch that went, with its stream and shape, to be counted.
    pub(super) fn drain(&self, mut count: impl FnMut(Stream, Shape, u32)) {
        if self.left.load(Acquire) == self.granted.load(Relaxed) {
            return;
        }
        for place in &self.places {
            if place.passed.load(Relaxed) > 0 {
                let passed = place.passed.swap(0, AcqRel);
                count(
                    Stream(place.stream.load(Relaxed)),
                    Shape(place.shape.load(Relaxed)),
                    passed,
                );
            }
        }
    }

    /// Grants `credit` ns of work to launches of shapes that are known in streams that are open.
    pub(super) fn grant(&self, credit: Ns) {
        self.valid_until.store(coarse_millis() + VALID, Relaxed);
        self.set(i64::try_from(credit).unwrap_or(0));
    }

    fn set(&self, left: i64) {
        self.granted.store(left, Relaxed);
        self.left.store(left, Release);
    }

    /// Launches of this shape in this stream cost so much from now on. Called after [`Credit::drain`].
    pub(super) fn know(&self, stream: Stream, shape: Shape, cost: Ns) {
        let key = key_of(stream, shape);
        let Some(place) = self.place(key) else { return };
        if place.key.load(Relaxed) != key {
            // Nobody takes it while it changes.
            place.key.store(0, Release);
            place.stream.store(stream.0, Relaxed);
            place.shape.store(shape.0, Relaxed);
        }
        place.cost.store(i64::try_from(cost).unwrap_or(i64::MAX), Relaxed);
        place.key.store(key, Release);
    }

    /// The stream's chunk is open: launches in it may go on credit.
    pub(super) fn open(&self, stream: Stream) {
        self.open_word(stream).store(stream.0, Relaxed);
    }

    /// The stream's chunk has ended: the next launch in it asks.
    pub(super) fn close(&self, stream: Stream) {
        let _ = self.open_word(stream).compare_exchange(stream.0, 0, Relaxed, Relaxed);
    }

    /// Every launch has to ask again: the chunks of all streams end.
    pub(super) fn withdraw(&self) {
        self.set(0);
        for word in &self.open {
            word.store(0, Relaxed);
        }
    }

    #[inline(always)]
    fn place(&self, key: u64) -> Option<&Place> {
        self.places.get((key >> 32) as usize % PLACES)
    }

    #[inline(always)]
    fn open_word(&self, stream: Stream) -> &AtomicU64 {
        &self.open[(mix(stream.0) >> 32) as usize % STREAMS]
    }
}

#[inline(always)]
fn key_of(stream: Stream, shape: Shape) -> u64 {
    mix(stream.0 ^ shape.0.rotate_left(17)) | 1
}

#[inline(always)]
fn mix(value: u64) -> u64 {
    value.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: Stream = Stream(64);
    const SHAPE: Shape = Shape(7);

    fn granted(credit: Ns, cost: Ns) -> Credit {
        let found = Credit::default();
        found.open(STREAM);
        found.know(STREAM, SHAPE, cost);
        found.grant(credit);
        found
    }

    #[test]
    fn launches_go_until_the_credit_is_used_up_and_are_counted() {
        let credit = granted(10, 3);
        let gone = (0..10).filter(|_| credit.take(STREAM, SHAPE)).count();
        assert_eq!(gone, 3);
        let mut counted = Vec::new();
        credit.drain(|stream, shape, count| counted.push((stream, shape, count)));
        assert_eq!(counted, [(STREAM, SHAPE, 3)]);
        credit.drain(|_, _, _| panic!("counted twice"));
    }

    #[test]
    fn what_is_not_known_open_or_granted_asks() {
        let credit = granted(10, 3);
        assert!(!credit.take(STREAM, Shape(8)), "an unknown shape");
        assert!(!credit.take(Stream(80), SHAPE), "another stream");
        credit.withdraw();
        assert!(!credit.take(STREAM, SHAPE));
        credit.grant(10);
        assert!(!credit.take(STREAM, SHAPE), "its chunk is not open");
        credit.open(STREAM);
        assert!(credit.take(STREAM, SHAPE));
    }

    #[test]
    fn threads_never_take_more_than_was_granted() {
        let rounds = if cfg!(miri) { 3 } else { 200 };
        for _ in 0..rounds {
            let credit = granted(30, 3);
            let taken: usize = std::thread::scope(|threads| {
                let thread = || (0..20).filter(|_| credit.take(STREAM, SHAPE)).count();
                let running: Vec<_> = (0..3).map(|_| threads.spawn(thread)).collect();
                running.into_iter().map(|one| one.join().expect("no panic")).sum()
            });
            assert!(taken <= 10, "{taken}");
            let mut counted = 0;
            credit.drain(|_, _, count| counted += count as usize);
            assert_eq!(counted, taken);
        }
    }
}

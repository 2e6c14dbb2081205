//! Tests the protocol of `explore.rs` with real threads: writers that die in the middle of an operation and, at the
//! same time, a reaper and a reader of the lanes. Under Miri (`cargo +nightly miri test -p vgpu-core ledger`), stores
//! become visible as late as their orderings allow, with another interleaving for every seed.

use super::explore::region;
use super::operation::{Change, Operation, Outcome, Step};
use super::reap::{Scope, held, reap};
use super::region::Region;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const LIMIT: u64 = 100;
const WRITERS: usize = 3;

/// Charges and releases in turn, and stops after `steps` steps, as if killed there.
fn write(region: &Region, lane: usize, mut steps: usize) {
    let mut holds = 0;
    loop {
        let bytes = 10 + lane as u64;
        let change = match holds {
            0..30 => Change::Charge { bytes, limit: LIMIT },
            _ => Change::Release { bytes },
        };
        let mut operation = Operation::new(lane, change);
        loop {
            if steps == 0 {
                return;
            }
            steps -= 1;
            operation.advance(region);
            assert!(region.total.charged() <= LIMIT, "beyond the limit");
            match (operation.step(), change) {
                (Step::Done(Outcome::Applied), Change::Charge { .. }) => holds += bytes,
                (Step::Done(Outcome::Applied), _) => holds -= bytes,
                (Step::Done(Outcome::Refused), _) => {}
                (Step::Done(Outcome::Damaged), _) => panic!("lane {lane} found the ledger damaged"),
                _ => continue,
            }
            break;
        }
    }
}

#[test]
fn the_dead_are_taken_out_beside_the_living() {
    for round in 0..if cfg!(miri) { 3 } else { 300 } {
        let region = region();
        let dead = AtomicUsize::new(0);
        for lane in 1..=WRITERS {
            region.lanes[lane].generation.store(1, Relaxed);
        }
        std::thread::scope(|threads| {
            for lane in 1..=WRITERS {
                let (region, dead) = (&region, &dead);
                threads.spawn(move || {
                    write(region, lane, 60 + 7 * lane + round * 13 % 97);
                    // Does what the kernel would do: it releases the lane's lock.
                    dead.fetch_or(1 << lane, Release);
                });
            }
            let is_dead = |lane: usize| dead.load(Acquire) & 1 << lane != 0;
            let mut count = 0;
            while count < WRITERS {
                count += reap(&region, Scope::All, is_dead).expect("a sound ledger");
                let sum: u64 = (1..=WRITERS).map(|lane| held(&region, lane, &region.lanes[lane])).sum();
                assert!(sum <= LIMIT * 2, "{sum}: each lane is at most an operation apart");
                std::thread::yield_now();
            }
        });
        assert_eq!(region.total.charged(), 0, "round {round}");
        let peak = region.peak.load(Relaxed);
        assert!((10..=LIMIT).contains(&peak), "{peak}: no total was ever higher");
        let held = |index: usize| held(&region, index, &region.lanes[index]);
        assert!((1..=WRITERS).all(|lane| held(lane) == 0));
    }
}

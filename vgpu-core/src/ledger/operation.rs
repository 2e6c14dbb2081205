//! One change of the total, made in steps. The process may be killed after any of them.
//!
//! ```text
//!  Begin ─► Written ─► Published ─► Seen ─► Recorded ─► Done, or Charged ─► Done
//!    │        │           ▲  │        │         │                    │
//!    │        │           │  │        │         │                    └ a new total, which may be the highest one
//!    │        │           │  │        │         └ another writer was first: back to Seen
//!    │        │           │  │        └ above the limit, or damaged: Withdrawn ─► Done
//!    │        │           sequence is stored: the operation is announced
//!    │        the charge after the operation is stored, in the word of the next parity
//!    the word of the present parity has the lane's charge
//! ```
//!
//! A lane has two words for its charge; the lowest bit of its sequence tells which one is valid.
//!
//! Why the charge of a dead process is known after every step (`vgpu_abi::ledger::settled_charge`):
//! - Before `Published`, the lane's sequence is that of the previous operation, which is settled. Its word is
//!   untouched.
//! - The exchange that changes the total also writes this operation's stamp there. The next writer records the stamp in
//!   `applied` (step `Recorded`) before it overwrites it. So from the exchange on, either the total or `applied` tells
//!   that the operation took place. A process need not record its own last operation: when it overwrites its own stamp,
//!   its sequence has already increased.
//! - `Withdrawn` makes both words equal before it marks the operation as settled.
//! - `Charged` changes only the peak, on which no charge depends. If a process is killed before it, the peak is less
//!   than the total, so readers take the higher of both.
//!
//! Ordering: a lane's charge is stored before its sequence (release), the sequence before the exchange (a full
//! barrier), and `applied` before the exchange that overwrites the stamp. So a process that reads the total with
//! acquire and then `applied` misses nothing. There is no ABA problem: a stamp (lane, sequence) is never used twice, so
//! a total that looks unchanged is unchanged.

use super::region::{Lane, Region};
use super::wide::Pair;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use vgpu_abi::ledger::{REAPER, Stamp};

/// The effect of an operation on the total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// Adds bytes to this lane, if the total stays within the limit.
    Charge { bytes: u64, limit: u64 },
    /// Subtracts bytes from this lane and from the total.
    Release { bytes: u64 },
    /// Subtracts bytes from this lane, but not from the total: an exported object has the charge from then on
    /// ([`super::objects`]).
    Move { bytes: u64 },
    /// Subtracts the charge of `target`, the lane of a dead process, from the total. This is an operation of the
    /// reaper's lane, which has `target` where other lanes have their charge.
    Reap { bytes: u64, target: Stamp },
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Applied,
    /// Above the limit.
    Refused,
    /// The ledger has values that no library writes. Nothing was changed.
    Damaged,
}

/// An operation and its last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    lane: usize,
    sequence: u64,
    change: Change,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Begin,
    Written,
    Published,
    Seen(Pair),
    Recorded(Pair),
    /// The total that a charge has made.
    Charged(u64),
    Withdrawn(Outcome),
    Done(Outcome),
}

impl Operation {
    /// Returns the next operation of `lane`. The caller owns the lane, and no other thread uses it meanwhile.
    #[inline(always)]
    #[must_use]
    pub fn new(lane: usize, change: Change) -> Self {
        Self {
            lane,
            sequence: 0,
            change,
            step: Step::Begin,
        }
    }

    /// Runs all steps and returns the outcome.
    #[inline(always)]
    pub fn run(mut self, region: &Region) -> Outcome {
        // These six steps are the common case and compile to straight code. The loop is needed only if another process
        // changed the total first.
        self.advance(region);
        self.advance(region);
        self.advance(region);
        self.advance(region);
        self.advance(region);
        self.advance(region);
        loop {
            if let Step::Done(outcome) = self.step {
                return outcome;
            }
            self.advance(region);
        }
    }

    /// Returns the last step.
    #[must_use]
    pub fn step(&self) -> Step {
        self.step
    }

    /// Makes one step, with at most one store that other processes can see.
    #[inline(always)]
    pub fn advance(&mut self, region: &Region) {
        let Some(lane) = region.lanes.get(self.lane) else {
            self.step = Step::Done(Outcome::Damaged);
            return;
        };
        self.step = match self.step {
            Step::Begin => self.write(lane),
            Step::Written => {
                lane.sequence.store(self.sequence, Release);
                Step::Published
            }
            Step::Published => Step::Seen(region.total.load()),
            Step::Seen(total) => self.record(region, lane, total),
            Step::Recorded(total) => self.exchange(region, lane, total),
            Step::Charged(total) => {
                if total > region.peak.load(Relaxed) {
                    raise(region, total);
                }
                Step::Done(Outcome::Applied)
            }
            Step::Withdrawn(outcome) => {
                lane.applied.fetch_max(self.sequence, AcqRel);
                Step::Done(outcome)
            }
            Step::Done(outcome) => Step::Done(outcome),
        };
    }

    #[inline(always)]
    fn write(&mut self, lane: &Lane) -> Step {
        let present = lane.sequence.load(Relaxed);
        let held = parity(lane, present).load(Relaxed);
        let next = match self.change {
            Change::Charge { bytes, .. } => held.checked_add(bytes),
            Change::Release { bytes } | Change::Move { bytes } => held.checked_sub(bytes),
            Change::Reap { target, .. } => (self.lane == REAPER).then_some(target.pack()),
        };
        let (Some(next), true) = (next, present < Stamp::LAST) else {
            return Step::Done(Outcome::Damaged);
        };
        self.sequence = present + 1;
        parity(lane, self.sequence).store(next, Relaxed);
        Step::Written
    }

    #[inline(always)]
    fn record(&self, region: &Region, lane: &Lane, total: Pair) -> Step {
        if let Change::Charge { bytes, limit } = self.change {
            let beyond = total.charged.checked_add(bytes).is_none_or(|sum| sum > limit);
            if beyond {
                let intact = total.charged <= limit;
                return self.withdraw(lane, if intact { Outcome::Refused } else { Outcome::Damaged });
            }
        }
        let last = Stamp::unpack(total.writer);
        if last.lane == self.lane {
            return Step::Recorded(total);
        }
        let Some(other) = region.lanes.get(last.lane) else {
            return self.withdraw(lane, Outcome::Damaged);
        };
        if other.applied.load(Acquire) < last.number {
            other.applied.fetch_max(last.number, AcqRel);
        }
        Step::Recorded(total)
    }

    #[inline(always)]
    fn exchange(&self, region: &Region, lane: &Lane, total: Pair) -> Step {
        let charged = match self.change {
            Change::Charge { bytes, .. } => total.charged.checked_add(bytes),
            Change::Release { bytes } | Change::Reap { bytes, .. } => total.charged.checked_sub(bytes),
            Change::Move { .. } => Some(total.charged),
        };
        let Some(charged) = charged else {
            return self.withdraw(lane, Outcome::Damaged);
        };
        let writer = Stamp {
            lane: self.lane,
            number: self.sequence,
        };
        let new = Pair {
            charged,
            writer: writer.pack(),
        };
        match region.total.exchange(total, new) {
            Ok(()) if matches!(self.change, Change::Charge { .. }) => Step::Charged(charged),
            Ok(()) => Step::Done(Outcome::Applied),
            Err(found) => Step::Seen(found),
        }
    }

    #[inline(always)]
    fn withdraw(&self, lane: &Lane, outcome: Outcome) -> Step {
        withdraw(lane, self.sequence);
        Step::Withdrawn(outcome)
    }
}

#[cold]
#[inline(never)]
fn raise(region: &Region, total: u64) {
    region.peak.fetch_max(total, Relaxed);
}

/// Makes both charge words of `lane` equal again, because its operation `sequence` does not take place. Never inlined,
/// because the common case would then compute both addresses for it.
#[cold]
#[inline(never)]
fn withdraw(lane: &Lane, sequence: u64) {
    let held = parity(lane, sequence.wrapping_sub(1)).load(Relaxed);
    parity(lane, sequence).store(held, Release);
}

/// Returns the word with the charge of `lane` after its operation `sequence`.
#[inline(always)]
pub(super) fn parity(lane: &Lane, sequence: u64) -> &std::sync::atomic::AtomicU64 {
    let [even, odd] = &lane.charged;
    if sequence.is_multiple_of(2) { even } else { odd }
}

//! One change of the total, in steps between which its owner may be killed.
//!
//! ```text
//!  Begin ─► Written ─► Published ─► Seen ─► Recorded ─► Done
//!    │        │           ▲  │        │         │
//!    │        │           │  │        │         └ another writer was first: Published again
//!    │        │           │  │        └ beyond the limit, or damaged: Withdrawn ─► Done
//!    │        │           sequence is stored: the intent
//!    │        charged of the coming parity is stored
//!    charged of the present parity is what the lane holds
//! ```
//!
//! Why a dead owner's charge is known at every point (`vgpu_abi::ledger::settled_charge`):
//! - Before `Published` the lane's sequence is that of the operation before, which is settled, and
//!   the present parity is untouched.
//! - The exchange that changes the total also names this operation there. It is not overwritten
//!   before it is recorded in `applied` (step `Recorded` of the next writer), so from then on either
//!   the total or `applied` says that it took place. A lane's owner need not record its own: when it
//!   overwrites its own name, its sequence has gone on.
//! - `Withdrawn` makes both parities equal before it calls the operation settled.
//!
//! Ordering: a lane's charge is stored before its sequence (release), the sequence before the
//! exchange (a full barrier), the record before the overwriting exchange. Whoever reads the total
//! with acquire and then `applied` therefore misses nothing. There is no ABA: a stamp (lane,
//! sequence) never comes back, so a total that looks unchanged is unchanged.

use super::region::{Lane, Region};
use super::wide::Pair;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use vgpu_abi::ledger::{REAPER, Stamp};

/// What an operation does to the total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// Adds bytes, if the total stays within the limit.
    Charge { bytes: u64, limit: u64 },
    /// Takes out bytes of this lane.
    Release { bytes: u64 },
    /// Takes out bytes of this lane that stay in the total: an exported object has them from then on
    /// ([`super::objects`]).
    Move { bytes: u64 },
    /// Takes out the charge of a dead owner's lane, `target`. An operation of the reaper's lane, which records
    /// `target` where other lanes have their charge.
    Reap { bytes: u64, target: Stamp },
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    Applied,
    /// Beyond the limit.
    Refused,
    /// The ledger holds what no version-2 library writes; nothing was changed.
    Damaged,
}

/// An operation and how far it is.
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
    Withdrawn(Outcome),
    Done(Outcome),
}

impl Operation {
    /// The next operation of `lane`, which the caller owns and nobody else uses meanwhile.
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

    /// Runs to the end.
    #[inline(always)]
    pub fn run(mut self, region: &Region) -> Outcome {
        // These five steps are the common case and compile to straight code; the loop is for a writer that was overtaken.
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

    /// How far it is.
    #[must_use]
    pub fn step(&self) -> Step {
        self.step
    }

    /// One step: at most one store that others can see.
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

/// Makes both parities of `lane` equal again, whose operation `sequence` is not to be. Never inlined: the
/// usual way would compute for it where they lie.
#[cold]
#[inline(never)]
fn withdraw(lane: &Lane, sequence: u64) {
    let held = parity(lane, sequence.wrapping_sub(1)).load(Relaxed);
    parity(lane, sequence).store(held, Release);
}

/// The charge of `lane` after its operation `sequence`.
#[inline(always)]
pub(super) fn parity(lane: &Lane, sequence: u64) -> &std::sync::atomic::AtomicU64 {
    let [even, odd] = &lane.charged;
    if sequence.is_multiple_of(2) { even } else { odd }
}

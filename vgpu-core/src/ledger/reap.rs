//! Releases the charges of dead processes.
//!
//! The caller holds the reaper's lock, so it alone frees lanes and writes to lane 0. A reap is one operation of lane 0
//! that subtracts the dead lane's charge from the total and names its target (lane and generation). Then stores free
//! the lane:
//!
//! ```text
//!  Subtract (operation of lane 0) ─► Clear(0) ─► Clear(1) ─► Settle ─► Free ─► Done
//! ```
//!
//! An exported object that no process holds is released in the same way. Objects are numbered after the lanes; an
//! object is dead if no process has a lock on it.
//!
//! If a reaper is killed before it is done, the next one finishes its work first ([`finish`]). If the last operation of
//! lane 0 took place and its target still has the generation that it names, the charge is already subtracted and the
//! lane is not free yet: the stores are repeated, which is harmless. If the operation did not take place, nothing
//! happened, and the dead lane is found like any other.

use super::objects;
use super::operation::{Change, Operation, Outcome, Step, parity};
use super::region::{Lane, Region};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use vgpu_abi::ledger::{LANES, REAPER, Stamp, settled_charge};

/// Releases the charge of one dead lane and frees the lane, step by step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reap {
    target: Stamp,
    step: ReapStep,
}

/// The next step of a [`Reap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ReapStep {
    Subtract(Operation),
    /// Clears one of the two words of the charge.
    Clear(usize),
    Settle,
    Free,
    Done(Outcome),
}

impl Reap {
    /// Returns a reap of the claim `target`. Its owner is dead, and the lane's generation is still odd.
    #[must_use]
    pub fn new(region: &Region, target: Stamp) -> Self {
        let bytes = match objects::target(region, target.lane) {
            Some(object) => objects::held(region, object),
            None => region
                .lanes
                .get(target.lane)
                .map_or(0, |lane| held(region, target.lane, lane)),
        };
        let operation = Operation::new(REAPER, Change::Reap { bytes, target });
        Self {
            target,
            step: ReapStep::Subtract(operation),
        }
    }

    /// Returns the rest of the last reap, if its reaper died before it was done.
    #[must_use]
    pub fn pending(region: &Region) -> Option<Self> {
        let reaper = region.lanes.get(REAPER)?;
        let sequence = reaper.sequence.load(Acquire);
        let writer = region.total.writer();
        let operation = Stamp {
            lane: REAPER,
            number: sequence,
        };
        if writer != operation.pack() && reaper.applied.load(Acquire) < sequence {
            return None;
        }
        let target = Stamp::unpack(parity(reaper, sequence).load(Acquire));
        let generation = generation(region, target.lane)?.load(Acquire);
        let unfinished = target.lane != REAPER && generation == target.number && !generation.is_multiple_of(2);
        unfinished.then_some(Self {
            target,
            step: ReapStep::Clear(0),
        })
    }

    /// Makes one step. Returns the outcome after the last step.
    pub fn advance(&mut self, region: &Region) -> Option<Outcome> {
        let Some(generation) = generation(region, self.target.lane) else {
            return Some(Outcome::Damaged);
        };
        self.step = match self.step {
            ReapStep::Subtract(mut operation) => {
                operation.advance(region);
                match operation.step() {
                    Step::Done(Outcome::Applied) => ReapStep::Clear(0),
                    Step::Done(outcome) => ReapStep::Done(outcome),
                    _ => ReapStep::Subtract(operation),
                }
            }
            ReapStep::Clear(which) => {
                if let Some(charged) = charge(region, self.target.lane, which) {
                    charged.store(0, Release);
                }
                if which == 0 {
                    ReapStep::Clear(1)
                } else {
                    ReapStep::Settle
                }
            }
            ReapStep::Settle => {
                if let Some(lane) = region.lanes.get(self.target.lane) {
                    lane.applied.fetch_max(lane.sequence.load(Relaxed), AcqRel);
                }
                ReapStep::Free
            }
            ReapStep::Free => {
                generation.store(self.target.number.wrapping_add(1), Release);
                ReapStep::Done(Outcome::Applied)
            }
            ReapStep::Done(outcome) => ReapStep::Done(outcome),
        };
        match self.step {
            ReapStep::Done(outcome) => Some(outcome),
            _ => None,
        }
    }

    pub(super) fn run(mut self, region: &Region) -> Outcome {
        loop {
            if let Some(outcome) = self.advance(region) {
                return outcome;
            }
        }
    }
}

/// Returns the generation of a lane or, after the lanes, of an object.
fn generation(region: &Region, index: usize) -> Option<&AtomicU64> {
    match objects::target(region, index) {
        Some(object) => Some(&object.generation),
        None => Some(&region.lanes.get(index)?.generation),
    }
}

/// Returns word `which` of the charge of a lane or object: a lane has two, an object one.
fn charge(region: &Region, index: usize, which: usize) -> Option<&AtomicU64> {
    match objects::target(region, index) {
        Some(object) => (which == 0).then_some(&object.bytes),
        None => region.lanes.get(index)?.charged.get(which),
    }
}

/// Which lanes a reap tests for dead owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Only lanes with a charge: each test costs a system call, and many processes may start at once. All lanes if
    /// they are running out ([`CROWDED`]), because a process that starts then needs a free one.
    Charged,
    All,
}

/// From this number of claimed lanes on, every reap tests all of them.
const CROWDED: usize = LANES / 2;

/// Finishes the work of a dead reaper. Then releases every claimed lane for which `is_dead` returns true, and every
/// object that no process holds. Returns how many it released. The caller holds the reaper's lock.
///
/// # Errors
/// [`Outcome::Damaged`] if the ledger has impossible values. Nothing is released from there on.
pub fn reap(region: &Region, scope: Scope, mut is_dead: impl FnMut(usize) -> bool) -> Result<usize, Outcome> {
    let mut count = finish(region)?;
    // Each lane is tested once: many objects may name it, and a test costs a system call.
    let mut living = [false; LANES];
    let mut is_dead = |index: usize| match living.get_mut(index) {
        Some(lives) => {
            *lives = *lives || !is_dead(index);
            !*lives
        }
        None => is_dead(index),
    };
    let is_claimed = |lane: &&Lane| !lane.generation.load(Acquire).is_multiple_of(2);
    let is_crowded = region.lanes.iter().filter(is_claimed).count() >= CROWDED;
    for (index, lane) in region.lanes.iter().enumerate().skip(REAPER + 1) {
        let generation = lane.generation.load(Acquire);
        // Only the reaper frees a lane, so the generation of a dead owner's lane cannot change meanwhile.
        let passes = || scope == Scope::Charged && !is_crowded && held(region, index, lane) == 0;
        if generation.is_multiple_of(2) || passes() || !is_dead(index) {
            continue;
        }
        let target = Stamp {
            lane: index,
            number: generation,
        };
        match Reap::new(region, target).run(region) {
            Outcome::Applied => count += 1,
            other => return Err(other),
        }
    }
    for (index, object) in objects::used(region).filter(|(_, object)| objects::is_claimed(object)) {
        let claim = Stamp {
            lane: LANES + index,
            number: object.generation.load(Acquire),
        };
        // Also test the processes that the object names. A dead one without a charge in its lane was skipped above, and
        // process lists would attribute the object to it.
        let named = objects::holders(object).map(Stamp::unpack).into_iter();
        for claim in named.chain([claim]) {
            let is_there = || generation(region, claim.lane).is_some_and(|now| now.load(Acquire) == claim.number);
            if claim.lane == REAPER || !is_there() || claim.number.is_multiple_of(2) || !is_dead(claim.lane) {
                continue;
            }
            match Reap::new(region, claim).run(region) {
                Outcome::Applied => count += 1,
                other => return Err(other),
            }
        }
    }
    Ok(count)
}

/// Finishes the work of dead reapers and movers. Whoever takes the reaper's lock does this first.
///
/// # Errors
/// As for [`reap`].
pub fn finish(region: &Region) -> Result<usize, Outcome> {
    let count = match Reap::pending(region).map(|reap| reap.run(region)) {
        None => 0,
        Some(Outcome::Applied) => 1,
        Some(other) => return Err(other),
    };
    objects::settle(region);
    Ok(count)
}

/// Returns the charge of a lane whose owner is dead. For a live owner it may be one operation old.
pub(super) fn held(region: &Region, index: usize, lane: &Lane) -> u64 {
    // The writer is read before `applied`: a process records the last writer in `applied` before it overwrites the
    // total.
    let writer = region.total.writer();
    let applied = lane.applied.load(Acquire);
    let pair = [lane.charged[0].load(Acquire), lane.charged[1].load(Acquire)];
    settled_charge(index, lane.sequence.load(Acquire), applied, pair, writer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::explore;

    /// Claims `count` lanes, whose owners die without having charged anything.
    fn with_dead(count: usize) -> Box<Region> {
        let region = explore::region();
        for lane in region.lanes.iter().skip(REAPER + 1).take(count) {
            lane.generation.store(1, Release);
        }
        region
    }

    #[test]
    fn idle_dead_lanes_are_left_until_lanes_run_out() {
        let few = with_dead(CROWDED - 1);
        assert_eq!(reap(&few, Scope::Charged, |_| true), Ok(0));
        assert_eq!(reap(&few, Scope::All, |_| true), Ok(CROWDED - 1));
        let many = with_dead(CROWDED);
        assert_eq!(
            reap(&many, Scope::Charged, |index| index != 1),
            Ok(CROWDED - 1),
            "one lives"
        );
    }

    #[test]
    fn a_lane_is_asked_for_once_however_many_objects_name_it() {
        const OBJECTS: usize = 10;
        let region = with_dead(4);
        for object in region.objects.iter().take(OBJECTS) {
            object.generation.store(1, Release);
            for (place, holder) in object.holders.iter().enumerate() {
                let claim = Stamp {
                    lane: REAPER + 1 + place,
                    number: 1,
                };
                holder.store(claim.pack(), Release);
            }
        }
        region.objects_used.store(OBJECTS as u64, Release);
        let mut asked = Vec::new();
        let count = reap(&region, Scope::All, |index| {
            asked.push(index);
            false
        });
        assert_eq!(count, Ok(0));
        let all: Vec<usize> = (REAPER + 1..=REAPER + 4).chain(LANES..LANES + OBJECTS).collect();
        assert_eq!(asked, all);
    }
}

//! Giving back what the dead hold.
//!
//! The caller holds the reaper's lock, so it alone frees lanes and works in lane 0. A reap is one
//! operation of lane 0 that takes the dead lane's charge out of the total and names its target
//! (lane and generation), followed by stores that free the lane:
//!
//! ```text
//!  Taking (operation of lane 0) ─► Zeroing(0) ─► Zeroing(1) ─► Settling ─► Freeing ─► Done
//! ```
//!
//! A reaper killed on the way leaves no doubt: the next one looks at lane 0 first ([`finish`]). If
//! its last operation took place and the target still has the generation that it names, the charge
//! is out and the lane not yet free: the stores are done again, each of them may be repeated. If it
//! did not take place, nothing happened, and the dead lane is found like any other.

use super::operation::{Change, Operation, Outcome, Step, parity};
use super::region::{Lane, Region};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use vgpu_abi::ledger::{LANES, REAPER, Stamp, settled};

/// Takes one dead lane out, step by step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reap {
    target: Stamp,
    at: At,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Taking(Operation),
    Zeroing(usize),
    Settling,
    Freeing,
    Done(Outcome),
}

impl Reap {
    /// Reaps claim `target`, whose owner is dead and whose lane is still odd.
    #[must_use]
    pub fn new(region: &Region, target: Stamp) -> Self {
        let bytes = region
            .lanes
            .get(target.lane)
            .map_or(0, |lane| held(region, target.lane, lane));
        let operation = Operation::new(REAPER, Change::Reap { bytes, target });
        Self {
            target,
            at: At::Taking(operation),
        }
    }

    /// What is left of the last reap, if its reaper died on the way.
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
        let generation = region.lanes.get(target.lane)?.generation.load(Acquire);
        let unfinished = target.lane != REAPER && generation == target.number && !generation.is_multiple_of(2);
        unfinished.then_some(Self {
            target,
            at: At::Zeroing(0),
        })
    }

    /// One step; Some: how it ended.
    pub fn advance(&mut self, region: &Region) -> Option<Outcome> {
        let Some(lane) = region.lanes.get(self.target.lane) else {
            return Some(Outcome::Damaged);
        };
        self.at = match self.at {
            At::Taking(mut operation) => {
                operation.advance(region);
                match operation.step() {
                    Step::Done(Outcome::Applied) => At::Zeroing(0),
                    Step::Done(outcome) => At::Done(outcome),
                    _ => At::Taking(operation),
                }
            }
            At::Zeroing(which) => {
                if let Some(charged) = lane.charged.get(which) {
                    charged.store(0, Release);
                }
                if which == 0 { At::Zeroing(1) } else { At::Settling }
            }
            At::Settling => {
                lane.applied.fetch_max(lane.sequence.load(Relaxed), AcqRel);
                At::Freeing
            }
            At::Freeing => {
                lane.generation.store(self.target.number + 1, Release);
                At::Done(Outcome::Applied)
            }
            At::Done(outcome) => At::Done(outcome),
        };
        match self.at {
            At::Done(outcome) => Some(outcome),
            _ => None,
        }
    }

    fn run(mut self, region: &Region) -> Outcome {
        loop {
            if let Some(outcome) = self.advance(region) {
                return outcome;
            }
        }
    }
}

/// Which lanes are worth a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sought {
    /// Those that hold something: spares a storm of starting processes each other's. All, where lanes run
    /// out: who starts then may not get its turn at the reaper's lock, and needs no more than a free lane.
    Charged,
    All,
}

/// So many claimed lanes, and any reap looks at all of them.
const CROWDED: usize = LANES / 2;

/// Ends what a dead reaper left, then takes out every claimed lane that `is_dead` says is dead.
/// Answers how many; the caller holds the reaper's lock.
///
/// # Errors
/// [`Outcome::Damaged`], when the ledger cannot be: nothing is taken out from there on.
pub fn reap(region: &Region, sought: Sought, mut is_dead: impl FnMut(usize) -> bool) -> Result<usize, Outcome> {
    let mut count = finish(region)?;
    let is_claimed = |lane: &&Lane| !lane.generation.load(Acquire).is_multiple_of(2);
    let is_crowded = region.lanes.iter().filter(is_claimed).count() >= CROWDED;
    for (index, lane) in region.lanes.iter().enumerate().skip(REAPER + 1) {
        let generation = lane.generation.load(Acquire);
        // Only the reaper frees a lane, so a dead owner's generation cannot change under us.
        let passes = || sought == Sought::Charged && !is_crowded && held(region, index, lane) == 0;
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
    Ok(count)
}

fn finish(region: &Region) -> Result<usize, Outcome> {
    match Reap::pending(region).map(|reap| reap.run(region)) {
        None => Ok(0),
        Some(Outcome::Applied) => Ok(1),
        Some(other) => Err(other),
    }
}

/// What a lane holds, its owner being dead; of a live one, what it held a moment ago.
pub(super) fn held(region: &Region, index: usize, lane: &Lane) -> u64 {
    // The writer before `applied`: who overwrites the total records first.
    let writer = region.total.writer();
    let applied = lane.applied.load(Acquire);
    let pair = [lane.charged[0].load(Acquire), lane.charged[1].load(Acquire)];
    settled(index, lane.sequence.load(Acquire), applied, pair, writer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::explore;

    /// Claims so many lanes, whose owners die without having charged anything.
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
        assert_eq!(reap(&few, Sought::Charged, |_| true), Ok(0));
        assert_eq!(reap(&few, Sought::All, |_| true), Ok(CROWDED - 1));
        let many = with_dead(CROWDED);
        assert_eq!(
            reap(&many, Sought::Charged, |index| index != 1),
            Ok(CROWDED - 1),
            "one lives"
        );
    }
}

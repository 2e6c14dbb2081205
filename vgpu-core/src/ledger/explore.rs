//! Tests the protocol exhaustively: every interleaving of a few writers, each of which may be killed after any step,
//! followed by a reaper that may be killed after any step too, and a second reaper.
//!
//! Checked in every state: the total never exceeds the limit and is the sum of the charges of all lanes, by the rule
//! that a reader uses for dead processes. In every final state, after the reap, the total is the charge of the living.
//!
//! The steps run in one thread, so each sees all stores before it. `threads.rs` tests that the memory orderings suffice
//! for threads that run in parallel.

use super::operation::{Change, Operation, Outcome, Step};
use super::reap::{Reap, Scope, reap};
use super::region::Region;
use super::wide::Pair;
use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;
use vgpu_abi::ledger::{LANES, REAPER, Stamp, settled_charge};

const LIMIT: u64 = 100;
/// Lanes in use: the reaper's and those of the writers.
const USED: usize = 4;

/// A copy of the shared memory, to go back to the state before a branch. The peak is left out: no step depends on it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Memory {
    total: Pair,
    lanes: [[u64; 5]; USED],
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    memory: Memory,
    writers: Vec<Writer>,
    reaper: Option<Reap>,
    reapers_killed: u8,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Writer {
    lane: usize,
    alive: bool,
    holds: u64,
    running: Option<(Operation, Change)>,
    script: Vec<Change>,
}

pub(super) fn region() -> Box<Region> {
    // SAFETY: all-zero bytes are a Region.
    #[allow(unsafe_code)]
    unsafe {
        Box::<Region>::new_zeroed().assume_init()
    }
}

impl Memory {
    pub(super) fn save(region: &Region) -> Self {
        Self {
            total: region.total.load(),
            lanes: std::array::from_fn(|index| {
                let lane = &region.lanes[index];
                [
                    &lane.generation,
                    &lane.sequence,
                    &lane.applied,
                    &lane.charged[0],
                    &lane.charged[1],
                ]
                .map(|word| word.load(Relaxed))
            }),
        }
    }

    pub(super) fn restore(&self, region: &Region) {
        region.total.set(self.total);
        for (lane, saved) in region.lanes.iter().zip(&self.lanes) {
            let words = [
                &lane.generation,
                &lane.sequence,
                &lane.applied,
                &lane.charged[0],
                &lane.charged[1],
            ];
            for (word, value) in words.into_iter().zip(saved) {
                word.store(*value, Relaxed);
            }
        }
    }

    pub(super) fn charged(&self) -> u64 {
        self.total.charged
    }

    /// Returns the charge of lane `index` as if its owner were dead now.
    pub(super) fn held(&self, index: usize) -> u64 {
        let [_, sequence, applied, even, odd] = self.lanes[index];
        settled_charge(index, sequence, applied, [even, odd], self.total.writer)
    }

    /// Returns the lane or object whose charge was subtracted and whose claim still exists. `other` returns the
    /// generations of objects.
    pub(super) fn reaped_but_not_freed(&self, other: impl Fn(usize) -> Option<u64>) -> Option<usize> {
        let [_, sequence, applied, even, odd] = self.lanes[REAPER];
        let stamp = Stamp {
            lane: REAPER,
            number: sequence,
        };
        let took_place = applied >= sequence || self.total.writer == stamp.pack();
        let target = Stamp::unpack(if sequence.is_multiple_of(2) { even } else { odd });
        let generation = self.lanes.get(target.lane).map(|lane| lane[0]);
        let open = target.lane != REAPER && generation.or_else(|| other(target.lane))? == target.number;
        (took_place && open).then_some(target.lane)
    }
}

impl World {
    fn check(&self) {
        assert!(self.memory.total.charged <= LIMIT, "beyond the limit");
        // A reap that took place but has not freed its lane yet: the lane still shows the subtracted charge.
        let taken = self.memory.reaped_but_not_freed(|_| None);
        let sum: u64 = (REAPER + 1..USED)
            .filter(|index| Some(*index) != taken)
            .map(|index| self.memory.held(index))
            .sum();
        assert_eq!(self.memory.total.charged, sum, "total and lanes differ");
    }
}

/// Visits and checks every state that is reachable from `start`.
fn explore(start: World) -> usize {
    let region = region();
    let mut seen = HashSet::new();
    let mut open = vec![start];
    while let Some(world) = open.pop() {
        if !seen.insert(world.clone()) {
            continue;
        }
        world.check();
        let before = open.len();
        for index in 0..world.writers.len() {
            open.extend(step_writer(&world, index, &region));
            if world.writers[index].alive {
                let mut killed = world.clone();
                killed.writers[index].alive = false;
                open.push(killed);
            }
        }
        step_reaper(&world, &region, &mut open);
        if open.len() == before {
            end(&world, &region);
        }
    }
    seen.len()
}

fn step_writer(world: &World, index: usize, region: &Region) -> Option<World> {
    let mut next = world.clone();
    let writer = &mut next.writers[index];
    if !writer.alive {
        return None;
    }
    let (mut operation, change) = match writer.running.take() {
        Some(running) => running,
        None => {
            let change = writer.script.pop()?;
            // A program frees only what it has allocated.
            if matches!(change, Change::Release { bytes } if bytes > writer.holds) {
                return Some(next);
            }
            (Operation::new(writer.lane, change), change)
        }
    };
    world.memory.restore(region);
    operation.advance(region);
    match operation.step() {
        Step::Done(outcome) => {
            assert_ne!(outcome, Outcome::Damaged);
            if outcome == Outcome::Applied {
                match change {
                    Change::Charge { bytes, .. } => writer.holds += bytes,
                    Change::Release { bytes } | Change::Move { bytes } | Change::Reap { bytes, .. } => {
                        writer.holds -= bytes;
                    }
                }
            }
        }
        _ => writer.running = Some((operation, change)),
    }
    next.memory = Memory::save(region);
    Some(next)
}

/// Makes the reaper's next step. In another branch, kills the reaper, but only once, so that the search ends.
fn step_reaper(world: &World, region: &Region, open: &mut Vec<World>) {
    world.memory.restore(region);
    let mut next = world.clone();
    let reap = match world.reaper {
        Some(reap) => Some(reap),
        None => Reap::pending(region).or_else(|| {
            let dead = world
                .writers
                .iter()
                .find(|writer| !writer.alive && !world.memory.lanes[writer.lane][0].is_multiple_of(2))?;
            let target = Stamp {
                lane: dead.lane,
                number: world.memory.lanes[dead.lane][0],
            };
            Some(Reap::new(region, target))
        }),
    };
    let Some(mut reap) = reap else { return };
    let ended = reap.advance(region);
    assert!(!matches!(ended, Some(Outcome::Damaged | Outcome::Refused)));
    next.memory = Memory::save(region);
    next.reaper = ended.is_none().then_some(reap);
    if world.reapers_killed < 1 && next.reaper.is_some() {
        let mut killed = next.clone();
        killed.reaper = None;
        killed.reapers_killed += 1;
        open.push(killed);
    }
    open.push(next);
}

fn end(world: &World, region: &Region) {
    world.memory.restore(region);
    assert_eq!(reap(region, Scope::All, |_| false), Ok(0), "nothing is pending");
    let living: u64 = world.writers.iter().filter(|w| w.alive).map(|w| w.holds).sum();
    assert_eq!(region.total.charged(), living);
}

fn world(scripts: &[&[Change]], used: [u64; 2]) -> World {
    let region = region();
    let mut writers = Vec::new();
    for (index, script) in scripts.iter().enumerate() {
        let lane = REAPER + 1 + index;
        region.lanes[lane].generation.store(1, Relaxed);
        // Odd and even sequence numbers, as previous owners may have left them.
        region.lanes[lane].sequence.store(used[index % 2], Relaxed);
        region.lanes[lane].applied.store(used[index % 2], Relaxed);
        writers.push(Writer {
            lane,
            alive: true,
            holds: 0,
            running: None,
            script: script.iter().rev().copied().collect(),
        });
    }
    World {
        memory: Memory::save(&region),
        writers,
        reaper: None,
        reapers_killed: 0,
    }
}

const fn charge(bytes: u64) -> Change {
    Change::Charge { bytes, limit: LIMIT }
}

const fn release(bytes: u64) -> Change {
    Change::Release { bytes }
}

#[test]
fn two_writers_and_a_reaper_in_every_order_and_every_death() {
    let scripts: [&[Change]; 2] = [&[charge(60), release(60)], &[charge(50), release(50), charge(70)]];
    let states = explore(world(&scripts, [0, 7]));
    assert!(states > 10_000, "{states} states are too few to be all");
}

#[test]
#[cfg_attr(miri, ignore = "too many states for an interpreter")]
fn three_writers_in_every_order_and_every_death() {
    let scripts: [&[Change]; 3] = [&[charge(60)], &[charge(50)], &[charge(40)]];
    let states = explore(world(&scripts, [3, 4]));
    assert!(states > 10_000, "{states} states are too few to be all");
}

#[test]
fn a_ledger_that_cannot_be_is_noticed_and_left_alone() {
    let region = region();
    region.lanes[1].generation.store(1, Relaxed);
    let run = |change| Operation::new(1, change).run(&region);
    assert_eq!(run(charge(10)), Outcome::Applied);

    let sound = region.total.load();
    for (charged, lane) in [(LIMIT + 1, 0), (u64::MAX, 0), (5, LANES), (5, 1023)] {
        let writer = Stamp { lane, number: 1 }.pack();
        region.total.set(Pair { charged, writer });
        assert_eq!(run(charge(10)), Outcome::Damaged, "{charged} {lane}");
        assert_eq!(region.total.load(), Pair { charged, writer }, "nothing is changed");
    }
    region.total.set(Pair { charged: 5, ..sound });
    assert_eq!(run(release(10)), Outcome::Damaged, "less is there than we hold");
    region.total.set(sound);
    assert_eq!(run(release(10)), Outcome::Applied, "what we hold was kept meanwhile");
    assert_eq!(run(release(1)), Outcome::Damaged, "we hold nothing");
    assert_eq!(Operation::new(LANES, charge(1)).run(&region), Outcome::Damaged);
}

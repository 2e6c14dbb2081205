//! Tests the protocol of exported objects exhaustively, like `explore.rs`: an exporter that charges, exports and frees,
//! an importer, a neighbour that only charges, and a reaper, in every order of their steps, each killed after any
//! store.
//!
//! Checked in every state: the total is within the limit, and it is the sum of the charges of lanes and objects. It is
//! never less than the memory in the driver: the exported piece once, while any process has it, and the other memory of
//! living processes. In every final state, all charges for memory that no living process has are released.

use super::explore::{Memory, region};
use super::objects::{self, Key, Kind, Move};
use super::operation::{Change, Operation, Outcome, Step};
use super::reap::Reap;
use super::region::Region;
use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;
use vgpu_abi::ledger::{LANES, REAPER, Stamp};

const LIMIT: u64 = 100;
const PIECE: u64 = 60;
/// Lanes in use beside the reaper's.
const OWNERS: usize = 3;
const OBJECT: usize = 0;

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    memory: Memory,
    object: [u64; 4],
    actors: Vec<Actor>,
    /// Who holds the reaper's lock.
    session: Option<usize>,
    reapers_killed: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Actor {
    /// [`REAPER`]: a thread of any process that releases the charges of the dead.
    lane: usize,
    alive: bool,
    /// Bytes in this actor's lane for memory in the driver.
    charged: u64,
    /// True if it has the piece in the driver.
    has: bool,
    /// True if it has the object's lock.
    holds: bool,
    phase: Phase,
    script: &'static [Act],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Act {
    Change(Change),
    /// Charges the piece and allocates it in the driver.
    Make,
    Export,
    Import,
    /// Frees or closes the piece, and unlocks the object.
    Free,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Idle,
    Operating(Operation, Change),
    /// Waits for the reaper's lock.
    Waiting(Under),
    Finishing(Option<Reap>, Under),
    Moving(Move),
    Reaping(Reap),
    Hidden,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Under {
    Export,
    Import,
    Bury(u64),
    Reap,
}

fn key() -> Key {
    Key::new(Kind::Ipc, 1, [0; 8])
}

fn save_object(region: &Region) -> [u64; 4] {
    let object = &region.objects[OBJECT];
    [&object.generation, &object.bytes, &object.from, &object.place].map(|word| word.load(Relaxed))
}

impl World {
    fn restore(&self, region: &Region) {
        self.memory.restore(region);
        region.objects_used.store(1, Relaxed);
        let object = &region.objects[OBJECT];
        let words = [&object.generation, &object.bytes, &object.from, &object.place];
        words
            .into_iter()
            .zip(self.object)
            .for_each(|(word, value)| word.store(value, Relaxed));
    }

    fn save(&mut self, region: &Region) {
        self.memory = Memory::save(region);
        self.object = save_object(region);
    }

    fn is_held(&self) -> bool {
        self.actors.iter().any(|actor| actor.alive && actor.holds)
    }

    fn check(&self, region: &Region) {
        self.restore(region);
        let total = region.total.charged();
        assert!(total <= LIMIT, "beyond the limit");
        let taken = self
            .memory
            .reaped_but_not_freed(|lane| (lane == LANES + OBJECT).then_some(self.object[0]));
        let lanes = (REAPER + 1..=OWNERS).filter(|lane| Some(*lane) != taken);
        let mut sum: u64 = lanes.map(|lane| self.memory.held(lane)).sum();
        let object = &region.objects[OBJECT];
        if objects::is_claimed(object) && taken != Some(LANES + OBJECT) {
            sum += objects::held(region, object);
        }
        assert_eq!(total, sum, "total, and lanes and object: {:?}", self.actors);
        let living = self.actors.iter().filter(|actor| actor.alive);
        // Until the piece is moved, it is part of the charge of its exporter's lane.
        let is_in_lane = living.clone().any(|actor| actor.charged >= PIECE);
        let is_had = living.clone().any(|actor| actor.has);
        let piece = if is_had && !is_in_lane { PIECE } else { 0 };
        let rest: u64 = living.map(|actor| actor.charged).sum();
        assert!(total >= piece + rest, "less than the driver holds: {:?}", self.actors);
    }

    fn kill(&self, index: usize) -> Self {
        let mut next = self.clone();
        let actor = &mut next.actors[index];
        if actor.lane == REAPER {
            actor.phase = Phase::Idle;
            next.reapers_killed += 1;
        } else {
            actor.alive = false;
        }
        if next.session == Some(index) {
            next.session = None;
        }
        next
    }

    /// Returns a claim whose owner or holders are all dead.
    fn dead(&self, region: &Region) -> Option<Stamp> {
        let dead = self.actors.iter().filter(|actor| !actor.alive).map(|actor| actor.lane);
        let mut claims = dead.map(|lane| (lane, region.lanes[lane].generation.load(Relaxed)));
        let lane = claims.find(|(_, generation)| !generation.is_multiple_of(2));
        let object = (LANES + OBJECT, self.object[0]);
        let is_dead = !object.1.is_multiple_of(2) && !self.is_held();
        let (lane, number) = lane.or(is_dead.then_some(object))?;
        Some(Stamp { lane, number })
    }

    /// Makes the next step of an actor. Returns None if it cannot make one.
    fn step(&self, index: usize, region: &Region) -> Option<Self> {
        let mut next = self.clone();
        self.restore(region);
        let actor = &mut next.actors[index];
        if !actor.alive {
            return None;
        }
        // The next phase either keeps the reaper's lock or releases it.
        let (phase, has_lock) = match actor.phase {
            Phase::Idle if actor.lane == REAPER => {
                let is_needed = self.dead(region).is_some() || Reap::pending(region).is_some();
                (is_needed.then_some(Phase::Waiting(Under::Reap))?, false)
            }
            Phase::Idle => (actor.begin(region)?, false),
            Phase::Hidden => {
                actor.holds = false;
                (Phase::Waiting(Under::Bury(self.object[0])), false)
            }
            Phase::Operating(operation, change) => (actor.operate(operation, change, region), false),
            Phase::Waiting(_) if self.session.is_some() => return None,
            Phase::Waiting(under) => (Phase::Finishing(None, under), true),
            Phase::Finishing(reap, under) => {
                let phase = self.finish(actor, reap, under, region);
                (phase, !matches!(phase, Phase::Idle | Phase::Hidden))
            }
            Phase::Moving(mut step) => match step.advance(region) {
                None => (Phase::Moving(step), true),
                Some(outcome) => {
                    assert_eq!(outcome, Outcome::Applied);
                    actor.charged -= PIECE;
                    (Phase::Idle, false)
                }
            },
            Phase::Reaping(mut reap) => match reap.advance(region) {
                None => (Phase::Reaping(reap), true),
                Some(outcome) => {
                    assert_eq!(outcome, Outcome::Applied);
                    (Phase::Idle, false)
                }
            },
        };
        actor.phase = phase;
        if has_lock {
            next.session = Some(index);
        } else if next.session == Some(index) {
            next.session = None;
        }
        next.save(region);
        Some(next)
    }

    /// Finishes the work of dead processes, then does the actor's own.
    fn finish(&self, actor: &mut Actor, reap: Option<Reap>, under: Under, region: &Region) -> Phase {
        match reap.or_else(|| Reap::pending(region)) {
            Some(mut reap) => {
                let ended = reap.advance(region);
                assert!(!matches!(ended, Some(Outcome::Damaged | Outcome::Refused)));
                Phase::Finishing(ended.is_none().then_some(reap), under)
            }
            None if objects::settle_step(region) => Phase::Finishing(None, under),
            None => self.under(actor, under, region),
        }
    }

    /// Does the work of an actor under the reaper's lock, after the work of dead processes is finished.
    fn under(&self, actor: &mut Actor, under: Under, region: &Region) -> Phase {
        let object = &region.objects[OBJECT];
        match under {
            Under::Export if objects::is_claimed(object) => Phase::Idle,
            Under::Export => {
                actor.holds = true;
                Phase::Moving(Move::new(OBJECT, actor.lane, PIECE, key(), 1))
            }
            Under::Import => {
                if let Some((_, bytes)) = objects::find(region, key()).next() {
                    assert_eq!(bytes, PIECE);
                    actor.holds = true;
                    // The driver allows the import as long as any process has the piece.
                    actor.has = self.actors.iter().any(|other| other.alive && other.has);
                    if !actor.has {
                        // The driver refused: unlock the object again.
                        return Phase::Hidden;
                    }
                }
                Phase::Idle
            }
            Under::Bury(generation) => {
                let is_last = !self.is_held() && self.object[0] == generation && objects::is_claimed(object);
                let target = Stamp {
                    lane: LANES + OBJECT,
                    number: generation,
                };
                if is_last {
                    Phase::Reaping(Reap::new(region, target))
                } else {
                    Phase::Idle
                }
            }
            Under::Reap => self
                .dead(region)
                .map_or(Phase::Idle, |target| Phase::Reaping(Reap::new(region, target))),
        }
    }
}

impl Actor {
    /// Begins the script's next act. Returns None at the end of the script.
    fn begin(&mut self, region: &Region) -> Option<Phase> {
        let change = match next_act(&mut self.script)? {
            // A program exports, frees or releases only memory that it has.
            Act::Export | Act::Free if !self.has => return Some(Phase::Idle),
            Act::Change(Change::Release { bytes }) if bytes > self.charged => return Some(Phase::Idle),
            Act::Change(change) => change,
            Act::Make => Change::Charge {
                bytes: PIECE,
                limit: LIMIT,
            },
            Act::Export => return Some(Phase::Waiting(Under::Export)),
            Act::Import => return Some(Phase::Waiting(Under::Import)),
            Act::Free => {
                // The driver first.
                self.has = false;
                if self.holds {
                    objects::hide(region, key());
                    return Some(Phase::Hidden);
                }
                Change::Release { bytes: PIECE }
            }
        };
        // The driver first.
        if let Change::Release { bytes } = change {
            self.charged -= bytes;
        }
        Some(Phase::Operating(Operation::new(self.lane, change), change))
    }

    fn operate(&mut self, mut operation: Operation, change: Change, region: &Region) -> Phase {
        operation.advance(region);
        let Step::Done(outcome) = operation.step() else {
            return Phase::Operating(operation, change);
        };
        assert_ne!(outcome, Outcome::Damaged);
        if let Change::Charge { bytes, .. } = change
            && outcome == Outcome::Applied
        {
            self.charged += bytes;
            self.has |= bytes == PIECE;
        }
        Phase::Idle
    }
}

fn next_act(script: &mut &'static [Act]) -> Option<Act> {
    let (first, rest) = script.split_first()?;
    *script = rest;
    Some(*first)
}

/// Visits and checks every reachable state. At most `mortals` actors are killed, and the reaper. Returns the number of
/// states.
fn explore(scripts: &[&'static [Act]], mortals: usize) -> usize {
    let region = region();
    let mut actors: Vec<Actor> = Vec::new();
    for (index, script) in scripts.iter().enumerate() {
        let lane = REAPER + 1 + index;
        region.lanes[lane].generation.store(1, Relaxed);
        actors.push(Actor {
            lane,
            alive: true,
            charged: 0,
            has: false,
            holds: false,
            phase: Phase::Idle,
            script,
        });
    }
    actors.push(Actor {
        lane: REAPER,
        script: &[],
        ..actors[0].clone()
    });
    let start = World {
        memory: Memory::save(&region),
        object: save_object(&region),
        actors,
        session: None,
        reapers_killed: 0,
    };
    let (mut seen, mut open) = (HashSet::new(), vec![start]);
    while let Some(world) = open.pop() {
        if seen.contains(&world) {
            continue;
        }
        world.check(&region);
        let before = open.len();
        for index in 0..world.actors.len() {
            open.extend(world.step(index, &region));
            let is_reaper = world.actors[index].lane == REAPER;
            let is_mortal = if is_reaper {
                world.reapers_killed < 1 && world.session == Some(index)
            } else {
                index < mortals
            };
            if world.actors[index].alive && is_mortal {
                open.push(world.kill(index));
            }
        }
        if open.len() == before {
            let living = world.actors.iter().filter(|actor| actor.alive);
            let held = if world.is_held() { PIECE } else { 0 };
            let sum: u64 = living.map(|actor| actor.charged).sum();
            assert_eq!(world.memory.charged(), sum + held, "at the end: {:?}", world.actors);
        }
        seen.insert(world);
    }
    seen.len()
}

const fn charge(bytes: u64) -> Act {
    Act::Change(Change::Charge { bytes, limit: LIMIT })
}

const fn release(bytes: u64) -> Act {
    Act::Change(Change::Release { bytes })
}

#[test]
#[cfg_attr(miri, ignore = "too many states for an interpreter")]
fn a_piece_is_charged_once_for_as_long_as_anybody_has_it_whoever_dies_when() {
    const MAKER: &[Act] = &[Act::Make, Act::Export, Act::Free];
    let states = explore(&[MAKER, &[Act::Import, Act::Free]], 2);
    assert!(states > 5_000, "{states} states are too few to be all");
}

#[test]
#[cfg_attr(miri, ignore = "too many states for an interpreter")]
fn charges_beside_it_go_on_in_the_makers_lane_and_in_others() {
    const MAKER: &[Act] = &[charge(10), Act::Make, Act::Export, release(10)];
    const NEIGHBOUR: &[Act] = &[charge(20)];
    let states = explore(&[MAKER, NEIGHBOUR], 1);
    assert!(states > 20_000, "{states} states are too few to be all");
}

#[test]
#[cfg_attr(miri, ignore = "too many states for an interpreter")]
fn who_imports_has_charges_of_its_own_whoever_dies_when() {
    const MAKER: &[Act] = &[Act::Make, Act::Export, Act::Free];
    const IMPORTER: &[Act] = &[charge(20), Act::Import, release(20)];
    let states = explore(&[MAKER, IMPORTER], 1);
    assert!(states > 10_000, "{states} states are too few to be all");
}

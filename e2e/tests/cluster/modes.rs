//! Nodes that change their allocator while pods are created and deleted: from the controller to kube-scheduler and
//! back, as the plugin does it.
//!
//! ```text
//! settled ─► released (30 s, nobody's) ─► no taint, kube-scheduler's ─► controller (30 s, nobody's yet) ─► the controller's
//! ```
//! Two groups of nodes do so, one after the other, and one node stays with the controller. There are always more pods
//! than room, so each permitted allocator does allocate. The toleration in an allocation names its allocator; that
//! must have been the device's allocator at the time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use vgpu_e2e::patience;

use crate::checker::{Given, Seen};
use crate::fleet::{ALL_BOUND, Fleet, Mode, ROOM, bound, create, delete, on_fleet, wait_full};
use crate::shared::Test;

pub(crate) const TESTS: &[Test] = &[("modes_that_change_under_load_give_nothing_twice", modes)];

const NODES: usize = 4;
/// More pods than room.
const PODS: usize = NODES * ROOM + 8;
/// Interval at which pods are deleted and others created.
const TICK: Duration = Duration::from_secs(2);

/// Time in which neither may allocate a device that changes its allocator.
const HANDOVER: Duration = Duration::from_secs(30);
/// Time until an allocator must have allocated a device of a group.
const ALLOCATES_WITHIN: Duration = Duration::from_secs(240);
/// Resolution of the API server's times.
const SECOND: Duration = Duration::from_secs(1);
/// The controller drops decisions that are older than this.
const DECIDED: Duration = Duration::from_secs(10);
/// Delay of the watch.
const LAG: Duration = Duration::from_secs(5);

/// Nodes that change together.
struct Group {
    nodes: Vec<String>,
    /// The next modes, each with the minimum duration of the mode before it.
    steps: VecDeque<(Duration, Mode)>,
    done: Vec<Step>,
}

/// A mode that was published.
struct Step {
    mode: Mode,
    asked: Instant,
    answered: Instant,
}

impl Group {
    fn new(nodes: &[String], first: Duration) -> Self {
        let now = Instant::now();
        Self {
            nodes: nodes.to_vec(),
            steps: VecDeque::from([
                (first, Mode::Released),
                (HANDOVER, Mode::Scheduler),
                (Duration::ZERO, Mode::Controller),
            ]),
            done: vec![Step {
                mode: Mode::Settled,
                asked: now,
                answered: now,
            }],
        }
    }

    /// Continues with the next mode if the current one has lasted long enough and its allocator has allocated
    /// something. Returns true if there is no next mode.
    fn turn(&mut self, fleet: &Fleet<'_>) -> Result<bool> {
        let last = self.done.len() - 1;
        let step = &self.done[last];
        let lasted = step.answered.elapsed();
        let is_its_own = |given: &Given| self.has(&given.pool) && self.step_of(given) == Some(last);
        if step.mode != Mode::Released && !fleet.given().iter().any(is_its_own) {
            ensure!(
                lasted < patience::stretched(ALLOCATES_WITHIN),
                "nothing of {:?} was given in mode {:?} within {} s",
                self.nodes,
                step.mode,
                lasted.as_secs()
            );
            return Ok(false);
        }
        let Some(&(least, mode)) = self.steps.front() else {
            return Ok(true);
        };
        if lasted >= least {
            let asked = Instant::now();
            fleet.turn(&self.nodes, mode)?;
            self.done.push(Step {
                mode,
                asked,
                answered: Instant::now(),
            });
            self.steps.pop_front();
        }
        Ok(false)
    }

    /// The latest time at which the mode can have ended: when the request for the next mode was answered.
    fn end_of(&self, step: usize) -> Option<Instant> {
        self.done.get(step + 1).map(|next| next.answered)
    }

    /// The step in which a device was allocated, by the rules of its allocator.
    fn step_of(&self, given: &Given) -> Option<usize> {
        let decided = DECIDED + patience::stretched(LAG);
        (0..self.done.len()).find(|&number| {
            let step = &self.done[number];
            let (from, late) = match (step.mode, given.by_controller) {
                (Mode::Settled, true) => (step.asked, decided),
                (Mode::Controller, true) => (step.asked + HANDOVER - SECOND, decided),
                (Mode::Scheduler, false) => (step.asked, HANDOVER),
                _ => return false,
            };
            given.at >= from && self.end_of(number).is_none_or(|end| given.at <= end + late)
        })
    }

    fn check(&self, seen: &Seen) -> Result<()> {
        let mut counts = vec![0; self.done.len()];
        let begun = self.done[0].asked;
        for given in seen.given.iter().filter(|given| self.has(&given.pool)) {
            match self.step_of(given) {
                Some(step) => counts[step] += 1,
                None => {
                    let modes: Vec<_> = self.done.iter().map(|step| (step.mode, step.asked - begun)).collect();
                    let who = if given.by_controller {
                        "the controller"
                    } else {
                        "kube-scheduler"
                    };
                    bail!(
                        "{who} gave {} a device of {} after {:?}, which was not its own then: {modes:?}",
                        given.claim,
                        given.pool,
                        given.at - begun
                    )
                }
            }
        }
        println!(
            "{:?}: allocations in the modes settled, released, none, controller: {counts:?}",
            self.nodes
        );
        ensure!(
            matches!(counts[..], [settled, 0, theirs, again] if settled * theirs * again > 0),
            "each allocator must have allocated something in its time: {counts:?}"
        );
        Ok(())
    }

    fn has(&self, given: &str) -> bool {
        self.nodes.iter().any(|node| vgpu_e2e::hand_made::pool(node) == given)
    }
}

fn modes() -> Result<()> {
    let mut groups = Vec::new();
    let seen = on_fleet("modes", NODES, |_, kube, fleet| {
        let nodes: Vec<String> = fleet.nodes().collect();
        groups.push(Group::new(&nodes[1..3], Duration::from_secs(8)));
        groups.push(Group::new(&nodes[3..], Duration::from_secs(16)));
        let (mut made, mut there) = (0, 0);
        loop {
            let names: Vec<String> = (made..made + PODS - there)
                .map(|number| format!("p{number:05}"))
                .collect();
            create(kube, &fleet.pods(names.iter().map(String::as_str)))?;
            made += names.len();
            std::thread::sleep(TICK);
            let mut is_over = true;
            for group in &mut groups {
                is_over &= group.turn(fleet)?;
            }
            if is_over {
                break;
            }
            // Delete the oldest third of the running pods.
            let bound = bound(kube)?;
            let going = bound.len() / 3;
            delete(kube, bound.iter().take(going).map(String::as_str))?;
            there = PODS - going;
        }
        wait_full(kube, NODES * ROOM, ALL_BOUND).map(drop)
    })?;
    groups.iter().try_for_each(|group| group.check(&seen))
}

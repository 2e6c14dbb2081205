//! Random pairs of programs that were not used to tune a law: the test that a change of a law must pass.

use super::{balanced, run_programs};
use crate::figures::Error;
use crate::law::LawKind;
use crate::programs::{Program, circle};
use crate::random::Random;
use crate::{Ns, S, US};

/// The set that tests and docs/compute-accuracy.md use. Set 0 was used for tuning. A change that was tuned with this
/// set must switch to a new one.
pub const GATE: u64 = 1;
/// Number of pairs in a set.
pub const PAIRS: u64 = 60;

/// Runs pair number `nth` of a set. Its first share has 5 to 50 cores.
#[must_use]
pub fn drawn_pair(law: LawKind, set: u64, n: u64, length: Ns) -> [Error; 2] {
    let seed = set.wrapping_mul(PAIRS).wrapping_add(n + 1).wrapping_mul(7919);
    let mut random = Random::new(seed);
    let cores = 5 + random.below(46) as u32;
    let programs = vec![program(&mut random), program(&mut random)];
    let outcome = run_programs(law, vec![balanced(cores), balanced(100 - cores)], programs, length);
    [
        outcome.used[0].error(f64::from(cores)),
        outcome.used[1].error(f64::from(100 - cores)),
    ]
}

/// Returns all pairs of a set.
#[must_use]
pub fn drawn_pairs(law: LawKind, set: u64) -> Vec<[Error; 2]> {
    (0..PAIRS).map(|n| drawn_pair(law, set, n, 8 * S)).collect()
}

/// A program that always has work: 1 to 4 kernel lengths from 5 us to 10 ms in turn, in 1 to 8 streams. Two kernels of
/// half the width run at the same time, so they take 10 us at least: the CPU cannot launch faster.
fn program(random: &mut Random) -> Program {
    let count = 1 + random.below(4);
    let lengths = (0..count).map(|_| (5e3 * 2000f64.powf(random.below(1000) as f64 / 1e3)) as Ns);
    let mut lengths: Vec<Ns> = lengths.collect();
    let streams = if random.below(2) == 0 {
        1
    } else {
        1 + random.below(8) as usize
    };
    let width = if random.below(4) == 0 { 50 } else { 100 };
    if width == 50 {
        lengths.iter_mut().for_each(|length| *length = (*length).max(10 * US));
    }
    circle(&lengths, 20, streams, width)
}

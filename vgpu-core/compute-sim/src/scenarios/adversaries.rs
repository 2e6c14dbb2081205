//! The most harm that a share can do to its neighbour.

use super::{balanced, guaranteed, run_threads};
use crate::law::LawKind;
use crate::programs::{Program, ShortLife, batches, busy, circle, lane, mixture, short_processes, turncoat, waves};
use crate::world::Thread;
use crate::{MS, Ns, S, US};

/// A share that tries to get more than it is entitled to.
#[derive(Clone, Copy, Debug)]
pub struct Adversary {
    pub name: &'static str,
    threads: fn() -> Vec<Thread>,
}

/// The results of both shares.
#[derive(Clone, Copy, Debug)]
pub struct Got {
    pub adversary: f64,
    pub neighbour: f64,
    /// The neighbour's largest deficit in any window, in percentage points.
    pub below: f64,
}

#[must_use]
pub fn adversaries() -> Vec<Adversary> {
    let of = |name, threads| Adversary { name, threads };
    vec![
        of("kernels of 200 ms", || one(busy(200 * MS))),
        of("one launch in 1,000 takes 200 ms", || {
            one(mixture(5 * US, 200 * MS, 1000))
        }),
        of("300 kernels of 1.39 s behind short ones that look the same", || {
            one(turncoat(5 * US, 300, 1390 * MS, false))
        }),
        of("32 threads with kernels of 12 s", || {
            (0..32).map(|n| Thread::new(0, 0, lane(n, 12 * S))).collect()
        }),
        of("64 streams", || one(circle(&[MS], 5, 64, 100))),
        of("40 processes, kernels of 1 ms", || {
            (0..40).map(|n| Thread::new(0, n, busy(MS))).collect()
        }),
        of("40 processes, kernels of 2 s", || {
            (0..40).map(|n| Thread::new(0, n, busy(2 * S))).collect()
        }),
        of("killed after each kernel of 300 ms", || {
            one(short_processes(ShortLife {
                kernel: 300 * MS,
                lives: Some(290 * MS),
                normal: false,
                pause: 10 * MS,
            }))
        }),
        of("ignores all", || {
            vec![Thread {
                ignores: true,
                ..Thread::new(0, 0, busy(MS))
            }]
        }),
    ]
}

fn one(program: Program) -> Vec<Thread> {
    vec![Thread::new(0, 0, program)]
}

impl Adversary {
    /// Runs the adversary with 10 cores beside a Balanced share of 90 that always has work.
    #[must_use]
    pub fn run(&self, law: LawKind, is_guaranteed: bool, length: Ns) -> Got {
        beside(law, (self.threads)(), busy(500 * US), is_guaranteed, length)
    }
}

fn beside(law: LawKind, mut threads: Vec<Thread>, neighbour: Program, is_guaranteed: bool, length: Ns) -> Got {
    let processes = threads.iter().map(|thread| thread.process + 1).max().unwrap_or(0);
    threads.push(Thread::new(1, processes, neighbour));
    let own = if is_guaranteed { guaranteed(10) } else { balanced(10) };
    let outcome = run_threads(law, vec![own, balanced(90)], threads, length);
    let error = outcome.used[1].error(90.0);
    Got {
        adversary: outcome.uses()[0],
        neighbour: error.use_percent,
        below: error.below,
    }
}

/// Alternates 200 short kernels with 20 of this length, beside a Balanced share of 90 that waits after every ten
/// kernels of 500 us. While the neighbour waits, it asks for no turn.
#[must_use]
pub fn waves_beside_one_that_waits(law: LawKind, long: Ns, is_guaranteed: bool, length: Ns) -> Got {
    let threads = one(waves((20 * US, 200), (long, 20)));
    beside(law, threads, batches(500 * US, 1, 100, 10), is_guaranteed, length)
}

/// Runs a Guaranteed share alone whose threads launch kernels of several seconds each. Returns its use of the whole
/// time, including the first 100 s.
#[must_use]
pub fn long_kernels_in_threads(law: LawKind, cores: u32, kernel: Ns, length: Ns) -> (f64, f64) {
    let threads = (0..32).map(|n| Thread::new(0, 0, lane(n, kernel))).collect();
    let outcome = run_threads(law, vec![guaranteed(cores)], threads, length);
    let used = |until| outcome.used[0].percent(0, until);
    (used(100 * S), used(length))
}

/// Runs a Guaranteed share of 10 cores alone whose processes are killed just before their kernel ends. Returns its use
/// of the whole time.
#[must_use]
pub fn killed_again_and_again(law: LawKind, kernel: Ns, lives: Ns, length: Ns) -> f64 {
    let life = ShortLife {
        kernel,
        lives: Some(lives),
        normal: false,
        pause: 100 * MS,
    };
    let outcome = run_threads(law, vec![guaranteed(10)], one(short_processes(life)), length);
    outcome.used[0].percent(0, length)
}

//! Each share's use compared with its entitlement: alone, in pairs and in groups.

use vgpu_abi::arbitration::{Entry, WEIGHT_OF_ONE_CORE, entry_flags};

use super::{balanced, guaranteed, run_programs, share};
use crate::figures::{Error, jain, quantile};
use crate::hardware::Hardware;
use crate::law::LawKind;
use crate::programs::{Program, bursts, busy, circle, waits};
use crate::world::{Scenario, Thread, run};
use crate::{MS, Ns, S, US};

/// Runs one Guaranteed share alone. A program that waits after each kernel may be unable to use all its cores. Its use
/// is then compared with the most that it can use.
#[must_use]
pub fn cap(law: LawKind, cores: u32, kernel: Ns, is_waiting: bool) -> Error {
    let pause = 10 * US;
    let (program, most) = if is_waiting {
        let of_its_time = kernel as f64 / (kernel + pause + Hardware::default().wait) as f64;
        (waits(kernel, 5, pause), 100.0 * of_its_time)
    } else {
        (busy(kernel), 100.0)
    };
    let length = if kernel >= 50 * MS { 60 * S } else { 6 * S };
    let outcome = run_programs(law, vec![guaranteed(cores)], vec![program], length);
    outcome.used[0].error(f64::from(cores).min(most))
}

/// Two Balanced shares that always have work.
#[derive(Debug)]
pub struct Pair {
    pub name: &'static str,
    programs: fn() -> [Program; 2],
    length: Ns,
    /// The goals apply to this pair: kernels up to 5 ms, and no program that leaves its own turn idle.
    pub in_goal: bool,
}

#[must_use]
pub fn pairs() -> Vec<Pair> {
    let pair = |name, programs, in_goal| Pair {
        name,
        programs,
        length: 12 * S,
        in_goal,
    };
    vec![
        Pair {
            length: 4 * S,
            ..pair("5 us / 5 us", || [busy(5 * US), busy(5 * US)], true)
        },
        pair("500 us / 500 us", || [busy(500 * US), busy(500 * US)], true),
        pair("50 us / 5 ms", || [busy(50 * US), busy(5 * MS)], true),
        pair("5 ms / 50 us", || [busy(5 * MS), busy(50 * US)], true),
        pair(
            "2 ms, waits / 2 ms, waits",
            || [waits(2 * MS, 5, 20 * US), waits(2 * MS, 5, 20 * US)],
            true,
        ),
        pair("5 us to 3 ms / the same", || [mixed(), mixed()], true),
        pair(
            "50 us, waits / 500 us",
            || [waits(50 * US, 5, 10 * US), busy(500 * US)],
            false,
        ),
        pair("20 ms / 20 ms", || [busy(20 * MS), busy(20 * MS)], false),
        Pair {
            length: 40 * S,
            ..pair(
                "200 ms, waits / 50 us",
                || [waits(200 * MS, 5, 10 * US), busy(50 * US)],
                false,
            )
        },
    ]
}

/// Kernels from 5 us to 3 ms, with up to 30 % of random variation.
fn mixed() -> Program {
    circle(&[5 * US, 40 * US, 300 * US, 3 * MS], 30, 1, 100)
}

impl Pair {
    /// Runs the pair: the first program with this number of cores, the second with the rest.
    #[must_use]
    pub fn run(&self, law: LawKind, hardware: Hardware, cores: u32) -> [Error; 2] {
        let threads = (0..).zip((self.programs)());
        let outcome = run(Scenario {
            hardware,
            law,
            shares: vec![balanced(cores), balanced(100 - cores)],
            threads: threads
                .map(|(share, program)| Thread::new(share, share, program))
                .collect(),
            length: self.length,
        });
        [
            outcome.used[0].error(f64::from(cores)),
            outcome.used[1].error(f64::from(100 - cores)),
        ]
    }
}

/// Results of several pairs together.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// The mean of all shares' mean errors.
    pub mean: f64,
    /// The largest error of any window, and the mean of the shares' largest errors.
    pub worst: f64,
    pub mean_worst: f64,
    /// Use of the GPU by both shares, in percent.
    pub used: f64,
}

impl Summary {
    /// # Panics
    /// If there are no pairs.
    #[must_use]
    pub fn of(pairs: &[[Error; 2]]) -> Self {
        let all = || pairs.iter().flatten();
        let mean = |of: fn(&Error) -> f64| all().map(of).sum::<f64>() / all().count() as f64;
        assert!(!pairs.is_empty());
        Self {
            mean: mean(|error| error.mean),
            worst: all().map(Error::worst).fold(0.0, f64::max),
            mean_worst: mean(Error::worst),
            used: 2.0 * mean(|error| error.use_percent),
        }
    }
}

/// Equal shares with different programs; half of these wait after each kernel.
#[derive(Debug)]
pub struct Many {
    pub mean_error: f64,
    pub jain: f64,
    pub used: f64,
}

#[must_use]
pub fn many(law: LawKind, count: u32) -> Many {
    let lengths = [20 * US, 100 * US, 500 * US, MS, 2 * MS, 5 * MS, 50 * US, 300 * US];
    let program = |index: usize| {
        let length = lengths[index % lengths.len()];
        if index.is_multiple_of(2) {
            circle(&[length], 10, 1, 100)
        } else {
            waits(length, 10, 10 * US)
        }
    };
    let entry = Entry {
        weight: 100 * WEIGHT_OF_ONE_CORE / count,
        ..balanced(0)
    };
    let programs = (0..count as usize).map(program).collect();
    let outcome = run_programs(law, vec![entry; count as usize], programs, 12 * S);
    let target = 100.0 / f64::from(count);
    let errors: f64 = outcome.used.iter().map(|used| used.error(target).mean).sum();
    let used = outcome.uses();
    Many {
        mean_error: errors / f64::from(count),
        jain: jain(&used),
        used: used.iter().sum(),
    }
}

/// Returns p50 and p99 in ms of the latency of bursts of 2 ms about every 20 ms, with 20 cores, beside shares that
/// always have work.
#[must_use]
pub fn latencies(law: LawKind, beside: u32, is_high: bool) -> (f64, f64) {
    let mut shares = vec![share(20, if is_high { entry_flags::HIGH } else { 0 })];
    let mut programs = vec![bursts(20, 100 * US, 20 * MS)];
    for _ in 0..beside {
        shares.push(Entry {
            weight: 80 * WEIGHT_OF_ONE_CORE / beside,
            ..balanced(0)
        });
        programs.push(busy(500 * US));
    }
    let outcome = run_programs(law, shares, programs, 30 * S);
    let latencies = &outcome.threads[0].latencies;
    (quantile(latencies, 0.5), quantile(latencies, 0.99))
}

//! The scenarios of docs/compute-accuracy.md, and what is measured in each.

use vgpu_abi::arbitration::{Entry, WEIGHT_OF_ONE_CORE, entry_flags};

use crate::figures::{Error, WARM, jain, quantile};
use crate::gpu::Hardware;
use crate::program::{Kernel, Program};
use crate::world::{Law, Outcome, Scenario, Tenant, run};
use crate::{MS, Ns, S, US};

/// A share of these cores.
#[must_use]
pub fn share(cores: u32, flags: u32) -> Entry {
    Entry {
        weight: cores * WEIGHT_OF_ONE_CORE,
        flags,
        generation: 1,
    }
}

#[must_use]
pub fn stream(length: Ns) -> Program {
    Program::Stream(vec![Kernel::of(length, 5)])
}

#[must_use]
pub fn waits(length: Ns, pause: Ns) -> Program {
    Program::Wait {
        kernels: vec![Kernel::of(length, 5)],
        pause,
    }
}

/// Kernels from 5 us to 3 ms, each up to 30 % longer or shorter.
#[must_use]
pub fn mixed() -> Program {
    Program::Stream(
        [5 * US, 40 * US, 300 * US, 3 * MS]
            .map(|length| Kernel::of(length, 30))
            .to_vec(),
    )
}

/// Runs programs with shares of these cores on one GPU.
#[must_use]
pub fn on_one_gpu(law: Law, hardware: Hardware, shares: Vec<Entry>, programs: Vec<Program>, length: Ns) -> Outcome {
    let tenants = programs
        .into_iter()
        .enumerate()
        .map(|(share, program)| Tenant::new(share, program));
    run(&Scenario {
        hardware,
        law,
        shares,
        tenants: tenants.collect(),
        length,
    })
}

/// One Guaranteed share, alone.
#[must_use]
pub fn cap(cores: u32, kernel: Ns, is_waiting: bool) -> Error {
    let hardware = Hardware::default();
    let pause = 10 * US;
    let (program, most) = if is_waiting {
        let of_its_time = kernel as f64 / (kernel + pause + hardware.wait) as f64;
        (waits(kernel, pause), 100.0 * of_its_time)
    } else {
        (stream(kernel), 100.0)
    };
    let length = if kernel >= 50 * MS { 60 * S } else { 8 * S };
    let shares = vec![share(cores, entry_flags::GUARANTEED)];
    let outcome = on_one_gpu(Law::Turns, hardware, shares, vec![program], length);
    outcome.used[0].error(f64::from(cores).min(most))
}

/// Two shares that always have work.
#[derive(Debug)]
pub struct Pair {
    pub name: &'static str,
    programs: [Program; 2],
    length: Ns,
    /// Kernels up to 5 ms, and no program that leaves its own turn idle: the goals count these.
    pub in_goal: bool,
}

#[must_use]
pub fn pairs() -> Vec<Pair> {
    let pair = |name, a: Program, b: Program, in_goal| Pair {
        name,
        programs: [a, b],
        length: 12 * S,
        in_goal,
    };
    vec![
        Pair {
            length: 4 * S,
            ..pair("5 us / 5 us", stream(5 * US), stream(5 * US), true)
        },
        pair("500 us / 500 us", stream(500 * US), stream(500 * US), true),
        pair("50 us / 5 ms", stream(50 * US), stream(5 * MS), true),
        pair("5 ms / 50 us", stream(5 * MS), stream(50 * US), true),
        pair(
            "2 ms, waits / 2 ms, waits",
            waits(2 * MS, 20 * US),
            waits(2 * MS, 20 * US),
            true,
        ),
        pair("5 us to 3 ms / the same", mixed(), mixed(), true),
        pair(
            "50 us, waits / 500 us",
            waits(50 * US, 10 * US),
            stream(500 * US),
            false,
        ),
        pair("20 ms / 20 ms", stream(20 * MS), stream(20 * MS), false),
        Pair {
            length: 40 * S,
            ..pair(
                "200 ms, waits / 50 us",
                waits(200 * MS, 10 * US),
                stream(50 * US),
                false,
            )
        },
    ]
}

impl Pair {
    /// Runs it with the first program at these cores and the second at the rest.
    #[must_use]
    pub fn run(&self, law: Law, hardware: Hardware, cores: u32) -> [Error; 2] {
        let shares = vec![share(cores, 0), share(100 - cores, 0)];
        let outcome = on_one_gpu(law, hardware, shares, self.programs.to_vec(), self.length);
        [
            outcome.used[0].error(f64::from(cores)),
            outcome.used[1].error(f64::from(100 - cores)),
        ]
    }
}

/// Equal shares of programs that differ, half of which wait for each kernel.
#[derive(Debug)]
pub struct Many {
    pub mean_error: f64,
    pub jain: f64,
    pub used: f64,
}

#[must_use]
pub fn many(law: Law, count: u32) -> Many {
    let lengths = [20 * US, 100 * US, 500 * US, MS, 2 * MS, 5 * MS, 50 * US, 300 * US];
    let program = |index: usize| {
        let length = lengths[index % lengths.len()];
        let kernels = vec![Kernel::of(length, 10)];
        if index.is_multiple_of(2) {
            Program::Stream(kernels)
        } else {
            Program::Wait {
                kernels,
                pause: 10 * US,
            }
        }
    };
    let entry = Entry {
        weight: 100 * WEIGHT_OF_ONE_CORE / count,
        ..share(0, 0)
    };
    let programs = (0..count as usize).map(program).collect();
    let outcome = on_one_gpu(law, Hardware::default(), vec![entry; count as usize], programs, 12 * S);
    let used: Vec<f64> = outcome.used.iter().map(crate::figures::Used::total).collect();
    let target = 100.0 / f64::from(count);
    let errors: f64 = outcome.used.iter().map(|used| used.error(target).mean).sum();
    Many {
        mean_error: errors / f64::from(count),
        jain: jain(&used),
        used: used.iter().sum(),
    }
}

/// Latency of bursts of 2 ms about every 20 ms, with 20 cores, beside shares that always have work: p50 and p99 in ms.
#[must_use]
pub fn bursts(law: Law, beside: u32, is_high: bool) -> (f64, f64) {
    let burst = Program::Burst {
        count: 20,
        kernel: Kernel::of(100 * US, 5),
        pause: 20 * MS,
    };
    let mut shares = vec![share(20, if is_high { entry_flags::HIGH } else { 0 })];
    let mut programs = vec![burst];
    for _ in 0..beside {
        shares.push(Entry {
            weight: 80 * WEIGHT_OF_ONE_CORE / beside,
            ..share(0, 0)
        });
        programs.push(stream(500 * US));
    }
    let outcome = on_one_gpu(law, Hardware::default(), shares, programs, 30 * S);
    (
        quantile(&outcome.latencies[0], 0.5),
        quantile(&outcome.latencies[0], 0.99),
    )
}

/// A share of 70 cores that starts 5 s after one of 30: ms until a window of 100 ms is within 5 points of its share.
#[must_use]
pub fn start_delay() -> Option<Ns> {
    let mut tenants = vec![Tenant::new(0, stream(500 * US)), Tenant::new(1, stream(500 * US))];
    tenants[1].from = 5 * S;
    let outcome = run(&Scenario {
        hardware: Hardware::default(),
        law: Law::Turns,
        shares: vec![share(30, 0), share(70, 0)],
        tenants,
        length: 8 * S,
    });
    let is_there = |at: &Ns| (outcome.used[1].percent(5 * S + at * MS, 5 * S + (at + 100) * MS) - 70.0).abs() < 5.0;
    (0..2000).step_by(10).find(is_there)
}

/// Steps in a second of two jobs of two ranks over two GPUs, that share both; `crossed`: their first ranks are on
/// different GPUs. One job alone: `jobs` 1.
#[must_use]
pub fn ranks(law: Law, jobs: usize, crossed: bool) -> Vec<f64> {
    let length = 20 * S;
    let program = Program::Rank {
        kernel: Kernel::of(300 * US, 0),
        handshakes: 4,
        steps: 10,
    };
    let tenants = (0..jobs * 2).map(|index| {
        let (job, rank) = (index / 2, index % 2);
        let lag = if crossed {
            rank as Ns * 5 * MS
        } else {
            job as Ns * 3 * MS + rank as Ns * MS
        };
        Tenant {
            gpu: if crossed && job == 1 { 1 - rank } else { rank },
            partner: Some(job * 2 + 1 - rank),
            from: lag,
            ..Tenant::new(job, program.clone())
        }
    });
    let outcome = run(&Scenario {
        hardware: Hardware::default(),
        law,
        shares: vec![share(50, 0); jobs],
        tenants: tenants.collect(),
        length,
    });
    let steps = outcome.launches.iter().step_by(2);
    steps.map(|steps| *steps as f64 * S as f64 / length as f64).collect()
}

/// Use of three shares of 30 cores and of one of 10 that ignores the limiter.
#[must_use]
pub fn one_ignores(law: Law) -> Vec<f64> {
    let shares = vec![share(30, 0), share(30, 0), share(30, 0), share(10, 0)];
    let mut tenants: Vec<Tenant> = (0..3).map(|share| Tenant::new(share, stream(300 * US))).collect();
    tenants.push(Tenant {
        ignores: true,
        ..Tenant::new(3, stream(500 * US))
    });
    let outcome = run(&Scenario {
        hardware: Hardware::default(),
        law,
        shares,
        tenants,
        length: 12 * S,
    });
    outcome.used.iter().map(crate::figures::Used::total).collect()
}

/// A share of four processes beside one of one process, 50 cores each: the use of both.
#[must_use]
pub fn four_processes(law: Law) -> Vec<f64> {
    let mut tenants: Vec<Tenant> = (0..4).map(|_| Tenant::new(0, stream(500 * US))).collect();
    tenants.push(Tenant::new(1, stream(500 * US)));
    let outcome = run(&Scenario {
        hardware: Hardware::default(),
        law,
        shares: vec![share(50, 0), share(50, 0)],
        tenants,
        length: 12 * S,
    });
    outcome.used.iter().map(crate::figures::Used::total).collect()
}

/// A share whose process is killed or stopped again and again while it holds its turn: the longest time for which the
/// other waited, in ms.
#[must_use]
pub fn dead_holders() -> f64 {
    let mut tenants = vec![Tenant::new(1, stream(500 * US))];
    for death in 0..40 {
        tenants.push(Tenant {
            from: WARM + death * 100 * MS,
            stops: Some(WARM + death * 100 * MS + 50 * MS + death * 700 * US),
            ..Tenant::new(0, stream(500 * US))
        });
    }
    let outcome = run(&Scenario {
        hardware: Hardware::default(),
        law: Law::Turns,
        shares: vec![share(50, 0), share(50, 0)],
        tenants,
        length: 8 * S,
    });
    outcome.longest_wait[0] as f64 / MS as f64
}

/// A share of low priority beside one of high priority that always has work: the use of the low one, and its longest wait
/// in ms.
#[must_use]
pub fn low_beside_high() -> (f64, f64) {
    let shares = vec![share(50, entry_flags::HIGH), share(50, 0)];
    let programs = vec![stream(500 * US), stream(500 * US)];
    let outcome = on_one_gpu(Law::Turns, Hardware::default(), shares, programs, 12 * S);
    (outcome.used[1].total(), outcome.longest_wait[1] as f64 / MS as f64)
}

/// Idle time: a share of 30 cores beside one of none, and two of 30 and 70 beside one of none.
#[must_use]
pub fn best_effort() -> (Vec<f64>, Vec<f64>) {
    let used = |cores: &[u32], rest: u32| {
        let mut shares: Vec<Entry> = cores.iter().map(|cores| share(*cores, 0)).collect();
        shares.push(Entry {
            weight: rest,
            ..share(0, entry_flags::BEST_EFFORT)
        });
        let programs = shares.iter().map(|_| stream(500 * US)).collect();
        let outcome = on_one_gpu(Law::Turns, Hardware::default(), shares, programs, 12 * S);
        outcome.used.iter().map(crate::figures::Used::total).collect()
    };
    (
        used(&[30], 70 * WEIGHT_OF_ONE_CORE),
        used(&[30, 70], vgpu_abi::arbitration::LEAST_WEIGHT),
    )
}

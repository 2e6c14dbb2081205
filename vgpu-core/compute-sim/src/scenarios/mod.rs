//! The scenarios of docs/compute-accuracy.md by subject. Each takes the law and returns figures: tests assert some of
//! them, and the tables print them.

pub mod adversaries;
pub mod alone;
pub mod costs;
pub mod drawn;
pub mod lengths;
pub mod others;
pub mod parts;
pub mod processes;
pub mod real_programs;
pub mod streams;

use vgpu_abi::arbitration::{Entry, WEIGHT_OF_ONE_CORE, entry_flags};

use crate::Ns;
use crate::figures::Used;
use crate::hardware::Hardware;
use crate::law::LawKind;
use crate::programs::Program;
use crate::world::{Outcome, Scenario, Thread, run};

/// A share with this number of cores. `flags` are those of its entry in the node's page.
fn share(cores: u32, flags: u32) -> Entry {
    Entry {
        weight: cores * WEIGHT_OF_ONE_CORE,
        flags,
        generation: 1,
    }
}

fn guaranteed(cores: u32) -> Entry {
    share(cores, entry_flags::GUARANTEED)
}

fn balanced(cores: u32) -> Entry {
    share(cores, 0)
}

/// Runs one program per share.
fn run_programs(law: LawKind, shares: Vec<Entry>, programs: Vec<Program>, length: Ns) -> Outcome {
    let threads = (0..)
        .zip(programs)
        .map(|(share, program)| Thread::new(share, share, program));
    run_threads(law, shares, threads.collect(), length)
}

fn run_threads(law: LawKind, shares: Vec<Entry>, threads: Vec<Thread>, length: Ns) -> Outcome {
    run(Scenario {
        hardware: Hardware::default(),
        law,
        shares,
        threads,
        length,
    })
}

impl Outcome {
    /// Returns the use of each share, in percent of the GPU's time.
    fn uses(&self) -> Vec<f64> {
        self.used.iter().map(Used::total).collect()
    }
}

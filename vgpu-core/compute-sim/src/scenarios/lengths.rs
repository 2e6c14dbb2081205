//! Kernels whose length cannot be predicted.

use super::{balanced, guaranteed, run_programs};
use crate::figures::Error;
use crate::law::LawKind;
use crate::programs::{busy, grids, mixture};
use crate::{Ns, S, US};

/// Launches that look the same, but one in `rare` is long.
#[derive(Clone, Copy, Debug)]
pub struct Mixture {
    pub short: Ns,
    pub long: Ns,
    pub rare: u64,
}

impl Mixture {
    /// Runs them in a Guaranteed share of 10 cores, alone.
    #[must_use]
    pub fn capped(self, law: LawKind, length: Ns) -> Error {
        let programs = vec![mixture(self.short, self.long, self.rare)];
        run_programs(law, vec![guaranteed(10)], programs, length).used[0].error(10.0)
    }

    /// Runs them in a share of 30 cores beside an ordinary program with 70. Returns the use of both.
    #[must_use]
    pub fn beside(self, law: LawKind, length: Ns) -> Vec<f64> {
        let programs = vec![mixture(self.short, self.long, self.rare), busy(500 * US)];
        run_programs(law, vec![balanced(30), balanced(70)], programs, length).uses()
    }
}

/// A program with many grid sizes: most launches are of an unknown one.
#[derive(Clone, Copy, Debug)]
pub struct Grids {
    /// Launches per second of a Balanced share, alone.
    pub launches: f64,
    /// The law's CPU time per launch, in ns.
    pub cpu: f64,
    /// Use of a Guaranteed share of 30 cores.
    pub capped: f64,
}

#[must_use]
pub fn many_grids(law: LawKind, count: u64, kernel: Ns) -> Grids {
    let run = |share| run_programs(law, vec![share], vec![grids(count, kernel)], 4 * S);
    let alone = run(balanced(30));
    let thread = &alone.threads[0];
    Grids {
        launches: super::costs::per_second(thread.launches_counted),
        cpu: thread.per_launch(thread.cpu),
        capped: run(guaranteed(30)).uses()[0],
    }
}

//! Launches whose length cannot be told from how they look.

use super::{balanced, guaranteed, run_programs};
use crate::figures::Error;
use crate::law::LawKind;
use crate::programs::{busy, grids, mixture};
use crate::{Ns, S, US};

/// Launches that look the same, of which one in `rare` is long.
#[derive(Clone, Copy, Debug)]
pub struct Mixture {
    pub short: Ns,
    pub long: Ns,
    pub rare: u64,
}

impl Mixture {
    /// A Guaranteed share of 10 cores, alone.
    #[must_use]
    pub fn capped(self, law: LawKind, length: Ns) -> Error {
        let programs = vec![mixture(self.short, self.long, self.rare)];
        run_programs(law, vec![guaranteed(10)], programs, length).used[0].error(10.0)
    }

    /// Use of a share of 30 cores with them, and of a usual one of 70.
    #[must_use]
    pub fn beside(self, law: LawKind, length: Ns) -> Vec<f64> {
        let programs = vec![mixture(self.short, self.long, self.rare), busy(500 * US)];
        run_programs(law, vec![balanced(30), balanced(70)], programs, length).uses()
    }
}

/// A program whose grids are many: nothing is known of most of them when they come.
#[derive(Clone, Copy, Debug)]
pub struct Grids {
    /// Of a Balanced share, alone, in a second.
    pub launches: f64,
    /// The law's part of the CPU's time for a launch, in ns.
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

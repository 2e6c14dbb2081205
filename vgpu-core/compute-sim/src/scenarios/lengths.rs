//! Kernels whose length cannot be predicted.

use super::{balanced, guaranteed, run_programs};
use crate::figures::Error;
use crate::law::LawKind;
use crate::programs::{busy, mixture};
use crate::{Ns, US};

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

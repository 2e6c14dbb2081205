//! The CPU time of a law.

use vgpu_abi::arbitration::Entry;

use super::{balanced, guaranteed, run_programs};
use crate::law::LawKind;
use crate::programs::{Program, busy, circle, waits};
use crate::{Ns, S, US};

const LENGTH: Ns = 4 * S;

/// One or two shares with short kernels.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub name: &'static str,
    shares: fn() -> Vec<(Entry, Program)>,
}

/// The cost of the first share's launches.
#[derive(Clone, Debug)]
pub struct Cost {
    /// Launches per second.
    pub launches: f64,
    /// The law's CPU time per launch in ns, and the time spent spinning.
    pub cpu: f64,
    pub spun: f64,
    /// Events recorded per launch, over all shares.
    pub events: f64,
    pub uses: Vec<f64>,
}

#[must_use]
pub fn loads() -> Vec<Load> {
    let of = |name, shares| Load { name, shares };
    vec![
        of("2 us, alone", || vec![(balanced(30), busy(2 * US))]),
        of("5 us, alone", || vec![(balanced(30), busy(5 * US))]),
        of("20 us, waits, alone", || vec![(balanced(30), waits(20 * US, 5, US))]),
        of("2 us, Guaranteed 50", || vec![(guaranteed(50), busy(2 * US))]),
        of("5 us, Guaranteed 95", || vec![(guaranteed(95), busy(5 * US))]),
        of("20 us, waits, Guaranteed 50", || {
            vec![(guaranteed(50), waits(20 * US, 5, US))]
        }),
        of("5 us beside 5 us", || both(busy(5 * US), busy(5 * US))),
        of("2 us beside 2 us", || both(busy(2 * US), busy(2 * US))),
        of("5 us in 16 streams beside 500 us", || {
            both(circle(&[5 * US], 5, 16, 100), busy(500 * US))
        }),
        of("20 us, waits, beside 500 us", || {
            both(waits(20 * US, 5, US), busy(500 * US))
        }),
    ]
}

fn both(one: Program, other: Program) -> Vec<(Entry, Program)> {
    vec![(balanced(50), one), (balanced(50), other)]
}

impl Load {
    #[must_use]
    pub fn run(&self, law: LawKind) -> Cost {
        let (shares, programs) = (self.shares)().into_iter().unzip();
        let outcome = run_programs(law, shares, programs, LENGTH);
        let first = &outcome.threads[0];
        let launches: u64 = outcome.threads.iter().map(|thread| thread.launches).sum();
        Cost {
            launches: per_second(first.launches_counted),
            cpu: first.per_launch(first.cpu),
            spun: first.per_launch(first.spun),
            events: outcome.events as f64 / launches as f64,
            uses: outcome.uses(),
        }
    }
}

/// Returns launches per second for a run of [`LENGTH`], of which the last two thirds are measured.
fn per_second(launches_counted: u64) -> f64 {
    launches_counted as f64 * 3.0 / 2.0 * S as f64 / LENGTH as f64
}

//! A Balanced share that is alone on the GPU: how much of the hardware's speed remains, and how much time it is
//! charged.

use super::{balanced, run_programs};
use crate::law::LawKind;
use crate::programs::{Program, batches, busy, circle, decoder, mixture, training, waits};
use crate::{MS, Ns, S, US};

/// A program and its running time.
#[derive(Clone, Copy, Debug)]
pub struct Alone {
    pub name: &'static str,
    program: fn() -> Program,
    length: Ns,
    /// The CPU launches too slowly to keep the GPU busy, and nothing shows how long the kernels take.
    pub is_bound_by_launches: bool,
}

/// The share's results under a law.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// Use of the GPU, in percent of the use without a law.
    pub kept: f64,
    /// Charged minus used time, in percent of the GPU's time.
    pub charged_more: f64,
    /// Events recorded per ms, and the law's CPU time per launch in ns.
    pub events: f64,
    pub cpu: f64,
}

#[must_use]
pub fn all() -> Vec<Alone> {
    let of = |name, length, program| Alone {
        name,
        program,
        length,
        is_bound_by_launches: false,
    };
    vec![
        Alone {
            is_bound_by_launches: true,
            ..of("2 us", 4 * S, || busy(2 * US))
        },
        of("5 us", 4 * S, || busy(5 * US)),
        of("200 ms", 40 * S, || busy(200 * MS)),
        of("20 us, waits", 4 * S, || waits(20 * US, 5, US)),
        of("200 us, waits", 4 * S, || waits(200 * US, 5, 10 * US)),
        of("4 streams of 200 us, waits for 16", 6 * S, || {
            batches(200 * US, 4, 100, 16)
        }),
        of("16 streams of 200 us, waits for 64", 6 * S, || {
            batches(200 * US, 16, 100, 64)
        }),
        of("64 streams of 200 us, waits for 256", 6 * S, || {
            batches(200 * US, 64, 100, 256)
        }),
        of("the same of width 25 %", 6 * S, || batches(200 * US, 64, 25, 256)),
        of("64 streams of 200 us", 6 * S, || circle(&[200 * US], 5, 64, 100)),
        of("64 streams of 200 us and 3 ms, width 5 %", 6 * S, || {
            circle(&[200 * US, 3 * MS], 5, 64, 5)
        }),
        of("5 us, one in 100 5 ms", 20 * S, || mixture(5 * US, 5 * MS, 100)),
        of("decoder", 10 * S, decoder),
        of("training", 20 * S, || training(0)),
        of("training, pause of 10 ms", 20 * S, || training(10 * MS)),
        of("training, pause of 50 ms", 20 * S, || training(50 * MS)),
    ]
}

impl Alone {
    #[must_use]
    pub fn run(&self, law: LawKind) -> Kept {
        let run = |law| run_programs(law, vec![balanced(30)], vec![(self.program)()], self.length);
        let (without, with) = (run(LawKind::Hardware), run(law));
        let percent = |time: Ns| time as f64 * 100.0 / self.length as f64;
        let used = with.used[0].percent(0, self.length);
        Kept {
            kept: used * 100.0 / without.used[0].percent(0, self.length),
            charged_more: percent(with.charged[0]) - used,
            events: with.events as f64 * MS as f64 / self.length as f64,
            cpu: with.threads[0].per_launch(with.threads[0].cpu),
        }
    }
}

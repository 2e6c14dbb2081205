//! Realistic programs: a decoder of tokens, and training.

use super::{balanced, guaranteed, run_programs};
use crate::figures::quantile;
use crate::law::LawKind;
use crate::programs::{decoder, training};
use crate::world::Outcome;
use crate::{Ns, S};

/// A decoder: 300 kernels of 5 to 60 us a token, and a wait.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    /// Tokens per second and use, alone.
    pub alone: f64,
    pub alone_use: f64,
    /// With two decoders of 50 cores each: tokens per second of each, their total use, and p99 of a token in ms.
    pub two: f64,
    pub two_use: f64,
    pub p99: f64,
    /// Use of a Guaranteed share of 30 cores.
    pub capped: f64,
}

#[must_use]
pub fn decoders(law: LawKind) -> Decoder {
    const LENGTH: Ns = 10 * S;
    let alone = run_programs(law, vec![balanced(50)], vec![decoder()], LENGTH);
    let programs = vec![decoder(), decoder()];
    let two = run_programs(law, vec![balanced(50); 2], programs, LENGTH);
    let capped = run_programs(law, vec![guaranteed(30)], vec![decoder()], LENGTH);
    Decoder {
        alone: per_second(&alone, LENGTH)[0],
        alone_use: alone.uses()[0],
        two: per_second(&two, LENGTH).iter().sum::<f64>() / 2.0,
        two_use: two.uses().iter().sum(),
        p99: quantile(&two.threads[0].latencies, 0.99),
        capped: capped.uses()[0],
    }
}

/// Runs a decoder with 70 cores beside training with 30. Returns tokens per second, and the use of both.
#[must_use]
pub fn decoder_beside_training(law: LawKind) -> (f64, Vec<f64>) {
    const LENGTH: Ns = 10 * S;
    let programs = vec![decoder(), training(0)];
    let outcome = run_programs(law, vec![balanced(70), balanced(30)], programs, LENGTH);
    (per_second(&outcome, LENGTH)[0], outcome.uses())
}

/// Runs training whose CPU pauses in each step. Returns steps per second alone and of each of two with 50 cores, and
/// the total use of the two.
#[must_use]
pub fn trainings(law: LawKind, pause: Ns) -> (f64, f64, f64) {
    const LENGTH: Ns = 20 * S;
    let alone = run_programs(law, vec![balanced(50)], vec![training(pause)], LENGTH);
    let programs = vec![training(pause), training(pause)];
    let two = run_programs(law, vec![balanced(50); 2], programs, LENGTH);
    (
        per_second(&alone, LENGTH)[0],
        per_second(&two, LENGTH).iter().sum::<f64>() / 2.0,
        two.uses().iter().sum(),
    )
}

/// Returns the requests per second that each thread completed.
fn per_second(outcome: &Outcome, length: Ns) -> Vec<f64> {
    let seconds = (length - crate::figures::WARM) as f64 / S as f64;
    let done = outcome
        .threads
        .iter()
        .map(|thread| thread.done_counted as f64 / seconds);
    done.collect()
}

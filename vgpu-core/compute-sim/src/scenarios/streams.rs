//! Programs with many streams.

use super::{balanced, guaranteed, run_programs};
use crate::law::LawKind;
use crate::programs::{Program, batches, busy, circle};
use crate::{S, US};

/// Kernels of 200 us that take `width` percent of the multiprocessors, with a wait after every 4 of a stream.
fn program(streams: usize, width: u32) -> Program {
    batches(200 * US, streams, width, 4 * streams)
}

/// Returns the use of a share of 70 cores with many streams, and of a share of 30 with one stream.
#[must_use]
pub fn beside(law: LawKind, streams: usize, width: u32) -> Vec<f64> {
    let programs = vec![program(streams, width), busy(200 * US)];
    run_programs(law, vec![balanced(70), balanced(30)], programs, 8 * S).uses()
}

/// Returns the use of a Guaranteed share of 10 cores with 8 streams.
#[must_use]
pub fn capped(law: LawKind, width: u32) -> f64 {
    let programs = vec![circle(&[200 * US], 5, 8, width)];
    run_programs(law, vec![guaranteed(10)], programs, 8 * S).uses()[0]
}

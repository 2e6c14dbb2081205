//! Each share's GPU time, and its difference from what the share is entitled to.

use crate::{MS, Ns, S};

/// Start of the measurement: the limiter learns before it.
pub const WARM: Ns = 2000 * MS;

const BIN: Ns = 10 * MS;
/// The length of the window over which errors are averaged, and the distance of two windows.
const WINDOW: Ns = S;
const STEP: Ns = 50 * MS;

/// GPU time of a share, in bins of 10 ms.
#[derive(Clone, Debug)]
pub struct Used {
    bins: Vec<Ns>,
    length: Ns,
}

/// The difference from the entitlement, in percentage points of the GPU's time.
#[derive(Clone, Copy, Debug)]
pub struct Error {
    pub use_percent: f64,
    /// The use minus the entitlement.
    pub signed: f64,
    /// Over windows of 1 s: the mean absolute error, the largest surplus and the largest deficit.
    pub mean: f64,
    pub above: f64,
    pub below: f64,
}

impl Error {
    #[must_use]
    pub fn worst(&self) -> f64 {
        self.above.max(-self.below)
    }
}

impl Used {
    pub(crate) fn new(length: Ns) -> Self {
        Self {
            bins: vec![0; usize::try_from(length / BIN + 2).unwrap_or(0)],
            length,
        }
    }

    pub(crate) fn add(&mut self, mut from: Ns, to: Ns) {
        while from < to {
            let bin = from / BIN;
            let until = to.min((bin + 1) * BIN);
            if let Some(time) = self.bins.get_mut(bin as usize) {
                *time += until - from;
            }
            from = until;
        }
    }

    /// Returns the use of the GPU between two moments, in percent.
    #[must_use]
    pub fn percent(&self, from: Ns, to: Ns) -> f64 {
        let bins = &self.bins[(from / BIN) as usize..(to / BIN) as usize];
        bins.iter().sum::<Ns>() as f64 * 100.0 / (to - from) as f64
    }

    #[must_use]
    pub fn total(&self) -> f64 {
        self.percent(WARM, self.length)
    }

    /// Compares the use with the entitlement, in percent.
    #[must_use]
    pub fn error(&self, target: f64) -> Error {
        let starts = (WARM..=self.length - WINDOW).step_by(STEP as usize);
        let errors: Vec<f64> = starts.map(|at| self.percent(at, at + WINDOW) - target).collect();
        Error {
            use_percent: self.total(),
            signed: self.total() - target,
            mean: errors.iter().map(|error| error.abs()).sum::<f64>() / errors.len() as f64,
            above: errors.iter().copied().fold(f64::MIN, f64::max),
            below: errors.iter().copied().fold(f64::MAX, f64::min),
        }
    }
}

/// Jain's index of fairness: 1 if all shares are equal.
#[must_use]
pub fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    sum * sum / (values.len() as f64 * squares)
}

/// Returns this quantile of the latencies, in ms.
#[must_use]
pub fn quantile(latencies: &[Ns], part: f64) -> f64 {
    let mut sorted = latencies.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len().saturating_sub(1)) as f64 * part;
    sorted.get(at as usize).map_or(0.0, |ns| *ns as f64 / MS as f64)
}

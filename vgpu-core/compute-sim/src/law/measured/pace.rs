//! How much GPU time a launch takes: one number for all launches of a process. It limits how many may be in flight; what
//! is charged is measured.

use crate::Ns;

/// All of them are 0 until the first acknowledgement, or the first sample.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// Of the launches that were acknowledged lately.
    pub mean: Ns,
    /// The same of the shorter ones.
    pub least: Ns,
    /// Of launches that were measured one by one.
    pub sample: Ns,
    /// The same of the shorter ones: slices of others are in some of them.
    pub short: Ns,
}

impl Pace {
    /// A launch was measured by itself.
    pub(super) fn sampled(&mut self, length: Ns) {
        self.sample = match self.sample {
            0 => length,
            sample => sample - sample / 8 + length / 8,
        };
        self.short = match self.short {
            0 => length,
            short if length < short => short - (short - length) / 4,
            short => short + (length - short) / 32,
        };
    }

    /// Launches were acknowledged that took `each`. `has_gaps`: with time in which the GPU waited for launches.
    pub(super) fn acknowledged(&mut self, each: Ns, has_gaps: bool, is_alone: bool) {
        let each = if has_gaps && self.sample > 0 {
            each.min(self.sample)
        } else {
            each
        };
        if !has_gaps || self.sample > 0 || self.mean == 0 {
            self.mean = match self.mean {
                0 => each.max(1),
                mean if each > mean && is_alone => mean / 2 + each / 2,
                mean if each > mean => mean + (each - mean) / 4,
                mean => (mean - mean / 8 + each / 8).max(1),
            };
        }
        self.least = if each < self.least || self.least == 0 {
            each.max(1)
        } else {
            self.least + (each - self.least) / 128
        };
    }
}

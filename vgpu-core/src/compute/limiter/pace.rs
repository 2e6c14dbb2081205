//! How much GPU time a launch takes: one number for all launches of a process. It limits how many may be in flight; what
//! is charged is measured. It is the time of the launches that were acknowledged lately, divided by their number: a mean of
//! means would follow each long kernel.

use crate::compute::Ns;

/// All of them are 0 until the first acknowledgement, or the first sample.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// Of the launches that were acknowledged lately.
    pub mean: Ns,
    time: Ns,
    launches: u64,
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

    /// So many launches were acknowledged that took so long together. `memory`: how long the mean remembers.
    pub(super) fn acknowledged(&mut self, time: Ns, launches: u64, memory: Ns) {
        self.time += time;
        self.launches += launches;
        if self.time > memory {
            self.time /= 2;
            self.launches = self.launches.div_ceil(2);
        }
        self.mean = (self.time / self.launches.max(1)).max(1);
    }

    /// Launches were acknowledged that took `each`. `has_gaps`: with time in which the GPU waited for launches.
    pub(super) fn took(&mut self, each: Ns, has_gaps: bool) {
        let each = if has_gaps && self.sample > 0 {
            each.min(self.sample)
        } else {
            each
        };
        self.least = if each < self.least || self.least == 0 {
            each.max(1)
        } else {
            self.least + (each - self.least) / 128
        };
    }
}

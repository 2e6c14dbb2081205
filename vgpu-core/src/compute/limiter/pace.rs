//! The GPU time of a launch: one number for all launches of a process. It limits how many launches may be in flight;
//! charges are measured instead. It is the total time of recently acknowledged launches divided by their number,
//! because a mean of means would jump with each long kernel.

use super::config::MEMORY;
use crate::compute::Ns;

/// All values are 0 until the first acknowledgement or sample.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// The mean of recently acknowledged launches.
    pub mean: Ns,
    time: Ns,
    launches: u64,
    /// The mean of the shorter of these launches.
    pub least: Ns,
    /// The mean of launches that were measured alone.
    pub sample: Ns,
    /// The mean of the shorter samples. A longer one may contain time in which the GPU ran other processes.
    pub short: Ns,
}

impl Pace {
    /// Adds the length of a launch that was measured alone.
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

    /// Adds acknowledged launches that took `time` together.
    pub(super) fn acknowledged(&mut self, time: Ns, launches: u64) {
        self.time += time;
        self.launches += launches;
        if self.time > MEMORY {
            self.time /= 2;
            self.launches = self.launches.div_ceil(2);
        }
        self.mean = (self.time / self.launches.max(1)).max(1);
    }

    /// Adds launches that took `each`. `has_gaps`: their time contains gaps in which the GPU waited for launches.
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

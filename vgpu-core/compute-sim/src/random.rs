//! Pseudo-random numbers (xorshift) that are the same in each run.

use crate::Ns;

#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number from 0 to `limit` - 1.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.word() % limit.max(1)
    }

    /// Returns a duration that differs from `length` by up to `percent`.
    pub(crate) fn around(&mut self, length: Ns, percent: u64) -> Ns {
        let most = length * percent / 100;
        length - most + self.below(2 * most + 1)
    }

    /// Returns an exponentially distributed duration.
    pub(crate) fn exponential(&mut self, mean: Ns) -> Ns {
        let unit = (self.word() >> 11) as f64 / (1u64 << 53) as f64;
        (-(1.0 - unit).ln() * mean as f64) as Ns
    }
}

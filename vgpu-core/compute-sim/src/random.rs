//! Numbers that look random and are the same in each run (xorshift).

use crate::Ns;

#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a number from 0 up to 1.
    pub fn unit(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a duration that differs from `mean` by up to `percent`.
    pub fn around(&mut self, mean: Ns, percent: u64) -> Ns {
        let part = (self.unit() * 2.0 - 1.0) * percent as f64 / 100.0;
        ((mean as f64 * (1.0 + part)) as Ns).max(500)
    }

    /// Returns an exponentially distributed duration.
    pub fn exponential(&mut self, mean: Ns) -> Ns {
        (-(1.0 - self.unit()).ln() * mean as f64) as Ns
    }
}

//! Random numbers and quantities.

pub(super) const CAPACITIES: [&str; 2] = ["memory", "cores"];

/// A generator of numbers; the same seed gives the same cases.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub(crate) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Returns an amount of a device if `is_there`, otherwise an amount for a request.
    pub(super) fn quantity(&mut self, is_there: bool) -> &'static str {
        const THERE: [&str; 6] = ["3", "4", "6", "8", "16", "1Gi"];
        const ASKED: [&str; 6] = ["0", "1", "1", "2", "3", "1023Mi"];
        const ODD: [&str; 9] = [
            "500m",
            "1500m",
            "-1",
            "250u",
            "9223372036854775807",
            "18446744073709551616",
            "1e30",
            "2000000000000000000000n",
            "1023Mi",
        ];
        let usual = if is_there { THERE } else { ASKED };
        match self.percent(97) {
            true => usual[self.below(usual.len())],
            false => ODD[self.below(ODD.len())],
        }
    }
}

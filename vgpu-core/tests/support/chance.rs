//! Random numbers from a seed that is printed, and the number of steps of a run.

use std::sync::OnceLock;
use std::time::SystemTime;

/// A small generator.
pub(crate) struct Chance(u64);

impl Chance {
    /// Seeded by `seed`, VGPU_SEED or the clock. In the last case the seed is printed.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        static OF_RUN: OnceLock<u64> = OnceLock::new();
        let of_run = || {
            let given = std::env::var("VGPU_SEED").ok().and_then(|text| text.parse().ok());
            let clock = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let seed = given.unwrap_or_else(|| clock().map_or(1, |now| now.as_nanos() as u64 >> 8));
            println!("VGPU_SEED={seed}");
            seed
        };
        Self(seed.unwrap_or_else(|| *OF_RUN.get_or_init(of_run)).wrapping_mul(2) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }
}

/// A number in the environment.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number"))
    })
}

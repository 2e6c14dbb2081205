//! The constants of the law that were chosen by measurement. The simulation also runs other values, which show the effect of each.

use crate::compute::{MS, Ns, US};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Most launches in flight beside others.
    pub most: u32,
    /// Most launches in flight of a capped share with all cores; a smaller share may have a proportional part.
    pub most_capped: u32,
    /// Most GPU time in flight beside others.
    pub ahead: Ns,
    /// Most GPU time in flight of a capped share.
    pub ahead_capped: Ns,
    /// Most GPU time in flight of a share that is alone.
    pub ahead_alone: Ns,
    /// Most GPU time in flight of a share that has turns on several GPUs: its kernels may wait for each other.
    pub ahead_ranks: Ns,
    /// An event is recorded behind this many launches of a stream.
    pub every: u32,
    /// An event is also recorded when the first launch without one is this old.
    pub age: Ns,
    /// A share that is alone is not held back and hardly measured.
    pub has_alone: bool,
    /// How often a share that is alone measures a launch.
    pub age_alone: Ns,
    /// Over how much GPU time the mean time of a launch is taken.
    pub memory: Ns,
    /// Some launches are measured alone, so that the gaps of a program that does not keep the GPU busy are not charged.
    pub has_samples: bool,
    /// A thread that should wait no longer than this spins instead of sleeping.
    pub spin: Ns,
    /// The work in flight of a killed process is charged by the clock, up to this bound, which doubles with each such
    /// death. None: up to 10 s each.
    pub burial: Option<Ns>,
    /// A rank's turn is over if others want it and nothing has ended in it for this long.
    pub gives_up: Option<Ns>,
    /// A share that holds a turn on another GPU may cut turns here.
    pub siblings_cut: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            most: 32,
            most_capped: 48,
            ahead: 2 * MS,
            ahead_capped: 300 * US,
            ahead_alone: 70 * MS,
            ahead_ranks: 500 * US,
            every: 16,
            age: 200 * US,
            has_alone: true,
            age_alone: 2 * MS,
            memory: 100 * MS,
            has_samples: true,
            spin: 80 * US,
            burial: Some(1000 * MS),
            gives_up: Some(4 * MS),
            siblings_cut: true,
        }
    }
}

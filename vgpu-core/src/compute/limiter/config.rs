//! The constants of the law that were chosen by measurement, and other choices, which show what each of them is for.

use crate::compute::{MS, Ns, US};

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Launches in flight at most: beside others, of a capped share of the whole GPU.
    pub most: u32,
    pub most_capped: u32,
    /// The same as GPU time, and of a share that is alone.
    pub ahead: Ns,
    pub ahead_capped: Ns,
    pub ahead_alone: Ns,
    /// The same for a share that has turns on several GPUs: its kernels may wait for each other.
    pub ahead_ranks: Ns,
    /// An event is recorded behind so many launches of a stream, or when the first of them is so old.
    pub every: u32,
    pub age: Ns,
    /// A share that is alone is hardly measured: a launch by itself at this distance.
    pub has_alone: bool,
    pub age_alone: Ns,
    /// How long the mean time of a launch remembers.
    pub memory: Ns,
    /// Gaps of a program that does not keep the GPU busy are taken out, by launches that are measured one by one.
    pub has_samples: bool,
    /// A thread that is expected to wait no longer asks again and again instead of sleeping.
    pub spin: Ns,
    /// What a killed process had in flight is charged by the clock up to this, doubled with each such death. None: up to
    /// 10 s each.
    pub burial: Option<Ns>,
    /// The turn of a rank in which nothing ended for so long is over if others want it.
    pub gives_up: Option<Ns>,
    /// A share that holds a turn on another GPU cuts turns.
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

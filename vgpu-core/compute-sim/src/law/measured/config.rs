//! The constants of the law that were chosen by measurement, and other choices, which show what each of them is for.

use crate::{MS, Ns, US};

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

/// Returns the law as it is proposed, and with one part changed or left out at a time, by name.
#[must_use]
pub fn variants() -> Vec<(&'static str, Config)> {
    let with = |change: fn(&mut Config)| {
        let mut config = Config::default();
        change(&mut config);
        config
    };
    vec![
        ("as proposed", Config::default()),
        ("16 in flight", with(|it| (it.most, it.most_capped) = (16, 16))),
        ("64 in flight beside others", with(|it| it.most = 64)),
        ("500 us ahead", with(|it| it.ahead = 500 * US)),
        ("never alone", with(|it| it.has_alone = false)),
        ("alone 40 ms ahead", with(|it| it.ahead_alone = 40 * MS)),
        ("a mean of 20 ms", with(|it| it.memory = 20 * MS)),
        ("an event behind 8", with(|it| it.every = 8)),
        ("no samples", with(|it| it.has_samples = false)),
        ("no spinning", with(|it| it.spin = 0)),
        ("ranks as others", with(|it| it.ahead_ranks = 2 * MS)),
        ("ranks do not give up", with(|it| it.gives_up = None)),
        ("ranks do not cut", with(|it| it.siblings_cut = false)),
        ("10 s a burial", with(|it| it.burial = None)),
    ]
}

//! What a tenant's process does: kernels, waits and pauses.

use crate::Ns;
use crate::random::Random;

/// A kernel of a given length. Kernels of one `shape` look alike to the limiter.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    pub shape: u64,
    pub length: Ns,
    /// By how many percent single launches differ from `length`.
    pub jitter: u64,
}

impl Kernel {
    #[must_use]
    pub fn of(length: Ns, jitter: u64) -> Self {
        Self {
            shape: length,
            length,
            jitter,
        }
    }
}

/// A process with one stream.
#[derive(Clone, Debug)]
pub enum Program {
    /// Launches these in a circle and never waits.
    Stream(Vec<Kernel>),
    /// Launches one, waits for it, and pauses.
    Wait { kernels: Vec<Kernel>, pause: Ns },
    /// Launches `count`, waits for them, and pauses for `pause` on average. The time from the first launch to the end of
    /// the wait is its latency.
    Burst { count: usize, kernel: Kernel, pause: Ns },
    /// Launches for `on`, waits, pauses for `off`.
    Phases { kernel: Kernel, on: Ns, off: Ns },
    /// A rank of a job over two GPUs: compute, then handshakes with the other rank, waits after `steps`.
    Rank {
        kernel: Kernel,
        handshakes: u32,
        steps: usize,
    },
}

impl Program {
    /// Returns the nth kernel, with its own length.
    pub(crate) fn kernel(&self, n: usize, random: &mut Random) -> (u64, Ns) {
        let kernel = match self {
            Self::Stream(kernels) | Self::Wait { kernels, .. } => kernels[n % kernels.len()],
            Self::Burst { kernel, .. } | Self::Phases { kernel, .. } | Self::Rank { kernel, .. } => *kernel,
        };
        let length = if kernel.jitter == 0 {
            kernel.length
        } else {
            random.around(kernel.length, kernel.jitter)
        };
        (kernel.shape, length)
    }

    /// Returns true if it waits after its nth launch, `phase` after its phase began.
    pub(crate) fn waits_after(&self, n: usize, phase: Ns) -> bool {
        match self {
            Self::Stream(_) => false,
            Self::Wait { .. } => true,
            Self::Burst { count, .. } => n.is_multiple_of(*count),
            Self::Phases { on, .. } => phase > *on,
            Self::Rank { steps, .. } => n.is_multiple_of(*steps),
        }
    }

    /// Returns the pause after a wait.
    pub(crate) fn pause(&self, random: &mut Random) -> Ns {
        match self {
            Self::Stream(_) | Self::Rank { .. } => 0,
            Self::Wait { pause, .. } => *pause,
            Self::Burst { pause, .. } => random.exponential(*pause),
            Self::Phases { off, .. } => *off,
        }
    }

    pub(crate) fn handshakes(&self) -> u32 {
        if let Self::Rank { handshakes, .. } = self {
            *handshakes
        } else {
            0
        }
    }
}

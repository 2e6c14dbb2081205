//! How long a run may take.

use std::time::{Duration, Instant};

use crate::{
    arguments::Node,
    remote::{self, Remote},
};

/// Until when a run does what. All moments are fixed when it starts, so that a driver that hangs ends no container by the
/// runtime's own timeout.
pub(crate) struct Clock {
    /// NVML must be loaded.
    pub(crate) loaded: Instant,
    /// The driver must have answered, and the lock must have been taken.
    pub(crate) answered: Instant,
    /// A failure must have been noted in the record.
    pub(crate) noted: Instant,
}

impl Clock {
    /// For a hook. A node that starts dozens of containers at once, or a driver that nobody uses yet, may take seconds.
    pub(crate) fn of_hook() -> Self {
        Self::start(10, 22, 25)
    }

    /// For a command that the plugin repeats, and gives 15 s.
    pub(crate) fn of_plugin() -> Self {
        Self::start(9, 13, 13)
    }

    fn start(loaded: u64, answered: u64, noted: u64) -> Self {
        let after = |seconds| Instant::now() + Duration::from_secs(seconds);
        Self {
            loaded: after(loaded),
            answered: after(answered),
            noted: after(noted),
        }
    }

    /// Loads NVML for a hook.
    pub(crate) fn load(&self, node: &Node) -> Result<Remote, remote::Error> {
        Remote::load(node, false, self.loaded, self.answered)
    }

    /// Loads NVML for a command that is repeated. Fails while a former one hangs.
    pub(crate) fn load_alone(&self, node: &Node) -> Result<Remote, remote::Error> {
        Remote::load(node, true, self.loaded, self.answered)
    }
}

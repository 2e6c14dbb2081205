//! How long a run may take.

use std::time::{Duration, Instant};

use crate::{
    arguments::Node,
    remote::{self, Remote},
};

/// The longest wait for a record's lock. A hook or a check may keep it for longer, while the driver is slow or hangs; it ends by
/// its own clock.
const LOCK: Duration = Duration::from_secs(10);

/// Until when a run does what. All moments are fixed when it starts, so that a driver that hangs ends no container by the
/// runtime's own timeout.
pub(crate) struct Clock {
    /// The longest that one attempt to load NVML may take.
    loading: Duration,
    /// The longest wait for a record's lock.
    lock: Duration,
    /// The driver must have answered, and the lock must have been taken.
    pub(crate) answered: Instant,
    /// A failure must have been noted in the record.
    noted: Instant,
}

impl Clock {
    /// For a hook. A node that starts dozens of containers at once, or a driver that nobody uses yet, may take seconds.
    pub(crate) fn of_hook(node: &Node) -> Self {
        Self::start(node, 10, 22, 25)
    }

    /// For a check, to which the plugin gives 15 s.
    pub(crate) fn of_check(node: &Node) -> Self {
        Self::start(node, 9, 13, 13)
    }

    /// For a probe of all GPUs, to which the plugin gives 30 s.
    pub(crate) fn of_probe(node: &Node) -> Self {
        Self::start(node, 9, 25, 25)
    }

    /// `loading`, `answered`, `noted`: seconds.
    fn start(node: &Node, loading: u64, answered: u64, noted: u64) -> Self {
        let hurried = |seconds| Duration::from_secs(seconds) / node.hurry;
        Self {
            loading: hurried(loading),
            lock: LOCK / node.hurry,
            answered: Instant::now() + hurried(answered),
            noted: Instant::now() + hurried(noted),
        }
    }

    /// Until when to wait for a record's lock now, to set limits.
    pub(crate) fn to_set(&self) -> Instant {
        self.answered.min(Instant::now() + self.lock)
    }

    /// Until when to wait for a record's lock now, to note a failure.
    pub(crate) fn to_note(&self) -> Instant {
        self.noted.min(Instant::now() + self.lock)
    }

    /// Loads NVML for a hook.
    pub(crate) fn load(&self, node: &Node) -> Result<Remote, remote::Error> {
        self.start_remote(node, false)
    }

    /// Loads NVML for a command that is repeated. Fails while a former process hangs.
    pub(crate) fn load_alone(&self, node: &Node) -> Result<Remote, remote::Error> {
        self.start_remote(node, true)
    }

    fn start_remote(&self, node: &Node, is_alone: bool) -> Result<Remote, remote::Error> {
        let loaded = self.answered.min(Instant::now() + self.loading);
        Remote::load(node, is_alone, loaded, self.answered)
    }
}

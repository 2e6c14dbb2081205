//! Everything that the law can read or do in one call.

use vgpu_abi::arbitration::SlotPage;

use crate::compute::Ns;
use crate::compute::flight::Stream;
use crate::compute::limiter::Reason;
use crate::compute::turn::Pages;

/// The answer to a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Go,
    Wait(Wait),
}

/// Ask again at `until`, or when the word `wake` of slot `on` changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    pub until: Ns,
    pub on: Option<usize>,
    /// So soon that the thread should not sleep.
    pub spins: bool,
    pub reason: Reason,
}

impl Answer {
    pub(super) fn sleep(until: Ns, on: Option<usize>, reason: Reason) -> Self {
        Self::Wait(Wait {
            until,
            on,
            spins: false,
            reason,
        })
    }
}

/// What the law needs of its process: events in its streams, and which processes of the share live.
pub trait Process {
    /// Records an event in a stream. Returns None if that is not possible: it is another thread's own stream, is being
    /// captured, or its context has ended.
    fn record(&mut self, stream: Stream) -> Option<usize>;
    /// Returns when the GPU passed an event, at the latest moment that is possible: an interval that lies too early would
    /// hide behind those of other processes. None: it has not. An event that is lost counts as passed now.
    fn passed(&mut self, event: usize) -> Option<Ns>;
    /// Returns the distance of two events that were passed. None: nobody knows.
    fn between(&mut self, front: usize, behind: usize) -> Option<Ns>;
    /// Returns true if the process of this name (`Cell::owner`) is dead.
    fn is_dead(&self, owner: u64) -> bool;
}

/// One call.
pub struct Call<'a> {
    pub now: Ns,
    pub pages: Pages<'a>,
    /// The own share's page.
    pub page: &'a SlotPage,
    pub process: &'a mut dyn Process,
    /// The share holds a turn on another GPU.
    pub sibling: bool,
}

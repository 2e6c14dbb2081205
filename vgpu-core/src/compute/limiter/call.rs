//! Everything that the law can read or do in one call.

use vgpu_abi::arbitration::{Cell, SlotPage};

use super::launches::Stream;
use crate::compute::Ns;
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

/// Why a launch waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The share has used its `cores`.
    Throttled,
    /// Another share has its turn.
    Turn,
    /// Enough is in flight.
    Queue,
    /// A launch of unknown length is in flight.
    Measuring,
    /// Too many processes of the share are at work.
    Cells,
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

/// What came of recording an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    Event(usize),
    /// It is another thread's own stream, in which only that thread can record.
    NotHere,
    /// Nobody can: the stream is being captured, or is gone.
    Never,
}

impl Recorded {
    pub(super) fn event(self) -> Option<usize> {
        match self {
            Self::Event(event) => Some(event),
            Self::NotHere | Self::Never => None,
        }
    }
}

/// What the law needs of its process: events in its streams, and which processes of the share live.
pub trait Process {
    fn record(&mut self, stream: Stream) -> Recorded;
    /// Returns when the GPU passed an event, at the latest moment that is possible: an interval that lies too early would
    /// hide behind those of other processes. None: it has not. An event that is lost counts as passed now.
    fn passed(&mut self, event: usize) -> Option<Ns>;
    /// Returns the distance of two events that were passed. None: nobody knows.
    fn between(&mut self, front: usize, behind: usize) -> Option<Ns>;
    /// Nobody will ask for this event any more.
    fn release(&mut self, event: usize);
    /// Returns true if the process to which a cell belongs, by `owner`, is dead, or cannot be told from a dead one.
    fn is_dead(&self, owner: u64, cell: &Cell) -> bool;
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

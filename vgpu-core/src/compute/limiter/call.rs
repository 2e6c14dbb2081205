//! Everything that the law can read or do during one call.

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
    /// The wait is so short that the thread should spin.
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
    /// Too many processes of the share have work in flight, so no cell is free.
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

/// The result of recording an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    Event(usize),
    /// The stream is another thread's own, in which only that thread can record.
    NotHere,
    /// No thread can record an event: the stream is being captured, or is gone.
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

/// The limiter's view of its process: events in its streams, and which processes of the share are alive.
pub trait Process {
    fn record(&mut self, stream: Stream) -> Recorded;
    /// Returns the latest time at which the GPU can have passed an event. If the time were too early, the interval
    /// would be covered by those of other processes and not be charged. None: not passed yet. A lost event is treated
    /// as passed now.
    fn passed(&mut self, event: usize) -> Option<Ns>;
    /// Returns the time between two passed events. None: unknown.
    fn between(&mut self, front: usize, behind: usize) -> Option<Ns>;
    /// Releases an event, which is not needed any more.
    fn release(&mut self, event: usize);
    /// Returns true if the process with the identity `owner` of a cell is dead, or looks the same as a dead one.
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

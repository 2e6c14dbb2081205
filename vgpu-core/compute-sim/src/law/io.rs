//! A law's interface to a process: what it can read and do.

use vgpu_abi::arbitration::SlotPage;
use vgpu_core::compute::turn::Pages;

use crate::Ns;
use crate::context::Context;
use crate::hardware::Hardware;

/// Everything that a law can read or do in one call.
pub(crate) struct Io<'a> {
    pub now: Ns,
    pub hardware: &'a Hardware,
    /// CPU time of this call so far.
    pub cost: Ns,
    pub context: &'a mut Context,
    pub pages: Pages<'a>,
    /// The page of the process's own share.
    pub page: &'a SlotPage,
    pub living: &'a Living,
    /// The share has the turn on another GPU.
    pub sibling: bool,
}

impl Io<'_> {
    /// Records an event in a stream and returns its number.
    pub(super) fn record(&mut self, stream: usize) -> usize {
        self.cost += self.hardware.record;
        self.context.record(stream, self.hardware)
    }

    /// Returns when the GPU passed an event, or `None` if it has not. The time is by a clock that only
    /// [`super::events::Base`] can read.
    pub(super) fn query(&mut self, event: usize) -> Option<Ns> {
        self.cost += self.hardware.query;
        self.context.passed(event)
    }
}

/// The running processes, by the names that they write into cells.
#[derive(Debug)]
pub(crate) struct Living {
    /// Names by process; 0 if it does not run.
    names: Vec<u64>,
    started: u64,
}

/// The lower bits of a name are the process's number.
const NUMBER_BITS: u32 = 20;

impl Living {
    pub(crate) fn new(processes: usize) -> Self {
        Self {
            names: vec![0; processes],
            started: 0,
        }
    }

    /// Returns the name of a process that starts.
    pub(crate) fn starts(&mut self, process: usize) -> u64 {
        self.started += 1;
        self.names[process] = self.started << NUMBER_BITS | process as u64;
        self.names[process]
    }

    pub(crate) fn ends(&mut self, process: usize) {
        self.names[process] = 0;
    }

    pub(crate) fn is_dead(&self, name: u64) -> bool {
        let process = name & ((1 << NUMBER_BITS) - 1);
        self.names[process as usize] != name
    }
}

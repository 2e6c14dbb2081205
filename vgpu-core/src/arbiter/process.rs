//! Implements the law's interface to this process, through the driver and the system.

use vgpu_abi::arbitration::Cell;

use crate::compute::Ns;
use crate::compute::limiter::Stream;
use crate::compute::limiter::call::{Process, Recorded};
use crate::log;
use crate::memory::driver::Streams;
use crate::os::monotonic_ns;

use super::events::Events;
use super::owner::Owner;
use super::streams::Known;

pub(super) struct Live<'a, D> {
    pub driver: &'a D,
    pub events: &'a mut Events,
    pub known: &'a Known,
    pub own: Owner,
    pub now: Ns,
    /// Nothing is in flight.
    pub is_idle: bool,
}

impl<D: Streams> Process for Live<'_, D> {
    fn record(&mut self, stream: Stream) -> Recorded {
        let Some(target) = self.known.find(stream) else {
            return Recorded::Never;
        };
        if !target.is_here() {
            return Recorded::NotHere;
        }
        if target.is_captured(self.driver) {
            return Recorded::Never;
        }
        match self.events.record(self.driver, target, self.is_idle, monotonic_ns) {
            Some(event) => Recorded::Event(event),
            None => {
                log::failed_event();
                Recorded::Never
            }
        }
    }

    fn passed(&mut self, event: usize) -> Option<Ns> {
        self.events.passed(self.driver, event, monotonic_ns)
    }

    fn between(&mut self, front: usize, behind: usize) -> Option<Ns> {
        self.events.between(self.driver, front, behind)
    }

    fn release(&mut self, event: usize) {
        self.events.release(self.driver, event);
    }

    fn is_dead(&self, owner: u64, cell: &Cell) -> bool {
        Owner(owner).is_dead(self.own, cell, self.now)
    }
}

//! The times of events. The driver only returns the distance between two events, and nobody knows exactly when the GPU
//! passed the first one, the base.

use crate::law::io::Io;
use crate::{MS, Ns};

/// Age at which a base is replaced, because the GPU's clock drifts.
const RENEWAL: Ns = 10_000 * MS;

/// The event from which a process measures distances.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Base {
    event: usize,
    pub recorded: Ns,
    /// The latest time at which the GPU can have passed the base, as far as is known.
    pub latest: Ns,
}

impl Base {
    pub(super) fn record(io: &mut Io<'_>, stream: usize) -> Self {
        Self {
            event: io.record(stream),
            recorded: io.now,
            latest: Ns::MAX,
        }
    }

    /// Returns true if an event was recorded after this base.
    pub(super) fn is_before(&self, event: usize) -> bool {
        self.event < event
    }

    pub(super) fn is_old(&self, now: Ns) -> bool {
        now.saturating_sub(self.recorded) >= RENEWAL
    }

    /// Returns the distance from the base to an event that the GPU passed at `passed` by its own clock and that is
    /// seen now.
    pub(super) fn distance(&mut self, io: &mut Io<'_>, passed: Ns) -> Ns {
        io.cost += io.hardware.elapsed;
        let base = io.context.passed(self.event).unwrap_or(passed);
        let distance = passed.saturating_sub(base);
        self.latest = self.latest.min(io.now.saturating_sub(distance));
        distance
    }
}

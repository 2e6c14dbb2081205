//! How long the parts of a Prepare take, for the metric.

use std::time::{Duration, Instant};

/// A part of the work under the lock.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// The records, and room for the shares.
    State,
    /// The driver's files.
    Driver,
    /// The claim directories with their mounts.
    Directory,
    /// The arbitration directories.
    Arbitration,
    /// The CDI files.
    Cdi,
    /// The claims' records.
    Record,
    /// The node pages.
    Pages,
}

/// How long each part of a turn took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parts([Duration; Part::ALL.len()]);

/// Measures the parts of a turn.
pub(super) struct Laps {
    last: Instant,
    pub(super) parts: Parts,
}

// === impl Part ===

impl Part {
    const ALL: [(Self, &'static str); 7] = [
        (Self::State, "state"),
        (Self::Driver, "driver"),
        (Self::Directory, "directory"),
        (Self::Arbitration, "arbitration"),
        (Self::Cdi, "cdi"),
        (Self::Record, "record"),
        (Self::Pages, "pages"),
    ];
}

// === impl Parts ===

impl Parts {
    /// Each part by its name.
    pub fn by_name(&self) -> impl Iterator<Item = (&'static str, Duration)> {
        let all = Part::ALL.iter().zip(self.0);
        all.map(|((_, name), took)| (*name, took))
    }
}

// === impl Laps ===

impl Laps {
    pub(super) fn start() -> Self {
        Self {
            last: Instant::now(),
            parts: Parts::default(),
        }
    }

    /// Adds the time since the last call to a part.
    pub(super) fn end_of(&mut self, part: Part) {
        let now = Instant::now();
        self.parts.0[part as usize] += now - self.last;
        self.last = now;
    }
}

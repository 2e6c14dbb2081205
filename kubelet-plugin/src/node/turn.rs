//! One turn: values that are read once for all its claims, and the time that its parts take.

use crate::arbitration::{self, Arbitration};
use crate::driver::{self, Driver, Finder};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

pub(super) struct Turn {
    driver: Option<Driver>,
    /// GPUs whose arbitration directories were completed in this turn.
    arbitrated: BTreeSet<String>,
    last: Instant,
    pub(super) parts: Parts,
}

/// A part of the work under the lock.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// The state of the node, and room for the shares.
    State,
    /// The driver's files.
    Driver,
    /// The claim directories with their mounts.
    Directory,
    /// The arbitration directories.
    Arbitration,
    /// The CDI files.
    Cdi,
    /// The claims' files.
    Record,
    /// The node pages.
    Pages,
}

/// How long each part of a turn took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parts([Duration; Part::ALL.len()]);

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

impl Default for Turn {
    fn default() -> Self {
        Self {
            driver: None,
            arbitrated: BTreeSet::new(),
            last: Instant::now(),
            parts: Parts::default(),
        }
    }
}

// === impl Turn ===

impl Turn {
    /// Adds the time since the last call to a part.
    pub(super) fn lap(&mut self, part: Part) {
        let now = Instant::now();
        self.parts.0[part as usize] += now - self.last;
        self.last = now;
    }

    /// The driver's files, read once for this turn.
    pub(super) fn driver(&mut self, finder: &Finder) -> Result<&Driver, driver::Error> {
        if self.driver.is_none() {
            self.driver = Some(finder.read()?);
        }
        Ok(self.driver.as_ref().expect("it was just read"))
    }

    /// Completes a GPU's arbitration directory, once in this turn.
    pub(super) fn arbitration(&mut self, all: &Arbitration, gpu: &str) -> Result<(), arbitration::Error> {
        if !self.arbitrated.contains(gpu) {
            all.ensure(gpu)?;
            self.arbitrated.insert(gpu.to_owned());
        }
        Ok(())
    }
}

//! One call's turn: values that are read once for all claims of the call.

use crate::arbitration::{self, Arbitration};
use crate::driver::{self, Driver, Finder};
use std::collections::BTreeSet;

#[derive(Default)]
pub(super) struct Turn {
    driver: Option<Driver>,
    /// GPUs whose arbitration directories were completed in this turn.
    arbitrated: BTreeSet<String>,
}

// === impl Turn ===

impl Turn {
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

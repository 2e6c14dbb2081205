//! One call's turn: the lock, and values that are read once for all claims of the call.

use crate::arbitration::{self, Arbitration};
use crate::driver::{self, Driver, Root};
use rustix::fs::FlockOperation;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;

pub(super) struct Turn {
    /// Set if the checkpoint must be written at the end.
    pub(super) dirty: bool,
    driver: Option<Driver>,
    /// GPUs whose arbitration directories were completed in this turn.
    arbitrated: BTreeSet<String>,
    _locked: Locked,
}

// === impl Turn ===

impl Turn {
    pub(super) fn new(locked: Locked) -> Self {
        Self {
            dirty: false,
            driver: None,
            arbitrated: BTreeSet::new(),
            _locked: locked,
        }
    }

    /// The driver's files, read once for this turn.
    pub(super) fn driver(&mut self, root: &Root) -> Result<&Driver, driver::Error> {
        if self.driver.is_none() {
            self.driver = Some(root.read()?);
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

/// The lock file, locked until dropped.
pub(super) struct Locked(File);

// === impl Locked ===

impl Locked {
    pub(super) fn take(file: File) -> io::Result<Self> {
        rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
        Ok(Self(file))
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Fails only if the file cannot be locked at all; the end of the process unlocks it too.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

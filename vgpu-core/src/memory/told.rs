//! Code whose files tell all that it takes, and that was not measured, taken together: a driver packs code, so each does
//! not take granules of its own.
//!
//! How it fails: what lies beside the code, as tables of the driver, is not in the files. It is charged once, as much as
//! code of unknown size.

use super::granule::granules;

/// Charged ahead of code that was not loaded before, at least, if its file does not tell all.
pub const UNKNOWN_CODE: u64 = 8 << 20;

/// Such code: how many files, and what they tell.
#[derive(Clone, Copy, Debug, Default)]
pub struct Told {
    bytes: u64,
    count: u64,
}

impl Told {
    #[must_use]
    pub fn with(self, bytes: u64) -> Self {
        Self {
            bytes: self.bytes.saturating_add(bytes),
            count: self.count + 1,
        }
    }

    /// Returns what is charged for it: what the files say and, once, as much as code of unknown size for what is beside
    /// it.
    #[must_use]
    pub fn charge(self) -> u64 {
        match self.count {
            0 => 0,
            _ => granules(self.bytes.saturating_add(UNKNOWN_CODE)).unwrap_or(u64::MAX),
        }
    }
}

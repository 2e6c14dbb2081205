//! Unmeasured code whose size its files state completely, charged as a whole: a driver packs code, so not each file
//! takes its own granules.
//!
//! How it fails: the files do not show what the driver needs in addition to the code, such as tables. For that,
//! [`UNKNOWN_CODE`] is charged once for all files.

use super::granule::granules;

/// The smallest charge ahead of code that was not loaded before and whose file does not state its whole size.
pub const UNKNOWN_CODE: u64 = 8 << 20;

/// The number of such files, and the sum of their sizes.
#[derive(Clone, Copy, Debug, Default)]
pub struct KnownCode {
    bytes: u64,
    count: u64,
}

impl KnownCode {
    #[must_use]
    pub fn with(self, bytes: u64) -> Self {
        Self {
            bytes: self.bytes.saturating_add(bytes),
            count: self.count + 1,
        }
    }

    /// Returns the charge: the sizes of the files plus, once, [`UNKNOWN_CODE`].
    #[must_use]
    pub fn charge(self) -> u64 {
        match self.count {
            0 => 0,
            _ => granules(self.bytes.saturating_add(UNKNOWN_CODE)).unwrap_or(u64::MAX),
        }
    }
}

//! Reads the ledgers of prepared claims.
//!
//! A claim keeps its library over upgrades of the plugin, and with it the format of its ledger. So a format that this
//! release does not know is not reported as damage by the tenant.

use super::Node;
use crate::dra::checkpoint::Entry;
use crate::dra::claimdir::LedgerError;
use crate::dra::share::Share;
use vgpu_abi::ledger::Usage;

/// The result of reading a share's ledger.
#[derive(Debug)]
pub enum LedgerReading {
    Read(Usage),
    /// The claim has the library of another release, whose format this one cannot read.
    OtherFormat,
    /// The tenant damaged or replaced it.
    Damaged(LedgerError),
}

// === impl Node ===

impl Node {
    /// Reads the ledger of a share of a prepared claim. `buffer` is reused between calls.
    #[must_use]
    pub fn ledger(&self, uid: &str, entry: &Entry, share: &Share, buffer: &mut Vec<u8>) -> LedgerReading {
        match self.dirs.usage(uid, share, buffer) {
            Ok(usage) => LedgerReading::Read(usage),
            Err(_) if self.library() != Some(&entry.library) => LedgerReading::OtherFormat,
            Err(damage) => LedgerReading::Damaged(damage),
        }
    }
}

impl Node {
    /// Returns how many processes of a share live, from the buffer that [`ledger`](Self::ledger) has filled. The ledger
    /// also names killed processes, until another process needs their memory.
    #[must_use]
    pub fn living(&self, uid: &str, share: &Share, buffer: &[u8]) -> Option<usize> {
        self.dirs.living(uid, share, buffer)
    }
}

// === impl LedgerReading ===

impl LedgerReading {
    #[must_use]
    pub fn usage(self) -> Option<Usage> {
        match self {
            Self::Read(usage) => Some(usage),
            Self::OtherFormat | Self::Damaged(_) => None,
        }
    }
}

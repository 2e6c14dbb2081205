//! Renews the CDI files of prepared claims: a container that restarts gets its mounts from them, without a Prepare.
//!
//! ```text
//!  start, the driver's files have changed, a CDI file is missing ─► what is missing or differs is written
//! ```
//!
//! Failure modes:
//! - The driver is being replaced and has no complete files: the CDI files stay as they are, until it has.
//! - One claim cannot be renewed, for example because its GPU's device node is gone: the others are, and it is tried
//!   again.
//! - A crash in the middle: each file is replaced as a whole, and the next start compares all of them.
//! - After a reboot a claim is dormant. It gets its files when kubelet prepares it again.
//! - A copy of a claim's state that is missing is written too, and the whole claim directory if that is gone. On a full
//!   disk that is tried every 10 s.
//! - Two instances of two releases: each writes on a change only, so the last one's files stay.

use super::lock::Locked;
use super::turn::Turn;
use super::{Error, Node};
use std::collections::BTreeMap;

// === impl Node ===

impl Node {
    /// Returns true if CDI files of prepared claims may have to be written. Changes nothing.
    #[must_use]
    pub fn has_stale_cdi_files(&self) -> bool {
        let Ok(driver) = self.driver.read() else {
            return false;
        };
        let is_missing =
            |uid: &String| self.cdi.file(uid).is_ok_and(|file| !file.exists()) || self.records.is_missing(uid);
        self.renewed_for.as_ref() != Some(&driver) || self.renewable().iter().any(is_missing)
    }

    /// Writes what is missing of prepared claims, and CDI files that name other files than the driver has now.
    pub fn renew_cdi_files(&mut self, locked: &Locked) {
        if let Err(error) = self.begin_turn(locked).and_then(|mut turn| self.renew(&mut turn)) {
            tracing::warn!(
                "CDI files of prepared claims are not renewed, so their containers may not start again: {error}"
            );
        }
    }

    pub(super) fn renew(&mut self, turn: &mut Turn) -> Result<(), Error> {
        let driver = turn.driver(&self.driver)?.clone();
        let mut failed = BTreeMap::new();
        for uid in self.renewable() {
            let Some(mut entry) = self.checkpoint.claims.get(&uid).cloned() else {
                continue;
            };
            let known = entry.clone();
            let renewed = self.materialize(&uid, &mut entry, false, turn);
            if let Err(error) = renewed.and_then(|()| self.keep(&uid, &known, entry)) {
                failed.insert(uid, error.to_string());
            }
        }
        for (uid, error) in failed
            .iter()
            .filter(|(uid, error)| self.not_renewed.get(*uid) != Some(error))
        {
            tracing::warn!(uid, "a container of this claim may not start again: {error}");
        }
        self.renewed_for = failed.is_empty().then_some(driver);
        self.not_renewed = failed;
        Ok(())
    }

    fn renewable(&self) -> Vec<String> {
        self.checkpoint.claims.keys().cloned().collect()
    }
}

//! Renews the CDI files of prepared claims: a container that restarts gets its mounts from them, without a Prepare. Keeps the
//! releases of the library that these files mount.
//!
//! Failure modes:
//! - The driver is being replaced and has no complete files: the CDI files stay as they are, until it has.
//! - A file with metadata is gone: containers of its claim could not restart, so it is written again.
//! - One claim cannot be renewed, for example because its GPU's device node is gone: the others are, and it is tried
//!   again.
//! - A crash in the middle: each file is replaced as a whole, and the next start compares all of them.
//! - An instance is replaced by another one in its place: containers of its claim start no more, from the next turn on, and for
//!   some seconds after a start of the plugin, until the GPUs are listed, they do.
//! - Two instances: both write after a change of the driver. Otherwise each leaves alone what is there, because the other one
//!   may be a newer release that writes more.

use super::prepare::Turn;
use super::{Error, Node, Renewal};
use crate::dra::checkpoint::Entry;
use crate::dra::share::Share;
use crate::publish::inventory::Inventory;
use std::collections::BTreeMap;
use vgpu_node::lock_file::Locked;

// === impl Node ===

impl Node {
    /// Writes the files of prepared claims again, and returns the claims that cannot be renewed, and why. If the driver's files
    /// have changed since the last renewal, those of all claims; else of claims
    /// - on a GPU where the driver limits cgroups now and did not then, or the reverse,
    /// - whose instance was replaced, or is back,
    /// - whose record, metadata or CDI file is missing or unreadable, or whose last renewal failed,
    /// - whose record and CDI file were lost (`may_require_limit`), and whose GPUs' driver has since refused to limit cgroups.
    ///
    /// # Errors
    /// The records cannot be read.
    pub fn renew_cdi_files(&mut self, locked: &Locked) -> Result<BTreeMap<String, String>, Error> {
        self.begin_turn(locked)?;
        Ok(self.renew())
    }

    pub(super) fn renew(&mut self) -> BTreeMap<String, String> {
        let mut turn = Turn::start();
        let mut failed = BTreeMap::new();
        // Without the driver's files each claim fails, and says why.
        let driver = turn.driver(&self.driver).ok().cloned();
        let last = self.renewal.take();
        let same = last.as_ref().filter(|last| driver.as_ref() == Some(&last.driver));
        let (driver_limits, refused) = (self.driver_limits(), self.all_refused());
        let is_renewed = |uid: &String, known: &Entry| {
            same.is_some_and(|last| {
                let is_same = |share: &Share| last.driver_limits.get(&share.gpu) == driver_limits.get(&share.gpu);
                !last.failed.contains(uid) && last.refused.get(uid) == refused.get(uid) && known.all().all(is_same)
            })
        };
        for (uid, known) in self.checkpoint.claims.clone() {
            let mut entry = known.clone();
            let is_settled = self.settle_by_gpus(&mut entry);
            if !is_settled && is_renewed(&uid, &known) && self.has_files(&uid, &known) {
                continue;
            }
            match self.materialize(&uid, Some(&known), &mut entry, &mut turn) {
                Ok(()) => drop(self.checkpoint.claims.insert(uid, entry)),
                Err(error) => drop(failed.insert(uid, error.to_string())),
            }
        }
        let renewed = driver.map(|driver| Renewal {
            driver,
            failed: failed.keys().cloned().collect(),
            driver_limits,
            refused,
        });
        self.renewal = renewed.or(last);
        failed
    }

    /// Installs the library if it is not there.
    ///
    /// # Errors
    /// Why it cannot be installed.
    pub fn ensure_library(&mut self, _locked: &Locked) -> Result<(), Error> {
        self.library.ensure().map(|_| ()).map_err(Error::Library)
    }

    /// Removes releases of the library that no claim and no instance uses.
    pub fn remove_unused_releases(&mut self, locked: &Locked) {
        let removed = self.begin_turn(locked).map(|()| {
            let claims = self.checkpoint.claims.values();
            let used: Vec<&str> = claims.map(|entry| entry.library.as_str()).collect();
            self.library.keep(&used)
        });
        match removed {
            Ok(Ok(removed)) if removed.is_empty() => {}
            Ok(Ok(removed)) => tracing::info!(?removed, "removed releases of the library that nothing uses"),
            // A release that is not removed only takes disk space.
            Ok(Err(error)) => tracing::warn!(%error, "cannot remove a release of the library that nothing uses"),
            Err(error) => tracing::warn!(%error, "cannot tell which releases of the library are used"),
        }
    }

    /// By the UIDs of claims: why their containers may not start.
    fn all_refused(&self) -> BTreeMap<String, String> {
        let claims = self.checkpoint.claims.iter();
        claims
            .filter_map(|(uid, entry)| Some((uid.clone(), self.refused(entry)?)))
            .collect()
    }

    /// Whether the driver limits cgroups on each GPU of the node, by UUID.
    fn driver_limits(&self) -> BTreeMap<String, bool> {
        let listed = self.inventory().into_iter().flat_map(Inventory::by_index);
        let listed = listed.map(|(_, gpu)| gpu);
        // The GPUs of claims first, so that a newer answer of the list replaces theirs.
        let all = self.checkpoint.gpus.values().chain(listed);
        all.map(|gpu| (gpu.uuid.clone(), gpu.has_driver_limit())).collect()
    }

    fn has_files(&self, uid: &str, entry: &Entry) -> bool {
        let has_cdi_file = !self.cdi.mounted(uid).is_empty();
        // Names that are not valid make the renewal fail, which says so. Only whether files are there: those of a newer release
        // may say more.
        let metadata = self.metadata(uid, entry).ok().flatten().unwrap_or_default();
        let has_metadata = metadata.iter().all(|file| self.dirs.read_metadata(uid, file).is_some());
        has_cdi_file && has_metadata && self.dirs.record_path(uid).exists() && self.library.has(&entry.library)
    }
}

//! Recovers the state of a former instance at the start of the plugin.
//!
//! The first start writes an empty checkpoint, so that later a missing one is damage: missing at a start
//! while there are claim directories, or at any call of a running instance. A damaged checkpoint is moved
//! aside. In both cases it is rebuilt from this instance's memory and from the claim directories: from each
//! one's copy of its entry, else from its limits files, which have amounts and GPUs. So no prepared share is
//! forgotten and none is allocated twice. Files of claims without an entry were never reported to kubelet.
//! They are removed, but only if the checkpoint could be read or there never was one.

use super::lock::{LockFile, Locked};
use super::turn::Turn;
use super::{Error, Node, stopped};
use crate::arbitration::{Arbitration, SLOTS};
use crate::checkpoint::{Checkpoint, Damage, Entry, Held, Store};
use crate::claimdir::ClaimDirs;
use crate::config::Config;
use crate::crash_points::CrashPoints;
use crate::driver::Root;
use crate::edits;
use crate::library::Library;
use crate::share::ShareKeys;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

// === impl Node ===

impl Node {
    /// Opens the node and recovers what a former instance left. `locked` is the lock of `lock`.
    ///
    /// # Errors
    /// A folder cannot be created, listed or cleaned.
    pub fn open(
        config: Config,
        lock: LockFile,
        locked: &Locked,
        crash_points: Box<dyn CrashPoints>,
    ) -> Result<Self, Error> {
        let store = Store::new(config.checkpoint.clone());
        let library = Library::open(&config.library_dir, &config.library_store);
        let mut node = Self {
            root: Root {
                here: config.driver_root.clone(),
                host: config.driver_root_host.clone(),
                soft_gpu_state: config.soft_gpu_state.clone(),
            },
            dirs: ClaimDirs::new(config.claims_dir.clone(), config.ledger_tmpfs),
            arbitration: Arbitration::new(config.gpus_dir.clone(), config.ledger_tmpfs),
            cdi: vgpu_cdi::store::Dir::new(&config.cdi_dir, edits::kind()),
            library,
            store,
            lock,
            checkpoint: Checkpoint::default(),
            dormant: BTreeMap::new(),
            stamp: None,
            is_read: true,
            unsaved: false,
            inventory: Err("the plugin has just started".into()),
            contexts: BTreeMap::new(),
            stale_pages: BTreeSet::new(),
            ignored: ShareKeys::new(),
            prepared_at: BTreeMap::new(),
            damages: Vec::new(),
            not_unprepared: BTreeMap::new(),
            renewed_for: None,
            not_renewed: BTreeMap::new(),
            crash_points,
            config,
        };
        node.take_over(locked)?;
        Ok(node)
    }

    /// Takes the descriptions of the checkpoints that were found damaged since the last call.
    pub fn take_damages(&mut self) -> Vec<String> {
        std::mem::take(&mut self.damages)
    }

    fn take_over(&mut self, _locked: &Locked) -> Result<(), Error> {
        self.dirs.ensure_root()?;
        self.arbitration.ensure_root()?;
        match self.store.load() {
            Ok(Some(checkpoint)) => {
                self.adopt(checkpoint);
                self.stamp = self.store.stamp();
                self.remove_orphans()?;
            }
            Ok(None) if self.dirs.uids()?.is_empty() => {
                let saved = self.write_checkpoint();
                self.unless_crashed(saved)?;
                // CDI files on disk outlive a kubelet folder that was wiped.
                self.remove_orphans()?;
            }
            Ok(None) => self.rebuild(&Damage::Gone)?,
            Err(damage) => self.rebuild(&damage)?,
        }
        let swept = self.cdi.sweep()?;
        if swept > 0 {
            tracing::info!(swept, "removed temporary CDI files of a former instance");
        }
        if let Err(error) = self.renew(&mut Turn::default()) {
            tracing::warn!("CDI files of prepared claims are not renewed yet: {error}");
        }
        self.renew_node_pages()?;
        Ok(())
    }

    /// Goes on without a checkpoint that could not be saved: claims can be unprepared while the disk is full.
    fn unless_crashed(&mut self, saved: Result<(), Error>) -> Result<(), Error> {
        match saved {
            Err(error) if !stopped(&error) => {
                self.leave_unsaved(&error);
                Ok(())
            }
            saved => saved,
        }
    }

    fn remove_orphans(&mut self) -> Result<(), Error> {
        let mut found = self.dirs.uids()?;
        found.extend(self.cdi.ids()?);
        found.sort();
        found.dedup();
        found.retain(|uid| !self.checkpoint.claims.contains_key(uid));
        for uid in &found {
            // A crash leaves an entry complete or not at all. One that cannot be read belongs to a claim that
            // was prepared, for example by a later release, and a pod may use it. kubelet will unprepare it.
            if let Some(damage) = self.dirs.damaged_entry(uid) {
                tracing::warn!(
                    uid,
                    "the entry of a claim that may be in use {damage}; it is left alone"
                );
                continue;
            }
            tracing::info!(uid, "removing what a crash left of a claim that was not prepared");
            self.remove_files(uid)?;
        }
        Ok(())
    }

    /// Returns the release that a claim's CDI spec names, which must stay as long as its pod; else the
    /// current one.
    fn named_library(&self, uid: &str) -> String {
        let spec = self.cdi.read(uid).ok().flatten();
        let mounts = spec.map(|spec| spec.container_edits.mounts).unwrap_or_default();
        let named = mounts
            .iter()
            .find_map(|mount| self.library.release_of(Path::new(&mount.host_path)));
        named.unwrap_or_else(|| self.library.digest().unwrap_or_default().to_owned())
    }

    /// Moves the damaged file aside and writes a new one from memory and the claim directories.
    pub(super) fn rebuild(&mut self, damage: &Damage) -> Result<(), Error> {
        let path = self.store.path().display().to_string();
        let aside = match self.store.stamp() {
            None => String::new(),
            Some(_) => {
                // On a disk that cannot be written, the damaged file stays until it is replaced.
                let aside = self.store.set_aside().ok();
                aside.map_or_else(String::new, |aside| format!(", kept as {}", aside.display()))
            }
        };
        let known = std::mem::take(&mut self.checkpoint.claims);
        let (claims, lost) = rebuilt(&self.dirs, known, |uid| self.named_library(uid))?;
        self.checkpoint.claims = claims;
        let saved = self.save();
        self.unless_crashed(saved)?;
        let count = self.checkpoint.claims.len();
        let lost = match lost.len() {
            0 => String::new(),
            _ => format!("; {} cannot be recovered, remove their pods", lost.join(", ")),
        };
        let message = format!(
            "checkpoint {path} {damage}{aside}; rebuilt with {count} claims from {}{lost}",
            self.config.claims_dir.display()
        );
        tracing::error!("{message}");
        self.damages.push(message);
        Ok(())
    }
}

type Claims = BTreeMap<String, Entry>;

/// Returns the known entries and those of all other claim directories, and the UIDs and shares that cannot be
/// recovered. `library` returns the release to which a claim is bound.
fn rebuilt(dirs: &ClaimDirs, known: Claims, library: impl Fn(&str) -> String) -> Result<(Claims, Vec<String>), Error> {
    let mut claims = known;
    let mut lost = Vec::new();
    let mut without_entry: Vec<(String, Vec<Held>)> = Vec::new();
    for uid in dirs.uids()? {
        if claims.contains_key(&uid) {
            continue;
        }
        match dirs.read_entry(&uid) {
            Ok(entry) => drop(claims.insert(uid, entry)),
            Err(_) => {
                let (shares, missing) = dirs.read_shares(&uid);
                lost.extend(missing.iter().map(|share| format!("{uid}/{share}")));
                if !shares.is_empty() {
                    without_entry.push((uid, shares));
                } else if missing.is_empty() {
                    lost.push(uid);
                }
            }
        }
    }
    // After the others, so that no slot is assigned twice among the known ones. Limits files of version 1 do not say which
    // slots their shares had. Their containers keep them mounted, and at worst two shares use one slot.
    let named: Vec<(String, u8)> = without_entry
        .iter()
        .flat_map(|(_, shares)| shares)
        .filter_map(|held| Some((held.share.gpu.clone(), held.slot?)))
        .collect();
    for (uid, shares) in without_entry {
        let mut entry = Entry {
            namespace: String::new(),
            name: String::new(),
            library: library(&uid),
            shares: Vec::new(),
        };
        for Held { share, slot } in shares {
            let on_gpu = |slot: u8| (share.gpu.clone(), slot);
            let taken: Vec<u8> = claims
                .values()
                .chain([&entry])
                .flat_map(|entry| &entry.shares)
                .filter(|held| held.share.gpu == share.gpu)
                .filter_map(|held| held.slot)
                .collect();
            let is_free = |slot: &u8| !taken.contains(slot);
            let any = || {
                (0..SLOTS)
                    .rev()
                    .find(|slot| is_free(slot) && !named.contains(&on_gpu(*slot)))
            };
            let slot = slot.filter(is_free).or_else(any);
            entry.shares.push(Held { share, slot });
        }
        claims.insert(uid, entry);
    }
    Ok((claims, lost))
}

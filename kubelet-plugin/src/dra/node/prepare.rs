//! Prepares and unprepares claims.
//!
//! ```text
//!  Prepare    record with the same results ─► create what is missing ────────────► answer
//!             record with other results ─► unprepare it ─┐
//!             no record ─────────────────────────────────┴► room? ─► claim directory ─► arbitration ─► record
//!                                                          ─► CDI file ─► node page ─► answer
//!  Unprepare  CDI file ─► record ─► claim directory ─► node page      by UID alone, with or without a record
//! ```
//!
//! No container starts without a CDI file, so a claim that has a container has a record. Failure modes:
//! - A crash while preparing: nothing was answered. A claim directory without a record and without a CDI file is removed by
//!   the next start or completed by the next Prepare. A claim with a record is completed by the next start; kubelet prepares
//!   or unprepares it.
//! - A crash while unpreparing: kubelet's repeated call removes the rest. Until then a claim with a record has its CDI file.

use super::lock::Locked;
use super::parts::{Laps, Part, Parts};
use super::room::{self, Full};
use super::{Error, Node, Prepared, all_fail, check_uid, record_error, same_results};
use crate::arbitration::{self, Arbitration};
use crate::dra::checkpoint::{Checkpoint, Entry, Held};
use crate::dra::claim;
use crate::dra::edits::{self, Placed};
use crate::dra::records;
use crate::dra::share::{ClaimId, Role, Share, ShareKeys};
use crate::driver::{self, Driver, Finder};
use crate::publish::inventory::Gpu;
use k8s_openapi::api::resource::v1::ResourceClaim;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;
use vgpu_cdi::Spec;
use vgpu_context_size::ContextSize;

/// Why a claim has no room.
#[derive(Debug)]
pub struct NoRoom {
    pub full: Box<Full>,
    /// It would have room without the claims that are gone.
    pub without_gone: bool,
}

/// Values that are read once for all claims of a turn.
pub(super) struct Turn {
    driver: Option<Driver>,
    /// GPUs whose arbitration directories were completed in this turn.
    arbitrated: BTreeSet<String>,
    laps: Laps,
}

// === impl Node ===

impl Node {
    /// Prepares claims that were just read from the API server. Each succeeds or fails by itself. Also returns how long each
    /// part took.
    pub(crate) fn prepare(
        &mut self,
        locked: &Locked,
        batch: &[(ClaimId, ResourceClaim)],
    ) -> (Vec<Result<Vec<Prepared>, Error>>, Parts) {
        let mut turn = Turn::start();
        if let Err(error) = self.begin_turn(locked) {
            return (all_fail(batch.len(), error), turn.laps.parts);
        }
        turn.laps.end_of(Part::State);
        let mut answers: Vec<_> = batch
            .iter()
            .map(|(id, claim)| self.prepare_one(id, claim, &mut turn))
            .collect();
        if let Err(error) = self.write_node_pages(None) {
            fail_rest(&mut answers, error);
        }
        turn.laps.end_of(Part::Pages);
        (answers, turn.laps.parts)
    }

    /// Unprepares claims. Each succeeds or fails by itself; a claim that was never prepared succeeds.
    pub fn unprepare(&mut self, locked: &Locked, uids: &[&str]) -> Vec<Result<(), Error>> {
        if let Err(error) = self.begin_turn(locked) {
            return all_fail(uids.len(), error);
        }
        let answers: Vec<_> = uids.iter().map(|uid| self.remove(uid)).collect();
        self.write_node_pages_or_warn();
        answers
    }

    /// Prepares one claim. If it has the same shares already, only completes what is missing.
    fn prepare_one(&mut self, id: &ClaimId, claim: &ResourceClaim, turn: &mut Turn) -> Result<Vec<Prepared>, Error> {
        check_uid(&id.uid)?;
        let inventory = self.scanned.inventory.as_ref();
        let inventory = inventory.map_err(|why| Error::NoInventory(why.clone()))?;
        let shares = claim::shares(claim, &self.config.pools(), inventory)?;
        let known = match self.checkpoint.claims.get(&id.uid).cloned() {
            Some(known) if !same_results(&known.shares, &shares) => {
                // The pod was force-deleted, and another one got the claim.
                self.check_unused(&id.uid)?;
                self.remove(&id.uid)?;
                None
            }
            known => known,
        };
        let mut entry = match &known {
            Some(known) => known.clone(),
            None => self.admit(id, &shares)?,
        };
        // An entry that was rebuilt from limits files gets its names back.
        if entry.name != id.name || entry.shares.iter().any(|held| held.share.request.is_empty()) {
            entry.name_as(id, &shares);
        }
        entry.pods = claim::pods(claim);
        let made = self.materialize(&id.uid, known.as_ref(), &mut entry, turn);
        if let Err(error) = made {
            if known.is_none() {
                // Best effort: kubelet also unprepares a claim whose Prepare failed.
                let _ = self.remove_files(&id.uid);
            }
            return Err(error);
        }
        if known.is_none() {
            self.prepared_at.insert(id.uid.clone(), Instant::now());
        }
        self.checkpoint.claims.insert(id.uid.clone(), entry);
        self.note_gpus();
        Ok(self.answer(&id.uid, &shares))
    }

    /// Returns why a claim has no room now. `gone`: UIDs of prepared claims that will be unprepared soon. None: it has
    /// room, or cannot be prepared for another reason.
    ///
    /// # Errors
    /// The state cannot be read.
    pub fn no_room(
        &mut self,
        locked: &Locked,
        id: &ClaimId,
        claim: &ResourceClaim,
        gone: &BTreeSet<String>,
    ) -> Result<Option<NoRoom>, Error> {
        self.begin_turn(locked)?;
        let full = |gone: &dyn Fn(&String) -> bool| {
            let inventory = self.inventory()?;
            let shares = claim::shares(claim, &self.config.pools(), inventory).ok()?;
            let claims = self.checkpoint.claims.iter();
            let others = claims.filter(|(uid, _)| **uid != id.uid && !gone(uid));
            let others = Checkpoint {
                claims: others.map(|(uid, entry)| (uid.clone(), entry.clone())).collect(),
                ..Checkpoint::default()
            };
            match self.held(id, &others, &shares) {
                Err(Error::Full(full)) => Some(full),
                _ => None,
            }
        };
        Ok(full(&|_| false).map(|found| NoRoom {
            full: found,
            without_gone: full(&|uid| gone.contains(uid)).is_none(),
        }))
    }

    /// Returns an entry with a slot for each share, if all shares fit beside the prepared ones.
    pub(super) fn admit(&mut self, id: &ClaimId, shares: &[Share]) -> Result<Entry, Error> {
        let library = self.library.ensure().map_err(Error::Library)?.to_owned();
        Ok(Entry {
            namespace: id.namespace.clone(),
            name: id.name.clone(),
            library,
            shares: self.held(id, &self.checkpoint, shares)?,
            pods: Vec::new(),
        })
    }

    /// Returns a slot for each share of claim `id` that is not a monitor's, if all fit beside those of `prepared`.
    fn held(&self, id: &ClaimId, prepared: &Checkpoint, shares: &[Share]) -> Result<Vec<Held>, Error> {
        let nobody = ShareKeys::new();
        let unclaimed = self.unclaimed.as_ref().unwrap_or(&nobody);
        let inventory = self.scanned.inventory.as_ref();
        let inventory = inventory.map_err(|why| Error::NoInventory(why.clone()))?;
        let mut all = Vec::new();
        for share in shares {
            let slot = match share.role {
                Role::Monitor => None,
                Role::Share => {
                    let gpu = inventory
                        .gpu(&share.gpu)
                        .ok_or_else(|| Error::GpuGone(share.gpu.clone()))?;
                    if let Some(why) = inventory.unavailable(&gpu.uuid) {
                        return Err(Error::Unavailable {
                            device: share.device.clone(),
                            why: why.text(&gpu.uuid),
                        });
                    }
                    let slot = room::slot(prepared, &all, gpu, share, self.config.shares);
                    Some(slot.map_err(|full| full.for_reader(&id.namespace, unclaimed))?)
                }
            };
            all.push(Held {
                share: share.clone(),
                slot,
            });
        }
        Ok(all)
    }

    /// Refuses to give away shares of a claim's former allocation that a container has, or may have.
    fn check_unused(&self, uid: &str) -> Result<(), Error> {
        match (self.living)(&self.share_mounts(uid)) {
            Ok(living) => match living.into_iter().next() {
                None => Ok(()),
                Some((_, share)) => Err(Error::Used { share }),
            },
            Err(why) => Err(Error::UseUnknown(why)),
        }
    }

    /// Creates what is missing of a claim on the node. If the claim's library is gone, this also binds `entry` to the
    /// current one. `known` is the claim's recorded entry. None: the claim is new, so its slots are cleared of what a former
    /// owner left there.
    pub(super) fn materialize(
        &mut self,
        uid: &str,
        known: Option<&Entry>,
        entry: &mut Entry,
        turn: &mut Turn,
    ) -> Result<(), Error> {
        turn.laps.end_of(Part::State);
        turn.driver(&self.driver)?;
        turn.laps.end_of(Part::Driver);
        self.bind_library(uid, entry)?;
        let spec = self.spec(uid, entry, turn.driver(&self.driver)?)?;
        turn.laps.end_of(Part::Cdi);

        let (fixed, measured) = (self.config.context_reserve, &self.scanned.contexts);
        let reserve = |gpu: &str| match fixed {
            0 => measured.get(gpu).copied(),
            own => Some(ContextSize { own, unowned: 0 }),
        };
        self.dirs.ensure(uid, entry, &reserve)?;
        turn.laps.end_of(Part::Directory);
        for held in &entry.shares {
            let Some(slot) = held.slot else { continue };
            turn.arbitration(&self.arbitration, &held.share.gpu)?;
            if known.is_none() {
                self.arbitration.clear(&held.share.gpu, slot)?;
            }
        }
        turn.laps.end_of(Part::Arbitration);
        self.save(uid, known, entry)?;
        turn.laps.end_of(Part::Record);
        // A spec that differs is of an older driver, or damaged.
        self.cdi.update(&spec, uid)?;
        turn.laps.end_of(Part::Cdi);
        Ok(())
    }

    /// Binds a claim to the current library if its own is gone.
    fn bind_library(&mut self, uid: &str, entry: &mut Entry) -> Result<(), Error> {
        if self.library.has(&entry.library) {
            return Ok(());
        }
        let current = self.library.ensure().map_err(Error::Library)?;
        tracing::warn!(
            uid,
            lost = entry.library,
            bound = current,
            "library of a prepared claim is gone; it gets the current one"
        );
        entry.library = current.to_owned();
        Ok(())
    }

    /// The CDI spec that a claim should have.
    fn spec(&self, uid: &str, entry: &Entry, driver: &Driver) -> Result<Spec, Error> {
        let mut placed = Vec::new();
        for held in &entry.shares {
            let gpu = self.gpu(&held.share.gpu)?;
            placed.push(Placed {
                share: &held.share,
                slot: held.slot,
                nodes: self.driver.root().gpu_nodes(gpu, held.share.driver_capabilities)?,
                reported: held.share.reported(gpu),
            });
        }
        let inputs = edits::Inputs {
            claim_dir: &self.dirs.claim_path(uid),
            gpus_dir: &self.config.gpus_dir,
            library: &self.library.folder(&entry.library),
            driver,
            visible_devices: self.config.visible_devices,
        };
        Ok(edits::spec(&inputs, uid, &placed))
    }

    /// Returns a GPU as it was last seen. Before the first scan, those on which claims hold shares are known.
    fn gpu(&self, uuid: &str) -> Result<&Gpu, Error> {
        let seen = self.inventory().and_then(|inventory| inventory.gpu(uuid));
        let known = seen.or_else(|| self.checkpoint.gpus.get(uuid));
        known.ok_or_else(|| Error::GpuGone(uuid.to_owned()))
    }

    /// Writes the record of a claim, if it differs. If it cannot be written, as where `/run` is full, and only the claim's
    /// pods differ, the old record stays and that is no error.
    pub(super) fn save(&mut self, uid: &str, known: Option<&Entry>, entry: &Entry) -> Result<(), Error> {
        let held = entry.shares.iter().map(|held| &held.share.gpu);
        let gpus = held.filter_map(|uuid| Some((uuid.clone(), self.gpu(uuid).ok()?.clone())));
        let has_other_pods_alone = || {
            known.is_some_and(|known| {
                *known
                    == Entry {
                        pods: known.pods.clone(),
                        ..entry.clone()
                    }
            })
        };
        match records::save(&self.dirs, uid, entry, gpus.collect()) {
            Ok(_) => Ok(()),
            Err((path, error)) if has_other_pods_alone() => {
                tracing::debug!(uid, "{}: {error}", path.display());
                Ok(())
            }
            Err(error) => Err(record_error(error)),
        }
    }

    fn answer(&self, uid: &str, shares: &[Share]) -> Vec<Prepared> {
        let pools = self.config.pools();
        let device = |share: &Share| Prepared {
            request: share.base_request().to_owned(),
            pool: pools.of_device(&share.device).to_owned(),
            device: share.device.clone(),
            cdi_device: edits::qualified_name(uid, &share.name),
            share_id: share.share_id.clone(),
        };
        shares.iter().map(device).collect()
    }

    fn remove(&mut self, uid: &str) -> Result<(), Error> {
        check_uid(uid)?;
        self.remove_files(uid)?;
        self.prepared_at.remove(uid);
        if self.checkpoint.claims.remove(uid).is_some() {
            self.note_gpus();
        }
        Ok(())
    }

    pub(super) fn remove_files(&mut self, uid: &str) -> Result<(), Error> {
        // The CDI spec goes first, so that no container can start with files that are removed next.
        self.cdi.remove(uid)?;
        records::remove(&self.dirs, uid).map_err(record_error)?;
        self.dirs.remove(uid)?;
        Ok(())
    }
}

/// Fails the claims that succeeded, because the node pages lack them.
fn fail_rest<T>(answers: &mut [Result<T, Error>], error: Error) {
    let error = Arc::new(error);
    for answer in answers.iter_mut().filter(|answer| answer.is_ok()) {
        *answer = Err(Error::Shared(error.clone()));
    }
}

// === impl Turn ===

impl Turn {
    pub(super) fn start() -> Self {
        Self {
            driver: None,
            arbitrated: BTreeSet::new(),
            laps: Laps::start(),
        }
    }

    /// The driver's files, read once for this turn.
    pub(super) fn driver(&mut self, finder: &Finder) -> Result<&Driver, driver::Error> {
        if self.driver.is_none() {
            self.driver = Some(finder.read()?);
        }
        Ok(self.driver.as_ref().expect("it was just read"))
    }

    /// Completes a GPU's arbitration directory, once in this turn.
    fn arbitration(&mut self, all: &Arbitration, gpu: &str) -> Result<(), arbitration::Error> {
        if !self.arbitrated.contains(gpu) {
            all.ensure(gpu)?;
            self.arbitrated.insert(gpu.to_owned());
        }
        Ok(())
    }
}

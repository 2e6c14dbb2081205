//! Prepares and unprepares claims.
//!
//! ```text
//!  Prepare    record with the same results ─► create what is missing ────────────► answer
//!             record with other results ─► unprepare it ─┐
//!             no record ─────────────────────────────────┴► room? ─► arbitration ─► claim directory ─► record
//!                                                          ─► CDI file ─► node page ─► answer
//!  Unprepare  CDI file ─► record ─► claim directory ─► node page      by UID alone, with or without a record
//! ```
//!
//! No container starts without a CDI file, so a claim that has a container has a record. Failure modes:
//! - A crash while preparing: nothing was answered. A claim directory without a record and without a CDI file is removed by
//!   the next start or completed by the next Prepare. A claim with a record is completed by the next start; kubelet prepares
//!   or unprepares it.
//! - A crash while unpreparing: kubelet's repeated call removes the rest. Until then a claim with a record has its CDI file.

use super::room::{Full, holders};
use super::{Error, Node, Prepared, all_fail};
use crate::arbitration::{self, Arbitration, SLOTS};
use crate::dra::checkpoint::{Checkpoint, Entry, PreparedShare};
use crate::dra::claim;
use crate::dra::edits::{self, Placed};
use crate::dra::limit_hook;
use crate::dra::metadata;
use crate::dra::share::{ClaimId, Role, Share, ShareKeys};
use crate::driver::{self, Driver, Finder};
use crate::publish::inventory::{Gpu, Inventory, Unavailable};
use k8s_openapi::api::resource::v1::ResourceClaim;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vgpu_abi::limits::is_share_name;
use vgpu_abi::paths::DRIVER_LIMIT_FILE;
use vgpu_api::config::MemoryEnforcement;
use vgpu_api::request::CORES_MAX;
use vgpu_cdi::Spec;
use vgpu_context_size::ContextSize;
use vgpu_node::driver_limit::DriverLimit;
use vgpu_node::lock_file::Locked;
use vgpu_node::sealed::Damage;
use vgpu_quantity::{format_bytes, readable_bytes};

/// Why a claim has no room.
#[derive(Debug)]
pub struct NoRoom {
    pub full: Box<Full>,
    /// True if the claim will have room once the claims that are gone are unprepared.
    pub without_gone: bool,
}

/// Values that are read once for all claims of a turn.
pub(super) struct Turn {
    driver: Option<Driver>,
    /// GPUs whose arbitration directories were completed in this turn.
    arbitrated: BTreeSet<String>,
    parts: Parts,
    /// When the last part ended.
    last: Instant,
}

/// How long each part of a turn took, for the metric.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parts([Duration; PARTS.len()]);

/// A part of the work under the lock.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// The records, and room for the shares.
    State,
    /// The driver's files.
    Driver,
    /// The claim directories with their mounts.
    Directory,
    /// The arbitration directories.
    Arbitration,
    /// The CDI files.
    Cdi,
    /// The claims' records.
    Record,
    /// The node pages.
    Pages,
}

/// In the order of [`Part`].
const PARTS: [&str; 7] = ["state", "driver", "directory", "arbitration", "cdi", "record", "pages"];

/// The claim directories without a valid record.
#[derive(Default)]
pub(super) struct WithoutRecord {
    /// Their record is damaged, or it is gone and the CDI file is not: a pod may use them.
    pub(super) lost: BTreeMap<String, Option<Damage>>,
    /// Claims that are not prepared.
    pub(super) orphans: Vec<String>,
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
            return (all_fail(batch.len(), error), turn.parts);
        }
        turn.end_of(Part::State);
        let mut answers: Vec<_> = batch
            .iter()
            .map(|(id, claim)| self.prepare_one(id, claim, &mut turn))
            .collect();
        if let Err(error) = self.write_node_pages(None) {
            fail_rest(&mut answers, error);
        }
        turn.end_of(Part::Pages);
        (answers, turn.parts)
    }

    /// Reads the records of the claims. `locked` proves that no other instance has a turn now.
    pub(super) fn begin_turn(&mut self, _locked: &Locked) -> Result<(), Error> {
        self.read_records().map(drop)
    }

    /// Reads which claims are prepared, and rebuilds lost records.
    pub(super) fn read_records(&mut self) -> Result<WithoutRecord, Error> {
        let mut without = WithoutRecord::default();
        self.checkpoint = Checkpoint::default();
        for (uid, record) in self.dirs.records()? {
            match record {
                Some(Ok(record)) => {
                    self.checkpoint.gpus.extend(record.gpus);
                    self.checkpoint.claims.insert(uid, record.claim);
                }
                Some(Err(damage)) => drop(without.lost.insert(uid, Some(damage))),
                None if self.cdi.file(&uid).is_ok_and(|file| file.exists()) => drop(without.lost.insert(uid, None)),
                None => without.orphans.push(uid),
            }
        }
        if !(without.lost.is_empty() && self.damages.lasting.is_empty()) {
            self.rebuild_lost(&without.lost);
        }
        self.prepared_at
            .retain(|uid, _| self.checkpoint.claims.contains_key(uid));
        self.note_gpus();
        self.begin_instances();
        Ok(without)
    }

    /// Notes the GPUs of which claims have shares now.
    pub(super) fn note_gpus(&mut self) {
        let shares = self.checkpoint.claims.values().flat_map(Entry::all);
        let in_use: BTreeSet<String> = shares.map(|share| share.gpu.clone()).collect();
        let mut gpus = mem::take(&mut self.checkpoint.gpus);
        gpus.retain(|uuid, _| in_use.contains(uuid));
        if let Ok(inventory) = &self.scanned.inventory {
            let known = in_use.iter().filter_map(|uuid| inventory.gpu(uuid));
            gpus.extend(known.map(|gpu| (gpu.uuid.clone(), gpu.clone())));
        }
        self.checkpoint.gpus = gpus;
        self.note_made();
    }

    /// Unprepares claims. Each succeeds or fails by itself; a claim that was never prepared succeeds.
    pub fn unprepare(&mut self, locked: &Locked, uids: &[&str]) -> Vec<Result<(), Error>> {
        if let Err(error) = self.begin_turn(locked) {
            return all_fail(uids.len(), error);
        }
        let answers: Vec<_> = uids
            .iter()
            .map(|uid| self.remove(uid).map(|()| self.release_instances(uid)))
            .collect();
        self.write_node_pages_or_warn();
        answers
    }

    /// Prepares one claim. If it has the same shares already, only completes what is missing.
    fn prepare_one(&mut self, id: &ClaimId, claim: &ResourceClaim, turn: &mut Turn) -> Result<Vec<Prepared>, Error> {
        check_uid(&id.uid)?;
        self.release_former(id, claim)?;
        let made = self.make_instances(id, claim);
        let prepared = made.and_then(|()| self.prepare_shares(id, claim, turn));
        if prepared.is_err() && !self.checkpoint.claims.contains_key(&id.uid) && !self.awaits_answer(&id.uid) {
            self.release_instances(&id.uid);
        }
        prepared
    }

    /// Prepares a claim whose instances are there.
    fn prepare_shares(&mut self, id: &ClaimId, claim: &ResourceClaim, turn: &mut Turn) -> Result<Vec<Prepared>, Error> {
        let inventory = self.scanned.inventory.as_ref();
        let inventory = inventory.map_err(|why| Error::NoInventory(why.clone()))?;
        let (shares, pods) = (
            claim::shares(claim, &self.config.pools(), inventory)?,
            claim::pods(claim),
        );
        check_driver_limits(&shares, inventory)?;
        for share in &shares {
            // Its container would get the capability nodes of the instance that has come in its place.
            if let Some(why @ Unavailable::Replaced(_)) = inventory.unavailable(&share.gpu) {
                return Err(unavailable(share, why));
            }
        }
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
        // A release that does not know the field has written the record without it, as after a rollback.
        for prepared in &mut entry.shares {
            if let Some(fresh) = shares.iter().find(|share| share.same_result(&prepared.share)) {
                prepared.share.memory_enforcement = fresh.memory_enforcement;
            }
        }
        entry.may_require_limit = false;
        // An entry that was rebuilt from limits files gets its names back.
        if entry.name != id.name || entry.all().any(|share| share.request.is_empty()) {
            entry.name_as(id, &shares);
        }
        entry.named_by = Some(claim::named_by(claim));
        entry.pods = pods;
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
            match self.with_slots(id, &others, &shares) {
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
    fn admit(&mut self, id: &ClaimId, shares: &[Share]) -> Result<Entry, Error> {
        let library = self.library.ensure().map_err(Error::Library)?.to_owned();
        Ok(Entry {
            namespace: id.namespace.clone(),
            name: id.name.clone(),
            library,
            shares: self.with_slots(id, &self.checkpoint, shares)?,
            named_by: None,
            pods: Vec::new(),
            may_require_limit: false,
        })
    }

    /// Returns a slot for each share of claim `id` that is not a monitor's, if all fit beside those of `prepared`.
    fn with_slots(&self, id: &ClaimId, prepared: &Checkpoint, shares: &[Share]) -> Result<Vec<PreparedShare>, Error> {
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
                    let overlapping = || overlapping(prepared, &all, inventory, gpu);
                    if let Some(why) = inventory.unavailable(&gpu.uuid).cloned().or_else(overlapping) {
                        return Err(unavailable(share, &why));
                    }
                    let slot = slot(prepared, &all, gpu, share, self.config.shares);
                    Some(slot.map_err(|full| full.for_reader(&id.namespace, unclaimed))?)
                }
            };
            all.push(PreparedShare {
                share: share.clone(),
                slot,
            });
        }
        Ok(all)
    }

    /// Refuses to give away shares of a claim's former allocation that a container has, or may have.
    pub(super) fn check_unused(&self, uid: &str) -> Result<(), Error> {
        match (self.living)(&self.share_mounts(uid)) {
            Ok(living) => match living.into_iter().next() {
                None => Ok(()),
                Some((_, share)) => Err(Error::Used { share }),
            },
            Err(why) => Err(Error::UseUnknown(why)),
        }
    }

    /// Creates what is missing of a claim on the node. `known` is the claim's recorded entry; if its library is gone, this also
    /// binds `entry` to the current one. None: the claim is new and bound already, and its slots are cleared of what a former
    /// owner left there.
    pub(super) fn materialize(
        &mut self,
        uid: &str,
        known: Option<&Entry>,
        entry: &mut Entry,
        turn: &mut Turn,
    ) -> Result<(), Error> {
        turn.end_of(Part::State);
        turn.driver(&self.driver)?;
        turn.end_of(Part::Driver);
        if known.is_some() {
            self.bind_library(uid, entry)?;
        }
        let metadata = self.metadata(uid, entry)?;
        let mounted = metadata.as_deref().unwrap_or_default();
        let spec = self.spec(uid, entry, mounted, turn.driver(&self.driver)?)?;
        turn.end_of(Part::Cdi);

        for PreparedShare { share, slot } in &entry.shares {
            let Some(slot) = *slot else { continue };
            turn.arbitration(&self.arbitration, &share.gpu)?;
            if known.is_none() {
                self.arbitration.clear(&share.gpu, slot)?;
            }
        }
        turn.end_of(Part::Arbitration);
        let (fixed, measured) = (self.config.context_reserve, &self.scanned.contexts);
        let reserve = |gpu: &str| match fixed {
            0 => measured.get(gpu).copied(),
            own => Some(ContextSize { own, unowned: 0 }),
        };
        self.dirs.ensure(uid, entry, &reserve)?;
        if let Some(files) = &metadata {
            self.dirs.ensure_metadata(uid, files, known.is_none())?;
        }
        turn.end_of(Part::Directory);
        self.save(uid, known, entry)?;
        turn.end_of(Part::Record);
        // A spec that differs is of an older driver, or damaged.
        self.cdi.update(&spec, uid)?;
        turn.end_of(Part::Cdi);
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

    /// The metadata that a claim should have. None: it is not known by which name pods find the claim, or none is wanted.
    pub(super) fn metadata(&self, uid: &str, entry: &Entry) -> Result<Option<Vec<metadata::File>>, Error> {
        let Some(named_by) = entry.named_by.as_ref().filter(|_| self.config.device_metadata) else {
            return Ok(None);
        };
        let shares = entry.all().map(|share| Ok((share, self.gpu(&share.gpu)?)));
        let shares = shares.collect::<Result<Vec<_>, Error>>()?;
        let files = metadata::files(&entry.id(uid), named_by, &shares, &self.config.pools())?;
        Ok(Some(files))
    }

    /// The CDI spec that a claim should have.
    fn spec(&self, uid: &str, entry: &Entry, metadata: &[metadata::File], driver: &Driver) -> Result<Spec, Error> {
        let (mut placed, mut on_gpus) = (Vec::new(), Vec::new());
        for PreparedShare { share, slot } in &entry.shares {
            let gpu = self.gpu(&share.gpu)?;
            on_gpus.push((share, gpu));
            placed.push(Placed {
                share,
                slot: *slot,
                nodes: self.driver.root().gpu_nodes(gpu, share.driver_capabilities)?,
                reported: share.reported(gpu),
            });
        }
        let library = self.library.folder(&entry.library);
        // A claim of an older release is bound to a library without this program. It could not require the limit.
        let is_there = |command: &limit_hook::Command| {
            *command == limit_hook::Command::Set { is_required: true } || library.join(DRIVER_LIMIT_FILE).exists()
        };
        let command = limit_hook::command(&on_gpus).filter(is_there);
        let alone = on_gpus.iter().find(|(_, gpu)| claim::must_be_alone(gpu));
        let refused = self.refused(entry);
        let inputs = edits::Inputs {
            claim_dir: &self.dirs.claim_path(uid),
            gpus_dir: &self.config.gpus_dir,
            library: &library,
            driver,
            visible_devices: self.config.visible_devices,
            metadata,
            driver_limit: command.map(|command| (command, self.config.driver_limits_dir.as_path())),
            alone: alone.map(|(_, gpu)| gpu.driver_version.as_str()),
            refused: refused.as_deref(),
        };
        Ok(edits::spec(&inputs, uid, &placed))
    }

    /// Returns why no container of a claim may start any more: it would find the instance that has come in the place of the claim's.
    pub(super) fn refused(&self, entry: &Entry) -> Option<String> {
        let inventory = self.inventory()?;
        entry.all().find_map(|share| match inventory.unavailable(&share.gpu)? {
            why @ Unavailable::Replaced(_) => Some(why.text(&share.gpu)),
            _ => None,
        })
    }

    /// Returns a GPU as it was last seen. Before the first scan, those of which claims have shares are known.
    fn gpu(&self, uuid: &str) -> Result<&Gpu, Error> {
        let seen = self.inventory().and_then(|inventory| inventory.gpu(uuid));
        let known = seen.or_else(|| self.checkpoint.gpus.get(uuid));
        known.ok_or_else(|| Error::GpuGone(uuid.to_owned()))
    }

    /// Writes the record of a claim if it has changed. If it cannot be written, for example because `/run` is full, but
    /// only the claim's pods have changed, the old record stays and this is no error.
    pub(super) fn save(&mut self, uid: &str, known: Option<&Entry>, entry: &Entry) -> Result<(), Error> {
        let gpus = entry.all().filter_map(|share| self.gpu(&share.gpu).ok());
        let gpus = gpus.map(|gpu| (gpu.uuid.clone(), gpu.clone()));
        let has_other_pods_alone = |known: &Entry| {
            let pods = known.pods.clone();
            *known == Entry { pods, ..entry.clone() }
        };
        match self.dirs.save_record(uid, entry, gpus.collect()) {
            Ok(_) => Ok(()),
            Err(error) if known.is_some_and(has_other_pods_alone) => {
                tracing::debug!(uid, "{error}");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn answer(&self, uid: &str, shares: &[Share]) -> Vec<Prepared> {
        let pools = self.config.pools();
        let device = |share: &Share| Prepared {
            request: share.base_request().to_owned(),
            pool: pools.of_device(&share.device),
            device: share.device.clone(),
            cdi_device: edits::qualified_name(uid, &share.name),
            share_id: share.share_id.clone(),
        };
        shares.iter().map(device).collect()
    }

    pub(super) fn remove(&mut self, uid: &str) -> Result<(), Error> {
        check_uid(uid)?;
        self.keep_not_started(uid);
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

/// Returns a free slot of `gpu` if memory, cores and the number of shares allow `share`, beside those in the checkpoint and
/// those of its own claim, `own`. The scheduler has checked already; its sum differs from the node's after a pod was
/// force-deleted, and if two programs write allocations, which the API server does not prevent.
///
/// # Errors
/// The capacity that is not sufficient, and the claims that use it.
fn slot(
    checkpoint: &Checkpoint,
    own: &[PreparedShare],
    gpu: &Gpu,
    share: &Share,
    max_shares: u32,
) -> Result<u8, Box<Full>> {
    let all = checkpoint.claims.values().flat_map(|entry| &entry.shares).chain(own);
    let on_gpu = all.filter(|prepared| prepared.share.gpu == gpu.uuid);
    let (mut memory, mut cores, mut slots) = (0_u64, 0_u32, Vec::new());
    for PreparedShare { share, slot } in on_gpu {
        memory += share.memory;
        cores += share.cores;
        slots.extend(*slot);
    }
    let full = |what, wanted, prepared, total| {
        Err(Box::new(Full {
            device: share.device.clone(),
            what,
            wanted,
            prepared,
            total,
            holders: holders(checkpoint, &gpu.uuid),
            reader: String::new(),
        }))
    };
    if memory.saturating_add(share.memory) > gpu.memory {
        let (wanted, prepared) = (format_bytes(share.memory), readable_bytes(memory));
        return full("memory", wanted, prepared, readable_bytes(gpu.memory));
    }
    if cores.saturating_add(share.cores) > CORES_MAX {
        let (wanted, prepared) = (format!("{} cores", share.cores), cores.to_string());
        return full("cores", wanted, prepared, CORES_MAX.to_string());
    }
    let limit = max_shares.min(u32::from(SLOTS));
    let free = (0..SLOTS).find(|slot| !slots.contains(slot));
    match free.filter(|_| slots.len() < limit as usize) {
        Some(slot) => Ok(slot),
        None => full(
            "shares",
            "another share".into(),
            slots.len().to_string(),
            limit.to_string(),
        ),
    }
}

/// Returns a device that claims have, `own` being the shares of this claim, and that excludes `gpu`. The published devices exclude
/// each other too, but a scan may be some seconds old.
fn overlapping(prepared: &Checkpoint, own: &[PreparedShare], inventory: &Inventory, gpu: &Gpu) -> Option<Unavailable> {
    let of_others = prepared.in_use().into_iter().filter(|one| one.has_shares);
    let of_claim = own.iter().filter_map(|prepared| inventory.gpu(&prepared.share.gpu));
    let mut all = of_others.map(|one| one.gpu).chain(of_claim.cloned());
    let other = all.find(|other| gpu.is_excluded_by(other))?;
    Some(Unavailable::Overlap(other.uuid.clone()))
}

fn unavailable(share: &Share, why: &Unavailable) -> Error {
    Error::Unavailable {
        device: share.device.clone(),
        why: why.text(&share.gpu),
    }
}

pub(super) fn same_results(prepared: &[PreparedShare], shares: &[Share]) -> bool {
    let is_same = |(prepared, share): (&PreparedShare, &Share)| prepared.share.same_result(share);
    prepared.len() == shares.len() && prepared.iter().zip(shares).all(is_same)
}

/// Refuses a share that requires the driver's limit on a GPU where there is none. Its containers would not start either.
pub(super) fn check_driver_limits(shares: &[Share], inventory: &Inventory) -> Result<(), Error> {
    let requiring = |share: &&Share| share.memory_enforcement == MemoryEnforcement::Require;
    for share in shares.iter().filter(requiring) {
        let known = inventory.gpu(&share.gpu).and_then(|gpu| gpu.driver_limit.as_ref());
        let why = match known {
            Some(DriverLimit::Dmem | DriverLimit::Misc) => continue,
            Some(DriverLimit::None(why)) => why.clone(),
            Some(DriverLimit::Unknown(why)) => {
                format!("it did not answer when it was last asked ({why}); kubelet retries")
            }
            None => "it was not asked yet; kubelet retries".to_owned(),
        };
        return Err(Error::NoDriverLimit {
            device: share.device.clone(),
            why,
        });
    }
    Ok(())
}

/// Accepts only UIDs that are safe as the name of a folder or file.
fn check_uid(uid: &str) -> Result<(), Error> {
    match is_share_name(uid) {
        true => Ok(()),
        false => Err(Error::Uid(uid.to_owned())),
    }
}

// === impl Turn ===

impl Turn {
    pub(super) fn start() -> Self {
        Self {
            driver: None,
            arbitrated: BTreeSet::new(),
            parts: Parts::default(),
            last: Instant::now(),
        }
    }

    /// Adds the time since the last call to a part.
    fn end_of(&mut self, part: Part) {
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
    fn arbitration(&mut self, all: &Arbitration, gpu: &str) -> Result<(), arbitration::Error> {
        if !self.arbitrated.contains(gpu) {
            all.ensure(gpu)?;
            self.arbitrated.insert(gpu.to_owned());
        }
        Ok(())
    }
}

// === impl Parts ===

impl Parts {
    /// Each part by its name.
    pub fn by_name(&self) -> impl Iterator<Item = (&'static str, Duration)> {
        PARTS.into_iter().zip(self.0)
    }
}

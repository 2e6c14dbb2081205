//! The node's state machine: what is prepared, and how it becomes so and ceases to be.
//!
//! ```text
//!  Prepare    entry with the same results ─► make what is missing ───────────────► answer
//!             entry with others ─► unprepare it ─┐
//!             none ──────────────────────────────┴► room? ─► claim directory ─► arbitration
//!                                                    ─► CDI ─► checkpoint ────────► answer
//!  Unprepare  CDI ─► claim directory ─► checkpoint      by UID alone, entry or not
//! ```
//!
//! Synchronous and owned by one mutex: a caller that goes away cannot stop it half-way. Crash
//! between any two steps: before the checkpoint is written nothing was answered, so what lies
//! around is an orphan, removed by the next start or made whole by the next Prepare; while
//! unpreparing the entry is still there, and kubelet asks again. Two instances during a rolling
//! update: each call holds the lock file and reads the checkpoint again if the other wrote it.
//! A batch writes the checkpoint once, after all of its claims.

mod recover;
pub mod room;
mod shared;
#[cfg(test)]
pub(crate) mod tests;
mod turn;

use crate::arbitration::{self, Arbitration};
use crate::checkpoint::{Checkpoint, Damage, Entry, Held, Stamp, Store};
use crate::claim;
use crate::claimdir::{self, ClaimDirs};
use crate::config::Config;
use crate::driver::{self, Root};
use crate::edits::{self, Placed};
use crate::inventory::{Gpu, Inventory};
use crate::library::Library;
use crate::share::{ClaimId, Role, Share};
use crate::steps::{Steps, Stopped};
use k8s_openapi::api::resource::v1::ResourceClaim;
use room::Full;
pub use shared::SharedNode;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use turn::{Locked, Turn};
use vgpu_abi::limits::is_share_name;

/// One device as kubelet is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    pub request: String,
    pub pool: String,
    pub device: String,
    pub cdi_device: String,
    pub share_id: Option<String>,
}

/// Why a claim cannot be prepared or unprepared.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("uid {0:?} is not a claim's UID")]
    Uid(String),
    #[error("the node's GPUs are not known yet: {0}; kubelet asks again")]
    NoInventory(String),
    #[error(transparent)]
    Claim(#[from] claim::Error),
    #[error(transparent)]
    Full(#[from] Box<Full>),
    #[error("GPU {0} is not in the driver's list any more; check nvidia-smi on the node")]
    GpuGone(String),
    #[error(transparent)]
    Driver(#[from] driver::Error),
    #[error(transparent)]
    ClaimDir(#[from] claimdir::Error),
    #[error(transparent)]
    Arbitration(#[from] arbitration::Error),
    #[error(transparent)]
    Cdi(#[from] vgpu_cdi::store::Error),
    #[error("checkpoint {}: {source}; kubelet asks again", path.display())]
    Checkpoint { path: PathBuf, source: io::Error },
    /// Of a whole call.
    #[error(transparent)]
    Shared(Arc<Error>),
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// What is prepared on this node.
pub struct Node {
    config: Config,
    root: Root,
    dirs: ClaimDirs,
    arbitration: Arbitration,
    cdi: vgpu_cdi::store::Dir,
    library: Library,
    store: Store,
    /// Held during each call: the other side of a rolling update waits.
    lock: File,
    checkpoint: Checkpoint,
    /// The state of the file that `checkpoint` equals; `None` if they may differ.
    stamp: Option<Stamp>,
    inventory: Result<Inventory, String>,
    /// Checkpoints that were found damaged, not yet told to anybody.
    damages: Vec<String>,
    steps: Box<dyn Steps>,
}

// === impl Node ===

impl Node {
    pub fn set_inventory(&mut self, inventory: Result<Inventory, String>) {
        self.inventory = inventory;
    }

    #[must_use]
    pub fn claims(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// GPUs of which claims hold shares, as they were published, be they still there or not.
    #[must_use]
    pub fn held_gpus(&self) -> Vec<Gpu> {
        let mut gpus: Vec<Gpu> = self.checkpoint.gpus.values().cloned().collect();
        gpus.sort_by_key(|gpu| gpu.index);
        gpus
    }

    /// Name of this node's pool of devices.
    #[must_use]
    pub fn pool(&self) -> String {
        self.config.pool()
    }

    #[must_use]
    pub fn dirs(&self) -> &ClaimDirs {
        &self.dirs
    }

    /// Reads the checkpoint again before the next call.
    pub fn forget(&mut self) {
        self.stamp = None;
    }

    /// Prepares claims that were just read from the API server, each for itself.
    pub fn prepare(&mut self, batch: &[(ClaimId, ResourceClaim)]) -> Vec<Result<Vec<Prepared>, Error>> {
        let mut turn = match self.enter() {
            Ok(turn) => turn,
            Err(error) => return all_fail(batch.len(), error),
        };
        let answers = batch
            .iter()
            .map(|(id, claim)| self.prepare_one(id, claim, &mut turn))
            .collect();
        self.leave(&turn, answers)
    }

    /// Unprepares claims, each for itself; one that was never prepared is done at once.
    pub fn unprepare(&mut self, uids: &[&str]) -> Vec<Result<(), Error>> {
        let mut turn = match self.enter() {
            Ok(turn) => turn,
            Err(error) => return all_fail(uids.len(), error),
        };
        let answers = uids.iter().map(|uid| self.remove(uid, &mut turn)).collect();
        self.leave(&turn, answers)
    }

    fn prepare_one(&mut self, id: &ClaimId, claim: &ResourceClaim, turn: &mut Turn) -> Result<Vec<Prepared>, Error> {
        check_uid(&id.uid)?;
        let inventory = self.inventory.as_ref().map_err(|why| Error::NoInventory(why.clone()))?;
        let shares = claim::shares(claim, &self.config.pool(), inventory)?;
        if let Some(entry) = self.checkpoint.claims.get(&id.uid) {
            if same_results(&entry.shares, &shares) {
                let mut entry = entry.clone();
                // One that was rebuilt from limits files learns its names again.
                if entry.name != id.name || entry.shares.iter().any(|held| held.share.request.is_empty()) {
                    for (held, share) in entry.shares.iter_mut().zip(&shares) {
                        held.share = share.clone();
                    }
                    (entry.namespace, entry.name) = (id.namespace.clone(), id.name.clone());
                    turn.dirty = true;
                }
                let library = entry.library.clone();
                self.materialize(&id.uid, &mut entry, false, turn)?;
                // Bound anew, and the next start must not remove what it is bound to.
                turn.dirty |= entry.library != library;
                let answer = self.answer(&id.uid, &shares);
                self.checkpoint.claims.insert(id.uid.clone(), entry);
                return Ok(answer);
            }
            // The pod was force-deleted and another one got the claim: what it held before is gone.
            self.remove(&id.uid, turn)?;
        }
        let mut entry = self.admit(id, &shares)?;
        if let Err(error) = self.materialize(&id.uid, &mut entry, true, turn) {
            if !stopped(&error) {
                // Best effort: kubelet unprepares a claim whose Prepare failed, too.
                let _ = self.remove_files(&id.uid);
            }
            return Err(error);
        }
        let answer = self.answer(&id.uid, &shares);
        self.checkpoint.claims.insert(id.uid.clone(), entry);
        turn.dirty = true;
        Ok(answer)
    }

    /// An entry with a slot for each share, if all fit beside what is prepared.
    fn admit(&self, id: &ClaimId, shares: &[Share]) -> Result<Entry, Error> {
        let inventory = self.inventory.as_ref().map_err(|why| Error::NoInventory(why.clone()))?;
        let mut entry = Entry {
            namespace: id.namespace.clone(),
            name: id.name.clone(),
            library: self.library.digest().to_owned(),
            shares: Vec::new(),
        };
        for share in shares {
            let slot = match share.role {
                Role::Monitor => None,
                Role::Share => {
                    let gpu = inventory
                        .gpu(&share.gpu)
                        .ok_or_else(|| Error::GpuGone(share.gpu.clone()))?;
                    Some(room::slot(
                        &self.checkpoint,
                        &entry.shares,
                        gpu,
                        share,
                        self.config.shares,
                    )?)
                }
            };
            entry.shares.push(Held {
                share: share.clone(),
                slot,
            });
        }
        Ok(entry)
    }

    /// Makes what is missing of a claim on the machine. `new`: its slots may hold others' demand.
    fn materialize(&mut self, uid: &str, entry: &mut Entry, new: bool, turn: &mut Turn) -> Result<(), Error> {
        let inventory = self.inventory.as_ref().map_err(|why| Error::NoInventory(why.clone()))?;
        let driver = turn.driver(&self.root)?;
        let bound = self.library.bound(&entry.library).to_owned();
        if bound != entry.library {
            tracing::warn!(
                uid,
                lost = entry.library,
                bound,
                "library of a prepared claim is gone; it gets the current one"
            );
            entry.library = bound;
        }
        let mut placed = Vec::new();
        for held in &entry.shares {
            let gpu = inventory
                .gpu(&held.share.gpu)
                .ok_or_else(|| Error::GpuGone(held.share.gpu.clone()))?;
            placed.push(Placed {
                share: &held.share,
                slot: held.slot,
                gpu_node: self.root.gpu_node(gpu.minor)?,
            });
        }
        let claim_dir = self.dirs.of(uid);
        let library = self.library.folder(&entry.library);
        let node = edits::Node {
            claim_dir: &claim_dir,
            gpus_dir: &self.config.gpus_dir,
            library: &library,
            driver,
        };
        let spec = edits::spec(&node, uid, &placed);

        self.dirs
            .ensure(uid, entry, self.config.context_reserve, self.steps.as_mut())?;
        for held in &entry.shares {
            let Some(slot) = held.slot else { continue };
            turn.arbitration(&self.arbitration, &held.share.gpu)?;
            if new {
                self.arbitration.clear(&held.share.gpu, slot)?;
            }
        }
        self.steps.reached("arbitration")?;
        // One that says something else is of an older driver; one that cannot be read is no spec.
        if !matches!(self.cdi.read(uid), Ok(Some(found)) if found == spec) {
            self.cdi.write(&spec, uid)?;
            self.steps.reached("CDI spec")?;
        }
        Ok(())
    }

    fn answer(&self, uid: &str, shares: &[Share]) -> Vec<Prepared> {
        let pool = self.config.pool();
        let device = |share: &Share| Prepared {
            request: share.base_request().to_owned(),
            pool: pool.clone(),
            device: share.device.clone(),
            cdi_device: edits::qualified_name(uid, &share.name),
            share_id: share.share_id.clone(),
        };
        shares.iter().map(device).collect()
    }

    fn remove(&mut self, uid: &str, turn: &mut Turn) -> Result<(), Error> {
        check_uid(uid)?;
        self.remove_files(uid)?;
        if self.checkpoint.claims.remove(uid).is_some() {
            turn.dirty = true;
        }
        Ok(())
    }

    fn remove_files(&mut self, uid: &str) -> Result<(), Error> {
        // First, so that no container can be started with what goes next.
        self.cdi.remove(uid)?;
        self.steps.reached("CDI spec removed")?;
        self.dirs.remove(uid, self.steps.as_mut())?;
        Ok(())
    }

    fn save(&mut self) -> Result<(), Error> {
        self.note_gpus();
        let saved = self.store.save(&self.checkpoint);
        saved.map_err(|source| self.checkpoint_error(source))?;
        self.stamp = self.store.stamp();
        Ok(self.steps.reached("checkpoint")?)
    }

    fn note_gpus(&mut self) {
        let shares = self.checkpoint.claims.values().flat_map(|entry| &entry.shares);
        let held: BTreeSet<String> = shares.map(|held| held.share.gpu.clone()).collect();
        let mut gpus = std::mem::take(&mut self.checkpoint.gpus);
        gpus.retain(|uuid, _| held.contains(uuid));
        if let Ok(inventory) = &self.inventory {
            let known = held.iter().filter_map(|uuid| inventory.gpu(uuid));
            gpus.extend(known.map(|gpu| (gpu.uuid.clone(), gpu.clone())));
        }
        self.checkpoint.gpus = gpus;
    }

    /// Takes the lock, and reads the checkpoint again if another instance wrote it.
    fn enter(&mut self) -> Result<Turn, Error> {
        let lock = self.lock.try_clone().and_then(Locked::take);
        let turn = Turn::new(lock.map_err(|source| self.checkpoint_error(source))?);
        if self.stamp.is_none() || self.stamp != self.store.stamp() {
            match self.store.load() {
                Ok(Some(loaded)) => self.checkpoint = loaded,
                // It was there when this instance started; what it said is still held.
                Ok(None) => self.rebuild(&Damage::Gone)?,
                Err(damage) => self.rebuild(&damage)?,
            }
            self.stamp = self.store.stamp();
        }
        Ok(turn)
    }

    /// Saves what the turn changed; what cannot be saved was not done.
    fn leave<T>(&mut self, turn: &Turn, mut answers: Vec<Result<T, Error>>) -> Vec<Result<T, Error>> {
        if turn.dirty
            && let Err(error) = self.save()
        {
            self.stamp = None;
            fail_rest(&mut answers, error);
        }
        answers
    }

    fn checkpoint_error(&self, source: io::Error) -> Error {
        Error::Checkpoint {
            path: self.store.path().to_path_buf(),
            source,
        }
    }
}

/// The same error for every claim of a call.
fn all_fail<T>(count: usize, error: Error) -> Vec<Result<T, Error>> {
    let error = Arc::new(error);
    (0..count).map(|_| Err(Error::Shared(error.clone()))).collect()
}

/// What was not saved was not done.
fn fail_rest<T>(answers: &mut [Result<T, Error>], error: Error) {
    let error = Arc::new(error);
    for answer in answers.iter_mut().filter(|answer| answer.is_ok()) {
        *answer = Err(Error::Shared(error.clone()));
    }
}

fn same_results(held: &[Held], shares: &[Share]) -> bool {
    held.len() == shares.len()
        && held
            .iter()
            .zip(shares)
            .all(|(held, share)| held.share.same_result(share))
}

fn stopped(error: &Error) -> bool {
    matches!(error, Error::Stopped(_) | Error::ClaimDir(claimdir::Error::Stopped(_)))
}

/// A UID names folders and files.
fn check_uid(uid: &str) -> Result<(), Error> {
    if is_share_name(uid) {
        Ok(())
    } else {
        Err(Error::Uid(uid.to_owned()))
    }
}

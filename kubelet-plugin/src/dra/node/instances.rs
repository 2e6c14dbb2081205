//! Instances that claims make: Prepare makes what the claim was allocated, Unprepare of the last claim destroys it.
//!
//! ```text
//!  Prepare    the device's name ─► candidate ─► vgpu_mig ─► a GPU with `mig`, which all else treats as one that was there
//!             the device of the undivided GPU ─► its MIG mode is off ─► a GPU as any other
//!  Unprepare  the claim's files are removed ─► vgpu_mig
//!  survey     with each list of the GPUs: recover ─► the instances that no claim made ─► `publish`
//! ```
//!
//! The records are read anew each time, under the node's lock: another instance of the plugin may have changed them.
//!
//! Failure modes (those of instances are in `vgpu_mig::instances`):
//! - A crash between the instance and the claim's record: the claim is not prepared, so the next survey destroys it. Registration
//!   with kubelet waits for the first list of the GPUs, and so for its survey.
//! - A claim whose record is damaged or lost counts as prepared: its instance stays.
//! - Prepare fails after the instance was made: it is destroyed, or by the next survey.
//! - Unprepare, and the instance is in use or the driver does not answer: the claim is unprepared, the reason is logged and in the
//!   VgpuNode, and each survey tries again. While the driver is known to be silent it is not asked.
//! - Prepare, and the driver does not answer: a new claim is refused with the reason. One that is prepared already, as when kubelet
//!   has restarted, gets its former answer.
//! - The claim was allocated again elsewhere: what it had is unprepared first, if no container has it.
//! - The driver does not answer: the survey fails, and what the last one found holds (`publish/gpus/dynamic.rs`).
//! - A claim for a GPU and one for an instance of it, which is possible while a scan or the chart's value is older than an
//!   allocation: the one that comes second is refused. Damaged records may be of claims with the GPU, so its mode is not
//!   switched on while there are any.

use super::maker::{InstancesInUse, Maker, NoSurvey, SilentGpus, Survey, Surveys};
use super::prepare::check_driver_limits;
use super::{Error, Node};
use crate::config::MigDynamic;
use crate::dra::checkpoint::Checkpoint;
use crate::dra::claim;
use crate::dra::share::ClaimId;
use crate::publish::inventory::{Gpu, Inventory, Unavailable};
use k8s_openapi::api::resource::v1::ResourceClaim;
use std::collections::BTreeSet;
use std::sync::Arc;
use vgpu_api::{gpu_of_candidate, gpu_of_dynamic};
use vgpu_mig::candidates;
use vgpu_mig::{Asked, Known, MigDriver, Settings};
use vgpu_node::lock_file::Locked;

/// The GPUs that claims have as a whole, or shares of.
struct GpusHeld {
    /// UUIDs.
    these: BTreeSet<String>,
    /// The record of a claim is damaged.
    may_be_others: bool,
}

// === impl GpusHeld ===

impl GpusHeld {
    fn has(&self, gpu: &str) -> bool {
        self.these.contains(gpu)
    }

    fn may_have(&self, gpu: &str) -> bool {
        self.has(gpu) || self.may_be_others
    }
}

/// UUIDs of the GPUs that claims have as devices of the pool of GPUs, or monitor. An entry that was rebuilt from limits files names
/// no device, and where claims switch modes it is rather one of theirs.
fn held_whole(checkpoint: &Checkpoint) -> BTreeSet<String> {
    let all = checkpoint.claims.values().flat_map(|entry| entry.all());
    let of_gpus = all.filter(|share| !share.device.is_empty() && gpu_of_dynamic(&share.device).is_none());
    of_gpus.map(|share| share.gpu.clone()).collect()
}

// === impl Node ===

impl Node {
    /// Lets claims make instances. `boot`: the boot id of the machine.
    pub fn make_instances_with(&mut self, driver: Arc<dyn MigDriver + Send + Sync>, boot: String) {
        let switches_mode = self.config.mig_dynamic == MigDynamic::Modes;
        let settings = Settings { boot, switches_mode };
        self.maker = Some(Maker::new(driver, self.config.mig_records.clone(), settings));
    }

    /// Carries to its end what is unfinished, and returns what there is on each of these GPUs. `new`: GPUs of which it is not known
    /// yet whether claims may switch their MIG mode.
    ///
    /// # Errors
    /// The claims' records cannot be read, so that nothing is known to be unfinished.
    pub fn survey(&mut self, _locked: &Locked, gpus: &[String], new: &[String]) -> Result<Surveys, Error> {
        let lost = self.read_records()?.lost;
        let claims = &self.checkpoint.claims;
        let held = self.gpus_held();
        let Some(maker) = &mut self.maker else {
            return Ok(Surveys::default());
        };
        let waiting = maker.waiting_for_answer();
        let is_prepared = |uid: &str| claims.contains_key(uid) || lost.contains_key(uid) || waiting.contains(uid);
        let mut surveys = Surveys {
            switched: maker.switched().map_err(vgpu_mig::Error::from)?,
            held_whole: held_whole(&self.checkpoint),
            ..Surveys::default()
        };
        let known = Known {
            is_prepared: &is_prepared,
            is_gpu_held: &|gpu| held.may_have(gpu),
        };
        // The driver has listed these GPUs just now, so an older silence of theirs is over.
        maker.note_listed(gpus);
        maker.note_listed(new);
        surveys.problems = maker.recover(known).map_err(vgpu_mig::Error::from)?;
        for gpu in new {
            let answer = maker.is_switchable(gpu).map_err(|error| reason(&error));
            surveys.is_switchable.insert(gpu.clone(), answer);
        }
        let new = new
            .iter()
            .filter(|gpu| surveys.is_switchable.get(*gpu) == Some(&Ok(true)));
        for gpu in gpus.iter().chain(new) {
            let survey = match maker.survey(gpu) {
                Ok(survey) => Ok(Survey {
                    is_held: held.has(gpu),
                    ..survey
                }),
                Err(error) => Err(NoSurvey {
                    why: reason(&error),
                    held: maker.held(gpu)?,
                }),
            };
            surveys.of.insert(gpu.clone(), survey);
        }
        self.note_made();
        Ok(surveys)
    }

    /// Makes the instances of a claim's results, as far as they name candidates, and has GPUs whole that it gets undivided.
    pub(super) fn make_instances(&mut self, id: &ClaimId, claim: &ResourceClaim) -> Result<(), Error> {
        self.check_available(id, claim)?;
        self.check_candidates(claim)?;
        self.note_instances_in_use();
        let mut held = self.gpus_held();
        let (Some(maker), Ok(inventory)) = (&mut self.maker, &mut self.scanned.inventory) else {
            return Ok(());
        };
        let is_known = self.checkpoint.claims.contains_key(&id.uid);
        for device in claim::devices(claim, &self.config.pools()) {
            let undivided = inventory.undivided(device);
            let candidate = inventory.candidate(device);
            let Some(dynamic) = undivided.or(candidate.map(|(dynamic, _)| dynamic)) else {
                continue;
            };
            let gpu = &dynamic.gpu.uuid;
            let Some((dynamic, candidate)) = candidate else {
                if !is_known {
                    maker.whole(gpu)?;
                }
                // Counts for later results of this claim too: only a forged claim has the GPU and an instance of it.
                held.these.insert(gpu.clone());
                continue;
            };
            if held.has(gpu) && !is_known {
                return Err(vgpu_mig::Error::GpuHeld { gpu: gpu.clone() }.into());
            }
            let asked = Asked {
                claim: &id.uid,
                gpu: &dynamic.gpu.uuid,
                profile: candidate.profile.id,
                profile_name: &candidate.profile.name,
                placement: candidate.placement,
                whole: dynamic.pool.undivided.as_ref().map(|_| &dynamic.gpu),
            };
            let made = match maker.prepare(&asked, held.may_have(gpu)) {
                // The inventory has the instance of a claim that is prepared already (`note_made`).
                Err(error) if error.silence().is_some() && self.checkpoint.gpu_by_device(&id.uid, device).is_some() => {
                    continue;
                }
                made => made?,
            };
            let made = dynamic.made(candidate, &made);
            let made = made.ok_or_else(|| Error::NoInstanceUuid(device.to_owned()))?;
            inventory.add_made(device, made);
        }
        Ok(())
    }

    /// Refuses a new claim of a GPU that takes none now. One that is prepared already stays so.
    fn check_available(&self, id: &ClaimId, claim: &ResourceClaim) -> Result<(), Error> {
        let Some(inventory) = self.inventory() else {
            return Ok(());
        };
        if self.checkpoint.claims.contains_key(&id.uid) {
            return Ok(());
        }
        for device in claim::devices(claim, &self.config.pools()) {
            let Some(gpu) = dynamic_gpu(inventory, device) else {
                continue;
            };
            if let Some(why) = inventory.unavailable_parts(&gpu.uuid) {
                let (device, why) = (device.to_owned(), why.text(&gpu.uuid));
                return Err(Error::Unavailable { device, why });
            }
        }
        Ok(())
    }

    /// Refuses a claim that is not valid before anything is made for it: kubelet repeats the call, and an instance takes a second
    /// to make and to destroy.
    fn check_candidates(&self, claim: &ResourceClaim) -> Result<(), Error> {
        let Some(inventory) = self.inventory().filter(|_| self.maker.is_some()) else {
            return Ok(());
        };
        let mut with_all = inventory.clone();
        let mut is_any_new = false;
        for device in claim::devices(claim, &self.config.pools()) {
            is_any_new |= inventory.undivided(device).is_some();
            let Some((dynamic, candidate)) = inventory.candidate(device) else {
                continue;
            };
            if inventory.device(device).is_none() {
                let uuid = format!("MIG-{device}");
                with_all.add_made(
                    device,
                    Gpu {
                        uuid,
                        ..dynamic.instance(candidate)
                    },
                );
                is_any_new = true;
            }
        }
        if is_any_new {
            let shares = claim::shares(claim, &self.config.pools(), &with_all)?;
            check_driver_limits(&shares, &with_all)?;
        }
        Ok(())
    }

    /// The instances that prepared claims have. A claim of which only files are left may have any.
    fn instances_in_use(&self) -> InstancesInUse {
        let in_use = self.checkpoint.in_use();
        let shared = || in_use.iter().filter(|one| one.has_shares);
        if !self.damages.lasting.is_empty() || shared().any(|one| one.gpu.is_in_unknown_place()) {
            return InstancesInUse::Any;
        }
        let places = shared().filter_map(|one| one.gpu.mig.as_ref());
        InstancesInUse::These(places.map(|mig| (mig.parent.clone(), mig.gpu_instance)).collect())
    }

    fn note_instances_in_use(&self) {
        if let Some(maker) = &self.maker {
            maker.note_in_use(self.instances_in_use());
        }
    }

    /// The GPUs that claims have as a whole, or shares of.
    fn gpus_held(&self) -> GpusHeld {
        let shares = self.checkpoint.claims.values().flat_map(|entry| entry.limited());
        GpusHeld {
            these: shares.map(|share| share.gpu.clone()).collect(),
            may_be_others: !self.damages.lasting.is_empty(),
        }
    }

    /// Begins a turn, after the claims' records were read.
    pub(super) fn begin_instances(&self) {
        if let Some(maker) = &self.maker {
            maker.begin(self.instances_in_use(), self.silent_gpus());
        }
    }

    fn silent_gpus(&self) -> SilentGpus {
        let inventory = self.inventory();
        let all = inventory.iter().flat_map(|inventory| inventory.dynamic());
        let why = |uuid: &str| match inventory?.unavailable(uuid)? {
            Unavailable::Silent(why) => Some(why.clone()),
            _ => None,
        };
        let silent = all.filter_map(|dynamic| Some((dynamic.gpu.uuid.clone(), why(&dynamic.gpu.uuid)?)));
        silent.collect()
    }

    /// Unprepares what a claim had before it was allocated again, if devices of GPUs that claims divide are among that or the new
    /// devices.
    pub(super) fn release_former(&mut self, id: &ClaimId, claim: &ResourceClaim) -> Result<(), Error> {
        let Some(known) = self.checkpoint.claims.get(&id.uid).filter(|_| self.maker.is_some()) else {
            return Ok(());
        };
        let pools = self.config.pools();
        let before: BTreeSet<&str> = known.all().map(|share| share.device.as_str()).collect();
        let now: BTreeSet<&str> = claim::devices(claim, &pools).collect();
        let is_dynamic = before.union(&now).any(|device| gpu_of_dynamic(device).is_some());
        // An entry that was rebuilt from limits files names no devices.
        if !is_dynamic || before == now || before.contains("") {
            return Ok(());
        }
        self.check_unused(&id.uid)?;
        self.remove(&id.uid)?;
        self.release_instances(&id.uid);
        Ok(())
    }

    /// Returns true if the driver may still make what a claim asked for: a later survey completes or undoes it.
    pub(super) fn awaits_answer(&self, uid: &str) -> bool {
        let maker = self.maker.as_ref();
        maker.is_some_and(|maker| maker.awaits_answer(uid))
    }

    /// Destroys the instances of which this claim was the last.
    pub(super) fn release_instances(&mut self, uid: &str) {
        self.note_instances_in_use();
        let Some(maker) = &mut self.maker else { return };
        if let Err(error) = maker.unprepare(uid) {
            tracing::warn!(uid, "instances of an unprepared claim stay until the next try: {error}");
        }
    }

    /// Has the inventory know the instances that prepared claims made, whatever the last list said.
    pub(super) fn note_made(&mut self) {
        let (Some(maker), Ok(inventory)) = (&self.maker, &mut self.scanned.inventory) else {
            return;
        };
        inventory.forget_made();
        maker.add_made(inventory);
        for share in self.checkpoint.claims.values().flat_map(|entry| entry.all()) {
            let is_made = gpu_of_candidate(&share.device).is_some();
            // Also an undivided GPU of which nothing is known since the plugin has started.
            let is_unknown = gpu_of_dynamic(&share.device).is_some() && inventory.device(&share.device).is_none();
            if let Some(gpu) = self.checkpoint.gpus.get(&share.gpu).filter(|_| is_made || is_unknown) {
                inventory.add_made(&share.device, gpu.clone());
            }
        }
    }
}

/// The GPU that claims divide, of which this device is a part or the whole.
fn dynamic_gpu<'a>(inventory: &'a Inventory, device: &str) -> Option<&'a Gpu> {
    let digits = gpu_of_dynamic(device)?;
    let mut all = inventory.dynamic().iter().map(|dynamic| &dynamic.gpu);
    all.find(|gpu| candidates::short(&gpu.uuid) == digits)
}

/// Returns why there is no survey: the driver's own words if it is silent.
fn reason(error: &vgpu_mig::Error) -> String {
    let silence = error.silence().map(|silence| silence.reason.clone());
    let said = silence.filter(|reason| !reason.is_empty());
    said.unwrap_or_else(|| error.to_string())
}

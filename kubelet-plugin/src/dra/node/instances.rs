//! Instances that claims make: Prepare makes what the claim was allocated, Unprepare of the last claim destroys it.
//!
//! ```text
//!  Prepare    the device's name ─► candidate ─► vgpu_mig ─► a GPU with `mig`, which all else treats as one that was there
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

use super::maker::{InstancesInUse, Maker, SilentGpus, Survey};
use super::prepare::check_driver_limits;
use super::{Error, Node};
use crate::dra::claim;
use crate::dra::share::ClaimId;
use crate::publish::inventory::{Gpu, Inventory, Unavailable};
use k8s_openapi::api::resource::v1::ResourceClaim;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use vgpu_api::gpu_of_candidate;
use vgpu_mig::candidates::{self, Held};
use vgpu_mig::{Asked, Known, MigDriver};
use vgpu_node::lock_file::Locked;

/// Why nothing is known of the instances of a GPU now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoSurvey {
    pub why: String,
    /// The places of instances that claims made, by their records.
    pub held: Vec<Held>,
}

// === impl Node ===

impl Node {
    /// Lets claims make instances. `boot`: the boot id of the machine.
    pub fn make_instances_with(&mut self, driver: Arc<dyn MigDriver + Send + Sync>, boot: String) {
        self.maker = Some(Maker::new(driver, self.config.mig_records.clone(), boot));
    }

    /// Carries to its end what is unfinished, and returns what there is on each of these GPUs, by UUID.
    ///
    /// # Errors
    /// The claims' records cannot be read, so that nothing is known to be unfinished.
    pub fn survey(
        &mut self,
        _locked: &Locked,
        gpus: &[String],
    ) -> Result<BTreeMap<String, Result<Survey, NoSurvey>>, Error> {
        let lost = self.read_records()?.lost;
        let claims = &self.checkpoint.claims;
        let is_prepared = |uid: &str| claims.contains_key(uid) || lost.contains_key(uid);
        let Some(maker) = &mut self.maker else {
            return Ok(BTreeMap::new());
        };
        let known = Known {
            is_prepared: &is_prepared,
            // No mode is switched.
            is_gpu_held: &|_| true,
        };
        // What an older list said does not matter any more.
        maker.note_listed(gpus);
        let problems = maker.recover(known).map_err(vgpu_mig::Error::from)?;
        let mut surveys = BTreeMap::new();
        for gpu in gpus {
            let survey = match maker.survey(gpu) {
                Ok(survey) => Ok(Survey {
                    problems: problems.clone(),
                    ..survey
                }),
                Err(error) => Err(NoSurvey {
                    why: reason(&error),
                    held: maker.held(gpu)?,
                }),
            };
            surveys.insert(gpu.clone(), survey);
        }
        self.note_made();
        Ok(surveys)
    }

    /// Makes the instances of a claim's results, as far as they name candidates.
    pub(super) fn make_instances(&mut self, id: &ClaimId, claim: &ResourceClaim) -> Result<(), Error> {
        self.check_available(id, claim)?;
        self.check_candidates(claim)?;
        self.note_instances_in_use();
        let (Some(maker), Ok(inventory)) = (&self.maker, &mut self.scanned.inventory) else {
            return Ok(());
        };
        for device in claim::devices(claim, &self.config.pools()) {
            let Some((dynamic, candidate)) = inventory.candidate(device) else {
                continue;
            };
            let asked = Asked {
                claim: &id.uid,
                gpu: &dynamic.gpu.uuid,
                profile: candidate.profile.id,
                profile_name: &candidate.profile.name,
                placement: candidate.placement,
            };
            let made = match maker.prepare(&asked) {
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
            if let Some(why) = inventory.unavailable(&gpu.uuid) {
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

    /// Unprepares what a claim had before it was allocated again, if instances that claims make are among that or the new devices.
    pub(super) fn release_former(&mut self, id: &ClaimId, claim: &ResourceClaim) -> Result<(), Error> {
        let Some(known) = self.checkpoint.claims.get(&id.uid).filter(|_| self.maker.is_some()) else {
            return Ok(());
        };
        let pools = self.config.pools();
        let before: BTreeSet<&str> = known.all().map(|share| share.device.as_str()).collect();
        let now: BTreeSet<&str> = claim::devices(claim, &pools).collect();
        let is_made = before.union(&now).any(|device| gpu_of_candidate(device).is_some());
        // An entry that was rebuilt from limits files names no devices.
        if !is_made || before == now || before.contains("") {
            return Ok(());
        }
        self.check_unused(&id.uid)?;
        self.remove(&id.uid)?;
        self.release_instances(&id.uid);
        Ok(())
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
            if let Some(gpu) = self.checkpoint.gpus.get(&share.gpu).filter(|_| is_made) {
                inventory.add_made(&share.device, gpu.clone());
            }
        }
    }
}

/// The GPU on which a claim could make the instance for which a device stands.
fn dynamic_gpu<'a>(inventory: &'a Inventory, device: &str) -> Option<&'a Gpu> {
    let digits = gpu_of_candidate(device)?;
    let mut all = inventory.dynamic().iter().map(|dynamic| &dynamic.gpu);
    all.find(|gpu| candidates::short(&gpu.uuid) == digits)
}

/// Returns why there is no survey: the driver's own words if it is silent.
fn reason(error: &vgpu_mig::Error) -> String {
    let silence = error.silence().map(|silence| silence.reason.clone());
    let said = silence.filter(|reason| !reason.is_empty());
    said.unwrap_or_else(|| error.to_string())
}

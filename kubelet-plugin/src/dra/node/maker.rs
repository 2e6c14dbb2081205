//! The instances of this node's claims: `vgpu_mig` with the records' folder, what was found on each GPU, and what was logged.

use crate::publish::inventory::Inventory;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use vgpu_mig::candidates::Held;
use vgpu_mig::driver::{GpuInstance, Profile};
use vgpu_mig::records::Stage;
use vgpu_mig::{Asked, Folder, Instances, Known, Made, MigDriver, Report, Settings};
use vgpu_node::files::Failed;

/// Makes and destroys the instances of this node's claims.
pub(super) struct Maker {
    instances: Instances<Arc<dyn MigDriver + Send + Sync>, Folder>,
    /// By UUID of the GPU. Asked once: a counter must not change under an allocation, and a driver that is replaced may say other
    /// sizes.
    profiles: BTreeMap<String, Vec<Profile>>,
    /// Problems that were logged already.
    known: BTreeSet<String>,
}

/// What there is on a GPU on which claims make instances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    pub profiles: Vec<Profile>,
    /// The instances that no claim made.
    pub administrators: Vec<GpuInstance>,
    /// The places of those that claims made.
    pub held: Vec<Held>,
    /// What is wrong with instances of the node: a sentence each.
    pub problems: Vec<String>,
}

// === impl Maker ===

impl Maker {
    /// `folder`: of the records. `boot`: the boot id of the machine.
    pub(super) fn new(driver: Arc<dyn MigDriver + Send + Sync>, folder: PathBuf, boot: String) -> Self {
        let switches_mode = false;
        Self {
            instances: Instances::new(driver, Folder::new(folder), Settings { boot, switches_mode }),
            profiles: BTreeMap::new(),
            known: BTreeSet::new(),
        }
    }

    /// Makes the instance that a claim was allocated, or adds the claim to those that use it.
    pub(super) fn prepare(&self, asked: &Asked<'_>) -> Result<Made, vgpu_mig::Error> {
        // No mode is switched, so who has the GPU as a whole does not matter.
        self.instances.prepare(asked, true)
    }

    /// Destroys the instances of which this claim was the last.
    pub(super) fn unprepare(&mut self, uid: &str) -> Result<(), Failed> {
        let report = self.instances.unprepare(uid)?;
        let problems = self.log(&report);
        self.known.extend(problems);
        Ok(())
    }

    /// Carries to its end what is unfinished. Returns what is wrong.
    pub(super) fn recover(&mut self, known: Known<'_>) -> Result<Vec<String>, Failed> {
        let report = self.instances.recover(known)?;
        let problems = self.log(&report);
        self.known = problems.iter().cloned().collect();
        Ok(problems)
    }

    /// Returns what there is on a GPU.
    pub(super) fn survey(&mut self, gpu: &str) -> Result<Survey, vgpu_mig::Error> {
        let profiles = match self.profiles.get(gpu) {
            Some(known) => known.clone(),
            None => {
                let listed = self.instances.profiles(gpu)?;
                self.profiles.insert(gpu.to_owned(), listed.clone());
                listed
            }
        };
        let administrators = self.instances.administrators(gpu)?;
        let records = self.instances.records()?;
        let held = records.of_gpu(gpu).map(|record| Held {
            profile: record.profile,
            placement: record.placement,
        });
        Ok(Survey {
            profiles,
            administrators,
            held: held.collect(),
            problems: Vec::new(),
        })
    }

    /// Adds the instances that records name: also those of claims whose own record was lost.
    pub(super) fn add_made(&self, inventory: &mut Inventory) {
        let Ok(records) = self.instances.records() else { return };
        for record in records.instances.values() {
            let Stage::Made {
                gpu_instance,
                compute_instance,
                uuid,
            } = &record.stage
            else {
                continue;
            };
            let made = Made {
                gpu_instance: *gpu_instance,
                compute_instance: *compute_instance,
                uuid: uuid.clone(),
            };
            let of_gpu = inventory
                .dynamic()
                .iter()
                .find(|dynamic| dynamic.gpu.uuid == record.gpu);
            let found = of_gpu.and_then(|dynamic| {
                let place = (record.profile, record.placement);
                let mut all = dynamic.pool.candidates.iter();
                let candidate = all.find(|one| (one.profile.id, one.placement) == place)?;
                Some((candidate.name.clone(), dynamic.made(candidate, &made)?))
            });
            if let Some((device, gpu)) = found {
                inventory.add_made(&device, gpu);
            }
        }
    }

    /// Logs what happened, and problems that are new. Returns all problems.
    fn log(&self, report: &Report) -> Vec<String> {
        for made in &report.made {
            tracing::warn!("an instance of prepared claims had vanished and was made again: {made}");
        }
        for destroyed in &report.destroyed {
            tracing::info!("destroyed an instance that no claim uses any more: {destroyed}");
        }
        let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
        for problem in problems.iter().filter(|problem| !self.known.contains(*problem)) {
            tracing::warn!("{problem}");
        }
        problems
    }
}

//! The instances of this node's claims: `vgpu_mig` with the records' folder, what was found on each GPU, and what was logged.
//!
//! Failure modes:
//! - An instance is another claim's than its record says, as after a time in which claims made none: it is not destroyed.
//! - The driver gives no answer: it is not asked again in this turn, and a GPU whose driver is known to be silent is not asked at
//!   all, because other claims of the node wait.
//! - The driver is slow: all calls of a turn together have [`TURN_TAKES`]. What is not done by then is tried again by kubelet or
//!   the next survey. A call that is under way then counts as unanswered.
//! - A call takes longer than a turn, as a switch of the mode may: its claim counts as prepared for [`WAITS_FOR_ANSWER`], so that the
//!   next surveys complete what it asked for, and kubelet's next try finds it. After that it is undone.
//! - A process uses an instance whose claims are gone: its place is a leftover, which takes no claims.

use crate::publish::inventory::{Gpu, Inventory};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use vgpu_mig::candidates::Place;
use vgpu_mig::driver::{GpuInstance, Profile};
use vgpu_mig::records::Stage;
use vgpu_mig::{Answer, Asked, Call, Code, Folder, Instances, Known, Made, MigDriver, Refused, Report, Settings};
use vgpu_node::files::Failed;
use vgpu_node::gpus::Placement;

/// How long all calls of the driver in one turn may take together.
pub(super) const TURN_TAKES: Duration = Duration::from_secs(8);

/// How long a claim whose Prepare had no answer keeps what it asked for. kubelet tries again after at most 90 s, mostly sooner.
const WAITS_FOR_ANSWER: Duration = Duration::from_secs(100);

/// Makes and destroys the instances of this node's claims.
pub(super) struct Maker {
    instances: Instances<Arc<InTurn>, Folder>,
    in_turn: Arc<InTurn>,
    boot: String,
    /// By UUID of the GPU. Asked once: a counter must not change under an allocation, and a driver that is replaced may say other
    /// sizes.
    profiles: BTreeMap<String, Vec<Profile>>,
    /// Problems that were logged already.
    known: BTreeSet<String>,
    /// When the Prepare of a claim first had no answer, by the claim's UID.
    pub(super) unanswered: BTreeMap<String, Instant>,
}

/// The instances that prepared claims have: UUID of the GPU, and id of the GPU instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum InstancesInUse {
    These(BTreeSet<(String, u32)>),
    /// It is not known which.
    Any,
}

/// The driver during one turn of the node.
struct InTurn {
    driver: Arc<dyn MigDriver + Send + Sync>,
    state: Mutex<TurnState>,
}

struct TurnState {
    /// Why the driver gave no answer in this turn.
    silence: Option<Refused>,
    silent: SilentGpus,
    /// Calls of this turn are answered by then, or given up: a call that is given up goes on in the child.
    deadline: Instant,
    in_use: InstancesInUse,
}

/// GPUs whose driver is known not to answer, by UUID, and why.
pub(super) type SilentGpus = BTreeMap<String, String>;

/// The GPUs of a node that claims may divide.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surveys {
    /// Problems with instances of the node: a sentence each.
    pub problems: Vec<String>,
    /// By UUID.
    pub of: BTreeMap<String, Result<Survey, NoSurvey>>,
    /// GPUs that were asked about for the first time: true if claims may switch their MIG mode. An error: why the driver did not say.
    pub is_switchable: BTreeMap<String, Result<bool, String>>,
    /// GPUs whose MIG mode was on because claims switched it, before this survey switched some of them off: as they were
    /// published before, by UUID.
    pub switched: BTreeMap<String, Option<Box<Gpu>>>,
    /// UUIDs of the GPUs that claims have as devices of the pool of GPUs, or monitor.
    pub held_whole: BTreeSet<String>,
}

/// Why nothing is known of the instances of a GPU now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoSurvey {
    pub why: String,
    /// The places of instances that claims made, by their records.
    pub held: Vec<Place>,
}

/// The profiles and instances of a GPU on which claims make instances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    pub profiles: Vec<Profile>,
    /// The instances that no claim made.
    pub administrators: Vec<GpuInstance>,
    /// The GPU is in MIG mode.
    pub is_divided: bool,
    /// Claims switched its MIG mode on.
    pub is_switched: bool,
    /// Claims have the GPU as a whole, or shares of it.
    pub is_held: bool,
    /// The places of those that claims made.
    pub held: Vec<Place>,
    /// Places among these whose claims are gone, and whose instance cannot be destroyed yet.
    pub leftovers: Vec<Placement>,
}

// === impl Maker ===

impl Maker {
    /// `folder`: of the records.
    pub(super) fn new(driver: Arc<dyn MigDriver + Send + Sync>, folder: PathBuf, settings: Settings) -> Self {
        let state = TurnState::new(InstancesInUse::Any, SilentGpus::new());
        let in_turn = Arc::new(InTurn {
            driver,
            state: Mutex::new(state),
        });
        Self {
            boot: settings.boot.clone(),
            instances: Instances::new(in_turn.clone(), Folder::new(folder), settings),
            in_turn,
            profiles: BTreeMap::new(),
            known: BTreeSet::new(),
            unanswered: BTreeMap::new(),
        }
    }

    /// Begins a turn of the node, in which nothing that is in use is destroyed, and nothing is asked about these GPUs.
    pub(super) fn begin(&self, in_use: InstancesInUse, silent: SilentGpus) {
        *self.in_turn.state() = TurnState::new(in_use, silent);
    }

    /// Notes that the driver has just listed these GPUs.
    pub(super) fn note_listed(&self, gpus: &[String]) {
        self.in_turn.state().silent.retain(|gpu, _| !gpus.contains(gpu));
    }

    /// Notes what is in use now.
    pub(super) fn note_in_use(&self, in_use: InstancesInUse) {
        self.in_turn.state().in_use = in_use;
    }

    /// Makes the instance that a claim was allocated, or adds the claim to those that use it. `is_gpu_held`: claims may hold the GPU
    /// as a whole, or shares of it.
    pub(super) fn prepare(&mut self, asked: &Asked<'_>, is_gpu_held: bool) -> Result<Made, vgpu_mig::Error> {
        let made = self.instances.prepare(asked, is_gpu_held);
        match made.as_ref().is_err_and(|error| error.silence().is_some()) {
            true => drop(
                self.unanswered
                    .entry(asked.claim.to_owned())
                    .or_insert_with(Instant::now),
            ),
            false => drop(self.unanswered.remove(asked.claim)),
        }
        made
    }

    /// Returns true while a claim whose Prepare had no answer keeps what it asked for.
    pub(super) fn awaits_answer(&self, uid: &str) -> bool {
        let since = self.unanswered.get(uid);
        since.is_some_and(|since| since.elapsed() < WAITS_FOR_ANSWER)
    }

    /// Returns the claims whose Prepare had no answer, for as long as they keep what they asked for.
    pub(super) fn waiting_for_answer(&mut self) -> BTreeSet<String> {
        self.unanswered.retain(|_, since| since.elapsed() < WAITS_FOR_ANSWER);
        self.unanswered.keys().cloned().collect()
    }

    /// Has a GPU whole, for a claim that gets it or shares of it.
    pub(super) fn whole(&self, gpu: &str) -> Result<(), vgpu_mig::Error> {
        self.instances.whole(gpu)
    }

    /// Returns the GPUs whose MIG mode claims switched on in this boot, as they were before, by UUID.
    pub(super) fn switched(&self) -> Result<BTreeMap<String, Option<Box<Gpu>>>, Failed> {
        let all = self.instances.records()?.switched.into_iter();
        let of_boot = all.filter(|switched| switched.boot == self.boot);
        Ok(of_boot.map(|switched| (switched.gpu, switched.whole)).collect())
    }

    /// Returns true if claims may switch a GPU's MIG mode.
    pub(super) fn is_switchable(&self, gpu: &str) -> Result<bool, vgpu_mig::Error> {
        self.instances.is_switchable(gpu)
    }

    /// Destroys the instances of which this claim was the last.
    pub(super) fn unprepare(&mut self, uid: &str) -> Result<(), Failed> {
        self.unanswered.remove(uid);
        let report = self.instances.unprepare(uid)?;
        let problems = self.log(&report);
        self.known.extend(problems);
        Ok(())
    }

    /// Carries to its end what is unfinished. Returns what is wrong.
    pub(super) fn recover(&mut self, known: Known<'_>) -> Result<Vec<String>, Failed> {
        let mut report = self.instances.recover(known)?;
        // A GPU that does not answer is reported by its survey, which fails too.
        report.problems.retain(|problem| problem.silence().is_none());
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
        let left_over = records.of_gpu(gpu).filter(|record| record.claims.is_empty());
        Ok(Survey {
            profiles,
            administrators,
            is_divided: self.instances.is_divided(gpu)?,
            is_switched: records.switched(gpu, &self.boot).is_some(),
            is_held: false,
            held: self.held(gpu)?,
            leftovers: left_over.map(|record| record.placement).collect(),
        })
    }

    /// Returns the places that records of a GPU name. Asks no driver.
    pub(super) fn held(&self, gpu: &str) -> Result<Vec<Place>, vgpu_mig::Error> {
        let records = self.instances.records()?;
        let held = records.of_gpu(gpu).map(|record| Place {
            profile: record.profile,
            placement: record.placement,
        });
        Ok(held.collect())
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
            tracing::warn!("made an instance that claims need and that was not there: {made}");
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

// === impl InTurn ===

impl InTurn {
    fn state(&self) -> MutexGuard<'_, TurnState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MigDriver for InTurn {
    fn call(&self, gpu: &str, call: &Call) -> Result<Answer, Refused> {
        let mut state = self.state();
        if let Some(silence) = &state.silence {
            return Err(silence.clone());
        }
        if let Some(why) = state.silent.get(gpu) {
            return Err(Refused::new("not asked", Code::NoAnswer, why));
        }
        if let Call::Destroy { gpu_instance } | Call::DestroyCompute { gpu_instance, .. } = call
            && state.in_use.has(gpu, *gpu_instance)
        {
            return Err(Refused::new("not asked", Code::InUse, "a prepared claim has it"));
        }
        let answer = self.driver.call_by(gpu, call, state.deadline);
        state.silence = answer.as_ref().err().filter(|why| why.code == Code::NoAnswer).cloned();
        answer
    }
}

impl TurnState {
    fn new(in_use: InstancesInUse, silent: SilentGpus) -> Self {
        Self {
            silence: None,
            silent,
            deadline: Instant::now() + TURN_TAKES,
            in_use,
        }
    }
}

impl InstancesInUse {
    fn has(&self, gpu: &str, gpu_instance: u32) -> bool {
        match self {
            Self::These(places) => places.contains(&(gpu.to_owned(), gpu_instance)),
            Self::Any => true,
        }
    }
}

//! The GPUs on which claims make instances: those that are in MIG mode when the plugin first sees them, and where the node allows
//! that claims switch the mode also those that are whole. Their instances that no claim made are published as on other GPUs.
//!
//! ```text
//!  first seen     in MIG mode, by a claim ──────────────────────────► Switched
//!                 in MIG mode, by an administrator ─────────────────► Divided
//!                 whole, mode needs no reset, nobody has it as a GPU ► Switched    all else ► Ordinary
//!                 the driver does not say ──────────────────────────► Undecided until it does
//!  in MIG mode    Switched: nothing changes                    Divided: its instances
//!  whole          Switched: the undivided GPU is one more      Divided: as a GPU that is lost
//! ```
//!
//! Failure modes:
//! - The driver does not answer a survey, as while a process with NVML hangs in the middle of a call for an instance: what the last
//!   one found stays, with the taint of a driver that is silent. `/readyz`, the VgpuNode and the log say why, until a survey
//!   succeeds.
//! - The first survey after a start fails: the same, with what a former run has published. Which instances are claims' is read off
//!   their records, so the administrator's stay.
//! - No turn of the node can be had (a disk hangs): what the last survey found stays. Before the first one, the node publishes
//!   nothing new.
//! - The driver answers nothing: the devices stay, with the taint of a driver that is silent.
//! - The GPU is lost, or an administrator's MIG mode is switched off: its devices stay, with the taint of a lost GPU, until it is
//!   back or the plugin starts again. As a whole it is not published meanwhile, because claims may have instances of it.
//! - An administrator makes an instance later: what overlaps it is not offered any more, and no counter changes. If claims switch
//!   the GPU's mode, the undivided GPU has the taint of a GPU in MIG mode until the instance is gone.
//! - An administrator switches the mode of a switched GPU on: the same. While claims have the GPU or shares of it, all of its
//!   devices have that taint.
//! - Claims have a GPU in the pool of GPUs, or monitor it, when the node begins to switch modes: it stays there until they have
//!   ended.
//! - The driver does not say whether the mode of a new GPU can be switched, or the mode has changed since it listed the GPU: what is
//!   published of the GPU's pool stays, with the taint of a driver that is silent, and the next scan asks again.
//! - The plugin starts while a GPU is in MIG mode because of claims: a record says so, and what the GPU was before. Without that
//!   the undivided GPU is published once it is whole.
//! - A process uses an instance whose claims are gone: the places that overlap it have the taint of an overlap until it ends.
//! - Two GPUs of which the first digits of the UUIDs are equal would have one pool: the second one stays with its administrator.

use super::published::updated;
use crate::config::MigDynamic;
use crate::dra::checkpoint::InUse;
use crate::dra::node::{NoSurvey, SharedNode, Survey, Surveys};
use crate::publish::inventory::{DynamicGpu, Gpu, LeftOut, List, Unavailable};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use vgpu_mig::Pool;
use vgpu_mig::candidates::{self, Place};
use vgpu_node::gpus;
use vgpu_node::gpus::Placement;

/// A disk that hangs does not stop scans.
const SURVEYED_WITHIN: Duration = Duration::from_secs(15);

/// The GPUs of the node, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct DynamicGpus {
    which: MigDynamic,
    /// UUIDs of GPUs that claims do not divide.
    ordinary: BTreeSet<String>,
    /// By UUID.
    gpus: BTreeMap<String, Known>,
    /// UUIDs of GPUs that claims still have as devices of the pool of GPUs.
    waiting: BTreeSet<String>,
    /// Problems with instances of the node, by the last survey: a sentence each.
    problems: Vec<String>,
}

#[derive(Debug)]
struct Known {
    gpu: Gpu,
    kind: Kind,
    survey: Option<Survey>,
    /// The places of claims' instances, as long as there was no survey. None: not even these are known.
    held: Option<Vec<Place>>,
    /// Why the last survey failed.
    failed: Option<String>,
    unavailable: Option<Unavailable>,
}

/// How a GPU's MIG mode changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// An administrator has put it in MIG mode.
    Divided,
    /// Claims do. False: its size is not known, since it was not seen whole.
    Switched { is_size_known: bool },
    /// It is not known yet.
    Undecided,
}

/// The oldest GPUs whose MIG mode changes without a reset are Hopper's. Others are not asked.
const HOPPER: (i32, i32) = (9, 0);

// === impl DynamicGpus ===

impl DynamicGpus {
    pub(super) fn new(which: MigDynamic) -> Self {
        Self {
            which,
            ..Self::default()
        }
    }

    /// Knows GPUs that claims have in the pools of instances, before the driver lists them: it may have lost one.
    pub(super) fn with_held(mut self, in_use: &[InUse]) -> Self {
        let is_whole = |uuid: &str| in_use.iter().any(|one| !one.is_dynamic && one.gpu.uuid == uuid);
        let held = in_use
            .iter()
            .filter(|one| one.is_dynamic && one.gpu.mig.is_none() && !is_whole(&one.gpu.uuid));
        if self.which == MigDynamic::Modes {
            let is_size_known = true;
            held.for_each(|one| self.add_gpu(one.gpu.clone(), Kind::Switched { is_size_known }));
        }
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// Returns true if it publishes the GPU with this UUID.
    pub(super) fn has(&self, uuid: &str) -> bool {
        self.gpus.contains_key(uuid)
    }

    /// Returns true if claims switch the MIG mode of the GPU with this UUID.
    pub(super) fn switches(&self, uuid: &str) -> bool {
        self.gpus.get(uuid).is_some_and(Known::is_switched)
    }

    /// The driver does not answer, for this reason.
    pub(super) fn note_silence(&mut self, reason: &str) {
        for known in self.gpus.values_mut().filter(|known| known.unavailable.is_none()) {
            known.unavailable = Some(Unavailable::Silent(reason.to_owned()));
        }
    }

    /// Takes a list over: removes from it what claims made, and GPUs that may not be published as a whole. `is_published`: in the
    /// pool of GPUs.
    ///
    /// # Errors
    /// There was no turn, and of some GPU nothing is known, not even which instances are claims'.
    pub(super) async fn scan(
        &mut self,
        list: &mut List,
        node: &SharedNode,
        is_published: impl Fn(&str) -> bool,
    ) -> Result<(), String> {
        if self.which == MigDynamic::Off {
            return Ok(());
        }
        if self.which == MigDynamic::Instances {
            self.decide_by_mode(list);
        }
        self.note(list);
        let uuids = |gpus: &[Gpu]| gpus.iter().map(|gpu| gpu.uuid.clone()).collect::<Vec<_>>();
        let older = list.gpus.iter().filter(|gpu| gpu.compute_capability < HOPPER);
        let older: Vec<String> = older.map(|gpu| gpu.uuid.clone()).collect();
        self.ordinary
            .extend(older.into_iter().filter(|uuid| !self.gpus.contains_key(uuid)));
        let new = uuids(&list.gpus).into_iter().filter(|uuid| !self.is_decided(uuid));
        let new: Vec<String> = new.collect();
        let divided = uuids(&list.divided)
            .into_iter()
            .filter(|uuid| !self.ordinary.contains(uuid));
        let whole = uuids(&list.gpus).into_iter().filter(|uuid| self.switches(uuid));
        let gpus: Vec<String> = divided.chain(whole).collect();
        // Also without such a GPU: a record of one that is whole now must not outlive the instance that it names.
        let survey = node.turn(move |node, locked| node.survey(locked, &gpus, &new));
        let failed = match tokio::time::timeout(SURVEYED_WITHIN, survey).await {
            Ok(Ok(Ok(surveys))) => {
                self.decide(list, &surveys, &is_published);
                self.problems.clone_from(&surveys.problems);
                self.note(list);
                self.add(surveys.of);
                None
            }
            Ok(Ok(Err(error)) | Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!(
                "which instances claims made is not known after {} s; check the node's disks",
                SURVEYED_WITHIN.as_secs()
            )),
        };
        if let Some(why) = &failed {
            tracing::warn!("what is published of instances stays as it is: {why}");
        }
        self.mark_unsurveyed(failed.as_deref());
        // Without a turn.
        let is_undecided = self.is_any_undecided(list, &is_published);
        self.remove_from(list, is_published);
        let is_unknown = |known: &Known| known.survey.is_none() && known.held.is_none() && known.failed.is_none();
        match failed {
            Some(why) if is_undecided || self.gpus.values().any(is_unknown) => Err(why),
            _ => Ok(()),
        }
    }

    /// Decides on new GPUs where claims switch no mode.
    fn decide_by_mode(&mut self, list: &List) {
        for gpu in list
            .divided
            .iter()
            .filter(|gpu| !self.is_decided(&gpu.uuid))
            .cloned()
            .collect::<Vec<_>>()
        {
            self.add_gpu(gpu, Kind::Divided);
        }
        let whole = list.gpus.iter().map(|gpu| gpu.uuid.clone());
        let new: Vec<String> = whole.filter(|uuid| !self.is_decided(uuid)).collect();
        self.ordinary.extend(new);
    }

    /// Decides on new GPUs.
    fn decide(&mut self, list: &List, surveys: &Surveys, is_published: impl Fn(&str) -> bool) {
        self.gpus.retain(|_, known| known.kind != Kind::Undecided);
        let is_new = |known: &Self, uuid: &str| !known.is_decided(uuid) && surveys.of.contains_key(uuid);
        for gpu in &list.divided {
            if !is_new(self, &gpu.uuid) {
                continue;
            }
            let is_divided =
                |survey: &Result<Survey, NoSurvey>| survey.as_ref().map_or(true, |survey| survey.is_divided);
            match surveys.switched.get(&gpu.uuid) {
                // Claims may have switched it off just now.
                None if !surveys.of.get(&gpu.uuid).is_none_or(is_divided) => {
                    self.leave_undecided(gpu, "its MIG mode has just been switched off");
                }
                None => self.add_gpu(gpu.clone(), Kind::Divided),
                Some(whole) => {
                    let is_size_known = whole.is_some();
                    let gpu = whole.as_deref().cloned().unwrap_or_else(|| gpu.clone());
                    self.add_gpu(gpu, Kind::Switched { is_size_known });
                }
            }
        }
        self.waiting.clear();
        for gpu in &list.gpus {
            match surveys.is_switchable.get(&gpu.uuid) {
                None => {}
                Some(Err(_)) if is_published(&gpu.uuid) => {}
                Some(Err(why)) => self.leave_undecided(gpu, why),
                Some(Ok(false)) => {
                    tracing::info!(
                        gpu = gpu.uuid,
                        "claims do not divide this GPU: its MIG mode needs a reset, or it has none"
                    );
                    self.ordinary.insert(gpu.uuid.clone());
                }
                Some(Ok(true)) if surveys.held_whole.contains(&gpu.uuid) => drop(self.waiting.insert(gpu.uuid.clone())),
                Some(Ok(true)) if is_new(self, &gpu.uuid) => {
                    let is_size_known = true;
                    self.add_gpu(gpu.clone(), Kind::Switched { is_size_known });
                }
                Some(Ok(true)) => {}
            }
        }
    }

    fn leave_undecided(&mut self, gpu: &Gpu, why: &str) {
        self.add_gpu(gpu.clone(), Kind::Undecided);
        if let Some(known) = self.gpus.get_mut(&gpu.uuid) {
            known.failed = Some(why.to_owned());
        }
    }

    fn is_decided(&self, uuid: &str) -> bool {
        let is_known = |known: &Known| known.kind != Kind::Undecided;
        self.gpus.get(uuid).is_some_and(is_known) || self.ordinary.contains(uuid)
    }

    fn add_gpu(&mut self, gpu: Gpu, kind: Kind) {
        let short = candidates::short(&gpu.uuid);
        let is_alone = !self.gpus.keys().any(|other| candidates::short(other) == short);
        if short.len() != vgpu_api::GPU_DIGITS || !is_alone {
            self.ordinary.insert(gpu.uuid);
            return;
        }
        let known = Known {
            gpu,
            kind,
            survey: None,
            held: None,
            failed: None,
            unavailable: None,
        };
        self.gpus.insert(known.gpu.uuid.clone(), known);
    }

    /// Notes what a list says of the GPUs.
    fn note(&mut self, list: &List) {
        for (uuid, known) in &mut self.gpus {
            let find = |gpus: &[Gpu]| gpus.iter().find(|gpu| gpu.uuid == *uuid).cloned();
            known.unavailable = match (known.kind, find(&list.divided), find(&list.gpus)) {
                (Kind::Divided, Some(gpu), _) => {
                    known.gpu = gpu;
                    None
                }
                (Kind::Divided, None, Some(_)) => Some(Unavailable::SwitchedOff),
                (Kind::Switched { is_size_known }, _, Some(gpu)) => {
                    known.gpu = match is_size_known {
                        true => updated(&known.gpu, &gpu),
                        false => gpu,
                    };
                    let is_size_known = true;
                    known.kind = Kind::Switched { is_size_known };
                    None
                }
                // Attributes stay those of the whole GPU.
                (Kind::Switched { .. }, Some(_), None)
                | (Kind::Undecided, Some(_), _)
                | (Kind::Undecided, _, Some(_)) => None,
                (_, None, None) => {
                    let left_out = list.left_out.iter().find(|left| left.uuid.as_ref() == Some(uuid));
                    Some(Unavailable::missing(left_out))
                }
            };
        }
    }

    fn add(&mut self, surveys: BTreeMap<String, Result<Survey, NoSurvey>>) {
        for (uuid, survey) in surveys {
            if let Some(known) = self.gpus.get_mut(&uuid).filter(|known| known.kind != Kind::Undecided) {
                known.add(survey);
            }
        }
    }

    /// Returns true if it is not known of a GPU whether claims divide it, and nothing is published of it.
    fn is_any_undecided(&self, list: &List, is_published: impl Fn(&str) -> bool) -> bool {
        let mut all = list.divided.iter().chain(&list.gpus).map(|gpu| &gpu.uuid);
        all.any(|uuid| {
            !self.has(uuid) && !self.ordinary.contains(uuid) && !self.waiting.contains(uuid) && !is_published(uuid)
        })
    }

    /// Has GPUs whose survey failed count as silent, also those that have none because no turn was had.
    fn mark_unsurveyed(&mut self, no_turn: Option<&str>) {
        for known in self.gpus.values_mut().filter(|known| known.unavailable.is_none()) {
            let never = || no_turn.filter(|_| known.survey.is_none()).map(str::to_owned);
            known.unavailable = known.failed.clone().or_else(never).map(Unavailable::Silent);
        }
    }

    fn remove_from(&self, list: &mut List, is_published: impl Fn(&str) -> bool) {
        let is_administrators = |gpu: &str, gpu_instance: u32, placement: Option<Placement>| match self.gpus.get(gpu) {
            None => self.ordinary.contains(gpu),
            Some(known) => known.is_administrators(gpu_instance, placement),
        };
        list.instances.retain(|instance| {
            let mig = instance.mig.as_ref();
            mig.is_none_or(|mig| is_administrators(&mig.parent, mig.gpu_instance, mig.placement))
        });
        // One that is being made has no compute instance for a moment.
        list.left_out.retain(|left| match &left.why {
            gpus::Error::EmptyInstance { gpu, gpu_instance, .. } => is_administrators(gpu, *gpu_instance, None),
            _ => true,
        });
        let (whole, others): (Vec<Gpu>, Vec<Gpu>) = std::mem::take(&mut list.gpus)
            .into_iter()
            .partition(|gpu| self.gpus.contains_key(&gpu.uuid));
        list.gpus = others;
        // A GPU of which nothing is known yet would change its pool.
        let (ordinary, waiting) = (&self.ordinary, &self.waiting);
        let stays = |uuid: &String| ordinary.contains(uuid) || waiting.contains(uuid) || is_published(uuid);
        list.gpus.retain(|gpu| stays(&gpu.uuid));
        let decided = whole.into_iter().filter(|gpu| self.is_decided(&gpu.uuid));
        list.left_out.extend(decided.map(|gpu| LeftOut {
            why: match self.switches(&gpu.uuid) {
                // As for a GPU in MIG mode: it answers, and is no device of the pool of GPUs.
                true => gpus::Error::Mig {
                    uuid: gpu.uuid.clone(),
                    instances: Vec::new(),
                },
                false => gpus::Error::SwitchedOff { uuid: gpu.uuid.clone() },
            },
            uuid: Some(gpu.uuid),
        }));
    }

    /// The GPUs to publish, and why some are not available, by UUID.
    pub(super) fn published(&self) -> (Vec<DynamicGpu>, BTreeMap<String, Unavailable>) {
        // Without a survey the pool is empty: what is published of it stays.
        let pools = self
            .gpus
            .values()
            .filter_map(|known| Some((known, known.pool().transpose().ok()?.unwrap_or_default())));
        let gpus = pools.map(|(known, pool)| DynamicGpu {
            gpu: known.gpu.clone(),
            pool,
            undivided_unavailable: known.has_foreign_mode().then_some(Unavailable::Mig),
        });
        let unavailable = self
            .gpus
            .iter()
            .filter_map(|(uuid, known)| Some((uuid.clone(), known.unavailable()?)));
        (gpus.collect(), unavailable.collect())
    }

    /// Remarks for the operator: a sentence each.
    pub(super) fn remarks(&self) -> Vec<String> {
        let refused = self.gpus.values().filter_map(|known| known.pool()?.err());
        let waiting = self.waiting.iter().map(|uuid| {
            format!(
                "GPU {uuid} is not divided by claims (chart value mig.dynamic) before those that have it in the pool of GPUs, or its \
                 monitor, have ended; drain the node"
            )
        });
        self.problems
            .iter()
            .cloned()
            .chain(refused.map(|error| error.to_string()))
            .chain(waiting)
            .chain(self.silent())
            .collect()
    }

    /// Why nothing is known of instances of GPUs that the driver lists: a sentence for each GPU.
    pub(super) fn silent(&self) -> impl Iterator<Item = String> {
        self.gpus.iter().filter_map(|(uuid, known)| match &known.unavailable {
            Some(Unavailable::Silent(why)) => Some(format!(
                "GPU {uuid}: claims can neither make nor give back instances: {why}"
            )),
            _ => None,
        })
    }
}

// === impl Known ===

impl Known {
    fn is_switched(&self) -> bool {
        matches!(self.kind, Kind::Switched { .. })
    }

    /// Returns true if claims switch the GPU's mode, and an administrator has switched it on or uses it.
    fn has_foreign_mode(&self) -> bool {
        let survey = self.survey.as_ref().filter(|survey| survey.is_divided);
        let is_foreign = |survey: &Survey| !survey.is_switched || !survey.administrators.is_empty();
        self.is_switched() && survey.is_some_and(is_foreign)
    }

    /// Why no claim may have any of its devices.
    fn unavailable(&self) -> Option<Unavailable> {
        let is_held = self.survey.as_ref().is_some_and(|survey| survey.is_held);
        let is_divided = self.survey.as_ref().is_some_and(|survey| survey.is_divided);
        let is_foreign = self.has_foreign_mode() || self.kind == Kind::Divided && is_divided;
        let divided = (is_held && is_foreign).then_some(Unavailable::Mig);
        self.unavailable.clone().or(divided)
    }

    fn add(&mut self, survey: Result<Survey, NoSurvey>) {
        let uuid = &self.gpu.uuid;
        match survey {
            Ok(survey) => {
                if self.failed.take().is_some() {
                    tracing::info!("GPU {uuid}: the driver answers for its instances again");
                }
                self.survey = Some(survey);
            }
            Err(NoSurvey { why, held }) => {
                if self.failed.as_ref() != Some(&why) {
                    tracing::warn!(
                        "GPU {uuid}: what is published of its instances stays as it is, with a taint, because nothing is known \
                         of them: {why}"
                    );
                }
                (self.failed, self.held) = (Some(why), Some(held));
            }
        }
    }

    /// Returns false for what claims made, and while that is not known. `placement`: None if the driver does not say it.
    fn is_administrators(&self, gpu_instance: u32, placement: Option<Placement>) -> bool {
        match (&self.survey, &self.held) {
            (Some(survey), _) => survey.administrators.iter().any(|one| one.id == gpu_instance),
            (None, Some(held)) => placement.is_some_and(|place| held.iter().all(|one| one.placement != place)),
            (None, None) => false,
        }
    }

    /// None: nothing is known of its instances yet.
    fn pool(&self) -> Option<Result<Pool, candidates::Error>> {
        let survey = self.survey.as_ref()?;
        let administrators = survey.administrators.iter().map(|one| Place {
            profile: one.profile,
            placement: one.placement,
        });
        let administrators: Vec<Place> = administrators.collect();
        let pool = Pool::new(&self.gpu.uuid, &survey.profiles, &administrators, &survey.held);
        Some(pool.map(|pool| Pool {
            leftovers: survey.leftovers.clone(),
            ..match self.kind {
                Kind::Switched { is_size_known: true } => pool.with_undivided(&self.gpu.uuid),
                _ => pool,
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::node::tests::Rig;
    use crate::dra::node::tests::instances::{Machine, UNDIVIDED, of, part, start_switching};
    use crate::publish::inventory::Inventory;
    use crate::publish::inventory::tests::{gpu, instance};
    use std::sync::Arc;

    const LAST_HALF: &str = "mig-of-3f8a1c20-3g-40gb-4";

    /// The half of GPU 0 with this id, as the driver lists it.
    fn half(gpu_instance: u32) -> Gpu {
        let mut half = instance(0, &format!("MIG-{gpu_instance}"));
        let mig = half.mig.as_mut().expect("an instance");
        mig.gpu_instance = gpu_instance;
        let start = 4 * (gpu_instance - 1);
        mig.placement = Some(Placement { start, size: 4 });
        half
    }

    /// A list with GPU 0 in MIG mode, and GPU 1.
    fn list(halves: &[u32]) -> List {
        List {
            gpus: vec![gpu(1)],
            divided: vec![gpu(0)],
            instances: halves.iter().map(|id| half(*id)).collect(),
            left_out: vec![LeftOut {
                uuid: None,
                why: gpus::Error::EmptyInstance {
                    gpu: gpu(0).uuid,
                    index: 0,
                    gpu_instance: 2,
                },
            }],
            ..List::default()
        }
    }

    fn node(rig: &Rig, machine: &Machine) -> SharedNode {
        let mut node = rig.open();
        node.make_instances_with(Arc::new(machine.clone()), machine.boot());
        SharedNode::new(node)
    }

    async fn scan(dynamic: &mut DynamicGpus, mut seen: List, node: &SharedNode) -> List {
        dynamic.scan(&mut seen, node, |_| false).await.expect("records");
        let (gpus, unavailable) = dynamic.published();
        let inventory = Inventory::new(seen.gpus.clone()).with_dynamic(gpus, unavailable);
        node.set_inventory(Ok(inventory));
        seen
    }

    fn uuids(gpus: &[Gpu]) -> Vec<&str> {
        gpus.iter().map(|gpu| gpu.uuid.as_str()).collect()
    }

    #[tokio::test]
    async fn an_instance_that_a_claim_made_is_not_published_twice_and_an_administrators_is_published() {
        let (rig, machine) = (Rig::new(false), Machine::default());
        machine.make_half(0);
        let node = node(&rig, &machine);
        let mut dynamic = DynamicGpus::new(MigDynamic::Instances);
        let seen = scan(&mut dynamic, list(&[1]), &node).await;
        assert_eq!(
            (uuids(&seen.instances), uuids(&seen.gpus)),
            (vec!["MIG-1"], vec![&*gpu(1).uuid])
        );
        let offers = |dynamic: &DynamicGpus, device: &str| dynamic.published().0[0].pool.find(device).is_some();
        assert!(offers(&dynamic, LAST_HALF) && !offers(&dynamic, "mig-of-3f8a1c20-3g-40gb-0"));
        // The plugin is killed before it writes the claim's record.
        let made = node
            .turn(|node, _| node.make_for_test(&of("u1", &[LAST_HALF])))
            .await
            .expect("a turn");
        assert_eq!(made, Ok(()));
        assert_eq!(machine.starts(), [0, 4]);
        machine.state().in_use = vec![2];
        let seen = scan(&mut dynamic, list(&[1, 2]), &node).await;
        assert_eq!((uuids(&seen.instances), seen.left_out.len()), (vec!["MIG-1"], 0));
        assert!(
            dynamic.remarks()[0].contains("while a process uses it"),
            "{:?}",
            dynamic.remarks()
        );
        assert!(offers(&dynamic, LAST_HALF), "what is held stays published");
        let pool = dynamic.published().0.remove(0).pool;
        assert!(pool.is_left_over(pool.find(LAST_HALF).expect("offered")));
        machine.state().in_use.clear();
        scan(&mut dynamic, list(&[1]), &node).await;
        assert_eq!((machine.starts(), dynamic.remarks()), (vec![0], vec![]));
    }

    #[tokio::test]
    async fn a_gpu_that_is_gone_whole_or_silent_is_tainted_and_others_stay_as_they_were() {
        let (rig, machine) = (Rig::new(false), Machine::default());
        let node = node(&rig, &machine);
        let mut dynamic = DynamicGpus::new(MigDynamic::Instances);
        scan(&mut dynamic, list(&[]), &node).await;
        assert_eq!(unavailable(&dynamic), None);
        dynamic.note_silence("NVML hangs");
        assert_eq!(unavailable(&dynamic), Some(Unavailable::Silent("NVML hangs".into())));
        let whole = List {
            gpus: vec![gpu(0), gpu(1)],
            ..List::default()
        };
        let seen = scan(&mut dynamic, whole.clone(), &node).await;
        assert_eq!((uuids(&seen.gpus), seen.left_out.len()), (vec![&*gpu(1).uuid], 1));
        let said = unavailable(&dynamic).expect("a reason").text(&gpu(0).uuid);
        assert!(said.contains("-mig 1") && said.contains("mig.dynamic"), "{said}");
        let gone = List::default();
        scan(&mut dynamic, gone, &node).await;
        assert_eq!(unavailable(&dynamic), Some(Unavailable::Lost(String::new())));
        scan(&mut dynamic, list(&[]), &node).await;
        assert_eq!(unavailable(&dynamic), None, "back");
        // Seen as a whole first, or on a node that does not opt in: its administrator's.
        for (which, first) in [(MigDynamic::Instances, whole), (MigDynamic::Off, List::default())] {
            let mut other = DynamicGpus::new(which);
            scan(&mut other, first, &node).await;
            let seen = scan(&mut other, list(&[1, 2]), &node).await;
            assert_eq!((seen, other.is_empty()), (list(&[1, 2]), true));
        }
    }

    fn switching(rig: &Rig, machine: &Machine) -> SharedNode {
        SharedNode::new(start_switching(rig, machine))
    }

    fn whole() -> List {
        List {
            gpus: vec![gpu(0), gpu(1)],
            ..List::default()
        }
    }

    /// GPU 0 in MIG mode, as the driver lists it: without a size.
    fn divided(halves: &[u32]) -> List {
        let of_list = Gpu { memory: 0, ..gpu(0) };
        List {
            divided: vec![of_list],
            left_out: Vec::new(),
            ..list(halves)
        }
    }

    fn undivided(dynamic: &DynamicGpus) -> (bool, Option<&'static str>) {
        let (gpus, _) = dynamic.published();
        let of_gpu = gpus.iter().find(|of| of.gpu.uuid == gpu(0).uuid);
        let why = of_gpu.and_then(|of| of.undivided_unavailable.as_ref());
        let is_offered = of_gpu.is_some_and(|of| of.pool.undivided.is_some() && of.gpu.memory == gpu(0).memory);
        (is_offered, why.map(Unavailable::name))
    }

    async fn prepare(node: &SharedNode, uid: &'static str, device: &'static str) -> Result<(), String> {
        let claim = match device {
            UNDIVIDED => part(uid, 10),
            instance => of(uid, &[instance]),
        };
        let answer = node.turn(move |node, _| node.prepare_for_test(claim)).await;
        answer.expect("a turn")
    }

    #[tokio::test]
    async fn a_gpu_whose_mode_claims_switch_stays_as_it_is_in_either_mode_and_over_a_restart() {
        let (rig, machine) = (Rig::new(false), Machine::default());
        machine.switch(false);
        machine.state().fixed = vec![gpu(1).uuid];
        let node = switching(&rig, &machine);
        let mut dynamic = DynamicGpus::new(MigDynamic::Modes);
        let seen = scan(&mut dynamic, whole(), &node).await;
        // Ampere's mode is its administrator's.
        assert_eq!(uuids(&seen.gpus), [&*gpu(1).uuid]);
        assert_eq!(undivided(&dynamic), (true, None));
        let before = dynamic.published();
        prepare(&node, "u1", LAST_HALF).await.expect("prepared");
        assert_eq!((machine.is_on(), machine.starts()), (true, vec![4]));
        // One list is older than the claim, one newer.
        for list in [whole(), divided(&[2])] {
            let seen = scan(&mut dynamic, list, &node).await;
            assert_eq!((seen.instances.len(), dynamic.published()), (0, before.clone()));
        }
        let node = switching(&rig, &machine);
        let mut dynamic = DynamicGpus::new(MigDynamic::Modes);
        scan(&mut dynamic, divided(&[2]), &node).await;
        assert_eq!(dynamic.published(), before);
        node.turn(|node, locked| node.unprepare(locked, &["u1"]).remove(0))
            .await
            .expect("a turn")
            .expect("unprepared");
        assert!(!machine.is_on());
        // This list is older than the Unprepare.
        scan(&mut dynamic, divided(&[2]), &node).await;
        assert_eq!(dynamic.published(), before);
    }

    /// A kill after the switch, or after the end of the last instance.
    #[tokio::test]
    async fn a_start_with_the_mode_on_and_no_claim_switches_it_off_and_publishes_the_gpu() {
        let (rig, machine) = (Rig::new(false), Machine::default());
        machine.switch(false);
        let node = switching(&rig, &machine);
        let mut dynamic = DynamicGpus::new(MigDynamic::Modes);
        scan(&mut dynamic, whole(), &node).await;
        let made = node.turn(|node, _| node.make_for_test(&of("u1", &[LAST_HALF]))).await;
        made.expect("a turn").expect("made");
        assert!(machine.is_on());
        let node = switching(&rig, &machine);
        let mut dynamic = DynamicGpus::new(MigDynamic::Modes);
        scan(&mut dynamic, divided(&[2]), &node).await;
        assert!(!machine.is_on() && machine.starts().is_empty());
        assert_eq!(undivided(&dynamic), (true, None));
        let seen = scan(&mut dynamic, whole(), &node).await;
        assert_eq!((undivided(&dynamic), seen.gpus.len()), ((true, None), 0));
    }

    #[tokio::test]
    async fn an_administrators_mode_or_instance_taints_the_undivided_gpu_alone() {
        let (rig, machine) = (Rig::new(false), Machine::default());
        machine.switch(false);
        let node = switching(&rig, &machine);
        let mut dynamic = DynamicGpus::new(MigDynamic::Modes);
        scan(&mut dynamic, whole(), &node).await;
        machine.switch(true);
        scan(&mut dynamic, divided(&[]), &node).await;
        assert_eq!(
            (undivided(&dynamic), dynamic.published().1.len()),
            ((true, Some("mig")), 0)
        );
        let said = prepare(&node, "u1", UNDIVIDED).await.expect_err("refused");
        assert!(
            said.contains("no claim switched on") && said.contains("-mig 0"),
            "{said}"
        );
        machine.make_half(0);
        let seen = scan(&mut dynamic, divided(&[1]), &node).await;
        assert_eq!(
            (uuids(&seen.instances), undivided(&dynamic)),
            (vec!["MIG-1"], (true, Some("mig")))
        );
        let said = prepare(&node, "u1", UNDIVIDED).await.expect_err("refused");
        assert!(said.contains("GPU instance 1, which no claim made"), "{said}");
        prepare(&node, "u2", LAST_HALF).await.expect("beside it");
        machine.state().instances.clear();
        machine.switch(false);
        node.turn(|node, locked| node.unprepare(locked, &["u2"]).remove(0))
            .await
            .expect("a turn")
            .expect("unprepared");
        scan(&mut dynamic, whole(), &node).await;
        assert_eq!(undivided(&dynamic), (true, None));
        // While a claim has the GPU.
        prepare(&node, "u1", UNDIVIDED).await.expect("whole");
        machine.switch(true);
        scan(&mut dynamic, divided(&[]), &node).await;
        assert_eq!(dynamic.published().1, BTreeMap::from([(gpu(0).uuid, Unavailable::Mig)]));
        let said = prepare(&node, "u2", LAST_HALF).await.expect_err("held");
        assert!(
            said.contains("takes no new claims") && machine.starts().is_empty(),
            "{said}"
        );
        // In MIG mode when it is first seen, and not by a claim.
        let node = switching(&rig, &Machine::default());
        let mut other = DynamicGpus::new(MigDynamic::Modes);
        scan(&mut other, divided(&[]), &node).await;
        assert_eq!(undivided(&other), (false, None));
        assert!(other.has(&gpu(0).uuid) && !other.switches(&gpu(0).uuid));
    }

    #[tokio::test]
    async fn a_gpu_is_undecided_until_the_driver_answers_and_an_older_one_is_not_asked_about() {
        let (rig, machine) = (Rig::new(false), Machine::default());
        machine.switch(false);
        machine.state().silence = Some("NVML hangs".into());
        machine.state().fixed = vec![gpu(0).uuid];
        let node = switching(&rig, &machine);
        let mut dynamic = DynamicGpus::new(MigDynamic::Modes);
        let mut list = whole();
        list.gpus[1].compute_capability = (8, 0);
        let seen = scan(&mut dynamic, list.clone(), &node).await;
        assert_eq!((uuids(&seen.gpus), seen.left_out.len()), (vec![&*gpu(1).uuid], 0));
        assert!(dynamic.has(&gpu(0).uuid) && !dynamic.has(&gpu(1).uuid));
        machine.state().silence = None;
        let seen = scan(&mut dynamic, list, &node).await;
        assert_eq!(seen.gpus.len(), 2, "its mode needs a reset");
        assert!(dynamic.is_empty());
        // A claim's mode has been switched off since the driver listed the GPU.
        machine.state().fixed.clear();
        let mut other = DynamicGpus::new(MigDynamic::Modes);
        scan(&mut other, divided(&[]), &node).await;
        assert!(!other.published().0[0].is_surveyed() && unavailable(&other).is_some());
        scan(&mut other, whole(), &node).await;
        assert!(other.switches(&gpu(0).uuid) && unavailable(&other).is_none());
    }

    #[tokio::test]
    async fn a_gpu_that_was_lost_before_the_plugin_started_is_said_to_be_lost_while_claims_have_it() {
        let (rig, machine) = (Rig::new(false), Machine::default());
        machine.switch(false);
        let node = switching(&rig, &machine);
        let claim = part("u1", 20);
        scan(&mut DynamicGpus::new(MigDynamic::Modes), whole(), &node).await;
        let prepared = node.turn(move |node, _| node.prepare_for_test(claim)).await;
        prepared.expect("a turn").expect("prepared");
        let mut dynamic = DynamicGpus::new(MigDynamic::Modes).with_held(&node.gpus_in_use());
        let lost = List {
            gpus: vec![gpu(1)],
            ..List::default()
        };
        scan(&mut dynamic, lost, &node).await;
        assert_eq!(unavailable(&dynamic), Some(Unavailable::Lost(String::new())));
        let kept = dynamic
            .published()
            .0
            .into_iter()
            .find(|one| one.gpu.uuid == gpu(0).uuid);
        assert!(kept.is_some_and(|one| !one.is_surveyed()), "its pool stays");
        scan(&mut dynamic, whole(), &node).await;
        assert_eq!(unavailable(&dynamic), None);
        assert!(dynamic.switches(&gpu(0).uuid));
    }

    #[tokio::test]
    async fn a_gpu_in_mig_mode_that_claims_have_as_a_whole_offers_no_instance() {
        let (rig, machine) = (Rig::new(false), Machine::default());
        let node = switching(&rig, &machine);
        let claim = crate::dra::node::tests::claim("u1", &[("s1", 20, 25)]);
        let prepared = node.turn(move |node, _| node.prepare_for_test(claim)).await;
        prepared.expect("a turn").expect("prepared");
        let mut dynamic = DynamicGpus::new(MigDynamic::Instances);
        scan(&mut dynamic, list(&[]), &node).await;
        assert_eq!(unavailable(&dynamic), Some(Unavailable::Mig));
    }

    #[tokio::test]
    async fn a_gpu_that_claims_have_stays_in_the_pool_of_gpus_until_they_end_and_a_silent_driver_decides_nothing() {
        let (rig, machine) = (Rig::new(false), Machine::default());
        machine.switch(false);
        machine.state().silence = Some("NVML hangs".into());
        let node = switching(&rig, &machine);
        let claim = crate::dra::node::tests::claim("u1", &[("s1", 20, 25)]);
        let prepared = node.turn(move |node, _| node.prepare_for_test(claim)).await;
        prepared.expect("a turn").expect("prepared");
        let mut dynamic = DynamicGpus::new(MigDynamic::Modes);
        let is_published = |uuid: &str| uuid == gpu(0).uuid;
        let scan = async |dynamic: &mut DynamicGpus| {
            let mut seen = whole();
            let surveyed = dynamic.scan(&mut seen, &node, is_published).await;
            (
                surveyed.is_ok(),
                seen.gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>(),
            )
        };
        // Published devices stay, also those in the pool that GPU 1 may have.
        assert_eq!(scan(&mut dynamic).await, (true, vec![0]));
        let (published, why) = dynamic.published();
        assert_eq!((published.len(), published[0].is_surveyed()), (1, false));
        assert_eq!(why[&gpu(1).uuid], Unavailable::Silent("NVML hangs".into()));
        assert!(dynamic.silent().next().is_some_and(|said| said.contains(&gpu(1).uuid)));
        machine.state().silence = None;
        assert_eq!(scan(&mut dynamic).await, (true, vec![0]));
        assert!(dynamic.has(&gpu(1).uuid) && !dynamic.has(&gpu(0).uuid));
        assert!(dynamic.remarks()[0].contains(&gpu(0).uuid), "{:?}", dynamic.remarks());
        node.turn(|node, locked| node.unprepare(locked, &["u1"]).remove(0))
            .await
            .expect("a turn")
            .expect("unprepared");
        assert_eq!(scan(&mut dynamic).await, (true, vec![]));
        assert!(dynamic.switches(&gpu(0).uuid) && dynamic.remarks().is_empty());
    }

    fn unavailable(dynamic: &DynamicGpus) -> Option<Unavailable> {
        dynamic.published().1.remove(&gpu(0).uuid)
    }

    /// An administrator's in the first half, and a claim's in the second.
    async fn with_both_halves(rig: &Rig, machine: &Machine) -> SharedNode {
        machine.make_half(0);
        let node = node(rig, machine);
        scan(&mut DynamicGpus::new(MigDynamic::Instances), list(&[1]), &node).await;
        let made = node.turn(|node, _| node.make_for_test(&of("u1", &[LAST_HALF])));
        assert_eq!(made.await.expect("a turn"), Ok(()));
        node
    }

    #[tokio::test]
    async fn a_first_survey_that_fails_unpublishes_nothing_and_says_why() {
        let (rig, machine) = (Rig::new(false), Machine::default());
        let node = with_both_halves(&rig, &machine).await;
        machine.state().silence = Some("a process with NVML hangs".into());
        let mut dynamic = DynamicGpus::new(MigDynamic::Instances);
        let seen = scan(&mut dynamic, list(&[1, 2]), &node).await;
        assert_eq!(uuids(&seen.instances), ["MIG-1"], "the administrator's");
        let published = dynamic.published().0;
        assert_eq!((published.len(), published[0].is_surveyed()), (1, false));
        let why = Unavailable::Silent("a process with NVML hangs".into());
        assert_eq!(unavailable(&dynamic), Some(why));
        let remarks = dynamic.remarks();
        assert!(
            remarks.len() == 1 && remarks[0].contains(&gpu(0).uuid) && remarks[0].contains("a process with NVML hangs"),
            "{remarks:?}"
        );
        machine.state().silence = None;
        let seen = scan(&mut dynamic, list(&[1]), &node).await;
        assert_eq!((uuids(&seen.instances), dynamic.remarks()), (vec!["MIG-1"], vec![]));
        assert!(dynamic.published().0[0].is_surveyed() && unavailable(&dynamic).is_none());
    }

    #[tokio::test]
    async fn a_later_survey_that_fails_taints_what_was_found_until_one_succeeds() {
        let (rig, machine) = (Rig::new(false), Machine::default());
        machine.make_half(0);
        let node = node(&rig, &machine);
        let mut dynamic = DynamicGpus::new(MigDynamic::Instances);
        scan(&mut dynamic, list(&[1]), &node).await;
        let (found, _) = dynamic.published();
        for why in ["a process with NVML hangs", "it still hangs"] {
            machine.state().silence = Some(why.into());
            let seen = scan(&mut dynamic, list(&[1]), &node).await;
            assert_eq!(uuids(&seen.instances), ["MIG-1"]);
            assert_eq!(
                (dynamic.published().0, unavailable(&dynamic)),
                (found.clone(), Some(Unavailable::Silent(why.into())))
            );
        }
        machine.state().silence = None;
        scan(&mut dynamic, list(&[1]), &node).await;
        assert_eq!((dynamic.published().0, unavailable(&dynamic)), (found, None));
    }

    /// A file in the place of their folder.
    #[tokio::test]
    async fn without_records_nothing_is_taken_for_an_administrators_instance() {
        let (rig, machine) = (Rig::new(false), Machine::default());
        machine.make_half(0);
        let node = node(&rig, &machine);
        let folder = rig.path("store/mig");
        std::fs::create_dir_all(rig.path("store")).expect("a folder");
        std::fs::write(&folder, "").expect("written");
        let mut dynamic = DynamicGpus::new(MigDynamic::Instances);
        let mut seen = list(&[1]);
        dynamic
            .scan(&mut seen, &node, |_| false)
            .await
            .expect_err("nothing is known");
        assert_eq!(seen.instances, []);
        std::fs::remove_file(&folder).expect("removed");
        scan(&mut dynamic, list(&[1]), &node).await;
        // From now on the last survey holds.
        std::fs::write(&folder, "").expect("written");
        let seen = scan(&mut dynamic, list(&[1]), &node).await;
        assert_eq!((uuids(&seen.instances), unavailable(&dynamic)), (vec!["MIG-1"], None));
    }
}

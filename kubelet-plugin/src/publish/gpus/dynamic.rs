//! The GPUs on which claims make instances: those that are in MIG mode when the plugin first sees them. Their instances that no
//! claim made are published as on other GPUs.
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
//! - The GPU is lost, or its MIG mode is switched off: its devices stay, with the taint of a lost GPU, until it is back or the
//!   plugin starts again. As a whole it is not published meanwhile, because claims may have instances of it.
//! - An administrator makes an instance later: what overlaps it is not offered any more, and no counter changes.
//! - A process uses an instance whose claims are gone: the places that overlap it have the taint of an overlap until it ends.
//! - Two GPUs of which the first digits of the UUIDs are equal would have one pool: the second one stays with its administrator.

use crate::dra::node::{NoSurvey, SharedNode, Survey};
use crate::publish::inventory::{DynamicGpu, Gpu, LeftOut, List, Unavailable};
use std::collections::BTreeMap;
use std::time::Duration;
use vgpu_mig::Pool;
use vgpu_mig::candidates::{self, Administrators, Held};
use vgpu_node::gpus;
use vgpu_node::gpus::Placement;

/// A disk that hangs does not stop scans.
const SURVEYED_WITHIN: Duration = Duration::from_secs(15);

/// The GPUs of the node, as far as they are known.
#[derive(Debug, Default)]
pub(super) struct DynamicGpus {
    /// False: claims make no instances on this node.
    is_on: bool,
    /// By UUID: whether the GPU was in MIG mode when it was first seen.
    seen: BTreeMap<String, bool>,
    /// By UUID.
    gpus: BTreeMap<String, Known>,
}

#[derive(Debug)]
struct Known {
    gpu: Gpu,
    survey: Option<Survey>,
    /// The places of claims' instances, as long as there was no survey. None: not even these are known.
    held: Option<Vec<Held>>,
    /// Why the last survey failed.
    failed: Option<String>,
    unavailable: Option<Unavailable>,
}

// === impl DynamicGpus ===

impl DynamicGpus {
    pub(super) fn new(is_on: bool) -> Self {
        Self {
            is_on,
            ..Self::default()
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// The driver does not answer, for this reason.
    pub(super) fn note_silence(&mut self, reason: &str) {
        for known in self.gpus.values_mut().filter(|known| known.unavailable.is_none()) {
            known.unavailable = Some(Unavailable::Silent(reason.to_owned()));
        }
    }

    /// Takes a list over: removes from it what claims made, and GPUs that may not be published as a whole.
    ///
    /// # Errors
    /// Nothing is known of some GPU's instances, not even which are claims'.
    pub(super) async fn scan(&mut self, list: &mut List, node: &SharedNode) -> Result<(), String> {
        if !self.is_on {
            return Ok(());
        }
        self.note(list);
        let gpus: Vec<String> = list.divided.iter().map(|gpu| gpu.uuid.clone()).collect();
        let gpus: Vec<String> = gpus.into_iter().filter(|uuid| self.gpus.contains_key(uuid)).collect();
        // Also without such a GPU: a record of one that is whole now must not outlive the instance that it names.
        let survey = node.turn(move |node, locked| node.survey(locked, &gpus));
        let failed = match tokio::time::timeout(SURVEYED_WITHIN, survey).await {
            Ok(Ok(Ok(surveys))) => {
                self.add(surveys);
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
        self.remove_from(list);
        let is_unknown = |known: &Known| known.survey.is_none() && known.held.is_none();
        match failed {
            Some(why) if self.gpus.values().any(is_unknown) => Err(why),
            _ => Ok(()),
        }
    }

    /// Notes which GPUs are in MIG mode.
    fn note(&mut self, list: &List) {
        for gpu in &list.divided {
            let short = candidates::short(&gpu.uuid);
            let is_alone = || !self.gpus.keys().any(|other| candidates::short(other) == short);
            let is_dynamic = match self.seen.get(&gpu.uuid) {
                Some(known) => *known,
                None => short.len() == vgpu_api::GPU_DIGITS && is_alone(),
            };
            self.seen.insert(gpu.uuid.clone(), is_dynamic);
            if is_dynamic {
                let known = self.gpus.remove(&gpu.uuid);
                let known = known.map_or_else(|| Known::new(gpu), |known| known.seen_again(gpu));
                self.gpus.insert(gpu.uuid.clone(), known);
            }
        }
        for gpu in &list.gpus {
            self.seen.entry(gpu.uuid.clone()).or_insert(false);
        }
        for (uuid, known) in &mut self.gpus {
            if list.divided.iter().any(|gpu| gpu.uuid == *uuid) {
                continue;
            }
            let left_out = list.left_out.iter().find(|left| left.uuid.as_ref() == Some(uuid));
            let is_whole = list.gpus.iter().any(|gpu| gpu.uuid == *uuid);
            known.unavailable = Some(match is_whole {
                true => Unavailable::Lost(SWITCHED_OFF.into()),
                false => Unavailable::missing(left_out),
            });
        }
    }

    fn add(&mut self, surveys: BTreeMap<String, Result<Survey, NoSurvey>>) {
        for (uuid, survey) in surveys {
            if let Some(known) = self.gpus.get_mut(&uuid) {
                known.add(survey);
            }
        }
    }

    /// Has GPUs whose survey failed count as silent, also those that have none because no turn was had.
    fn mark_unsurveyed(&mut self, no_turn: Option<&str>) {
        for known in self.gpus.values_mut().filter(|known| known.unavailable.is_none()) {
            let never = || no_turn.filter(|_| known.survey.is_none()).map(str::to_owned);
            known.unavailable = known.failed.clone().or_else(never).map(Unavailable::Silent);
        }
    }

    fn remove_from(&self, list: &mut List) {
        list.instances.retain(|instance| {
            let known = instance
                .mig
                .as_ref()
                .and_then(|mig| Some((mig, self.gpus.get(&mig.parent)?)));
            known.is_none_or(|(mig, known)| known.is_administrators(mig.gpu_instance, mig.placement))
        });
        // One that is being made has no compute instance for a moment.
        list.left_out.retain(|left| match &left.why {
            gpus::Error::EmptyInstance { gpu, gpu_instance, .. } => {
                let known = self.gpus.get(gpu);
                known.is_none_or(|known| known.is_administrators(*gpu_instance, None))
            }
            _ => true,
        });
        let (whole, others) = std::mem::take(&mut list.gpus)
            .into_iter()
            .partition(|gpu| self.gpus.contains_key(&gpu.uuid));
        list.gpus = others;
        let whole: Vec<Gpu> = whole;
        list.left_out.extend(whole.into_iter().map(|gpu| LeftOut {
            why: gpus::Error::Field {
                index: gpu.index,
                field: "MIG mode".into(),
                reason: SWITCHED_OFF.into(),
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
        });
        let unavailable = self
            .gpus
            .iter()
            .filter_map(|(uuid, known)| Some((uuid.clone(), known.unavailable.clone()?)));
        (gpus.collect(), unavailable.collect())
    }

    /// Remarks for the operator: a sentence each.
    pub(super) fn remarks(&self) -> Vec<String> {
        let surveys = self.gpus.values().filter_map(|known| known.survey.as_ref());
        // Each survey has the problems of the whole node.
        let problems = surveys
            .map(|survey| &survey.problems)
            .max_by_key(|problems| problems.len());
        let refused = self.gpus.values().filter_map(|known| known.pool()?.err());
        problems
            .into_iter()
            .flatten()
            .cloned()
            .chain(refused.map(|error| error.to_string()))
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

const SWITCHED_OFF: &str = "it was switched off while claims may have instances of the GPU (chart value mig.dynamic); switch it \
                            on (nvidia-smi -mig 1), or restart the plugin to publish the GPU as a whole";

// === impl Known ===

impl Known {
    fn new(gpu: &Gpu) -> Self {
        Self {
            gpu: gpu.clone(),
            survey: None,
            held: None,
            failed: None,
            unavailable: None,
        }
    }

    fn seen_again(self, gpu: &Gpu) -> Self {
        Self {
            gpu: gpu.clone(),
            unavailable: None,
            ..self
        }
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
        let administrators = survey.administrators.iter().map(|one| Administrators {
            profile: one.profile,
            placement: one.placement,
            // A plugin that has restarted does not know what was published before, and a counter must not get lower.
            is_from_start: false,
        });
        let administrators: Vec<Administrators> = administrators.collect();
        let pool = Pool::new(&self.gpu.uuid, &survey.profiles, &administrators, &survey.held);
        Some(pool.map(|pool| Pool {
            leftovers: survey.leftovers.clone(),
            ..pool
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::node::tests::Rig;
    use crate::dra::node::tests::instances::{Machine, of};
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
        dynamic.scan(&mut seen, node).await.expect("records");
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
        let mut dynamic = DynamicGpus::new(true);
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
        let mut dynamic = DynamicGpus::new(true);
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
        assert!(
            said.contains("nvidia-smi -mig 1") && said.contains("mig.dynamic"),
            "{said}"
        );
        let gone = List::default();
        scan(&mut dynamic, gone, &node).await;
        assert_eq!(unavailable(&dynamic), Some(Unavailable::Lost(String::new())));
        scan(&mut dynamic, list(&[]), &node).await;
        assert_eq!(unavailable(&dynamic), None, "back");
        // Seen as a whole first, or on a node that does not opt in: its administrator's.
        for (is_on, first) in [(true, whole), (false, List::default())] {
            let mut other = DynamicGpus::new(is_on);
            scan(&mut other, first, &node).await;
            let seen = scan(&mut other, list(&[1, 2]), &node).await;
            assert_eq!((seen, other.is_empty()), (list(&[1, 2]), true));
        }
    }

    fn unavailable(dynamic: &DynamicGpus) -> Option<Unavailable> {
        dynamic.published().1.remove(&gpu(0).uuid)
    }

    /// An administrator's in the first half, and a claim's in the second.
    async fn with_both_halves(rig: &Rig, machine: &Machine) -> SharedNode {
        machine.make_half(0);
        let node = node(rig, machine);
        scan(&mut DynamicGpus::new(true), list(&[1]), &node).await;
        let made = node.turn(|node, _| node.make_for_test(&of("u1", &[LAST_HALF])));
        assert_eq!(made.await.expect("a turn"), Ok(()));
        node
    }

    #[tokio::test]
    async fn a_first_survey_that_fails_unpublishes_nothing_and_says_why() {
        let (rig, machine) = (Rig::new(false), Machine::default());
        let node = with_both_halves(&rig, &machine).await;
        machine.state().silence = Some("a process with NVML hangs".into());
        let mut dynamic = DynamicGpus::new(true);
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
        let mut dynamic = DynamicGpus::new(true);
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
        let mut dynamic = DynamicGpus::new(true);
        let mut seen = list(&[1]);
        dynamic.scan(&mut seen, &node).await.expect_err("nothing is known");
        assert_eq!(seen.instances, []);
        std::fs::remove_file(&folder).expect("removed");
        scan(&mut dynamic, list(&[1]), &node).await;
        // From now on the last survey holds.
        std::fs::write(&folder, "").expect("written");
        let seen = scan(&mut dynamic, list(&[1]), &node).await;
        assert_eq!((uuids(&seen.instances), unavailable(&dynamic)), (vec!["MIG-1"], None));
    }
}

//! The GPUs on which claims make instances: those that are in MIG mode when the plugin first sees them. Their instances that no
//! claim made are published as on other GPUs.
//!
//! Failure modes:
//! - The driver or the records do not answer a survey: what the last one found stays published. Before the first one, the GPU is
//!   not published.
//! - The driver answers nothing: the devices stay, with the taint of a driver that is silent.
//! - The GPU is lost, or its MIG mode is switched off: its devices stay, with the taint of a lost GPU, until it is back or the
//!   plugin starts again. As a whole it is not published meanwhile, because claims may have instances of it.
//! - An administrator makes an instance later: what overlaps it is not offered any more, and no counter changes.
//! - Two GPUs of which the first digits of the UUIDs are equal would have one pool: the second one stays with its administrator.

use crate::dra::node::{SharedNode, Survey};
use crate::publish::inventory::{DynamicGpu, Gpu, LeftOut, List, Unavailable};
use std::collections::BTreeMap;
use std::time::Duration;
use vgpu_mig::Pool;
use vgpu_mig::candidates::{self, Administrators};
use vgpu_node::gpus;

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
    pub(super) async fn scan(&mut self, list: &mut List, node: &SharedNode) {
        if !self.is_on {
            return;
        }
        self.note(list);
        let gpus: Vec<String> = list.divided.iter().map(|gpu| gpu.uuid.clone()).collect();
        let gpus: Vec<String> = gpus.into_iter().filter(|uuid| self.gpus.contains_key(uuid)).collect();
        // Also without such a GPU: a record of one that is whole now must not outlive the instance that it names.
        let survey = node.turn(move |node, locked| node.survey(locked, &gpus));
        match tokio::time::timeout(SURVEYED_WITHIN, survey).await {
            Ok(Ok(Ok(surveys))) => self.add(surveys),
            Ok(Ok(Err(error)) | Err(error)) => tracing::warn!("instances are published as before: {error}"),
            Err(_) => tracing::warn!(
                "instances are published as before: what claims made is not known after {} s; check the node's disks",
                SURVEYED_WITHIN.as_secs()
            ),
        }
        self.remove_from(list);
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
                let survey = self.gpus.remove(&gpu.uuid).and_then(|known| known.survey);
                let known = Known {
                    gpu: gpu.clone(),
                    survey,
                    unavailable: None,
                };
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

    fn add(&mut self, surveys: BTreeMap<String, Survey>) {
        for (uuid, survey) in surveys {
            if let Some(known) = self.gpus.get_mut(&uuid) {
                known.survey = Some(survey);
            }
        }
    }

    fn remove_from(&self, list: &mut List) {
        let is_administrators = |gpu: &str, gpu_instance: u32| match self.gpus.get(gpu) {
            None => true,
            Some(known) => known
                .survey
                .iter()
                .flat_map(|survey| &survey.administrators)
                .any(|one| one.id == gpu_instance),
        };
        list.instances.retain(|instance| {
            let mig = instance.mig.as_ref();
            mig.is_none_or(|mig| is_administrators(&mig.parent, mig.gpu_instance))
        });
        // One that is being made has no compute instance for a moment.
        list.left_out.retain(|left| match &left.why {
            gpus::Error::EmptyInstance { gpu, gpu_instance, .. } => is_administrators(gpu, *gpu_instance),
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
        let pools = self
            .gpus
            .values()
            .filter_map(|known| Some((known, known.pool()?.ok()?)));
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
            .collect()
    }
}

const SWITCHED_OFF: &str = "it was switched off while claims may have instances of the GPU (chart value mig.dynamic); switch it \
                            on (nvidia-smi -mig 1), or restart the plugin to publish the GPU as a whole";

// === impl Known ===

impl Known {
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
        Some(Pool::new(
            &self.gpu.uuid,
            &survey.profiles,
            &administrators,
            &survey.held,
        ))
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
        half.mig.as_mut().expect("an instance").gpu_instance = gpu_instance;
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
        dynamic.scan(&mut seen, node).await;
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
        let unavailable = |dynamic: &DynamicGpus| dynamic.published().1.remove(&gpu(0).uuid);
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
}

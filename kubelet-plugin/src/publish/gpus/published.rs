//! Which GPUs the node publishes, and why some of them are unavailable. Pure: scans and times in, an inventory out.
//!
//! ```text
//!              not in a list            a minute later, and no claim holds it
//!  published ────────────────► tainted ──────────────────────────────────────► not published
//!      ▲                          │                                                  │
//!      └──── in a list again ─────┴──────────────────────────────────────────────────┘
//! ```
//!
//! Failure modes:
//! - A driver that does not answer: every GPU is tainted, and none stops being published, because nothing is known of it.
//!   A GPU that was lost before stays lost: a question that failed is no recovery.
//! - An instance that was destroyed is lost as a GPU is. Another one may come in its place, which programs of the former one
//!   reach by the same capability nodes: it is published once the former one is not any more.
//! - MIG mode is switched while claims have the GPU or an instance of it: their containers keep its device nodes, so that
//!   neither the GPU nor another instance in the same place takes claims beside them.
//! - A GPU that one scan misses is back at the next: it was tainted for some seconds, and nobody lost it.
//! - A Prepare that hung for a minute, in which its GPU was lost and unpublished: once it has ended the GPU is held, and is
//!   published again, as lost.
//! - A restart: the GPUs on which claims hold shares are treated as published; if the first scan lacks one, it is lost.
//!   The others are not published until a scan finds them.

use crate::dra::checkpoint::InUse;
use crate::publish::inventory::{Gpu, Inventory, LeftOut, List, Remarks, Unavailable};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use vgpu_node::driver_limit::DriverLimit;
use vgpu_node::gpus;

/// How long a GPU is lost before it is no longer published. kube-scheduler may be binding a pod to it when it is tainted,
/// and Prepare then says why that pod does not start.
const UNPUBLISHED_AFTER: Duration = Duration::from_secs(60);

/// The GPUs, with why some are unavailable.
#[derive(Debug)]
pub(super) struct Published {
    gpus: Vec<Known>,
    /// What the last list said of GPUs that it left out.
    left_out: Vec<LeftOut>,
    /// What GPUs of the last list did not agree on.
    contradictions: Vec<String>,
    /// The GPUs that claims had at the last scan.
    in_use: Vec<InUse>,
}

#[derive(Debug)]
struct Known {
    gpu: Gpu,
    /// Why it is unavailable, and since when that is known.
    unavailable: Option<(Unavailable, Instant)>,
}

// === impl Published ===

impl Published {
    /// `in_use`: the GPUs that claims have.
    pub(super) fn new(in_use: Vec<InUse>) -> Self {
        Self {
            gpus: in_use.iter().filter_map(Known::of).collect(),
            left_out: Vec::new(),
            contradictions: Vec::new(),
            in_use,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    pub(super) fn has(&self, uuid: &str) -> bool {
        self.gpus.iter().any(|known| known.gpu.uuid == uuid)
    }

    /// Forgets GPUs that are published elsewhere from now on.
    pub(super) fn forget(&mut self, is_elsewhere: impl Fn(&str) -> bool) {
        self.gpus.retain(|known| !is_elsewhere(&known.gpu.uuid));
    }

    /// Applies a scan, or the reason why there was none. `in_use`: the GPUs that claims have, which are published again if they
    /// were not published any more.
    pub(super) fn apply(&mut self, seen: Result<&List, &str>, in_use: &[InUse], now: Instant) {
        let unpublished = in_use.iter().filter(|one| !self.has(&one.gpu.uuid));
        let unpublished: Vec<Known> = unpublished.filter_map(Known::of).collect();
        self.gpus.extend(unpublished);
        match seen {
            Err(reason) => {
                for known in &mut self.gpus {
                    if !known.is_lost() {
                        known.mark(Unavailable::Silent(reason.to_owned()), now);
                    }
                }
            }
            Ok(list) => {
                for known in &mut self.gpus {
                    known.apply(list, now);
                }
                self.gpus
                    .retain(|known| !known.is_over(now) || in_use.iter().any(|one| one.gpu.uuid == known.gpu.uuid));
                let new = list.gpus.iter().filter(|gpu| !self.has_place_of(gpu));
                let new: Vec<Known> = new.cloned().map(Known::new).collect();
                self.gpus.extend(new);
                self.left_out.clone_from(&list.left_out);
                self.contradictions.clone_from(&list.contradictions);
            }
        }
        self.in_use = in_use.to_vec();
    }

    fn has_place_of(&self, gpu: &Gpu) -> bool {
        self.gpus.iter().any(|known| is_in_place_of(&known.gpu, gpu))
    }

    /// The device of which claims have shares and that excludes this one.
    fn overlapping(&self, gpu: &Gpu) -> Option<Unavailable> {
        let mut others = self.in_use.iter().filter(|one| one.has_shares);
        let other = others.find(|other| gpu.is_excluded_by(&other.gpu))?;
        Some(Unavailable::Overlap(other.gpu.uuid.clone()))
    }

    pub(super) fn inventory(&self) -> Inventory {
        let gpus = self.gpus.iter().map(|known| known.gpu.clone()).collect();
        let unavailable = self.gpus.iter().filter_map(|known| {
            let own = known.unavailable.clone().map(|(why, _)| why);
            let why = own.or_else(|| self.overlapping(&known.gpu))?;
            Some((known.gpu.uuid.clone(), why))
        });
        let is_known = |left: &LeftOut| left.uuid.as_ref().is_some_and(|uuid| self.has(uuid));
        let left_out = self
            .left_out
            .iter()
            .filter(|left| !is_known(left) && !matches!(left.why, gpus::Error::Mig { .. }));
        let remarks = Remarks {
            left_out: left_out.map(|left| left.why.to_string()).collect(),
            contradictions: self.contradictions.clone(),
            settings: Vec::new(),
        };
        Inventory::with_unavailable(gpus, unavailable.collect::<BTreeMap<_, _>>()).with_remarks(remarks)
    }
}

// === impl Known ===

impl Known {
    fn new(gpu: Gpu) -> Self {
        Self { gpu, unavailable: None }
    }

    /// None: it is in the pool of a dynamic GPU, which is published whether the driver lists it or not; or nothing but its UUID is
    /// known, and it is published once the driver lists it.
    fn of(in_use: &InUse) -> Option<Self> {
        let InUse { gpu, is_dynamic, .. } = in_use;
        (!is_dynamic && !gpu.is_in_unknown_place()).then(|| Self::new(gpu.clone()))
    }

    fn apply(&mut self, list: &List, now: Instant) {
        let found = list.gpus.iter().find(|gpu| is_in_place_of(&self.gpu, gpu));
        if let Some(other) = found.filter(|found| !self.gpu.is_same(found)) {
            let profile = other.mig.as_ref().map(ToString::to_string).unwrap_or_default();
            return self.mark(Unavailable::Replaced(format!("{profile} ({})", other.uuid)), now);
        }
        if let Some(found) = found {
            self.gpu = updated(&self.gpu, found);
            self.unavailable = None;
            return;
        }
        self.mark(self.missing(list), now);
    }

    /// Why it is not in a list.
    fn missing(&self, list: &List) -> Unavailable {
        let named = |uuid: &str| list.left_out.iter().find(|left| left.uuid.as_deref() == Some(uuid));
        let own = named(&self.gpu.uuid);
        let Some(mig) = self.gpu.mig.as_ref().filter(|_| own.is_none()) else {
            return Unavailable::missing(own);
        };
        match named(&mig.parent).map(|left| &left.why) {
            // The GPU answers, and this instance is none of its instances.
            Some(gpus::Error::Mig { .. }) => Unavailable::missing(None),
            Some(why) => Unavailable::Lost(why.to_string()),
            None if list.gpus.iter().any(|gpu| gpu.uuid == mig.parent) => {
                Unavailable::Lost(format!("MIG mode of its GPU {} was switched off", mig.parent))
            }
            None => Unavailable::Lost(format!("the driver does not list its GPU {} any more", mig.parent)),
        }
    }

    fn mark(&mut self, why: Unavailable, now: Instant) {
        let lasts = self.is_lost() && why.is_lost();
        let since = self
            .unavailable
            .take()
            .filter(|_| lasts)
            .map_or(now, |(_, since)| since);
        self.unavailable = Some((why, since));
    }

    /// Returns true if the driver answered, and did not list it.
    fn is_lost(&self) -> bool {
        self.unavailable.as_ref().is_some_and(|(why, _)| why.is_lost())
    }

    fn is_over(&self, now: Instant) -> bool {
        let since = self.unavailable.as_ref().map(|(_, since)| *since);
        self.is_lost() && since.is_some_and(|since| now.saturating_duration_since(since) >= UNPUBLISHED_AFTER)
    }
}

/// Returns a published GPU as a list has it now. Claims may have been allocated by the published size, which stays.
pub(super) fn updated(known: &Gpu, found: &Gpu) -> Gpu {
    Gpu {
        memory: known.memory,
        memory_source: known.memory_source,
        driver_limit: driver_limit(known, found),
        ..found.clone()
    }
}

/// The answer of before holds until there is another one; limits that are known to be kept, until their driver refuses or is
/// replaced. So a driver that hangs while the plugin starts does not switch them off where claims have them.
fn driver_limit(known: &Gpu, found: &Gpu) -> Option<DriverLimit> {
    let is_same_driver = found.driver_version == known.driver_version;
    match &found.driver_limit {
        None => known.driver_limit.clone(),
        Some(DriverLimit::Unknown(_)) if is_same_driver && known.has_driver_limit() => known.driver_limit.clone(),
        answer => answer.clone(),
    }
}

/// Returns true if the two are the same GPU, or have been instances in the same place.
fn is_in_place_of(one: &Gpu, other: &Gpu) -> bool {
    let place = |gpu: &Gpu| gpu.mig.as_ref().map(|mig| (mig.parent.clone(), mig.gpu_instance));
    one.uuid == other.uuid || (one.mig.is_some() && place(one) == place(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::inventory::tests::{gpu, instance};

    /// The GPUs, with shares of claims.
    fn held<'a>(gpus: impl IntoIterator<Item = &'a Gpu>) -> Vec<InUse> {
        let held = |gpu: &Gpu| InUse {
            gpu: gpu.clone(),
            has_shares: true,
            is_dynamic: false,
        };
        gpus.into_iter().map(held).collect()
    }

    fn list(gpus: &[Gpu]) -> List {
        List {
            gpus: gpus.to_vec(),
            ..List::default()
        }
    }

    /// The taint of each published GPU, by index; empty if it is available.
    fn taints(published: &Published) -> Vec<(u32, &'static str)> {
        let inventory = published.inventory();
        let all = inventory.by_index().into_iter();
        let taint = |gpu: &Gpu| inventory.unavailable(&gpu.uuid).map_or("", Unavailable::name);
        all.map(|(_, gpu)| (gpu.index, taint(gpu))).collect()
    }

    #[test]
    fn gpus_are_added_and_never_resized() {
        let shrunk = Gpu {
            memory: 1,
            driver_version: "550.1".into(),
            ..gpu(0)
        };
        let mut published = Published::new(held(&[gpu(0)]));
        published.apply(Ok(&list(&[shrunk, gpu(2)])), &[], Instant::now());
        let inventory = published.inventory();
        let gpus = inventory.by_index();
        assert_eq!(gpus[0].1.memory, gpu(0).memory);
        assert_eq!(gpus[0].1.driver_version, "550.1");
        assert_eq!((gpus.len(), gpus[1].1), (2, &gpu(2)));
    }

    #[test]
    fn a_driver_that_does_not_answer_switches_no_limit_off_that_it_is_known_to_keep() {
        let of = |before: Option<DriverLimit>, version: &str, found: Option<DriverLimit>| {
            let with = |driver_limit, driver_version: &str| Gpu {
                driver_limit,
                driver_version: driver_version.into(),
                ..gpu(0)
            };
            let mut published = Published::new(held(&[with(before, "615.1")]));
            published.apply(Ok(&list(&[with(found, version)])), &[], Instant::now());
            published.inventory().by_index()[0].1.driver_limit.clone()
        };
        let (dmem, silent) = (Some(DriverLimit::Dmem), Some(DriverLimit::Unknown("it hangs".into())));
        let none = Some(DriverLimit::None("old".into()));
        assert_eq!(of(dmem.clone(), "615.1", silent.clone()), dmem);
        assert_eq!(of(dmem.clone(), "615.1", None), dmem, "nobody has asked");
        assert_eq!(of(dmem.clone(), "615.2", silent.clone()), silent, "another driver");
        assert_eq!(of(dmem, "615.1", none.clone()), none, "a refusal");
        assert_eq!(of(none, "615.1", silent.clone()), silent);
    }

    #[test]
    fn a_gpu_that_a_slow_prepare_held_after_it_was_unpublished_is_published_again() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let (both, second) = (list(&[gpu(0), gpu(1)]), list(&[gpu(1)]));
        let mut published = Published::new(Vec::new());
        published.apply(Ok(&both), &[], after(0));
        published.apply(Ok(&second), &[], after(5));
        published.apply(Ok(&second), &[], after(65));
        assert_eq!(taints(&published), [(1, "")], "unpublished");
        published.apply(Ok(&second), &held(&[gpu(0)]), after(75));
        published.apply(Ok(&second), &held(&[gpu(0)]), after(200));
        assert_eq!(taints(&published), [(0, "lost"), (1, "")]);
        published.apply(Err("hangs"), &held(&[gpu(0), gpu(2)]), after(210));
        assert_eq!(taints(&published), [(0, "lost"), (1, "silent"), (2, "silent")]);
    }

    #[test]
    fn a_lost_gpu_is_tainted_until_it_is_back_and_unpublished_once_nothing_holds_it() {
        let (start, nobody) = (Instant::now(), held(&[]));
        let holds = held(&[gpu(0)]);
        let after = |seconds| start + Duration::from_secs(seconds);
        let (both, second) = (list(&[gpu(0), gpu(1)]), list(&[gpu(1)]));
        let mut published = Published::new(Vec::new());
        published.apply(Ok(&both), &nobody, after(0));
        assert_eq!(taints(&published), [(0, ""), (1, "")]);
        published.apply(Ok(&second), &nobody, after(10));
        assert_eq!(taints(&published), [(0, "lost"), (1, "")]);
        published.apply(Ok(&both), &nobody, after(20));
        assert_eq!(taints(&published), [(0, ""), (1, "")], "back");
        published.apply(Ok(&second), &holds, after(30));
        published.apply(Ok(&second), &nobody, after(89));
        assert_eq!(taints(&published), [(0, "lost"), (1, "")], "not lost for a minute");
        for seconds in [90, 1000] {
            published.apply(Ok(&second), &holds, after(seconds));
            assert_eq!(taints(&published), [(0, "lost"), (1, "")], "in use");
        }
        published.apply(Ok(&second), &nobody, after(1001));
        assert_eq!(taints(&published), [(1, "")]);
        published.apply(Ok(&both), &nobody, after(1010));
        assert_eq!(taints(&published), [(0, ""), (1, "")], "new");
    }

    fn divided(index: u32) -> gpus::Error {
        gpus::Error::Mig {
            uuid: gpu(index).uuid,
            instances: Vec::new(),
        }
    }

    #[test]
    fn a_gpu_in_mig_mode_says_so_and_a_driver_without_gpus_has_lost_all() {
        let mut published = Published::new(held(&[gpu(0), gpu(1)]));
        let one_is_divided = List {
            gpus: vec![gpu(1)],
            left_out: vec![LeftOut {
                uuid: Some(gpu(0).uuid),
                why: divided(0),
            }],
            ..List::default()
        };
        published.apply(Ok(&one_is_divided), &[], Instant::now());
        assert_eq!(taints(&published), [(0, "mig"), (1, "")]);
        published.apply(Ok(&list(&[])), &[], Instant::now());
        assert_eq!(taints(&published), [(0, "lost"), (1, "lost")]);
    }

    const UUID: &str = "MIG-aaaabbbb-1111-5222-8333-444455556666";

    /// Another profile in the same place, with the same UUID or with another one.
    #[test]
    fn an_instance_in_the_place_of_another_one_is_published_after_that_one() {
        for uuid in [UUID, "MIG-ccccdddd-1111-5222-8333-444455556666"] {
            let half = instance(0, UUID);
            let mut eighth = instance(0, uuid);
            eighth.memory = 9_984 << 20;
            eighth.mig.as_mut().expect("an instance").profile = "1g.10gb".into();
            let start = Instant::now();
            let mut published = Published::new(held([&half]));
            published.apply(Ok(&list(std::slice::from_ref(&eighth))), &[], start);
            assert_eq!(published.inventory().len(), 1, "{uuid}");
            let memory = |published: &Published| published.inventory().by_index()[0].1.memory;
            assert_eq!(memory(&published), half.memory);
            let why = published.inventory().unavailable(UUID).cloned().expect("unavailable");
            assert!(
                why.text(UUID).contains(&format!("1g.10gb@4 ({uuid})")),
                "{}",
                why.text(UUID)
            );
            let holds = held([&half]);
            published.apply(
                Ok(&list(std::slice::from_ref(&eighth))),
                &holds,
                start + 2 * UNPUBLISHED_AFTER,
            );
            assert_eq!(memory(&published), half.memory, "a container may still have its nodes");
            published.apply(
                Ok(&list(std::slice::from_ref(&eighth))),
                &[],
                start + 2 * UNPUBLISHED_AFTER,
            );
            assert_eq!((taints(&published), memory(&published)), (vec![(0, "")], eighth.memory));
        }
    }

    #[test]
    fn a_gpu_and_its_instances_exclude_each_other_while_claims_have_one_of_them() {
        let (whole, part, start) = (gpu(0), instance(0, UUID), Instant::now());
        for (held, listed) in [(&part, &whole), (&whole, &part)] {
            let mut published = Published::new(Vec::new());
            let listed = list(std::slice::from_ref(listed));
            published.apply(Ok(&listed), &self::held([held]), start);
            let why = |published: &Published| {
                let of_list = &listed.gpus[0].uuid;
                published.inventory().unavailable(of_list).map(|why| why.text(of_list))
            };
            let said = why(&published).expect("unavailable");
            assert!(
                said.contains(&held.uuid) && said.contains("delete their pods"),
                "{said}"
            );
            published.apply(Ok(&listed), &[], start);
            assert_eq!(why(&published), None);
        }
        // Another GPU's instance, and another instance of the same GPU, exclude nothing.
        let mut neighbour = instance(0, "MIG-eeeeffff-1111-5222-8333-444455556666");
        neighbour.mig.as_mut().expect("an instance").gpu_instance = 7;
        let mut published = Published::new(Vec::new());
        published.apply(Ok(&list(&[gpu(1), part.clone()])), &held(&[part, neighbour]), start);
        assert_eq!(taints(&published)[..2], [(0, ""), (0, "lost")][..]);
        assert_eq!(published.inventory().unavailable(&gpu(1).uuid), None);
    }

    /// Its record was lost, and the limits file has the UUID alone.
    #[test]
    fn an_instance_in_an_unknown_place_excludes_all_that_it_may_be_a_part_of() {
        let unknown = InUse {
            gpu: Gpu::in_unknown_place(UUID).expect("an instance"),
            has_shares: true,
            is_dynamic: false,
        };
        assert_eq!(Gpu::in_unknown_place(&gpu(0).uuid), None);
        let other = "MIG-ccccdddd-1111-5222-8333-444455556666";
        let mut published = Published::new(vec![unknown.clone()]);
        assert!(published.is_empty());
        let all = list(&[gpu(1), instance(0, UUID), instance(2, other)]);
        published.apply(Ok(&all), &[unknown], Instant::now());
        let inventory = published.inventory();
        let is_free = |uuid: &str| inventory.unavailable(uuid).is_none();
        assert_eq!(
            (is_free(&gpu(1).uuid), is_free(UUID), is_free(other)),
            (false, true, false)
        );
    }

    #[test]
    fn a_lost_instance_says_whether_its_gpu_is_there() {
        let part = instance(0, UUID);
        let failing = LeftOut {
            uuid: Some(gpu(0).uuid),
            why: gpus::Error::Field {
                index: 0,
                field: "name".into(),
                reason: "GPU is lost".into(),
            },
        };
        let divided = LeftOut {
            uuid: Some(gpu(0).uuid),
            why: gpus::Error::Mig {
                uuid: gpu(0).uuid,
                instances: Vec::new(),
            },
        };
        for (gpus, left_out, expected) in [
            (vec![], vec![failing], "GPU is lost"),
            (vec![], vec![divided], "it was destroyed"),
            (vec![], vec![], "does not list its GPU"),
            (vec![gpu(0)], vec![], "MIG mode of its GPU"),
        ] {
            let mut published = Published::new(held([&part]));
            let left = List {
                left_out,
                ..list(&gpus)
            };
            published.apply(Ok(&left), &[], Instant::now());
            let why = published.inventory().unavailable(UUID).map(|why| why.text(UUID));
            assert!(why.as_ref().is_some_and(|why| why.contains(expected)), "{why:?}");
        }
    }

    #[test]
    fn a_question_that_failed_recovers_nothing_and_unpublishes_nothing() {
        let (start, nobody) = (Instant::now(), held(&[]));
        let mut published = Published::new(held(&[gpu(0), gpu(1)]));
        published.apply(Ok(&list(&[gpu(1)])), &nobody, start);
        for seconds in [10, 1000] {
            published.apply(Err("hangs"), &nobody, start + Duration::from_secs(seconds));
            assert_eq!(taints(&published), [(0, "lost"), (1, "silent")]);
        }
        published.apply(Ok(&list(&[gpu(0), gpu(1)])), &nobody, start + Duration::from_secs(1010));
        assert_eq!(taints(&published), [(0, ""), (1, "")]);
    }

    #[test]
    fn what_is_left_out_is_said_unless_it_is_published_or_divided() {
        let left_out = |index: u32, why| LeftOut {
            uuid: Some(gpu(index).uuid),
            why,
        };
        let no_figure = |index: u32| gpus::Error::NoMemoryFigure {
            uuid: gpu(index).uuid,
            product: "NVIDIA GB10".into(),
        };
        let mut published = Published::new(held(&[gpu(0)]));
        let seen = List {
            gpus: vec![gpu(3)],
            left_out: vec![
                left_out(0, no_figure(0)),
                left_out(1, no_figure(1)),
                left_out(2, divided(2)),
            ],
            contradictions: vec!["a sentence".into()],
            ..List::default()
        };
        published.apply(Ok(&seen), &held(&[gpu(0)]), Instant::now());
        assert_eq!(taints(&published), [(0, "lost"), (3, "")]);
        let inventory = published.inventory();
        let remarks = inventory.remarks();
        assert_eq!(remarks.contradictions, ["a sentence"]);
        let [said] = &remarks.left_out[..] else {
            panic!("{:?}", remarks.left_out);
        };
        for part in [
            &gpu(1).uuid,
            "\"NVIDIA GB10\"",
            "gpuMemory: {\"NVIDIA GB10\": 96Gi}",
            "--gpu-memory 'NVIDIA GB10=96Gi'",
        ] {
            assert!(said.contains(part), "{said}");
        }
        let why = inventory.unavailable(&gpu(0).uuid).map(|why| why.text(&gpu(0).uuid));
        assert!(why.is_some_and(|why| why.contains("gpuMemory")));
        published.apply(Ok(&list(&[gpu(3)])), &held(&[gpu(0)]), Instant::now());
        assert_eq!(published.inventory().remarks(), &Remarks::default());
    }
}

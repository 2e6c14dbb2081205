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
//! - An instance that was destroyed is lost as a GPU is. Another one may come in its place under the same UUID: it is
//!   published once the former one is not any more.
//! - A GPU that one scan misses is back at the next: it was tainted for some seconds, and nobody lost it.
//! - A Prepare that hung for a minute, in which its GPU was lost and unpublished: once it has ended the GPU is held, and is
//!   published again, as lost.
//! - A restart: the GPUs on which claims hold shares are treated as published; if the first scan lacks one, it is lost.
//!   The others are not published until a scan finds them.

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
}

#[derive(Debug)]
struct Known {
    gpu: Gpu,
    /// Why it is unavailable, and since when that is known.
    unavailable: Option<(Unavailable, Instant)>,
}

// === impl Published ===

impl Published {
    /// `in_use`: the GPUs of which claims have shares.
    pub(super) fn new(in_use: Vec<Gpu>) -> Self {
        let known = |gpu| Known { gpu, unavailable: None };
        Self {
            gpus: in_use.into_iter().map(known).collect(),
            left_out: Vec::new(),
            contradictions: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    pub(super) fn has(&self, uuid: &str) -> bool {
        self.gpus.iter().any(|known| known.gpu.uuid == uuid)
    }

    /// Applies a scan, or the reason why there was none. `in_use`: the GPUs of which claims have shares, which are published
    /// again if they were not published any more.
    pub(super) fn apply(&mut self, seen: Result<&List, &str>, in_use: &[Gpu], now: Instant) {
        let unpublished: Vec<Gpu> = in_use.iter().filter(|gpu| !self.has(&gpu.uuid)).cloned().collect();
        self.gpus.extend(Self::new(unpublished).gpus);
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
                    .retain(|known| !known.is_over(now) || in_use.iter().any(|gpu| gpu.uuid == known.gpu.uuid));
                let new = list.gpus.iter().filter(|gpu| !self.has(&gpu.uuid)).cloned();
                let new: Vec<Gpu> = new.collect();
                self.gpus.extend(Self::new(new).gpus);
                self.left_out.clone_from(&list.left_out);
                self.contradictions.clone_from(&list.contradictions);
            }
        }
    }

    pub(super) fn inventory(&self) -> Inventory {
        let gpus = self.gpus.iter().map(|known| known.gpu.clone()).collect();
        let unavailable = self.gpus.iter().filter_map(|known| {
            let (why, _) = known.unavailable.clone()?;
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
        };
        Inventory::with_unavailable(gpus, unavailable.collect::<BTreeMap<_, _>>()).with_remarks(remarks)
    }
}

// === impl Known ===

impl Known {
    fn apply(&mut self, list: &List, now: Instant) {
        let found = list.gpus.iter().find(|gpu| gpu.uuid == self.gpu.uuid);
        if let Some(mig) = found.and_then(|found| found.mig.as_ref())
            && self.gpu.mig.as_ref().is_none_or(|known| known.profile != mig.profile)
        {
            // An instance made in the same place has the same UUID. Claims have been allocated by the former one's size.
            return self.mark(Unavailable::Replaced(mig.profile.clone()), now);
        }
        if let Some(found) = found {
            self.gpu = Gpu {
                // Claims may have been allocated by the published size.
                memory: self.gpu.memory,
                memory_source: self.gpu.memory_source,
                driver_limit: self.driver_limit(found),
                ..found.clone()
            };
            self.unavailable = None;
            return;
        }
        let named = list
            .left_out
            .iter()
            .find(|left| left.uuid.as_ref() == Some(&self.gpu.uuid));
        self.mark(Unavailable::missing(named), now);
    }

    /// The answer of before holds until there is another one; limits that are known to be kept, until their driver refuses or is
    /// replaced. So a driver that hangs while the plugin starts does not switch them off where claims have them.
    fn driver_limit(&self, found: &Gpu) -> Option<DriverLimit> {
        let is_same_driver = found.driver_version == self.gpu.driver_version;
        match &found.driver_limit {
            None => self.gpu.driver_limit.clone(),
            Some(DriverLimit::Unknown(_)) if is_same_driver && self.gpu.has_driver_limit() => {
                self.gpu.driver_limit.clone()
            }
            answer => answer.clone(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::inventory::tests::{gpu, instance};

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
        let mut published = Published::new(vec![gpu(0)]);
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
            let mut published = Published::new(vec![with(before, "615.1")]);
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
        published.apply(Ok(&second), &[gpu(0)], after(75));
        published.apply(Ok(&second), &[gpu(0)], after(200));
        assert_eq!(taints(&published), [(0, "lost"), (1, "")]);
        published.apply(Err("hangs"), &[gpu(0), gpu(2)], after(210));
        assert_eq!(taints(&published), [(0, "lost"), (1, "silent"), (2, "silent")]);
    }

    #[test]
    fn a_lost_gpu_is_tainted_until_it_is_back_and_unpublished_once_nothing_holds_it() {
        let (start, nobody) = (Instant::now(), []);
        let holds = [gpu(0)];
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
        let mut published = Published::new(vec![gpu(0), gpu(1)]);
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

    /// UUIDs of instances depend on their place alone, so another profile may come back under the same one.
    #[test]
    fn an_instance_that_another_one_replaces_is_unpublished_before_that_one_is_published() {
        let uuid = "MIG-aaaabbbb-1111-5222-8333-444455556666";
        let half = instance(0, uuid);
        let mut eighth = half.clone();
        eighth.memory = 9_984 << 20;
        eighth.mig.as_mut().expect("an instance").profile = "1g.10gb".into();
        let start = Instant::now();
        let mut published = Published::new(vec![half.clone()]);
        published.apply(Ok(&list(&[eighth.clone()])), &[], start);
        let memory = |published: &Published| published.inventory().by_index()[0].1.memory;
        assert_eq!(
            (taints(&published), memory(&published)),
            (vec![(0, "replaced")], half.memory)
        );
        published.apply(Ok(&list(&[eighth.clone()])), &[], start + UNPUBLISHED_AFTER);
        assert_eq!((taints(&published), memory(&published)), (vec![(0, "")], eighth.memory));
    }

    #[test]
    fn a_question_that_failed_recovers_nothing_and_unpublishes_nothing() {
        let (start, nobody) = (Instant::now(), []);
        let mut published = Published::new(vec![gpu(0), gpu(1)]);
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
        let mut published = Published::new(vec![gpu(0)]);
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
        published.apply(Ok(&seen), &[gpu(0)], Instant::now());
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
        published.apply(Ok(&list(&[gpu(3)])), &[gpu(0)], Instant::now());
        assert_eq!(published.inventory().remarks(), &Remarks::default());
    }
}

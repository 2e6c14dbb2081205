//! Compares what shares use of their GPUs with what they may, every 2 s.
//!
//! Failure modes: an NVML that hangs is not asked again before it has answered, and meanwhile nothing is known. A node
//! without shares that are limited asks nothing, and one without claims reads no pages. After a restart nothing is known
//! and nobody is ignored, until it was seen again.

use super::charged::Charges;
use super::judge::{Judge, Observed, Paged, Seen, Verdict};
use super::processes::{Place, shares_of};
use super::utilisation::{Used, Utilisation};
use crate::node::{Node, SharedNode};
use crate::share::{ShareKey, ShareKeys};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use vgpu_abi::arbitration::{Counted, entry_flags};
use vgpu_abi::paths::LEDGER;

const EVERY: Duration = Duration::from_secs(2);

/// The verdicts of the last comparison, for metrics and events.
#[derive(Clone, Debug, Default)]
pub struct Comparison(Arc<Mutex<Compared>>);

#[derive(Debug, Default)]
struct Compared {
    verdicts: BTreeMap<ShareKey, Verdict>,
    last_active: BTreeMap<ShareKey, SystemTime>,
}

// === impl Comparison ===

impl Comparison {
    /// The verdicts, by share.
    #[must_use]
    pub fn verdicts(&self) -> BTreeMap<ShareKey, Verdict> {
        self.lock().verdicts.clone()
    }

    /// When each share was last charged GPU time, as far as this instance saw it.
    #[must_use]
    pub fn last_active(&self) -> BTreeMap<ShareKey, SystemTime> {
        self.lock().last_active.clone()
    }

    pub(crate) fn set(&self, verdicts: BTreeMap<ShareKey, Verdict>) {
        self.lock().verdicts = verdicts;
    }

    pub(crate) fn touch(&self, active: impl IntoIterator<Item = ShareKey>, now: SystemTime) {
        self.lock().last_active.extend(active.into_iter().map(|key| (key, now)));
    }

    /// Forgets shares that are gone.
    fn keep(&self, is_there: impl Fn(&ShareKey) -> bool) {
        self.lock().last_active.retain(|key, _| is_there(key));
    }

    fn lock(&self) -> MutexGuard<'_, Compared> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The use of each share by NVML, in percent, by GPU. None: NVML did not answer for this GPU.
type UsedByGpu = BTreeMap<String, Option<BTreeMap<ShareKey, f64>>>;

/// Compares for ever.
pub async fn run(node: SharedNode, nvml: impl Utilisation, comparison: Comparison) {
    let nvml = Arc::new(nvml);
    let (mut comparer, mut had_claims) = (Comparer::default(), true);
    loop {
        tokio::time::sleep(EVERY).await;
        let read = node.read(|node| (!node.claims().claims.is_empty(), limited(node)));
        let (has_claims, places) = read.await.unwrap_or_default();
        // Once more after the last claim, to forget its shares.
        if !std::mem::replace(&mut had_claims, has_claims) && !has_claims {
            continue;
        }
        let asked = {
            let (nvml, places) = (nvml.clone(), places.clone());
            tokio::task::spawn_blocking(move || ask(&*nvml, Path::new("/proc"), &places))
        };
        let mut asked = std::pin::pin!(asked);
        let used = loop {
            match tokio::time::timeout(EVERY, &mut asked).await {
                // One that panicked has not answered either.
                Ok(used) => break used.unwrap_or_default(),
                Err(_) => comparer = comparer.apply(&node, UsedByGpu::new(), &comparison).await,
            }
        };
        comparer = comparer.apply(&node, used, &comparison).await;
    }
}

/// The ledgers of all shares on GPUs with a limited share, by GPU.
fn limited(node: &Node) -> BTreeMap<String, Vec<Place>> {
    let mut places: BTreeMap<String, Vec<Place>> = BTreeMap::new();
    let mut gpus = BTreeSet::new();
    for placed in node.placed() {
        if placed.entry.flags & entry_flags::UNLIMITED == 0 {
            gpus.insert(placed.gpu.clone());
        }
        let ledger = node.dirs().share_path(&placed.key.0, &placed.key.1).join(LEDGER);
        places.entry(placed.gpu).or_default().push(Place {
            key: placed.key,
            ledger,
        });
    }
    places.retain(|gpu, _| gpus.contains(gpu));
    places
}

/// Asks NVML about each GPU. May block for as long as the driver does.
fn ask(nvml: &impl Utilisation, proc: &Path, places: &BTreeMap<String, Vec<Place>>) -> UsedByGpu {
    let each = places.iter();
    each.map(|(gpu, places)| (gpu.clone(), nvml.of(gpu).and_then(|used| sums(proc, &used, places))))
        .collect()
}

/// The sum over the processes of each share; None if no process could be told a share, because then the PIDs are not
/// those that this process sees.
fn sums(proc: &Path, used: &Used, places: &[Place]) -> Option<BTreeMap<ShareKey, f64>> {
    let shares = shares_of(proc, used.keys().copied(), places);
    if shares.is_empty() && !used.is_empty() {
        return None;
    }
    let mut sums: BTreeMap<ShareKey, f64> = places.iter().map(|place| (place.key.clone(), 0.0)).collect();
    for (pid, percent) in used {
        if let Some(sum) = shares.get(pid).and_then(|key| sums.get_mut(key)) {
            *sum = (*sum + percent).min(100.0);
        }
    }
    Some(sums)
}

/// What is known from the intervals before.
#[derive(Default)]
struct Comparer {
    judge: Judge,
    pages: Pages,
}

// === impl Comparer ===

impl Comparer {
    /// Applies one interval.
    async fn apply(mut self, node: &SharedNode, used: UsedByGpu, comparison: &Comparison) -> Self {
        let judged = node.read(move |node| {
            self.judge(node, &used);
            self
        });
        let comparer = match judged.await {
            Ok(comparer) => comparer,
            Err(error) => {
                tracing::error!("what shares use of their GPUs is counted anew: {error}");
                Self::default()
            }
        };
        comparison.set(comparer.judge.verdicts());
        comparison.touch(comparer.pages.active.iter().cloned(), SystemTime::now());
        comparison.keep(|key| {
            comparer
                .pages
                .last
                .as_ref()
                .is_some_and(|(_, known)| known.contains_key(key))
        });
        let broken: ShareKeys = comparer.judge.broken().cloned().collect();
        let asked = broken.clone();
        if node.read(move |node| *node.ignored() != asked).await.unwrap_or(false) {
            let set = node.turn(move |node, locked| node.set_ignored(locked, broken));
            if let Err(error) = set.await.and_then(|set| set) {
                tracing::warn!(%error, "the other shares of a GPU do not know yet which one to ignore; retrying");
            }
        }
        comparer
    }

    fn judge(&mut self, node: &Node, used: &UsedByGpu) {
        let now = Instant::now();
        let paged = self.pages.read(node, now);
        let observed = node.placed().into_iter().map(|placed| Observed {
            seen: used.get(&placed.gpu).and_then(Option::as_ref).and_then(|used| {
                Some(Seen {
                    used: *used.get(&placed.key)?,
                    paged: paged.get(&placed.key).copied(),
                })
            }),
            key: placed.key,
            gpu: placed.gpu,
            cores: placed.cores,
            entry: placed.entry,
        });
        // A share that is not limited says nothing of another one's limit, and has none.
        let limited = observed.filter(|share| share.entry.flags & entry_flags::UNLIMITED == 0);
        self.judge.apply(&limited.collect::<Vec<_>>(), now);
    }
}

/// The counters of all pages, as of the last comparison.
#[derive(Debug, Default)]
struct Pages {
    charges: Charges,
    last: Option<(Instant, BTreeMap<ShareKey, Option<Counted>>)>,
    /// The shares that were charged something in the last interval.
    active: Vec<ShareKey>,
}

// === impl Pages ===

impl Pages {
    /// Reads what each share was charged and waited since the last call, in percent of the time.
    fn read(&mut self, node: &Node, now: Instant) -> BTreeMap<ShareKey, Paged> {
        let counted = self.charges.read(node, now);
        let before = self.last.replace((now, counted.clone()));
        let Some((then, before)) = before else {
            return BTreeMap::new();
        };
        self.active.clear();
        let added = counted.into_iter().filter_map(|(key, counted)| {
            let before = before.get(&key).copied().flatten()?;
            Some((key, added(before, counted?, now.saturating_duration_since(then))?))
        });
        let added: BTreeMap<ShareKey, Paged> = added.collect();
        let active = added.iter().filter(|(_, paged)| paged.charged > 0.0);
        self.active = active.map(|(key, _)| key.clone()).collect();
        added
    }
}

/// Returns by how much the counters grew, in percent of the interval. None: they went backwards.
fn added(before: Counted, after: Counted, interval: Duration) -> Option<Paged> {
    let percent = |before: u64, after: u64| {
        let added = after.checked_sub(before)?;
        Some(added as f64 / interval.as_nanos().max(1) as f64 * 100.0)
    };
    Some(Paged {
        charged: percent(before.charged, after.charged)?,
        waited: percent(before.waited, after.waited)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::tests::gpu;
    use crate::node::tests::{Rig, claim};
    use std::fs;

    fn counted(charged: u64, waited: u64) -> Counted {
        Counted {
            charged,
            waited,
            ..Counted::default()
        }
    }

    #[test]
    fn what_was_added_is_percent_of_the_interval() {
        let second = Duration::from_secs(1);
        let found = added(counted(1_000, 0), counted(300_001_000, 500_000_000), second);
        assert_eq!(
            found,
            Some(Paged {
                charged: 30.0,
                waited: 50.0
            })
        );
        assert_eq!(added(counted(1, 0), counted(0, 0), second), None, "another share's");
    }

    /// An NVML that answers what it is told.
    struct Told(BTreeMap<String, Option<Used>>);

    impl Utilisation for Told {
        fn of(&self, gpu: &str) -> Option<Used> {
            self.0.get(gpu).cloned().flatten()
        }
    }

    fn key(uid: &str, share: &str) -> ShareKey {
        (uid.to_owned(), share.to_owned())
    }

    /// A node with a share of 30 cores and one of 20 on one GPU, and a process of each: 1 and 2, and 3 of the first.
    fn scene() -> (Rig, Node) {
        let rig = Rig::new(false);
        let mut node = rig.open();
        let claims = [claim("u1", &[("s1", 20, 30)]), claim("u2", &[("s2", 20, 20)])];
        assert!(node.prepare(&node.locked(), &claims).iter().all(Result::is_ok));
        for (pid, uid, share) in [(1, "u1", "s1"), (2, "u2", "s2"), (3, "u1", "s1")] {
            let folder = rig.path("proc").join(format!("{pid}/root/dev/vgpu/{share}"));
            fs::create_dir_all(&folder).expect("a folder");
            fs::hard_link(node.dirs().share_path(uid, share).join(LEDGER), folder.join(LEDGER)).expect("a link");
        }
        (rig, node)
    }

    #[test]
    fn processes_count_toward_their_share_and_strangers_toward_none() {
        let (rig, node) = scene();
        let places = limited(&node);
        let ask = |used: Option<Used>| {
            let told = Told(BTreeMap::from([(gpu(0).uuid, used)]));
            super::ask(&told, &rig.path("proc"), &places)
                .remove(&gpu(0).uuid)
                .expect("the GPU")
        };
        let used = Used::from([(1, 30.0), (3, 15.5), (9, 40.0)]);
        let expected = BTreeMap::from([(key("u1", "s1"), 45.5), (key("u2", "s2"), 0.0)]);
        assert_eq!(ask(Some(used)), Some(expected));
        let beyond = ask(Some(Used::from([(1, 80.0), (3, 80.0)]))).expect("sums");
        assert_eq!(beyond[&key("u1", "s1")], 100.0);
        assert_eq!(
            ask(Some(Used::from([(9, 40.0)]))),
            None,
            "PIDs of another namespace, perhaps"
        );
        assert_eq!(ask(None), None);
        let idle = ask(Some(Used::new())).expect("sums");
        assert!(idle.len() == 2 && idle.values().all(|used| *used == 0.0), "{idle:?}");
    }

    #[test]
    fn a_gpu_whose_shares_are_all_unlimited_is_not_asked() {
        let rig = Rig::new(false);
        let mut node = rig.open();
        assert!(limited(&node).is_empty());
        assert!(
            node.prepare(&node.locked(), &[claim("u1", &[("s1", 80, 0)])])[0].is_ok(),
            "the whole GPU"
        );
        assert!(limited(&node).is_empty());
    }

    #[tokio::test]
    async fn what_is_found_is_told() {
        let (_rig, node) = scene();
        let node = SharedNode::new(node);
        let comparison = Comparison::default();
        let mut comparer = Comparer::default();
        let share = BTreeMap::from([(key("u1", "s1"), 40.0), (key("u2", "s2"), 0.0)]);
        let used = UsedByGpu::from([(gpu(0).uuid, Some(share))]);
        for _ in 0..2 {
            comparer = comparer.apply(&node, used.clone(), &comparison).await;
        }
        let verdicts = comparison.verdicts();
        let first = verdicts[&key("u1", "s1")];
        assert_eq!((verdicts.len(), first.enforced), (2, Some(true)));
        assert_eq!(
            first.error_points,
            Some(40.0),
            "its page says that it was charged nothing"
        );
        comparer.apply(&node, UsedByGpu::new(), &comparison).await;
        assert!(
            comparison
                .verdicts()
                .values()
                .all(|verdict| *verdict == Verdict::default())
        );
    }
}

//! Whether the driver's own limit stands behind the library's for each share, by what was read back. Pure.
//!
//! It does if every container of the share had its limit when the driver was last asked. The containers are those whose
//! processes have the share's mounts, by the kernel's word, and those that the answer names: a container that started
//! without the limit is in the first list alone.
//!
//! How it fails:
//! - A container that started since the driver was asked counts as not read back, until the next answer.
//! - Containers with several shares of one GPU have one limit and one use: the use is not known of each share.

use super::memory::ShareFacts;
use crate::dra::share::{ShareKey, ShareKeys};
use crate::driver_limit::check::is_of;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;
use vgpu_node::cgroup::Container;
use vgpu_node::driver_limit::{PodLimit, Reading, State};

/// What is known of the driver's limits on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReadBack {
    /// This node's driver does not limit cgroups.
    #[default]
    NoSuchLimit,
    /// It does, and it was not read back in the last minute.
    Unknown,
    /// Read back within the last minute.
    Known {
        readings: Arc<[Reading]>,
        /// When the driver was asked.
        asked: Instant,
    },
}

/// The driver's limit of one share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SecondWall {
    /// Every container of the share has its limit.
    pub holds: bool,
    /// A container of the share has no limit, by the last answer. False also if that is not known.
    pub is_missing: bool,
    /// For the claim: why it does not, or what it does not limit. None on a node without such limits.
    pub note: Option<String>,
    /// The largest limit of the share's containers, in bytes.
    pub limit: Option<u64>,
    /// Bytes that the driver has charged to the share's containers. None: not known, or not of this share alone.
    pub used: Option<u64>,
}

/// A container's limit that somebody had changed or removed, or that cannot be set any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Changed {
    pub cgroup: String,
    pub reason: String,
    pub is_set_again: bool,
}

/// Whether the answer names every container that has the share's mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    All,
    NotAll,
    /// The containers are not known.
    NotKnown,
}

// === impl SecondWall ===

impl SecondWall {
    /// Judges a share by its readings, `own`. `used` is left to the caller.
    fn of(own: &[&Reading], named: Named, started_without: Option<&String>) -> Self {
        let failed = own.iter().find(|of| of.state == State::Failed);
        let holds = named == Named::All && !own.is_empty() && failed.is_none();
        let is_missing = named == Named::NotAll || failed.is_some();
        // The hook's report stays when the container that it is about has ended.
        let started_without = started_without.filter(|_| is_missing);
        let note = match (failed, started_without) {
            _ if holds => pod_note(own),
            (Some(failed), _) => Some(format!(
                "the driver's limit of a container cannot be set: {}",
                failed.reason
            )),
            (None, Some(why)) => Some(format!("a container started without the driver's limit: {why}")),
            (None, None) => Some(NOT_READ_BACK.to_owned()),
        };
        let limits = own.iter().filter(|of| of.state != State::Failed);
        Self {
            holds,
            is_missing,
            note,
            limit: limits.map(|of| of.hard).max(),
            used: None,
        }
    }
}

// === impl ReadBack ===

impl ReadBack {
    /// Returns the same after a question that failed: the driver has such limits.
    #[must_use]
    pub(crate) fn or_unknown(&self) -> Self {
        match self {
            Self::NoSuchLimit | Self::Unknown => Self::Unknown,
            Self::Known { .. } => self.clone(),
        }
    }
}

/// Judges each share by the last answer of the driver.
///
/// `seen`: the shares of each container with a process; None: not known. `container`: the container of a cgroup.
/// `started_without`: what the hook reports of containers that started without the limit, by claim.
#[must_use]
pub(crate) fn second_walls<'a>(
    shares: impl IntoIterator<Item = &'a ShareFacts>,
    read_back: &ReadBack,
    seen: Option<&BTreeMap<Container, ShareKeys>>,
    container: impl Fn(&str) -> Option<Container>,
    started_without: &BTreeMap<String, String>,
) -> BTreeMap<ShareKey, SecondWall> {
    let shares: Vec<&ShareFacts> = shares.into_iter().collect();
    let one = |share: &ShareFacts| match read_back {
        ReadBack::NoSuchLimit => SecondWall::default(),
        ReadBack::Unknown => SecondWall {
            note: Some(UNKNOWN.to_owned()),
            ..SecondWall::default()
        },
        ReadBack::Known { readings, .. } => {
            let is_own = |reading: &&Reading| is_of(reading, &share.key) && reading.gpu == share.gpu;
            let own: Vec<&Reading> = readings.iter().filter(is_own).collect();
            let named = own.iter().filter_map(|of| container(&of.cgroup)).collect();
            let named = match seen {
                None => Named::NotKnown,
                Some(seen) if has_all(&named, seen, &share.key) => Named::All,
                Some(_) => Named::NotAll,
            };
            let are_all_read = named == Named::All && !own.is_empty();
            let why = started_without.get(&share.key.0);
            SecondWall {
                used: used(share, &own, readings).filter(|_| are_all_read && !has_company(share, &shares, seen)),
                ..SecondWall::of(&own, named, why)
            }
        }
    };
    shares.iter().map(|share| (share.key.clone(), one(share))).collect()
}

/// Returns true if these are all containers of the share with a process.
fn has_all(named: &BTreeSet<Container>, seen: &BTreeMap<Container, ShareKeys>, share: &ShareKey) -> bool {
    seen.iter()
        .all(|(container, has)| !has.contains(share) || named.contains(container))
}

/// Returns true if a container of the share has another share of the GPU: their use is one figure.
fn has_company(share: &ShareFacts, shares: &[&ShareFacts], seen: Option<&BTreeMap<Container, ShareKeys>>) -> bool {
    let others = shares.iter().filter(|of| of.gpu == share.gpu && of.key != share.key);
    let keys: BTreeSet<&ShareKey> = others.map(|of| &of.key).collect();
    let mut own = seen.into_iter().flatten().filter(|(_, has)| has.contains(&share.key));
    own.any(|(_, has)| has.iter().any(|key| keys.contains(key)))
}

/// The use of the share's containers. None: a cgroup was not read, or is that of other shares too.
fn used(share: &ShareFacts, own: &[&Reading], readings: &[Reading]) -> Option<u64> {
    let is_other =
        |of: &Reading, other: &Reading| other.cgroup == of.cgroup && other.gpu == of.gpu && !is_of(other, &share.key);
    let is_known = |of: &&Reading| of.state != State::Failed && !readings.iter().any(|other| is_other(of, other));
    let sum = |sum: u64, of: &&Reading| sum.saturating_add(of.used);
    own.iter().all(is_known).then(|| own.iter().fold(0, sum))
}

const UNKNOWN: &str = "the driver's limits were not read back in the last minute; the plugin's log says why";
const NOT_READ_BACK: &str = "the driver's limit was not read back from each of its containers in the last minute";

/// What the limit does not hold although each container has its own.
fn pod_note(own: &[&Reading]) -> Option<String> {
    let has = |limit: PodLimit| own.iter().any(|of| of.pod == limit);
    if has(PodLimit::Failed) {
        return Some("the limit of the pod as a whole cannot be set, so its containers have one each".to_owned());
    }
    has(PodLimit::Lifted).then(|| {
        let lifted = own
            .iter()
            .filter(|of| of.pod == PodLimit::Lifted && of.state == State::Held);
        let mut causes = lifted.map(|of| of.reason.as_str()).filter(|why| !why.is_empty());
        let lifted = "the limit of the pod as a whole is lifted until the pod ends";
        match causes.next() {
            Some(why) => format!("{lifted}: {why}"),
            None => format!("{lifted}, and its containers have one each"),
        }
    })
}

/// The limits that were changed, one of each share: one that cannot be set, if there is any.
#[must_use]
pub(crate) fn changed(readings: &[Reading]) -> BTreeMap<ShareKey, Changed> {
    let in_state = |state| readings.iter().filter(move |of| of.state == state);
    let changed = in_state(State::SetAgain).chain(in_state(State::Failed)).map(|of| {
        let changed = Changed {
            cgroup: of.cgroup.clone(),
            reason: of.reason.clone(),
            is_set_again: of.state == State::SetAgain,
        };
        ((of.claim.clone(), of.share.clone()), changed)
    });
    changed.collect()
}

/// How many limits of cgroups were set again.
#[must_use]
pub(crate) fn set_again(readings: &[Reading]) -> u64 {
    let set_again = readings.iter().filter(|of| of.state == State::SetAgain);
    let places: BTreeSet<(&str, &str)> = set_again.map(|of| (of.cgroup.as_str(), of.gpu.as_str())).collect();
    places.len() as u64
}

#[cfg(test)]
mod tests {
    use super::super::memory::Ledger;
    use super::*;

    const GPU: &str = "GPU-1";

    fn key(uid: &str) -> ShareKey {
        (uid.into(), "s".into())
    }

    fn share(uid: &str) -> ShareFacts {
        ShareFacts {
            key: key(uid),
            gpu: GPU.into(),
            limit: 100,
            is_configured: false,
            ledger: Ledger::Other,
            prepared: None,
        }
    }

    fn reading(uid: &str, container: &str, state: State) -> Reading {
        let (claim, share) = key(uid);
        Reading {
            claim,
            share,
            gpu: GPU.into(),
            cgroup: format!("/{container}"),
            hard: 164,
            used: 30,
            state,
            reason: "max was max".into(),
            pod: PodLimit::Held,
        }
    }

    fn container(cgroup: &str) -> Option<Container> {
        Some(Container {
            pod: "p".into(),
            id: Some(cgroup.trim_start_matches('/').to_owned()),
        })
    }

    fn seen(containers: &[(&str, &[&str])]) -> BTreeMap<Container, ShareKeys> {
        let one =
            |(name, uids): &(&str, &[&str])| (container(name).expect("one"), uids.iter().map(|uid| key(uid)).collect());
        containers.iter().map(one).collect()
    }

    fn known(readings: Vec<Reading>) -> ReadBack {
        ReadBack::Known {
            readings: readings.into(),
            asked: Instant::now(),
        }
    }

    fn walls(readings: Vec<Reading>, seen: &BTreeMap<Container, ShareKeys>) -> BTreeMap<ShareKey, SecondWall> {
        let known = known(readings);
        second_walls(
            &[share("a"), share("b")],
            &known,
            Some(seen),
            container,
            &BTreeMap::new(),
        )
    }

    #[test]
    fn it_holds_if_every_container_of_the_share_was_read_back() {
        let both = seen(&[("x", &["a"]), ("y", &["a"]), ("z", &["b"]), ("sandbox", &[])]);
        let of = |readings| walls(readings, &both)[&key("a")].clone();
        let all = vec![reading("a", "x", State::Held), reading("a", "y", State::SetAgain)];
        let expected = SecondWall {
            holds: true,
            is_missing: false,
            note: None,
            limit: Some(164),
            used: Some(60),
        };
        assert_eq!(of(all.clone()), expected);
        let one = of(all[..1].to_vec());
        assert_eq!(
            (one.holds, one.used, one.note.as_deref()),
            (false, None, Some(NOT_READ_BACK))
        );
        assert!(!of(Vec::new()).holds);
        let failed = of(vec![all[0].clone(), reading("a", "y", State::Failed)]);
        assert!(!failed.holds && failed.note.expect("why").ends_with("max was max"));
        let elsewhere = of(all
            .iter()
            .cloned()
            .map(|of| Reading {
                gpu: "GPU-2".into(),
                ..of
            })
            .collect());
        assert_eq!((elsewhere.holds, elsewhere.limit), (false, None));
        // A container that /proc has no process of still has the limit that was read back.
        assert!(walls(all, &seen(&[]))[&key("a")].holds);
    }

    #[test]
    fn a_container_that_started_without_it_is_named_with_the_hooks_reason() {
        let both = seen(&[("x", &["a"]), ("y", &["a"])]);
        let known = known(vec![reading("a", "x", State::Held)]);
        let why = BTreeMap::from([("a".to_owned(), "container y: MIG".to_owned())]);
        let found = second_walls(&[share("a")], &known, Some(&both), container, &why);
        let note = found[&key("a")].note.clone();
        assert_eq!(
            note.as_deref(),
            Some("a container started without the driver's limit: container y: MIG")
        );
        // It has ended since then.
        let found = second_walls(&[share("a")], &known, Some(&seen(&[("x", &["a"])])), container, &why);
        assert_eq!((found[&key("a")].holds, &found[&key("a")].note), (true, &None));
        // Its containers are not known, or there is none.
        for seen in [None, Some(&seen(&[]))] {
            let found = second_walls(&[share("a")], &self::known(Vec::new()), seen, container, &why);
            let wall = &found[&key("a")];
            assert_eq!((wall.is_missing, wall.note.as_deref()), (false, Some(NOT_READ_BACK)));
        }
    }

    #[test]
    fn without_an_answer_nothing_holds() {
        let both = seen(&[("x", &["a"])]);
        let of = |read_back| {
            let found = second_walls(&[share("a")], &read_back, Some(&both), container, &BTreeMap::new());
            found[&key("a")].clone()
        };
        assert_eq!(
            of(ReadBack::NoSuchLimit),
            SecondWall::default(),
            "nothing to say on such a node"
        );
        let unknown = of(ReadBack::Unknown);
        assert_eq!(
            (unknown.holds, unknown.note.as_deref(), unknown.used),
            (false, Some(UNKNOWN), None)
        );
        let known = known(vec![reading("a", "x", State::Held)]);
        let blind = second_walls(&[share("a")], &known, None, container, &BTreeMap::new());
        assert!(
            !blind[&key("a")].holds,
            "containers without the limit would not be seen"
        );
    }

    #[test]
    fn the_use_of_a_cgroup_is_that_of_its_only_share() {
        let both = seen(&[("x", &["a", "b"]), ("y", &["b"])]);
        let readings = vec![
            reading("a", "x", State::Held),
            reading("b", "x", State::Held),
            reading("b", "y", State::Held),
        ];
        let found = walls(readings, &both);
        for uid in ["a", "b"] {
            assert_eq!((found[&key(uid)].holds, found[&key(uid)].used), (true, None));
        }
        // A share that is not in the answer, such as one that started without the limit, uses the same cgroup.
        let found = walls(vec![reading("a", "x", State::Held)], &both);
        assert_eq!((found[&key("a")].holds, found[&key("a")].used), (true, None));
        let both = seen(&[("x", &["a"]), ("y", &["b"])]);
        let mut of_another_gpu = reading("b", "x", State::Held);
        of_another_gpu.gpu = "GPU-2".into();
        let found = walls(vec![reading("a", "x", State::Held), of_another_gpu], &both);
        assert_eq!(found[&key("a")].used, Some(30));
    }

    #[test]
    fn a_pod_without_a_limit_of_its_own_is_said() {
        for (pod, has_note) in [
            (PodLimit::Held, false),
            (PodLimit::None, false),
            (PodLimit::Lifted, true),
            (PodLimit::Failed, true),
        ] {
            let one = Reading {
                pod,
                ..reading("a", "x", State::Held)
            };
            let found = walls(vec![one], &seen(&[("x", &["a"])]));
            let wall = &found[&key("a")];
            assert!(wall.holds && wall.note.is_some() == has_note, "{pod:?}: {wall:?}");
        }
        for (reason, end) in [("its hook failed", "ends: its hook failed"), ("", "have one each")] {
            let lifted = Reading {
                pod: PodLimit::Lifted,
                reason: reason.into(),
                ..reading("a", "x", State::Held)
            };
            let note = walls(vec![lifted], &seen(&[("x", &["a"])]))[&key("a")].note.clone();
            assert!(note.as_ref().is_some_and(|note| note.ends_with(end)), "{note:?}");
        }
    }

    #[test]
    fn changes_are_counted_by_cgroup_and_named_by_share() {
        let readings = [
            reading("a", "x", State::SetAgain),
            reading("b", "z", State::Failed),
            reading("b", "x", State::SetAgain),
            reading("a", "y", State::Held),
        ];
        assert_eq!(set_again(&readings), 1);
        let changed = changed(&readings);
        let of = |uid: &str| changed.get(&key(uid)).map(|of| (of.cgroup.as_str(), of.is_set_again));
        assert_eq!((of("a"), of("b")), (Some(("/x", true)), Some(("/z", false))));
    }
}

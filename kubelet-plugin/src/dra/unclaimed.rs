//! Shares without a claim: a container has the share, and its ResourceClaim is gone or was allocated again. The
//! allocator does not count such a share, so claims that are allocated beside it find no room on the node.
//!
//! It happens when somebody ends the allocation of a claim, or takes its finalizer off, while its pod runs (the policy
//! `admission.held` refuses the latter), and after a pod was deleted by force, while its containers live on.
//!
//! ```text
//!  clean_up, every 20 s: claims with a container ─► some of them: GET ─► gone for 40 s ─► a process has the share?
//!                                       ▲                                                    │
//!     waiting: a Prepare without room found its holder gone              event on the Node, metric, texts of refusals
//! ```
//!
//! How it fails. Nothing uncertain is reported:
//! - The API server does not answer: nothing changes for that claim. If the pods cannot be listed, the event comes later.
//! - A claim ends together with its pod, or its pod was deleted by force: every GET must find the claim gone for longer
//!   than the default time that such a pod gets to end, and a process must still have the share.
//! - The claim is back, or its last container has ended: it is forgotten, and reported again if it is found again.
//! - The plugin cannot see the node's processes (`hostPID: false`): no event, and the metric is absent.
//! - The plugin restarts: the 40 s begin again, and each event is repeated once.
//! - Two instances of a rolling update: each creates the event.
//! - A node with many claims: only one is read in a round, so such a share may be found minutes later. One that a Prepare
//!   waits for is read in the next round.
//! - A claim that was rebuilt from limits files has no name: `clean_up` says if it is gone.
//! - Pods share the claim: the event names the pod of one process. When that pod has ended, it names the next one.

use crate::api::{Claims, Events};
use crate::dra::checkpoint::Entry;
use crate::dra::mount_users::{Keeper, MountUsers};
use crate::dra::node::{Node, SharedNode};
use crate::dra::share::{Share, ShareKey, ShareKeys};
use crate::dra::stale::{ClaimState, Gone};
use crate::enforcement::event_log::{EventLog, Notice, On};
use crate::enforcement::{Pod, Pods};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use vgpu_api::{DRIVER_NAME, Pools};
use vgpu_quantity::readable_bytes;

/// How long a claim must be gone: a pod that was deleted by force has 30 s to end unless it says otherwise.
pub(crate) const GONE_FOR: Duration = Duration::from_secs(40);
/// How many claims with a container are read in one round, besides those that are gone or suspected. Low, because every
/// node sends these requests.
pub(crate) const READ_AT_ONCE: usize = 1;
const EVENT: &str = "ShareWithoutClaim";

/// The state of the claims that have a container, over the rounds.
#[derive(Debug)]
pub(crate) struct Unclaimed {
    gone: Gone,
    /// Why each missing claim is missing, by UID.
    fates: BTreeMap<String, Fate>,
    /// Claims that were gone for long enough.
    settled: BTreeSet<String>,
    /// Claims that a Prepare found gone, until they were read.
    suspected: BTreeSet<String>,
    /// The last claim that was read in its turn.
    last: String,
    /// Events on the node, each about a share and a pod.
    log: EventLog,
}

/// The answer to one GET of a prepared claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The claim has these shares.
    There,
    Gone(Fate),
    /// The API server did not answer.
    Unknown,
}

/// Why a prepared claim is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Deleted,
    Replaced,
    Deallocated,
    AllocatedAgain,
}

// === impl Found ===

impl Found {
    /// Compares the claim that now has the name with `uid` and the shares of `entry`.
    pub(crate) fn of(found: Option<&ResourceClaim>, uid: &str, pools: &Pools, entry: &Entry) -> Self {
        let Some(claim) = found else {
            return Self::Gone(Fate::Deleted);
        };
        if claim.metadata.uid.as_deref() != Some(uid) {
            return Self::Gone(Fate::Replaced);
        }
        let Some(allocation) = claim.status.as_ref().and_then(|status| status.allocation.as_ref()) else {
            return Self::Gone(Fate::Deallocated);
        };
        let results = allocation
            .devices
            .iter()
            .flat_map(|devices| devices.results.iter().flatten());
        let ours = results.filter(|result| result.driver == DRIVER_NAME && pools.contains(&result.pool));
        let names: BTreeSet<&str> = ours.map(share_name).collect();
        let has_all = entry.all().all(|share| names.contains(share.name.as_str()));
        match has_all {
            true => Self::There,
            false => Self::Gone(Fate::AllocatedAgain),
        }
    }
}

// === impl Fate ===

impl Fate {
    fn text(self) -> &'static str {
        match self {
            Self::Deleted => "was deleted",
            Self::Replaced => "was deleted, and another claim has its name",
            Self::Deallocated => "is not allocated any more",
            Self::AllocatedAgain => "was allocated again, and has other shares",
        }
    }
}

/// The name of the result's share on the node.
fn share_name(result: &DeviceRequestAllocationResult) -> &str {
    result.share_id.as_deref().unwrap_or(&result.device)
}

// === impl Unclaimed ===

impl Default for Unclaimed {
    fn default() -> Self {
        Self {
            gone: Gone::new(GONE_FOR),
            fates: BTreeMap::new(),
            settled: BTreeSet::new(),
            suspected: BTreeSet::new(),
            last: String::new(),
            log: EventLog::default(),
        }
    }
}

impl Unclaimed {
    /// Notes claims that a Prepare found gone.
    pub(crate) fn suspect(&mut self, uids: BTreeSet<String>) {
        self.suspected.extend(uids);
    }

    /// Returns the claims with a container that are read in this round: those that are gone, those that a Prepare found
    /// gone, and another one in turn.
    pub(crate) fn due(&mut self, living: &BTreeMap<String, Entry>) -> BTreeSet<String> {
        self.suspected.retain(|uid| living.contains_key(uid));
        let is_due = |uid: &String| self.gone.has(uid) || self.suspected.contains(uid);
        let (mut due, others): (BTreeSet<_>, BTreeSet<_>) = living.keys().cloned().partition(is_due);
        let (before, after): (Vec<_>, Vec<_>) = others.into_iter().partition(|uid| *uid <= self.last);
        let turn: Vec<String> = after.into_iter().chain(before).take(READ_AT_ONCE).collect();
        if let Some(last) = turn.last() {
            self.last.clone_from(last);
        }
        due.extend(turn);
        due
    }

    /// Applies one round of answers.
    pub(crate) fn apply(&mut self, answers: &BTreeMap<String, Found>, now: Instant) {
        let mut states = Vec::new();
        for (uid, found) in answers {
            if !matches!(found, Found::Unknown) {
                self.suspected.remove(uid);
            }
            let state = match found {
                Found::There => ClaimState::There,
                Found::Unknown => ClaimState::Unknown,
                Found::Gone(fate) => {
                    self.fates.insert(uid.clone(), *fate);
                    ClaimState::Gone
                }
            };
            states.push((uid.clone(), state));
        }
        self.settled.extend(self.gone.apply(&states, now));
        self.settled.retain(|uid| self.gone.has(uid));
        self.fates.retain(|uid, _| self.gone.has(uid));
    }

    /// Notes the shares without a claim that processes have, for the metric and for refusals, and creates the events on
    /// the node. `living`: the claims that had a container at the beginning of this round.
    pub(crate) async fn report<A: Claims + Events + Pods, K: MountUsers>(
        &mut self,
        node: &SharedNode,
        api: &A,
        keepers: &K,
        living: &BTreeMap<String, Entry>,
        node_object: &ObjectReference,
    ) {
        let found = match self.keepers(node, keepers, living).await {
            Ok(found) => found,
            Err(why) => {
                tracing::debug!("which processes have shares without a claim is not known: {why}");
                return note(node, None).await;
            }
        };
        note(node, Some(found.keys().cloned().collect())).await;
        self.log.begin_round();
        let share = |(uid, name): &ShareKey| format!("{uid} {name} ");
        self.log.keep(EVENT, |subject| {
            found.keys().any(|key| subject.starts_with(&share(key)))
        });
        let subject = |key: &ShareKey, keeper: &Keeper| share(key) + keeper.pod.as_deref().unwrap_or_default();
        let is_new = |(key, keeper): &(&ShareKey, &Keeper)| !self.log.has(EVENT, &subject(key, keeper));
        let new: Vec<_> = found.iter().filter(is_new).collect();
        if new.is_empty() {
            return;
        }
        let pods = match api.pods().await {
            Ok(pods) => pods,
            Err(error) => {
                tracing::warn!(%error, "cannot list the pods for {EVENT} events; retrying");
                return;
            }
        };
        for (key, keeper) in new {
            let fate = self.fates.get(&key.0).copied();
            let entry = living.get(&key.0);
            let share = entry.and_then(|entry| entry.all().find(|share| share.name == key.1));
            let (Some(fate), Some(entry), Some(share)) = (fate, entry, share) else {
                continue;
            };
            let note = event_note(&key.0, entry, share, fate, keeper, &pods);
            tracing::warn!("{note}");
            let notice = Notice {
                reason: EVENT,
                subject: subject(key, keeper),
                on: On::Object(node_object.clone()),
                note: Box::new(move |_| note.clone()),
            };
            self.log.warn(api, &notice).await;
        }
    }

    /// The shares without a claim, with a process of each.
    async fn keepers<K: MountUsers>(
        &self,
        node: &SharedNode,
        keepers: &K,
        living: &BTreeMap<String, Entry>,
    ) -> Result<BTreeMap<ShareKey, Keeper>, String> {
        if self.settled.is_empty() {
            return Ok(BTreeMap::new());
        }
        let settled = living.iter().filter(|(uid, _)| self.settled.contains(*uid));
        let settled: Vec<_> = settled.map(|(uid, entry)| (uid.clone(), entry.clone())).collect();
        let mounts = node.read(move |node: &mut Node| {
            // It may have been prepared again since it was read.
            let same = settled.iter().filter(|(uid, entry)| node.entry(uid) == Some(entry));
            same.flat_map(|(uid, _)| node.share_mounts(uid)).collect::<Vec<_>>()
        });
        let (mounts, keepers) = (mounts.await.map_err(|error| error.to_string())?, keepers.clone());
        let read = tokio::task::spawn_blocking(move || keepers.keepers(&mounts)).await;
        read.map_err(|error| error.to_string())?
    }
}

/// Notes which shares have no claim; None: that is not known (any more).
pub(crate) async fn note(node: &SharedNode, unclaimed: Option<ShareKeys>) {
    if let Err(error) = node.read(|node| node.set_unclaimed(unclaimed)).await {
        tracing::error!("{error}");
    }
}

/// The text for administrators: it names pod and claim.
fn event_note(uid: &str, entry: &Entry, share: &Share, fate: Fate, keeper: &Keeper, pods: &[Pod]) -> String {
    let process = format!("process {} ({})", keeper.pid, keeper.name);
    let pod = keeper.pod.as_ref();
    let (who, remedy) = match pod.map(|uid| (uid, pods.iter().find(|pod| pod.uid == *uid))) {
        Some((uid, Some(pod))) => (
            format!("pod {}/{} (uid {uid})", pod.namespace, pod.name),
            "Delete that pod",
        ),
        Some((uid, None)) => {
            let name = entry.pods.iter().find(|pod| pod.uid == *uid);
            let name = name.map_or_else(String::new, |pod| format!("{}/{}, ", entry.namespace, pod.name));
            (
                format!("{process} of a pod that is not at the API server any more ({name}uid {uid})"),
                "End that process if it does not end by itself",
            )
        }
        None => (format!("{process}, which is in no pod,"), "End that process"),
    };
    let claim = match entry.name.is_empty() {
        true => format!("its ResourceClaim (uid {uid}, of no known name)"),
        false => entry.id(uid).to_string(),
    };
    let device = match share.device.is_empty() {
        true => String::new(),
        false => format!(" (device {})", share.device),
    };
    format!(
        "{who} has {} and {} cores of GPU {}{device} without a claim: {claim} {}. {remedy}; the plugin releases share {} once its \
         last process has ended. Until then the allocator does not count it, and pods that get its place stay \
         ContainerCreating",
        readable_bytes(share.memory),
        share.cores,
        share.gpu,
        fate.text(),
        share.name,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::node::tests::{claim, prepare};

    fn entry(share: &str) -> Entry {
        let rig = crate::dra::node::tests::Rig::new(false);
        let mut node = rig.open();
        prepare(&mut node, claim("u", &[(share, 20, 25)])).expect("prepared");
        node.entry("u").expect("prepared").clone()
    }

    fn living(uids: &[&str]) -> BTreeMap<String, Entry> {
        let entry = entry("s");
        uids.iter().map(|uid| ((*uid).to_owned(), entry.clone())).collect()
    }

    #[test]
    fn a_claim_is_there_only_with_the_shares_that_are_prepared() {
        let (entry, there) = (entry("s1"), claim("u", &[("s1", 20, 25)]).1);
        let found = |claim: &ResourceClaim, node| Found::of(Some(claim), "u", &Pools::of(node), &entry);
        assert_eq!(found(&there, "n1"), Found::There);
        assert_eq!(
            Found::of(None, "u", &Pools::of("n1"), &entry),
            Found::Gone(Fate::Deleted)
        );
        let replaced = claim("v", &[("s1", 20, 25)]).1;
        assert_eq!(found(&replaced, "n1"), Found::Gone(Fate::Replaced));
        assert_eq!(found(&there, "n2"), Found::Gone(Fate::AllocatedAgain), "elsewhere");
        let again = claim("u", &[("s2", 20, 25)]).1;
        assert_eq!(found(&again, "n1"), Found::Gone(Fate::AllocatedAgain));
        let more = claim("u", &[("s2", 20, 25), ("s1", 20, 25)]).1;
        assert_eq!(found(&more, "n1"), Found::There);
        let mut other = there.clone();
        let allocation = other.status.as_mut().and_then(|status| status.allocation.as_mut());
        let results = allocation.and_then(|allocation| allocation.devices.as_mut()?.results.as_mut());
        results.expect("results")[0].driver = "gpu.example".into();
        assert_eq!(
            found(&other, "n1"),
            Found::Gone(Fate::AllocatedAgain),
            "another driver's"
        );
        let mut free = there;
        free.status = None;
        assert_eq!(found(&free, "n1"), Found::Gone(Fate::Deallocated));
    }

    #[test]
    fn claims_are_read_in_turn_and_those_that_are_gone_or_suspected_each_time() {
        let mut unclaimed = Unclaimed::default();
        let uids: Vec<String> = (0..10).map(|n| format!("u{n}")).collect();
        let all = living(&uids.iter().map(String::as_str).collect::<Vec<_>>());
        let mut read: Vec<String> = Vec::new();
        for _ in 0..20 / READ_AT_ONCE {
            read.extend(unclaimed.due(&all));
        }
        assert_eq!(read.len(), 20);
        for uid in &uids {
            assert_eq!(read.iter().filter(|found| *found == uid).count(), 2, "{uid}");
        }
        unclaimed.suspect(BTreeSet::from(["u9".to_owned(), "of-nobody".into()]));
        for _ in 0..3 {
            let due = unclaimed.due(&all);
            assert!(due.contains("u9") && due.len() == READ_AT_ONCE + 1, "{due:?}");
            unclaimed.apply(&BTreeMap::from([("u9".to_owned(), Found::Unknown)]), Instant::now());
        }
        let gone = BTreeMap::from([("u9".to_owned(), Found::Gone(Fate::Deleted))]);
        unclaimed.apply(&gone, Instant::now());
        for _ in 0..3 {
            assert!(unclaimed.due(&all).contains("u9"));
        }
        unclaimed.suspect(BTreeSet::from(["u1".to_owned()]));
        assert!(unclaimed.due(&BTreeMap::new()).is_empty());
    }

    #[test]
    fn only_a_claim_that_stays_gone_is_told_of() {
        let (mut unclaimed, start) = (Unclaimed::default(), Instant::now());
        let mut settled = |found: Option<Found>, after: Duration| {
            let answers = found.map(|found| ("u".to_owned(), found)).into_iter().collect();
            unclaimed.apply(&answers, start + after);
            !unclaimed.settled.is_empty()
        };
        let (gone, there) = (Some(Found::Gone(Fate::Deleted)), Some(Found::There));
        assert!(!settled(gone, Duration::ZERO));
        assert!(!settled(Some(Found::Unknown), GONE_FOR * 2), "no answer, no verdict");
        assert!(
            !settled(there, GONE_FOR * 2),
            "it is there: a mistake of the API server"
        );
        assert!(!settled(gone, GONE_FOR * 3), "counted again");
        assert!(!settled(gone, GONE_FOR * 4 - Duration::from_secs(1)));
        assert!(settled(gone, GONE_FOR * 4));
        assert!(settled(Some(Found::Unknown), GONE_FOR * 5), "an outage ends nothing");
        assert!(!settled(there, GONE_FOR * 6));
        assert!(!settled(gone, GONE_FOR * 7));
        assert!(!settled(None, GONE_FOR * 8), "its containers have ended");
        assert!(!settled(gone, GONE_FOR * 9), "counted again");
    }

    #[test]
    fn the_event_says_whom_to_end() {
        let mut entry = entry("s1");
        entry.pods = vec![crate::dra::checkpoint::Pod {
            name: "p".into(),
            uid: "pod-uid".into(),
        }];
        let share = entry.shares[0].share.clone();
        let pods = [Pod {
            namespace: "d".into(),
            name: "p".into(),
            uid: "pod-uid".into(),
            ..Pod::default()
        }];
        let keeper = |pod: Option<&str>| Keeper {
            pid: 4711,
            name: "python".into(),
            pod: pod.map(str::to_owned),
        };
        let note = |pod, pods| event_note("u", &entry, &share, Fate::Deleted, &keeper(pod), pods);
        let with_pod = note(Some("pod-uid"), &pods[..]);
        for part in [
            "pod d/p (uid pod-uid) has 20Gi and 25 cores of GPU GPU-3f8a1c20",
            "(device gpu-3f8a1c20) without a claim: ResourceClaim d/claim-u (uid u) was deleted",
            "Delete that pod; the plugin releases share s1",
        ] {
            assert!(with_pod.contains(part), "{part}: {with_pod}");
        }
        let forced = note(Some("pod-uid"), &[]);
        assert!(
            forced.contains("process 4711 (python) of a pod that is not at the API server any more (d/p, uid pod-uid)")
                && forced.contains("End that process if"),
            "{forced}"
        );
        let stray = note(None, &pods[..]);
        assert!(
            stray.contains("process 4711 (python), which is in no pod, has"),
            "{stray}"
        );
        let (mut nameless, mut of_limits) = (entry.clone(), share.clone());
        (nameless.namespace, nameless.name) = (String::new(), String::new());
        of_limits.device = String::new();
        let note = event_note("u", &nameless, &of_limits, Fate::Deleted, &keeper(None), &pods);
        assert!(
            note.contains(" without a claim: its ResourceClaim (uid u, of no known name)"),
            "{note}"
        );
    }
}

//! Unprepares claims that ended without an Unprepare, and names claims that were rebuilt from limits files, which have only
//! a UID. Reports claims that are gone but have a container (`unclaimed`).
//!
//! How it fails:
//! - A request to the API server fails: nothing is known of that claim, and nothing happens to it. If the pods cannot be
//!   listed or understood, or one of their claims cannot be read, nothing is known of any claim without a name.
//! - A claim without a name is gone if no pod of this node uses a claim with its UID and a device of this node: kubelet
//!   prepares claims only for pods that are bound to its node, and unprepares them before such a pod is deleted.
//! - A claim without a name that pods use and that cannot be named, because it has other shares now or its files cannot
//!   be written: it stays as it is. Naming is tried again, each time after a longer pause.

use crate::api::{Claims, Error, Events};
use crate::dra::checkpoint::Entry;
use crate::dra::mount_users::MountUsers;
use crate::dra::node::SharedNode;
use crate::dra::share::ClaimId;
use crate::dra::stale::{ClaimState, Gone, STALE_AFTER};
use crate::dra::unclaimed::{self, Found, Unclaimed};
use crate::enforcement::Pods;
use crate::metrics::Metrics;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::resource::v1::ResourceClaim;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};
use vgpu_api::Pools;

/// Interval of rounds: short enough that the share of a deleted claim is free within a minute.
const EVERY: Duration = Duration::from_secs(20);
/// Interval at which unused releases of the library are removed. The first removal is that long after the start, when
/// the instance that this one replaces has ended.
const RELEASES_EVERY: Duration = Duration::from_secs(600);
/// Claims that have only monitors are read in one of this many rounds: every 10 minutes.
pub(crate) const MONITORS_EVERY: u32 = 30;
/// The longest pause between two attempts to name claims without a name.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// Unprepares claims that ended without an Unprepare.
pub struct CleanUp<K> {
    users: K,
    /// The Node, for events.
    node_object: ObjectReference,
    /// Claims without a container.
    gone: Gone,
    /// Claims with a container.
    unclaimed: Unclaimed,
    rounds: u32,
    /// Why it is unknown which shares have a container; empty if it is known. For the log.
    blind: String,
    naming: Naming,
}

/// Schedules the attempts to name claims without a name.
#[derive(Debug, Default)]
struct Naming {
    uids: BTreeSet<String>,
    /// The time of the last attempt, and the pause after it.
    last: Option<(Instant, Duration)>,
}

/// The prepared claims at the start of a round.
struct Prepared {
    pools: Pools,
    /// No container has a share of these.
    unused: BTreeMap<String, Entry>,
    /// A container has a share of these.
    living: BTreeMap<String, Entry>,
}

/// Cleans up until the plugin ends.
pub async fn run<A: Claims + Events + Pods>(
    node: SharedNode,
    api: A,
    metrics: Metrics,
    users: impl MountUsers,
    node_object: ObjectReference,
) {
    let mut clean_up = CleanUp::new(users, node_object);
    let mut releases_removed = Instant::now();
    loop {
        tokio::time::sleep(EVERY).await;
        clean_up.run(&node, &api, &metrics, Instant::now()).await;
        if releases_removed.elapsed() >= RELEASES_EVERY {
            releases_removed = Instant::now();
            if let Err(error) = node.turn(|node, locked| node.remove_unused_releases(locked)).await {
                tracing::warn!(%error, "releases of the library that nothing uses are not removed yet");
            }
        }
    }
}

/// Returns the claim that now has the name of a prepared one. None: that is not known. `gone`: claims without a name that
/// are gone.
async fn read<A: Claims>(api: &A, uid: &str, entry: &Entry, gone: &BTreeSet<String>) -> Option<Option<ResourceClaim>> {
    match entry.name.is_empty() {
        true => gone.contains(uid).then_some(None),
        false => api.get(&entry.namespace, &entry.name).await.ok(),
    }
}

// === impl CleanUp ===

impl<K: MountUsers> CleanUp<K> {
    #[must_use]
    pub fn new(users: K, node_object: ObjectReference) -> Self {
        Self {
            users,
            node_object,
            gone: Gone::new(STALE_AFTER),
            unclaimed: Unclaimed::default(),
            rounds: 0,
            blind: String::new(),
            naming: Naming::default(),
        }
    }

    /// Reads prepared claims from the API server: all without a container, and some with a container. Unprepares the former
    /// if they are gone for good, and reports the latter if they are gone.
    pub async fn run<A: Claims + Events + Pods>(
        &mut self,
        node: &SharedNode,
        api: &A,
        metrics: &Metrics,
        now: Instant,
    ) {
        let gone = self.naming.name_claims(node, api, now).await;
        let Some(prepared) = self.prepared(node).await else {
            return;
        };
        self.release(node, api, metrics, &prepared, &gone, now).await;
        let Prepared { pools, living, .. } = &prepared;
        let mut answers = BTreeMap::new();
        for uid in self.unclaimed.due(living) {
            let Some(entry) = living.get(&uid) else { continue };
            let found = read(api, &uid, entry, &gone).await;
            let found = found.map_or(Found::Unknown, |found| Found::of(found.as_ref(), &uid, pools, entry));
            answers.insert(uid, found);
        }
        self.unclaimed.apply(&answers, now);
        self.unclaimed
            .report(node, api, &self.users, living, &self.node_object)
            .await;
    }

    async fn release<A: Claims>(
        &mut self,
        node: &SharedNode,
        api: &A,
        metrics: &Metrics,
        Prepared {
            pools, unused: entries, ..
        }: &Prepared,
        gone: &BTreeSet<String>,
        now: Instant,
    ) {
        let mut states = Vec::new();
        for (uid, entry) in entries {
            let found = read(api, uid, entry, gone).await;
            let state = found.map_or(ClaimState::Unknown, |found| ClaimState::of(found.as_ref(), uid, pools));
            states.push((uid.clone(), state));
        }
        for uid in self.gone.apply(&states, now) {
            let Some(seen) = entries.get(&uid).cloned() else {
                continue;
            };
            // Since this round read it, the claim may have been allocated here again, or a container may have started.
            match node.release_unused(self.users.clone(), &uid, seen).await {
                Ok(false) => {}
                Ok(true) => {
                    metrics.stale();
                    tracing::warn!(
                        uid,
                        "claim is gone or has no device of this node, and was never unprepared; its share is released"
                    );
                }
                Err(error) => {
                    tracing::warn!(%error, uid, "claim is gone and cannot be unprepared; retrying");
                }
            }
        }
    }

    /// Reads which claims are prepared, and which of them have a container. None: that is not known.
    async fn prepared(&mut self, node: &SharedNode) -> Option<Prepared> {
        let users = self.users.clone();
        let found = node.read(|node| (node.pools(), node.claims().claims.clone(), node.all_mounts()));
        let (pools, all, mounts) = found.await.inspect_err(|error| tracing::error!("{error}")).ok()?;
        self.unclaimed.suspect(node.take_suspects());
        // Reading all processes takes a while, and no turn waits for it.
        let living = tokio::task::spawn_blocking(move || users.living(&mounts)).await;
        match living.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(living) => {
                self.blind.clear();
                let uids: BTreeSet<String> = living.into_iter().map(|(claim, _)| claim).collect();
                let (living, mut unused): (BTreeMap<_, _>, BTreeMap<_, _>) =
                    all.into_iter().partition(|(uid, _)| uids.contains(uid));
                // A monitor has no mount that shows whether it has a container. It holds no capacity, so it can wait.
                let is_due = self.rounds.is_multiple_of(MONITORS_EVERY);
                self.rounds = self.rounds.wrapping_add(1);
                unused.retain(|uid, entry| is_due || self.gone.has(uid) || entry.limited().next().is_some());
                Some(Prepared { pools, unused, living })
            }
            Err(why) => {
                if self.blind != why {
                    tracing::warn!("no claim is cleaned up, because it is not known which have a container: {why}");
                    self.blind = why;
                }
                unclaimed::note(node, None).await;
                None
            }
        }
    }
}

// === impl Naming ===

impl Naming {
    /// Gives names to the nameless claims that pods of this node use. Returns the UIDs of those that are gone.
    async fn name_claims<A: Claims + Pods>(&mut self, node: &SharedNode, api: &A, now: Instant) -> BTreeSet<String> {
        let found = node.read(|node| {
            let claims = node.claims().claims.iter();
            let nameless = claims.filter(|(_, entry)| entry.name.is_empty());
            (node.pools(), nameless.map(|(uid, _)| uid.clone()).collect())
        });
        let Ok((pools, uids)): Result<(Pools, BTreeSet<String>), _> = found.await else {
            return BTreeSet::new();
        };
        if !self.is_due(&uids, now) {
            return BTreeSet::new();
        }
        let used = match claims_of_pods(api).await {
            Ok(used) => used,
            Err(error) => {
                tracing::warn!(%error, ?uids, "who uses claims that were rebuilt from limits files is not known; retrying");
                return BTreeSet::new();
            }
        };
        let mut gone = uids;
        for claim in used {
            let uid = claim.metadata.uid.clone().unwrap_or_default();
            if ClaimState::of(Some(&claim), &uid, &pools) != ClaimState::There || !gone.remove(&uid) {
                continue;
            }
            let id = ClaimId {
                namespace: claim.metadata.namespace.clone().unwrap_or_default(),
                name: claim.metadata.name.clone().unwrap_or_default(),
                uid,
            };
            let own = id.clone();
            let named = node
                .turn(move |node, locked| node.name_claim(locked, &own, &claim))
                .await;
            match named.and_then(|named| named) {
                Ok(true) => tracing::info!("a claim that was rebuilt from limits files is {id}"),
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, "{id} was rebuilt from limits files and does not get its name back; retrying");
                }
            }
        }
        gone
    }

    /// Returns true if an attempt is due. It reads the node's pods and all their claims, so the pauses grow.
    fn is_due(&mut self, uids: &BTreeSet<String>, now: Instant) -> bool {
        if *uids != self.uids {
            self.uids.clone_from(uids);
            self.last = None;
        }
        let due = self
            .last
            .is_none_or(|(last, pause)| now.saturating_duration_since(last) >= pause);
        if uids.is_empty() || !due {
            return false;
        }
        let pause = self
            .last
            .map_or(STALE_AFTER, |(_, pause)| (pause * 2).min(LONGEST_PAUSE));
        self.last = Some((now, pause));
        true
    }
}

/// Returns those claims of this node's pods that exist.
async fn claims_of_pods<A: Claims + Pods>(api: &A) -> Result<Vec<ResourceClaim>, Error> {
    let mut names = BTreeSet::new();
    for pod in api.pods().await? {
        let Some(claims) = pod.claims else {
            let why = format!(
                "pod {}/{} cannot be read by this release, so which claims it has is not known; update the plugin",
                pod.namespace, pod.name
            );
            return Err(Error::Other(why));
        };
        names.extend(claims.into_iter().map(|claim| (pod.namespace.clone(), claim)));
    }
    let mut found = Vec::new();
    for (namespace, name) in names {
        found.extend(api.get(&namespace, &name).await?);
    }
    Ok(found)
}

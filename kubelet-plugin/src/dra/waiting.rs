//! Waits for the room that a claim without an API object still has on the node.
//!
//! The scheduler reallocates the room of a claim as soon as the claim is deallocated, and `kubectl delete pod --force`
//! leads to that at once. The former pod's processes may live for a while, and kubelet repeats a refused Prepare only
//! after 60 to 90 s.
//!
//! ```text
//!  no room ─► which claims have it? are they gone (GET, once each)?
//!     ▲         │ no room without those that are gone ─► refused at once
//!     │         ▼
//!     │       wait: a claim was unprepared, a second, 15 s in all ─► refused, with pod and process
//!     │         ▼
//!     └────── room? ─► read the claim again, prepare it
//! ```
//!
//! Nothing is locked meanwhile: other calls, health and metrics go on. How it fails:
//! - The plugin ends, or kubelet cancels the call: nothing was written, and nothing is left.
//! - The claim is unprepared while it waits: it is refused at once, because nobody would unprepare it later.
//! - The claim was deleted or allocated again while it waited: it is read again before it is prepared.
//! - Several claims wait for the same room: one gets it. The others find a holder that exists, and are refused.
//! - The other instance of a rolling update unprepares the holder: this instance is not notified, and sees it within a second.
//! - The API server does not answer for a holder: the holder is taken to exist.
//! - kubelet has lost its state and unprepares nothing: once the last process of a claim that is gone was seen to end, or none
//!   was seen for 5 s, it is released here, by the rules of the clean-up but without its longer wait. That wait protects
//!   containers that are being started, and the pods of a claim that is gone start none. A start that has already begun
//!   fails, because its mounts are gone; its pod is ending.
//! - The holder is of another namespace: neither it nor its pod is named, because the refusal becomes an event on the pod
//!   that waits. The log names it, and so does an event on the node if its share stays without a claim (`unclaimed`).
//! - The plugin sees no processes (`hostPID: false`): it releases nothing, and the refusal says why it names none.
//! - A hundred calls wait: the processes are read once a second for all of them.

use crate::api::Claims;
use crate::dra::checkpoint::{Entry, Pod};
use crate::dra::mount_users::{Keeper, MountUsers};
use crate::dra::node::SharedNode;
use crate::dra::node::room::{Full, Holder, without_claim};
use crate::dra::share::{ClaimId, ShareKey};
use crate::dra::stale::ClaimState;
use futures::StreamExt as _;
use k8s_openapi::api::resource::v1::ResourceClaim;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};
use vgpu_api::Pools;
use vgpu_quantity::readable_bytes;

/// How long a Prepare waits for room.
pub const ROOM_WITHIN: Duration = Duration::from_secs(15);
/// Interval at which the node is checked without a notification.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A claim that is gone is released once it has had no process for this time. A runtime needs less between reading the
/// CDI file and mounting, unless the node is very busy.
const UNUSED: Duration = Duration::from_secs(5);
/// Concurrent GETs of holders.
const CONCURRENT_GETS: usize = 8;
/// A refusal names at most this many claims.
const NAMED: usize = 3;

/// A claim whose room may be free soon.
#[derive(Debug)]
struct Ended {
    id: ClaimId,
    entry: Entry,
    /// False: the claim exists, but is reserved for no pod.
    is_deleted: bool,
}

/// The last scan of the node's processes, which all calls share.
#[derive(Clone)]
pub(crate) struct ProcessCache<K> {
    pub(crate) keepers: K,
    last: Arc<Mutex<Option<(Instant, Look)>>>,
}

type Look = Result<Arc<BTreeMap<ShareKey, Keeper>>, String>;

/// The claims that hold the room of one waiting claim, as far as they have been read from the API server.
#[derive(Debug, Default)]
pub(crate) struct Holders {
    exist: BTreeSet<String>,
    gone: BTreeMap<String, Ended>,
    /// The claims of `gone` that had a process at the last scan.
    lived: BTreeSet<String>,
    /// The other claims of `gone`, and since when each has had no process.
    unused: BTreeMap<String, Instant>,
}

// === impl ProcessCache ===

impl<K: MountUsers> ProcessCache<K> {
    pub(crate) fn new(keepers: K) -> Self {
        Self {
            keepers,
            last: Arc::default(),
        }
    }

    /// Reads the processes of all shares of the node, unless that was done within the last second.
    pub(crate) async fn look(&self, node: &SharedNode) -> Look {
        let mut last = self.last.lock().await;
        if let Some((at, look)) = &*last
            && at.elapsed() < LOOK_EVERY
        {
            return look.clone();
        }
        let keepers = self.keepers.clone();
        let look = match node.read(|node| node.all_mounts()).await {
            Ok(mounts) => {
                let read = tokio::task::spawn_blocking(move || keepers.keepers(&mounts).map(Arc::new));
                read.await.unwrap_or_else(|error| Err(error.to_string()))
            }
            Err(error) => Err(error.to_string()),
        };
        *last = Some((Instant::now(), look.clone()));
        look
    }
}

// === impl Holders ===

impl Holders {
    /// UIDs of those that are gone.
    pub(crate) fn gone(&self) -> BTreeSet<String> {
        self.gone.keys().cloned().collect()
    }

    /// Asks the API server about the holders that are not known yet. Returns false if all were known.
    pub(crate) async fn ask<C: Claims>(
        &mut self,
        node: &SharedNode,
        claims: &C,
        holders: &[Holder],
        until: Instant,
    ) -> bool {
        let is_known = |id: &&ClaimId| self.exist.contains(&id.uid) || self.gone.contains_key(&id.uid);
        let ids = holders.iter().map(|holder| &holder.id);
        let unknown: Vec<ClaimId> = ids.filter(|id| !is_known(id)).cloned().collect();
        if unknown.is_empty() {
            return false;
        }
        let uids: Vec<String> = unknown.iter().map(|id| id.uid.clone()).collect();
        let entries = node.read(move |node| {
            let entries = uids.iter().map(|uid| node.entry(uid).cloned());
            (node.pools(), entries.collect::<Vec<_>>())
        });
        let Ok((pools, entries)) = entries.await else {
            return false;
        };
        let pools = &pools;
        let asked = unknown.into_iter().zip(entries).map(|(id, entry)| async move {
            let found = timeout_at(until, ended(claims, &id, pools)).await;
            (id, entry, found.unwrap_or_default())
        });
        let mut suspects = Vec::new();
        let mut asked = futures::stream::iter(asked).buffer_unordered(CONCURRENT_GETS);
        while let Some((id, entry, ended)) = asked.next().await {
            match entry.zip(ended) {
                Some((entry, is_deleted)) => {
                    suspects.extend(is_deleted.then(|| id.uid.clone()));
                    let ended = Ended { id, entry, is_deleted };
                    self.gone.insert(ended.id.uid.clone(), ended);
                }
                None => drop(self.exist.insert(id.uid)),
            }
        }
        if !suspects.is_empty() {
            // Without it the event on the node only comes later.
            node.suspect(suspects);
        }
        true
    }

    /// Releases the claims that are gone and whose last process has ended, or that had none for [`UNUSED`]. Returns true if one
    /// was released.
    pub(crate) async fn release_dead<C: Claims, K: MountUsers>(
        &mut self,
        node: &SharedNode,
        claims: &C,
        looks: &ProcessCache<K>,
        until: Instant,
    ) -> bool {
        let Ok(look) = looks.look(node).await else {
            return false;
        };
        let lives = |uid: &String| look.keys().any(|(claim, _)| claim == uid);
        let (living, dead): (Vec<_>, Vec<_>) = self.gone.keys().cloned().partition(lives);
        let Ok(pools) = node.read(|node| node.pools()).await else {
            return false;
        };
        let mut released = false;
        self.unused.retain(|uid, _| dead.contains(uid));
        for uid in &dead {
            let since = *self.unused.entry(uid.clone()).or_insert_with(Instant::now);
            if !self.lived.contains(uid) && since.elapsed() < UNUSED {
                continue;
            }
            let Some(Ended { id, entry: seen, .. }) = self.gone.get(uid) else {
                continue;
            };
            let state = async {
                let found = claims.get(&id.namespace, &id.name).await;
                found.is_ok_and(|found| ClaimState::of(found.as_ref(), uid, &pools) == ClaimState::Gone)
            };
            if !timeout_at(until, state).await.unwrap_or(false) {
                continue;
            }
            match node.release_unused(looks.keepers.clone(), uid, seen.clone()).await {
                Ok(true) => {
                    tracing::warn!(
                        uid,
                        "claim is gone, no process of it is left, and another claim waits for its share: released"
                    );
                    released = true;
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(%error, uid, "claim is gone and cannot be unprepared; retrying");
                }
            }
        }
        self.lived.extend(living);
        released
    }

    /// Says why the room was not freed in time: the claims that are gone, and a process of each. For claims in other
    /// namespaces it only says how much they hold, because everybody who reads events of the pod's namespace sees the
    /// text.
    pub(crate) fn refusal(&self, full: &Full, look: &Look) -> String {
        let gone = full
            .holders
            .iter()
            .filter_map(|holder| Some((holder, self.gone.get(&holder.id.uid)?)));
        let (own, others): (Vec<_>, Vec<_>) = gone.partition(|(holder, _)| full.may_name(holder));
        let mut all: Vec<String> = own.iter().map(|(_, ended)| keeper(ended, look)).collect();
        let more = all.len().saturating_sub(NAMED);
        all.truncate(NAMED);
        if more > 0 {
            all.push(format!("{more} more claims are gone and keep their places"));
        }
        all.extend(of_others(others, look));
        all.join("; ")
    }
}

/// Says how much claims of other namespaces that are gone hold, unless the refusal has said so already.
fn of_others(mut others: Vec<(&Holder, &Ended)>, look: &Look) -> Vec<String> {
    let seconds = ROOM_WITHIN.as_secs();
    others.retain(|(holder, _)| !holder.is_unclaimed);
    let lives = |uid: &String| {
        look.as_ref()
            .is_ok_and(|look| look.keys().any(|(claim, _)| claim == uid))
    };
    let (kept, ending): (Vec<_>, Vec<_>) = others
        .into_iter()
        .partition(|(holder, ended)| ended.is_deleted && lives(&holder.id.uid));
    let [kept, ending] = [kept, ending].map(|of| of.into_iter().map(|(holder, _)| holder).collect::<Vec<_>>());
    let mut all = Vec::new();
    if !kept.is_empty() {
        let held = without_claim(&kept, "says which within two minutes");
        all.push(format!("room was waited for ({seconds} s at most), and {held}"));
    }
    if !ending.is_empty() {
        let memory = readable_bytes(ending.iter().map(|holder| holder.memory).sum());
        let why = match look {
            Err(why) => format!("which process of them lives is not known: {why}"),
            Ok(_) => "the plugin releases their shares within a minute after their last process".to_owned(),
        };
        all.push(format!(
            "{memory} of that GPU are those of ended claims of other namespaces, which were waited for ({seconds} s at most); {why}"
        ));
    }
    all
}

fn keeper(Ended { id, entry, .. }: &Ended, look: &Look) -> String {
    let seconds = ROOM_WITHIN.as_secs();
    let kept = match look {
        Err(why) => format!("and which process of it lives is not known: {why}"),
        Ok(look) => match look.iter().find(|((uid, _), _)| *uid == id.uid) {
            None => "and no process of it is left; the plugin releases its share within a minute".to_owned(),
            Some(((_, share), keeper)) => format!(
                "and {} still has its share {share}, by process {} ({}): delete that pod if it is still there, else have the \
                 process ended if it does not end by itself",
                pod(id, entry, keeper),
                keeper.pid,
                keeper.name
            ),
        },
    };
    format!("{id} is gone, its place was waited for ({seconds} s at most), {kept}")
}

/// The pod of a process, by the names that the claim's pods had when it was prepared.
fn pod(id: &ClaimId, entry: &Entry, keeper: &Keeper) -> String {
    let Some(uid) = &keeper.pod else {
        let names: Vec<&str> = entry.pods.iter().map(|pod| pod.name.as_str()).collect();
        return match names.as_slice() {
            [] => "a container of no pod".to_owned(),
            names => format!("a container of no pod (the claim was that of {})", names.join(", ")),
        };
    };
    match entry.pods.iter().find(|pod| pod.uid == *uid) {
        Some(Pod { name, .. }) => format!("pod {}/{name} (uid {uid})", id.namespace),
        None => format!("a pod of namespace {} with uid {uid}", id.namespace),
    }
}

/// Returns Some if no pod can get this claim any more, so that its room may be free soon: Some(true) if the claim is
/// gone, Some(false) if it exists but is reserved for no pod.
async fn ended<C: Claims>(claims: &C, id: &ClaimId, pools: &Pools) -> Option<bool> {
    // A claim that was rebuilt from limits files has no name to look up.
    if id.name.is_empty() {
        return None;
    }
    let found = claims.get(&id.namespace, &id.name).await.ok()?;
    let is_deleted = ClaimState::of(found.as_ref(), &id.uid, pools) == ClaimState::Gone;
    (is_deleted || !is_reserved(found.as_ref())).then_some(is_deleted)
}

/// kubelet runs a claim's pod only while the claim is reserved for it.
fn is_reserved(claim: Option<&ResourceClaim>) -> bool {
    let status = claim.and_then(|claim| claim.status.as_ref());
    let reserved = status.and_then(|status| status.reserved_for.as_ref());
    reserved.is_some_and(|pods| !pods.is_empty())
}

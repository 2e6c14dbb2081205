//! Tells the API server what was observed: device status of claims, and events.
//!
//! How it fails:
//! - The API server is down, or refuses to write one claim: that claim is tried again after a while that grows to five
//!   minutes. The others are written meanwhile.
//! - Kills whose event cannot be created wait for the API server, the last hundred of them.
//! - It does not keep `status.devices`: said once in the log, and no claim is written any more.
//! - The claim is gone, or was deallocated, or another one has its name: nothing is written, until the node prepares it
//!   again with other shares.
//! - Two instances: each writes a change that it found itself. Their words are the same, and times are read before the
//!   first write, so they do not write in turns.

use super::api::{Applied, Pods, Statuses};
use super::conditions::{Findings, devices};
use super::finding::Reason;
use super::injected::Pod;
use super::memory::{Offender, Unexplained};
use super::observe::{Breach, Truth};
use crate::api::{Claims, Events};
use crate::checkpoint::Entry;
use crate::node::SharedNode;
use crate::share::{ClaimId, ShareKey};
use crate::told::Told;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::resource::v1::AllocatedDeviceStatus;
use k8s_openapi::jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_map};
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// How many claims in one round may fail. With an API server that is down each request may take as long as a connection.
const FAILURES: usize = 3;
/// How many kills are kept for an API server that is down; the oldest ones are only in the log then.
const MOST_KILLS: usize = 100;
const MIB: u64 = 1 << 20;

/// Tells for ever.
pub async fn run<A: Claims + Events + Statuses + Pods>(
    node: SharedNode,
    api: A,
    truth: Truth,
    node_object: ObjectReference,
) {
    let mut writer = Writer::default();
    let mut notices = Notices::default();
    loop {
        tokio::time::sleep(EVERY).await;
        list_pods(&api, &truth).await;
        writer.write(&node, &api, &truth).await;
        notices.warn(&node, &api, &truth, &node_object).await;
    }
}

/// Lists the node's pods if that was asked for.
pub(super) async fn list_pods<A: Pods>(api: &A, truth: &Truth) {
    let questions = std::mem::take(&mut truth.lock().questions);
    if questions.is_empty() {
        return;
    }
    match api.pods().await {
        Ok(pods) => {
            let mut state = truth.lock();
            state.pods = Some(pods);
            for container in questions {
                state
                    .asked
                    .entry(container)
                    .and_modify(|(times, _)| *times = times.saturating_add(1));
            }
        }
        Err(error) => tracing::warn!(%error, "cannot list this node's pods; who uses which claim is asked again"),
    }
}

/// Writes device status.
#[derive(Default)]
pub(super) struct Writer {
    /// By UID.
    known: BTreeMap<String, Known>,
    /// The API server does not keep the field.
    dropped: bool,
    /// Claims whose last request failed, by UID: when, and for how long they are left alone.
    pauses: BTreeMap<String, (Instant, Duration)>,
    /// The turns and findings of which all is written.
    written: Option<(u64, Findings)>,
}

/// The device status of a claim at the API server. It is valid as long as the claim has these shares.
struct Known {
    shares: ShareIds,
    /// None: the API server refuses one.
    devices: Option<Vec<AllocatedDeviceStatus>>,
}

/// Device and share ID of each share: another allocation of the claim has others.
type ShareIds = Vec<(String, Option<String>)>;

// === impl Writer ===

impl Writer {
    /// Writes what changed.
    pub(super) async fn write<A: Statuses>(&mut self, node: &SharedNode, api: &A, truth: &Truth) {
        if self.dropped {
            return;
        }
        // Counted before the claims are read: a turn that ends meanwhile is seen in the next round.
        let now = (node.turns(), truth.lock().findings.clone());
        if self.written.as_ref() == Some(&now) {
            return;
        }
        // Until all of it is written: what fails may leave some claims with other findings than those before.
        self.written = None;
        let read = node.read(|node| {
            let claims = node.claims().claims.iter();
            let named = claims.filter(|(_, entry)| !entry.name.is_empty());
            (
                node.pool(),
                named
                    .map(|(uid, entry)| (uid.clone(), entry.clone()))
                    .collect::<BTreeMap<_, _>>(),
            )
        });
        let Ok((pool, entries)) = read.await else { return };
        let findings = &now.1;
        self.known
            .retain(|uid, known| entries.get(uid).is_some_and(|entry| share_ids(entry) == known.shares));
        self.pauses.retain(|uid, _| entries.contains_key(uid));
        let mut failures = 0;
        for (uid, entry) in &entries {
            let paused = self.pauses.get(uid).copied();
            if paused.is_some_and(|(since, pause)| since.elapsed() < pause) {
                continue;
            }
            match self.write_one(api, &pool, uid, entry, findings).await {
                Ok(()) => drop(self.pauses.remove(uid)),
                Err(error) => {
                    let pause = paused.map_or(FIRST_PAUSE, |(_, pause)| pause * 2).min(LONGEST_PAUSE);
                    tracing::warn!(%error, "cannot write the device status of {}; trying again in {} s", entry.id(uid), pause.as_secs());
                    self.pauses.insert(uid.clone(), (Instant::now(), pause));
                    // The status at the API server may have changed: it is read again.
                    self.known.remove(uid);
                    failures += 1;
                    if failures == FAILURES {
                        return;
                    }
                }
            }
            if self.dropped {
                tracing::warn!(
                    "this API server does not keep status.devices (its feature gate DRAResourceClaimDeviceStatus is off): claims do not \
                     say if their limits are enforced; metrics and events do"
                );
                return;
            }
        }
        self.written = self.pauses.is_empty().then_some(now);
    }

    /// Ends the pauses.
    #[cfg(test)]
    pub(super) fn wake(&mut self) {
        self.pauses.clear();
    }

    async fn write_one<A: Statuses>(
        &mut self,
        api: &A,
        pool: &str,
        uid: &str,
        entry: &Entry,
        findings: &Findings,
    ) -> Result<(), crate::api::Error> {
        let id = entry.id(uid);
        let known = match self.known.entry(uid.to_owned()) {
            btree_map::Entry::Occupied(known) => known.into_mut(),
            // A former instance may have said it already.
            btree_map::Entry::Vacant(unknown) => unknown.insert(Known {
                shares: share_ids(entry),
                devices: api.devices(&id).await?,
            }),
        };
        let Some(before) = &known.devices else {
            return Ok(());
        };
        let wanted = devices(pool, uid, entry, findings, before, Timestamp::now());
        if same(&wanted, before) {
            return Ok(());
        }
        match api.apply(&id, &wanted).await? {
            Applied::Kept => known.devices = Some(wanted),
            Applied::Gone => known.devices = None,
            Applied::Dropped => self.dropped = true,
        }
        Ok(())
    }
}

fn share_ids(entry: &Entry) -> ShareIds {
    let shares = entry.shares.iter().map(|held| &held.share);
    shares
        .map(|share| (share.device.clone(), share.share_id.clone()))
        .collect()
}

/// The API server keeps their order by key, not ours.
fn same(wanted: &[AllocatedDeviceStatus], known: &[AllocatedDeviceStatus]) -> bool {
    wanted.len() == known.len() && wanted.iter().all(|one| known.contains(one))
}

/// Who has which event.
#[derive(Default)]
pub(super) struct Notices {
    memory: Told,
    /// Kills whose event is not on all pods of the claim yet, each with the pods that have it.
    killed: VecDeque<(ShareKey, Offender, Told)>,
    mounts: BTreeSet<(ShareKey, String, String)>,
    unexplained: BTreeSet<Place>,
}

/// A GPU, and the UID of the pod whose processes use it without a share; None: they are in no pod. Processes come and go
/// as often as a tenant likes, so they do not have an event each.
type Place = (String, Option<String>);

// === impl Notices ===

impl Notices {
    /// Creates the events that are due.
    pub(super) async fn warn<A: Claims + Events>(
        &mut self,
        node: &SharedNode,
        api: &A,
        truth: &Truth,
        node_object: &ObjectReference,
    ) {
        let (breaches, lacking, unexplained, pods) = {
            let mut state = truth.lock();
            let killed = std::mem::take(&mut state.killed).into_iter();
            self.killed
                .extend(killed.map(|(share, offender)| (share, offender, Told::default())));
            (
                state.breaches.clone(),
                state.lacking.clone(),
                state.unexplained.clone(),
                state.pods.clone(),
            )
        };
        let names = match breaches.is_empty() && self.killed.is_empty() {
            true => BTreeMap::new(),
            false => names(node).await,
        };
        let broken: Vec<&str> = breaches.keys().map(|(uid, _)| uid.as_str()).collect();
        self.memory.keep(&broken);
        for ((uid, share), breach) in &breaches {
            let Some(id) = names.get(uid) else { continue };
            let note = |pods: &str| breach.note(share, id, pods);
            self.memory.warn(api, id, "MemoryLimitBroken", note).await;
        }
        self.warn_killed(api, &names).await;
        self.mounts.retain(|(share, pod, container)| {
            lacking
                .get(share)
                .is_some_and(|of| of.pod_uid == *pod && of.container == *container)
        });
        for (share, of) in lacking {
            let key = (share, of.pod_uid.clone(), of.container.clone());
            if self.mounts.contains(&key) {
                continue;
            }
            let note = format!(
                "container {} uses a claim: {}",
                of.container,
                Reason::MountsMissing.message()
            );
            let pod = pod_reference(&of.namespace, &of.pod, &of.pod_uid);
            match api.warn(pod, "MountsMissing", note).await {
                Ok(()) => drop(self.mounts.insert(key)),
                Err(error) => {
                    tracing::warn!(%error, "cannot create the MountsMissing event on pod {}; retrying", of.pod)
                }
            }
        }
        self.warn_unexplained(api, &unexplained, pods.as_deref(), node_object)
            .await;
    }

    /// Kills of a claim that is gone have no pod that could be told.
    async fn warn_killed<A: Claims + Events>(&mut self, api: &A, names: &BTreeMap<String, ClaimId>) {
        let excess = self.killed.len().saturating_sub(MOST_KILLS);
        self.killed.drain(..excess);
        for ((uid, share), offender, mut told) in std::mem::take(&mut self.killed) {
            let Some(id) = names.get(&uid) else { continue };
            let note = |_: &str| {
                format!(
                    "process {} ({}) on the node had {} MiB of GPU memory, more than share {share} of ResourceClaim {} allows, \
                     and was killed, as plugin.onBreach: kill says",
                    offender.pid,
                    offender.name,
                    offender.bytes / MIB,
                    id.name
                )
            };
            if !told.warn(api, id, "KilledOverLimit", note).await {
                self.killed.push_back(((uid, share), offender, told));
            }
        }
    }

    async fn warn_unexplained<A: Events>(
        &mut self,
        api: &A,
        unexplained: &[Unexplained],
        pods: Option<&[Pod]>,
        node_object: &ObjectReference,
    ) {
        let mut places: BTreeMap<Place, Vec<&Unexplained>> = BTreeMap::new();
        for of in unexplained {
            let pod = of.container.as_ref().map(|container| container.pod.clone());
            places.entry((of.gpu.clone(), pod)).or_default().push(of);
        }
        self.unexplained.retain(|told| places.contains_key(told));
        for (place, processes) in places {
            if self.unexplained.contains(&place) {
                continue;
            }
            let uid = place.1.as_deref();
            let pod = uid.and_then(|uid| pods?.iter().find(|pod| pod.uid == uid));
            if uid.is_some() && pods.is_none() {
                // The pods are asked for first.
                continue;
            }
            let regarding = pod.map_or_else(
                || node_object.clone(),
                |pod| pod_reference(&pod.namespace, &pod.name, &pod.uid),
            );
            match api
                .warn(regarding, "UnexplainedUse", unexplained_note(&place, &processes))
                .await
            {
                Ok(()) => drop(self.unexplained.insert(place)),
                Err(error) => {
                    tracing::warn!(%error, "cannot create the UnexplainedUse event for GPU {}; retrying", place.0)
                }
            }
        }
    }
}

/// The claims of the node, by UID.
async fn names(node: &SharedNode) -> BTreeMap<String, ClaimId> {
    let read = node.read(|node| {
        let claims = node.claims().claims.iter();
        claims.map(|(uid, entry)| (uid.clone(), entry.id(uid))).collect()
    });
    read.await.unwrap_or_default()
}

fn unexplained_note((gpu, pod): &Place, processes: &[&Unexplained]) -> String {
    let known = processes.iter().filter_map(|of| of.bytes).fold(0, u64::saturating_add);
    let memory = match known {
        0 => "memory".to_owned(),
        bytes => format!("{} MiB", bytes / MIB),
    };
    let place = match pod {
        Some(pod) => format!("in pod {pod}"),
        None => "in no pod".to_owned(),
    };
    let largest = processes.iter().max_by_key(|of| of.bytes);
    let largest = largest.map_or_else(String::new, |of| format!("process {} ({})", of.pid, of.name));
    let who = match processes.len() {
        0 | 1 => format!("{largest} {place} uses"),
        count => format!("{count} processes {place}, most of all {largest}, use"),
    };
    format!(
        "{who} {memory} of GPU {gpu} without a share of it: claims may find less memory than they were given. Give the pod a \
         claim, or end the process"
    )
}

fn pod_reference(namespace: &str, name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: Some(namespace.into()),
        name: Some(name.into()),
        uid: Some(uid.into()),
        ..ObjectReference::default()
    }
}

// === impl Breach ===

impl Breach {
    fn note(&self, share: &str, id: &ClaimId, pods: &str) -> String {
        let used = self
            .used
            .map_or_else(|| "more".to_owned(), |used| format!("{} MiB", used / MIB));
        let what = match self.reason {
            Reason::NotCharged => "of which libvgpu.so did not charge a part: a program goes around it",
            _ => "more than its limit: a program goes around libvgpu.so",
        };
        let process = self.offender.as_ref().map_or_else(String::new, |of| {
            format!("; most of it has process {} ({}) on the node", of.pid, of.name)
        });
        format!(
            "by the driver's figures share {share} of ResourceClaim {} with a limit of {} MiB uses {used}, {what}{process}. The \
             pods of the claim ({pods}) take memory that others were given; change the program or delete its pod",
            id.name,
            self.limit / MIB
        )
    }
}

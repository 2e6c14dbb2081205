//! Tells the API server what was observed: device status of claims, and events.
//!
//! How it fails:
//! - The API server is down: what is to be said is kept, and asked for again after a while that grows to five minutes.
//! - It does not keep `status.devices`: said once in the log, and no claim is written any more.
//! - The claim is gone, or was deallocated, or another one has its name: nothing is written, until the node prepares it
//!   again.
//! - Two instances: each writes a change that it found itself. Their words are the same, and times are read before the
//!   first write, so they do not write in turns.

use super::api::{Applied, Pods, Statuses};
use super::conditions::{Findings, devices};
use super::finding::Reason;
use super::memory::Unexplained;
use super::observe::{Breach, Truth};
use crate::api::{Claims, Events};
use crate::background::Told;
use crate::checkpoint::Entry;
use crate::node::SharedNode;
use crate::share::{ClaimId, ShareKey};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::resource::v1::AllocatedDeviceStatus;
use k8s_openapi::jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
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
    if !std::mem::take(&mut truth.lock().question) {
        return;
    }
    match api.pods().await {
        Ok(pods) => truth.lock().pods = Some(pods),
        Err(error) => tracing::warn!(%error, "cannot list this node's pods; who uses which claim is asked again"),
    }
}

/// Writes device status.
#[derive(Default)]
pub(super) struct Writer {
    /// What each claim has, by UID. None: it cannot have any.
    known: BTreeMap<String, Option<Vec<AllocatedDeviceStatus>>>,
    /// The API server does not keep the field.
    dropped: bool,
    pause: Option<(Instant, Duration)>,
}

// === impl Writer ===

impl Writer {
    /// Writes what changed.
    pub(super) async fn write<A: Statuses>(&mut self, node: &SharedNode, api: &A, truth: &Truth) {
        let is_paused = self.pause.is_some_and(|(since, pause)| since.elapsed() < pause);
        if self.dropped || is_paused {
            return;
        }
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
        let findings = truth.lock().findings.clone();
        self.known.retain(|uid, _| entries.contains_key(uid));
        for (uid, entry) in &entries {
            match self.write_one(api, &pool, uid, entry, &findings).await {
                Ok(()) => self.pause = None,
                Err(error) => {
                    let before = self.pause.map(|(_, pause)| pause * 2);
                    let pause = before.unwrap_or(FIRST_PAUSE).min(LONGEST_PAUSE);
                    tracing::warn!(%error, "cannot write the device status of {}; trying again in {} s", entry.id(uid), pause.as_secs());
                    self.pause = Some((Instant::now(), pause));
                    return;
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
    }

    /// Ends a pause.
    #[cfg(test)]
    pub(super) fn wake(&mut self) {
        self.pause = None;
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
        if !self.known.contains_key(uid) {
            // A former instance may have said it already.
            let known = api.devices(&id).await?;
            self.known.insert(uid.to_owned(), known);
        }
        let Some(Some(known)) = self.known.get(uid) else {
            return Ok(());
        };
        let wanted = devices(pool, uid, entry, findings, known, Timestamp::now());
        if same(&wanted, known) {
            return Ok(());
        }
        match api.apply(&id, &wanted).await? {
            Applied::Kept => drop(self.known.insert(uid.to_owned(), Some(wanted))),
            Applied::Gone => drop(self.known.insert(uid.to_owned(), None)),
            Applied::Dropped => self.dropped = true,
        }
        Ok(())
    }
}

/// The API server keeps their order by key, not ours.
fn same(wanted: &[AllocatedDeviceStatus], known: &[AllocatedDeviceStatus]) -> bool {
    wanted.len() == known.len() && wanted.iter().all(|one| known.contains(one))
}

/// Who has which event.
#[derive(Default)]
pub(super) struct Notices {
    memory: Told,
    killed: Told,
    mounts: BTreeSet<(ShareKey, String, String)>,
    unexplained: BTreeSet<(String, u32, u64)>,
}

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
        let (breaches, killed, lacking, unexplained, pods) = {
            let mut state = truth.lock();
            let killed = std::mem::take(&mut state.killed);
            (
                state.breaches.clone(),
                killed,
                state.lacking.clone(),
                state.unexplained.clone(),
                state.pods.clone(),
            )
        };
        let names = node.read(|node| {
            let claims = node.claims().claims.iter();
            claims
                .map(|(uid, entry)| (uid.clone(), entry.id(uid)))
                .collect::<BTreeMap<String, ClaimId>>()
        });
        let names = names.await.unwrap_or_default();
        let broken: Vec<&str> = breaches.keys().map(|(uid, _)| uid.as_str()).collect();
        self.memory.keep(&broken);
        for ((uid, share), breach) in &breaches {
            let Some(id) = names.get(uid) else { continue };
            let note = |pods: &str| breach.note(share, id, pods);
            self.memory.warn(api, id, "MemoryLimitBroken", note).await;
        }
        self.killed.keep(&[]);
        for ((uid, share), offender) in killed {
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
            self.killed.warn(api, id, "KilledOverLimit", note).await;
        }
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
        let name = |of: &Unexplained| (of.gpu.clone(), of.pid, of.started);
        let still: BTreeSet<_> = unexplained.iter().map(name).collect();
        self.unexplained.retain(|known| still.contains(known));
        for of in unexplained
            .iter()
            .filter(|of| !self.unexplained.contains(&name(of)))
            .cloned()
            .collect::<Vec<_>>()
        {
            let container = of.container.as_ref();
            let pod = container.and_then(|of| pods.iter().flatten().find(|pod| pod.uid == of.pod));
            if container.is_some() && pod.is_none() && pods.is_none() {
                // The pods are asked for first.
                continue;
            }
            let regarding = pod.map_or_else(
                || node_object.clone(),
                |pod| pod_reference(&pod.namespace, &pod.name, &pod.uid),
            );
            match api.warn(regarding, "UnexplainedUse", unexplained_note(&of)).await {
                Ok(()) => drop(self.unexplained.insert(name(&of))),
                Err(error) => {
                    tracing::warn!(%error, "cannot create the UnexplainedUse event of process {}; retrying", of.pid)
                }
            }
        }
    }
}

fn unexplained_note(of: &Unexplained) -> String {
    let memory = of
        .bytes
        .map_or_else(|| "memory".to_owned(), |bytes| format!("{} MiB", bytes / MIB));
    let place = match &of.container {
        Some(container) => format!("in pod {}", container.pod),
        None => "in no pod".to_owned(),
    };
    format!(
        "process {} ({}) {place} uses {memory} of GPU {} without a share of it: claims may find less memory than they were \
         given. Give the pod a claim, or end the process",
        of.pid, of.name, of.gpu
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

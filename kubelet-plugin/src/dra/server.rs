//! kubelet's DRA service, v1 and v1beta1: reads the claims of a call and passes them to `Node`.
//!
//! ```text
//! claims of a call ─► GET each, a few at a time ─► UID matches? ─► a turn: `Node::prepare` for all calls ─► answers
//!                                                                     └─► no room ─► `waiting` ─┘
//! ```
//!
//! Every claim gets an entry in the answer: kubelet fails the pod of a missing one without a reason. kubelet
//! aborts a call after 45 s and then reports only a timeout, so a claim that cannot be read sooner is
//! answered with the reason. A Prepare whose claim is unprepared while it is being read or waits is refused: its pod
//! is gone, and nothing would unprepare it again.

use crate::api::Claims;
use crate::dra::mount_users::MountUsers;
use crate::dra::node::{Error, Prepared, ReadClaim, SharedNode, all_fail};
use crate::dra::share::ClaimId;
use crate::dra::waiting::{Holders, LOOK_EVERY, ProcessCache, ROOM_WITHIN};
use crate::metrics::{Metrics, Times};
use futures::StreamExt as _;
use k8s_openapi::api::resource::v1::ResourceClaim;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::timeout_at;
use tonic::{Request, Response, Status};
use vgpu_proto::dra::{v1, v1beta1};

/// Concurrent requests to the API server.
pub const CONCURRENT_GETS: usize = 8;
/// Deadline for reading all claims of a call; preparing them takes milliseconds.
const GET_TIMEOUT: Duration = Duration::from_secs(20);

/// The longest time, from the beginning of the call, that a claim waits for room. Waits for the lock come on top.
const WAITED_UNTIL: Duration = Duration::from_secs(30);
/// Deadline for reading a claim again that has waited for room.
const READ_AGAIN: Duration = Duration::from_secs(3);

/// Implements Prepare and Unprepare for kubelet. Not to be confused with [`crate::driver`], the GPU driver's files.
pub struct Service<C, K> {
    node: SharedNode,
    claims: C,
    processes: ProcessCache<K>,
    metrics: Metrics,
    /// True once the plugin ends, which no call may delay.
    stopped: watch::Receiver<bool>,
    /// Lets a Prepare notice that its claim was unprepared while it was read from the API server.
    reading: Arc<Mutex<Reading>>,
}

/// The Prepare calls that are reading claims now.
#[derive(Default)]
struct Reading {
    next: u64,
    /// For each call, the UIDs that were unprepared since it began.
    calls: BTreeMap<u64, BTreeSet<String>>,
}

/// Registers a call in [`Reading`] until it is dropped, also when kubelet cancels the call.
struct Ticket {
    number: u64,
    reading: Arc<Mutex<Reading>>,
}

// === impl Service ===

impl<C: Claims, K: MountUsers> Service<C, K> {
    #[must_use]
    pub fn new(node: SharedNode, claims: C, keepers: K, metrics: Metrics, stopped: watch::Receiver<bool>) -> Self {
        Self {
            node,
            claims,
            processes: ProcessCache::new(keepers),
            metrics,
            stopped,
            reading: Arc::default(),
        }
    }

    /// Prepares each claim. kubelet shows the errors on the pod, so they name no object of another namespace.
    pub async fn prepare(&self, ids: Vec<ClaimId>) -> BTreeMap<String, Result<Vec<Prepared>, String>> {
        let started = Instant::now();
        let begun = tokio::time::Instant::now();
        let ticket = Arc::new(Ticket::new(self.reading.clone()));
        let read = self.read_all(ids, begun + GET_TIMEOUT).await;
        let times = Times::new(started.elapsed());
        let mut answers: Vec<(ClaimId, Answer)> = Vec::new();
        let mut batch = Vec::new();
        for (id, read) in read {
            match read {
                Err(failure) => answers.push((id, Err(failure))),
                Ok(claim) => batch.push((id, claim)),
            }
        }
        let until = begun + WAITED_UNTIL;
        let prepared = match batch.is_empty() {
            true => Vec::new(),
            false => self.prepare_read(batch, &ticket, &times).await,
        };
        let (call, begun, times) = (&ticket, Instant::now(), &times);
        let waiting = prepared.into_iter().map(|(id, claim, answer)| async move {
            let answer = match answer {
                Err(Failure { full: true, .. }) => self.wait(&id, claim, call, until, times).await,
                answer => answer,
            };
            (id, answer)
        });
        answers.extend(futures::future::join_all(waiting).await);
        times.waited(begun.elapsed());
        let unprepared = ticket.unprepared();
        let (mut reasons, mut texts) = (Vec::new(), BTreeMap::new());
        for (id, answer) in answers {
            let answer = answer.and_then(|prepared| match unprepared.contains(&id.uid) {
                true => Err(Failure::unprepared()),
                false => Ok(prepared),
            });
            reasons.extend(answer.as_ref().err().map(|failure| failure.reason));
            let answer = answer.map_err(|failure| {
                let text = format!("{id}: {}", failure.text);
                match failure.not_named.is_empty() {
                    true => tracing::warn!("cannot prepare {text}"),
                    false => tracing::warn!(holders = ?failure.not_named, "cannot prepare {text}"),
                }
                text
            });
            texts.insert(id.uid, answer);
        }
        self.metrics.prepared(started.elapsed(), times, reasons);
        texts
    }

    /// Reads each claim from the API server, a few at a time.
    async fn read_all(
        &self,
        ids: Vec<ClaimId>,
        deadline: tokio::time::Instant,
    ) -> Vec<(ClaimId, Result<ResourceClaim, Failure>)> {
        let late = || {
            let text = format!(
                "the API server did not answer GET resourceclaims within {} s; check that it is healthy and that \
                 this node reaches it; kubelet retries",
                GET_TIMEOUT.as_secs()
            );
            Err(Failure::new("api", text))
        };
        let gets = ids.into_iter().map(|id| async move {
            let read = timeout_at(deadline, self.read(&id)).await;
            (id, read.unwrap_or_else(|_| late()))
        });
        let gets = futures::stream::iter(gets).buffer_unordered(CONCURRENT_GETS);
        gets.collect().await
    }

    /// Prepares the claims that were read, together with those of other calls, except claims that were unprepared meanwhile.
    async fn prepare_read(&self, batch: Vec<ReadClaim>, ticket: &Arc<Ticket>, times: &Times) -> Vec<Answered> {
        let (claims, waits, ticket) = (batch.clone(), Instant::now(), ticket.clone());
        match self.node.prepare(batch, move || ticket.unprepared()).await {
            Ok(done) => {
                times.turned(done.began.saturating_duration_since(waits), done.parts);
                let answers = done.answers.into_iter().map(|answer| match answer {
                    Some(answer) => answer.map_err(|error| Failure::from(&error)),
                    None => Err(Failure::unprepared()),
                });
                claims
                    .into_iter()
                    .zip(answers)
                    .map(|((id, claim), answer)| (id, claim, answer))
                    .collect()
            }
            Err(error) => {
                let failed = Failure::from(&error);
                let fail = |(id, claim)| (id, claim, Err(failed.clone()));
                claims.into_iter().map(fail).collect()
            }
        }
    }

    /// Prepares a claim that has no room because claims that are gone still hold it. Waits until they have released it.
    async fn wait(
        &self,
        id: &ClaimId,
        mut claim: ResourceClaim,
        ticket: &Arc<Ticket>,
        until: tokio::time::Instant,
        times: &Times,
    ) -> Answer {
        let until = until.min(tokio::time::Instant::now() + ROOM_WITHIN);
        let (mut holders, mut ended) = (Holders::default(), self.node.ended());
        loop {
            ended.mark_unchanged();
            if ticket.unprepared().contains(&id.uid) {
                return Err(Failure::unprepared());
            }
            let (gone, wanted, of) = (holders.gone(), claim.clone(), id.clone());
            let found = self
                .node
                .turn(move |node, locked| node.no_room(locked, &of, &wanted, &gone))
                .await;
            let Some(no_room) = found.and_then(|found| found).map_err(|error| Failure::from(&error))? else {
                let deadline = tokio::time::Instant::now().max(until) + READ_AGAIN;
                match self.prepare_again(id, deadline, ticket, times).await? {
                    (again, Err(Failure { full: true, .. })) => claim = again,
                    (_, answer) => return answer,
                }
                continue;
            };
            let full = Failure::from(&Error::Full(no_room.full.clone()));
            let known = &no_room.full.holders;
            if holders.ask(&self.node, &self.claims, known, until).await {
                continue;
            }
            if !no_room.without_gone {
                return Err(full);
            }
            if holders
                .release_dead(&self.node, &self.claims, &self.processes, until)
                .await
            {
                continue;
            }
            if *self.stopped.borrow() {
                return Err(full);
            }
            if tokio::time::Instant::now() >= until {
                let kept = holders.refusal(&no_room.full, &self.processes.look(&self.node).await);
                return Err(full.with(&kept));
            }
            let next = until.min(tokio::time::Instant::now() + LOOK_EVERY);
            let mut stopped = self.stopped.clone();
            tokio::select! {
                // On an error, nothing will stop the plugin any more.
                Ok(_) = stopped.wait_for(|stopped| *stopped) => {}
                // Check again after a change, or when this wait has ended.
                _ = timeout_at(next, ended.changed()) => {}
            }
        }
    }

    /// Reads a claim again, which may have another allocation by now, and prepares it: there is room. Returns the claim as
    /// it was read, and the answer.
    async fn prepare_again(
        &self,
        id: &ClaimId,
        deadline: tokio::time::Instant,
        ticket: &Arc<Ticket>,
        times: &Times,
    ) -> Result<(ResourceClaim, Answer), Failure> {
        let read = timeout_at(deadline, self.read(id)).await;
        let claim = read.unwrap_or_else(|_| Err(Failure::new("api", "the API server did not answer".into())))?;
        let mut prepared = self.prepare_read(vec![(id.clone(), claim)], ticket, times).await;
        let (_, claim, answer) = prepared.pop().ok_or_else(Failure::unprepared)?;
        Ok((claim, answer))
    }

    /// Unprepares each claim by its UID.
    pub async fn unprepare(&self, ids: Vec<ClaimId>) -> BTreeMap<String, Result<(), String>> {
        let started = Instant::now();
        let (claims, reading) = (ids.clone(), self.reading.clone());
        let mark = move || reading.lock().unwrap_or_else(PoisonError::into_inner).mark(&claims);
        let done = match self.node.unprepare(ids.clone(), mark).await {
            Ok(done) => done,
            Err(error) => {
                let (claims, failed) = (ids.clone(), all_fail(ids.len(), error));
                let noted = self.node.read(move |node| {
                    for (id, answer) in claims.iter().zip(&failed) {
                        node.note_unprepare(id, answer);
                    }
                    failed
                });
                noted.await.unwrap_or_else(|error| all_fail(ids.len(), error))
            }
        };
        self.node.wake_waiting();
        let answers: BTreeMap<_, _> = ids
            .iter()
            .zip(done)
            .map(|(id, answer)| (id.uid.clone(), answer.map_err(|error| format!("{id}: {error}"))))
            .collect();
        self.metrics.unprepared(
            started.elapsed(),
            answers.values().filter(|answer| answer.is_err()).count(),
        );
        for error in answers.values().filter_map(|answer| answer.as_ref().err()) {
            tracing::warn!("cannot unprepare {error}");
        }
        answers
    }

    async fn read(&self, id: &ClaimId) -> Result<ResourceClaim, Failure> {
        let claim = self
            .claims
            .get(&id.namespace, &id.name)
            .await
            .map_err(|error| Failure::new("api", error.to_string()))?;
        let claim =
            claim.ok_or_else(|| Failure::new("claim", "does not exist (any more); delete the pod".to_owned()))?;
        match claim.metadata.uid.as_deref() {
            Some(uid) if uid == id.uid => Ok(claim),
            found => Err(Failure::new(
                "claim",
                format!(
                    "a claim of this name has metadata.uid {}: it was deleted and created again; delete the pod",
                    found.unwrap_or("none")
                ),
            )),
        }
    }
}

/// Why a claim could not be prepared.
#[derive(Clone, Debug)]
struct Failure {
    /// The metric's label.
    reason: &'static str,
    text: String,
    /// Its GPU has no room for it.
    full: bool,
    /// Claims of other namespaces that hold the room. Only the log names them.
    not_named: Vec<String>,
}

type Answer = Result<Vec<Prepared>, Failure>;
type Answered = (ClaimId, ResourceClaim, Answer);

// === impl Failure ===

impl Failure {
    fn new(reason: &'static str, text: String) -> Self {
        Self {
            reason,
            text,
            full: false,
            not_named: Vec::new(),
        }
    }

    fn unprepared() -> Self {
        let text = "was unprepared while it was being prepared; kubelet retries if a pod needs it";
        Self::new("claim", text.to_owned())
    }

    /// Appends `more` to the text unless it is empty.
    fn with(mut self, more: &str) -> Self {
        if !more.is_empty() {
            self.text = format!("{}; {more}", self.text);
        }
        self
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self {
            reason: error.kind(),
            text: error.to_string(),
            full: matches!(error, Error::Full(_)),
            not_named: match error {
                Error::Full(full) => full.not_named(),
                _ => Vec::new(),
            },
        }
    }
}

// === impl Reading ===

impl Reading {
    fn mark(&mut self, claims: &[ClaimId]) {
        for call in self.calls.values_mut() {
            call.extend(claims.iter().map(|id| id.uid.clone()));
        }
    }
}

// === impl Ticket ===

impl Ticket {
    fn new(reading: Arc<Mutex<Reading>>) -> Self {
        let mut calls = reading.lock().unwrap_or_else(PoisonError::into_inner);
        let number = calls.next;
        calls.next += 1;
        calls.calls.insert(number, BTreeSet::new());
        drop(calls);
        Self { number, reading }
    }

    fn unprepared(&self) -> BTreeSet<String> {
        let calls = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        calls.calls.get(&self.number).cloned().unwrap_or_default()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut calls = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        calls.calls.remove(&self.number);
    }
}

// === The two versions on the wire ===

/// Implements the service of one version. The versions differ in the device: only v1 has the share's ID.
macro_rules! serve {
    ($version:ident, |$prepared:ident| $device:expr) => {
        #[tonic::async_trait]
        impl<C: Claims, K: MountUsers> $version::dra_plugin_server::DraPlugin for Service<C, K> {
            async fn node_prepare_resources(
                &self,
                request: Request<$version::NodePrepareResourcesRequest>,
            ) -> Result<Response<$version::NodePrepareResourcesResponse>, Status> {
                let ids = request.into_inner().claims.into_iter().map(|claim| ClaimId {
                    namespace: claim.namespace,
                    name: claim.name,
                    uid: claim.uid,
                });
                let answers = self
                    .prepare(ids.collect())
                    .await
                    .into_iter()
                    .map(|(uid, answer)| {
                        let answer = match answer {
                            Ok(devices) => $version::NodePrepareResourceResponse {
                                devices: devices.into_iter().map(|$prepared| $device).collect(),
                                error: String::new(),
                            },
                            Err(error) => $version::NodePrepareResourceResponse {
                                devices: Vec::new(),
                                error,
                            },
                        };
                        (uid, answer)
                    });
                Ok(Response::new($version::NodePrepareResourcesResponse {
                    claims: answers.collect(),
                }))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<$version::NodeUnprepareResourcesRequest>,
            ) -> Result<Response<$version::NodeUnprepareResourcesResponse>, Status> {
                let ids = request.into_inner().claims.into_iter().map(|claim| ClaimId {
                    namespace: claim.namespace,
                    name: claim.name,
                    uid: claim.uid,
                });
                let answers = self
                    .unprepare(ids.collect())
                    .await
                    .into_iter()
                    .map(|(uid, answer)| {
                        let error = answer.err().unwrap_or_default();
                        (uid, $version::NodeUnprepareResourceResponse { error })
                    });
                Ok(Response::new($version::NodeUnprepareResourcesResponse {
                    claims: answers.collect(),
                }))
            }
        }
    };
}

serve!(v1, |prepared| v1::Device {
    request_names: vec![prepared.request],
    pool_name: prepared.pool,
    device_name: prepared.device,
    cdi_device_ids: vec![prepared.cdi_device],
    share_id: prepared.share_id,
});

serve!(v1beta1, |prepared| v1beta1::Device {
    request_names: vec![prepared.request],
    pool_name: prepared.pool,
    device_name: prepared.device,
    cdi_device_ids: vec![prepared.cdi_device],
});

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;

//! kubelet's DRA service, v1 and v1beta1: reads the claims of a call and passes them to `Node`.
//!
//! ```text
//! claims of a call ─► GET each, a few at a time ─► UID matches? ─► `Node::prepare` once for all ─► answers
//! ```
//!
//! Every claim gets an entry in the answer: kubelet fails the pod of a missing one without a reason. kubelet
//! aborts a call after 45 s and then reports only a timeout, so a claim that cannot be read sooner is
//! answered with the reason. A Prepare whose claim is unprepared while it is being read is refused: its pod
//! is gone, and nothing would unprepare it again.

use crate::api::Claims;
use crate::metrics::Metrics;
use crate::node::lock::Locked;
use crate::node::{Node, Prepared, SharedNode, all_fail};
use crate::share::ClaimId;
use futures::StreamExt as _;
use k8s_openapi::api::resource::v1::ResourceClaim;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tonic::{Request, Response, Status};
use vgpu_proto::dra::{v1, v1beta1};

/// Concurrent requests to the API server. Each may open a connection, with its TLS handshake.
pub const CONCURRENT_GETS: usize = 8;
/// Deadline for reading all claims of a call; preparing them takes milliseconds.
const GET_TIMEOUT: Duration = Duration::from_secs(20);

/// Implements Prepare and Unprepare for kubelet. Not to be confused with [`crate::driver`], the GPU driver's files.
pub struct Service<C> {
    node: SharedNode,
    claims: C,
    metrics: Metrics,
    /// Lets a Prepare notice that its claim was unprepared while it was read from the API server.
    reading: Arc<Mutex<Reading>>,
}

/// The Prepare calls that are reading claims now.
#[derive(Default)]
struct Reading {
    next: u64,
    /// For each call, the UIDs that were unprepared since it began.
    calls: BTreeMap<u64, Vec<String>>,
}

/// Registers a call in [`Reading`] until it is dropped, also when kubelet cancels the call.
struct Ticket {
    number: u64,
    reading: Arc<Mutex<Reading>>,
}

// === impl Service ===

impl<C: Claims> Service<C> {
    #[must_use]
    pub fn new(node: SharedNode, claims: C, metrics: Metrics) -> Self {
        Self {
            node,
            claims,
            metrics,
            reading: Arc::default(),
        }
    }

    /// Prepares each claim. kubelet shows the errors on the pod.
    pub async fn prepare(&self, ids: Vec<ClaimId>) -> BTreeMap<String, Result<Vec<Prepared>, String>> {
        let started = Instant::now();
        let ticket = Ticket::new(self.reading.clone());
        let deadline = tokio::time::Instant::now() + GET_TIMEOUT;
        let gets = ids.into_iter().map(|id| async move {
            let read = tokio::time::timeout_at(deadline, self.read(&id)).await;
            let late = || {
                Err(format!(
                    "the API server did not answer GET resourceclaims within {} s; check that it is healthy and that \
                     this node reaches it; kubelet retries",
                    GET_TIMEOUT.as_secs()
                ))
            };
            (id, read.unwrap_or_else(|_| late().map_err(|text| ("api", text))))
        });
        let read: Vec<_> = futures::stream::iter(gets)
            .buffer_unordered(CONCURRENT_GETS)
            .collect()
            .await;
        let reading = started.elapsed();
        let mut answers = BTreeMap::new();
        let mut batch = Vec::new();
        let mut reasons = Vec::new();
        for (id, read) in read {
            match read {
                Err((reason, error)) => {
                    reasons.push(reason);
                    answers.insert(id.uid.clone(), Err(format!("{id}: {error}")));
                }
                Ok(claim) => batch.push((id, claim)),
            }
        }
        let ids: Vec<ClaimId> = batch.iter().map(|(id, _)| id.clone()).collect();
        let prepared = self
            .node
            .turn(move |node, locked| prepare_read(node, locked, batch, &ticket));
        let prepared = prepared.await.unwrap_or_else(|error| {
            let failed = (error.kind(), error.to_string());
            ids.iter().map(|id| (id.clone(), Err(failed.clone()))).collect()
        });
        for (id, answer) in prepared {
            reasons.extend(answer.as_ref().err().map(|(reason, _)| *reason));
            answers.insert(id.uid.clone(), answer.map_err(|(_, error)| format!("{id}: {error}")));
        }
        self.metrics.prepared(started.elapsed(), reading, reasons);
        for error in answers.values().filter_map(|answer| answer.as_ref().err()) {
            tracing::warn!("cannot prepare {error}");
        }
        answers
    }

    /// Unprepares each claim by its UID.
    pub async fn unprepare(&self, ids: Vec<ClaimId>) -> BTreeMap<String, Result<(), String>> {
        let started = Instant::now();
        let (claims, reading) = (ids.clone(), self.reading.clone());
        let done = self.node.turn(move |node, locked| {
            let uids: Vec<&str> = claims.iter().map(|id| id.uid.as_str()).collect();
            reading.lock().unwrap_or_else(PoisonError::into_inner).mark(&uids);
            let done = node.unprepare(locked, &uids);
            for (id, answer) in claims.iter().zip(&done) {
                node.note_unprepare(id, answer);
            }
            done
        });
        let done = match done.await {
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
            .map_err(|error| ("api", error.to_string()))?;
        let claim = claim.ok_or_else(|| ("claim", "does not exist (any more); delete the pod".to_owned()))?;
        match claim.metadata.uid.as_deref() {
            Some(uid) if uid == id.uid => Ok(claim),
            found => Err((
                "claim",
                format!(
                    "a claim of this name has metadata.uid {}: it was deleted and created again; delete the pod",
                    found.unwrap_or("none")
                ),
            )),
        }
    }
}

/// Why a claim could not be prepared: the metric's reason, and the sentence.
type Failure = (&'static str, String);

/// Prepares the claims that were read, but for those that were unprepared meanwhile.
fn prepare_read(
    node: &mut Node,
    locked: &Locked,
    batch: Vec<(ClaimId, ResourceClaim)>,
    ticket: &Ticket,
) -> Vec<(ClaimId, Result<Vec<Prepared>, Failure>)> {
    let unprepared = ticket.unprepared();
    let (late, batch): (Vec<_>, Vec<_>) = batch.into_iter().partition(|(id, _)| unprepared.contains(&id.uid));
    let prepared = node.prepare(locked, &batch);
    let prepared = prepared
        .into_iter()
        .map(|answer| answer.map_err(|error| (error.kind(), error.to_string())));
    let late = late.into_iter().map(|(id, _)| {
        let error = "was unprepared while it was being prepared; kubelet retries if a pod needs it";
        (id, Err(("claim", error.to_owned())))
    });
    let prepared = batch.into_iter().map(|(id, _)| id).zip(prepared);
    prepared.chain(late).collect()
}

// === impl Reading ===

impl Reading {
    fn mark(&mut self, uids: &[&str]) {
        for call in self.calls.values_mut() {
            call.extend(uids.iter().map(|uid| (*uid).to_owned()));
        }
    }
}

// === impl Ticket ===

impl Ticket {
    fn new(reading: Arc<Mutex<Reading>>) -> Self {
        let mut calls = reading.lock().unwrap_or_else(PoisonError::into_inner);
        let number = calls.next;
        calls.next += 1;
        calls.calls.insert(number, Vec::new());
        drop(calls);
        Self { number, reading }
    }

    fn unprepared(&self) -> Vec<String> {
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
        impl<C: Claims> $version::dra_plugin_server::DraPlugin for Service<C> {
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

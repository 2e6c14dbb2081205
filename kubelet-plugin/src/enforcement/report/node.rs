//! Writes the VgpuNode of this node, once a minute.
//!
//! A change within a minute waits for its end. Each node has its own second of the minute, by its name, so that 1,000
//! nodes write 17 times a second and not all at once. Only the first write of an instance does not wait for that
//! second: it is made once the GPUs and shares are read, and all parts are ready or [`READY_WITHIN`] has passed. A node
//! without a GPU and a driver has no object, unless it had one before.
//!
//! How it fails:
//! - The API server is down, refuses the object, or has no VgpuNode (404, an older chart): tried again after 1, 2, 4 and then 5
//!   minutes, with one line in the log for each kind of error. The object says by `asOf` how old it is.
//! - The plugin restarts: it reads the object before its first write, and keeps times of conditions, peaks and means
//!   (`usage`). Until the object can be read nothing is written.
//! - After a restart it takes a while to find the shares whose claim is gone. Shares that a former instance reported as
//!   such are reported until reads and writes of the object have succeeded for two minutes. Their claims are read next.
//! - Somebody deletes or changes the object: the next write creates it again, and has every field back. The peaks and means of
//!   this instance are in its memory.
//! - Two instances: only the one that publishes slices writes.
//! - The Node is deleted: so is its VgpuNode, by its owner reference.

use super::super::api::NodeObjects;
use super::node_conditions::conditions;
use super::node_status::{FormerStatus, NodeRecords};
use crate::api::Error;
use crate::dra::share::ShareKeys;
use crate::metrics::Sources;
use crate::publish::gpus;
use crate::ready::State as Part;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::mem::{Discriminant, discriminant};
use std::time::{Duration, Instant, SystemTime};
use vgpu_api::usage::{NodeCondition, VgpuNode, VgpuNodeSpec, VgpuNodeStatus};

const EVERY: Duration = Duration::from_secs(60);
/// How long the first write waits for parts that are not ready.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// How long a share is reported as without a claim because a former instance has reported it so.
const UNCLAIMED_FOR: Duration = Duration::from_secs(120);
/// The longest pause, in minutes.
const LONGEST_PAUSE: u32 = 5;

/// Writes the VgpuNode.
pub(crate) struct NodeWriter {
    sources: Sources,
    owner: OwnerReference,
    started: Instant,
    next: Instant,
    has_written: bool,
    exists: bool,
    /// None before the object was read.
    conditions: Option<Vec<NodeCondition>>,
    /// Shares that a former instance reported as without a claim, and the time until which this is repeated.
    former_unclaimed: ShareKeys,
    unclaimed_until: Instant,
    failures: u32,
    /// The kind of error that the log has.
    logged: Option<Discriminant<Error>>,
}

// === impl NodeWriter ===

impl NodeWriter {
    pub(crate) fn new(sources: Sources, node_object: ObjectReference, now: Instant) -> Self {
        Self {
            sources,
            owner: OwnerReference {
                api_version: node_object.api_version.unwrap_or_default(),
                kind: node_object.kind.unwrap_or_default(),
                name: node_object.name.unwrap_or_default(),
                uid: node_object.uid.unwrap_or_default(),
                ..OwnerReference::default()
            },
            started: now,
            next: now,
            has_written: false,
            exists: false,
            conditions: None,
            former_unclaimed: ShareKeys::new(),
            unclaimed_until: now,
            failures: 0,
            logged: None,
        }
    }

    /// Writes the object if it is time.
    pub(crate) async fn write<A: NodeObjects>(&mut self, api: &A, now: Instant) {
        if now < self.next {
            return;
        }
        if self.conditions.is_none() {
            match api.vgpu_node().await {
                Ok(found) => {
                    self.exists = found.is_some();
                    self.restore(found.and_then(|object| object.status).unwrap_or_default(), now);
                }
                Err(error) => return self.failed(&error, now),
            }
        }
        let is_without_driver = matches!(self.sources.readiness.states().get(gpus::PART), Some(Part::Idle(_)));
        if (!self.exists && is_without_driver) || (!self.has_written && !self.may_begin(now)) {
            return;
        }
        let Some(status) = self.status(now).await else { return };
        let conditions = status.conditions.clone();
        let mut object = VgpuNode::new(&self.owner.name, VgpuNodeSpec {});
        object.metadata = ObjectMeta {
            name: Some(self.owner.name.clone()),
            owner_references: Some(vec![self.owner.clone()]),
            ..ObjectMeta::default()
        };
        object.status = Some(status);
        match api.apply_vgpu_node(&object).await {
            Ok(()) => self.written(conditions, now),
            Err(error) => self.failed(&error, now),
        }
    }

    fn restore(&mut self, former: VgpuNodeStatus, now: Instant) {
        let former = FormerStatus::read(former);
        self.sources.observations.lock().usage.restore(former.shares);
        self.sources
            .node
            .suspect(former.unclaimed.iter().map(|(uid, _)| uid.clone()));
        self.former_unclaimed = former.unclaimed;
        self.unclaimed_until = now + UNCLAIMED_FOR;
        self.conditions = Some(former.conditions);
    }

    /// Returns true once the first write may be made. An earlier one would report parts that only need a moment after a
    /// start.
    fn may_begin(&self, now: Instant) -> bool {
        let is_ready = self.sources.readiness.status().0;
        let has_waited = now.saturating_duration_since(self.started) >= READY_WITHIN;
        self.sources.observations.lock().usage.has_read() && (is_ready || has_waited)
    }

    /// None: the records cannot be read.
    async fn status(&self, now: Instant) -> Option<VgpuNodeStatus> {
        let mut records = self.sources.node.read(|node| NodeRecords::of(node)).await.ok()?;
        if now < self.unclaimed_until {
            records.add_unclaimed(&self.former_unclaimed);
        }
        let (today, parts) = (SystemTime::now(), self.sources.readiness.states());
        let state = self.sources.observations.lock();
        let before = self.conditions.as_deref().unwrap_or_default();
        Some(VgpuNodeStatus {
            conditions: conditions(&parts, &records.claims(), records.remarks(), &state, before, today),
            ..records.status(&state, today)
        })
    }

    fn written(&mut self, conditions: Vec<NodeCondition>, now: Instant) {
        if self.logged.take().is_some() {
            tracing::info!("the VgpuNode {} is written again", self.owner.name);
        }
        self.next = match self.has_written || self.failures > 0 {
            false => now + phase(&self.owner.name),
            true => self.after(1, now),
        };
        (self.has_written, self.exists) = (true, true);
        (self.failures, self.conditions) = (0, Some(conditions));
    }

    fn failed(&mut self, error: &Error, now: Instant) {
        if self.logged.replace(discriminant(error)) != Some(discriminant(error)) {
            let hint = match error {
                Error::NotFound(_) => {
                    ". If the cluster has no CustomResourceDefinition vgpunodes.dra.vgpu, upgrade the chart"
                }
                _ => "",
            };
            tracing::warn!(%error, "cannot write the VgpuNode {}; trying again, at last every {LONGEST_PAUSE} minutes{hint}", self.owner.name);
        }
        let pause = 1_u32
            .checked_shl(self.failures)
            .unwrap_or(LONGEST_PAUSE)
            .min(LONGEST_PAUSE);
        self.next = match self.failures {
            0 if !self.has_written => now + phase(&self.owner.name),
            _ => self.after(pause, now),
        };
        self.failures += 1;
        // The requests that would show whose claim is gone may have failed too.
        if now < self.unclaimed_until {
            self.unclaimed_until = self.next + UNCLAIMED_FOR;
        }
    }

    /// Returns this node's second of the minute after so many minutes.
    fn after(&self, minutes: u32, now: Instant) -> Instant {
        let mut next = self.next + EVERY * minutes;
        // Skip the writes that are overdue, because this process did not run for a while.
        while next <= now {
            next += EVERY;
        }
        next
    }
}

/// Returns the offset of a node's writes within a minute, from the hash of its name.
fn phase(name: &str) -> Duration {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    Duration::from_millis(hasher.finish() % 60_000)
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;

//! Sends the planner's writes as patches, and translates the answers to outcomes.
//!
//! ```text
//!  Write ─► last check (lease, age) ─► PATCH with uid and resourceVersion ─► Outcome
//! ```
//!
//! Strategic merge patches: the preconditions make them land on exactly the version that was decided on, and they
//! change nothing else of the claim. The API server's answer is an [`Outcome`] for the claim: after 409 and 404 it has
//! another version; after other refusals it is unchanged; after anything else its state is unknown. A write that takes
//! longer than [`TIMEOUT`] is abandoned, not undone: it may still land, and the planner allows for that.

use std::sync::Arc;
use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::watch;
use vgpu_planner::names::{EPOCH, FINALIZER};
use vgpu_planner::{Intent, Outcome, Stale, Term, Write};

use super::clock::Clock;
use crate::decode::Claim;

/// Far less than the time for which a device has no allocator when it changes from one to the other.
const TIMEOUT: Duration = Duration::from_secs(5);
const MANAGER: &str = "vgpu-controller";

/// What a write is checked against right before it is sent.
#[derive(Debug, Clone)]
pub(crate) struct Fence {
    pub(crate) clock: Arc<Clock>,
    pub(crate) term: watch::Receiver<Option<Term>>,
    pub(crate) oldest: Duration,
}

impl Fence {
    fn check(&self, write: &Write) -> Result<(), Stale> {
        write.check(self.term.borrow().as_ref(), self.clock.now(), self.oldest)
    }
}

/// Sends a write, unless the check fails.
pub(crate) async fn send(client: &Client, fence: &Fence, write: &Write) -> Outcome {
    if let Err(stale) = fence.check(write) {
        tracing::info!(claim = %key(write), intent = name(&write.intent), "not sent: {stale}");
        return Outcome::Dropped;
    }
    let claims: Api<Claim> = Api::namespaced(client.clone(), &write.namespace);
    let parameters = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patch = Patch::Strategic(patch(write));
    let sent = async {
        match &write.intent {
            Intent::Mark { .. } => claims.patch(&write.name, &parameters, &patch).await,
            Intent::Allocate { .. } | Intent::Release { .. } | Intent::Clear { .. } => {
                claims.patch_status(&write.name, &parameters, &patch).await
            }
        }
    };
    match tokio::time::timeout(TIMEOUT, sent).await {
        Ok(answer) => outcome(write, answer),
        Err(_) => {
            tracing::warn!(claim = %key(write), intent = name(&write.intent), "no answer within {TIMEOUT:?}");
            Outcome::Unknown
        }
    }
}

fn outcome(write: &Write, answer: Result<Claim, kube::Error>) -> Outcome {
    match answer {
        Ok(claim) => match claim.body {
            Some(claim) => Outcome::Done(Box::new(claim)),
            None => Outcome::Unknown,
        },
        Err(kube::Error::Api(status)) => match status.code {
            404 | 409 => Outcome::Conflict,
            // The API server did not process it, or how far it got is unknown.
            401 | 408 | 429 => Outcome::Unknown,
            400..500 => {
                tracing::warn!(claim = %key(write), intent = name(&write.intent), %status, "the API server refuses a write");
                Outcome::Refused(status.message.clone())
            }
            _ => {
                tracing::warn!(claim = %key(write), intent = name(&write.intent), %status, "the API server failed at a write");
                Outcome::Unknown
            }
        },
        Err(error) => {
            tracing::warn!(claim = %key(write), intent = name(&write.intent), %error, "a write has no answer");
            Outcome::Unknown
        }
    }
}

/// For logs and metrics.
pub(crate) const fn name(intent: &Intent) -> &'static str {
    match intent {
        Intent::Mark { .. } => "mark",
        Intent::Allocate { .. } => "allocate",
        Intent::Release { .. } => "release",
        Intent::Clear { .. } => "clear",
    }
}

pub(crate) const fn result(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Done(_) => "done",
        Outcome::Conflict => "conflict",
        Outcome::Refused(_) => "refused",
        Outcome::Unknown => "unknown",
        Outcome::Dropped => "dropped",
    }
}

fn key(write: &Write) -> String {
    format!("{}/{}", write.namespace, write.name)
}

fn patch(write: &Write) -> Value {
    let version = write.version.to_string();
    let mut patch = json!({"metadata": {"uid": write.uid, "resourceVersion": version}});
    // Deletes the entry of the list with this key; the others stay.
    let gone = |uid: &str| json!([{"$patch": "delete", "uid": uid}]);
    match &write.intent {
        Intent::Mark { epoch } => {
            patch["metadata"]["annotations"] = json!({ EPOCH: epoch });
            patch["metadata"]["finalizers"] = json!([FINALIZER]);
        }
        Intent::Allocate { allocation, hold, .. } => {
            patch["status"] = json!({"allocation": &**allocation, "reservedFor": [hold]});
        }
        Intent::Release { hold } => patch["status"] = json!({"reservedFor": gone(&hold.uid)}),
        Intent::Clear { hold } => {
            patch["status"] = json!({"allocation": null});
            if let Some(hold) = hold {
                patch["status"]["reservedFor"] = gone(&hold.uid);
            }
        }
    }
    patch
}

//! Sends the planner's writes as patches, and translates the answers to outcomes.
//!
//! ```text
//!  Write, checked against lease and age ─► PATCH with uid and resourceVersion ─► Outcome
//! ```
//!
//! Strategic merge patches: the preconditions make them land on exactly the version that was decided on, and they
//! change nothing else of the claim. The API server's answer is a [`planner::Outcome`] for the claim: after 409 and 404
//! it has another version; after other refusals it is unchanged; after anything else its state is unknown. A write that
//! takes too long ([`timely`]) is abandoned, not undone: it may still land, and the planner allows for that.

use kube::api::Patch;
use kube::{Api, Client};
use serde_json::{Value, json};
use vgpu_planner::names::{EPOCH, FINALIZER};
use vgpu_planner::{self as planner, Intent};

use crate::decode::Claim;
use crate::leader::{Failure, by_us, timely};

/// Sends a write.
pub(super) async fn send(client: &Client, write: &planner::Write) -> planner::Outcome {
    let claims: Api<Claim> = Api::namespaced(client.clone(), &write.namespace);
    let parameters = by_us();
    let patch = Patch::Strategic(patch(write));
    let sent = async {
        match &write.intent {
            Intent::Mark { .. } => claims.patch(&write.name, &parameters, &patch).await,
            Intent::Allocate { .. } | Intent::Release { .. } | Intent::Clear { .. } => {
                claims.patch_status(&write.name, &parameters, &patch).await
            }
        }
    };
    let what = (name(&write.intent), key(write));
    match timely(sent).await {
        Ok(claim) => claim.body.map_or(planner::Outcome::Unknown, |claim| {
            planner::Outcome::Done(Box::new(claim))
        }),
        Err(error) => match Failure::of(&error, &what) {
            Failure::Gone | Failure::Conflict => planner::Outcome::Conflict,
            Failure::Refused(message) => planner::Outcome::Refused(message),
            Failure::Unknown => planner::Outcome::Unknown,
        },
    }
}

/// For logs and metrics.
pub(super) const fn name(intent: &Intent) -> &'static str {
    match intent {
        Intent::Mark { .. } => "mark",
        Intent::Allocate { .. } => "allocate",
        Intent::Release { .. } => "release",
        Intent::Clear { .. } => "clear",
    }
}

pub(super) const fn result(outcome: &planner::Outcome) -> &'static str {
    match outcome {
        planner::Outcome::Done(_) => "done",
        planner::Outcome::Conflict => "conflict",
        planner::Outcome::Refused(_) => "refused",
        planner::Outcome::Unknown => "unknown",
        planner::Outcome::Dropped => "dropped",
    }
}

pub(super) fn key(write: &planner::Write) -> String {
    format!("{}/{}", write.namespace, write.name)
}

fn patch(write: &planner::Write) -> Value {
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

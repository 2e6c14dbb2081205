//! The reconciler's writes as requests, and what each answer means.

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use kube::api::{DeleteParams, Patch, PostParams, Preconditions};
use kube::{Api, Client};
use vgpu_api::PodRef;
use vgpu_reconciler::{self as reconciler, Gpus, Template, TranslatedPod, claim_names, legacy_patch};

use crate::leader::{Failure, MANAGER, by_us, timely};

/// Performs a write. It never fails: a write that may not have landed is decided on again.
pub(super) async fn send(client: &Client, write: &reconciler::Write, gpus: &Gpus) -> reconciler::Outcome {
    let sent = async {
        match write {
            reconciler::Write::Create { key, template } => create(client, &key.namespace, template).await,
            reconciler::Write::Delete { key, uid, version } => {
                let preconditions = Preconditions {
                    uid: Some(uid.clone()),
                    resource_version: Some(version.clone()),
                };
                let api: Api<ResourceClaimTemplate> = Api::namespaced(client.clone(), &key.namespace);
                let parameters = DeleteParams::default().preconditions(preconditions);
                api.delete(&key.name, &parameters)
                    .await
                    .map(|_| reconciler::Outcome::Deleted)
            }
            reconciler::Write::GiveBack(pod) => annotate(client, pod, gpus).await,
        }
    };
    timely(sent).await.unwrap_or_else(|error| failed(write, &error))
}

async fn create(
    client: &Client,
    namespace: &str,
    template: &ResourceClaimTemplate,
) -> kube::Result<reconciler::Outcome> {
    let api: Api<ResourceClaimTemplate> = Api::namespaced(client.clone(), namespace);
    let parameters = PostParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PostParams::default()
    };
    let created = api.create(&parameters, template).await?;
    Ok(match Template::of(&created.metadata) {
        Some((_, template)) => reconciler::Outcome::Created(template),
        None => reconciler::Outcome::Refused("something takes its label off when it is created".to_owned()),
    })
}

/// Reads the pod and its claims again, and writes the pod's annotations.
async fn annotate(client: &Client, at: &PodRef, gpus: &Gpus) -> kube::Result<reconciler::Outcome> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &at.namespace);
    let Some(pod) = pods
        .get_opt(&at.name)
        .await?
        .filter(|pod| pod.metadata.uid.as_ref() == Some(&at.uid))
    else {
        return Ok(reconciler::Outcome::Again);
    };
    if TranslatedPod::of(&pod).is_some_and(|pod| pod.has_legacy_view) {
        return Ok(reconciler::Outcome::LegacyView);
    }
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), &at.namespace);
    let claims = try_join_all(claim_names(&pod).map(|name| claims.get_opt(name))).await?;
    let claims: Vec<ResourceClaim> = claims.into_iter().flatten().collect();
    let patch = match legacy_patch(&pod, &claims, gpus) {
        Ok(Some(patch)) => patch,
        Ok(None) => return Ok(reconciler::Outcome::LegacyView),
        Err(why) => {
            tracing::debug!(namespace = at.namespace, pod = at.name, %why, "nothing is given back yet");
            return Ok(reconciler::Outcome::Again);
        }
    };
    // The uid in the patch makes it fail on another pod of this name.
    pods.patch(&at.name, &by_us(), &Patch::Merge(patch)).await?;
    Ok(reconciler::Outcome::LegacyView)
}

fn failed(write: &reconciler::Write, error: &kube::Error) -> reconciler::Outcome {
    match (write, Failure::of(error, &write.task())) {
        (reconciler::Write::Create { .. }, Failure::Conflict) => reconciler::Outcome::Exists,
        (_, Failure::Refused(message)) => reconciler::Outcome::Refused(message),
        // Another version, or no object: the next event of the watch decides.
        (_, Failure::Gone | Failure::Conflict | Failure::Unknown) => reconciler::Outcome::Again,
    }
}

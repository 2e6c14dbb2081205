//! The writes of quotas as requests, and what each answer means.

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::Patch;
use kube::{Api, Client};
use serde_json::{Value, json};
use vgpu_api::PodRef;
use vgpu_quota::{self as quotas, BudgetState, Quota, Status, names};

use crate::leader::{Failure, MANAGER, by_us, timely};

/// Performs a write. It never fails: a write that may not have landed is decided on again.
pub(super) async fn send(client: &Client, write: &quotas::Write) -> quotas::Outcome {
    let sent = async {
        match write {
            quotas::Write::Status {
                namespace,
                uid,
                version,
                status,
            } => put(client, namespace, uid, version, status).await,
            quotas::Write::Read { namespace } => read(client, namespace).await,
            quotas::Write::Ungate {
                pod,
                claims,
                is_over_budget,
            } => ungate(client, pod, claims, *is_over_budget).await,
            quotas::Write::Evict { waiting, victims } => evict(client, waiting, victims).await,
            quotas::Write::Label { namespace, uid, state } => label(client, namespace, uid, *state).await,
            quotas::Write::Stamp {
                namespace,
                default,
                spec,
                over,
            } => stamp(client, namespace, default, spec, over.as_ref()).await,
        }
    };
    timely(sent).await.unwrap_or_else(|error| failed(write, &error))
}

/// For metrics.
pub(super) const fn intent(write: &quotas::Write) -> &'static str {
    match write {
        quotas::Write::Status { .. } => "status",
        quotas::Write::Read { .. } => "read",
        quotas::Write::Ungate { .. } => "gate",
        quotas::Write::Evict { .. } => "evict",
        quotas::Write::Label { .. } => "label",
        quotas::Write::Stamp { .. } => "default",
    }
}

/// For metrics.
pub(super) fn name(outcome: &quotas::Outcome) -> &'static str {
    match outcome {
        quotas::Outcome::Quota(_) | quotas::Outcome::NoQuota | quotas::Outcome::Ungated | quotas::Outcome::Labelled => {
            "done"
        }
        quotas::Outcome::Evicted { kept, .. } if !kept.is_empty() => "refused",
        quotas::Outcome::Evicted { .. } => "done",
        quotas::Outcome::Again => "again",
        quotas::Outcome::Refused(_) => "refused",
        quotas::Outcome::Dropped => "dropped",
    }
}

fn quotas(namespace: &str) -> String {
    format!("/apis/dra.vgpu/v1alpha1/namespaces/{namespace}/vgpuquotas")
}

fn path(namespace: &str, rest: &str) -> String {
    format!("{}/{}{rest}", quotas(namespace), names::QUOTA)
}

/// A request with this body, which is of type `application/{kind}`.
fn request(to: hyper::http::request::Builder, kind: &str, body: &Value) -> kube::Result<hyper::Request<Vec<u8>>> {
    let request = to.header("content-type", format!("application/{kind}"));
    request
        .body(body.to_string().into_bytes())
        .map_err(kube::Error::HttpError)
}

/// Updates the status, only in that version.
async fn put(
    client: &Client,
    namespace: &str,
    uid: &str,
    version: &str,
    status: &Status,
) -> kube::Result<quotas::Outcome> {
    let object = json!({"apiVersion": "dra.vgpu/v1alpha1", "kind": "VgpuQuota",
        "metadata": {"name": names::QUOTA, "namespace": namespace, "uid": uid, "resourceVersion": version},
        "status": status});
    let uri = path(namespace, &format!("/status?fieldManager={MANAGER}"));
    let request = request(hyper::Request::put(uri), "json", &object)?;
    client.request::<Value>(request).await.map(answer)
}

async fn read(client: &Client, namespace: &str) -> kube::Result<quotas::Outcome> {
    let request = hyper::Request::get(path(namespace, ""));
    let request = request.body(Vec::new()).map_err(kube::Error::HttpError)?;
    match client.request::<Value>(request).await {
        Ok(quota) => Ok(answer(quota)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(quotas::Outcome::NoQuota),
        Err(error) => Err(error),
    }
}

fn answer(quota: Value) -> quotas::Outcome {
    match serde_json::from_value::<Quota>(quota) {
        Ok(quota) => quotas::Outcome::Quota(Box::new(quota)),
        Err(error) => {
            tracing::warn!(%error, "a VgpuQuota cannot be read");
            quotas::Outcome::Again
        }
    }
}

/// Reads the pod's current claims, and removes the gate if they are the reserved ones.
async fn ungate(
    client: &Client,
    pod: &PodRef,
    claims: &[(String, String)],
    is_over_budget: bool,
) -> kube::Result<quotas::Outcome> {
    let api: Api<ResourceClaim> = Api::namespaced(client.clone(), &pod.namespace);
    let found = try_join_all(claims.iter().map(|(name, _)| api.get_metadata_opt(name))).await?;
    let is_same = |(found, (_, uid)): (_, &(String, String))| {
        let found: &Option<kube::core::PartialObjectMeta<ResourceClaim>> = found;
        found
            .as_ref()
            .is_some_and(|claim| claim.metadata.uid.as_ref() == Some(uid))
    };
    if !found.iter().zip(claims).all(is_same) {
        tracing::debug!(
            namespace = pod.namespace,
            pod = pod.name,
            "its claims are others by now"
        );
        return Ok(quotas::Outcome::Again);
    }
    // The uid makes the patch fail on another pod of this name.
    let mut patch = json!({"metadata": {"uid": pod.uid},
        "spec": {"schedulingGates": [{"$patch": "delete", "name": names::GATE}]}});
    if is_over_budget {
        patch["metadata"]["annotations"] = json!({names::OPENED_OVER_BUDGET: "true"});
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    pods.patch_metadata(&pod.name, &by_us(), &Patch::Strategic(patch))
        .await?;
    Ok(quotas::Outcome::Ungated)
}

/// Evicts all of these pods, or none if a dry run for one of them is refused, so that none is evicted in vain because a
/// PodDisruptionBudget protects another. Two pods of the same budget pass the dry runs, but the second eviction is then
/// refused; evicted pods stay evicted, and others are chosen for the rest.
async fn evict(client: &Client, waiting: &PodRef, victims: &[PodRef]) -> kube::Result<quotas::Outcome> {
    let (mut gone, mut kept) = (Vec::new(), Vec::new());
    if !still_waits(client, waiting).await? {
        return Ok(quotas::Outcome::Evicted { gone, kept });
    }
    for victim in victims {
        if let Err(why) = evict_one(client, victim, true).await? {
            kept.push((victim.clone(), why));
        }
    }
    if !kept.is_empty() {
        return Ok(quotas::Outcome::Evicted { gone, kept });
    }
    for victim in victims {
        match evict_one(client, victim, false).await? {
            Ok(true) => gone.push(victim.clone()),
            Ok(false) => {}
            Err(why) => {
                kept.push((victim.clone(), why));
                break;
            }
        }
    }
    Ok(quotas::Outcome::Evicted { gone, kept })
}

/// Checks again, because the watch may lag: the pod may meanwhile be bound or gone.
async fn still_waits(client: &Client, waiting: &PodRef) -> kube::Result<bool> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &waiting.namespace);
    let Some(pod) = pods.get_opt(&waiting.name).await? else {
        return Ok(false);
    };
    let is_same = pod.metadata.uid.as_ref() == Some(&waiting.uid) && pod.metadata.deletion_timestamp.is_none();
    Ok(is_same && pod.spec.is_none_or(|spec| spec.node_name.is_none()))
}

/// `Ok(false)`: the pod ended by itself. `Err`: the API server refuses, and the pod stays.
async fn evict_one(client: &Client, pod: &PodRef, is_dry_run: bool) -> kube::Result<Result<bool, String>> {
    // kube's `evict` is not used: it writes `delete_options`, in which the API server would not see the UID.
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": pod.name, "namespace": pod.namespace},
        "deleteOptions": {"preconditions": {"uid": pod.uid}}});
    let dry_run = if is_dry_run { "&dryRun=All" } else { "" };
    let uri = format!(
        "/api/v1/namespaces/{}/pods/{}/eviction?fieldManager={MANAGER}{dry_run}",
        pod.namespace, pod.name
    );
    let request = request(hyper::Request::post(uri), "json", &eviction)?;
    match client.request::<Value>(request).await {
        Ok(_) => Ok(Ok(true)),
        Err(kube::Error::Api(status)) => match status.code {
            // The pod is gone, or another pod has its name.
            404 | 409 => Ok(Ok(false)),
            401 | 408 | 501.. => Err(kube::Error::Api(status)),
            // 429: a PodDisruptionBudget; 500: two of them.
            _ => Ok(Err(format!(
                "pod {} of namespace {}: {}",
                pod.name, pod.namespace, status.message
            ))),
        },
        Err(error) => Err(error),
    }
}

/// Sets or removes the label of a namespace, and changes nothing else in it.
async fn label(
    client: &Client,
    namespace: &str,
    uid: &str,
    state: Option<BudgetState>,
) -> kube::Result<quotas::Outcome> {
    // The uid makes the patch fail on another namespace of this name.
    let patch = json!({"metadata": {"uid": uid, "labels": {names::LABEL: state.map(BudgetState::text)}}});
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .patch_metadata(namespace, &by_us(), &Patch::Merge(patch))
        .await?;
    Ok(quotas::Outcome::Labelled)
}

/// Creates the quota of a default, or writes its spec over that version.
async fn stamp(
    client: &Client,
    namespace: &str,
    default: &str,
    spec: &Value,
    over: Option<&(String, String)>,
) -> kube::Result<quotas::Outcome> {
    let text = spec.to_string();
    let request = match over {
        None => {
            let object = json!({"apiVersion": "dra.vgpu/v1alpha1", "kind": "VgpuQuota",
                "metadata": {"name": names::QUOTA, "namespace": namespace, "labels": {names::FROM_DEFAULT: default},
                    "annotations": {names::STAMPED_SPEC: text}},
                "spec": spec});
            let uri = format!("{}?fieldManager={MANAGER}", quotas(namespace));
            request(hyper::Request::post(uri), "json", &object)?
        }
        // Both fields exist, because the quota was made from a default. The version makes the patch fail on a later
        // one.
        Some((uid, version)) => {
            let set = |path: &str, value: Value| json!({"op": "add", "path": path, "value": value});
            let key = |name: &str| name.replace('/', "~1");
            let patch = json!([
                set("/metadata/uid", json!(uid)),
                set("/metadata/resourceVersion", json!(version)),
                set(
                    &format!("/metadata/labels/{}", key(names::FROM_DEFAULT)),
                    json!(default)
                ),
                set(
                    &format!("/metadata/annotations/{}", key(names::STAMPED_SPEC)),
                    json!(text)
                ),
                set("/spec", spec.clone()),
            ]);
            let uri = path(namespace, &format!("?fieldManager={MANAGER}"));
            request(hyper::Request::patch(uri), "json-patch+json", &patch)?
        }
    };
    client.request::<Value>(request).await.map(answer)
}

fn failed(write: &quotas::Write, error: &kube::Error) -> quotas::Outcome {
    match (write, Failure::of(error, &write.task())) {
        (quotas::Write::Ungate { .. }, Failure::Gone) => quotas::Outcome::Ungated,
        (quotas::Write::Label { .. }, Failure::Gone) => quotas::Outcome::Labelled,
        (_, Failure::Refused(message)) => quotas::Outcome::Refused(message),
        // Another version, no object, or unknown: decide again.
        (_, Failure::Gone | Failure::Conflict | Failure::Unknown) => quotas::Outcome::Again,
    }
}

//! Background work: creates events for the hook's reports and damaged checkpoints, and unprepares stale claims.

use crate::api::{Claims, Events};
use crate::metrics::Metrics;
use crate::node::SharedNode;
use crate::report::Report;
use crate::share::ClaimId;
use crate::stale::{ClaimState, Gone};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::resource::v1::ResourceClaimConsumerReference;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

const EVENTS_EVERY: Duration = Duration::from_secs(5);
const CLEAN_UP_EVERY: Duration = Duration::from_secs(60);

/// Runs the background work for ever.
pub async fn run<A: Claims + Events>(node: SharedNode, api: A, metrics: Metrics, node_object: ObjectReference) {
    let mut gone = Gone::default();
    let mut cleaned_up = Instant::now();
    let mut unreported = Vec::new();
    loop {
        warn_reported(&node, &api).await;
        report_damages(&node, &api, &metrics, &node_object, &mut unreported).await;
        if cleaned_up.elapsed() >= CLEAN_UP_EVERY {
            cleaned_up = Instant::now();
            clean_up(&node, &api, &metrics, &mut gone, Instant::now()).await;
        }
        tokio::time::sleep(EVENTS_EVERY).await;
    }
}

/// Creates a Warning on each pod with a container that starts without the backstop, one for each reason.
/// The hook's report names the claim but not the pod, so every pod of the claim gets the event once.
pub async fn warn_reported<A: Claims + Events>(node: &SharedNode, api: &A) {
    for (id, report) in reported(node) {
        let event = report.event();
        let pods = match pods_of(api, &id).await {
            Ok(pods) => pods,
            Err(error) => {
                tracing::warn!(%error, "cannot create the {event} event on the pods of {id}; retrying");
                continue;
            }
        };
        let before = node.lock().dirs().warned_pods(&id.uid, report);
        let mut warned = BTreeSet::new();
        let mut failed = false;
        for pod in pods {
            if !before.contains(&pod.uid)
                && let Err(error) = api.warn(pod_reference(&id, &pod), event, report.note(&id)).await
            {
                tracing::warn!(%error, "cannot create the {event} event on pod {} of {id}; retrying", pod.name);
                failed = true;
                continue;
            }
            warned.insert(pod.uid);
        }
        if failed {
            // The pods with the event are recorded, and the report stays for the others.
            warned.extend(before);
        }
        if let Err(error) = node.lock().dirs().record_warned(&id.uid, report, &warned, !failed) {
            tracing::warn!(%error, "cannot record that the pods of {id} have the {event} event; it will be repeated");
        }
    }
}

/// The pods of a claim; none if it is gone, because all of its pods are gone before it.
async fn pods_of<A: Claims>(api: &A, id: &ClaimId) -> Result<Vec<ResourceClaimConsumerReference>, crate::api::Error> {
    let claim = api.get(&id.namespace, &id.name).await?;
    let claim = claim.filter(|claim| claim.metadata.uid.as_ref() == Some(&id.uid));
    let holders = claim.and_then(|claim| claim.status?.reserved_for).unwrap_or_default();
    Ok(holders.into_iter().filter(|holder| holder.resource == "pods").collect())
}

fn pod_reference(id: &ClaimId, pod: &ResourceClaimConsumerReference) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        namespace: Some(id.namespace.clone()),
        name: Some(pod.name.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    }
}

/// Claims with a report that is not on all of their pods yet. A claim that was rebuilt from limits files has
/// no name to look up until it is prepared again.
fn reported(node: &SharedNode) -> Vec<(ClaimId, Report)> {
    let node = node.lock();
    let mut reported = Vec::new();
    for (uid, entry) in node.claims().claims.iter().filter(|(_, entry)| !entry.name.is_empty()) {
        let id = entry.id(uid);
        let reports = Report::ALL
            .into_iter()
            .filter(|report| node.dirs().take_report(uid, *report));
        reported.extend(reports.map(|report| (id.clone(), report)));
    }
    reported
}

async fn report_damages<A: Events>(
    node: &SharedNode,
    api: &A,
    metrics: &Metrics,
    node_object: &ObjectReference,
    unreported: &mut Vec<String>,
) {
    for damage in node.lock().take_damages() {
        metrics.damaged();
        unreported.push(damage);
    }
    while let Some(damage) = unreported.pop() {
        if let Err(error) = api.warn(node_object.clone(), "CheckpointDamaged", damage.clone()).await {
            tracing::warn!(%error, "cannot create an event on the node; retrying");
            unreported.push(damage);
            return;
        }
    }
}

/// Reads every prepared claim from the API server, and unprepares those that are gone for good.
pub async fn clean_up<A: Claims>(node: &SharedNode, api: &A, metrics: &Metrics, gone: &mut Gone, now: Instant) {
    let (pool, entries) = {
        let node = node.lock();
        let all = node.claims().claims.iter();
        // A claim that was rebuilt from limits files has no name to look up.
        let entries: BTreeMap<_, _> = all
            .filter(|(_, entry)| !entry.name.is_empty())
            .map(|(uid, entry)| (uid.clone(), entry.clone()))
            .collect();
        (node.pool(), entries)
    };
    let mut states = Vec::new();
    for (uid, entry) in &entries {
        let state = match api.get(&entry.namespace, &entry.name).await {
            Ok(found) => ClaimState::of(found.as_ref(), uid, &pool),
            Err(_) => ClaimState::Unknown,
        };
        states.push((uid.clone(), state));
    }
    for uid in gone.apply(&states, now) {
        let mut node = node.lock();
        // The claim was allocated here again and prepared since it was read.
        if node.claims().claims.get(&uid) != entries.get(&uid) {
            continue;
        }
        match node.unprepare(&[&uid]).remove(0) {
            Ok(()) => {
                metrics.stale();
                tracing::warn!(
                    uid,
                    "claim is gone or has no device of this node, and was never unprepared; its share is released"
                );
            }
            Err(error) => tracing::warn!(%error, uid, "claim is gone and cannot be unprepared; retrying"),
        }
    }
}

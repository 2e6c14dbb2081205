//! What is done now and then besides answering kubelet: telling people, and cleaning up.

use crate::api::{Claims, Events};
use crate::metrics::Metrics;
use crate::node::SharedNode;
use crate::share::ClaimId;
use crate::stale::{Gone, Look};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::resource::v1::ResourceClaimConsumerReference;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

const TELL_EVERY: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Tells and cleans up for ever.
pub async fn run<A: Claims + Events>(node: SharedNode, api: A, metrics: Metrics, node_object: ObjectReference) {
    let mut gone = Gone::default();
    let mut looked = Instant::now();
    let mut untold = Vec::new();
    loop {
        tell_glibc(&node, &api).await;
        tell_damages(&node, &api, &metrics, &node_object, &mut untold).await;
        if looked.elapsed() >= LOOK_EVERY {
            looked = Instant::now();
            clean_up(&node, &api, &metrics, &mut gone, Instant::now()).await;
        }
        tokio::time::sleep(TELL_EVERY).await;
    }
}

/// A Warning on each pod that has a container without glibc, in which the library cannot work. A
/// report says which claim, not which of the pods that share it; each of them is told once.
pub async fn tell_glibc<A: Claims + Events>(node: &SharedNode, api: &A) {
    for id in lacking(node) {
        let holders = match api.get(&id.namespace, &id.name).await {
            Ok(Some(claim)) if claim.metadata.uid.as_ref() == Some(&id.uid) => {
                claim.status.and_then(|status| status.reserved_for).unwrap_or_default()
            }
            // It is gone, and nobody is left to be told.
            Ok(_) => Vec::new(),
            Err(error) => {
                tracing::warn!(%error, "cannot tell the pods of {id} that an image has no glibc; trying again");
                continue;
            }
        };
        let before = node.lock().dirs().told(&id.uid);
        let mut told = BTreeSet::new();
        let mut failed = false;
        for pod in holders.into_iter().filter(|holder| holder.resource == "pods") {
            if !before.contains(&pod.uid)
                && let Err(error) = api.warn(pod_reference(&id, &pod), "NoGlibc", no_glibc(&id)).await
            {
                tracing::warn!(%error, "cannot tell pod {} of {id} that an image has no glibc; trying again", pod.name);
                failed = true;
                continue;
            }
            told.insert(pod.uid);
        }
        if failed {
            // Those that were told stay so; the report stays for the others.
            told.extend(before);
        }
        if let Err(error) = node.lock().dirs().mark_told(&id.uid, &told, !failed) {
            tracing::warn!(%error, "cannot remember that the pods of {id} were told; they are told again");
        }
    }
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

fn no_glibc(id: &ClaimId) -> String {
    format!(
        "a container of this pod, or of one that shares ResourceClaim {} with it, has an image without glibc: no CUDA \
         program can run in it; use an image with glibc 2.17 or newer (Debian, Ubuntu, Red Hat)",
        id.name
    )
}

/// Claims with a report that is not told yet. One that was rebuilt from limits files has no name to
/// look for, until it is prepared again.
fn lacking(node: &SharedNode) -> Vec<ClaimId> {
    let node = node.lock();
    let all = node.claims().claims.iter();
    all.filter(|(uid, entry)| !entry.name.is_empty() && node.dirs().take_no_glibc(uid))
        .map(|(uid, entry)| ClaimId {
            namespace: entry.namespace.clone(),
            name: entry.name.clone(),
            uid: uid.clone(),
        })
        .collect()
}

async fn tell_damages<A: Events>(
    node: &SharedNode,
    api: &A,
    metrics: &Metrics,
    node_object: &ObjectReference,
    untold: &mut Vec<String>,
) {
    for damage in node.lock().take_damages() {
        metrics.damaged();
        untold.push(damage);
    }
    while let Some(damage) = untold.pop() {
        if let Err(error) = api.warn(node_object.clone(), "CheckpointDamaged", damage.clone()).await {
            tracing::warn!(%error, "cannot put an event on the node; trying again");
            untold.push(damage);
            return;
        }
    }
}

/// Looks at every prepared claim, and unprepares those that are gone for good.
pub async fn clean_up<A: Claims>(node: &SharedNode, api: &A, metrics: &Metrics, gone: &mut Gone, now: Instant) {
    let (pool, entries) = {
        let node = node.lock();
        let all = node.claims().claims.iter();
        // One that was rebuilt from limits files has no name to look for.
        let entries: BTreeMap<_, _> = all
            .filter(|(_, entry)| !entry.name.is_empty())
            .map(|(uid, entry)| (uid.clone(), entry.clone()))
            .collect();
        (node.pool(), entries)
    };
    let mut looks = Vec::new();
    for (uid, entry) in &entries {
        let look = match api.get(&entry.namespace, &entry.name).await {
            Ok(found) => Look::at(found.as_ref(), uid, &pool),
            Err(_) => Look::Unknown,
        };
        looks.push((uid.clone(), look));
    }
    for uid in gone.round(&looks, now) {
        let mut node = node.lock();
        // Allocated here again and prepared since the look.
        if node.claims().claims.get(&uid) != entries.get(&uid) {
            continue;
        }
        match node.unprepare(&[&uid]).remove(0) {
            Ok(()) => {
                metrics.stale();
                tracing::warn!(
                    uid,
                    "claim is gone or holds nothing of this node, and was never unprepared; its share is free again"
                );
            }
            Err(error) => tracing::warn!(%error, uid, "claim is gone and cannot be unprepared; trying again"),
        }
    }
}

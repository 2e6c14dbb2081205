//! Background work: creates events for the hook's reports, for damaged checkpoints and ledgers, for claims that cannot be
//! unprepared and for shares that break their limit of GPU time, and has `clean_up` look for stale claims and for shares without
//! a claim.

use crate::api::{Claims, Events};
use crate::clean_up::CleanUp;
use crate::compute::{Comparison, Verdict};
use crate::metrics::Metrics;
use crate::node::{LedgerReading, Node, SharedNode};
use crate::report::Report;
use crate::share::{ClaimId, Role, ShareKey};
use crate::told::{Told, pod_reference, pods_of};
use crate::truth::Pods;
use crate::waiting::NodeProcesses;
use k8s_openapi::api::core::v1::ObjectReference;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

const EVENTS_EVERY: Duration = Duration::from_secs(5);
/// With the patience that a claim has, one that is gone is freed within a minute.
const CLEAN_UP_EVERY: Duration = Duration::from_secs(20);
const LEDGERS_EVERY: Duration = Duration::from_secs(60);
/// The first time is long after a start: an instance that is being replaced by this one has ended by then, also one of a
/// release that does not say which library it uses.
const RELEASES_EVERY: Duration = Duration::from_secs(600);

/// Runs the background work for ever.
pub async fn run<A: Claims + Events + Pods>(
    node: SharedNode,
    api: A,
    metrics: Metrics,
    comparison: Comparison,
    processes: NodeProcesses,
    node_object: ObjectReference,
) {
    let mut clean_up = CleanUp::new(processes, node_object.clone());
    let mut cleaned_up = Instant::now();
    let mut ledgers_read = Instant::now();
    let mut releases_removed = Instant::now();
    let mut unreported = Vec::new();
    let (mut told_unprepare, mut told_ledger, mut told_compute) = (Told::default(), Told::default(), Told::default());
    loop {
        warn_reported(&node, &api).await;
        report_damages(&node, &api, &metrics, &node_object, &mut unreported).await;
        warn_not_unprepared(&node, &api, &mut told_unprepare).await;
        warn_broken_compute(&node, &api, &comparison, &mut told_compute).await;
        if ledgers_read.elapsed() >= LEDGERS_EVERY {
            ledgers_read = Instant::now();
            warn_damaged_ledgers(&node, &api, &mut told_ledger).await;
        }
        if releases_removed.elapsed() >= RELEASES_EVERY {
            releases_removed = Instant::now();
            if let Err(error) = node.turn(|node, locked| node.remove_unused_releases(locked)).await {
                tracing::warn!(%error, "releases of the library that nothing uses are not removed yet");
            }
        }
        if cleaned_up.elapsed() >= CLEAN_UP_EVERY {
            cleaned_up = Instant::now();
            clean_up.run(&node, &api, &metrics, Instant::now()).await;
        }
        tokio::time::sleep(EVENTS_EVERY).await;
    }
}

/// Creates a Warning on each pod with a container that starts without the backstop, one for each reason.
/// The hook's report names the claim but not the pod, so every pod of the claim gets the event once.
pub async fn warn_reported<A: Claims + Events>(node: &SharedNode, api: &A) {
    for (id, report) in read(node, reported).await {
        let event = report.event();
        let pods = match pods_of(api, &id).await {
            Ok(pods) => pods,
            Err(error) => {
                tracing::warn!(%error, "cannot create the {event} event on the pods of {id}; retrying");
                continue;
            }
        };
        let uid = id.uid.clone();
        let before = read(node, move |node| node.dirs().warned_pods(&uid, report)).await;
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
        let uid = id.uid.clone();
        let recorded = move |node: &mut Node| node.dirs().record_warned(&uid, report, &warned, !failed);
        let recorded = node.read(recorded).await;
        if let Err(error) = recorded.map_err(anyhow::Error::from).and_then(|done| Ok(done?)) {
            tracing::warn!(%error, "cannot record that the pods of {id} have the {event} event; it will be repeated");
        }
    }
}

/// Creates a Warning on each pod whose claim could not be unprepared. kubelet only logs that, and the pod stays
/// Terminating.
pub async fn warn_not_unprepared<A: Claims + Events>(node: &SharedNode, api: &A, told: &mut Told) {
    let failed = read(node, |node| node.not_unprepared()).await;
    told.keep(&failed.iter().map(|(id, _)| id.uid.as_str()).collect::<Vec<_>>());
    for (id, error) in failed {
        let note = |_: &str| {
            format!(
                "the node cannot unprepare ResourceClaim {}, so this pod stays Terminating: {error}; repair that on the \
                 node, kubelet retries",
                id.name
            )
        };
        told.warn(api, &id, "UnprepareFailed", note).await;
    }
}

/// Creates a Warning on each pod of a claim with a damaged ledger. Only a new ledger ends the damage, and the claim gets
/// one when no pod uses it any more: to delete the pod that did it is not enough.
pub async fn warn_damaged_ledgers<A: Claims + Events>(node: &SharedNode, api: &A, told: &mut Told) {
    let damaged = read(node, damaged_ledgers).await;
    told.keep(&damaged.iter().map(|(id, _)| id.uid.as_str()).collect::<Vec<_>>());
    for (id, damage) in damaged {
        let note = |pods: &str| {
            format!(
                "the ledger of ResourceClaim {} is damaged ({damage}): its programs can allocate no more GPU memory. All \
                 pods that use the claim have this ledger, so to delete the one that damaged it is not enough. Whoever \
                 may delete all of them deletes them ({pods}); when the last one is gone, new pods get a new ledger",
                id.name
            )
        };
        told.warn(api, &id, "LedgerDamaged", note).await;
    }
}

/// Creates a Warning on each pod of a claim with a share that uses more GPU time than its limit allows.
pub async fn warn_broken_compute<A: Claims + Events>(
    node: &SharedNode,
    api: &A,
    comparison: &Comparison,
    told: &mut Told,
) {
    let verdicts = comparison.verdicts();
    let named = verdicts.clone();
    let broken = read(node, move |node| broken_shares(node, &named)).await;
    // While nothing is known of a claim, its pods keep the event, and get it no second time.
    let known = verdicts.iter().filter(|(_, verdict)| verdict.enforced != Some(true));
    told.keep(&known.map(|((uid, _), _)| uid.as_str()).collect::<Vec<_>>());
    for (id, limit) in broken {
        let note = |pods: &str| {
            format!(
                "{limit} of ResourceClaim {} used more GPU time than its limit allows, by NVML's figures of the last \
                 seconds: a program in one of its pods ({pods}) runs kernels of many seconds, or avoids libvgpu.so. The \
                 other shares of the GPU take no notice of its turns until it keeps to its limit; find the program with \
                 nvidia-smi pmon on the node, and change it or delete its pod",
                id.name
            )
        };
        told.warn(api, &id, "ComputeLimitBroken", note).await;
    }
}

/// The shares that use more GPU time than their limits allow, with the limit of each.
fn broken_shares(node: &Node, verdicts: &BTreeMap<ShareKey, Verdict>) -> Vec<(ClaimId, String)> {
    let shares = verdicts.iter().filter(|(_, verdict)| verdict.enforced == Some(false));
    let named = shares.filter_map(|((uid, share), _)| {
        let entry = node.claims().claims.get(uid)?;
        let held = entry.shares.iter().find(|held| held.share.name == *share)?;
        let limit = format!("share {share} with {} cores", held.share.cores);
        (!entry.name.is_empty()).then(|| (entry.id(uid), limit))
    });
    named.collect()
}

/// Claims with a share whose ledger is damaged, and the first damage of each.
fn damaged_ledgers(node: &mut Node) -> Vec<(ClaimId, String)> {
    let (mut damaged, mut buffer) = (Vec::new(), Vec::new());
    for (uid, entry) in &node.claims().claims {
        if entry.name.is_empty() {
            continue;
        }
        let shares = entry.shares.iter().filter(|held| held.share.role == Role::Share);
        let damage = shares.filter_map(|held| match node.ledger(uid, entry, &held.share, &mut buffer) {
            // A file that cannot be read is one that the tenant replaced, by a link for example.
            LedgerReading::Damaged(damage) => Some(format!("share {}: {damage}", held.share.name)),
            LedgerReading::Read(_) | LedgerReading::OtherFormat => None,
        });
        damaged.extend(damage.take(1).map(|damage| (entry.id(uid), damage)));
    }
    damaged
}

/// Claims with a report that is not on all of their pods yet. A claim that was rebuilt from limits files has
/// no name to look up until `clean_up` has found it.
fn reported(node: &mut Node) -> Vec<(ClaimId, Report)> {
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
    for damage in read(node, Node::take_damages).await {
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

/// Reads the node; nothing if that fails, which is a mistake in the plugin.
async fn read<T: Default + Send + 'static>(node: &SharedNode, work: impl FnOnce(&mut Node) -> T + Send + 'static) -> T {
    node.read(work).await.unwrap_or_else(|error| {
        tracing::error!("{error}");
        T::default()
    })
}

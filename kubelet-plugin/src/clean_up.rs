//! Unprepares claims that ended without an Unprepare, and gives those their names back that were rebuilt from limits files,
//! which have only a UID.
//!
//! How it fails:
//! - A request to the API server fails: nothing is known of that claim, and nothing happens to it. If the pods cannot be
//!   listed, or one of their claims cannot be read, nothing is known of any claim without a name.
//! - A claim without a name is gone if no pod of this node uses a claim with its UID: kubelet prepares claims only for pods
//!   that are bound to its node, and unprepares them before such a pod is deleted.

use crate::api::{Claims, Error};
use crate::checkpoint::{Entry, Held};
use crate::metrics::Metrics;
use crate::mount_users::{MountUsers, ShareMount};
use crate::node::SharedNode;
use crate::share::{ClaimId, Role};
use crate::stale::{ClaimState, Gone};
use crate::truth::Pods;
use k8s_openapi::api::resource::v1::ResourceClaim;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Claims of monitors alone are asked about in one of so many rounds: every 10 minutes.
pub(crate) const MONITORS_EVERY: u32 = 30;

/// Unprepares claims that ended without an Unprepare.
pub struct CleanUp<M> {
    users: M,
    gone: Gone,
    rounds: u32,
    /// Why it is not known which shares have a container; empty if it is. For the log.
    blind: String,
}

// === impl CleanUp ===

impl<M: MountUsers> CleanUp<M> {
    #[must_use]
    pub fn new(users: M) -> Self {
        Self {
            users,
            gone: Gone::default(),
            rounds: 0,
            blind: String::new(),
        }
    }

    /// Reads the prepared claims that have no container from the API server, and unprepares those that are gone for good.
    pub async fn run<A: Claims + Pods>(&mut self, node: &SharedNode, api: &A, metrics: &Metrics, now: Instant) {
        let unused = name_claims(node, api).await;
        let Some((pool, entries)) = self.without_container(node).await else {
            return;
        };
        let mut states = Vec::new();
        for (uid, entry) in &entries {
            let state = match entry.name.is_empty() {
                true if unused.contains(uid) => ClaimState::Gone,
                true => ClaimState::Unknown,
                false => match api.get(&entry.namespace, &entry.name).await {
                    Ok(found) => ClaimState::of(found.as_ref(), uid, &pool),
                    Err(_) => ClaimState::Unknown,
                },
            };
            states.push((uid.clone(), state));
        }
        for uid in self.gone.apply(&states, now) {
            let Some(seen) = entries.get(&uid).cloned() else {
                continue;
            };
            // Since it was looked at, the claim may have been allocated here again, or a container may have started.
            match node.release_unused(self.users.clone(), &uid, seen).await {
                Ok(None) => {}
                Ok(Some(Ok(()))) => {
                    metrics.stale();
                    tracing::warn!(
                        uid,
                        "claim is gone or has no device of this node, and was never unprepared; its share is released"
                    );
                }
                Ok(Some(Err(error))) | Err(error) => {
                    tracing::warn!(%error, uid, "claim is gone and cannot be unprepared; retrying");
                }
            }
        }
    }

    /// This node's pool, and the entries of claims of which no container has a share. None: that is not known.
    async fn without_container(&mut self, node: &SharedNode) -> Option<(String, BTreeMap<String, Entry>)> {
        let users = self.users.clone();
        let found = node.read(|node| {
            let all: BTreeMap<String, Entry> = node
                .entries()
                .map(|(uid, entry)| (uid.clone(), entry.clone()))
                .collect();
            let mounts: Vec<ShareMount> = all.keys().flat_map(|uid| node.share_mounts(uid)).collect();
            (node.pool(), all, mounts)
        });
        let (pool, mut entries, mounts) = found.await.inspect_err(|error| tracing::error!("{error}")).ok()?;
        // Reading all processes takes a while, and no turn waits for it.
        let living = tokio::task::spawn_blocking(move || users.living(&mounts)).await;
        match living.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(living) => {
                self.blind.clear();
                entries.retain(|uid, _| !living.iter().any(|(claim, _)| claim == uid));
                // A monitor has no mount by which its container is known, and holds nothing that anybody waits for.
                let is_due = self.rounds.is_multiple_of(MONITORS_EVERY);
                self.rounds = self.rounds.wrapping_add(1);
                let is_share = |held: &Held| held.share.role == Role::Share;
                entries.retain(|uid, entry| is_due || self.gone.has(uid) || entry.shares.iter().any(is_share));
                Some((pool, entries))
            }
            Err(why) => {
                if self.blind != why {
                    tracing::warn!("no claim is cleaned up, because it is not known which have a container: {why}");
                    self.blind = why;
                }
                None
            }
        }
    }
}

/// Gives names to the claims without one that pods of this node use. Returns the UIDs of those that no pod uses.
async fn name_claims<A: Claims + Pods>(node: &SharedNode, api: &A) -> BTreeSet<String> {
    let nameless = node.read(|node| {
        let nameless = node.entries().filter(|(_, entry)| entry.name.is_empty());
        nameless.map(|(uid, _)| uid.clone()).collect::<BTreeSet<_>>()
    });
    let mut nameless = nameless.await.unwrap_or_default();
    if nameless.is_empty() {
        return nameless;
    }
    let used = match claims_of_pods(api).await {
        Ok(used) => used,
        Err(error) => {
            tracing::warn!(%error, ?nameless, "who uses claims that were rebuilt from limits files is not known; retrying");
            return BTreeSet::new();
        }
    };
    for claim in used {
        let Some(uid) = claim.metadata.uid.clone().filter(|uid| nameless.remove(uid)) else {
            continue;
        };
        let id = ClaimId {
            namespace: claim.metadata.namespace.clone().unwrap_or_default(),
            name: claim.metadata.name.clone().unwrap_or_default(),
            uid,
        };
        let named = id.clone();
        let named = node
            .turn(move |node, locked| node.name_claim(locked, &named, &claim))
            .await;
        match named.and_then(|named| named) {
            Ok(()) => tracing::info!("a claim that was rebuilt from limits files is {id}"),
            Err(error) => {
                tracing::warn!(%error, "{id} was rebuilt from limits files, and its name is not kept; retrying")
            }
        }
    }
    nameless
}

/// The claims that pods of this node use, as far as they are there.
async fn claims_of_pods<A: Claims + Pods>(api: &A) -> Result<Vec<ResourceClaim>, Error> {
    let pods = api.pods().await?.into_iter();
    let names = pods.flat_map(|pod| pod.claims.into_iter().map(move |claim| (pod.namespace.clone(), claim)));
    let mut found = Vec::new();
    for (namespace, name) in names.collect::<BTreeSet<_>>() {
        found.extend(api.get(&namespace, &name).await?);
    }
    Ok(found)
}

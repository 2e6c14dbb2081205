//! Writes what was observed of each claim into its `status.devices`.
//!
//! How it fails:
//! - The API server is down, or refuses to write one claim: that claim is tried again after a while that grows to five
//!   minutes. The others are written meanwhile.
//! - It does not keep `status.devices`: said once in the log, and no claim is written any more.
//! - The claim is gone, or was deallocated, or another claim has its name: nothing is written, until the node prepares it
//!   again with other shares.
//! - The plugin restarts: what a claim has is read before the first write, so that times are kept.

use super::super::api::{Applied, Statuses};
use super::super::conditions::{Findings, devices};
use super::super::observations::Observations;
use crate::dra::checkpoint::Entry;
use crate::dra::node::SharedNode;
use crate::dra::share::Share;
use k8s_openapi::api::resource::v1::AllocatedDeviceStatus;
use k8s_openapi::jiff::Timestamp;
use std::collections::{BTreeMap, btree_map};
use std::time::{Duration, Instant};
use vgpu_api::Pools;

const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// How many claims in one round may fail. If the API server is down, each request may take as long as the timeout of a
/// connection.
const FAILURES: usize = 3;

/// Writes device status.
#[derive(Default)]
pub(crate) struct Writer {
    /// By UID.
    known: BTreeMap<String, Known>,
    /// True if the API server drops `status.devices`.
    dropped: bool,
    /// Claims whose last request failed, by UID: when, and for how long they are left alone.
    pauses: BTreeMap<String, (Instant, Duration)>,
    /// Number of turns and findings when every claim had been written.
    written: Option<(u64, Findings)>,
}

/// The device status of a claim at the API server. It is valid as long as the claim has these shares.
struct Known {
    shares: ShareIds,
    /// None: the claim is gone or deallocated, so nothing is written.
    devices: Option<Vec<AllocatedDeviceStatus>>,
}

/// Device and share ID of each share: another allocation of the claim has others.
type ShareIds = Vec<(String, Option<String>)>;

// === impl Writer ===

impl Writer {
    /// Writes what changed.
    pub(crate) async fn write<A: Statuses>(&mut self, node: &SharedNode, api: &A, observations: &Observations) {
        if self.dropped {
            return;
        }
        // Counted before the claims are read: a turn that ends meanwhile is seen in the next round.
        let now = (node.turns(), observations.lock().findings.clone());
        if self.written.as_ref() == Some(&now) {
            return;
        }
        // Set again once all claims are written: after a failure some of them have new findings and others still the
        // old ones.
        self.written = None;
        let read = node.read(|node| {
            let claims = node.claims().claims.iter();
            let named = claims.filter(|(_, entry)| !entry.name.is_empty());
            (
                node.pools(),
                named
                    .map(|(uid, entry)| (uid.clone(), entry.clone()))
                    .collect::<BTreeMap<_, _>>(),
            )
        });
        let Ok((pools, entries)) = read.await else { return };
        let findings = &now.1;
        self.known
            .retain(|uid, known| entries.get(uid).is_some_and(|entry| share_ids(entry) == known.shares));
        self.pauses.retain(|uid, _| entries.contains_key(uid));
        let mut failures = 0;
        for (uid, entry) in &entries {
            let paused = self.pauses.get(uid).copied();
            if paused.is_some_and(|(since, pause)| since.elapsed() < pause) {
                continue;
            }
            match self.write_one(api, &pools, uid, entry, findings).await {
                Ok(()) => drop(self.pauses.remove(uid)),
                Err(error) => {
                    let pause = paused.map_or(FIRST_PAUSE, |(_, pause)| pause * 2).min(LONGEST_PAUSE);
                    tracing::warn!(%error, "cannot write the device status of {}; trying again in {} s", entry.id(uid), pause.as_secs());
                    self.pauses.insert(uid.clone(), (Instant::now(), pause));
                    // The status at the API server may have changed: it is read again.
                    self.known.remove(uid);
                    failures += 1;
                    if failures == FAILURES {
                        return;
                    }
                }
            }
            if self.dropped {
                tracing::warn!(
                    "this API server does not keep status.devices (its feature gate DRAResourceClaimDeviceStatus is off): claims do not \
                     say if their limits are enforced; metrics and events do"
                );
                return;
            }
        }
        self.written = self.pauses.is_empty().then_some(now);
    }

    /// Ends the pauses.
    #[cfg(test)]
    pub(crate) fn wake(&mut self) {
        self.pauses.clear();
    }

    async fn write_one<A: Statuses>(
        &mut self,
        api: &A,
        pools: &Pools,
        uid: &str,
        entry: &Entry,
        findings: &Findings,
    ) -> Result<(), crate::api::Error> {
        let id = entry.id(uid);
        let known = match self.known.entry(uid.to_owned()) {
            btree_map::Entry::Occupied(known) => known.into_mut(),
            // A former instance may have written this status already.
            btree_map::Entry::Vacant(unknown) => unknown.insert(Known {
                shares: share_ids(entry),
                devices: api.devices(&id).await?,
            }),
        };
        let Some(before) = &known.devices else {
            return Ok(());
        };
        let wanted = devices(pools, uid, entry, findings, before, Timestamp::now());
        if same(&wanted, before) {
            return Ok(());
        }
        match api.apply(&id, &wanted).await? {
            Applied::Kept => known.devices = Some(wanted),
            Applied::Gone => known.devices = None,
            Applied::Dropped => self.dropped = true,
        }
        Ok(())
    }
}

fn share_ids(entry: &Entry) -> ShareIds {
    let id = |share: &Share| (share.device.clone(), share.share_id.clone());
    entry.all().map(id).collect()
}

/// The API server keeps their order by key, not ours.
fn same(wanted: &[AllocatedDeviceStatus], known: &[AllocatedDeviceStatus]) -> bool {
    wanted.len() == known.len() && wanted.iter().all(|one| known.contains(one))
}

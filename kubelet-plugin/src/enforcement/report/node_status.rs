//! The status of the node's VgpuNode: what is held, by the records, and what is used, by the observations. Pure.
//!
//! A figure that is not known is absent. Memory is in whole MiB, rounded down.

use super::super::observations::State;
use super::super::usage::{Former, ShareUsage};
use crate::dra::checkpoint::HeldOnGpu;
use crate::dra::node::Node;
use crate::dra::share::{Share, ShareKey, ShareKeys};
use crate::publish::inventory::{Gpu, Remarks};
use k8s_openapi::jiff::Timestamp;
use std::collections::BTreeMap;
use std::time::SystemTime;
use vgpu_api::request::{MEMORY_MIN, MEMORY_STEP};
use vgpu_api::usage::{HeldAndUsed, NodeCondition, NodeGpu, NodeShare, ShareUse, VgpuNodeStatus};
use vgpu_quantity::{format_bytes, read_bytes};

/// The state of the node according to the records.
#[derive(Debug, Default)]
pub(crate) struct NodeRecords {
    /// None before the driver has answered.
    gpus: Option<Vec<GpuRecords>>,
    remarks: Remarks,
    shares: Vec<ShareRecord>,
    /// None while that is not known.
    unclaimed: Option<ShareKeys>,
    formerly_unclaimed: ShareKeys,
}

#[derive(Debug)]
struct GpuRecords {
    device: String,
    gpu: Gpu,
    held: HeldOnGpu,
    takes: Takes,
    problem: Option<&'static str>,
}

/// How many claims may have parts of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    /// At most so many shares.
    Shares(usize),
    /// One claim, all of it.
    OneClaim,
}

#[derive(Debug)]
struct ShareRecord {
    uid: String,
    namespace: String,
    claim: String,
    share: Share,
}

// === impl NodeRecords ===

impl NodeRecords {
    pub(crate) fn of(node: &Node) -> Self {
        let gpu = |inventory: &crate::publish::inventory::Inventory, device: &str, gpu: &Gpu| {
            let held = node.claims().held_on(gpu);
            GpuRecords {
                device: device.to_owned(),
                takes: match (&gpu.mig, node.sharing()) {
                    (Some(_), sharing) if !sharing.of_instances => Takes::OneClaim,
                    (_, sharing) => Takes::Shares(sharing.shares as usize),
                },
                problem: inventory.problem(&gpu.uuid),
                held,
                gpu: gpu.clone(),
            }
        };
        let gpus = node.inventory().map(|inventory| {
            let all = inventory.by_index().into_iter();
            all.map(|(device, of)| gpu(inventory, device, of)).collect()
        });
        let mut shares = Vec::new();
        for (uid, entry) in &node.claims().claims {
            shares.extend(entry.limited().map(|share| ShareRecord {
                uid: uid.clone(),
                namespace: entry.namespace.clone(),
                claim: entry.name.clone(),
                share: share.clone(),
            }));
        }
        let order = |of: &ShareRecord| {
            (
                of.namespace.clone(),
                of.claim.clone(),
                of.share.device.clone(),
                of.key(),
            )
        };
        shares.sort_by_cached_key(order);
        let remarks = node.inventory().map(|inventory| inventory.remarks().clone());
        Self {
            gpus,
            remarks: remarks.unwrap_or_default(),
            shares,
            unclaimed: node.unclaimed().cloned(),
            formerly_unclaimed: ShareKeys::new(),
        }
    }

    pub(crate) fn remarks(&self) -> &Remarks {
        &self.remarks
    }

    /// Adds shares that a former instance reported as without a claim, because this instance may not know it yet.
    pub(crate) fn add_unclaimed(&mut self, former: &ShareKeys) {
        self.formerly_unclaimed.clone_from(former);
    }

    /// Returns the name of each share's claim.
    pub(crate) fn claims(&self) -> BTreeMap<ShareKey, String> {
        let name = |of: &ShareRecord| (of.key(), format!("{}/{}", of.namespace, of.claim));
        self.shares.iter().map(name).collect()
    }

    /// Returns the status without its conditions.
    pub(crate) fn status(&self, state: &State, now: SystemTime) -> VgpuNodeStatus {
        let shares: Vec<NodeShare> = self.shares.iter().map(|of| self.share(of, state, now)).collect();
        let gpus: Vec<&GpuRecords> = self.gpus.iter().flatten().collect();
        let mut models: Vec<&str> = gpus.iter().map(|of| of.gpu.name.as_str()).collect();
        models.sort_unstable();
        models.dedup();
        let held = self.shares.iter().map(|of| of.share.memory);
        let used = self.shares.iter().map(|of| used(of, state));
        let largest = gpus.iter().map(|of| match of.takes {
            Takes::Shares(_) => of.largest_free(),
            // No share is a part of it.
            Takes::OneClaim => 0,
        });
        let largest = largest.max();
        VgpuNodeStatus {
            as_of: time(now),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            gpu_count: self.gpus.as_ref().map(|gpus| {
                let whole = gpus.iter().filter(|of| of.gpu.mig.is_none());
                count(whole.count())
            }),
            share_count: count(shares.len()),
            without_claim: self.unclaimed.is_some().then(|| {
                let without = shares.iter().filter(|share| share.without_claim);
                count(without.count())
            }),
            model: models.join(", "),
            memory: HeldAndUsed {
                held: format_bytes(held.fold(0, u64::saturating_add)),
                used: text(used.sum::<Option<u64>>()),
            },
            largest_free: text(largest),
            gpus: gpus.iter().map(|of| of.status(state)).collect(),
            shares,
            conditions: Vec::new(),
        }
    }

    fn is_unclaimed(&self, key: &ShareKey) -> bool {
        let known = self.unclaimed.as_ref().is_some_and(|shares| shares.contains(key));
        known || self.formerly_unclaimed.contains(key)
    }

    fn share(&self, of: &ShareRecord, state: &State, now: SystemTime) -> NodeShare {
        let (share, key) = (&of.share, of.key());
        let usage = state.usage.get(&key);
        let last = usage.map(|usage| usage.last).unwrap_or_default();
        NodeShare {
            namespace: of.namespace.clone(),
            claim: of.claim.clone(),
            without_claim: self.is_unclaimed(&key),
            uid: of.uid.clone(),
            share: share.name.clone(),
            device: share.device.clone(),
            usage: ShareUse {
                memory: format_bytes(share.memory),
                memory_used: text(used(of, state)),
                memory_peak: text(last.memory_peak),
                memory_mean: text(usage.and_then(ShareUsage::memory_mean)),
                cores: share.cores,
                gpu_time_percent: usage.and_then(|usage| usage.gpu_percent),
                gpu_time_peak_percent: usage.and_then(|usage| usage.gpu_peak_percent),
                gpu_time_mean_percent: usage.and_then(|usage| usage.gpu_mean_percent(now)),
                processes: last.processes,
                refusals: last.refusals,
                since: usage.and_then(|usage| usage.since).map(time).unwrap_or_default(),
            },
        }
    }
}

/// The memory that a share uses: by its ledger, or else by the driver.
fn used(of: &ShareRecord, state: &State) -> Option<u64> {
    let key = of.key();
    let charged = state.usage.get(&key).and_then(|usage| usage.last.memory);
    charged.or_else(|| state.used.get(&key).copied())
}

// === impl ShareRecord ===

impl ShareRecord {
    fn key(&self) -> ShareKey {
        (self.uid.clone(), self.share.name.clone())
    }
}

// === impl GpuRecords ===

impl GpuRecords {
    /// Returns the memory that the largest claim gets of it now.
    fn largest_free(&self) -> u64 {
        let held = self.held.shares.len();
        let (has_place, step) = match self.takes {
            Takes::Shares(most) => (held < most, MEMORY_STEP),
            Takes::OneClaim => (held == 0, 1),
        };
        let free = self.gpu.memory.saturating_sub(self.held.memory) / step * step;
        let fits = has_place && self.problem.is_none() && free >= MEMORY_MIN;
        if fits { free } else { 0 }
    }

    fn status(&self, state: &State) -> NodeGpu {
        let used = state.gpus.get(&self.gpu.uuid).and_then(|gpu| gpu.used);
        NodeGpu {
            device: self.device.clone(),
            uuid: self.gpu.uuid.clone(),
            model: self.gpu.name.clone(),
            memory: format_bytes(self.gpu.memory),
            memory_held: format_bytes(self.held.memory),
            memory_used: used.map(|used| text(Some(used))),
            largest_free: format_bytes(self.largest_free()),
            cores_held: self.held.cores,
            shares: count(self.held.shares.len()),
            problem: self.problem.map(str::to_owned),
        }
    }
}

/// The status that a former instance wrote.
#[derive(Debug, Default)]
pub(crate) struct FormerStatus {
    pub(crate) conditions: Vec<NodeCondition>,
    pub(crate) shares: BTreeMap<ShareKey, Former>,
    /// Shares without a claim.
    pub(crate) unclaimed: ShareKeys,
}

// === impl FormerStatus ===

impl FormerStatus {
    /// Reads a status; what cannot be read is left out.
    pub(crate) fn read(status: VgpuNodeStatus) -> Self {
        let as_of = read_time(&status.as_of);
        let key = |share: &NodeShare| (share.uid.clone(), share.share.clone());
        let former = |share: &NodeShare| {
            let usage = &share.usage;
            let former = Former {
                since: read_time(&usage.since)?,
                as_of: as_of?,
                memory_mean: read_bytes(&usage.memory_mean),
                gpu_peak_percent: usage.gpu_time_peak_percent.map(|percent| percent.min(100)),
            };
            Some((key(share), former))
        };
        Self {
            shares: status.shares.iter().filter_map(former).collect(),
            unclaimed: status.shares.iter().filter(|of| of.without_claim).map(key).collect(),
            conditions: status.conditions,
        }
    }
}

/// Returns a time as Kubernetes writes it, in whole seconds.
pub(super) fn time(at: SystemTime) -> String {
    let at = Timestamp::try_from(at).unwrap_or_default().as_second();
    Timestamp::from_second(at).unwrap_or_default().to_string()
}

fn read_time(text: &str) -> Option<SystemTime> {
    text.parse::<Timestamp>().ok().map(SystemTime::from)
}

/// Returns no text for what is not known.
fn text(bytes: Option<u64>) -> String {
    bytes.map_or_else(String::new, |bytes| format_bytes(bytes / MEMORY_STEP * MEMORY_STEP))
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

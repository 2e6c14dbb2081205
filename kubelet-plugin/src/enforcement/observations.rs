//! The state of shares and GPUs as of the last turn, which writes it. The reporter and the metrics read it.

use super::conditions::Findings;
use super::usage::Usage;
use super::verdicts::compute;
use super::verdicts::finding::Reason;
use super::verdicts::memory::{Offender, Unexplained};
use super::verdicts::mounts::{Lacking, Pod};
use super::verdicts::refusals::News;
use super::verdicts::second_wall::{Changed, SecondWall};
use crate::dra::share::ShareKey;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};
use vgpu_node::cgroup::Container;

#[derive(Clone, Debug, Default)]
pub struct Observations(Arc<Mutex<State>>);

#[derive(Debug, Default)]
pub struct State {
    pub(crate) findings: Findings,
    /// Bytes of each share by the driver, as far as that is known.
    pub(crate) used: BTreeMap<ShareKey, u64>,
    /// The driver's own limit of each share.
    pub(crate) second_walls: BTreeMap<ShareKey, SecondWall>,
    /// Limits of the driver that were changed, as of the last time that the driver was asked.
    pub(crate) changed_limits: BTreeMap<ShareKey, Changed>,
    /// How many limits of the driver were set again since the start.
    pub(crate) set_again: u64,
    /// The verdicts on GPU time as of the last sample.
    pub(crate) compute: BTreeMap<ShareKey, compute::Verdict>,
    /// When each share was last charged GPU time, as far as this instance saw it.
    pub(crate) last_active: BTreeMap<ShareKey, SystemTime>,
    /// The usage of the shares, as of the last whole turn.
    pub(crate) usage: Usage,
    pub(crate) breaches: BTreeMap<ShareKey, Breach>,
    /// Damages of ledgers.
    pub(crate) damaged: BTreeMap<ShareKey, String>,
    pub(crate) lacking: BTreeMap<ShareKey, Lacking>,
    /// Processes without a share, that were seen twice.
    pub(crate) unexplained: Vec<Unexplained>,
    /// By UUID.
    pub(crate) gpus: BTreeMap<String, GpuUse>,
    /// Processes that were killed and have no event yet.
    pub(crate) killed: Vec<(ShareKey, Offender)>,
    /// Refused memory that has no event yet.
    pub(crate) refused: Vec<(ShareKey, News)>,
    /// How many were killed since the start.
    pub(crate) kills: u64,
    /// This node's pods; None before they were listed.
    pub(crate) pods: Option<Vec<Pod>>,
    /// Containers about which the pods were listed: how often, and when that was last wanted.
    pub(super) asked: BTreeMap<Container, (u32, Instant)>,
    /// Containers about which the pods should be listed.
    pub(super) questions: BTreeSet<Container>,
}

/// A share that broke its limit of memory, as of the last turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Breach {
    pub reason: Reason,
    pub limit: u64,
    pub used: Option<u64>,
    pub offender: Option<Offender>,
}

/// A GPU's use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GpuUse {
    /// Bytes of processes without a share; None if it is not known who uses the GPU.
    pub unexplained: Option<u64>,
    /// Bytes of all processes; None if one of them is not known.
    pub used: Option<u64>,
    /// Percentage of a short period before the last sample during which something ran on the GPU.
    pub busy: Option<u32>,
}

// === impl Observations ===

impl Observations {
    /// Locks the state, for a moment.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets all findings of this share, so that nothing about it is unknown.
    #[cfg(test)]
    pub(crate) fn know_all(&self, key: &ShareKey) {
        use super::conditions::ShareFindings;
        use super::verdicts::finding::Finding;
        let holds = Finding::holds(Reason::WithinLimit);
        let all = ShareFindings {
            memory: Finding::holds(Reason::DriverAndLibrary),
            memory_note: None,
            compute: holds,
            granted: Finding::holds(Reason::NothingRefused),
            injected: holds,
        };
        let wall = SecondWall {
            holds: true,
            is_missing: false,
            note: None,
            limit: Some(2),
            used: Some(1),
        };
        let verdict = compute::Verdict {
            enforced: Some(true),
            error_points: Some(0.0),
            used: Some(17.0),
        };
        let mut state = self.lock();
        state.findings.insert(key.clone(), all);
        state.used.insert(key.clone(), 1);
        state.second_walls.insert(key.clone(), wall);
        state.compute.insert(key.clone(), verdict);
        state.last_active.insert(key.clone(), SystemTime::now());
        let known = GpuUse {
            unexplained: Some(0),
            used: Some(1),
            busy: Some(42),
        };
        state.gpus.insert(crate::publish::inventory::tests::gpu(0).uuid, known);
    }
}

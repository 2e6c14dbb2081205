//! The controller's writes, and their outcomes.

use std::time::Duration;

use serde_json::Value;
use vgpu_api::PodRef;
use vgpu_planner::About;

use crate::Now;
use crate::budget_state::BudgetState;
use crate::notice::Notice;
use crate::status::{Quota, Status};

/// Sums of budgets are written this often.
pub const SUM_EVERY: Duration = Duration::from_secs(10);
/// An intended write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Writes the status, only to that version of the quota.
    Status {
        namespace: String,
        uid: String,
        version: String,
        status: Box<Status>,
    },
    /// Reads the quota's current state.
    Read { namespace: String },
    /// Removes the gate if the claims with these names still have these UIDs: a claim may have been deleted and
    /// replaced by one with the same name, and the watch of pods may be ahead of the watch of claims.
    ///
    /// `is_over_budget`: the pod may be evicted for pods in budget. The same write records this on the pod.
    Ungate {
        pod: PodRef,
        claims: Vec<(String, String)>,
        is_over_budget: bool,
    },
    /// Evicts these pods if the waiting pod still exists and is unbound; none of them if a dry run for one of them is
    /// refused.
    Evict { waiting: PodRef, victims: Vec<PodRef> },
    /// Set the label of a namespace, or remove it.
    Label {
        namespace: String,
        uid: String,
        state: Option<BudgetState>,
    },
    /// Creates the quota from a default, or overwrites the spec of exactly that version (UID and resourceVersion).
    Stamp {
        namespace: String,
        default: String,
        spec: Value,
        over: Option<(String, String)>,
    },
}

/// The subject of a write. For each one, at most one write is in flight.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    Namespace(String),
    Pod(PodRef),
    /// Evictions for this waiting pod.
    Eviction(PodRef),
    Label(String),
    Stamp(String),
}

impl Write {
    #[must_use]
    pub fn task(&self) -> Task {
        match self {
            Self::Status { namespace, .. } | Self::Read { namespace } => Task::Namespace(namespace.clone()),
            Self::Ungate { pod, .. } => Task::Pod(pod.clone()),
            Self::Evict { waiting, .. } => Task::Eviction(waiting.clone()),
            Self::Label { namespace, .. } => Task::Label(namespace.clone()),
            Self::Stamp { namespace, .. } => Task::Stamp(namespace.clone()),
        }
    }
}

/// The outcome of a write.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The status or a stamp is written, or the quota was read: this is the quota now.
    Quota(Box<Quota>),
    /// There is no quota.
    NoQuota,
    /// The gate is off, or the pod is gone.
    Ungated,
    /// The pods that were evicted, and those that were not, with the API server's reason.
    Evicted {
        gone: Vec<PodRef>,
        kept: Vec<(PodRef, String)>,
    },
    /// The namespace has its label, or is gone.
    Labelled,
    /// The write failed, or its result is unknown: decide again after a pause.
    Again,
    /// The API server refused the write.
    Refused(String),
    /// It was not sent: this replica no longer leads.
    Dropped,
}

/// The writes and events that are due now.
#[derive(Debug, Default)]
pub struct Plan {
    pub writes: Vec<Write>,
    pub notices: Vec<(About, Notice)>,
    /// When to plan again, if nothing changes before.
    pub wake: Option<Now>,
}

/// Numbers for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Numbers {
    pub quotas: usize,
    pub refused: usize,
    pub spent: usize,
    pub reservations: usize,
    pub waiting: usize,
}

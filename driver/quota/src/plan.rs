//! The desk's writes, and their outcomes.

use std::time::Duration;

use serde_json::Value;

use crate::mark::Mark;
use crate::notice::{Kind, Notice, Subject};
use crate::pod::Pod;
use crate::status::{Quota, Status};
use crate::time::Now;

/// Sums of budgets are written this often.
pub const SUM_EVERY: Duration = Duration::from_secs(10);
/// An intended write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Lands only on that version of the quota.
    Status {
        namespace: String,
        uid: String,
        version: String,
        status: Box<Status>,
    },
    /// Read the quota as it is now.
    Read { namespace: String },
    /// Take the gate off, if its claims by these names still have these UIDs: a claim may be deleted and another made by
    /// its name, and the watch of pods may be ahead of that of claims.
    ///
    /// `is_over_budget`: the pod may be evicted for pods in budget. It is recorded on the pod in the same write.
    Ungate {
        pod: PodRef,
        claims: Vec<(String, String)>,
        is_over_budget: bool,
    },
    /// Evict these, if the pod that waits is still there and unbound; none of them, if a dry run for one is refused.
    Evict { waiting: PodRef, victims: Vec<PodRef> },
    /// Set the label of a namespace, or remove it.
    Label {
        namespace: String,
        uid: String,
        mark: Option<Mark>,
    },
    /// Create the quota of a default, or write its spec over that version (UID and resourceVersion) of it.
    Stamp {
        namespace: String,
        default: String,
        spec: Value,
        over: Option<(String, String)>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

impl PodRef {
    pub(crate) fn of(pod: &Pod) -> Self {
        Self {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        }
    }
}

/// The subject of a write. For each one, at most one write is in flight.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    Namespace(String),
    Pod(PodRef),
    /// For a pod that waits.
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
    /// It was not done, or that is not known: decide again after a pause.
    Again,
    /// The API server says no.
    Refused(String),
    /// It was not sent: this replica leads no more.
    Dropped,
}

/// The writes and events that are due now.
#[derive(Debug, Default)]
pub struct Plan {
    pub writes: Vec<Write>,
    pub notices: Vec<(Subject, Notice)>,
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

pub(crate) fn subject(kind: Kind, pod: &PodRef) -> Subject {
    Subject {
        kind,
        namespace: pod.namespace.clone(),
        name: pod.name.clone(),
        uid: pod.uid.clone(),
    }
}

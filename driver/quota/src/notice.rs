//! The events for owners of pods and for administrators.

use vgpu_api::quota::Dimension;

use crate::claim::NotKnown;

/// Why a gate stays shut, or what is wrong with a quota.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Notice {
    #[error(
        "waits for VgpuQuota vgpu: {dimension} {used} of {ceiling} used, {wanted} wanted; it starts when shares of the namespace end, or when {whose} is raised"
    )]
    Full {
        dimension: Dimension,
        used: String,
        ceiling: String,
        wanted: String,
        whose: String,
    },
    #[error(
        "never fits into VgpuQuota vgpu: {dimension} {wanted} wanted, and the ceiling is {ceiling}; ask for less, or have {whose} raised"
    )]
    TooLarge {
        dimension: Dimension,
        ceiling: String,
        wanted: String,
        whose: String,
    },
    #[error(
        "waits behind pod {older}, which is older and does not fit into VgpuQuota vgpu yet; spec.backfill: true lets younger pods go first"
    )]
    Behind { older: String },
    #[error(
        "waits for VgpuQuota vgpu: {used} of {hours} GPU hours used, and spec.budget.whenSpent is Hold; it starts after the reset at {reset}, or when spec.budget.gpuHours is raised"
    )]
    Spent { used: String, hours: String, reset: String },
    #[error(
        "waits for VgpuQuota vgpu: {used} of {hours} GPU hours used, so pods in budget go first; it starts when none of them waits for a GPU, or after the reset at {reset}"
    )]
    Yields { used: String, hours: String, reset: String },
    #[error("waits for VgpuQuota vgpu, which is refused; correct it: {0}")]
    Refused(String),
    #[error(
        "ResourceClaim {0} is not there, so it is not known what the pod takes of its quota; create it, or delete the pod"
    )]
    NoClaim(String),
    #[error("ResourceClaim {claim}: {why}")]
    Uncounted { claim: String, why: String },
    #[error(
        "more than {0} claims of the namespace hold shares, which is as many as a VgpuQuota keeps; it starts when one of them ends"
    )]
    TooMany(usize),
    #[error(
        "somebody else took the scheduling gate dra.vgpu/quota off, or the pod was made without it; it counts ({dimension} {used} of {ceiling} used), and other pods wait for it"
    )]
    Ungated {
        dimension: Dimension,
        used: String,
        ceiling: String,
    },
    #[error("the API server refuses to take the scheduling gate dra.vgpu/quota off, and it is tried again: {0}")]
    GateRefused(String),
    /// Of a quota.
    #[error("{0}; no gate of this namespace opens until it is corrected")]
    BadSpec(String),
    #[error("the clock of vgpu-controller jumped by {0} s; what was jumped over is not charged")]
    ClockJumped(i64),
    #[error("{hours} GPU hours are spent; {what} until {reset}")]
    BudgetSpent {
        hours: String,
        what: &'static str,
        reset: String,
    },
    #[error("the API server refuses to write status, so no gate of this namespace opens: {0}")]
    StatusRefused(String),
    /// For an evicted pod over budget.
    #[error(
        "evicted from node {node}: the GPU hours of its namespace are spent until {reset}, and a pod in budget, {waiting}, has waited for its place"
    )]
    Evicted {
        node: String,
        /// The UID, because tenants do not learn names of other namespaces.
        waiting: String,
        reset: String,
    },
    /// For the waiting pod.
    #[error("to make room for it, pods over budget are evicted from node {node}: {count}")]
    RoomMade { count: usize, node: String },
    #[error(
        "pods over budget hold what it waits for, and the API server refuses to evict one of them; others are chosen, or it is tried again: {0}"
    )]
    EvictionRefused(String),
    #[error("no pod over budget is evicted for it, because it is not known which GPUs it could have: {0}")]
    NotKnown(NotKnown),
    /// Of a default.
    #[error("{0}; it makes no quota until it is corrected")]
    BadDefault(String),
    #[error(
        "namespace {namespace} matches VgpuQuotaDefault {first} too, which is the first by name, so that applies; narrow spec.namespaceSelector of one of them"
    )]
    DefaultsMatch { namespace: String, first: String },
    #[error("namespace {namespace}: the API server refuses its VgpuQuota vgpu, and it is tried again: {why}")]
    StampRefused { namespace: String, why: String },
}

impl Notice {
    /// The event's reason.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Full { .. } | Self::TooLarge { .. } | Self::Behind { .. } | Self::TooMany(_) => "QuotaExceeded",
            Self::Spent { .. } | Self::Yields { .. } | Self::BudgetSpent { .. } => "BudgetSpent",
            Self::Refused(_) | Self::BadSpec(_) | Self::BadDefault(_) => "QuotaRefused",
            Self::NoClaim(_) | Self::Uncounted { .. } => "QuotaWaitsForClaim",
            Self::Ungated { .. } => "QuotaBypassed",
            Self::GateRefused(_) | Self::StatusRefused(_) | Self::StampRefused { .. } => "QuotaWriteRefused",
            Self::DefaultsMatch { .. } => "QuotaDefaultConflict",
            Self::ClockJumped(_) => "ClockJumped",
            Self::Evicted { .. } => "EvictedOverBudget",
            Self::RoomMade { .. } => "RoomMade",
            Self::EvictionRefused(_) | Self::NotKnown(_) => "NoEviction",
        }
    }

    /// The key of a lasting state, which stays the same if its numbers change; `None` for a single event.
    #[must_use]
    pub fn topic(&self) -> Option<String> {
        let detail = match self {
            Self::ClockJumped(_) | Self::BadDefault(_) | Self::Evicted { .. } | Self::RoomMade { .. } => return None,
            Self::Full { dimension, .. } | Self::TooLarge { dimension, .. } | Self::Ungated { dimension, .. } => {
                dimension.name()
            }
            Self::Refused(text) | Self::BadSpec(text) | Self::NoClaim(text) => text,
            // Only one namespace is named, even if many match.
            Self::DefaultsMatch { first, .. } => first,
            Self::StampRefused { namespace, .. } => namespace,
            Self::Uncounted { why, .. } => why,
            Self::Spent { reset, .. } | Self::Yields { reset, .. } | Self::BudgetSpent { reset, .. } => reset,
            _ => "",
        };
        Some(format!("{:?} {detail}", std::mem::discriminant(self)))
    }
}

//! Why a node is refused, and how much work the checks were.

use std::cell::Cell;
use std::fmt;

/// Why a node is refused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    Unknown,
    Unreadable,
    Unschedulable,
    /// `spec.nodeSelector` or required node affinity.
    Affinity,
    Taint(String),
    Resource(String),
    /// The pod's requests alone would fit: see [`crate::device_overhead`].
    DeviceOverhead(String),
    /// The pod's request at pod level has no room for what its devices take of the node.
    PodLevel(String),
    Port(u16),
    /// Required affinity to pods, by its topology key.
    PodAffinity(String),
    PodAntiAffinity(String),
    Spread(String),
    /// An allocated claim of the pod can only be used on other nodes.
    Claim(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("not known any more"),
            Self::Unreadable => f.write_str("cannot be read (the log of vgpu-controller says why)"),
            Self::Unschedulable => f.write_str("unschedulable"),
            Self::Affinity => f.write_str("node selector or affinity does not match"),
            Self::Taint(key) => write!(f, "taint {key} is not tolerated"),
            Self::Resource(name) => write!(f, "not enough {name}"),
            Self::DeviceOverhead(name) => write!(
                f,
                "not enough {name} for the pod and what its devices take (nodeAllocatableResources of the ResourceSlice)"
            ),
            Self::PodLevel(name) => write!(
                f,
                "with too little {name} in spec.resources.requests of the pod for its containers and what its devices take \
                 (nodeAllocatableResources of the ResourceSlice)"
            ),
            Self::Port(port) => write!(f, "host port {port} is taken"),
            Self::PodAffinity(key) => write!(f, "affinity to pods by {key} does not match"),
            Self::PodAntiAffinity(key) => write!(f, "anti-affinity to pods by {key}"),
            Self::Spread(key) => write!(f, "topology spread by {key}"),
            Self::Claim(claim) => write!(f, "claim {claim} is allocated elsewhere"),
        }
    }
}

/// The work done: one unit for each node or pod that was checked, which costs about as much as a step of the allocator.
#[derive(Debug, Default)]
pub(crate) struct Work(Cell<u64>);

impl Work {
    pub(crate) fn add(&self, count: usize) {
        self.0.set(self.0.get().saturating_add(count as u64));
    }

    pub(crate) fn done(&self) -> u64 {
        self.0.get()
    }
}

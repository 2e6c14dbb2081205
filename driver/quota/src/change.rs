//! Changes of objects, as the watches report them to the controller.

use vgpu_api::DRIVER_NAME;
use vgpu_api::usage::VgpuNodeStatus;
use vgpu_planner::Change as Cluster;
use vgpu_quantity::read_bytes;

use crate::ceilings::ResourceQuota;
use crate::default::QuotaDefault;
use crate::namespace_labels::NamespaceLabels;
use crate::pod::is_relevant;
use crate::status::Quota;

/// One change. The change at the end of a list names all objects of the list.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "nearly all changes are of the cluster")]
pub enum Change {
    /// Pods, claims, classes and slices, as the state of the cluster gets them too: see [`Change::of`].
    Cluster(Cluster),
    Quota(Box<Quota>),
    QuotaGone {
        namespace: String,
        uid: String,
    },
    Quotas {
        uids: Vec<String>,
    },
    ResourceQuota(ResourceQuota),
    ResourceQuotaGone {
        namespace: String,
        name: String,
    },
    ResourceQuotas {
        names: Vec<(String, String)>,
    },
    Namespace(NamespaceLabels),
    NamespaceGone {
        name: String,
        uid: String,
    },
    Namespaces {
        uids: Vec<String>,
    },
    Default(QuotaDefault),
    DefaultGone {
        name: String,
    },
    Defaults {
        names: Vec<String>,
    },
    /// The shares that a node still holds for claims that are gone.
    Node {
        name: String,
        shares: Vec<Unclaimed>,
    },
    NodeGone {
        name: String,
    },
    Nodes {
        names: Vec<String>,
    },
}

/// A share whose claim is gone or was deallocated, and whose GPU its node still holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unclaimed {
    pub namespace: String,
    /// Of the claim.
    pub uid: String,
    /// Name of the share: a claim may have several on one device.
    pub share: String,
    pub device: String,
    /// Bytes; `None` if that cannot be read.
    pub memory: Option<u64>,
    pub cores: u64,
}

/// The most shares without a claim that count for one node: a correct node has fewer.
const MOST_UNCLAIMED: usize = 2048;

impl Unclaimed {
    /// Returns these shares of a node.
    #[must_use]
    pub fn of(status: &VgpuNodeStatus) -> Vec<Self> {
        let unclaimed = status.shares.iter().filter(|share| share.without_claim);
        unclaimed
            .take(MOST_UNCLAIMED)
            .map(|share| Self {
                namespace: share.namespace.clone(),
                uid: share.uid.clone(),
                share: share.share.clone(),
                device: share.device.clone(),
                memory: read_bytes(&share.usage.memory),
                cores: share.usage.cores.into(),
            })
            .collect()
    }
}

impl Change {
    /// Converts a change of the cluster's state for quotas; `None` if it does not concern them. A pod that no longer
    /// matters counts as gone.
    #[must_use]
    pub fn of(change: &Cluster) -> Option<Self> {
        Some(Self::Cluster(match change {
            Cluster::Pod(pod) if !is_relevant(pod) => Cluster::PodGone { key: pod.key() },
            Cluster::Slice { slice, .. } if slice.facts.spec.driver != DRIVER_NAME => return None,
            Cluster::Node(_)
            | Cluster::NodeGone { .. }
            | Cluster::Nodes { .. }
            | Cluster::Rules(_)
            | Cluster::Lease(_) => return None,
            change => change.clone(),
        }))
    }
}

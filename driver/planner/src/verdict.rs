//! Verdicts to report, each about a pod or a claim: why a pod is not placed yet, and what happened to a claim.

use std::collections::BTreeMap;

use vgpu_allocator::Unmatched;
use vgpu_api::PodRef;

use crate::filter::Refusal;
use crate::model::Claim;
use crate::obstacle::Obstacle;

/// The object that an event is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct About {
    pub object: Object,
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Object {
    Pod,
    Claim,
    /// A VgpuQuota.
    Quota,
    /// A VgpuQuotaDefault, which has no namespace.
    QuotaDefault,
}

impl About {
    #[must_use]
    pub fn pod(pod: impl Into<PodRef>) -> Self {
        let PodRef { namespace, name, uid } = pod.into();
        Self {
            object: Object::Pod,
            namespace,
            name,
            uid,
        }
    }

    #[must_use]
    pub fn claim(claim: &Claim) -> Self {
        let meta = &claim.facts.metadata;
        Self {
            object: Object::Claim,
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
        }
    }

    /// `namespace/name`.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Verdict {
    #[error("no node has both the devices and what else the pod needs{}", refused(.0))]
    NoFit(BTreeMap<Refusal, usize>),
    #[error("claim {claim}, request {}: {unmatched}", .unmatched.request)]
    NoMatch { claim: String, unmatched: Box<Unmatched> },
    #[error("{0}")]
    Mistake(String),
    #[error(
        "no answer was found in time; ask for fewer devices in one claim, or with fewer constraints; it is tried again with more time"
    )]
    Unanswered,
    #[error(
        "claim {claim} asks for class {ours}, which the controller allocates, and class {other}, which it does not: nobody can allocate both; split the claim in two"
    )]
    Mixed { claim: String, ours: String, other: String },
    #[error(
        "claim {claim} tolerates the taint dra.vgpu/allocator, so kube-scheduler might allocate it too; remove the toleration"
    )]
    Tolerates { claim: String },
    #[error("claim {claim} has {most} tolerations in a request, and the controller needs one more; remove one", most = crate::allocation::MOST_TOLERATIONS)]
    TooManyTolerations { claim: String },
    #[error(
        "the pod asks for {resource}, whose devices the controller allocates, and only kube-scheduler can serve such pods; use a ResourceClaim of class {class}"
    )]
    ExtendedResource { resource: String, class: String },
    #[error("{}", placed_by_hand(.node, .claim))]
    PlacedByHand { node: String, claim: String },
    #[error("{}", Obstacle::ClaimDeleted(.claim.clone()))]
    ClaimDeleted { claim: String },
    #[error("claim {claim} cannot be read, so nothing of the pod is allocated: {error}; make the claim anew")]
    Unreadable { claim: String, error: String },
    #[error("claim {claim} was not made for this pod; another object has the name")]
    NotOwned { claim: String },
    #[error(
        "its claims are allocated on node {node}, where the pod cannot go: {refusal}; the allocation does not move"
    )]
    Elsewhere { node: String, refusal: Refusal },
    #[error("gang {gang} has {present} of {size} pods{}", gated_words(*.gated))]
    GangIncomplete {
        gang: String,
        present: usize,
        /// The number of further pods, which have scheduling gates.
        gated: usize,
        size: usize,
    },
    #[error("gang {gang} does not fit as a whole: {why}")]
    GangDoesNotFit { gang: String, why: Box<Verdict> },
    #[error(
        "annotation dra.vgpu/gang-size is {size:?}; write the same number of at least 1 on each pod of gang {gang}"
    )]
    GangSize { gang: String, size: String },
    #[error("pod {pod} was not bound on node {node} in time; its devices are given back and the node is avoided")]
    TooSlow { pod: String, node: String },
    #[error(
        "pod {pod} is reserved for and was not bound on node {node} in time; its devices are kube-scheduler's to bind or to give back, and the node is avoided"
    )]
    NotBound { pod: String, node: String },
    #[error(
        "pod {pod} was not bound in time before, and another pod needs its devices on node {node}; they are given back. See the pod's spec.schedulerName, its volumes and kube-scheduler's events"
    )]
    GaveWay { pod: String, node: String },
    #[error("node {node} is gone; its devices are given back")]
    NodeGone { node: String },
    #[error("pod {pod} is gone; the devices are given back")]
    PodGone { pod: String },
    #[error("the claim is being deleted; its devices are given back")]
    HeldClaimDeleted,
    #[error(
        "somebody else allocated devices of the controller's to this claim, and they count as in use; delete the claim, or the pods that use it: {}",
        named(.devices)
    )]
    ThirdParty {
        /// Pool and device.
        devices: Vec<(String, String)>,
    },
    #[error(
        "slice {slice} could not be read from the API server for a while, and nothing is decided on its devices before; see the log of vgpu-controller"
    )]
    SliceUnread { slice: String },
    #[error("the API server refuses a write to the claim: {0}")]
    Refused(String),
}

fn placed_by_hand(node: &str, claim: &str) -> Obstacle {
    Obstacle::NodeName {
        node: node.to_owned(),
        claims: vec![claim.to_owned()],
    }
}

fn refused(nodes: &BTreeMap<Refusal, usize>) -> String {
    let mut nodes: Vec<_> = nodes.iter().collect();
    nodes.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let parts: Vec<String> = nodes
        .iter()
        .map(|(refusal, count)| format!("{count} {refusal}"))
        .collect();
    match parts.is_empty() {
        true => String::new(),
        false => format!("; of those with devices: {}", parts.join(", ")),
    }
}

fn named(devices: &[(String, String)]) -> String {
    let devices: Vec<String> = devices
        .iter()
        .map(|(pool, device)| format!("{device} of pool {pool}"))
        .collect();
    devices.join(", ")
}

fn gated_words(gated: usize) -> String {
    match gated {
        0 => String::new(),
        gated => format!(", and {gated} more with spec.schedulingGates"),
    }
}

impl Verdict {
    /// Returns true for a lasting state, which every pass finds again, and false for a single event.
    #[must_use]
    pub const fn lasts(&self) -> bool {
        !matches!(
            self,
            Self::TooSlow { .. }
                | Self::NotBound { .. }
                | Self::GaveWay { .. }
                | Self::NodeGone { .. }
                | Self::PodGone { .. }
                | Self::HeldClaimDeleted
        )
    }

    /// An event's reason.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NoFit(_) => "NoNodeFits",
            Self::NoMatch { .. } => "NoDeviceMatches",
            Self::Mistake(_) => "ClaimMistake",
            Self::Unanswered => "NoAnswerInTime",
            Self::Mixed { .. } => "ClaimMixesDrivers",
            Self::Tolerates { .. } | Self::TooManyTolerations { .. } => "ClaimTolerations",
            Self::ExtendedResource { .. } => "ExtendedResource",
            Self::PlacedByHand { .. } => "PlacedByHand",
            Self::ClaimDeleted { .. } | Self::HeldClaimDeleted => "ClaimDeleted",
            Self::Unreadable { .. } => "ClaimUnreadable",
            Self::NotOwned { .. } => "ClaimNotOwned",
            Self::Elsewhere { .. } => "AllocatedElsewhere",
            Self::GangIncomplete { .. } | Self::GangDoesNotFit { .. } => "GangWaits",
            Self::GangSize { .. } => "GangSize",
            Self::TooSlow { .. } | Self::NotBound { .. } => "HoldTimeout",
            Self::GaveWay { .. } => "HoldGaveWay",
            Self::NodeGone { .. } => "NodeGone",
            Self::PodGone { .. } => "PodGone",
            Self::ThirdParty { .. } => "AllocatedByOthers",
            Self::SliceUnread { .. } => "SliceUnread",
            Self::Refused(_) => "WriteRefused",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_names_what_refuses_and_who_has_the_devices() {
        let no_fit = Verdict::NoFit(BTreeMap::from([
            (Refusal::Resource("cpu".into()), 3),
            (Refusal::Unschedulable, 2),
        ]));
        assert_eq!(
            no_fit.to_string(),
            "no node has both the devices and what else the pod needs; of those with devices: 3 not enough cpu, 2 unschedulable"
        );
        let device = |name: &str| ("n1/vgpu".to_owned(), name.to_owned());
        let others = Verdict::ThirdParty {
            devices: vec![device("gpu-0"), device("gpu-1")],
        };
        assert_eq!(
            others.to_string(),
            "somebody else allocated devices of the controller's to this claim, and they count as in use; delete \
             the claim, or the pods that use it: gpu-0 of pool n1/vgpu, gpu-1 of pool n1/vgpu"
        );
    }

    #[test]
    fn pods_that_the_controller_cannot_serve_are_told_what_to_do() {
        let resource = Verdict::ExtendedResource {
            resource: "nvidia.com/gpu".into(),
            class: "gpu".into(),
        };
        assert_eq!(
            resource.to_string(),
            "the pod asks for nvidia.com/gpu, whose devices the controller allocates, and only kube-scheduler can \
             serve such pods; use a ResourceClaim of class gpu"
        );
        let placed = Verdict::PlacedByHand {
            node: "n1".into(),
            claim: "c".into(),
        };
        assert_eq!(
            placed.to_string(),
            "was put on node n1 by spec.nodeName, so no scheduler allocates its claim c, and it never starts: leave out \
             nodeName, and use nodeSelector {kubernetes.io/hostname: n1}"
        );
    }
}

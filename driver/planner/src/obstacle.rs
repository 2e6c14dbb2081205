//! Obstacles: reasons why a pod gets no GPUs even if enough are free, such as its own fields, its node, or the state of its claims.
//!
//! The controller's events and `vgpu explain` have these sentences from here. The pod is their subject.

mod find;

pub(crate) use find::taint_text;

/// An object that has the name of a pod's missing claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Namesake {
    /// A ResourceClaimTemplate of the pod's namespace.
    Template,
    /// A claim of this namespace.
    Claim(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    #[error(
        "no container names its claim {entry}, so none gets the GPU: add resources.claims: [{{name: {entry}}}] to the \
         container that needs it, and create the pod again"
    )]
    NoContainer { entry: String },
    #[error(
        "only init container {init} names its claim {entry}, so no other gets the GPU: add resources.claims: \
         [{{name: {entry}}}] to the container that needs it, and create the pod again"
    )]
    OnlyInit { entry: String, init: String },
    #[error("is being deleted (Terminating), so it gets nothing more{}", ends(.node.as_deref()))]
    Terminating { node: Option<String> },
    #[error("has ended; only a new pod gets devices")]
    Finished,
    #[error("has the scheduling gate {0}: no scheduler looks at it before whoever set the gate takes it off")]
    Gate(String),
    #[error(
        "has the scheduling gate dra.vgpu/quota, which vgpu-controller takes off when the VgpuQuota of its namespace has \
         room; without an event on the pod, see that vgpu-controller runs"
    )]
    QuotaGate,
    #[error("node {0} does not exist any more; delete the pod, and a new one gets other devices")]
    NodeGone(String),
    #[error(
        "node {node} is not ready (taint {taint}): nothing starts or ends there before kubelet reports again; see \
         kubectl describe node {node}"
    )]
    NodeNotReady { node: String, taint: String },
    #[error("it fits only on nodes that are not ready: {}", .0.join(", "))]
    OnlyNotReady(Vec<String>),
    #[error(
        "was put on node {node} by spec.nodeName, so no scheduler allocates its claim {}, and it never starts: leave out \
         nodeName, and use nodeSelector {{kubernetes.io/hostname: {node}}}",
        .claims.join(", ")
    )]
    NodeName { node: String, claims: Vec<String> },
    #[error("claim {claim} does not exist: {}", missing_words(.name, .namespace, .namesake.as_ref()))]
    NoClaim {
        claim: String,
        name: String,
        namespace: String,
        namesake: Option<Namesake>,
    },
    #[error(
        "its claim {entry} is not made yet from ResourceClaimTemplate {template}; if that does not exist (kubectl get \
         resourceclaimtemplate {template} -n {namespace}), create it: kubectl apply says why one is refused"
    )]
    NotMade {
        entry: String,
        template: String,
        namespace: String,
    },
    #[error(
        "it asks by {} and has no claim, so dra.vgpu gives it nothing: pods of namespace {namespace} are translated only \
         if the chart's translate.dialects has that dialect and the namespace the label (kubectl label namespace \
         {namespace} dra.vgpu/translate=true); then create the pod again. Or ask by a claim of class vgpu",
        .names.join(", ")
    )]
    Untranslated { names: Vec<String>, namespace: String },
    #[error("claim {0} is being deleted, so it is given to no pod any more; create it again once it is gone")]
    ClaimDeleted(String),
    #[error(
        "{device} of pool {pool}, which claim {claim} has, is not published any more: the GPU or its node is lost; delete \
         the pod, and a new one gets another GPU"
    )]
    GpuGone {
        claim: String,
        device: String,
        pool: String,
    },
    #[error(
        "{device} of pool {pool}, which claim {claim} has, has the taint {taint}: the GPU is not well{}. \
         Delete the pod if it cannot go on; if its claim is from a template, a new pod gets another GPU. docs/health.md says \
         what the taint means",
        .fault.as_ref().map_or_else(String::new, |fault| format!(" ({fault})"))
    )]
    GpuTainted {
        claim: String,
        device: String,
        pool: String,
        taint: String,
        /// The GPU's fault in words, if the taint is that of one.
        fault: Option<String>,
    },
}

impl Obstacle {
    /// The reason in one word.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::NoContainer { .. } => "NoContainer",
            Self::OnlyInit { .. } => "OnlyInitContainer",
            Self::Terminating { .. } => "Terminating",
            Self::Finished => "Finished",
            Self::Gate(_) => "SchedulingGate",
            Self::QuotaGate => "QuotaGate",
            Self::NodeGone(_) => "NodeGone",
            Self::NodeNotReady { .. } => "NodeNotReady",
            Self::OnlyNotReady(_) => "OnlyNodesNotReady",
            Self::NodeName { .. } => "PlacedByHand",
            Self::NoClaim { .. } => "NoClaim",
            Self::NotMade { .. } => "ClaimNotMade",
            Self::Untranslated { .. } => "Untranslated",
            Self::ClaimDeleted(_) => "ClaimDeleted",
            Self::GpuGone { .. } => "GpuGone",
            Self::GpuTainted { .. } => "GpuTainted",
        }
    }
}

fn ends(node: Option<&str>) -> String {
    match node {
        Some(node) => format!("; if it stays, see that kubelet and vgpu-kubelet-plugin run on node {node}"),
        None => String::new(),
    }
}

fn missing_words(name: &str, namespace: &str, namesake: Option<&Namesake>) -> String {
    let template = format!("resourceClaimTemplateName: {name} in place of resourceClaimName");
    match namesake {
        Some(Namesake::Template) => format!("that is a ResourceClaimTemplate, so write {template}"),
        Some(Namesake::Claim(other)) => format!(
            "there is one in namespace {other}, but a pod can use claims of its own namespace only; create it in {namespace}"
        ),
        None => format!(
            "create it in namespace {namespace}, as claims of other namespaces cannot be used; if it is the name of a \
             ResourceClaimTemplate, write {template}"
        ),
    }
}

//! What the owner of a translated pod is told, as an event.

/// The pod that an event is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// Why a template is not there, each told once for a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Notice {
    #[error("{0}")]
    Annotation(String),
    #[error(
        "metadata.annotations[dra.vgpu/translated]: class {class:?} is none that a translation gives ({allowed}); remove the annotation, or name the class in the chart's translate.highPriorityClass"
    )]
    Class { class: String, allowed: String },
    #[error(
        "template {template} waits: no published GPU is one that the pod allows and has 64Mi in the part that it asks for; it is made when there is one"
    )]
    NoGpu { template: String },
    #[error(
        "ResourceClaimTemplate {template} is there and is not vgpu-controller's, so the pod's claim is made from somebody else's; delete that template"
    )]
    Taken { template: String },
    #[error("the API server refuses ResourceClaimTemplate {template}, and it is tried again: {why}")]
    Refused { template: String, why: String },
}

impl Notice {
    /// The event's reason.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Annotation(_) | Self::Class { .. } => "VgpuClaimRefused",
            Self::NoGpu { .. } => "VgpuClaimPending",
            Self::Taken { .. } | Self::Refused { .. } => "TemplateRefused",
        }
    }

    /// What a pod is told once, whatever the API server's words for it are each time.
    pub(crate) fn topic(&self) -> (&'static str, String) {
        let of = match self {
            Self::Annotation(_) => String::new(),
            Self::Class { class, .. } => class.clone(),
            Self::NoGpu { template } | Self::Taken { template } | Self::Refused { template, .. } => template.clone(),
        };
        (self.reason(), of)
    }
}

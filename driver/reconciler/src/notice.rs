//! Events for the owner of a translated pod.

/// Why a template is missing. A plan has the notice each time the reason is found.
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

    /// A key that stays the same if the API server words a refusal differently.
    #[must_use]
    pub fn topic(&self) -> &str {
        match self {
            Self::Annotation(_) => "",
            Self::Class { class, .. } => class,
            Self::NoGpu { template } | Self::Taken { template } | Self::Refused { template, .. } => template,
        }
    }
}

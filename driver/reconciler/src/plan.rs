//! The changes that the reconciler gets, and the writes that it wants.

use k8s_openapi::api::resource::v1::{ResourceClaimTemplate, ResourceSlice};
use vgpu_api::PodRef;

use crate::Now;
use crate::notice::Notice;
use crate::pod::TranslatedPod;
use crate::template::{Key, Template};

/// One change. The end of a list (`Pods` and so on) names all objects there are.
#[derive(Debug, Clone)]
pub enum Change {
    /// Also for a known pod that is not translated any more: then `pod` is `None`.
    Pod {
        key: String,
        pod: Option<TranslatedPod>,
    },
    PodGone {
        key: String,
    },
    Pods {
        keys: Vec<String>,
    },
    Template {
        key: Key,
        template: Template,
    },
    TemplateGone {
        key: Key,
        uid: String,
    },
    Templates {
        keys: Vec<Key>,
    },
    Slice(Box<ResourceSlice>),
    SliceGone {
        name: String,
    },
    Slices {
        names: Vec<String>,
    },
    /// A namespace with the label `dra.vgpu/translate: "true"`.
    Namespace {
        name: String,
    },
    NamespaceGone {
        name: String,
    },
    Namespaces {
        names: Vec<String>,
    },
    /// Whether this replica holds the lease.
    Leads(bool),
}

/// An intended write.
#[derive(Debug, Clone, PartialEq)]
pub enum Write {
    Create {
        key: Key,
        template: Box<ResourceClaimTemplate>,
    },
    /// Deletes only that version of the template.
    Delete { key: Key, uid: String, version: String },
    /// Reads the pod and its claims, and writes the patch of [`crate::legacy_patch`].
    GiveBack(PodRef),
}

/// The subject of a write. For each one, at most one write is in flight.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    Template(Key),
    Pod(PodRef),
}

impl Write {
    #[must_use]
    pub fn task(&self) -> Task {
        match self {
            Self::Create { key, .. } | Self::Delete { key, .. } => Task::Template(key.clone()),
            Self::GiveBack(pod) => Task::Pod(pod.clone()),
        }
    }
}

/// The outcome of a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Created(Template),
    /// Creating: the name is taken.
    Exists,
    /// Deleting: it was accepted. The name is free when the watch reports that.
    Deleted,
    /// The pod has its annotations.
    LegacyView,
    /// Nothing was done, because something changed or is missing: decided again after a pause.
    Again,
    /// The API server refused the write.
    Refused(String),
    /// It was not sent: this replica does not lead any more.
    Dropped,
}

/// What to do now.
#[derive(Debug, Default)]
pub struct Plan {
    pub writes: Vec<Write>,
    pub notices: Vec<(PodRef, Notice)>,
    /// When to plan again, if nothing changes before.
    pub wake: Option<Now>,
}

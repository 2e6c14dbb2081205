//! The result of translating a pod.

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use crate::problem::Warning;
use crate::request::Request;

/// A pod that asked in a dialect, with claims instead.
#[derive(Debug, Clone, PartialEq)]
pub struct Translation {
    /// The changed pod.
    pub pod: Pod,
    /// The same change as a JSON patch of the original. It names only what changes, so that fields of a newer
    /// Kubernetes, which [`Pod`] does not have, stay as they are.
    pub patch: Value,
    /// The templates that the pod's claims need in its namespace, each once, ordered by name.
    pub templates: Vec<NamedRequest>,
    pub warnings: Vec<Warning>,
}

/// A request with its template's name, [`Request::name`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedRequest {
    pub name: String,
    pub request: Request,
}

//! Nodes: the allocator's model, with allocatable resources and taints.

use std::sync::Arc;

use serde::Deserialize;
use vgpu_allocator::model::{self, Metadata, Taint, fitted, or_default};

use super::Requests;
use super::meta::Object;

/// A node with everything that decides if it accepts a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "Object<Spec, Status>")]
pub struct Node {
    /// The allocator's model of it, which node selectors match.
    pub facts: Arc<model::Node>,
    pub allocatable: Requests,
    pub taints: Vec<Taint>,
    pub unschedulable: bool,
    /// It cannot be decoded, so its resources and taints are unknown.
    pub is_unreadable: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Spec {
    #[serde(deserialize_with = "fitted")]
    taints: Vec<Taint>,
    #[serde(deserialize_with = "or_default")]
    unschedulable: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    #[serde(deserialize_with = "or_default")]
    allocatable: Requests,
}

impl From<Object<Spec, Status>> for Node {
    fn from(raw: Object<Spec, Status>) -> Self {
        Self {
            facts: Arc::new(model::Node {
                metadata: Metadata {
                    name: raw.metadata.name,
                    labels: raw.metadata.labels,
                    ..Metadata::default()
                },
            }),
            allocatable: raw.status.allocatable,
            taints: raw.spec.taints,
            unschedulable: raw.spec.unschedulable,
            is_unreadable: false,
        }
    }
}

impl Node {
    #[must_use]
    pub fn name(&self) -> &str {
        &self.facts.metadata.name
    }

    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.facts.metadata.labels.get(key).map(String::as_str)
    }
}

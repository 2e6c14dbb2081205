//! Nodes and node selectors.

use serde::{Deserialize, Serialize};

use super::{Metadata, fitted, or_default};

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Node {
    #[serde(default)]
    pub metadata: Metadata,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelector {
    #[serde(deserialize_with = "fitted")]
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

impl NodeSelector {
    /// Selects this node alone, in the form that Kubernetes' RBAC for drivers on nodes requires: one term, one field.
    #[must_use]
    pub fn only(node: &str) -> Self {
        Self {
            node_selector_terms: vec![NodeSelectorTerm {
                match_expressions: Vec::new(),
                match_fields: vec![NodeSelectorRequirement {
                    key: "metadata.name".to_owned(),
                    operator: "In".to_owned(),
                    values: vec![node.to_owned()],
                }],
            }],
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelectorTerm {
    #[serde(deserialize_with = "fitted", skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<NodeSelectorRequirement>,
    #[serde(deserialize_with = "fitted", skip_serializing_if = "Vec::is_empty")]
    pub match_fields: Vec<NodeSelectorRequirement>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeSelectorRequirement {
    #[serde(deserialize_with = "or_default")]
    pub key: String,
    #[serde(deserialize_with = "or_default")]
    pub operator: String,
    #[serde(deserialize_with = "fitted", skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

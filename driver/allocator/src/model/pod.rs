//! Pods, with the claims that they name.

use serde::Deserialize;

use super::{Metadata, fitted, or_default};

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Pod {
    pub metadata: Metadata,
    pub spec: PodSpec,
    #[serde(deserialize_with = "or_default")]
    pub status: PodStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    #[serde(deserialize_with = "or_default")]
    pub node_name: String,
    #[serde(deserialize_with = "fitted")]
    pub resource_claims: Vec<PodClaim>,
}

/// A claim by its own name, or one that is made from a template and named in the pod's status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodClaim {
    pub name: String,
    pub resource_claim_name: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    #[serde(deserialize_with = "fitted")]
    pub resource_claim_statuses: Vec<PodClaim>,
    pub extended_resource_claim_status: Option<ExtendedClaim>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExtendedClaim {
    pub resource_claim_name: String,
}

//! `status.allocation` of a claim.

use std::sync::Arc;

use litemap::LiteMap;
use serde::{Deserialize, Serialize, Serializer};

use super::node::NodeSelector;
use super::parts::{OpaqueConfig, Toleration};
use super::{by_capacity, fitted, or_default, shared_option};
use vgpu_quantity::Quantity;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Allocation {
    #[serde(deserialize_with = "or_default")]
    pub devices: DeviceResults,
    /// Shared, because the claims of a node have equal ones.
    #[serde(
        deserialize_with = "shared_option",
        serialize_with = "as_it_is",
        skip_serializing_if = "Option::is_none"
    )]
    pub node_selector: Option<Arc<NodeSelector>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation_timestamp: Option<String>,
}

fn as_it_is<S: Serializer>(selector: &Option<Arc<NodeSelector>>, s: S) -> Result<S::Ok, S::Error> {
    selector.as_deref().serialize(s)
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceResults {
    #[serde(deserialize_with = "fitted", skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<DeviceResult>,
    #[serde(deserialize_with = "fitted", skip_serializing_if = "Vec::is_empty")]
    pub config: Vec<AllocationConfig>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceResult {
    pub request: String,
    pub driver: String,
    pub pool: String,
    pub device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_access: Option<bool>,
    #[serde(deserialize_with = "fitted", skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    #[serde(deserialize_with = "fitted", skip_serializing_if = "Vec::is_empty")]
    pub binding_conditions: Vec<String>,
    #[serde(deserialize_with = "fitted", skip_serializing_if = "Vec::is_empty")]
    pub binding_failure_conditions: Vec<String>,
    #[serde(rename = "shareID", skip_serializing_if = "Option::is_none")]
    pub share_id: Option<String>,
    #[serde(deserialize_with = "by_capacity", skip_serializing_if = "LiteMap::is_empty")]
    pub consumed_capacity: LiteMap<String, Quantity>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AllocationConfig {
    pub source: ConfigSource,
    /// Empty means every request.
    #[serde(default, deserialize_with = "fitted", skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opaque: Option<OpaqueConfig>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConfigSource {
    FromClass,
    FromClaim,
}

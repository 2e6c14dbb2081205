//! Device classes, and configuration that is handed through to drivers.

use serde::{Deserialize, Serialize};

use super::{Metadata, Selector, fitted};

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct DeviceClass {
    #[serde(default)]
    pub metadata: Metadata,
    #[serde(default)]
    pub spec: ClassSpec,
    /// Why whoever read it could not, if so: what it selects is not known, and a claim that names it is a mistake.
    #[serde(skip)]
    pub unreadable: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClassSpec {
    #[serde(deserialize_with = "fitted")]
    pub selectors: Vec<Selector>,
    #[serde(deserialize_with = "fitted")]
    pub config: Vec<RequestedConfig>,
    /// The resource that containers may name in place of a claim. Allocation is done on the claim that stands for it.
    pub extended_resource_name: Option<String>,
}

/// One entry of a class's or a claim's `config`; `requests` is a claim's alone.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RequestedConfig {
    #[serde(deserialize_with = "fitted")]
    pub requests: Vec<String>,
    pub opaque: Option<OpaqueConfig>,
}

/// Handed through as it is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpaqueConfig {
    pub driver: String,
    #[serde(default)]
    pub parameters: serde_json::Value,
}

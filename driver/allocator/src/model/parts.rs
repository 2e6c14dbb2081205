//! Types that claims, classes and allocations share: selectors, tolerations, opaque config.

use serde::{Deserialize, Serialize};

use super::{fitted, or_default};

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Selector {
    /// `None` is a kind of selector that this version does not know.
    pub cel: Option<CelSelector>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct CelSelector {
    pub expression: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Toleration {
    #[serde(deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub key: String,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub operator: String,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub value: String,
    #[serde(deserialize_with = "or_default", skip_serializing_if = "String::is_empty")]
    pub effect: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

/// One entry of `config` in a class or claim. Only a claim's entry has `requests`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RequestedConfig {
    #[serde(deserialize_with = "fitted")]
    pub requests: Vec<String>,
    pub opaque: Option<OpaqueConfig>,
}

/// Passed through unchanged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpaqueConfig {
    pub driver: String,
    #[serde(default)]
    pub parameters: serde_json::Value,
}

//! DeviceClasses.

use serde::Deserialize;

use super::parts::{RequestedConfig, Selector};
use super::{Metadata, fitted};

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct DeviceClass {
    #[serde(default)]
    pub metadata: Metadata,
    #[serde(default)]
    pub spec: ClassSpec,
    /// Why it cannot be decoded, set by the caller: what it selects is unknown, and a claim that names it is a mistake.
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

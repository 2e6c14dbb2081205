//! ResourceClaims: requests, constraints, and their config.

use std::sync::Arc;

use litemap::LiteMap;
use serde::{Deserialize, Deserializer};

use super::outcome::Allocation;
use super::parts::{RequestedConfig, Selector, Toleration};
use super::{Metadata, by_short_name, fitted, or_default, shared, shared_option};
use vgpu_api::capacity;
use vgpu_quantity::Quantity;

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ResourceClaim {
    pub metadata: Metadata,
    /// Shared, because the claims of one template have equal specs.
    #[serde(deserialize_with = "shared")]
    pub spec: Arc<ClaimSpec>,
    #[serde(deserialize_with = "or_default")]
    pub status: ClaimStatus,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ClaimSpec {
    #[serde(deserialize_with = "or_default")]
    pub devices: DeviceClaim,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ClaimStatus {
    /// Shared with the index, which counts the devices that it holds.
    #[serde(deserialize_with = "shared_option")]
    pub allocation: Option<Arc<Allocation>>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct DeviceClaim {
    #[serde(deserialize_with = "fitted")]
    pub requests: Vec<Request>,
    #[serde(deserialize_with = "fitted")]
    pub constraints: Vec<Constraint>,
    #[serde(deserialize_with = "fitted")]
    pub config: Vec<RequestedConfig>,
}

/// Either `exactly` or `first_available` is set.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Request {
    pub name: String,
    pub exactly: Option<Exactly>,
    #[serde(deserialize_with = "fitted")]
    pub first_available: Vec<Alternative>,
}

/// What is asked for: `exactly`, or an alternative without its name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Exactly {
    pub class: String,
    pub selectors: Vec<Selector>,
    pub mode: Mode,
    pub admin_access: Option<bool>,
    pub tolerations: Vec<Toleration>,
    pub capacity: Option<CapacityRequirements>,
    /// True if selectors would compute attributes: an alpha feature, which is refused with an error that names it.
    pub derives_attributes: bool,
}

/// An alternative in `firstAvailable`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Alternative {
    pub name: String,
    pub ask: Exactly,
}

/// How many devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mode {
    Exact(i64),
    All,
    Unknown(String),
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "RawCapacity")]
pub struct CapacityRequirements {
    /// By the short names of our capacities.
    pub requests: LiteMap<String, Quantity>,
    /// A name was written with our driver's domain.
    pub has_domain: bool,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawCapacity {
    #[serde(deserialize_with = "or_default")]
    requests: LiteMap<String, Quantity>,
}

impl From<RawCapacity> for CapacityRequirements {
    fn from(raw: RawCapacity) -> Self {
        let has_domain = raw.requests.keys().any(|name| capacity::short(name) != name);
        Self {
            requests: by_short_name(raw.requests),
            has_domain,
        }
    }
}

/// If both are `None`, the kind of constraint is not known to this version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Constraint {
    #[serde(deserialize_with = "fitted")]
    pub requests: Vec<String>,
    pub match_attribute: Option<String>,
    pub distinct_attribute: Option<String>,
}

/// The fields of `exactly`. An alternative has the same fields, not nested.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Raw {
    #[serde(deserialize_with = "or_default")]
    name: String,
    #[serde(deserialize_with = "or_default")]
    device_class_name: String,
    #[serde(deserialize_with = "fitted")]
    selectors: Vec<Selector>,
    #[serde(deserialize_with = "or_default")]
    allocation_mode: String,
    count: Option<i64>,
    admin_access: Option<bool>,
    #[serde(deserialize_with = "fitted")]
    tolerations: Vec<Toleration>,
    capacity: Option<CapacityRequirements>,
    #[serde(deserialize_with = "fitted")]
    derived_attributes: Vec<serde_json::Value>,
}

impl From<Raw> for Alternative {
    fn from(raw: Raw) -> Self {
        let mode = match raw.allocation_mode.as_str() {
            "" | "ExactCount" => Mode::Exact(raw.count.unwrap_or(1)),
            "All" => Mode::All,
            other => Mode::Unknown(other.to_owned()),
        };
        let tolerations = raw.tolerations.into_iter().map(|mut toleration| {
            if toleration.operator.is_empty() {
                toleration.operator = "Equal".to_owned();
            }
            toleration
        });
        Self {
            name: raw.name,
            ask: Exactly {
                class: raw.device_class_name,
                selectors: raw.selectors,
                mode,
                admin_access: raw.admin_access,
                tolerations: tolerations.collect(),
                capacity: raw.capacity,
                derives_attributes: !raw.derived_attributes.is_empty(),
            },
        }
    }
}

impl<'de> Deserialize<'de> for Exactly {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Alternative::from(Raw::deserialize(deserializer)?).ask)
    }
}

impl<'de> Deserialize<'de> for Alternative {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut alternative = Self::from(Raw::deserialize(deserializer)?);
        alternative.ask.admin_access = None; // an alternative has no such field
        Ok(alternative)
    }
}

impl Default for Mode {
    fn default() -> Self {
        Self::Exact(1)
    }
}

impl Request {
    /// The possible device requests: `exactly`, or each alternative.
    pub fn asks(&self) -> impl Iterator<Item = &Exactly> {
        let alternatives = self.first_available.iter().map(|alternative| &alternative.ask);
        self.exactly.iter().chain(alternatives)
    }
}

impl ResourceClaim {
    /// `namespace/name`, or the name alone where there is no namespace.
    #[must_use]
    pub fn key(&self) -> String {
        match self.metadata.namespace.as_str() {
            "" => self.metadata.name.clone(),
            namespace => format!("{namespace}/{}", self.metadata.name),
        }
    }
}

//! What the controller knows of the cluster: plain values, without `kube`.

use std::collections::BTreeMap;

/// A namespaced name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// A pod that is not bound to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    pub key: Key,
    pub uid: String,
    /// Whether the scheduler tried and gave up for now. Before that there is nothing to explain.
    pub unschedulable: bool,
    /// Names of its claims, as far as they exist.
    pub claims: Vec<String>,
    /// What it asks for as extended resources: container, resource, count.
    pub extended: Vec<Extended>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extended {
    pub container: String,
    pub resource: String,
    pub count: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    pub key: Key,
    pub state: ClaimState,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ClaimState {
    Waiting {
        requests: Vec<Request>,
        configs: Vec<OpaqueConfig>,
    },
    /// What it holds of our driver's devices.
    Allocated(Vec<Taken>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub name: String,
    /// One for `exactly`, several for `firstAvailable`.
    pub alternatives: Vec<Ask>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ask {
    /// The alternative's name, empty for `exactly`.
    pub name: String,
    /// The path of `capacity.requests`, for messages.
    pub at: String,
    pub class: String,
    pub capacity: BTreeMap<String, String>,
    pub amount: Amount,
    pub admin: bool,
    /// Whether the request has CEL selectors of its own; they are not evaluated here.
    pub selectors: bool,
    pub tolerations: Vec<Toleration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    Exactly(u64),
    All,
}

impl Default for Amount {
    fn default() -> Self {
        Self::Exactly(1)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Toleration {
    /// Empty: every key.
    pub key: String,
    /// `None` where the operator is Exists.
    pub value: Option<String>,
    /// Empty: every effect.
    pub effect: String,
}

/// Opaque parameters for our driver.
#[derive(Debug, Clone, PartialEq)]
pub struct OpaqueConfig {
    /// The parameters' path in their object.
    pub at: String,
    /// The requests they apply to; empty means all.
    pub requests: Vec<String>,
    pub parameters: serde_json::Value,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Class {
    pub name: String,
    /// Whether it selects our devices, as far as its text tells.
    pub ours: bool,
    /// The attribute `type` that it selects, as far as its text tells.
    pub device_type: String,
    pub extended_resource: Option<String>,
    pub configs: Vec<OpaqueConfig>,
}

/// A ResourceSlice of our driver.
#[derive(Debug, Clone, PartialEq)]
pub struct Slice {
    pub name: String,
    pub pool: String,
    pub node: String,
    pub generation: i64,
    /// How many slices make this generation of the pool complete.
    pub slice_count: i64,
    pub devices: Vec<Device>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Device {
    pub name: String,
    pub device_type: String,
    /// Whether several claims can hold it.
    pub shared: bool,
    /// Value, and what a request that does not mention it consumes.
    pub capacity: BTreeMap<String, Capacity>,
    pub taints: Vec<Taint>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capacity {
    pub value: i64,
    pub default: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taint {
    pub key: String,
    pub value: String,
    pub effect: String,
}

/// One allocation result.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taken {
    pub pool: String,
    pub device: String,
    /// Whether it is a share; if not, the device is wholly taken.
    pub share: bool,
    /// Administrative access takes nothing.
    pub admin: bool,
    pub consumed: BTreeMap<String, i64>,
}

impl Toleration {
    pub fn tolerates(&self, taint: &Taint) -> bool {
        (self.key.is_empty() || self.key == taint.key)
            && (self.effect.is_empty() || self.effect == taint.effect)
            && self.value.as_ref().is_none_or(|value| *value == taint.value)
    }
}

//! What the controller knows beside the allocator's objects: plain values, without `kube`.

use vgpu_allocator::model::RequestedConfig;

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
    pub count: i64,
}

/// What a DeviceClass is to us.
#[derive(Debug, Clone, PartialEq)]
pub struct Class {
    pub name: String,
    /// Whether it selects our devices, as far as its text tells.
    pub ours: bool,
    /// The attribute `type` that it selects, as far as its text tells.
    pub device_type: &'static str,
    pub extended_resource: Option<String>,
    pub config: Vec<RequestedConfig>,
}

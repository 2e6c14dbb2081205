//! A share: one allocation result of our driver, as the plugin stores it.

use crate::publish::inventory::Gpu;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use vgpu_abi::arbitration;
use vgpu_abi::limits::{ComputePolicy, Priority};
use vgpu_api::config::{self, Capabilities, Dialect, MemoryEnforcement};
use vgpu_dialects::GpuShare;
use vgpu_node::files::safe_name;
use vgpu_node::gpus::MemorySource;

/// Identifies a ResourceClaim as kubelet does.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimId {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// Names a share on the node: the UID of its claim, and its name.
pub type ShareKey = (String, String);
pub type ShareKeys = BTreeSet<ShareKey>;

/// A share with its entry in the node page of its GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedShare {
    pub key: ShareKey,
    pub gpu: String,
    pub cores: u32,
    pub entry: arbitration::Entry,
}

/// The kind of an allocation result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A part of a GPU, or all of it.
    Share,
    /// Monitoring access to a whole GPU without limits, for administrators.
    Monitor,
}

/// One allocation result of our driver, with the config that applies to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    /// The shareID, or the device's name if there is none. Directories and CDI devices have this name.
    #[serde(deserialize_with = "safe_name")]
    pub name: String,
    pub role: Role,
    /// The result's `request`, with `/subrequest` if it has one. Empty if the share was recovered from its
    /// limits file.
    pub request: String,
    pub device: String,
    pub share_id: Option<String>,
    /// UUID of the GPU.
    #[serde(deserialize_with = "safe_name")]
    pub gpu: String,
    /// Bytes; 0 for a monitor.
    pub memory: u64,
    /// Percent of the GPU's time that is reserved.
    pub cores: u32,
    #[serde(with = "compute_policy")]
    pub compute_policy: ComputePolicy,
    #[serde(with = "priority")]
    pub priority: Priority,
    pub host_memory: u64,
    /// Whether its containers need the driver's own limit. Entries of releases without this field have the default.
    #[serde(default, skip_serializing_if = "MemoryEnforcement::is_default")]
    pub memory_enforcement: MemoryEnforcement,
    /// The earlier system whose variables its containers get; `None` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
    /// Which parts of the driver its containers get. Entries of releases without this field have the default.
    #[serde(default, skip_serializing_if = "Capabilities::is_default")]
    pub driver_capabilities: Capabilities,
}

/// What a share's config says about the variables of its containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// `reportAs`.
    pub dialect: Dialect,
    /// True if the GPU is not shared (`Exclusive`): the variables then name all of it.
    pub whole: bool,
    /// The priority in the config. A default is not reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<config::Priority>,
}

// === impl ClaimId ===

impl std::fmt::Display for ClaimId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { namespace, name, uid } = self;
        write!(f, "ResourceClaim {namespace}/{name} (uid {uid})")
    }
}

// === impl Share ===

impl Share {
    /// The request's name as kubelet knows it.
    #[must_use]
    pub fn base_request(&self) -> &str {
        self.request.split('/').next().unwrap_or_default()
    }

    /// Returns true if both are the same allocation result. Configs are not compared: they cannot change
    /// while the claim is allocated, but two releases may read them differently.
    #[must_use]
    pub fn same_result(&self, other: &Self) -> bool {
        let known = !self.request.is_empty() && !other.request.is_empty();
        let place = |share: &Self| (share.request.clone(), share.device.clone(), share.share_id.clone());
        let amount = |share: &Self| {
            (
                share.name.clone(),
                share.role,
                share.gpu.clone(),
                share.memory,
                share.cores,
            )
        };
        amount(self) == amount(other) && (!known || place(self) == place(other))
    }

    /// Returns true if the share has less than all memory of the GPU, so that the driver can limit it.
    #[must_use]
    pub fn is_part_of(&self, gpu: &Gpu) -> bool {
        let is_less = self.memory < gpu.memory || gpu.memory_source == MemorySource::Lowered;
        self.role == Role::Share && is_less
    }

    /// Returns the part of a GPU with this memory that the share has: of its memory or of its time, whichever is more.
    #[must_use]
    pub fn fraction(&self, gpu_memory: u64) -> f64 {
        let memory = self.memory as f64 / gpu_memory.max(1) as f64;
        memory.max(f64::from(self.cores) / 100.0).min(1.0)
    }

    /// Returns the share as its dialect's variables name it; None if its config names no dialect.
    #[must_use]
    pub fn reported(&self, gpu: &Gpu) -> Option<GpuShare> {
        let report = self.report?;
        Some(GpuShare {
            uuid: self.gpu.clone(),
            index: gpu.index,
            memory: self.memory,
            device_memory: gpu.memory,
            // A whole GPU reserves no cores: it has all of them.
            cores: if report.whole { 100 } else { self.cores },
            whole: report.whole,
        })
    }
}

/// Serializes an enum of the limits file in JSON by the name that it has in the limits file.
macro_rules! by_name {
    ($module:ident, $type:ty) => {
        mod $module {
            use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

            pub(super) fn serialize<S: Serializer>(value: &$type, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(value.name())
            }

            pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$type, D::Error> {
                let name = String::deserialize(deserializer)?;
                <$type>::from_name(&name).ok_or_else(|| D::Error::custom(format!("unknown value {name:?}")))
            }
        }
    };
}
by_name!(compute_policy, vgpu_abi::limits::ComputePolicy);
by_name!(priority, vgpu_abi::limits::Priority);

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const GPU: &str = "GPU-3f8a1c20-1111-2222-3333-444455556666";

    /// A quarter of [`GPU`].
    pub(crate) fn share(name: &str) -> Share {
        Share {
            name: name.into(),
            role: Role::Share,
            request: "gpu".into(),
            device: "gpu-3f8a1c20".into(),
            share_id: Some(name.into()),
            gpu: GPU.into(),
            memory: 20 << 30,
            cores: 25,
            compute_policy: ComputePolicy::Balanced,
            priority: Priority::Low,
            host_memory: 0,
            memory_enforcement: MemoryEnforcement::default(),
            report: None,
            driver_capabilities: Capabilities::default(),
        }
    }

    #[test]
    fn the_base_request_has_no_subrequest() {
        let share = Share {
            request: "gpu/large".into(),
            ..share("s")
        };
        assert_eq!(share.base_request(), "gpu");
    }
}

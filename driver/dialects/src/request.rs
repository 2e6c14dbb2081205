//! What one container asks for, in our own terms: the same for every dialect.
//!
//! A request has exactly one text, its JSON with fields in a fixed order, and a name, which is a hash of that text. So
//! equal requests share one template in a namespace, and admission can name it from the pod alone.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use vgpu_api::class;
use vgpu_api::config::{AllocationPolicy, Dialect, Priority};
use vgpu_api::request::{CORES_MAX, MEMORY_MAX, MEMORY_MIN, MEMORY_STEP};

use crate::literal::literal;
use crate::problem::Problem;
use crate::profile::{Instance, is_profile};

/// The most GPUs that a claim can have: Kubernetes allocates at most 32 devices to one.
pub const COUNT_MAX: u32 = 32;
/// The most UUIDs or types in one list. A CEL selector has at most 10 KiB of text.
pub const LIST_MAX: usize = 128;
/// The longest UUID or type in such a list.
pub(crate) const ITEM_MAX: usize = 64;
/// The most bytes of one list in a selector, which with its rest stays below Kubernetes' 10 KiB.
pub(crate) const LIST_BYTES_MAX: usize = 9 * 1024;
/// A whole GPU in millionths.
pub const MILLION: u32 = 1_000_000;
/// Prefix of the templates' names.
pub const NAME_PREFIX: &str = "vgpu-translated-";

/// What one container wants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Request {
    /// The DeviceClass: `vgpu` for fractions, `gpu` for whole GPUs, `vgpu-mig` for instances, or the administrator's class
    /// for priority High.
    pub class: String,
    /// How many GPUs, each with the amounts below.
    pub count: u32,
    /// The memory of each GPU.
    pub memory: Memory,
    /// Percent of each GPU's time. 0 with class `gpu`, which gives all of it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cores: u32,
    /// The share never gets more than its cores: VgpuConfig's `computePolicy: Guaranteed`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub guaranteed: bool,
    /// The priority that the pod asked for. Only the class grants High.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation_policy: Option<AllocationPolicy>,
    /// Which GPUs may be used; for instances, of which GPUs.
    #[serde(default, skip_serializing_if = "Devices::is_any")]
    pub devices: Devices,
    /// With class `vgpu-mig`: which instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<Instance>,
    /// The dialect whose variables and annotations the pod gets back.
    pub report_as: Dialect,
}

/// Memory of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Memory {
    /// All of it.
    All,
    /// A multiple of 1Mi.
    Bytes(u64),
    /// Millionths of the GPU's memory, below a million. The template has bytes for each size of GPU, rounded down.
    Millionths(u32),
}

/// Which GPUs may be used: lists in order, without repetition. An empty list forbids nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Devices {
    /// Only these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub use_uuids: Vec<String>,
    /// None of these.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_uuids: Vec<String>,
    /// Only models with one of these in their name. Lowercase.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub use_types: Vec<String>,
    /// No model with one of these in its name. Lowercase.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_types: Vec<String>,
}

impl Devices {
    #[must_use]
    pub fn is_any(&self) -> bool {
        self.lists().iter().all(|(_, list)| list.is_empty())
    }

    /// Returns true if a GPU with this UUID and model may be used.
    #[must_use]
    pub fn allow(&self, uuid: &str, model: &str) -> bool {
        let model = model.to_ascii_lowercase();
        let has = |list: &[String]| list.iter().any(|uuid_of| uuid_of == uuid);
        let names = |list: &[String]| list.iter().any(|part| model.contains(part.as_str()));
        (self.use_uuids.is_empty() || has(&self.use_uuids))
            && !has(&self.not_uuids)
            && (self.use_types.is_empty() || names(&self.use_types))
            && !names(&self.not_types)
    }

    fn lists(&self) -> [(&'static str, &[String]); 4] {
        [
            ("useUuids", &self.use_uuids),
            ("notUuids", &self.not_uuids),
            ("useTypes", &self.use_types),
            ("notTypes", &self.not_types),
        ]
    }
}

impl Request {
    /// Requests whole GPUs, which are not shared.
    #[must_use]
    pub fn whole(count: u32, report_as: Dialect) -> Self {
        Self {
            class: class::GPU.to_owned(),
            memory: Memory::All,
            ..Self::fraction(count, Memory::All, report_as)
        }
    }

    /// Requests a part of each of `count` GPUs.
    #[must_use]
    pub fn fraction(count: u32, memory: Memory, report_as: Dialect) -> Self {
        Self {
            class: class::VGPU.to_owned(),
            count,
            memory,
            cores: 0,
            guaranteed: false,
            priority: None,
            allocation_policy: None,
            devices: Devices::default(),
            instance: None,
            report_as,
        }
    }

    /// Requests whole instances of GPUs in MIG mode.
    #[must_use]
    pub fn instances(count: u32, instance: Instance, report_as: Dialect) -> Self {
        Self {
            class: class::VGPU_MIG.to_owned(),
            instance: Some(instance),
            ..Self::fraction(count, Memory::All, report_as)
        }
    }

    /// Returns true for class `gpu` and for instances: such devices are whole and shared with nobody.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.class == class::GPU || self.instance.is_some()
    }

    /// Returns true if the template depends on the published devices.
    #[must_use]
    pub fn is_by_inventory(&self) -> bool {
        matches!(self.memory, Memory::Millionths(_)) || matches!(self.instance, Some(Instance::AtLeast(_)))
    }

    /// The request's canonical text.
    #[must_use]
    pub fn text(&self) -> String {
        // Cannot fail: it has only texts, lists and numbers.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The name of its template: 128 bits of a hash of its text.
    #[must_use]
    pub fn name(&self) -> String {
        let hash = Sha256::digest(self.text());
        let mut name = NAME_PREFIX.to_owned();
        for byte in &hash[..16] {
            // Writing to a String cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        name
    }

    /// Checks the bounds that a request of [`crate::translate`] has by construction. A request from an annotation may
    /// have been written by anybody.
    ///
    /// # Errors
    /// The field of the request, its value, and its bounds.
    pub fn check(&self) -> Result<(), Problem> {
        let invalid = |field: &str, value: String, advice: &str| Err(Problem::invalid(field, value, advice));
        if self.count == 0 || self.count > COUNT_MAX {
            return invalid(
                "count",
                self.count.to_string(),
                "must be from 1 to 32, the most GPUs of a claim",
            );
        }
        if self.cores > CORES_MAX {
            return invalid("cores", self.cores.to_string(), "must be from 0 to 100");
        }
        if self.class.is_empty() || self.class.len() > 253 {
            return invalid("class", self.class.clone(), "must be the name of a DeviceClass");
        }
        if self.is_whole() && (self.memory != Memory::All || self.cores > 0) {
            return invalid(
                "class",
                self.class.clone(),
                "gives whole devices: memory must be all, and cores 0",
            );
        }
        if self.guaranteed && self.cores == 0 {
            return invalid(
                "guaranteed",
                "true".into(),
                "caps the share at its cores, which must be at least 1",
            );
        }
        if self.instance.is_some() != (self.class == class::VGPU_MIG) {
            return invalid(
                "class",
                self.class.clone(),
                "and instance go together: class vgpu-mig gives instances",
            );
        }
        match &self.instance {
            Some(Instance::Profile(profile)) if !is_profile(profile) => {
                return invalid(
                    "instance.profile",
                    profile.clone(),
                    "must be a profile, for example 1g.10gb",
                );
            }
            Some(Instance::AtLeast(bytes)) if !is_memory(*bytes) => {
                return invalid(
                    "instance.atLeast",
                    bytes.to_string(),
                    "must be whole MiB from 64Mi to 10Ti",
                );
            }
            _ => {}
        }
        match self.memory {
            Memory::All => {}
            Memory::Bytes(bytes) if is_memory(bytes) => {}
            Memory::Bytes(bytes) => return invalid("memory", bytes.to_string(), "must be whole MiB from 64Mi to 10Ti"),
            Memory::Millionths(part) if (1..MILLION).contains(&part) => {}
            Memory::Millionths(part) => {
                return invalid(
                    "memory",
                    part.to_string(),
                    "must be above 0 and below 1000000 millionths",
                );
            }
        }
        for (name, list) in self.devices.lists() {
            let field = format!("devices.{name}");
            if list.len() > LIST_MAX {
                return invalid(&field, format!("{} items", list.len()), "must have at most 128 items");
            }
            if cel_bytes(list) > LIST_BYTES_MAX {
                return invalid(&field, format!("{} items", list.len()), "is too long for a selector");
            }
            if let Some(item) = list.iter().find(|item| item.is_empty() || item.len() > ITEM_MAX) {
                return invalid(&field, item.clone(), "each item must have 1 to 64 bytes");
            }
        }
        Ok(())
    }
}

/// The length of a list in a selector, including separators.
pub(crate) fn cel_bytes(list: &[String]) -> usize {
    list.iter().map(|item| literal(item).len() + ", ".len()).sum()
}

fn is_memory(bytes: u64) -> bool {
    (MEMORY_MIN..=MEMORY_MAX).contains(&bytes) && bytes.is_multiple_of(MEMORY_STEP)
}

fn is_zero(cores: &u32) -> bool {
    *cores == 0
}

//! `VgpuConfig`, the opaque parameters that a DeviceClass or a claim may have for our driver.
//!
//! ```yaml
//! apiVersion: dra.vgpu/v1alpha1
//! kind: VgpuConfig
//! computePolicy: Balanced                            # Guaranteed | Balanced | Unlimited
//! priority: Low                                      # Low | High
//! memoryPolicy: {type: Hard}                         # or {type: Oversubscribe, hostMemory: 10Gi}
//! memoryEnforcement: Prefer                          # Prefer | Require
//! allocationPolicy: binpack                          # spread | numa | pcie | nvlink | whole-gpus | first-fit
//! sharing: Shared                                    # Shared | Exclusive
//! reportAs: hami                                     # koordinator | volcano | volcano-vgpu | gpu-manager | kai
//! driverCapabilities: [compute, utility]             # video, graphics
//! ```
//!
//! Every field is optional. [`parse`] refuses unknown fields and values, because a misspelt policy that is ignored
//! would be a limit that is not enforced. [`merge`] combines the class's fields with the claim's, which may only be
//! stricter. [`Effective::check`] compares the result with what was allocated.

mod capabilities;
mod error;
mod merge;
mod parse;
mod words;

pub use capabilities::{Capabilities, Capability};
pub use error::ConfigError;
pub use merge::{Effective, Entry, Grant, merge};
pub use parse::{parse, parse_slice};
pub(crate) use words::Words;

/// One set of opaque parameters; a field that was not given is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VgpuConfig {
    pub compute_policy: Option<ComputePolicy>,
    pub priority: Option<Priority>,
    pub memory_policy: Option<MemoryPolicy>,
    pub memory_enforcement: Option<MemoryEnforcement>,
    pub allocation_policy: Option<AllocationPolicy>,
    pub sharing: Option<Sharing>,
    pub report_as: Option<Dialect>,
    pub driver_capabilities: Option<Capabilities>,
}

/// How `cores` bound the time that a share gets. Ordered from tight to loose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ComputePolicy {
    /// Never more than `cores`.
    Guaranteed,
    /// At least `cores`; idle time is shared.
    #[default]
    Balanced,
    /// No bound. Needs a class that grants it.
    Unlimited,
}

/// Which share goes first if shares compete. Ordered from tight to loose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    #[default]
    Low,
    /// Needs a class that grants it.
    High,
}

/// What happens when a share's device memory is used up. Ordered from tight to loose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryPolicy {
    /// Out of memory.
    #[default]
    Hard,
    /// Up to so many bytes of host memory. Needs a class that grants at least as many.
    Oversubscribe { host_memory: u64 },
}

/// How a container starts where the driver cannot limit its memory: with the library's limit alone, or not at all.
/// Ordered from loose to tight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryEnforcement {
    /// The driver limits where it can.
    #[default]
    Prefer,
    /// No container starts without the driver's limit.
    Require,
}

impl MemoryEnforcement {
    /// Returns true if it is the value of a share whose configs do not name one.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How vgpu-controller chooses among the devices that fit. Without effect where kube-scheduler allocates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum AllocationPolicy {
    /// The device with least memory left, then least cores, then by name; across nodes the same.
    #[default]
    Binpack,
    /// The node with most memory left, and there the device with most.
    Spread,
    /// All devices of a pod on one NUMA node, else all devices of each claim, else on as few NUMA nodes as possible.
    Numa,
    /// Like `Numa`, with PCIe roots.
    Pcie,
    /// Like `Numa`, with GPUs that reach each other over NVLink.
    Nvlink,
    /// Devices in use before unused ones, and nodes with few unused ones before nodes with many.
    WholeGpus,
    /// Kubernetes' own choice.
    FirstFit,
}

/// A name that is not a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("policy {0:?} is unknown; use one of {known}", known = AllocationPolicy::ALL.map(AllocationPolicy::name).join(", "))]
pub struct UnknownPolicy(String);

impl AllocationPolicy {
    pub const ALL: [Self; 7] = [
        Self::Binpack,
        Self::Spread,
        Self::Numa,
        Self::Pcie,
        Self::Nvlink,
        Self::WholeGpus,
        Self::FirstFit,
    ];

    /// The name that configs and flags use.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.word()
    }
}

impl std::str::FromStr for AllocationPolicy {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        let found = Self::ALL.into_iter().find(|policy| policy.name() == name);
        found.ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

/// Whether the GPU is shared. Ordered from loose to tight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sharing {
    #[default]
    Shared,
    /// The whole GPU, with all of its memory.
    Exclusive,
}

/// An earlier system of GPU sharing, by the resource names and annotations in which its pods ask. As `reportAs`: whose
/// variables the containers of a claim get, so that programs written for that system find what they expect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dialect {
    /// HAMi and UK8S.
    Hami,
    Koordinator,
    /// Volcano's GPU share and GPU number.
    Volcano,
    VolcanoVgpu,
    /// gpu-manager, gpu-admission and GPUSharing.
    GpuManager,
    Kai,
}

/// A name that is not a dialect.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("dialect {} is unknown; use one of {known}", vgpu_quantity::quoted(.0), known = Dialect::ALL.map(Dialect::name).join(", "))]
pub struct UnknownDialect(String);

impl Dialect {
    pub const ALL: [Self; 6] = [
        Self::Hami,
        Self::Koordinator,
        Self::Volcano,
        Self::VolcanoVgpu,
        Self::GpuManager,
        Self::Kai,
    ];

    /// The name that configs, chart values and flags use.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.word()
    }
}

impl std::str::FromStr for Dialect {
    type Err = UnknownDialect;

    fn from_str(name: &str) -> Result<Self, UnknownDialect> {
        let found = Self::ALL.into_iter().find(|dialect| dialect.name() == name);
        found.ok_or_else(|| UnknownDialect(name.to_owned()))
    }
}

impl Words for ComputePolicy {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("Guaranteed", Self::Guaranteed),
        ("Balanced", Self::Balanced),
        ("Unlimited", Self::Unlimited),
    ];
}

impl Words for Priority {
    const WORDS: &'static [(&'static str, Self)] = &[("Low", Self::Low), ("High", Self::High)];
}

impl Words for AllocationPolicy {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("binpack", Self::Binpack),
        ("spread", Self::Spread),
        ("numa", Self::Numa),
        ("pcie", Self::Pcie),
        ("nvlink", Self::Nvlink),
        ("whole-gpus", Self::WholeGpus),
        ("first-fit", Self::FirstFit),
    ];
}

impl Words for MemoryEnforcement {
    const WORDS: &'static [(&'static str, Self)] = &[("Prefer", Self::Prefer), ("Require", Self::Require)];
}

impl Words for Sharing {
    const WORDS: &'static [(&'static str, Self)] = &[("Shared", Self::Shared), ("Exclusive", Self::Exclusive)];
}

impl Words for Dialect {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("hami", Self::Hami),
        ("koordinator", Self::Koordinator),
        ("volcano", Self::Volcano),
        ("volcano-vgpu", Self::VolcanoVgpu),
        ("gpu-manager", Self::GpuManager),
        ("kai", Self::Kai),
    ];
}

macro_rules! display_words {
    ($($name:ty),*) => {$(
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.word())
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let written = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                let found = Self::WORDS.iter().find(|(word, _)| *word == written);
                let words = || Self::WORDS.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
                found.map(|(_, value)| *value).ok_or_else(|| {
                    serde::de::Error::custom(format!(
                        "{} is not allowed; use one of {}",
                        vgpu_quantity::quoted(&written),
                        words()
                    ))
                })
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }
    )*};
}
display_words!(
    ComputePolicy,
    Priority,
    MemoryEnforcement,
    AllocationPolicy,
    Sharing,
    Dialect,
    Capability
);

impl std::fmt::Display for MemoryPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Hard => f.write_str("Hard"),
            Self::Oversubscribe { host_memory } => {
                write!(
                    f,
                    "Oversubscribe with hostMemory {}",
                    vgpu_quantity::format_bytes(*host_memory)
                )
            }
        }
    }
}

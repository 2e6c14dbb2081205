//! How much memory of a GPU shares may have. NVML has no figure where a GPU uses the system's memory (GB10, Thor). What
//! part of that is for shares only the operator knows, so it is configured, by product. Pure.
//!
//! How it fails:
//! - No size is configured for a product that needs one: the GPU is left out, with what to set.
//! - A size above NVML's figure is ignored: shares would be promised memory that does not exist. If NVML had no figure when
//!   the GPU was first seen, the size holds until the plugin starts again: published sizes do not change.
//! - A size above what the system can spare, where NVML has no figure, is not noticed: allocations then fail, or the kernel
//!   ends processes.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where the size of a GPU's memory comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum MemorySource {
    #[default]
    Nvml,
    /// A smaller size than NVML's is configured: the rest is left to the system. A share of all of it is a part of the GPU.
    Lowered,
    /// NVML has no figure of it. It cannot say how much is used either, so nothing outside the library checks limits.
    Configured,
}

/// Configured sizes in bytes, by product name as nvidia-smi prints it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MemorySizes(pub BTreeMap<String, u64>);

// === impl MemorySource ===

impl MemorySource {
    /// The value of the device's attribute.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nvml | Self::Lowered => "nvml",
            Self::Configured => "configured",
        }
    }

    /// Records leave out what is usual.
    pub(super) fn is_nvml(&self) -> bool {
        *self == Self::Nvml
    }
}

// === impl MemorySizes ===

impl MemorySizes {
    /// Returns the memory for shares of a product. `by_nvml`: NVML's figure, if it has one. None: there is neither a figure
    /// nor a configured size.
    #[must_use]
    pub fn of(&self, product: &str, by_nvml: Option<u64>) -> Option<(u64, MemorySource)> {
        let configured = self.0.get(product).copied();
        match (configured, by_nvml) {
            (Some(configured), None) => Some((configured, MemorySource::Configured)),
            (Some(configured), Some(by_nvml)) if configured < by_nvml => Some((configured, MemorySource::Lowered)),
            (_, Some(by_nvml)) => Some((by_nvml, MemorySource::Nvml)),
            (None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configured_size_is_taken_where_nvml_has_none_or_more() {
        use MemorySource::{Configured, Lowered, Nvml};
        let sizes = MemorySizes(BTreeMap::from([("NVIDIA GB10".to_owned(), 96)]));
        for (product, by_nvml, expected) in [
            ("NVIDIA GB10", None, Some((96, Configured))),
            ("NVIDIA GB10", Some(120), Some((96, Lowered))),
            ("NVIDIA GB10", Some(96), Some((96, Nvml))),
            ("NVIDIA GB10", Some(80), Some((80, Nvml))),
            ("NVIDIA H100", Some(80), Some((80, Nvml))),
            ("NVIDIA Thor", None, None),
            ("nvidia gb10", None, None),
        ] {
            assert_eq!(sizes.of(product, by_nvml), expected, "{product} {by_nvml:?}");
        }
    }
}

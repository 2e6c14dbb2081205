//! ResourceSlices with their version.

use serde::Deserialize;
use serde::de::IgnoredAny;
use vgpu_allocator::model::{Metadata, ResourceSlice, SliceSpec};

use super::Version;
use super::meta::Object;

/// A slice and its version, by which a watch that lags cannot replace a newer read.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(from = "Object<SliceSpec, IgnoredAny>")]
pub struct Slice {
    pub version: Version,
    /// The allocator's model of it.
    pub facts: ResourceSlice,
}

impl From<Object<SliceSpec, IgnoredAny>> for Slice {
    fn from(raw: Object<SliceSpec, IgnoredAny>) -> Self {
        Self {
            version: raw.metadata.resource_version,
            facts: ResourceSlice {
                metadata: Metadata {
                    name: raw.metadata.name,
                    uid: raw.metadata.uid,
                    ..Metadata::default()
                },
                spec: raw.spec,
            },
        }
    }
}

impl Slice {
    #[must_use]
    pub fn name(&self) -> &str {
        &self.facts.metadata.name
    }
}

//! Slices.

use serde::Deserialize;
use vgpu_allocator::model::{Metadata, ResourceSlice, SliceSpec};

use super::Version;
use super::meta::{Meta, or_default};

/// A slice and its version: a watch that lags must not bring back what a read has overtaken.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(from = "Raw")]
pub struct Slice {
    pub version: Version,
    /// As the allocator knows it.
    pub facts: ResourceSlice,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Raw {
    metadata: Meta,
    #[serde(deserialize_with = "or_default")]
    spec: SliceSpec,
}

impl From<Raw> for Slice {
    fn from(raw: Raw) -> Self {
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

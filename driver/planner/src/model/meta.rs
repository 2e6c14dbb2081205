//! `metadata`, and versions of objects.

use std::collections::BTreeMap;

use litemap::LiteMap;
use serde::{Deserialize, Deserializer};
use vgpu_allocator::model::{fitted, or_default};

use crate::time::Time;

/// A `resourceVersion`. Kubernetes counts them over all objects of a kind, and a larger one is newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version(pub u64);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("metadata.resourceVersion {0:?} is not a number; versions that cannot be compared cannot be fenced")]
pub struct VersionError(String);

impl std::str::FromStr for Version {
    type Err = VersionError;

    fn from_str(text: &str) -> Result<Self, VersionError> {
        text.parse().map(Self).map_err(|_| VersionError(text.to_owned()))
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    #[serde(deserialize_with = "or_default")]
    pub namespace: String,
    #[serde(deserialize_with = "or_default")]
    pub uid: String,
    #[serde(deserialize_with = "version")]
    pub resource_version: Version,
    #[serde(deserialize_with = "time")]
    pub creation_timestamp: Option<Time>,
    /// May be any text; only its presence matters.
    pub deletion_timestamp: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub labels: LiteMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "fitted")]
    pub finalizers: Vec<String>,
    #[serde(deserialize_with = "fitted")]
    pub owner_references: Vec<Owner>,
}

/// An object as the API server writes it.
#[derive(Debug, Default, Deserialize)]
#[serde(default, bound = "S: Deserialize<'de> + Default, T: Deserialize<'de> + Default")]
pub(super) struct Object<S, T> {
    pub(super) metadata: Meta,
    #[serde(deserialize_with = "or_default")]
    pub(super) spec: S,
    #[serde(deserialize_with = "or_default")]
    pub(super) status: T,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Owner {
    pub kind: String,
    pub uid: String,
}

impl Meta {
    /// `namespace/name`, or the name alone for an object without a namespace.
    #[must_use]
    pub fn key(&self) -> String {
        match self.namespace.as_str() {
            "" => self.name.clone(),
            namespace => format!("{namespace}/{}", self.name),
        }
    }
}

fn version<'de, D: Deserializer<'de>>(d: D) -> Result<Version, D::Error> {
    let text = Option::<String>::deserialize(d)?;
    text.map_or(Ok(Version::default()), |text| {
        text.parse().map_err(serde::de::Error::custom)
    })
}

fn time<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Time>, D::Error> {
    Ok(Option::<String>::deserialize(d)?.and_then(|text| Time::parse(&text)))
}

//! What a device says of itself.

use serde::{Deserialize, Deserializer};

/// One attribute's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attribute {
    Bool(bool),
    Int(i64),
    String(String),
    Version(String),
    Bools(Vec<bool>),
    Ints(Vec<i64>),
    Strings(Vec<String>),
    Versions(Vec<String>),
    /// A kind of value that this version does not know.
    Unknown,
}

#[derive(Deserialize)]
struct Raw {
    int: Option<i64>,
    bool: Option<bool>,
    string: Option<String>,
    version: Option<String>,
    ints: Option<Vec<i64>>,
    bools: Option<Vec<bool>>,
    strings: Option<Vec<String>>,
    versions: Option<Vec<String>>,
}

impl<'de> Deserialize<'de> for Attribute {
    /// Of several values, which the API server refuses, lists come first and then int, bool, string, version.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Raw::deserialize(deserializer)?;
        Ok(None
            .or(raw.ints.map(Self::Ints))
            .or(raw.bools.map(Self::Bools))
            .or(raw.strings.map(Self::Strings))
            .or(raw.versions.map(Self::Versions))
            .or(raw.int.map(Self::Int))
            .or(raw.bool.map(Self::Bool))
            .or(raw.string.map(Self::String))
            .or(raw.version.map(Self::Version))
            .unwrap_or(Self::Unknown))
    }
}

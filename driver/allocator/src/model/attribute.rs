//! Attributes of devices.

use serde::{Deserialize, Deserializer};
use vgpu_cel::Attribute as Value;

/// One attribute's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attribute {
    Known(Value),
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
    /// If there are several values, which the API server refuses, lists go first, then int, bool, string, version.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Raw::deserialize(deserializer)?;
        let value = None
            .or(raw.ints.map(Value::Ints))
            .or(raw.bools.map(Value::Bools))
            .or(raw.strings.map(Value::Strings))
            .or(raw.versions.map(Value::Versions))
            .or(raw.int.map(Value::Int))
            .or(raw.bool.map(Value::Bool))
            .or(raw.string.map(Value::String))
            .or(raw.version.map(Value::Version));
        Ok(value.map_or(Self::Unknown, Self::Known))
    }
}

impl Attribute {
    /// The text of a string attribute.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Known(Value::String(text)) => Some(text),
            _ => None,
        }
    }
}

//! CDI versions, and the lowest one that a spec needs. Runtimes refuse versions that are newer than they are
//! (containerd 1.7.24 stops at 0.8.0, podman 4.3.1 at 0.5.0), so a spec declares the lowest version.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::spec::{ContainerEdits, Spec};

/// A released version of the specification, from the oldest that runtimes accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    V0_3_0,
    V0_4_0,
    V0_5_0,
    V0_6_0,
    V0_7_0,
    V0_8_0,
    V1_0_0,
    V1_1_0,
}

const NAMES: [(Version, &str); 8] = [
    (Version::V0_3_0, "0.3.0"),
    (Version::V0_4_0, "0.4.0"),
    (Version::V0_5_0, "0.5.0"),
    (Version::V0_6_0, "0.6.0"),
    (Version::V0_7_0, "0.7.0"),
    (Version::V0_8_0, "0.8.0"),
    (Version::V1_0_0, "1.0.0"),
    (Version::V1_1_0, "1.1.0"),
];

impl Version {
    pub fn as_str(self) -> &'static str {
        NAMES[self as usize].1
    }

    /// The lowest version whose readers understand every field that `spec` uses.
    pub fn required(spec: &Spec) -> Self {
        let mut version = Self::V0_3_0;
        let mut need = |wanted: Self, used: bool| {
            if used {
                version = version.max(wanted);
            }
        };
        need(
            Self::V0_6_0,
            !spec.annotations.is_empty() || spec.kind.class().contains('.'),
        );
        for device in &spec.devices {
            need(
                Self::V0_5_0,
                !device.name.starts_with(|c: char| c.is_ascii_alphabetic()),
            );
            need(Self::V0_6_0, !device.annotations.is_empty());
        }
        for edits in spec.all_edits() {
            need(Self::of_edits(edits), true);
        }
        version
    }

    fn of_edits(edits: &ContainerEdits) -> Self {
        let rdt = edits.intel_rdt.as_ref();
        if !edits.net_devices.is_empty()
            || rdt.is_some_and(|rdt| !rdt.schemata.is_empty() || rdt.enable_monitoring.is_some())
        {
            Self::V1_1_0
        } else if rdt.is_some() || !edits.additional_gids.is_empty() {
            Self::V0_7_0
        } else if edits.device_nodes.iter().any(|node| node.host_path.is_some()) {
            Self::V0_5_0
        } else if edits.mounts.iter().any(|mount| mount.r#type.is_some()) {
            Self::V0_4_0
        } else {
            Self::V0_3_0
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        NAMES
            .iter()
            .find(|(_, name)| *name == text)
            .map(|(version, _)| *version)
            .ok_or_else(|| {
                de::Error::custom(format!(
                    "cdiVersion {text:?} is not a version from 0.3.0 to 1.1.0; use one of those"
                ))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_enum() {
        for (index, (version, name)) in NAMES.iter().enumerate() {
            assert_eq!(*version as usize, index, "{name}");
        }
    }
}

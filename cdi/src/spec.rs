//! The types of a CDI document. Deserializing is strict: an unknown or repeated field, a `null`, and another
//! spelling of a field's case are errors, because some runtime refuses the whole file for each of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    name::Kind,
    strict::{distinct_keys, object, objects, present, present_object, present_word, word},
};

/// One CDI spec file, without its version, which follows from the fields in use ([`Version::required`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    pub kind: Kind,
    pub annotations: BTreeMap<String, String>,
    /// At least one; their names are distinct.
    pub devices: Vec<Device>,
    /// Applied once to a container that gets any device of this spec.
    pub container_edits: ContainerEdits,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Device {
    pub name: String,
    #[serde(
        default,
        deserialize_with = "distinct_keys",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub annotations: BTreeMap<String, String>,
    /// Not empty: runtimes refuse a device without edits.
    #[serde(deserialize_with = "object")]
    pub container_edits: ContainerEdits,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ContainerEdits {
    /// `NAME=value`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    #[serde(default, deserialize_with = "objects", skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    /// Needs 1.1.0.
    #[serde(default, deserialize_with = "objects", skip_serializing_if = "Vec::is_empty")]
    pub net_devices: Vec<NetDevice>,
    #[serde(default, deserialize_with = "objects", skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    #[serde(default, deserialize_with = "objects", skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    /// Needs 0.7.0. Group 0 is refused, because runtimes silently ignore it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
    /// Needs 0.7.0.
    #[serde(
        default,
        deserialize_with = "present_object",
        skip_serializing_if = "Option::is_none"
    )]
    pub intel_rdt: Option<IntelRdt>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DeviceNode {
    /// Path in the container.
    pub path: String,
    /// Path on the node, if it differs. Needs 0.5.0.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
    #[serde(
        default,
        rename = "type",
        deserialize_with = "present_word",
        skip_serializing_if = "Option::is_none"
    )]
    pub r#type: Option<DeviceType>,
    /// Both numbers or neither; without them the runtime reads those of the node's device.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub major: Option<i64>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub minor: Option<i64>,
    /// Always written: without it the device node would have mode 0666 in the container.
    pub file_mode: u32,
    /// Some of `rwm`, for the device cgroup.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub permissions: Option<String>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceType {
    #[serde(rename = "b")]
    Block,
    #[serde(rename = "c")]
    Char,
    #[serde(rename = "u")]
    UnbufferedChar,
    #[serde(rename = "p")]
    Fifo,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetDevice {
    pub host_interface_name: String,
    /// Name in the container.
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mount {
    pub host_path: String,
    pub container_path: String,
    /// Needs 0.4.0. A bind mount is requested by its options and needs no type.
    #[serde(
        default,
        rename = "type",
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub r#type: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hook {
    #[serde(deserialize_with = "word")]
    pub hook_name: HookName,
    /// Path on the node, from which hooks run. If its interpreter is missing, the error is a misleading
    /// ENOENT.
    pub path: String,
    /// The whole argument vector, starting with the program's name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Seconds.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub timeout: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum HookName {
    Prestart,
    CreateRuntime,
    CreateContainer,
    StartContainer,
    Poststart,
    Poststop,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IntelRdt {
    #[serde(
        default,
        rename = "closID",
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub clos_id: Option<String>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub l3_cache_schema: Option<String>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub mem_bw_schema: Option<String>,
    /// Needs 1.1.0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schemata: Vec<String>,
    /// Needs 1.1.0.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub enable_monitoring: Option<bool>,
    /// Removed in 1.1.0.
    #[serde(
        default,
        rename = "enableCMT",
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub enable_cmt: Option<bool>,
    /// Removed in 1.1.0.
    #[serde(
        default,
        rename = "enableMBM",
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub enable_mbm: Option<bool>,
}

impl ContainerEdits {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Spec {
    /// A spec without devices yet.
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            annotations: BTreeMap::new(),
            devices: Vec::new(),
            container_edits: ContainerEdits::default(),
        }
    }

    pub(crate) fn all_edits(&self) -> impl Iterator<Item = &ContainerEdits> {
        self.devices
            .iter()
            .map(|device| &device.container_edits)
            .chain([&self.container_edits])
    }
}

impl IntelRdt {
    pub(crate) fn uses_fields_gone_in_1_1(&self) -> bool {
        self.enable_cmt.is_some() || self.enable_mbm.is_some()
    }
}

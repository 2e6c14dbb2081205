//! The types of a CDI document.

use serde::{Serialize, Serializer};

use crate::name::Kind;

/// The `cdiVersion` of all specs: the lowest one with every field and name in use (device names that start with a
/// digit, `hostPath` of device nodes). Runtimes refuse versions newer than they know; podman 4.3.1 knows none after
/// this one.
pub const VERSION: &str = "0.5.0";

/// One CDI spec file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    #[serde(serialize_with = "as_text")]
    pub kind: Kind,
    /// At least one; their names are distinct.
    pub devices: Vec<Device>,
    /// Applied once to a container that gets any device of this spec.
    #[serde(skip_serializing_if = "ContainerEdits::is_empty")]
    pub container_edits: ContainerEdits,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    pub name: String,
    /// Not empty: runtimes refuse a device without edits.
    pub container_edits: ContainerEdits,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerEdits {
    /// `NAME=value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub device_nodes: Vec<DeviceNode>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
}

/// The runtime reads type and number from the node's device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNode {
    /// Path in the container.
    pub path: String,
    /// Path on the node, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_path: Option<String>,
    /// Always written: without it the device node would have mode 0666 in the container.
    pub file_mode: u32,
    /// With it, the container runtime makes the node also if the machine has none at `host_path` or `path`.
    #[serde(flatten)]
    pub number: Option<DeviceNumber>,
}

/// The kind of a device, and its numbers in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type")]
pub enum DeviceNumber {
    #[serde(rename = "c")]
    Character { major: u32, minor: u32 },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    pub host_path: String,
    pub container_path: String,
    /// A bind mount is requested by its options and needs no type.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub r#type: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    pub hook_name: HookName,
    /// Path on the node, from which hooks run. If its interpreter is missing, the error is a misleading
    /// ENOENT.
    pub path: String,
    /// The whole argument vector, starting with the program's name.
    pub args: Vec<String>,
    /// Seconds.
    pub timeout: u32,
}

/// When the runtime runs a hook. At both stages the container exists and none of its programs has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum HookName {
    /// In the runtime's namespaces. The state's PID is one of the node.
    CreateRuntime,
    /// In the container's namespaces, after [`CreateRuntime`](Self::CreateRuntime).
    CreateContainer,
}

fn as_text<S: Serializer>(kind: &Kind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(kind)
}

impl ContainerEdits {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Spec {
    /// Returns a spec without devices.
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            devices: Vec::new(),
            container_edits: ContainerEdits::default(),
        }
    }
}

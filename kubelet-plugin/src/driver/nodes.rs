//! The device nodes of a GPU.

use super::{Error, Root, parts};
use crate::publish::inventory::Gpu;
use std::fs;
use std::path::Path;
use vgpu_api::config::Capabilities;

/// A device node of the node, and its path in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFile {
    pub host: String,
    pub container: String,
}

impl DeviceFile {
    /// Returns a node that has the same path in the container.
    #[must_use]
    pub fn same(path: impl Into<String>) -> Self {
        let path = path.into();
        Self {
            container: path.clone(),
            host: path,
        }
    }
}

// === impl Root ===

impl Root {
    /// The nodes of a GPU for a container with these capabilities; none for a software GPU.
    ///
    /// # Errors
    /// The GPU's own node is missing: a container would start without its GPU.
    pub fn gpu_nodes(&self, gpu: &Gpu, capabilities: Capabilities) -> Result<Vec<DeviceFile>, Error> {
        if self.soft_gpu_state.is_some() {
            return Ok(Vec::new());
        }
        let node = gpu.minor.map(|minor| format!("/dev/nvidia{minor}"));
        let node = node.ok_or_else(|| Error::NoDeviceNode("/dev/nvidiaN of a GPU without minor number".into()))?;
        if !self.has_node(&node) {
            return Err(Error::NoDeviceNode(node));
        }
        let mut nodes = vec![DeviceFile::same(node)];
        if capabilities.meets(parts::GRAPHICS) {
            nodes.extend(gpu.pci_bus_id.iter().flat_map(|bus| self.drm_nodes(bus)));
        }
        Ok(nodes)
    }

    /// The device nodes of the kernel's graphics interface. Programs also look for a GPU in /dev/dri/by-path, where udev
    /// makes a link to each. CDI has no links, so each link becomes a second device node.
    fn drm_nodes(&self, bus_id: &str) -> Vec<DeviceFile> {
        let folder = self.sys.join("bus/pci/devices").join(bus_id).join("drm");
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        let mut nodes = Vec::new();
        for name in names {
            let Some(kind) = drm_kind(&name) else { continue };
            let path = format!("/dev/dri/{name}");
            if self.has_node(&path) {
                nodes.push(DeviceFile::same(path.clone()));
                nodes.push(DeviceFile {
                    host: path,
                    container: format!("/dev/dri/by-path/pci-{bus_id}-{kind}"),
                });
            }
        }
        nodes
    }

    /// Returns true if the root or this process's /dev has this node: a driver container's root has no /dev.
    pub(super) fn has_node(&self, node: &str) -> bool {
        let inside = self.here.join(node.trim_start_matches('/'));
        inside.exists() || Path::new(node).exists()
    }
}

/// `card` of `card0`, `render` of `renderD128`; None of a connector such as `card0-DP-1`.
fn drm_kind(name: &str) -> Option<&'static str> {
    [("card", "card"), ("renderD", "render")]
        .into_iter()
        .find_map(|(prefix, kind)| {
            let number = name.strip_prefix(prefix)?;
            let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then_some(kind)
        })
}

//! Reads a GPU's NVLinks through NVML. A GPU or driver without them answers NotSupported, which is no error.

#![allow(unsafe_code)] // nvml-wrapper has no function for the fabric.

use super::nvlink::{Fabric, Links};
use super::raw::zeroed;
use super::sysfs::kernel_spelling;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

/// No GPU has more links.
const MOST_LINKS: u32 = 36;
/// Version 2 of nvmlGpuFabricInfo, which has 36 bytes.
const FABRIC_INFO: u32 = 2 << 24 | 36;
/// NVML_GPU_FABRIC_STATE_COMPLETED: the GPU has joined the fabric.
const COMPLETED: u8 = 3;

pub(super) fn links(nvml: &Nvml, device: &Device<'_>) -> Links {
    let mut links = Links {
        fabric: fabric(nvml, device),
        ..Links::default()
    };
    for number in 0..MOST_LINKS {
        let link = device.link_wrapper_for(number);
        match link.is_active() {
            Ok(true) => {}
            Ok(false) => continue,
            // There are no more links.
            Err(NvmlError::NotSupported | NvmlError::InvalidArg) => break,
            Err(_) => continue,
        }
        let address = link.remote_pci_info().ok().and_then(|pci| kernel_spelling(&pci.bus_id));
        match address.filter(|address| address != "0000:00:00.0") {
            Some(address) => drop(links.peers.insert(address)),
            None => links.has_nameless = true,
        }
    }
    links
}

fn fabric(nvml: &Nvml, device: &Device<'_>) -> Option<Fabric> {
    let ask = nvml.lib().nvmlDeviceGetGpuFabricInfoV.as_ref().ok()?;
    // SAFETY: NVML's structure has numbers alone.
    let mut info = unsafe { zeroed(ask) };
    info.version = FABRIC_INFO;
    // SAFETY: the handle is the device's, and the structure has at least the size that its version says.
    let answer = unsafe { ask(device.handle(), &raw mut info) };
    let has_joined = answer == 0 && info.status == 0 && info.state == COMPLETED;
    has_joined.then_some(Fabric {
        cluster: info.clusterUuid,
        clique: info.cliqueId,
    })
}

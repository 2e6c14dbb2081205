//! NVLinks: what the profile says of them.

use soft_gpu::c::Code;
use soft_gpu::profile::Pci;

use crate::codes::{INVALID_ARGUMENT, NOT_SUPPORTED, Out, VERSION_MISMATCH};
use crate::device::{PciInfo, info};
use crate::library::device;

/// nvmlGpuFabricInfo_v2_t. Version 3 has one more field at its end.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct FabricInfo {
    version: u32,
    cluster: [u8; 16],
    status: i32,
    clique: u32,
    state: u8,
    health: u32,
}

const _: () = assert!(size_of::<FabricInfo>() == 36);

const VERSIONS: [u32; 2] = [2 << 24 | 36, 3 << 24 | 40];
/// NVML_GPU_FABRIC_STATE_COMPLETED.
const COMPLETED: u8 = 3;
/// NVLink 4, as an H100 has.
const VERSION: u32 = 7;

/// Returns what a link of a GPU leads to.
fn remote(gpu: u64, link: u32) -> Result<Pci, Code> {
    let (state, gpu) = device(gpu)?;
    let links = state.profile().nvlinks_of(gpu);
    if links.is_empty() {
        return Err(NOT_SUPPORTED);
    }
    links.get(link as usize).copied().ok_or(INVALID_ARGUMENT)
}

soft_gpu::api! {
    fn nvmlDeviceGetNvLinkState(gpu: u64, link: u32, out: Out<u32>) {
        remote(gpu, link)?;
        out.set(1)
    }

    fn nvmlDeviceGetNvLinkVersion(gpu: u64, link: u32, out: Out<u32>) {
        remote(gpu, link)?;
        out.set(VERSION)
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu: u64, link: u32, out: Out<PciInfo>) {
        out.set(info(remote(gpu, link)?))
    }

    fn nvmlDeviceGetGpuFabricInfoV(gpu: u64, out: Out<FabricInfo>) {
        let fabric = device(gpu)?.0.profile().fabric.ok_or(NOT_SUPPORTED)?;
        let version = out.get()?.version;
        if !VERSIONS.contains(&version) {
            return Err(VERSION_MISMATCH);
        }
        out.set(FabricInfo {
            version,
            cluster: fabric.cluster,
            status: 0,
            clique: fabric.clique,
            state: COMPLETED,
            health: 0,
        })
    }
}

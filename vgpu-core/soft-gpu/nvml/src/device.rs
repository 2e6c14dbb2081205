//! The devices and their properties.

use soft_gpu::c::{Code, Res};
use soft_gpu::profile::Pci;
use soft_gpu::state::State;

use crate::codes::{INVALID_ARGUMENT, In, NOT_FOUND, Out, Text, VERSION_MISMATCH, text};
use crate::library::{device, either, handle, state};
use crate::sensors::{constant, pair};

/// nvmlPciInfo_t: legacy id, domain, bus, device, device id, subsystem id, id.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PciInfo {
    head: PciHead,
    id: [u8; 32],
}

/// The common fields of its older versions.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct PciHead {
    legacy: [u8; 16],
    numbers: [u32; 5],
}

const _: () = assert!(std::mem::size_of::<PciInfo>() == 68);

/// nvmlUUID_t: its kind says whether it is text or 16 bytes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Uuid {
    version: u32,
    kind: u32,
    value: [u8; 41],
    _padding: [u8; 3],
}
const _: () = assert!(std::mem::size_of::<Uuid>() == 52);

/// An H100's PCI ids: clients look them up in tables of real devices.
const DEVICE_ID: u32 = 0x2330_10de;
const SUBSYSTEM_ID: u32 = 0x16c1_10de;

fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    let length = text.len().min(N - 1);
    bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
    bytes
}

fn pci(gpu: u64) -> Result<PciInfo, Code> {
    let (state, gpu) = device(gpu)?;
    Ok(info(state.pci(gpu)))
}

/// Returns an address as NVML prints it, with a GPU's ids.
pub(crate) fn info(pci: Pci) -> PciInfo {
    let numbers = [
        pci.domain,
        u32::from(pci.bus),
        u32::from(pci.device),
        DEVICE_ID,
        SUBSYSTEM_ID,
    ];
    let tail = format!("{:02X}:{:02X}.0", pci.bus, pci.device);
    let head = PciHead {
        legacy: padded(&format!("{:04X}:{tail}", pci.domain)),
        numbers,
    };
    PciInfo {
        head,
        id: padded(&format!("{:08X}:{tail}", pci.domain)),
    }
}

fn count(out: Out<u32>) -> Res {
    out.set(state()?.gpus().len() as u32)
}

fn by_index(index: u32, out: Out<u64>) -> Res {
    let gpu = state()?.gpus().get(index as usize).copied();
    out.set(handle(gpu.ok_or(INVALID_ARGUMENT)?))
}

fn by_pci(id: Text, out: Out<u64>) -> Res {
    let pci = soft_gpu::profile::parse_pci(&id.get()?).ok_or(INVALID_ARGUMENT)?;
    let gpu = state()?
        .gpu_at(pci)
        .filter(|gpu| state().is_ok_and(|state| state.gpus().contains(gpu)));
    out.set(handle(gpu.ok_or(NOT_FOUND)?))
}

/// The GPUs that this process may open, and their instances.
fn devices(state: &State) -> Vec<usize> {
    let gpus = state.gpus();
    let instances = gpus.iter().flat_map(|gpu| state.instances_of(*gpu));
    let instances: Vec<usize> = instances.collect();
    gpus.into_iter().chain(instances).collect()
}

/// Returns NVML's number of the architecture of a compute capability.
fn architecture((major, minor): (u32, u32)) -> u32 {
    match (major, minor) {
        (3, _) => 2,
        (5, _) => 3,
        (6, _) => 4,
        (7, 0..5) => 5,
        (7, _) => 6,
        (8, 9) => 8,
        (8, _) => 7,
        (9, _) => 9,
        (10.., _) => 10,
        _ => u32::MAX,
    }
}

/// NVML_BRAND_NVIDIA.
const BRAND: u32 = 14;

soft_gpu::api! {
    fn nvmlDeviceGetCount_v2(out: Out<u32>) { count(out) }
    fn nvmlDeviceGetCount(out: Out<u32>) { count(out) }
    fn nvmlDeviceGetHandleByIndex_v2(index: u32, out: Out<u64>) { by_index(index, out) }
    fn nvmlDeviceGetHandleByIndex(index: u32, out: Out<u64>) { by_index(index, out) }
    fn nvmlDeviceGetHandleByPciBusId_v2(id: Text, out: Out<u64>) { by_pci(id, out) }
    fn nvmlDeviceGetHandleByPciBusId(id: Text, out: Out<u64>) { by_pci(id, out) }

    fn nvmlDeviceGetHandleByUUID(uuid: Text, out: Out<u64>) {
        let (state, uuid) = (state()?, uuid.get()?);
        let mut all = devices(state).into_iter();
        let found = all.find(|device| state.uuid_text(*device).eq_ignore_ascii_case(&uuid));
        out.set(handle(found.ok_or(NOT_FOUND)?))
    }

    fn nvmlDeviceGetHandleByUUIDV(uuid: In<Uuid>, out: Out<u64>) {
        let (state, uuid) = (state()?, uuid.get()?);
        if uuid.version != 1 << 24 | size_of::<Uuid>() as u32 {
            return Err(VERSION_MISMATCH);
        }
        let asked = match uuid.kind {
            1 => String::from_utf8_lossy(uuid.value.split(|byte| *byte == 0).next().unwrap_or(&[])).into_owned(),
            2 => uuid.value[..16].iter().map(|byte| format!("{byte:02x}")).collect(),
            _ => return Err(INVALID_ARGUMENT),
        };
        let named = |device: &usize| {
            let text = state.uuid_text(*device);
            let digits = text.split_once('-').map_or("", |(_, digits)| digits).replace('-', "");
            asked.eq_ignore_ascii_case(if uuid.kind == 1 { &text } else { &digits })
        };
        out.set(handle(devices(state).into_iter().find(named).ok_or(NOT_FOUND)?))
    }

    /// Of an instance: the index by which its GPU lists it.
    fn nvmlDeviceGetIndex(gpu: u64, out: Out<u32>) {
        let (state, device) = either(gpu)?;
        match state.instance(device) {
            Some(instance) => out.set(instance.index),
            None => out.set(state.gpus().iter().position(|gpu| *gpu == device).ok_or(NOT_FOUND)? as u32),
        }
    }

    fn nvmlDeviceGetMinorNumber(gpu: u64, out: Out<u32>) { out.set(device(gpu)?.1 as u32) }

    fn nvmlDeviceGetName(gpu: u64, out: Out<u8>, room: u32) {
        let (state, device) = either(gpu)?;
        text(out, room, &state.name_of(device))
    }

    fn nvmlDeviceGetUUID(gpu: u64, out: Out<u8>, room: u32) {
        let (state, device) = either(gpu)?;
        text(out, room, &state.uuid_text(device))
    }

    fn nvmlDeviceGetBrand(gpu: u64, out: Out<u32>) { constant(gpu, out, BRAND) }

    fn nvmlDeviceGetArchitecture(gpu: u64, out: Out<u32>) {
        out.set(architecture(device(gpu)?.0.profile().compute_capability))
    }

    fn nvmlDeviceGetCudaComputeCapability(gpu: u64, major: Out<i32>, minor: Out<i32>) {
        let (high, low) = device(gpu)?.0.profile().compute_capability;
        pair(gpu, major, minor, (high as i32, low as i32))
    }

    fn nvmlDeviceGetPciInfo_v3(gpu: u64, out: Out<PciInfo>) {
        out.set(pci(gpu)?)
    }

    fn nvmlDeviceGetPciInfo_v2(gpu: u64, out: Out<PciHead>) {
        out.set(pci(gpu)?.head)
    }

    fn nvmlDeviceGetPciInfo(gpu: u64, out: Out<PciHead>) {
        out.set(pci(gpu)?.head)
    }

    fn nvmlDeviceGetBoardId(gpu: u64, out: Out<u32>) {
        let (state, gpu) = device(gpu)?;
        let pci = state.pci(gpu);
        out.set(pci.domain << 16 | u32::from(pci.bus) << 8 | u32::from(pci.device))
    }

    fn nvmlDeviceGetMultiGpuBoard(gpu: u64, out: Out<u32>) { constant(gpu, out, 0) }

    fn nvmlDeviceOnSameBoard(one: u64, other: u64, out: Out<i32>) {
        out.set(i32::from(device(one)?.1 == device(other)?.1))
    }

    fn nvmlDeviceGetNumGpuCores(gpu: u64, out: Out<u32>) {
        out.set(device(gpu)?.0.profile().sms * 128)
    }

    fn nvmlDeviceGetVbiosVersion(gpu: u64, out: Out<u8>, room: u32) {
        device(gpu)?;
        text(out, room, "96.00.00.00.01")
    }

    fn nvmlDeviceGetGspFirmwareVersion(gpu: u64, out: Out<u8>) {
        out.text(&device(gpu)?.0.profile().driver_version, 80)
    }

    fn nvmlDeviceGetGspFirmwareMode(gpu: u64, enabled: Out<u32>, default: Out<u32>) {
        pair(gpu, enabled, default, (1, 1))
    }

    fn nvmlDeviceGetVirtualizationMode(gpu: u64, out: Out<u32>) { constant(gpu, out, 0) }

    fn nvmlDeviceGetTopologyCommonAncestor(one: u64, other: u64, out: Out<u32>) {
        // 0: the same device. 50: devices on root complexes of different NUMA nodes.
        out.set(if device(one)?.1 == device(other)?.1 { 0 } else { 50 })
    }

    fn nvmlDeviceGetTopologyNearestGpus(gpu: u64, level: u32, count: Out<u32>, devices: Out<u64>) {
        let (state, own) = device(gpu)?;
        let near = if level < 50 { Vec::new() } else {
            state.gpus().into_iter().filter(|gpu| *gpu != own).map(handle).collect::<Vec<u64>>()
        };
        if devices.given() {
            devices.fill(&near[..near.len().min(count.get()? as usize)])?;
        }
        count.set(near.len() as u32)
    }

    fn nvmlDeviceGetP2PStatus(one: u64, other: u64, _index: u32, out: Out<u32>) {
        device(one)?;
        device(other)?;
        out.set(0)
    }

    fn nvmlDeviceGetCpuAffinity(gpu: u64, words: u32, out: Out<u64>) {
        device(gpu)?;
        cpus(words, out)
    }

    fn nvmlDeviceGetCpuAffinityWithinScope(gpu: u64, words: u32, out: Out<u64>, _scope: u32) {
        device(gpu)?;
        cpus(words, out)
    }

    fn nvmlDeviceGetMemoryAffinity(gpu: u64, words: u32, out: Out<u64>, _scope: u32) {
        device(gpu)?;
        let mut set = vec![0; words as usize];
        *set.first_mut().ok_or(INVALID_ARGUMENT)? = 1;
        out.fill(&set)
    }
}

/// Every CPU is as near as any other.
fn cpus(words: u32, out: Out<u64>) -> Res {
    if words == 0 || words > 1024 {
        return Err(INVALID_ARGUMENT);
    }
    let count = std::thread::available_parallelism().map_or(1, |count| count.get());
    let word = |index: usize| match count.saturating_sub(index * 64) {
        0 => 0,
        left @ 1..64 => (1 << left) - 1,
        _ => u64::MAX,
    };
    out.fill(&(0..words as usize).map(word).collect::<Vec<u64>>())
}

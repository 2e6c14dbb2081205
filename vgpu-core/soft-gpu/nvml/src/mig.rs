//! GPUs in MIG mode: their instances, and the profiles of which instances can be made. Nothing makes or ends one here: the
//! profile of the software GPU says which there are.

use soft_gpu::c::{Code, Res};
use soft_gpu::mig::{COMPUTE_INSTANCE, Instance, MOST, Shape};
use soft_gpu::state::State;

use crate::codes::{INVALID_ARGUMENT, NOT_FOUND, NOT_SUPPORTED, Out, VERSION_MISMATCH};
use crate::library::{device, either, handle, state};
use crate::sensors::pair;

/// nvmlDeviceAttributes_t.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Attributes {
    sms: u32,
    copy_engines: u32,
    decoders: u32,
    encoders: u32,
    jpegs: u32,
    ofas: u32,
    gpu_instance_slices: u32,
    compute_instance_slices: u32,
    memory_mib: u64,
}

/// nvmlGpuInstanceInfo_t: GPU, id, profile's id, first slice and number of slices.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Info {
    gpu: u64,
    id: u32,
    profile: u32,
    start: u32,
    size: u32,
}

/// nvmlGpuInstanceProfileInfo_t.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ProfileInfo {
    id: u32,
    has_p2p: u32,
    slices: u32,
    instances: u32,
    sms: u32,
    copy_engines: u32,
    decoders: u32,
    encoders: u32,
    jpegs: u32,
    ofas: u32,
    memory_mib: u64,
}

/// nvmlGpuInstanceProfileInfo_v2_t.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ProfileInfoV2 {
    version: u32,
    id: u32,
    has_p2p: u32,
    counts: [u32; 8],
    memory_mib: u64,
    name: [u8; 96],
}

/// nvmlGpuInstanceProfileInfo_v3_t.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ProfileInfoV3 {
    version: u32,
    id: u32,
    counts: [u32; 8],
    memory_mib: u64,
    name: [u8; 96],
    capabilities: u32,
}

const _: () = {
    assert!(size_of::<Attributes>() == 40);
    assert!(size_of::<Info>() == 24);
    assert!(size_of::<ProfileInfo>() == 48);
    assert!(size_of::<ProfileInfoV2>() == 152);
    assert!(size_of::<ProfileInfoV3>() == 152);
};

const VERSION_2: u32 = 2 << 24 | 152;
const VERSION_3: u32 = 3 << 24 | 152;
/// NVML's queries know no profile of a higher number.
const LAST_NUMBER: u32 = 0x11;

/// The base of the handles of GPU instances, which are no device handles.
const GPU_INSTANCE: u64 = 0x506b_0000_0000;

fn gpu_instance(device: usize) -> u64 {
    GPU_INSTANCE + ((device as u64 + 1) << 4)
}

/// The instance of a handle of a GPU instance.
fn of_gpu_instance(handle: u64) -> Result<&'static Instance, Code> {
    let state = state()?;
    let device = handle
        .checked_sub(GPU_INSTANCE + 16)
        .map(|offset| (offset >> 4) as usize);
    let instance = device
        .and_then(|device| state.instance(device))
        .ok_or(INVALID_ARGUMENT)?;
    match state.control().is_gone(instance.parent, instance.id()) {
        true => Err(NOT_FOUND),
        false => Ok(instance),
    }
}

/// The instance of a device handle; a GPU has no such properties.
fn instance(handle: u64) -> Result<&'static Instance, Code> {
    let (state, device) = either(handle)?;
    state.instance(device).ok_or(INVALID_ARGUMENT)
}

/// A GPU in MIG mode.
fn divided(gpu: u64) -> Result<(&'static State, usize), Code> {
    let (state, gpu) = device(gpu)?;
    match state.has_mig(gpu) {
        true => Ok((state, gpu)),
        false => Err(NOT_SUPPORTED),
    }
}

/// The instances of a GPU that answer `is`, as places.
fn instances(state: &State, gpu: usize, is: impl Fn(&Instance) -> bool) -> Vec<usize> {
    let all = state.instances_of(gpu).into_iter();
    all.filter(|place| state.instance(*place).is_some_and(&is)).collect()
}

/// A profile by NVML's number of it. Whether MIG mode is on does not matter.
fn by_number(gpu: u64, number: u32) -> Result<&'static Shape, Code> {
    let (state, _) = device(gpu)?;
    if number > LAST_NUMBER {
        return Err(INVALID_ARGUMENT);
    }
    let mut shapes = state.profile().mig_product.shapes.iter();
    shapes.find(|shape| shape.number == number).ok_or(NOT_SUPPORTED)
}

/// Slices, instances, multiprocessors, copy engines, decoders, encoders, JPEG engines, OFAs. These products have no encoder.
fn counts(shape: &Shape) -> [u32; 8] {
    [
        shape.slices,
        shape.most,
        shape.sms,
        shape.copy_engines,
        shape.decoders,
        0,
        shape.jpegs,
        shape.ofas,
    ]
}

fn profile_name(shape: &Shape) -> [u8; 96] {
    let text = format!("MIG {}", shape.name);
    let mut name = [0; 96];
    name[..text.len()].copy_from_slice(text.as_bytes());
    name
}

/// Writes the places where an instance of a profile may begin, each with its size.
fn placements(gpu: u64, id: u32, out: Out<[u32; 2]>, count: Out<u32>) -> Res {
    let (state, _) = device(gpu)?;
    let mut shapes = state.profile().mig_product.shapes.iter();
    let shape = shapes.find(|shape| shape.id == id).ok_or(INVALID_ARGUMENT)?;
    let all: Vec<[u32; 2]> = shape.starts.iter().map(|start| [*start, shape.size]).collect();
    if out.given() {
        out.fill(&all)?;
    }
    count.set(all.len() as u32)
}

fn attributes(gpu: u64, out: Out<Attributes>) -> Res {
    let shape = instance(gpu)?.shape;
    out.set(Attributes {
        sms: shape.sms,
        copy_engines: shape.copy_engines,
        decoders: shape.decoders,
        encoders: 0,
        jpegs: shape.jpegs,
        ofas: shape.ofas,
        gpu_instance_slices: shape.slices,
        compute_instance_slices: shape.slices,
        memory_mib: shape.memory_mib,
    })
}

soft_gpu::api! {
    fn nvmlDeviceGetMigMode(gpu: u64, now: Out<u32>, next: Out<u32>) {
        let (state, index) = device(gpu)?;
        let mode = u32::from(state.has_mig(index));
        pair(gpu, now, next, (mode, mode))
    }

    fn nvmlDeviceGetMaxMigDeviceCount(gpu: u64, out: Out<u32>) {
        let (state, index) = device(gpu)?;
        out.set(if state.has_mig(index) { MOST } else { 0 })
    }

    /// Indices have gaps where instances are gone.
    fn nvmlDeviceGetMigDeviceHandleByIndex(gpu: u64, index: u32, out: Out<u64>) {
        let (state, gpu) = device(gpu)?;
        if state.has_mig(gpu) && index >= MOST {
            return Err(INVALID_ARGUMENT);
        }
        let found = instances(state, gpu, |instance| instance.index == index).first().copied();
        out.set(handle(found.ok_or(NOT_FOUND)?))
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gpu: u64, out: Out<u64>) {
        out.set(handle(instance(gpu)?.parent))
    }

    fn nvmlDeviceIsMigDeviceHandle(gpu: u64, out: Out<u32>) {
        let (state, device) = either(gpu)?;
        out.set(u32::from(state.instance(device).is_some()))
    }

    fn nvmlDeviceGetGpuInstanceId(gpu: u64, out: Out<u32>) { out.set(instance(gpu)?.id()) }

    fn nvmlDeviceGetComputeInstanceId(gpu: u64, out: Out<u32>) {
        instance(gpu)?;
        out.set(COMPUTE_INSTANCE)
    }

    fn nvmlDeviceGetAttributes_v2(gpu: u64, out: Out<Attributes>) { attributes(gpu, out) }
    fn nvmlDeviceGetAttributes(gpu: u64, out: Out<Attributes>) { attributes(gpu, out) }

    fn nvmlDeviceGetGpuInstanceById(gpu: u64, id: u32, out: Out<u64>) {
        let (state, gpu) = divided(gpu)?;
        let found = instances(state, gpu, |instance| instance.id() == id).first().copied();
        out.set(gpu_instance(found.ok_or(NOT_FOUND)?))
    }

    fn nvmlDeviceGetGpuInstances(gpu: u64, profile: u32, out: Out<u64>, count: Out<u32>) {
        let (state, gpu) = divided(gpu)?;
        let found = instances(state, gpu, |instance| instance.shape.id == profile);
        let found: Vec<u64> = found.into_iter().map(gpu_instance).collect();
        out.fill(&found)?;
        count.set(found.len() as u32)
    }

    fn nvmlGpuInstanceGetInfo(gpu_instance: u64, out: Out<Info>) {
        let instance = of_gpu_instance(gpu_instance)?;
        out.set(Info {
            gpu: handle(instance.parent),
            id: instance.id(),
            profile: instance.shape.id,
            start: instance.start,
            size: instance.shape.size,
        })
    }

    fn nvmlDeviceGetGpuInstanceProfileInfo(gpu: u64, number: u32, out: Out<ProfileInfo>) {
        let shape = by_number(gpu, number)?;
        let [slices, instances, sms, copy_engines, decoders, encoders, jpegs, ofas] = counts(shape);
        out.set(ProfileInfo {
            id: shape.id,
            has_p2p: 0,
            slices,
            instances,
            sms,
            copy_engines,
            decoders,
            encoders,
            jpegs,
            ofas,
            memory_mib: shape.memory_mib,
        })
    }

    /// Versions 2 and 3 have the same size, and the version in the first word.
    fn nvmlDeviceGetGpuInstanceProfileInfoV(gpu: u64, number: u32, out: Out<ProfileInfoV2>) {
        let shape = by_number(gpu, number)?;
        let (id, counts, memory_mib, name) = (shape.id, counts(shape), shape.memory_mib, profile_name(shape));
        match out.inside::<u32>(0).get()? {
            version @ VERSION_2 => out.set(ProfileInfoV2 { version, id, has_p2p: 0, counts, memory_mib, name }),
            version @ VERSION_3 => {
                out.inside(0).set(ProfileInfoV3 { version, id, counts, memory_mib, name, capabilities: 0 })
            }
            _ => Err(VERSION_MISMATCH),
        }
    }

    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu: u64, profile: u32, out: Out<[u32; 2]>, count: Out<u32>) {
        placements(gpu, profile, out, count)
    }
    fn nvmlDeviceGetGpuInstancePossiblePlacements(gpu: u64, profile: u32, out: Out<[u32; 2]>, count: Out<u32>) {
        placements(gpu, profile, out, count)
    }
}

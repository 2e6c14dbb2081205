//! GPUs in MIG mode: modes, GPU instances, and the profiles of which instances can be made. `compute` has what is in a GPU
//! instance.

use soft_gpu::c::{Code, Res};
use soft_gpu::instances::Refused;
use soft_gpu::mig::{GpuInstance, Instance};
use soft_gpu::products::{Engines, Shape};
use soft_gpu::profile::MAX_DEVICES;
use soft_gpu::state::State;

use crate::codes::{
    IN_USE, INSUFFICIENT_RESOURCES, INVALID_ARGUMENT, In, NO_PERMISSION, NOT_FOUND, NOT_SUPPORTED, OPERATING_SYSTEM,
    Out, RESET_REQUIRED, VERSION_MISMATCH,
};
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

pub(crate) fn of_slot(slot: usize) -> u64 {
    GPU_INSTANCE + ((slot as u64 + 1) << 4)
}

/// The GPU instance of a handle, and its slot. A handle dies with its instance, and its value is used again.
pub(crate) fn of_gpu_instance(handle: u64) -> Result<(&'static State, usize, GpuInstance), Code> {
    let state = state()?;
    let slot = handle
        .checked_sub(GPU_INSTANCE + 16)
        .map(|offset| (offset >> 4) as usize);
    let slot = slot.filter(|slot| *slot < MAX_DEVICES).ok_or(INVALID_ARGUMENT)?;
    state.settle();
    let found = state.gpu_instance(slot).ok_or(NOT_FOUND)?;
    match state.control().is_gone(found.parent, found.id()) {
        true => Err(NOT_FOUND),
        false => Ok((state, slot, found)),
    }
}

pub(crate) fn code(refused: Refused) -> Code {
    match refused {
        Refused::NotSupported => NOT_SUPPORTED,
        Refused::NoPermission => NO_PERMISSION,
        Refused::Invalid => INVALID_ARGUMENT,
        Refused::NotFound => NOT_FOUND,
        Refused::ResetRequired => RESET_REQUIRED,
        Refused::InUse => IN_USE,
        Refused::InsufficientResources => INSUFFICIENT_RESOURCES,
        Refused::System => OPERATING_SYSTEM,
        Refused::Injected(code) => Code(code),
    }
}

/// The instance of a device handle; a GPU has no such properties.
fn instance(handle: u64) -> Result<Instance, Code> {
    let (state, device) = either(handle)?;
    state.instance(device).ok_or(INVALID_ARGUMENT)
}

/// Returns an error to a process that may not make and end instances; it may not see where they are either.
pub(crate) fn may_configure(state: &State) -> Res {
    match state.may_configure() {
        true => Ok(()),
        false => Err(NO_PERMISSION),
    }
}

/// A GPU in MIG mode, for a process that may make and end instances.
fn divided(gpu: u64) -> Result<(&'static State, usize), Code> {
    let (state, gpu) = device(gpu)?;
    state.settle();
    match state.has_mig(gpu) {
        true => may_configure(state).map(|()| (state, gpu)),
        false => Err(NOT_SUPPORTED),
    }
}

/// The GPU instances of a GPU that answer `is`, as slots.
fn slots(state: &State, gpu: usize, is: impl Fn(&GpuInstance) -> bool) -> Vec<usize> {
    let control = state.control();
    let all = state.gpu_instances(gpu).into_iter();
    let found = all.filter(|(_, one)| is(one) && !control.is_gone(gpu, one.id()));
    found.map(|(slot, _)| slot).collect()
}

/// The profiles of a GPU.
fn shapes(state: &State, gpu: usize) -> &'static [Shape] {
    match state.can_divide(gpu) {
        true => state.profile().mig_product.shapes,
        false => &[],
    }
}

/// A profile by NVML's number of it. Whether MIG mode is on does not matter.
fn by_number(gpu: u64, number: u32) -> Result<&'static Shape, Code> {
    let (state, gpu) = device(gpu)?;
    if number > LAST_NUMBER {
        return Err(INVALID_ARGUMENT);
    }
    let mut shapes = shapes(state, gpu).iter();
    shapes.find(|shape| shape.number == number).ok_or(NOT_SUPPORTED)
}

/// A profile by its id.
fn by_id(state: &State, gpu: usize, id: u32) -> Result<&'static Shape, Code> {
    match shapes(state, gpu) {
        [] => Err(NOT_SUPPORTED),
        shapes => shapes.iter().find(|shape| shape.id == id).ok_or(INVALID_ARGUMENT),
    }
}

/// Slices, instances, multiprocessors, copy engines, decoders, encoders, JPEG engines, OFAs.
fn counts(shape: &Shape) -> [u32; 8] {
    let Engines {
        decoders,
        encoders,
        jpegs,
        ofas,
    } = shape.engines;
    let [slices, most, sms, copy_engines] = [shape.slices, shape.most, shape.sms, shape.copy_engines];
    [slices, most, sms, copy_engines, decoders, encoders, jpegs, ofas]
}

pub(crate) fn profile_name(name: &str) -> [u8; 96] {
    let text = format!("MIG {name}");
    let mut bytes = [0; 96];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

/// Writes the places where an instance of a profile may begin, each with its size.
fn placements(gpu: u64, id: u32, out: Out<[u32; 2]>, count: Out<u32>) -> Res {
    let (state, gpu) = device(gpu)?;
    let shape = by_id(state, gpu, id)?;
    may_configure(state)?;
    let all: Vec<[u32; 2]> = shape.starts.iter().map(|start| [*start, shape.size]).collect();
    if out.given() {
        out.fill(&all)?;
    }
    count.set(all.len() as u32)
}

/// Makes a GPU instance, at a place or where there is room.
fn create(gpu: u64, id: u32, start: Option<u32>, out: Out<u64>) -> Res {
    let (state, gpu) = device(gpu)?;
    if !out.given() {
        return Err(INVALID_ARGUMENT);
    }
    state.settle();
    let shape = by_id(state, gpu, id)?;
    let slot = state.create_gpu_instance(gpu, shape, start).map_err(code)?;
    out.set(of_slot(slot))
}

fn attributes(gpu: u64, out: Out<Attributes>) -> Res {
    let instance = instance(gpu)?;
    let shape = instance.of.shape;
    let Engines {
        decoders,
        encoders,
        jpegs,
        ofas,
    } = shape.engines;
    out.set(Attributes {
        sms: instance.sms(),
        copy_engines: shape.copy_engines,
        decoders,
        encoders,
        jpegs,
        ofas,
        gpu_instance_slices: shape.slices,
        compute_instance_slices: instance.slices,
        memory_mib: shape.memory_mib,
    })
}

soft_gpu::api! {
    fn nvmlDeviceGetMigMode(gpu: u64, now: Out<u32>, next: Out<u32>) {
        let (state, index) = device(gpu)?;
        if !state.can_divide(index) {
            return Err(NOT_SUPPORTED);
        }
        state.settle();
        let [_, pending] = state.mig_modes(index);
        let is_set = state.control().has_mig(index);
        pair(gpu, now, next, (u32::from(state.has_mig(index)), u32::from(pending || is_set)))
    }

    /// `activated` says why the mode is pending.
    fn nvmlDeviceSetMigMode(gpu: u64, mode: u32, activated: Out<i32>) {
        let (state, gpu) = device(gpu)?;
        if mode > 1 || !activated.given() {
            return Err(INVALID_ARGUMENT);
        }
        state.settle();
        let done = state.set_mig_mode(gpu, mode == 1).map_err(code)?;
        activated.set(done.map_or_else(|why| code(why).0, |()| 0))
    }

    fn nvmlDeviceGetMaxMigDeviceCount(gpu: u64, out: Out<u32>) {
        let (state, index) = device(gpu)?;
        state.settle();
        out.set(if state.has_mig(index) { state.profile().mig_product.most() } else { 0 })
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(gpu: u64, index: u32, out: Out<u64>) {
        let (state, gpu) = device(gpu)?;
        state.settle();
        if state.has_mig(gpu) && index >= state.profile().mig_product.most() {
            return Err(INVALID_ARGUMENT);
        }
        let mut places = state.instances_of(gpu).into_iter();
        let found = places.find(|place| state.instance(*place).is_some_and(|one| one.index == index));
        out.set(handle(found.ok_or(NOT_FOUND)?))
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(gpu: u64, out: Out<u64>) {
        out.set(handle(instance(gpu)?.of.parent))
    }

    fn nvmlDeviceIsMigDeviceHandle(gpu: u64, out: Out<u32>) {
        let (state, device) = either(gpu)?;
        out.set(u32::from(state.instance(device).is_some()))
    }

    fn nvmlDeviceGetGpuInstanceId(gpu: u64, out: Out<u32>) { out.set(instance(gpu)?.id()) }

    fn nvmlDeviceGetComputeInstanceId(gpu: u64, out: Out<u32>) {
        out.set(instance(gpu)?.compute.unwrap_or(u32::MAX))
    }

    fn nvmlDeviceGetAttributes_v2(gpu: u64, out: Out<Attributes>) { attributes(gpu, out) }
    fn nvmlDeviceGetAttributes(gpu: u64, out: Out<Attributes>) { attributes(gpu, out) }

    fn nvmlDeviceGetGpuInstanceById(gpu: u64, id: u32, out: Out<u64>) {
        let (state, gpu) = divided(gpu)?;
        let found = slots(state, gpu, |one| one.id() == id).first().copied();
        out.set(of_slot(found.ok_or(NOT_FOUND)?))
    }

    /// Those without a compute instance too.
    fn nvmlDeviceGetGpuInstances(gpu: u64, profile: u32, out: Out<u64>, count: Out<u32>) {
        let (state, gpu) = divided(gpu)?;
        by_id(state, gpu, profile)?;
        let found = slots(state, gpu, |one| one.shape.id == profile);
        let found: Vec<u64> = found.into_iter().map(of_slot).collect();
        out.fill(&found)?;
        count.set(found.len() as u32)
    }

    fn nvmlDeviceGetGpuInstanceRemainingCapacity(gpu: u64, profile: u32, out: Out<u32>) {
        let (state, gpu) = divided(gpu)?;
        out.set(state.remaining(gpu, by_id(state, gpu, profile)?))
    }

    fn nvmlDeviceCreateGpuInstance(gpu: u64, profile: u32, out: Out<u64>) { create(gpu, profile, None, out) }

    fn nvmlDeviceCreateGpuInstanceWithPlacement(gpu: u64, profile: u32, place: In<[u32; 2]>, out: Out<u64>) {
        create(gpu, profile, Some(place.get()?[0]), out)
    }

    fn nvmlGpuInstanceDestroy(gpu_instance: u64) {
        let (state, slot, _) = of_gpu_instance(gpu_instance)?;
        state.destroy_gpu_instance(slot).map_err(code)
    }

    fn nvmlGpuInstanceGetInfo(gpu_instance: u64, out: Out<Info>) {
        let (_, _, of) = of_gpu_instance(gpu_instance)?;
        out.set(Info {
            gpu: handle(of.parent),
            id: of.id(),
            profile: of.shape.id,
            start: of.start,
            size: of.shape.size,
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
        let (id, counts, memory_mib, name) = (shape.id, counts(shape), shape.memory_mib, profile_name(shape.name));
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

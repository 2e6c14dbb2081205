//! Compute instances of a GPU instance, and the profiles of which ones can be made.

use soft_gpu::c::{Code, Res};
use soft_gpu::mig::{GpuInstance, Instance};
use soft_gpu::products::Engines;
use soft_gpu::profile::MAX_DEVICES;
use soft_gpu::state::State;

use crate::codes::{INVALID_ARGUMENT, In, NOT_FOUND, NOT_SUPPORTED, Out, VERSION_MISMATCH};
use crate::library::{handle, state};
use crate::mig::{code, may_configure, of_gpu_instance, of_slot, profile_name};

/// Profile id, slices, the most of it, multiprocessors, and the shared copy engines, decoders, encoders, JPEG engines and OFAs.
type Counts = [u32; 9];

/// nvmlComputeInstanceProfileInfo_v2_t.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ProfileInfoV2 {
    version: u32,
    counts: Counts,
    name: [u8; 96],
}

/// nvmlComputeInstanceProfileInfo_v3_t.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ProfileInfoV3 {
    version: u32,
    counts: Counts,
    name: [u8; 96],
    capabilities: u32,
}

/// The first version of nvmlComputeInstanceInfo_t: device, GPU instance, id and profile's id.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Info {
    device: u64,
    gpu_instance: u64,
    id: u32,
    profile: u32,
}

/// The second version: also the first compute slice and their number.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct InfoV2 {
    info: Info,
    place: [u32; 2],
}

const _: () = {
    assert!(size_of::<Counts>() == 36);
    assert!(size_of::<ProfileInfoV2>() == 136);
    assert!(size_of::<ProfileInfoV3>() == 140);
    assert!(size_of::<InfoV2>() == 32);
};

const VERSION_2: u32 = 2 << 24 | 136;
const VERSION_3: u32 = 3 << 24 | 140;

/// Compute slices of each profile. The index is NVML's number of it (NVML_COMPUTE_INSTANCE_PROFILE_...) and the driver's id.
const SLICES: [u32; 5] = [1, 2, 3, 4, 7];
/// NVML's queries know no profile of a higher number.
const LAST_NUMBER: u32 = 8;

/// The base of the handles of compute instances, which are no device handles.
const COMPUTE_INSTANCE: u64 = 0x506c_0000_0000;

fn compute_instance(place: usize) -> u64 {
    COMPUTE_INSTANCE + ((place as u64 + 1) << 4)
}

/// The compute instance of a handle, and its place.
fn of_compute_instance(handle: u64) -> Result<(&'static State, usize, Instance), Code> {
    let state = state()?;
    let place = handle
        .checked_sub(COMPUTE_INSTANCE + 16)
        .map(|offset| (offset >> 4) as usize);
    let place = place.filter(|place| *place < MAX_DEVICES).ok_or(INVALID_ARGUMENT)?;
    state.settle();
    let found = state
        .instance(place)
        .filter(|one| one.compute.is_some())
        .ok_or(NOT_FOUND)?;
    match state.control().is_gone(found.of.parent, found.id()) {
        true => Err(NOT_FOUND),
        false => Ok((state, place, found)),
    }
}

/// Returns true if a GPU instance can have compute instances with so many slices.
fn suits(of: &GpuInstance, slices: u32) -> bool {
    // assumed: no 3c of 4g, as NVIDIA's guide lists none
    slices <= of.shape.slices && (slices, of.shape.slices) != (3, 4)
}

/// The slices of a profile by its id.
fn by_id(of: &GpuInstance, id: u32) -> Result<u32, Code> {
    let slices = SLICES.get(id as usize).copied().filter(|slices| suits(of, *slices));
    slices.ok_or(INVALID_ARGUMENT)
}

fn counts(of: &GpuInstance, number: u32) -> Result<Counts, Code> {
    if number > LAST_NUMBER {
        return Err(INVALID_ARGUMENT);
    }
    let slices = by_id(of, number).map_err(|_| NOT_SUPPORTED)?;
    let Engines {
        decoders,
        encoders,
        jpegs,
        ofas,
    } = of.shape.engines;
    let (most, sms) = (of.shape.slices / slices, of.shape.sms * slices / of.shape.slices);
    Ok([
        number,
        slices,
        most,
        sms,
        of.shape.copy_engines,
        decoders,
        encoders,
        jpegs,
        ofas,
    ])
}

fn name(of: &GpuInstance, slices: u32) -> [u8; 96] {
    match slices == of.shape.slices {
        true => profile_name(of.shape.name),
        false => profile_name(&format!("{slices}c.{}", of.shape.name)),
    }
}

fn of_profile(state: &State, slot: usize, slices: u32) -> Vec<(usize, Instance)> {
    let all = state.compute_instances(slot).into_iter();
    all.filter(|(_, one)| one.slices == slices).collect()
}

fn info(handle_of: u64) -> Result<InfoV2, Code> {
    let (_, place, instance) = of_compute_instance(handle_of)?;
    let profile = SLICES.iter().position(|slices| *slices == instance.slices);
    Ok(InfoV2 {
        info: Info {
            device: handle(place),
            gpu_instance: of_slot(instance.slot),
            id: instance.compute.ok_or(NOT_FOUND)?,
            profile: profile.ok_or(NOT_FOUND)? as u32,
        },
        place: [instance.first_slice, instance.slices],
    })
}

fn create(gpu_instance: u64, profile: u32, out: Out<u64>) -> Res {
    let (state, slot, of) = of_gpu_instance(gpu_instance)?;
    if !out.given() {
        return Err(INVALID_ARGUMENT);
    }
    let slices = by_id(&of, profile)?;
    out.set(compute_instance(
        state.create_compute_instance(slot, slices).map_err(code)?,
    ))
}

soft_gpu::api! {
    /// Engines are always shared by the compute instances of a GPU instance.
    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(gpu_instance: u64, number: u32, engines: u32, out: Out<Counts>) {
        let (_, _, of) = of_gpu_instance(gpu_instance)?;
        match engines {
            0 => out.set(counts(&of, number)?),
            _ => Err(INVALID_ARGUMENT),
        }
    }

    fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(gpu_instance: u64, number: u32, engines: u32, out: Out<ProfileInfoV2>) {
        let (_, _, of) = of_gpu_instance(gpu_instance)?;
        let counts = counts(&of, number)?;
        let name = name(&of, counts[1]);
        match (engines, out.inside::<u32>(0).get()?) {
            (0, version @ VERSION_2) => out.set(ProfileInfoV2 { version, counts, name }),
            (0, version @ VERSION_3) => out.inside(0).set(ProfileInfoV3 { version, counts, name, capabilities: 0 }),
            (0, _) => Err(VERSION_MISMATCH),
            _ => Err(INVALID_ARGUMENT),
        }
    }

    fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(gpu_instance: u64, profile: u32, out: Out<u32>) {
        let (state, slot, of) = of_gpu_instance(gpu_instance)?;
        let slices = by_id(&of, profile)?;
        let taken: u32 = state.compute_instances(slot).iter().map(|(_, one)| one.slices).sum();
        out.set(of.shape.slices.saturating_sub(taken) / slices)
    }

    fn nvmlGpuInstanceGetComputeInstancePossiblePlacements(gpu_instance: u64, profile: u32, out: Out<[u32; 2]>, count: Out<u32>) {
        let (state, _, of) = of_gpu_instance(gpu_instance)?;
        may_configure(state)?;
        let slices = by_id(&of, profile)?;
        let all: Vec<[u32; 2]> = (0..=of.shape.slices - slices).step_by(slices as usize).map(|first| [first, slices]).collect();
        if out.given() {
            out.fill(&all)?;
        }
        count.set(all.len() as u32)
    }

    fn nvmlGpuInstanceCreateComputeInstance(gpu_instance: u64, profile: u32, out: Out<u64>) {
        create(gpu_instance, profile, out)
    }

    /// The driver's choice of the place is the only one here.
    fn nvmlGpuInstanceCreateComputeInstanceWithPlacement(gpu_instance: u64, profile: u32, place: In<[u32; 2]>, out: Out<u64>) {
        let (state, slot, of) = of_gpu_instance(gpu_instance)?;
        match state.free_slices(slot, by_id(&of, profile)?) == Some(place.get()?[0]) {
            true => create(gpu_instance, profile, out),
            false => Err(NOT_SUPPORTED),
        }
    }

    fn nvmlComputeInstanceDestroy(compute_instance: u64) {
        let (state, place, _) = of_compute_instance(compute_instance)?;
        state.destroy_compute_instance(place).map_err(code)
    }

    fn nvmlGpuInstanceGetComputeInstances(gpu_instance: u64, profile: u32, out: Out<u64>, count: Out<u32>) {
        let (state, slot, of) = of_gpu_instance(gpu_instance)?;
        may_configure(state)?;
        let found = of_profile(state, slot, by_id(&of, profile)?).into_iter();
        let found: Vec<u64> = found.map(|(place, _)| compute_instance(place)).collect();
        out.fill(&found)?;
        count.set(found.len() as u32)
    }

    fn nvmlGpuInstanceGetComputeInstanceById(gpu_instance: u64, id: u32, out: Out<u64>) {
        let (state, slot, _) = of_gpu_instance(gpu_instance)?;
        may_configure(state)?;
        let found = state.compute_instances(slot).into_iter().find(|(_, one)| one.compute == Some(id));
        out.set(compute_instance(found.ok_or(NOT_FOUND)?.0))
    }

    fn nvmlComputeInstanceGetInfo_v2(compute_instance: u64, out: Out<InfoV2>) { out.set(info(compute_instance)?) }
    fn nvmlComputeInstanceGetInfo(compute_instance: u64, out: Out<Info>) { out.set(info(compute_instance)?.info) }
}

//! The driver's calls through NVML, in the process that has loaded it.
//!
//! Names and sizes are the driver's. Profiles are asked for by numbers that are not their ids: a number that the GPU does not
//! have is NOT_SUPPORTED, and the first one that NVML does not know is INVALID_ARGUMENT.
//!
//! Failure modes:
//! - A function is missing (a driver older than r510): [`Code::Other`] with FUNCTION_NOT_FOUND, named.
//! - MIG is off: there are no instances, and creating one is NOT_SUPPORTED.
//! - A handle that died between two calls: NVML answers INVALID_ARGUMENT or NOT_FOUND, so the call fails and is tried again.
//!   No handle is kept beyond a call.
//! - An instance appears or goes while the list is read: the call fails or has it or not, as before or after the change.

#![allow(unsafe_code)] // nvml-wrapper has no functions for GPU instances and compute instances.

use crate::driver::{
    Answer, Call, Code, ComputeInstance, Engines, GpuInstance, INVALID_ARGUMENT, MigDriver, Mode, Profile, Refused,
};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device, Nvml};
use std::ffi::c_char;
use std::fmt::Display;
use vgpu_node::gpus::Placement;
use vgpu_node::gpus::raw::{zeroed, zeroed_second, zeroed_third};

/// NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED.
const IS_RESETLESS: FieldId = FieldId(184);
/// Version 2 of nvmlGpuInstanceProfileInfo, which has 152 bytes.
const PROFILE_INFO: u32 = 2 << 24 | 152;
/// NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED, the only one.
const SHARED_ENGINES: u32 = 0;
/// No release of NVML has more numbers for profiles.
const MOST_PROFILES: u32 = 64;
/// No board has more instances of a profile.
const MOST_INSTANCES: usize = 64;
const NOT_SUPPORTED: u32 = 3;

/// The handle of a GPU instance by its id. A macro, because nvml-wrapper does not name the type.
macro_rules! gpu_instance {
    ($of:ident, $id:expr) => {{
        let call = "nvmlDeviceGetGpuInstanceById";
        let by_id = symbol(call, &$of.nvml.lib().nvmlDeviceGetGpuInstanceById)?;
        // SAFETY: the function is NVML's, and the handle is the GPU's.
        unsafe { handle_of(call, by_id, $of.device.handle(), $id) }?
    }};
}
/// Stands before the profile in NVML's name of it.
const PREFIX: &str = "MIG ";

/// NVML of this process.
#[derive(Clone, Copy)]
pub struct Local<'a>(pub &'a Nvml);

/// A GPU, for one call.
struct Gpu<'a> {
    nvml: &'a Nvml,
    device: Device<'a>,
}

// === impl Local ===

impl MigDriver for Local<'_> {
    fn call(&self, uuid: &str, call: &Call) -> Result<Answer, Refused> {
        let device = self.0.device_by_uuid(uuid);
        let gpu = Gpu {
            nvml: self.0,
            device: device.map_err(failed("nvmlDeviceGetHandleByUUID"))?,
        };
        Ok(match call {
            Call::Mode => Answer::Mode(gpu.mode()?),
            Call::SetMode { is_on } => gpu.set_mode(*is_on).map(|()| Answer::Done)?,
            Call::IsResetless => Answer::IsResetless(gpu.is_resetless()?),
            Call::Users => Answer::Users(gpu.users()?),
            Call::Profiles => Answer::Profiles(gpu.profiles()?),
            Call::Instances => Answer::Instances(gpu.instances()?),
            Call::Create { profile, placement } => Answer::Created(gpu.create(*profile, *placement)?),
            Call::CreateCompute { gpu_instance } => Answer::CreatedCompute(gpu.create_compute(*gpu_instance)?),
            Call::DestroyCompute {
                gpu_instance,
                compute_instance,
            } => gpu
                .destroy_compute(*gpu_instance, *compute_instance)
                .map(|()| Answer::Done)?,
            Call::Destroy { gpu_instance } => gpu.destroy(*gpu_instance).map(|()| Answer::Done)?,
        })
    }
}

// === impl Gpu ===

impl Gpu<'_> {
    fn mode(&self) -> Result<Mode, Refused> {
        let mode = self.device.mig_mode().map_err(failed("nvmlDeviceGetMigMode"))?;
        Ok(Mode {
            is_on: mode.current != 0,
            is_on_after_reset: mode.pending != 0,
        })
    }

    /// The call succeeds also if the mode could not be activated: that has a status of its own.
    fn set_mode(&self, is_on: bool) -> Result<(), Refused> {
        const CALL: &str = "nvmlDeviceSetMigMode";
        let activation = self.device.set_mig_mode(is_on).map_err(failed(CALL))?;
        done(CALL, activation)
    }

    /// A driver that does not know the question is older than the GPUs for which the answer is yes.
    fn is_resetless(&self) -> Result<bool, Refused> {
        let values = self.device.field_values_for(&[IS_RESETLESS]);
        let values = values.map_err(failed("nvmlDeviceGetFieldValues"))?;
        let value = values.into_iter().next().and_then(|sample| sample.ok()?.value.ok());
        Ok(match value {
            Some(SampleValue::U32(value)) => value != 0,
            Some(SampleValue::U64(value)) => value != 0,
            _ => false,
        })
    }

    fn users(&self) -> Result<usize, Refused> {
        let compute = self.device.running_compute_processes();
        let compute = compute.map_err(failed("nvmlDeviceGetComputeRunningProcesses"))?;
        let graphics = match self.device.running_graphics_processes() {
            Err(NvmlError::NotSupported) => Vec::new(),
            found => found.map_err(failed("nvmlDeviceGetGraphicsRunningProcesses"))?,
        };
        Ok(compute.len() + graphics.len())
    }

    fn profiles(&self) -> Result<Vec<Profile>, Refused> {
        let mut profiles = self.profiles_without_placements()?;
        for profile in &mut profiles {
            profile.placements = self.placements(profile.id)?;
        }
        Ok(profiles)
    }

    fn profiles_without_placements(&self) -> Result<Vec<Profile>, Refused> {
        const CALL: &str = "nvmlDeviceGetGpuInstanceProfileInfoV";
        let get = symbol(CALL, &self.nvml.lib().nvmlDeviceGetGpuInstanceProfileInfoV)?;
        let mut profiles = Vec::new();
        for number in 0..MOST_PROFILES {
            // SAFETY: NVML's structure has numbers and letters alone, and zeros are values of these.
            let mut info = unsafe { zeroed_second(get) };
            info.version = PROFILE_INFO;
            // SAFETY: the handle is the GPU's, and the structure has the size that its version says.
            match unsafe { get(self.device.handle(), number, &raw mut info) } {
                NOT_SUPPORTED => continue,
                INVALID_ARGUMENT => break,
                code => done(CALL, code)?,
            }
            let name = text(&info.name);
            profiles.push(Profile {
                id: info.id,
                name: name.strip_prefix(PREFIX).unwrap_or(&name).to_owned(),
                compute_slices: info.sliceCount,
                memory_mib: info.memorySizeMB,
                multiprocessors: info.multiprocessorCount,
                copy_engines: info.copyEngineCount,
                engines: Engines {
                    decoders: info.decoderCount,
                    encoders: info.encoderCount,
                    jpegs: info.jpegCount,
                    ofas: info.ofaCount,
                },
                placements: Vec::new(),
            });
        }
        Ok(profiles)
    }

    fn placements(&self, profile: u32) -> Result<Vec<Placement>, Refused> {
        const CALL: &str = "nvmlDeviceGetGpuInstancePossiblePlacements_v2";
        let lib = self.nvml.lib();
        let get = symbol(CALL, &lib.nvmlDeviceGetGpuInstancePossiblePlacements_v2)?;
        let get_info = symbol("nvmlGpuInstanceGetInfo", &lib.nvmlGpuInstanceGetInfo)?;
        // SAFETY: NVML's structure has numbers and a pointer alone, and zeros are values of these.
        let none = unsafe { zeroed(get_info) }.placement;
        let mut count = 0;
        // SAFETY: the handle is the GPU's; without a buffer, the function writes their number alone.
        done(CALL, unsafe {
            get(self.device.handle(), profile, std::ptr::null_mut(), &raw mut count)
        })?;
        let mut places = vec![none; count as usize];
        // SAFETY: the buffer has room for as many as the function said.
        done(CALL, unsafe {
            get(self.device.handle(), profile, places.as_mut_ptr(), &raw mut count)
        })?;
        let places = places.into_iter().take(count as usize);
        Ok(places
            .map(|place| Placement {
                start: place.start,
                size: place.size,
            })
            .collect())
    }

    fn instances(&self) -> Result<Vec<GpuInstance>, Refused> {
        const CALL: &str = "nvmlDeviceGetGpuInstances";
        if !self.mode()?.is_on {
            return Ok(Vec::new());
        }
        let lib = self.nvml.lib();
        let get = symbol(CALL, &lib.nvmlDeviceGetGpuInstances)?;
        let get_info = symbol("nvmlGpuInstanceGetInfo", &lib.nvmlGpuInstanceGetInfo)?;
        let mut instances = Vec::new();
        // The list by MIG device leaves out instances without a compute instance.
        for profile in self.profiles_without_placements()? {
            let mut handles = vec![std::ptr::null_mut(); MOST_INSTANCES];
            let mut count = MOST_INSTANCES as u32;
            // SAFETY: the handle is the GPU's, and the buffer has room for all instances that a GPU can have.
            done(CALL, unsafe {
                get(self.device.handle(), profile.id, handles.as_mut_ptr(), &raw mut count)
            })?;
            for handle in handles.into_iter().take(count as usize) {
                // SAFETY: NVML's structure has numbers and a pointer alone, and zeros are values of these.
                let mut info = unsafe { zeroed(get_info) };
                // SAFETY: NVML returned the handle, and the structure is the one that the function writes.
                done("nvmlGpuInstanceGetInfo", unsafe { get_info(handle, &raw mut info) })?;
                instances.push(GpuInstance {
                    id: info.id,
                    profile: info.profileId,
                    placement: Placement {
                        start: info.placement.start,
                        size: info.placement.size,
                    },
                    compute: self.compute_instances(info.id)?,
                });
            }
        }
        Ok(instances)
    }

    fn compute_instances(&self, gpu_instance: u32) -> Result<Vec<ComputeInstance>, Refused> {
        const CALL: &str = "nvmlGpuInstanceGetComputeInstances";
        let lib = self.nvml.lib();
        let get = symbol(CALL, &lib.nvmlGpuInstanceGetComputeInstances)?;
        let parent = gpu_instance!(self, gpu_instance);
        let mut found = Vec::new();
        for (profile, _) in self.compute_profiles(gpu_instance)? {
            let mut handles = vec![std::ptr::null_mut(); MOST_INSTANCES];
            let mut count = MOST_INSTANCES as u32;
            // SAFETY: NVML returned the handle, and the buffer has room for all compute instances that one can have.
            done(CALL, unsafe {
                get(parent, profile, handles.as_mut_ptr(), &raw mut count)
            })?;
            for handle in handles.into_iter().take(count as usize) {
                let get_info = symbol("nvmlComputeInstanceGetInfo_v2", &lib.nvmlComputeInstanceGetInfo_v2)?;
                // SAFETY: NVML's structure has numbers and pointers alone, and zeros are values of these.
                let mut info = unsafe { zeroed(get_info) };
                // SAFETY: NVML returned the handle, and the structure is the one that the function writes.
                done("nvmlComputeInstanceGetInfo_v2", unsafe {
                    get_info(handle, &raw mut info)
                })?;
                found.push(ComputeInstance {
                    id: info.id,
                    uuid: self.uuid(gpu_instance, info.id),
                });
            }
        }
        Ok(found)
    }

    /// The UUID of the MIG device with these ids. The handle in a compute instance's info is not asked, because NVML's header calls
    /// it the parent's, and NVIDIA's own programs use it as the MIG device's.
    fn uuid(&self, gpu_instance: u32, compute_instance: u32) -> Option<String> {
        let lib = self.nvml.lib();
        let of_gpu = lib.nvmlDeviceGetGpuInstanceId.as_ref().ok()?;
        let of_compute = lib.nvmlDeviceGetComputeInstanceId.as_ref().ok()?;
        let count = self.device.mig_device_count().ok()?;
        let has_ids = |device: &Device<'_>| {
            let mut ids = [0; 2];
            // SAFETY: NVML returned the handle, and the function writes one number.
            let of_gpu = unsafe { of_gpu(device.handle(), &raw mut ids[0]) };
            // SAFETY: as above.
            let of_compute = unsafe { of_compute(device.handle(), &raw mut ids[1]) };
            (of_gpu, of_compute) == (0, 0) && ids == [gpu_instance, compute_instance]
        };
        // Indices have gaps.
        let mut all = (0..count).filter_map(|index| self.device.mig_device_by_index(index).ok());
        all.find(has_ids)?.uuid().ok()
    }

    /// The id and the compute slices of each kind of compute instance in a GPU instance.
    fn compute_profiles(&self, gpu_instance: u32) -> Result<Vec<(u32, u32)>, Refused> {
        const CALL: &str = "nvmlGpuInstanceGetComputeInstanceProfileInfo";
        let lib = self.nvml.lib();
        let get = symbol(CALL, &lib.nvmlGpuInstanceGetComputeInstanceProfileInfo)?;
        let parent = gpu_instance!(self, gpu_instance);
        let mut profiles = Vec::new();
        for number in 0..MOST_PROFILES {
            // SAFETY: NVML's structure has numbers alone, and zeros are values of these.
            let mut info = unsafe { zeroed_third(get) };
            // SAFETY: NVML returned the handle, and the structure is the one that the function writes.
            match unsafe { get(parent, number, SHARED_ENGINES, &raw mut info) } {
                NOT_SUPPORTED => {}
                INVALID_ARGUMENT => break,
                code => {
                    done(CALL, code)?;
                    profiles.push((info.id, info.sliceCount));
                }
            }
        }
        Ok(profiles)
    }

    fn create(&self, profile: u32, placement: Placement) -> Result<u32, Refused> {
        const CALL: &str = "nvmlDeviceCreateGpuInstanceWithPlacement";
        let lib = self.nvml.lib();
        let create = symbol(CALL, &lib.nvmlDeviceCreateGpuInstanceWithPlacement)?;
        let get_info = symbol("nvmlGpuInstanceGetInfo", &lib.nvmlGpuInstanceGetInfo)?;
        // SAFETY: NVML's structure has numbers and a pointer alone, and zeros are values of these.
        let mut info = unsafe { zeroed(get_info) };
        let mut place = info.placement;
        (place.start, place.size) = (placement.start, placement.size);
        let mut handle = std::ptr::null_mut();
        // SAFETY: the handle is the GPU's; the function reads the placement and writes one pointer.
        done(CALL, unsafe {
            create(self.device.handle(), profile, &raw const place, &raw mut handle)
        })?;
        // SAFETY: NVML returned the handle, and the structure is the one that the function writes.
        let code = unsafe { get_info(handle, &raw mut info) };
        // The instance is there, and the caller must not take this for a refusal.
        done("nvmlGpuInstanceGetInfo", code).map_err(|source| Refused {
            code: Code::NoAnswer,
            reason: source.code.to_string(),
            ..source
        })?;
        Ok(info.id)
    }

    /// The profile is the one that has as many slices as the GPU instance: for seven slices that is not the largest number.
    fn create_compute(&self, gpu_instance: u32) -> Result<ComputeInstance, Refused> {
        const CALL: &str = "nvmlGpuInstanceCreateComputeInstance";
        let lib = self.nvml.lib();
        let get_info = symbol("nvmlGpuInstanceGetInfo", &lib.nvmlGpuInstanceGetInfo)?;
        let create = symbol(CALL, &lib.nvmlGpuInstanceCreateComputeInstance)?;
        let parent = gpu_instance!(self, gpu_instance);
        // SAFETY: NVML's structure has numbers and a pointer alone, and zeros are values of these.
        let mut info = unsafe { zeroed(get_info) };
        // SAFETY: NVML returned the handle, and the structure is the one that the function writes.
        done("nvmlGpuInstanceGetInfo", unsafe { get_info(parent, &raw mut info) })?;
        let profiles = self.profiles_without_placements()?;
        let own = profiles.iter().find(|profile| profile.id == info.profileId);
        let slices = own.map(|profile| profile.compute_slices);
        let kinds = self.compute_profiles(gpu_instance)?;
        let kind = kinds.into_iter().find(|(_, of)| Some(*of) == slices);
        let Some((kind, _)) = kind else {
            let why = format!("no kind of compute instance has all {slices:?} slices of GPU instance {gpu_instance}");
            return Err(Refused::new(CALL, Code::NotSupported, &why));
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: NVML returned the handle, and the function writes one pointer.
        done(CALL, unsafe { create(parent, kind, &raw mut handle) })?;
        let made = self.compute_instances(gpu_instance)?;
        made.into_iter()
            .next()
            .ok_or_else(|| Refused::new(CALL, Code::NoAnswer, "it is not listed"))
    }

    fn destroy_compute(&self, gpu_instance: u32, compute_instance: u32) -> Result<(), Refused> {
        let lib = self.nvml.lib();
        let inside = symbol(
            "nvmlGpuInstanceGetComputeInstanceById",
            &lib.nvmlGpuInstanceGetComputeInstanceById,
        )?;
        let destroy = symbol("nvmlComputeInstanceDestroy", &lib.nvmlComputeInstanceDestroy)?;
        let parent = gpu_instance!(self, gpu_instance);
        // SAFETY: the function is NVML's, and so is the handle.
        let handle = unsafe {
            handle_of(
                "nvmlGpuInstanceGetComputeInstanceById",
                inside,
                parent,
                compute_instance,
            )
        }?;
        // SAFETY: NVML returned the handle, which is not used again.
        done("nvmlComputeInstanceDestroy", unsafe { destroy(handle) })
    }

    fn destroy(&self, gpu_instance: u32) -> Result<(), Refused> {
        let lib = self.nvml.lib();
        let destroy = symbol("nvmlGpuInstanceDestroy", &lib.nvmlGpuInstanceDestroy)?;
        let handle = gpu_instance!(self, gpu_instance);
        // SAFETY: NVML returned the handle, which is not used again.
        done("nvmlGpuInstanceDestroy", unsafe { destroy(handle) })
    }
}

/// Returns the handle of a part by its id.
///
/// # Safety
/// `by_id` is NVML's, and `of` a handle that it takes.
unsafe fn handle_of<D, H>(
    call: &str,
    by_id: &unsafe extern "C" fn(D, u32, *mut *mut H) -> u32,
    of: D,
    id: u32,
) -> Result<*mut H, Refused> {
    let mut handle = std::ptr::null_mut();
    // SAFETY: as promised; the function writes one pointer.
    done(call, unsafe { by_id(of, id, &raw mut handle) })?;
    Ok(handle)
}

/// Returns a function of NVML.
fn symbol<'a, F, E: Display>(call: &str, loaded: &'a Result<F, E>) -> Result<&'a F, Refused> {
    let missing = |error: &E| Refused::new(call, Code::FUNCTION_NOT_FOUND, &error.to_string());
    loaded.as_ref().map_err(missing)
}

fn done(call: &str, code: u32) -> Result<(), Refused> {
    match code {
        0 => Ok(()),
        code => Err(Refused::new(call, code.into(), "")),
    }
}

fn failed(call: &'static str) -> impl Fn(NvmlError) -> Refused {
    move |error| {
        let reason = error.to_string();
        Refused::new(call, Code::from(u32::from(error)), &reason)
    }
}

/// Returns the text up to the first zero.
fn text(letters: &[c_char]) -> String {
    let bytes: Vec<u8> = letters
        .iter()
        .map(|letter| *letter as u8)
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

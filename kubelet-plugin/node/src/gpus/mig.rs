//! Instances of GPUs in MIG mode, as NVML describes them: names and sizes are the driver's, never from a table.
//!
//! NVML lists an instance once it has a compute instance. Its device handle says what it is, and its GPU says where it is,
//! which needs root or `mig/config`. An instance that cannot be read is left out with the reason, and its neighbours are not.
//! So are those that nobody can hold to a size: GPU instances with several compute instances, which all have its memory, and
//! GPU instances without one.

#![allow(unsafe_code)] // nvml-wrapper has no functions for the ids and the placement of an instance.

use super::read_memory::{MIB, memory_by_nvml};
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The properties of an instance that its GPU does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    /// UUID of its GPU.
    pub parent: String,
    /// The index by which its GPU lists it.
    pub index: u32,
    /// As the driver names it: `3g.40gb`, `1g.10gb+me`, or `1c.3g.40gb` if others share its memory.
    pub profile: String,
    pub gpu_instance: u32,
    pub compute_instance: u32,
    /// None: the driver does not say it to this process.
    pub placement: Option<Placement>,
    pub multiprocessors: u32,
}

/// The memory slices of a GPU that an instance has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub start: u32,
    pub size: u32,
}

/// Stands between GPU and profile in NVML's name of an instance.
const BEFORE_PROFILE: &str = " MIG ";

/// NVML knows no profile of a higher number.
const LAST_PROFILE: u32 = 0x11;
/// More than any GPU of today has.
const MOST_INSTANCES: usize = 16;

/// An instance as NVML describes it.
pub(super) struct Found {
    pub(super) uuid: String,
    /// Bytes.
    pub(super) memory: u64,
    pub(super) instance: Instance,
}

/// An instance that no claim may have.
pub(super) enum Unusable {
    /// A field could not be read. UUID and GPU instance are there if these could.
    Unreadable {
        uuid: Option<String>,
        gpu_instance: Option<u32>,
        field: String,
        reason: String,
    },
    /// Its GPU instance has so many compute instances, which all have its memory.
    Several {
        uuid: String,
        gpu_instance: u32,
        count: usize,
    },
    /// A GPU instance without a compute instance.
    Empty { gpu_instance: u32 },
}

/// The instances of `device`, a GPU in MIG mode whose UUID is `parent`.
pub(super) fn instances(nvml: &Nvml, device: &Device<'_>, parent: &str) -> Vec<Result<Found, Unusable>> {
    let count = match device.mig_device_count() {
        Ok(count) => count,
        Err(error) => return vec![Err(unreadable("number of instances", &error))],
    };
    let found = (0..count).filter_map(|index| match device.mig_device_by_index(index) {
        // Indices have gaps. A driver may call an index beyond its instances invalid.
        Err(NvmlError::NotFound | NvmlError::InvalidArg) => None,
        Err(error) => Some(Err(unreadable(&format!("instance {index}"), &error))),
        Ok(instance) => Some(read(nvml, device, &instance, index, parent)),
    });
    let mut all = alone(found.collect());
    let places: Option<BTreeSet<u32>> = all.iter().map(place_of).collect();
    // One in an unknown place may be the compute instance of any of them.
    if let Some(places) = places {
        let made = gpu_instances(nvml, device).into_iter();
        let empty = made.filter(|id| !places.contains(id));
        all.extend(empty.map(|gpu_instance| Err(Unusable::Empty { gpu_instance })));
    }
    all
}

/// Leaves out those that may not have the memory of their GPU instance alone.
fn alone(found: Vec<Result<Found, Unusable>>) -> Vec<Result<Found, Unusable>> {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for id in found.iter().filter_map(place_of) {
        *counts.entry(id).or_default() += 1;
    }
    // One whose GPU instance is not known may be in any of them.
    let nameless = found.iter().filter(|one| place_of(one).is_none()).count();
    let has_memory_alone = |one: Found| {
        let gpu_instance = one.instance.gpu_instance;
        match counts[&gpu_instance] + nameless {
            1 => Ok(one),
            count => Err(Unusable::Several {
                uuid: one.uuid,
                gpu_instance,
                count,
            }),
        }
    };
    found.into_iter().map(|one| one.and_then(has_memory_alone)).collect()
}

/// The GPU instance of one that was found, if it is known.
fn place_of(found: &Result<Found, Unusable>) -> Option<u32> {
    match found {
        Ok(found) => Some(found.instance.gpu_instance),
        Err(Unusable::Unreadable { gpu_instance, .. }) => *gpu_instance,
        Err(Unusable::Several { gpu_instance, .. } | Unusable::Empty { gpu_instance }) => Some(*gpu_instance),
    }
}

/// The ids of all GPU instances, also of those without a compute instance. None of them: this process may not list them.
fn gpu_instances(nvml: &Nvml, device: &Device<'_>) -> Vec<u32> {
    let mut ids = Vec::new();
    for number in 0..=LAST_PROFILE {
        match profile(nvml, device, number) {
            Ok((profile, most)) => ids.extend(of_profile(nvml, device, profile, most).unwrap_or_default()),
            Err(NvmlError::InvalidArg) => break,
            // The GPU does not have every profile.
            Err(_) => {}
        }
    }
    ids.sort_unstable();
    ids.dedup();
    ids
}

/// The id of a profile by NVML's number of it, and how many instances of it a GPU has at most.
fn profile(nvml: &Nvml, device: &Device<'_>, number: u32) -> Result<(u32, u32), NvmlError> {
    let ask = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstanceProfileInfo.as_ref())?;
    // SAFETY: the handle is the GPU's. NVML's structure has numbers alone, and zeros are values of these.
    unsafe {
        let mut info = std::mem::zeroed();
        nvml_try(ask(device.handle(), number, &raw mut info))?;
        Ok((info.id, info.instanceCount))
    }
}

/// The ids of the GPU instances of a profile, of which a GPU has at most so many.
fn of_profile(nvml: &Nvml, device: &Device<'_>, profile: u32, most: u32) -> Result<Vec<u32>, NvmlError> {
    let lib = nvml.lib();
    let list = nvml_sym(lib.nvmlDeviceGetGpuInstances.as_ref())?;
    let get_info = nvml_sym(lib.nvmlGpuInstanceGetInfo.as_ref())?;
    let mut handles = vec![std::ptr::null_mut(); (most as usize).max(MOST_INSTANCES)];
    let mut count = 0;
    // SAFETY: the handle is the GPU's, and there is room for as many instances as NVML says the profile has at most.
    nvml_try(unsafe { list(device.handle(), profile, handles.as_mut_ptr(), &raw mut count) })?;
    let ids = handles.into_iter().take(count as usize).map(|handle| {
        // SAFETY: NVML returned the handle, and the structure of numbers and a pointer is the one that the function writes.
        unsafe {
            let mut info = super::raw::zeroed(get_info);
            nvml_try(get_info(handle, &raw mut info))?;
            Ok(info.id)
        }
    });
    ids.collect()
}

fn read(nvml: &Nvml, device: &Device<'_>, instance: &Device<'_>, index: u32, parent: &str) -> Result<Found, Unusable> {
    // First, because it says which others have the same memory.
    let ids = ids(nvml, instance);
    let gpu_instance = ids.as_ref().ok().map(|[gpu_instance, _]| *gpu_instance);
    let failed = |uuid: Option<&String>, field: &str, reason: String| Unusable::Unreadable {
        uuid: uuid.cloned(),
        gpu_instance,
        field: format!("{field} of instance {index}"),
        reason,
    };
    let uuid = instance
        .uuid()
        .map_err(|error| failed(None, "UUID", error.to_string()))?;
    let named = |field: &'static str| {
        let (failed, uuid) = (&failed, &uuid);
        move |error: NvmlError| failed(Some(uuid), field, error.to_string())
    };
    let [gpu_instance, compute_instance] = ids.map_err(named("ids"))?;
    let name = instance.name().map_err(named("name"))?;
    let profile = name.rsplit_once(BEFORE_PROFILE).map(|(_, profile)| profile.to_owned());
    let profile = profile.ok_or_else(|| failed(Some(&uuid), "profile", format!("it is named {name:?}")))?;
    let memory = memory_by_nvml(instance).map_err(named("memory"))?;
    let attributes = instance.attributes().map_err(named("attributes"))?;
    let by_attributes = attributes.memory_size_mb * MIB;
    Ok(Found {
        memory: memory.unwrap_or(by_attributes),
        instance: Instance {
            parent: parent.to_owned(),
            index,
            profile,
            gpu_instance,
            compute_instance,
            placement: placement(nvml, device, gpu_instance).ok(),
            multiprocessors: attributes.multiprocessor_count,
        },
        uuid,
    })
}

fn unreadable(field: &str, error: &NvmlError) -> Unusable {
    Unusable::Unreadable {
        uuid: None,
        gpu_instance: None,
        field: field.to_owned(),
        reason: error.to_string(),
    }
}

/// The ids of the GPU instance and of the compute instance.
fn ids(nvml: &Nvml, instance: &Device<'_>) -> Result<[u32; 2], NvmlError> {
    let lib = nvml.lib();
    let of_gpu = nvml_sym(lib.nvmlDeviceGetGpuInstanceId.as_ref())?;
    let of_compute = nvml_sym(lib.nvmlDeviceGetComputeInstanceId.as_ref())?;
    let mut ids = [0; 2];
    // SAFETY: the handle is the instance's, and each function writes one number.
    unsafe {
        nvml_try(of_gpu(instance.handle(), &raw mut ids[0]))?;
        nvml_try(of_compute(instance.handle(), &raw mut ids[1]))?;
    }
    Ok(ids)
}

fn placement(nvml: &Nvml, device: &Device<'_>, gpu_instance: u32) -> Result<Placement, NvmlError> {
    let lib = nvml.lib();
    let by_id = nvml_sym(lib.nvmlDeviceGetGpuInstanceById.as_ref())?;
    let get_info = nvml_sym(lib.nvmlGpuInstanceGetInfo.as_ref())?;
    let mut handle = std::ptr::null_mut();
    // SAFETY: the handle is the GPU's, and the function writes one pointer.
    nvml_try(unsafe { by_id(device.handle(), gpu_instance, &raw mut handle) })?;
    // SAFETY: NVML's structure has numbers and a pointer alone, and zeros are values of these.
    let mut info = unsafe { super::raw::zeroed(get_info) };
    // SAFETY: NVML returned the handle, and the structure is the one that the function writes.
    nvml_try(unsafe { get_info(handle, &raw mut info) })?;
    Ok(Placement {
        start: info.placement.start,
        size: info.placement.size,
    })
}

impl Instance {
    /// The UUID of its GPU, and the GPU instance, whose memory all of its compute instances have.
    #[must_use]
    pub fn place(&self) -> (&str, u32) {
        (&self.parent, self.gpu_instance)
    }
}

impl std::fmt::Display for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { profile, placement, .. } = self;
        match placement {
            Some(Placement { start, .. }) => write!(f, "{profile}@{start}"),
            None => write!(f, "{profile}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(gpu_instance: u32, compute_instance: u32) -> Result<Found, Unusable> {
        Ok(Found {
            uuid: format!("MIG-{gpu_instance}-{compute_instance}"),
            memory: 1,
            instance: Instance {
                gpu_instance,
                compute_instance,
                ..Instance::default()
            },
        })
    }

    fn failed(gpu_instance: Option<u32>) -> Result<Found, Unusable> {
        Err(Unusable::Unreadable {
            uuid: None,
            gpu_instance,
            field: "name".into(),
            reason: "GPU is lost".into(),
        })
    }

    /// The UUIDs of those that are not left out.
    fn kept(all: Vec<Result<Found, Unusable>>) -> Vec<String> {
        let kept = alone(all).into_iter().filter_map(Result::ok);
        kept.map(|one| one.uuid).collect()
    }

    #[test]
    fn an_instance_whose_memory_another_one_may_have_is_left_out() {
        assert_eq!(kept(vec![found(1, 0), found(2, 0)]), ["MIG-1-0", "MIG-2-0"]);
        assert_eq!(kept(vec![found(1, 0), found(1, 1), found(2, 0)]), ["MIG-2-0"]);
        assert_eq!(kept(vec![found(1, 0), failed(Some(1)), found(2, 0)]), ["MIG-2-0"]);
        assert_eq!(
            kept(vec![found(1, 0), failed(None)]),
            [""; 0],
            "it may be in any GPU instance"
        );
        assert_eq!(kept(vec![failed(Some(1)), found(2, 0)]), ["MIG-2-0"]);
    }
}

//! Instances of GPUs in MIG mode, as NVML describes them: names and sizes are the driver's, never from a table.
//!
//! NVML lists an instance once it has a compute instance. Its device handle says what it is, and its GPU says where it is,
//! which needs root or `mig/config`. An instance that cannot be read is left out with the reason, and its neighbours are not.

#![allow(unsafe_code)] // nvml-wrapper has no functions for the ids and the placement of an instance.

use super::read_memory::{MIB, memory_by_nvml};
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper::{Device, Nvml};
use serde::{Deserialize, Serialize};

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

/// An instance as NVML describes it.
pub(super) struct Found {
    pub(super) uuid: String,
    /// Bytes.
    pub(super) memory: u64,
    pub(super) instance: Instance,
}

/// A field that could not be read.
pub(super) struct Unreadable {
    /// The instance's UUID, if that could be read.
    pub(super) uuid: Option<String>,
    pub(super) field: String,
    pub(super) reason: String,
}

/// The instances of `device`, a GPU in MIG mode whose UUID is `parent`.
pub(super) fn instances(nvml: &Nvml, device: &Device<'_>, parent: &str) -> Vec<Result<Found, Unreadable>> {
    let count = match device.mig_device_count() {
        Ok(count) => count,
        Err(error) => return vec![Err(unreadable(None, "number of instances", &error))],
    };
    let found = (0..count).filter_map(|index| match device.mig_device_by_index(index) {
        // Indices have gaps. A driver may call an index beyond its instances invalid.
        Err(NvmlError::NotFound | NvmlError::InvalidArg) => None,
        Err(error) => Some(Err(unreadable(None, &format!("instance {index}"), &error))),
        Ok(instance) => Some(read(nvml, device, &instance, index, parent)),
    });
    found.collect()
}

fn read(
    nvml: &Nvml,
    device: &Device<'_>,
    instance: &Device<'_>,
    index: u32,
    parent: &str,
) -> Result<Found, Unreadable> {
    let failed = |uuid: Option<&String>, field: &str| {
        let (uuid, field) = (uuid.cloned(), format!("{field} of instance {index}"));
        move |error: NvmlError| unreadable(uuid, &field, &error)
    };
    let uuid = instance.uuid().map_err(failed(None, "UUID"))?;
    let named = |field| failed(Some(&uuid), field);
    let name = instance.name().map_err(named("name"))?;
    let profile = name.rsplit_once(BEFORE_PROFILE).map(|(_, profile)| profile.to_owned());
    let profile = profile.ok_or_else(|| Unreadable {
        uuid: Some(uuid.clone()),
        field: format!("profile of instance {index}"),
        reason: format!("it is named {name:?}"),
    })?;
    let [gpu_instance, compute_instance] = ids(nvml, instance).map_err(named("ids"))?;
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

fn unreadable(uuid: Option<String>, field: &str, error: &NvmlError) -> Unreadable {
    Unreadable {
        uuid,
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

impl std::fmt::Display for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { profile, placement, .. } = self;
        match placement {
            Some(Placement { start, .. }) => write!(f, "{profile}@{start}"),
            None => write!(f, "{profile}"),
        }
    }
}

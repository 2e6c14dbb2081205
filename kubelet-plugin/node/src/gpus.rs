//! Lists a machine's GPUs through NVML.

mod memory_sizes;
mod mig;
mod nvlink;
pub mod raw;
mod read_memory;
mod read_nvlink;
mod sysfs;

pub use memory_sizes::{MemorySizes, MemorySource};
pub use mig::{Instance, Placement};
pub use sysfs::{PciGpu, nvidia_gpus};

use crate::driver_limit::DriverLimit;
use crate::files;
use nvlink::{Islands, Linked, Links};
use nvml_wrapper::enum_wrappers::device::Brand;
use nvml_wrapper::enums::device::DeviceArchitecture;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Nvml, cuda_driver_version_major, cuda_driver_version_minor};
use read_memory::memory_by_nvml;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::path::Path;

/// One physical GPU, or an instance of a GPU in MIG mode, as its driver describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// As NVML prints it: `GPU-3f8a1c20-1111-2222-3333-444455556666`, or `MIG-` for an instance.
    #[serde(deserialize_with = "files::safe_uuid")]
    pub uuid: String,
    pub index: u32,
    /// The N of /dev/nvidiaN.
    pub minor: Option<u32>,
    pub name: String,
    pub brand: String,
    pub architecture: String,
    /// Major and minor.
    pub compute_capability: (i32, i32),
    /// As the driver prints it: `535.161.08`, which is no semantic version.
    pub driver_version: String,
    /// Major and minor.
    pub cuda_version: (i32, i32),
    /// Memory for shares, in whole MiB: by NVML total minus reserved.
    pub memory: u64,
    #[serde(default, skip_serializing_if = "MemorySource::is_nvml")]
    pub memory_source: MemorySource,
    /// Domain, bus, device and function as the kernel writes them: `0000:3b:00.0`.
    pub pci_bus_id: Option<String>,
    pub pcie_root: Option<String>,
    pub numa_node: Option<u32>,
    /// Equal for GPUs that reach each other over NVLink. None: the GPU has no NVLink to another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nvlink_clique: Option<String>,
    /// Whether the driver limits the memory of cgroups on this GPU. None: nobody has asked; NVML's list does not say it. A
    /// claim's record has only what was found out, because a release that does not know [`DriverLimit::Unknown`] could not
    /// read the record.
    #[serde(default, skip_serializing_if = "is_not_found_out")]
    pub driver_limit: Option<DriverLimit>,
    /// The instance, if it is one: then only UUID and memory are its own, and all other fields are those of its GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<Instance>,
}

/// The result of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    pub gpus: Vec<Gpu>,
    /// The instances of GPUs in MIG mode, which themselves are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<Gpu>,
    /// The GPUs in MIG mode themselves, without memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub divided: Vec<Gpu>,
    pub left_out: Vec<LeftOut>,
    /// What GPUs say of their NVLinks and do not agree on: a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contradictions: Vec<String>,
}

/// A GPU that NVML lists but that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Its UUID, if that could be read.
    pub uuid: Option<String>,
    pub why: Error,
}

/// Why a GPU cannot be used, or none can.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Error {
    #[error("the NVIDIA driver's {field} cannot be read: {reason}; check the NVIDIA driver")]
    Driver { field: Cow<'static, str>, reason: String },
    #[error("GPU {index}: {field} cannot be read: {reason}; check the NVIDIA driver")]
    Field {
        index: u32,
        field: Cow<'static, str>,
        reason: String,
    },
    #[error(
        "GPU {uuid}: its MIG mode was switched off while claims may have instances of it (chart value mig.dynamic); switch it on \
         (nvidia-smi -i {uuid} -mig 1), or restart the plugin to publish the GPU as a whole"
    )]
    SwitchedOff { uuid: String },
    #[error(
        "GPU {uuid} is in MIG mode, so it cannot be shared as a whole; switch MIG off (nvidia-smi -i {uuid} -mig 0) to share it{}",
        beside(instances)
    )]
    Mig {
        uuid: String,
        /// Its instances, for the reader: profile, place and UUID of each.
        instances: Vec<String>,
    },
    #[error(
        "GPU instance {gpu_instance} has, or may have, {count} compute instances, and each has all of its memory; keep one of \
         them (nvidia-smi mig -dci), or make a GPU instance for each"
    )]
    SeveralInstances { gpu_instance: u32, count: usize },
    #[error(
        "GPU {gpu}: GPU instance {gpu_instance} has no compute instance, so no program can use it; make one (nvidia-smi mig \
         -i {index} -gi {gpu_instance} -cci), or destroy it (nvidia-smi mig -i {index} -gi {gpu_instance} -dgi)"
    )]
    EmptyInstance { gpu: String, index: u32, gpu_instance: u32 },
    /// NVML has no figure of its memory, and no size is configured.
    #[error(
        "GPU {uuid}: the driver has no figure of the memory of {product:?}, which the GPU shares with the system; say how \
         much of it shares may have: gpuMemory: {{{product:?}: 96Gi}} in the chart's values, --gpu-memory \
         '{product}=96Gi' of vgpu run"
    )]
    NoMemoryFigure { uuid: String, product: String },
    #[error("the NVIDIA driver lists no GPU; check nvidia-smi")]
    NoGpu,
}

/// The beginning of an instance's UUID.
pub const UUID_OF_INSTANCE: &str = "MIG-";

// === impl Gpu ===

impl Gpu {
    /// Returns true if a container that has one of the two can use hardware of the other: a GPU and its instances, or two
    /// instances in the same place, of which one came after the other. An instance in an unknown place may be anywhere.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        if self.is_in_unknown_place() || other.is_in_unknown_place() {
            return true;
        }
        match (&self.mig, &other.mig) {
            (None, None) => self.uuid == other.uuid,
            (Some(mig), None) => mig.parent == other.uuid,
            (None, Some(mig)) => mig.parent == self.uuid,
            (Some(mig), Some(others)) => mig.place() == others.place(),
        }
    }

    /// Returns true if no claim may have this device beside one that has `other`.
    #[must_use]
    pub fn is_excluded_by(&self, other: &Self) -> bool {
        self.overlaps(other) && !self.is_same(other)
    }

    /// Returns true if it is the same GPU or instance. Another instance in the same place may have the same UUID.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let of = |gpu: &Self| {
            let mig = gpu.mig.as_ref()?;
            Some((mig.profile.clone(), mig.placement, mig.compute_instance))
        };
        let is_like = || self.is_in_unknown_place() || other.is_in_unknown_place() || of(self) == of(other);
        self.uuid == other.uuid && self.overlaps(other) && is_like()
    }

    /// An instance of which only the UUID is known; None: it is the UUID of a GPU.
    #[must_use]
    pub fn in_unknown_place(uuid: &str) -> Option<Self> {
        uuid.starts_with(UUID_OF_INSTANCE).then(|| Self {
            uuid: uuid.to_owned(),
            ..Self::default()
        })
    }

    #[must_use]
    pub fn is_in_unknown_place(&self) -> bool {
        self.mig.is_none() && self.uuid.starts_with(UUID_OF_INSTANCE)
    }

    /// Returns true if the driver limits the memory of cgroups on this GPU.
    #[must_use]
    pub fn has_driver_limit(&self) -> bool {
        self.driver_limit.as_ref().is_some_and(DriverLimit::is_kept)
    }
}

/// Returns a sentence that names the instances, if there are any.
fn beside(instances: &[String]) -> String {
    match instances {
        [] => String::new(),
        _ => format!(". It has the instances {}", instances.join(", ")),
    }
}

fn is_not_found_out(answer: &Option<DriverLimit>) -> bool {
    matches!(answer, None | Some(DriverLimit::Unknown(_)))
}

// === impl List ===

impl List {
    /// Collects the GPUs that could be read. A lost GPU does not hide the others.
    #[must_use]
    pub fn new(read: impl IntoIterator<Item = Result<Gpu, LeftOut>>) -> Self {
        let mut list = Self::default();
        for gpu in read {
            match gpu {
                Ok(gpu) => list.gpus.push(gpu),
                Err(left_out) => list.left_out.push(left_out),
            }
        }
        list
    }

    /// Returns why there is no GPU in the list; None if there is one.
    #[must_use]
    pub fn why_empty(&self) -> Option<Error> {
        let first = self.left_out.first().map_or(Error::NoGpu, |left| left.why.clone());
        self.gpus.is_empty().then_some(first)
    }
}

/// Returns the GPUs by index, and those that are left out. `sizes`: configured sizes of memory.
///
/// # Errors
/// The driver itself cannot be asked.
pub fn list(nvml: &Nvml, sizes: &MemorySizes) -> Result<List, Error> {
    let driver_version = nvml.sys_driver_version().map_err(failed("driver version"))?;
    let cuda = nvml.sys_cuda_driver_version().map_err(failed("CUDA version"))?;
    let cuda_version = (cuda_driver_version_major(cuda), cuda_driver_version_minor(cuda));
    let count = nvml.device_count().map_err(failed("device count"))?;
    let mut links = Vec::new();
    let mut divided = Divided::default();
    let read = |index| {
        let asked = Asked {
            nvml,
            sys: Path::new("/sys"),
            sizes,
            driver_version: &driver_version,
            cuda_version,
        };
        let (gpu, of_gpu) = read_one(&asked, index, &mut divided)?;
        links.push(of_gpu);
        Ok(gpu)
    };
    let mut list = List::new((0..count).map(read));
    list.divided = divided.gpus;
    for instance in divided.instances {
        match instance {
            Ok(instance) => list.instances.push(instance),
            Err(left_out) => list.left_out.push(left_out),
        }
    }
    let linked = list.gpus.iter().zip(&links);
    let linked: Vec<Linked<'_>> = linked
        .map(|(gpu, links)| (gpu.uuid.as_str(), gpu.pci_bus_id.as_deref(), links))
        .collect();
    let Islands {
        mut names,
        contradictions,
    } = Islands::of(&linked);
    for gpu in &mut list.gpus {
        gpu.nvlink_clique = names.remove(&gpu.uuid);
    }
    list.contradictions = contradictions;
    Ok(list)
}

/// Returns a function that converts NVML's error on reading `field` of the driver.
pub fn failed(field: &'static str) -> impl Fn(NvmlError) -> Error {
    move |error| Error::Driver {
        field: Cow::Borrowed(field),
        reason: error.to_string(),
    }
}

/// The same for all GPUs of a scan.
struct Asked<'a> {
    nvml: &'a Nvml,
    sys: &'a Path,
    sizes: &'a MemorySizes,
    driver_version: &'a str,
    cuda_version: (i32, i32),
}

/// The GPUs in MIG mode, and their instances: those that could be read, and those that could not.
#[derive(Default)]
struct Divided {
    gpus: Vec<Gpu>,
    instances: Vec<Result<Gpu, LeftOut>>,
}

/// Reads a GPU. One in MIG mode is added to `divided` with its instances.
fn read_one(asked: &Asked<'_>, index: u32, divided: &mut Divided) -> Result<(Gpu, Links), LeftOut> {
    let unreadable = |uuid: Option<&String>, field: &'static str| {
        let uuid = uuid.cloned();
        move |error: NvmlError| LeftOut {
            uuid,
            why: Error::Field {
                index,
                field: Cow::Borrowed(field),
                reason: error.to_string(),
            },
        }
    };
    let nvml = asked.nvml;
    let device = nvml.device_by_index(index).map_err(unreadable(None, "handle"))?;
    let uuid = device.uuid().map_err(unreadable(None, "UUID"))?;
    let failed = |field: &'static str| unreadable(Some(&uuid), field);
    let name = device.name().map_err(failed("name"))?;
    let capability = device.cuda_compute_capability().map_err(failed("compute capability"))?;
    let pci_bus_id = device
        .pci_info()
        .ok()
        .and_then(|pci| sysfs::kernel_spelling(&pci.bus_id));
    let mut gpu = Gpu {
        index,
        minor: device.minor_number().ok(),
        name,
        brand: device.brand().map_or("Unknown", brand).to_owned(),
        architecture: device.architecture().unwrap_or(DeviceArchitecture::Unknown).to_string(),
        compute_capability: (capability.major, capability.minor),
        driver_version: asked.driver_version.to_owned(),
        cuda_version: asked.cuda_version,
        pcie_root: pci_bus_id.as_deref().and_then(|id| sysfs::pcie_root(asked.sys, id)),
        numa_node: pci_bus_id.as_deref().and_then(|id| sysfs::numa_node(asked.sys, id)),
        pci_bus_id,
        uuid: uuid.clone(),
        ..Gpu::default()
    };
    if is_divided(&device).map_err(failed("MIG mode"))? {
        let found = mig::instances(nvml, &device, &uuid).into_iter();
        let found: Vec<Result<Gpu, LeftOut>> = found.map(|one| one_of(&gpu, one)).collect();
        let named = found
            .iter()
            .flatten()
            .filter_map(|one| Some(format!("{} ({})", one.mig.as_ref()?, one.uuid)));
        let why = Error::Mig {
            uuid: uuid.clone(),
            instances: named.collect(),
        };
        divided.instances.extend(found);
        divided.gpus.push(gpu);
        return Err(LeftOut { uuid: Some(uuid), why });
    }
    let by_nvml = memory_by_nvml(&device).map_err(failed("memory"))?;
    let sized = asked.sizes.of(&gpu.name, by_nvml);
    (gpu.memory, gpu.memory_source) = sized.ok_or_else(|| no_figure(&uuid, &gpu.name))?;
    let links = read_nvlink::links(nvml, &device);
    Ok((gpu, links))
}

/// Returns true if a GPU is in MIG mode.
///
/// # Errors
/// The driver does not say it: then the GPU must not be taken for a whole one.
pub fn is_divided(device: &nvml_wrapper::Device<'_>) -> Result<bool, NvmlError> {
    use NvmlError::{FailedToLoadSymbol, FunctionNotFound, InvalidArg, NotSupported};
    match device.mig_mode() {
        Ok(mode) => Ok(mode.current != 0),
        // GPUs and drivers without MIG.
        Err(NotSupported | InvalidArg | FunctionNotFound | FailedToLoadSymbol(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// An instance of `gpu`, with its properties, or why it is left out.
fn one_of(gpu: &Gpu, found: Result<mig::Found, mig::Unusable>) -> Result<Gpu, LeftOut> {
    let (uuid, why) = match found {
        Ok(mig::Found { uuid, memory, instance }) => {
            return Ok(Gpu {
                uuid,
                memory,
                mig: Some(instance),
                ..gpu.clone()
            });
        }
        Err(mig::Unusable::Unreadable {
            uuid, field, reason, ..
        }) => {
            let (index, field) = (gpu.index, Cow::Owned(field));
            (uuid, Error::Field { index, field, reason })
        }
        Err(mig::Unusable::Several {
            uuid,
            gpu_instance,
            count,
        }) => (Some(uuid), Error::SeveralInstances { gpu_instance, count }),
        Err(mig::Unusable::Empty { gpu_instance }) => {
            let (gpu, index) = (gpu.uuid.clone(), gpu.index);
            (
                None,
                Error::EmptyInstance {
                    gpu,
                    index,
                    gpu_instance,
                },
            )
        }
    };
    Err(LeftOut { uuid, why })
}

fn no_figure(uuid: &str, product: &str) -> LeftOut {
    LeftOut {
        uuid: Some(uuid.to_owned()),
        why: Error::NoMemoryFigure {
            uuid: uuid.to_owned(),
            product: product.to_owned(),
        },
    }
}

/// The names that NVIDIA's DRA driver publishes.
fn brand(brand: Brand) -> &'static str {
    match brand {
        Brand::Unknown => "Unknown",
        Brand::Quadro => "Quadro",
        Brand::Tesla => "Tesla",
        Brand::NVS => "NVS",
        Brand::GRID => "Grid",
        Brand::GeForce => "GeForce",
        Brand::Titan => "Titan",
        Brand::VApps => "NvidiaVApps",
        Brand::VPC => "NvidiaVPC",
        Brand::VCS => "NvidiaVCS",
        Brand::VWS => "NvidiaVWS",
        Brand::CloudGaming | Brand::VGaming => "NvidiaCloudGaming",
        Brand::QuadroRTX => "QuadroRTX",
        Brand::NvidiaRTX => "NvidiaRTX",
        Brand::Nvidia => "Nvidia",
        Brand::GeForceRTX => "GeForceRTX",
        Brand::TitanRTX => "TitanRTX",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_gpu_does_not_hide_the_others() {
        let lost = LeftOut {
            uuid: None,
            why: Error::Field {
                index: 0,
                field: "memory".into(),
                reason: "GPU is lost".into(),
            },
        };
        let list = List::new([Err(lost.clone()), Ok(Gpu::default())]);
        assert_eq!(list.gpus, [Gpu::default()]);
        assert_eq!((&list.left_out[..], list.why_empty()), (&[lost.clone()][..], None));
        let mig = LeftOut {
            uuid: Some("x".into()),
            why: Error::Mig {
                uuid: "x".into(),
                instances: Vec::new(),
            },
        };
        assert_eq!(List::new([Err(lost.clone()), Err(mig)]).why_empty(), Some(lost.why));
        assert_eq!(List::new([]).why_empty(), Some(Error::NoGpu));
    }

    #[test]
    fn a_gpu_in_mig_mode_names_its_instances() {
        let said = |instances: &[&str]| {
            let instances = instances.iter().map(|one| (*one).to_owned()).collect();
            let uuid = "GPU-x".into();
            Error::Mig { uuid, instances }.to_string()
        };
        assert!(
            said(&[]).ends_with("(nvidia-smi -i GPU-x -mig 0) to share it"),
            "{}",
            said(&[])
        );
        let two = said(&["3g.40gb@0 (MIG-a)", "1g.10gb@4 (MIG-b)"]);
        assert!(
            two.ends_with("It has the instances 3g.40gb@0 (MIG-a), 1g.10gb@4 (MIG-b)"),
            "{two}"
        );
    }
}

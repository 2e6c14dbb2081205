//! Reads GPUs through NVML, loaded from the driver root: NVIDIA's own or the software GPU's.
//!
//! The library is initialised once and kept, because initialising it for every scan costs seconds on a node
//! without persistence mode. The next scan retries a failed initialisation.

use super::{Error, Gpu, Gpus, LeftOut, List, sysfs};
use crate::driver;
use nvml_wrapper::enum_wrappers::device::Brand;
use nvml_wrapper::enums::device::DeviceArchitecture;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Nvml, cuda_driver_version_major, cuda_driver_version_minor};
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

const MIB: u64 = 1 << 20;

/// The GPUs of one driver root.
pub struct NvmlGpus {
    driver_root: PathBuf,
    sys: PathBuf,
    nvml: Mutex<Option<Nvml>>,
}

// === impl NvmlGpus ===

impl NvmlGpus {
    #[must_use]
    pub fn new(driver_root: PathBuf) -> Self {
        Self {
            driver_root,
            sys: PathBuf::from("/sys"),
            nvml: Mutex::new(None),
        }
    }
}

impl Gpus for NvmlGpus {
    fn list(&self) -> Result<List, Error> {
        let mut kept = self.nvml.lock().unwrap_or_else(PoisonError::into_inner);
        let nvml = match kept.take() {
            Some(nvml) => nvml,
            None => start(&self.driver_root)?,
        };
        // Kept only if it works: after a driver upgrade an old handle fails for ever.
        let list = read_all(&nvml, &self.sys)?;
        *kept = Some(nvml);
        Ok(list)
    }
}

/// Loads NVML from the driver root.
pub(crate) fn start(driver_root: &Path) -> Result<Nvml, Error> {
    let library = driver::find_nvml(driver_root).map_err(|missing| Error::NoLibrary {
        root: driver_root.to_path_buf(),
        missing: missing.to_string(),
    })?;
    Nvml::builder()
        .lib_path(library.as_os_str())
        .init()
        .map_err(|error| Error::Init {
            library,
            reason: error.to_string(),
        })
}

fn read_all(nvml: &Nvml, sys: &Path) -> Result<List, Error> {
    let of_driver = |field: &'static str| {
        move |error: NvmlError| Error::Field {
            index: 0,
            field: Cow::Borrowed(field),
            reason: error.to_string(),
        }
    };
    let driver_version = nvml.sys_driver_version().map_err(of_driver("driver version"))?;
    let cuda = nvml.sys_cuda_driver_version().map_err(of_driver("CUDA version"))?;
    let cuda_version = (cuda_driver_version_major(cuda), cuda_driver_version_minor(cuda));
    let count = nvml.device_count().map_err(of_driver("device count"))?;
    let read = |index| read_one(nvml, sys, index, &driver_version, cuda_version);
    Ok(List::new((0..count).map(read)))
}

fn read_one(
    nvml: &Nvml,
    sys: &Path,
    index: u32,
    driver_version: &str,
    cuda_version: (i32, i32),
) -> Result<Gpu, LeftOut> {
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
    let device = nvml.device_by_index(index).map_err(unreadable(None, "handle"))?;
    let uuid = device.uuid().map_err(unreadable(None, "UUID"))?;
    let failed = |field: &'static str| unreadable(Some(&uuid), field);
    // Drivers and GPUs without MIG return an error here.
    if device.mig_mode().is_ok_and(|mode| mode.current != 0) {
        return Err(LeftOut {
            uuid: Some(uuid.clone()),
            why: Error::Mig(uuid),
        });
    }
    let memory = device.memory_info().map_err(failed("memory"))?;
    let capability = device.cuda_compute_capability().map_err(failed("compute capability"))?;
    let pci_bus_id = device
        .pci_info()
        .ok()
        .and_then(|pci| sysfs::kernel_spelling(&pci.bus_id));
    Ok(Gpu {
        index,
        minor: device.minor_number().ok(),
        name: device.name().map_err(failed("name"))?,
        brand: device.brand().map_or("Unknown", brand).to_owned(),
        architecture: device.architecture().unwrap_or(DeviceArchitecture::Unknown).to_string(),
        compute_capability: (capability.major, capability.minor),
        driver_version: driver_version.to_owned(),
        cuda_version,
        memory: memory.total.saturating_sub(memory.reserved) / MIB * MIB,
        pcie_root: pci_bus_id.as_deref().and_then(|id| sysfs::pcie_root(sys, id)),
        numa_node: pci_bus_id.as_deref().and_then(|id| sysfs::numa_node(sys, id)),
        pci_bus_id,
        uuid,
    })
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
    fn a_node_without_a_driver_says_where_it_looked() {
        let root = tempfile::tempdir().expect("a folder");
        let error = NvmlGpus::new(root.path().to_path_buf()).list().expect_err("no driver");
        assert!(matches!(&error, Error::NoLibrary { root: named, .. } if named == root.path()));
        let error = error.to_string();
        for place in [
            "--driver-root",
            "/etc/ld.so.cache",
            "/usr/local/nvidia/lib64",
            "driverRoot",
        ] {
            assert!(error.contains(place), "{place}: {error}");
        }
    }

    #[test]
    fn a_library_that_is_none_is_named() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("usr/lib64");
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::write(folder.join("libnvidia-ml.so.1"), "not ELF").expect("written");
        let error = NvmlGpus::new(root.path().to_path_buf()).list().expect_err("no library");
        assert!(
            matches!(&error, Error::Init { library, .. } if library.starts_with(root.path())),
            "{error}"
        );
    }
}

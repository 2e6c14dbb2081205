//! Reads from sysfs what NVML does not report about a PCI device: its root and its NUMA node. `None` if the
//! kernel has no value, as for a software GPU and in some virtual machines. Also lists NVIDIA's GPUs without NVML, to
//! distinguish a missing driver from a machine without a GPU.

use std::fs;
use std::path::Path;

const NVIDIA: &str = "0x10de";
/// PCI classes of GPUs: VGA controllers and 3D controllers. A GPU's sound and USB controllers and NVSwitches have others.
const GPU_CLASSES: [&str; 2] = ["0x0300", "0x0302"];

/// An NVIDIA GPU as the kernel lists it, with or without a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciGpu {
    /// Domain, bus, device and function: `0000:3b:00.0`.
    pub address: String,
    /// The kernel driver that is bound to it, such as `nvidia`, `nouveau` or `vfio-pci`; None if there is none.
    pub driver: Option<String>,
}

// === impl PciGpu ===

impl PciGpu {
    /// Returns true if the kernel keeps the GPU for virtual machines. NVIDIA's driver on this machine cannot use it then.
    #[must_use]
    pub fn is_passed_through(&self) -> bool {
        let driver = self.driver.as_deref().unwrap_or_default();
        // `vfio-pci`, and NVIDIA's variant `nvgrace_gpu_vfio_pci`; the others are older ways of KVM and Xen.
        driver.contains("vfio") || matches!(driver, "pci-stub" | "pciback")
    }
}

/// NVIDIA's GPUs on the PCI bus, by address. Virtual functions are left out, because their GPU is listed itself. Empty if `sys`
/// cannot be read.
#[must_use]
pub fn nvidia_gpus(sys: &Path) -> Vec<PciGpu> {
    let entries = fs::read_dir(sys.join("bus/pci/devices")).into_iter().flatten();
    let gpu = |entry: fs::DirEntry| {
        let folder = entry.path();
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        let class = read("class");
        let is_gpu = read("vendor").trim() == NVIDIA && GPU_CLASSES.iter().any(|of_gpus| class.starts_with(of_gpus));
        if !is_gpu || folder.join("physfn").exists() {
            return None;
        }
        let driver = fs::read_link(folder.join("driver")).ok();
        Some(PciGpu {
            address: entry.file_name().into_string().ok()?,
            driver: driver.and_then(|path| Some(path.file_name()?.to_str()?.to_owned())),
        })
    };
    let mut gpus: Vec<PciGpu> = entries.flatten().filter_map(gpu).collect();
    gpus.sort_by(|one, other| one.address.cmp(&other.address));
    gpus
}

/// Converts NVML's bus ID, whose domain has eight digits, to the kernel's: four digits, lower case.
#[must_use]
pub(super) fn kernel_spelling(nvml: &str) -> Option<String> {
    let lower = nvml.trim().to_ascii_lowercase();
    let (domain, rest) = lower.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    let well_formed = rest.len() == 7 && rest.as_bytes()[2] == b':' && rest.as_bytes()[5] == b'.';
    well_formed.then(|| format!("{domain:04x}:{rest}"))
}

/// The PCIe root (`pci0000:3a`) of a device, from the path of its folder.
#[must_use]
pub(super) fn pcie_root(sys: &Path, bus_id: &str) -> Option<String> {
    let place = fs::canonicalize(sys.join("bus/pci/devices").join(bus_id)).ok()?;
    let root = place.components().find_map(|component| {
        let name = component.as_os_str().to_str()?;
        name.starts_with("pci").then(|| name.to_owned())
    });
    root.filter(|name| name.contains(':'))
}

/// The NUMA node of a device; the kernel writes -1 if it has none.
#[must_use]
pub(super) fn numa_node(sys: &Path, bus_id: &str) -> Option<u32> {
    let path = sys.join("bus/pci/devices").join(bus_id).join("numa_node");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids_are_spelt_as_the_kernel_does() {
        assert_eq!(kernel_spelling("00000000:3B:00.0").as_deref(), Some("0000:3b:00.0"));
        assert_eq!(kernel_spelling("00010000:01:00.1").as_deref(), Some("10000:01:00.1"));
        for bad in ["", "3B:00.0", "x:3b:00.0", "0000:3b-00.0", "../../etc"] {
            assert_eq!(kernel_spelling(bad), None, "{bad}");
        }
    }

    #[test]
    fn gpus_are_told_from_other_devices_and_from_those_of_virtual_machines() {
        let sys = tempfile::tempdir().expect("a folder");
        assert_eq!(nvidia_gpus(sys.path()), []);
        let device = |address: &str, vendor: &str, class: &str, driver: Option<&str>| {
            let folder = sys.path().join("bus/pci/devices").join(address);
            fs::create_dir_all(&folder).expect("a device");
            fs::write(folder.join("vendor"), format!("{vendor}\n")).expect("written");
            fs::write(folder.join("class"), format!("{class}\n")).expect("written");
            if let Some(driver) = driver {
                let target = Path::new("../../../bus/pci/drivers").join(driver);
                std::os::unix::fs::symlink(target, folder.join("driver")).expect("a link");
            }
            folder
        };
        device("0000:86:00.0", "0x10de", "0x030200", Some("vfio-pci"));
        device("0000:3b:00.0", "0x10de", "0x030000", None);
        device("0000:3b:00.1", "0x10de", "0x040300", Some("snd_hda_intel"));
        device("0000:05:00.0", "0x10de", "0x068000", None);
        device("0000:00:02.0", "0x8086", "0x030000", Some("i915"));
        let function = device("0000:3b:00.4", "0x10de", "0x030200", None);
        std::os::unix::fs::symlink("../0000:3b:00.0", function.join("physfn")).expect("a link");
        let found = nvidia_gpus(sys.path());
        let named: Vec<_> = found
            .iter()
            .map(|gpu| (gpu.address.as_str(), gpu.driver.as_deref(), gpu.is_passed_through()))
            .collect();
        assert_eq!(
            named,
            [("0000:3b:00.0", None, false), ("0000:86:00.0", Some("vfio-pci"), true)]
        );
    }

    #[test]
    fn root_and_node_are_read_where_present() {
        let sys = tempfile::tempdir().expect("a folder");
        let device = sys.path().join("devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0");
        fs::create_dir_all(&device).expect("a device");
        fs::create_dir_all(sys.path().join("bus/pci/devices")).expect("a bus");
        std::os::unix::fs::symlink(&device, sys.path().join("bus/pci/devices/0000:3b:00.0")).expect("a link");
        assert_eq!(pcie_root(sys.path(), "0000:3b:00.0").as_deref(), Some("pci0000:3a"));
        assert_eq!(numa_node(sys.path(), "0000:3b:00.0"), None);
        fs::write(device.join("numa_node"), "-1\n").expect("written");
        assert_eq!(numa_node(sys.path(), "0000:3b:00.0"), None);
        fs::write(device.join("numa_node"), "1\n").expect("written");
        assert_eq!(numa_node(sys.path(), "0000:3b:00.0"), Some(1));
        assert_eq!(pcie_root(sys.path(), "0000:00:00.0"), None);
    }
}

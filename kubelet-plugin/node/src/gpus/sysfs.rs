//! Reads from sysfs what NVML does not report about a PCI device: its root and its NUMA node. `None` if the
//! kernel has no value, as for a software GPU and in some virtual machines.

use std::fs;
use std::path::Path;

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

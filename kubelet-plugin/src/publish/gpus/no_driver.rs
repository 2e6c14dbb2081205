//! A node with NVIDIA GPUs and no driver for them: why the plugin is not ready there.
//!
//! Without this, a forgotten `driverRoot` would go unnoticed: every pod Ready, and no GPU in the cluster. While a
//! driver container is still starting, the plugin is not ready for the same reason, and becomes ready by itself.
//!
//! GPUs that the kernel keeps for virtual machines (vfio-pci) do not count: whoever passes them through wants no driver on the
//! node, and no claim can have them.

use crate::config::Config;
use vgpu_api::advice;
use vgpu_node::gpus::{PciGpu, nvidia_gpus};

/// The beginning of the reason, by which the VgpuNode distinguishes a missing driver from one that fails.
pub(crate) const BEGIN: &str = "this node has NVIDIA GPUs and no driver for them";
/// How many GPUs are named: an event has room for 1000 characters.
const NAMED: usize = 4;

/// Why the node's GPUs cannot be used; `missing` names the library and the searched paths. None: it has no GPU for
/// containers.
pub(super) fn reason(config: &Config, missing: &str) -> Option<String> {
    let mut gpus = nvidia_gpus(&config.sys);
    gpus.retain(|gpu| !gpu.is_passed_through());
    if gpus.is_empty() {
        return None;
    }
    let name = |gpu: &PciGpu| match &gpu.driver {
        Some(driver) => format!("{} (kernel driver {driver})", gpu.address),
        None => format!("{} (no kernel driver)", gpu.address),
    };
    let mut named: Vec<String> = gpus.iter().take(NAMED).map(name).collect();
    if gpus.len() > NAMED {
        named.push(format!("{} more", gpus.len() - NAMED));
    }
    Some(format!(
        "{BEGIN}: {}. Below driverRoot {}, {missing}. If the driver is elsewhere, {}; else install it. A driver that is still \
         being installed is found once it is there",
        named.join(", "),
        config.driver_root_host.display(),
        advice::DRIVER_ROOT
    ))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// Adds an NVIDIA GPU to a made-up /sys.
    pub(crate) fn gpu(sys: &Path, address: &str, driver: Option<&str>) {
        let folder = sys.join("bus/pci/devices").join(address);
        fs::create_dir_all(&folder).expect("a device");
        for (name, text) in [("vendor", "0x10de\n"), ("class", "0x030200\n")] {
            fs::write(folder.join(name), text).expect("written");
        }
        if let Some(driver) = driver {
            std::os::unix::fs::symlink(Path::new("drivers").join(driver), folder.join("driver")).expect("a link");
        }
    }

    #[test]
    fn a_node_of_sixteen_gpus_still_says_what_to_do_in_an_event() {
        let dir = tempfile::tempdir().expect("a folder");
        let rig = crate::dra::node::tests::Rig::new(false);
        let config = Config {
            sys: dir.path().to_owned(),
            ..rig.config()
        };
        assert_eq!(reason(&config, "x"), None);
        for bus in 0..16 {
            gpu(dir.path(), &format!("0000:{bus:02x}:00.0"), None);
        }
        let missing = crate::driver::find_nvml(&dir.path().join("none")).expect_err("no driver");
        let said = reason(&config, &missing.to_string()).expect("GPUs");
        assert!(
            said.contains("0000:03:00.0 (no kernel driver), 12 more. Below driverRoot"),
            "{said}"
        );
        assert!(
            said.len() < 1000 && said.contains(advice::DRIVER_ROOT),
            "{}: {said}",
            said.len()
        );
    }
}

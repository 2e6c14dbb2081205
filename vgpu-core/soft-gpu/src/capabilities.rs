//! Plain files that stand for the capability nodes of instances and for what the kernel module says of these in /proc: both
//! below the state folder, in `dev` and `proc`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::mig::{GpuInstance, Instance};

/// The minor number of the node that lets a process make and end instances.
const CONFIG: u32 = 1;

/// The name of a capability node.
pub(crate) fn node_name(minor: u32) -> String {
    format!("nvidia-cap{minor}")
}

/// Returns true if a folder of capability nodes lets its owner make and end instances.
pub(crate) fn may_configure(caps: &Path) -> bool {
    caps.join(node_name(CONFIG)).exists()
}

/// The files of a state folder.
pub(crate) struct Files<'a> {
    pub(crate) dir: &'a Path,
    /// False: the files in `dev` stay as they are, as without nvidia-modprobe.
    pub(crate) with_nodes: bool,
}

impl Files<'_> {
    fn nodes(&self) -> PathBuf {
        self.dir.join("dev/nvidia-caps")
    }

    fn of_kernel(&self) -> PathBuf {
        self.dir.join("proc/driver/nvidia/capabilities")
    }

    fn of_gpu_instance(&self, of: &GpuInstance) -> PathBuf {
        self.of_kernel().join(format!("gpu{}/mig/gi{}", of.parent, of.id()))
    }

    fn of_compute(&self, instance: &Instance) -> PathBuf {
        let id = instance.compute.unwrap_or(0);
        self.of_gpu_instance(&instance.of).join(format!("ci{id}"))
    }

    /// Removes all of them.
    pub(crate) fn clear(&self) -> io::Result<()> {
        for folder in [self.nodes(), self.of_kernel()] {
            match fs::remove_dir_all(&folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn add(&self, folder: &Path, minor: u32) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let text = format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
        fs::write(folder.join("access"), text)?;
        if self.with_nodes {
            fs::create_dir_all(self.nodes())?;
            fs::write(self.nodes().join(node_name(minor)), "")?;
        }
        Ok(())
    }

    /// A file that is missing already, or that this process may not remove, is left.
    fn remove(&self, folder: &Path, minor: u32) {
        let _ = fs::remove_dir_all(folder);
        if self.with_nodes {
            let _ = fs::remove_file(self.nodes().join(node_name(minor)));
        }
    }

    /// The node that lets a process make and end instances is there once a GPU has MIG mode.
    pub(crate) fn add_config(&self) -> io::Result<()> {
        self.add(&self.of_kernel().join("mig/config"), CONFIG)
    }

    pub(crate) fn add_gpu_instance(&self, of: &GpuInstance) -> io::Result<()> {
        self.add(&self.of_gpu_instance(of), of.minor())
    }

    pub(crate) fn remove_gpu_instance(&self, of: &GpuInstance) {
        self.remove(&self.of_gpu_instance(of), of.minor());
    }

    pub(crate) fn add_compute(&self, instance: &Instance) -> io::Result<()> {
        self.add(&self.of_compute(instance), instance.minors()[1])
    }

    pub(crate) fn remove_compute(&self, instance: &Instance) {
        self.remove(&self.of_compute(instance), instance.minors()[1]);
    }
}

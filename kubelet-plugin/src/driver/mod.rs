//! Finds the driver's files and device nodes under the driver root: NVIDIA's driver or the software GPU.
//!
//! ```text
//!  vgpu-find-driver ──► libcuda, NVML
//!  its search (paths inside the root) ──► libraries, data ──► Files ─┐ kept by Finder until a folder changes
//!  parts (which container gets it)     finder: nodes, sockets ───────┴──► Driver ──► edits
//! ```
//!
//! The root has two paths: `--driver-root` in this process, `--driver-root-host` for the container runtime.
//! `kubelet-plugin/find-driver/` says where to search for libcuda and NVML. LD_LIBRARY_PATH is not used, because this
//! process does not have the node's. The log says which files are used, and warns if there is another version.
//! A driver upgrade changes the files, so every Prepare asks again, and `node/renew.rs` every 10 s.

mod data;
mod finder;
mod found;
mod libraries;
pub(crate) mod parts;

pub use finder::{DeviceFile, Finder};
pub use found::{Files, Found, Place};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vgpu_api::config::Capabilities;
use vgpu_find_driver::{Missing, Search};

/// The folder of a driver, and the kind of driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Its path in this process.
    pub here: PathBuf,
    /// Its path for the container runtime.
    pub host: PathBuf,
    /// The kernel's description of devices, `/sys`.
    pub sys: PathBuf,
    /// `/proc`, where the kernel module describes instances.
    pub proc: PathBuf,
    /// The state folder of a software GPU, on the node.
    pub soft_gpu_state: Option<PathBuf>,
}

/// A driver as it is now, with paths for the container runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    pub files: Arc<Files>,
    /// Device nodes that all GPUs share; none for a software GPU.
    pub common_nodes: Vec<(String, Capabilities)>,
    pub sockets: Vec<Found>,
    /// The major number of instances' capability nodes. Files of claims that name another one are written again.
    pub capability_major: Option<u32>,
    pub soft_gpu_state: Option<PathBuf>,
}

/// The result of a search.
struct Searched {
    files: Files,
    /// The folders on which it depends.
    folders: BTreeSet<PathBuf>,
    /// Which driver was taken, and why.
    chosen: vgpu_find_driver::Driver,
}

/// Why a driver cannot be mounted into a container.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(
        "--driver-root {}: {missing}; install NVIDIA's driver completely, or set --driver-root (chart value driverRoot) to \
         the root of the file system that has it",
        root.display()
    )]
    NoLibrary { missing: Missing, root: PathBuf },
    #[error("{0} does not exist on the node: load its kernel module (nvidia-modprobe -c 0 -u)")]
    NoDeviceNode(String),
    #[error(
        "{0} does not exist, so the GPU instance cannot be given to a container: look whether nvidia-smi -L on the node still \
         lists it, and whether its kernel module nvidia is loaded"
    )]
    NoCapability(String),
}

// === impl Root ===

impl Root {
    /// Searches the root.
    ///
    /// # Errors
    /// A library or device node is missing without which no container can use the GPU.
    pub fn read(&self) -> Result<Driver, Error> {
        self.with(Arc::new(self.search()?.files))
    }

    fn search(&self) -> Result<Searched, Error> {
        let mut search = Search::new(&self.here);
        let chosen = vgpu_find_driver::driver(&mut search, &[]).map_err(|missing| Error::NoLibrary {
            missing,
            root: self.here.clone(),
        })?;
        let libcuda = &chosen.libcuda.file;
        let libraries = libraries::all(&mut search, &chosen);
        let mut found = libraries.others;
        found.extend(data::programs(&mut search));
        found.extend(data::configurations(&mut search));
        if let Some(version) = vgpu_find_driver::version(libcuda) {
            found.extend(data::firmware(&mut search, &version));
        }
        for one in &mut found {
            one.file = self.host.join(&one.file);
        }
        let files = Files {
            libcuda: self.host.join(libcuda),
            libnvidia_ml: self.host.join(&chosen.libnvidia_ml.file),
            shimmed: libraries.shimmed,
            found,
        };
        Ok(Searched {
            files,
            folders: search.folders(),
            chosen,
        })
    }
}

/// The libcuda and NVML of a root, as paths in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    pub libcuda: PathBuf,
    pub libnvidia_ml: PathBuf,
}

/// Finds NVML under `root`, also without a libcuda, and resolves its links.
///
/// # Errors
/// There is no NVML. The text names every path that was searched.
pub fn find_nvml(root: &Path) -> Result<PathBuf, Missing> {
    let found = vgpu_find_driver::libnvidia_ml(&mut Search::new(root), &[])?;
    Ok(root.join(found.file))
}

/// Finds libcuda and NVML under `root`, and resolves their links.
///
/// # Errors
/// One of them is missing. The text names every path that was searched.
pub fn find(root: &Path) -> Result<Pair, Missing> {
    let found = vgpu_find_driver::driver(&mut Search::new(root), &[])?;
    Ok(Pair {
        libcuda: root.join(found.libcuda.file),
        libnvidia_ml: root.join(found.libnvidia_ml.file),
    })
}

#[cfg(test)]
mod tests;

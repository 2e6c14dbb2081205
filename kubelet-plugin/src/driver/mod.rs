//! Finds the driver's files and device nodes under the driver root: NVIDIA's driver or the software GPU.
//!
//! ```text
//!  search (paths inside the root) ──► libraries, data ──► Files ─┐ kept by Finder until a folder changes
//!  parts (which container gets it)          nodes, sockets ──────┴──► Driver ──► edits
//! ```
//!
//! The root has two paths: `--driver-root` in this process, `--driver-root-host` for the container runtime.
//! A driver upgrade changes the files, so every Prepare asks again, and `node/renew.rs` every 10 s.

mod data;
mod finder;
mod found;
mod libraries;
mod nodes;
pub(crate) mod parts;
mod search;

pub use finder::Finder;
pub use found::{Files, Found, Place};
pub use nodes::Node;
use parts::COMMON_NODES;
use search::Search;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vgpu_abi::paths::{LIBCUDA, LIBNVIDIA_ML};
use vgpu_api::config::Capabilities;

/// The folder of a driver, and the kind of driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Its path in this process.
    pub here: PathBuf,
    /// Its path for the container runtime.
    pub host: PathBuf,
    /// The kernel's description of devices, `/sys`.
    pub sys: PathBuf,
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
    pub soft_gpu_state: Option<PathBuf>,
}

/// Why a driver cannot be mounted into a container.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{name} is not under --driver-root {}: install NVIDIA's driver completely", root.display())]
    NoLibrary { name: &'static str, root: PathBuf },
    #[error("{0} does not exist on the node: load its kernel module (nvidia-modprobe -c 0 -u)")]
    NoDeviceNode(String),
}

// === impl Root ===

impl Root {
    /// Searches the root.
    ///
    /// # Errors
    /// A library or device node is missing without which no container can use the GPU.
    pub fn read(&self) -> Result<Driver, Error> {
        let (files, _) = self.search()?;
        self.with(Arc::new(files))
    }

    /// The files, and the folders on which the answer depends.
    fn search(&self) -> Result<(Files, BTreeSet<PathBuf>), Error> {
        let mut search = Search::new(&self.here);
        let mut library = |name| {
            find_in(&mut search, name).ok_or_else(|| Error::NoLibrary {
                name,
                root: self.here.clone(),
            })
        };
        let (libcuda, libnvidia_ml) = (library(LIBCUDA)?, library(LIBNVIDIA_ML)?);
        let libraries = libraries::all(&mut search, &libcuda);
        let mut found = libraries.others;
        found.extend(data::programs(&mut search));
        found.extend(data::configurations(&mut search));
        if let Some(version) = libraries::version(&libcuda) {
            found.extend(data::firmware(&mut search, &version));
        }
        self.name_on_host(&mut found);
        let files = Files {
            libcuda: self.host.join(libcuda),
            libnvidia_ml: self.host.join(libnvidia_ml),
            shimmed: libraries.shimmed,
            found,
        };
        Ok((files, search.folders()))
    }

    /// The driver with these files, and with the nodes and sockets that are there now.
    fn with(&self, files: Arc<Files>) -> Result<Driver, Error> {
        let mut driver = Driver {
            files,
            common_nodes: Vec::new(),
            sockets: Vec::new(),
            soft_gpu_state: self.soft_gpu_state.clone(),
        };
        if self.soft_gpu_state.is_some() {
            return Ok(driver);
        }
        for (node, needs, is_needed) in COMMON_NODES {
            if self.has_node(node) {
                driver.common_nodes.push((node.to_owned(), needs));
            } else if is_needed {
                return Err(Error::NoDeviceNode(node.to_owned()));
            }
        }
        driver.sockets = data::sockets(&self.here);
        self.name_on_host(&mut driver.sockets);
        Ok(driver)
    }

    fn name_on_host(&self, found: &mut [Found]) {
        for one in found {
            one.file = self.host.join(&one.file);
        }
    }
}

/// Finds the library `name` under `root` and resolves its links.
#[must_use]
pub fn find(root: &Path, name: &str) -> Option<PathBuf> {
    find_in(&mut Search::new(root), name).map(|file| root.join(file))
}

fn find_in(search: &mut Search<'_>, name: &str) -> Option<PathBuf> {
    libraries::FOLDERS
        .iter()
        .find_map(|folder| search.file(Path::new(folder).join(name)))
}

#[cfg(test)]
mod tests;

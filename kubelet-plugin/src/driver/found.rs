//! The files of a driver, and where a container has them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use vgpu_api::config::Capabilities;

/// The files of a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    pub libcuda: PathBuf,
    pub libnvidia_ml: PathBuf,
    /// All names of these two on the node, such as `libcuda.so` and `libcuda.so.535.261.03`.
    pub shimmed: BTreeSet<String>,
    /// Everything else.
    pub found: Vec<Found>,
}

/// A file of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// A container gets it if it has one of these.
    pub needs: Capabilities,
    pub file: PathBuf,
    pub place: Place,
}

/// Where a container has a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the loader's default folders, by its name or its path below them.
    Library {
        name: String,
        /// libcuda opens it by its name.
        beside_libcuda: bool,
    },
    Program(PathBuf),
    /// Code that a program loads by its path.
    Module(PathBuf),
    /// A file without code, or a socket.
    File(PathBuf),
}

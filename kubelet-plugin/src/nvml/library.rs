//! NVML's library.

use crate::driver;
use crate::publish::inventory::Error;
use nvml_wrapper::Nvml;
use std::path::Path;

/// Loads NVML from the driver root.
pub(super) fn start(driver_root: &Path) -> Result<Nvml, Error> {
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

//! Finds the driver's libraries: the files that programs would open, so that libvgpu.so can open them, and
//! the files that a mount namespace must cover.
//!
//! The order is the loader's: LD_LIBRARY_PATH, its cache, its default folders. libvgpu.so under one of the
//! driver's names is skipped, because it would become its own driver.
#![forbid(unsafe_code)]

use crate::loader_cache;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use vgpu_abi::paths::{LIBCUDA, LIBNVIDIA_ML, SHIM_NAMES};

const CACHE: &str = "/etc/ld.so.cache";
/// Default folders of Debian's and of Red Hat's loader.
pub const DEFAULT_FOLDERS: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

/// The real driver's libraries, absolute and without symlinks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    pub libcuda: PathBuf,
    pub libnvidia_ml: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error("this machine has no NVIDIA driver ({name} was not found); use --soft-gpu for the software GPU")]
    NotFound { name: &'static str },
}

/// The folders and the cache in which libraries are searched.
#[derive(Debug)]
pub struct Loader {
    library_path: Vec<PathBuf>,
    cache: Vec<u8>,
    default_folders: Vec<PathBuf>,
    /// libvgpu.so itself, which is skipped.
    shim: PathBuf,
}

impl Loader {
    /// This machine's loader.
    #[must_use]
    pub fn of_machine(library_path: Option<&OsStr>, shim: &Path) -> Self {
        let folders = library_path.map(|path| std::env::split_paths(path).collect::<Vec<_>>());
        Self {
            library_path: folders
                .unwrap_or_default()
                .into_iter()
                .filter(|f| f.is_absolute())
                .collect(),
            cache: std::fs::read(CACHE).unwrap_or_default(),
            default_folders: DEFAULT_FOLDERS.map(PathBuf::from).to_vec(),
            shim: shim.to_path_buf(),
        }
    }

    /// The real driver.
    ///
    /// # Errors
    /// A library is missing.
    pub fn driver(&self) -> Result<Driver, DriverError> {
        let first = |name: &'static str| {
            let mut files = self.files(name, &self.library_path);
            files.next().ok_or(DriverError::NotFound { name })
        };
        Ok(Driver {
            libnvidia_ml: first(LIBNVIDIA_ML)?,
            libcuda: first(LIBCUDA)?,
        })
    }

    /// The files that a program without LD_LIBRARY_PATH may open under libvgpu.so's names.
    #[must_use]
    pub fn to_cover(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> = SHIM_NAMES.iter().flat_map(|name| self.files(name, &[])).collect();
        files.sort();
        files.dedup();
        files
    }

    /// Returns true if a program without LD_LIBRARY_PATH finds both libraries.
    #[must_use]
    pub fn knows_both(&self) -> bool {
        [LIBCUDA, LIBNVIDIA_ML]
            .iter()
            .all(|name| self.files(name, &[]).next().is_some())
    }

    fn files<'a>(&'a self, name: &'a str, first: &'a [PathBuf]) -> impl Iterator<Item = PathBuf> + 'a {
        let cached = loader_cache::paths(&self.cache, name);
        let in_folders = move |folders: &'a [PathBuf]| folders.iter().map(move |folder| folder.join(name));
        in_folders(first)
            .chain(cached)
            .chain(in_folders(&self.default_folders))
            .filter_map(|path| path.canonicalize().ok())
            .filter(|path| path.is_file() && *path != self.shim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn the_first_of_the_loaders_order_is_taken_and_the_shim_is_not() {
        let tmp = tempfile::tempdir().unwrap();
        let root = tmp.path().canonicalize().unwrap();
        let folder = |name: &str| {
            let folder = root.join(name);
            fs::create_dir(&folder).unwrap();
            folder
        };
        let (early, late) = (folder("early"), folder("late"));
        let shim = root.join("libvgpu.so");
        fs::write(&shim, "").unwrap();
        let mut loader = Loader {
            library_path: vec![early.clone()],
            cache: Vec::new(),
            default_folders: vec![late.clone()],
            shim: shim.clone(),
        };
        let error = loader.driver().unwrap_err().to_string();
        assert!(
            error.contains("libnvidia-ml.so.1") && error.contains("--soft-gpu"),
            "{error}"
        );

        // A real driver's names are symlinks to its version.
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            fs::write(late.join(format!("{name}.535")), "").unwrap();
            symlink(format!("{name}.535"), late.join(name)).unwrap();
            symlink(&shim, early.join(name)).unwrap();
        }
        symlink("libcuda.so.1", late.join("libcuda.so")).unwrap();
        assert_eq!(loader.driver().unwrap().libcuda, late.join("libcuda.so.1.535"));
        assert_eq!(
            loader.to_cover(),
            [late.join("libcuda.so.1.535"), late.join("libnvidia-ml.so.1.535")]
        );
        assert!(loader.knows_both());

        fs::remove_file(early.join("libcuda.so.1")).unwrap();
        fs::write(early.join("libcuda.so.1"), "").unwrap();
        assert_eq!(loader.driver().unwrap().libcuda, early.join("libcuda.so.1"));
        loader.default_folders.clear();
        assert!(!loader.knows_both());
    }
}

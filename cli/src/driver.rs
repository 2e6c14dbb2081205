//! Finds the driver's libraries: the files that programs would open, so that libvgpu.so can open them, and
//! the files that a mount namespace must cover.
//!
//! The search paths and the failure modes are those of `kubelet-plugin/find-driver/`, plus LD_LIBRARY_PATH. libvgpu.so
//! under one of the driver's names is skipped, because it would become its own driver.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use vgpu_abi::paths::{LIBCUDA, LIBNVIDIA_ML, SHIM_NAMES};
use vgpu_find_driver::{How, Library, Missing, Search};

/// The real driver's libraries, absolute and without symlinks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    pub libcuda: PathBuf,
    pub libnvidia_ml: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error(
        "this machine has no NVIDIA driver ({0}); if it has one elsewhere, set LD_LIBRARY_PATH to the folder with its \
         libraries; use --soft-gpu for the software GPU"
    )]
    NotFound(Missing),
}

/// The paths that are searched for libraries.
#[derive(Debug)]
pub struct Loader {
    root: PathBuf,
    library_path: Vec<PathBuf>,
    /// libvgpu.so itself, which is skipped.
    shim: PathBuf,
}

impl Loader {
    /// This machine's loader.
    #[must_use]
    pub fn of_machine(library_path: Option<&OsStr>, shim: &Path) -> Self {
        Self {
            root: PathBuf::from("/"),
            library_path: vgpu_find_driver::library_path(library_path),
            shim: shim.to_path_buf(),
        }
    }

    /// The real driver.
    ///
    /// # Errors
    /// A library is missing.
    pub fn driver(&self) -> Result<Driver, DriverError> {
        let mut search = Search::new(&self.root);
        let mut all = |name| self.libraries(&mut search, name, &self.library_path);
        let found = vgpu_find_driver::choose(all(LIBCUDA), all(LIBNVIDIA_ML), &self.library_path);
        let found = found.map_err(DriverError::NotFound)?;
        Ok(Driver {
            libcuda: self.root.join(found.libcuda.file),
            libnvidia_ml: self.root.join(found.libnvidia_ml.file),
        })
    }

    /// The files that a program without LD_LIBRARY_PATH may open under libvgpu.so's names.
    #[must_use]
    pub fn to_cover(&self) -> Vec<PathBuf> {
        let mut search = Search::new(&self.root);
        let all = SHIM_NAMES.map(|name| self.libraries(&mut search, name, &[]));
        let mut files: Vec<_> = all
            .into_iter()
            .flatten()
            .map(|library| self.root.join(library.file))
            .collect();
        files.sort();
        files.dedup();
        files
    }

    /// Returns true if a program without LD_LIBRARY_PATH finds both libraries.
    #[must_use]
    pub fn knows_both(&self) -> bool {
        let mut search = Search::new(&self.root);
        let by_loader = |library: &Library| matches!(library.how, How::Cache | How::LoaderFolder);
        [LIBCUDA, LIBNVIDIA_ML]
            .iter()
            .all(|name| self.libraries(&mut search, name, &[]).iter().any(by_loader))
    }

    fn libraries(&self, search: &mut Search<'_>, name: &str, library_path: &[PathBuf]) -> Vec<Library> {
        let all = vgpu_find_driver::libraries(search, library_path, name).into_iter();
        all.filter(|library| self.root.join(&library.file) != self.shim)
            .collect()
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
            fs::create_dir_all(&folder).unwrap();
            folder
        };
        let (early, late) = (folder("early"), folder("usr/lib64"));
        let shim = root.join("libvgpu.so");
        fs::write(&shim, "").unwrap();
        let loader = Loader {
            root: root.clone(),
            library_path: vec!["/early".into()],
            shim: shim.clone(),
        };
        let error = loader.driver().unwrap_err().to_string();
        for part in [
            "libcuda.so.1",
            "--soft-gpu",
            "LD_LIBRARY_PATH",
            "/early",
            "/usr/local/nvidia/lib64",
        ] {
            assert!(error.contains(part), "{part}: {error}");
        }

        // A real driver's names are symlinks to its version.
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            fs::write(late.join(format!("{name}.535")), "").unwrap();
            symlink(format!("{name}.535"), late.join(name)).unwrap();
            symlink("/libvgpu.so", early.join(name)).unwrap();
        }
        symlink("libcuda.so.1", late.join("libcuda.so")).unwrap();
        let libcuda = || loader.driver().unwrap().libcuda;
        assert_eq!(libcuda(), late.join("libcuda.so.1.535"));
        assert_eq!(
            loader.to_cover(),
            [late.join("libcuda.so.1.535"), late.join("libnvidia-ml.so.1.535")]
        );
        assert!(loader.knows_both());

        fs::remove_file(early.join("libcuda.so.1")).unwrap();
        fs::write(early.join("libcuda.so.1"), "").unwrap();
        assert_eq!(libcuda(), early.join("libcuda.so.1"));
    }

    /// The loader does not know the folder, so root's namespace gives it our library, and covers the driver's as well.
    #[test]
    fn a_driver_that_only_the_rule_knows_is_taken_and_covered() {
        let tmp = tempfile::tempdir().unwrap();
        let root = tmp.path().canonicalize().unwrap();
        let folder = root.join("usr/local/nvidia/lib64");
        fs::create_dir_all(&folder).unwrap();
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            fs::write(folder.join(name), "").unwrap();
        }
        let loader = Loader {
            shim: root.join("libvgpu.so"),
            library_path: Vec::new(),
            root,
        };
        let driver = loader.driver().unwrap();
        assert_eq!(driver.libcuda, folder.join("libcuda.so.1"));
        assert_eq!(loader.to_cover(), [driver.libcuda, driver.libnvidia_ml]);
        assert!(!loader.knows_both());
    }
}

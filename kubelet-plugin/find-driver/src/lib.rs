//! Finds NVIDIA's driver: the one rule of the plugin, `vgpu run` and the test cluster.
//! `gpu-check/vgpu_check/driver.py` is the same rule in Python; change both.
//!
//! ```text
//!  LD_LIBRARY_PATH  only for programs that a user starts on the machine; the plugin does not see the node's
//!  loader's cache   etc/ld.so.cache
//!  LOADER_FOLDERS   the folders that the loader searches without a cache
//!  OTHER_FOLDERS    the folders of some distributions, driver containers and machines with a mounted driver
//!  the root itself  a software GPU, or a driver in one folder
//! ```
//!
//! All paths are below a root: `/` or a driver container's root. Links are resolved inside that root. The first
//! libcuda is used. The NVML used is the first one of the same version, because NVML of another version belongs to
//! another driver.
//!
//! How it fails:
//! - No driver: the error names the library and every place that was searched. The caller adds which option to set.
//! - Two versions: the first one is used, and [`Driver::others`] lists the rest, for a warning. Whether the version
//!   fits the kernel module is not checked here; NVML reports that when it starts.
//! - A link that leaves the root or leads in a circle: its target is looked up inside the root, or it is treated as
//!   missing.
//! - The CUDA toolkit's stub of libcuda, which answers every call with an error: files in a folder `stubs` are
//!   skipped, even if a cache or LD_LIBRARY_PATH names them.
//! - A damaged or hostile cache: unreadable entries are ignored. Its size, the length of paths and their number are
//!   limited, and all paths are resolved inside the root.
#![forbid(unsafe_code)]

mod loader_cache;
mod search;

pub use search::Search;

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use vgpu_abi::arch;
use vgpu_abi::paths::{LIBCUDA, LIBNVIDIA_ML};

const CACHE: &str = "etc/ld.so.cache";
/// A cache of thousands of libraries is smaller than one MiB.
const CACHE_MAX: u64 = 16 << 20;
/// Default folders of Debian's and of Red Hat's loader.
pub const LOADER_FOLDERS: [&str; 6] = [
    concat!("lib/", arch!(triplet)),
    concat!("usr/lib/", arch!(triplet)),
    "lib64",
    "usr/lib64",
    "lib",
    "usr/lib",
];
/// Other places of the driver. The root itself is last: a software GPU may have all files in one folder.
pub const OTHER_FOLDERS: [&str; 5] = [
    concat!("usr/lib/", arch!(triplet), "/nvidia/current"),
    "usr/lib/nvidia",
    "usr/local/nvidia/lib64",
    "usr/local/nvidia/lib",
    "",
];
/// The folder of the CUDA toolkit's libraries that only exist to be linked with.
const STUBS: &str = "stubs";

/// The rule by which a library was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    LibraryPath,
    Cache,
    LoaderFolder,
    OtherFolder,
}

/// A library of the driver. Paths are relative to the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    /// The file, with links resolved.
    pub file: PathBuf,
    /// The folder in which the library was found.
    pub folder: PathBuf,
    pub how: How,
}

/// The driver under a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    pub libcuda: Library,
    pub libnvidia_ml: Library,
    /// Files of libcuda with other versions, which are not used.
    pub others: Vec<PathBuf>,
}

/// A library was not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is in none of {searched}")]
pub struct Missing {
    pub name: &'static str,
    /// All searched places, as paths inside the root.
    pub searched: String,
}

/// Finds the driver's libraries. `library_path` has the folders of LD_LIBRARY_PATH, if they are to be searched.
///
/// # Errors
/// One of the two is missing.
pub fn driver(search: &mut Search<'_>, library_path: &[PathBuf]) -> Result<Driver, Missing> {
    let mut all = |name| libraries(search, library_path, name);
    choose(all(LIBCUDA), all(LIBNVIDIA_ML), library_path)
}

/// Finds the driver's NVML. Without a libcuda it is the first NVML: GPUs can then be listed, and the missing libcuda
/// is a separate error.
///
/// # Errors
/// There is no NVML.
pub fn libnvidia_ml(search: &mut Search<'_>, library_path: &[PathBuf]) -> Result<Library, Missing> {
    let nvmls = libraries(search, library_path, LIBNVIDIA_ML);
    let first = nvmls.first().cloned();
    let libcudas = libraries(search, library_path, LIBCUDA);
    let chosen = choose(libcudas, nvmls, library_path).map(|driver| driver.libnvidia_ml);
    chosen
        .ok()
        .or(first)
        .ok_or_else(|| Missing::of(LIBNVIDIA_ML, library_path))
}

/// Chooses the first of `libcudas` and its NVML.
///
/// # Errors
/// One list is empty. `library_path` is used only in the error text.
pub fn choose(libcudas: Vec<Library>, nvmls: Vec<Library>, library_path: &[PathBuf]) -> Result<Driver, Missing> {
    let missing = |name| Missing::of(name, library_path);
    let mut libcudas = libcudas.into_iter();
    let libcuda = libcudas.next().ok_or_else(|| missing(LIBCUDA))?;
    let of = version(&libcuda.file);
    let same = nvmls.iter().find(|nvml| of.is_some() && version(&nvml.file) == of);
    let libnvidia_ml = same.or(nvmls.first()).ok_or_else(|| missing(LIBNVIDIA_ML))?.clone();
    let others = libcudas.filter(|other| version(&other.file) != of);
    Ok(Driver {
        others: others.map(|other| other.file).collect(),
        libcuda,
        libnvidia_ml,
    })
}

/// Returns every file with this name, the loader's choice first, without duplicates.
#[must_use]
pub fn libraries(search: &mut Search<'_>, library_path: &[PathBuf], name: &str) -> Vec<Library> {
    let cache = search.read(CACHE, CACHE_MAX).unwrap_or_default();
    let in_folders = |folders: &[&str], how| {
        let paths = folders.iter().map(|folder| Path::new(folder).join(name));
        paths.map(|path| (path, how)).collect::<Vec<_>>()
    };
    let named = library_path.iter().map(|folder| (folder.join(name), How::LibraryPath));
    let cached = loader_cache::paths(&cache, name).into_iter();
    let places = named
        .chain(cached.map(|path| (path, How::Cache)))
        .chain(in_folders(&LOADER_FOLDERS, How::LoaderFolder))
        .chain(in_folders(&OTHER_FOLDERS, How::OtherFolder));
    let mut found: Vec<Library> = Vec::new();
    for (path, how) in places {
        let Some(file) = search.file(&path) else { continue };
        let is_known = found.iter().any(|known| known.file == file);
        if is_known || is_stub(&path) || is_stub(&file) {
            continue;
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        found.push(Library {
            folder: folder.strip_prefix("/").unwrap_or(folder).to_path_buf(),
            file,
            how,
        });
    }
    found
}

fn is_stub(path: &Path) -> bool {
    path.parent().is_some_and(|folder| folder.ends_with(STUBS))
}

/// The version in a file name, such as `535.261.03` in `libcuda.so.535.261.03`; None for names such as `libcuda.so.1`.
#[must_use]
pub fn version(library: &Path) -> Option<String> {
    let (_, version) = library.file_name()?.to_str()?.split_once(".so.")?;
    version.contains('.').then(|| version.to_owned())
}

/// The folders in a value of LD_LIBRARY_PATH. Relative ones are left out because they depend on the working directory.
#[must_use]
pub fn library_path(value: Option<&OsStr>) -> Vec<PathBuf> {
    let folders = value.into_iter().flat_map(std::env::split_paths);
    folders.filter(|folder| folder.is_absolute()).collect()
}

/// Returns the driver root to configure so that the plugin, which has no LD_LIBRARY_PATH, finds this `libcuda`: `/`,
/// else the driver's own root (`/opt/driver` of `/opt/driver/usr/lib64`), else the library's folder.
#[must_use]
pub fn root_for(machine: &Path, libcuda: &Library) -> PathBuf {
    let file = machine.join(&libcuda.file);
    let folder = file.parent().unwrap_or(machine);
    let above = LOADER_FOLDERS.iter().chain(&OTHER_FOLDERS);
    let above = above.filter_map(|end| folder.to_str()?.strip_suffix(end)?.strip_suffix('/'));
    let mut above: Vec<PathBuf> = above.map(PathBuf::from).collect();
    above.sort_by_key(|root| root.as_os_str().len());
    let mut roots = std::iter::once(machine.to_path_buf()).chain(above);
    let finds_it = |root: &PathBuf| {
        root.starts_with(machine)
            && driver(&mut Search::new(root), &[]).is_ok_and(|found| root.join(found.libcuda.file) == file)
    };
    roots.find(finds_it).unwrap_or_else(|| folder.to_path_buf())
}

// === impl Missing ===

impl Missing {
    fn of(name: &'static str, library_path: &[PathBuf]) -> Self {
        let own = [CACHE].into_iter().chain(LOADER_FOLDERS).chain(OTHER_FOLDERS);
        let named = library_path.iter().map(|folder| folder.display().to_string());
        let all: Vec<String> = named.chain(own.map(|place| format!("/{place}"))).collect();
        Self {
            name,
            searched: all.join(", "),
        }
    }
}

// === impl How ===

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LibraryPath => "by LD_LIBRARY_PATH",
            Self::Cache => "by the loader's cache",
            Self::LoaderFolder => "in a folder of the loader",
            Self::OtherFolder => "in a folder where drivers lie",
        })
    }
}

// === impl Driver ===

impl Driver {
    /// One line for people: version, folder, and why it was chosen.
    #[must_use]
    pub fn describe(&self, root: &Path) -> String {
        let version = version(&self.libcuda.file).unwrap_or_else(|| "of unknown version".to_owned());
        let folder = root.join(self.libcuda.file.parent().unwrap_or(Path::new("")));
        format!("driver {version} in {}, found {}", folder.display(), self.libcuda.how)
    }
}

#[cfg(test)]
mod tests;

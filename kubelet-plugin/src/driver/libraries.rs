//! The driver's libraries, under all names that they have on the node.
//!
//! A name is used if it leads to a file of the driver's version, so libraries that an earlier driver left are not
//! given. The version is that of libcuda's file. libnvidia-egl-* have versions of their own.

use super::found::{Found, Place};
use super::parts;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use vgpu_find_driver::{LOADER_FOLDERS, OTHER_FOLDERS, Search, version};

/// The names, up to `.so`, of both libraries that the shim replaces.
const SHIMMED: [&str; 2] = ["libcuda", "libnvidia-ml"];
/// Modules of the X server, below a folder of libraries or of the X server.
const X_MODULES: [&str; 4] = [
    "modules/drivers",
    "modules/extensions",
    "modules/updates/drivers",
    "modules/updates/extensions",
];

/// The libraries that were found.
#[derive(Debug, Default)]
pub(super) struct Libraries {
    /// The names of libcuda and libnvidia-ml.
    pub(super) shimmed: BTreeSet<String>,
    pub(super) others: Vec<Found>,
}

/// All libraries of this driver.
pub(super) fn all(search: &mut Search<'_>, driver: &vgpu_find_driver::Driver) -> Libraries {
    let libcuda = &driver.libcuda.file;
    let version = version(libcuda);
    let folder = |file: &Path| file.parent().unwrap_or(Path::new("")).to_path_buf();
    let own = &folder(libcuda);
    let names = names(search, [own.clone(), folder(&driver.libnvidia_ml.file)]);
    let of_version: BTreeSet<&str> = names
        .iter()
        .filter_map(|(_, name)| name.strip_suffix(&format!(".so.{}", version.as_deref()?)))
        .collect();
    let mut libraries = Libraries::default();
    let mut others: BTreeMap<String, Found> = BTreeMap::new();
    for (folder, name) in &names {
        let Some((stem, _)) = name.split_once(".so") else {
            continue;
        };
        let known = parts::library(stem);
        let is_wanted = match &version {
            Some(_) => of_version.contains(stem) || parts::has_own_version(stem),
            None => known.is_some() || SHIMMED.contains(&stem),
        };
        if !is_wanted || others.contains_key(name) {
            continue;
        }
        let Some(file) = search.file(folder.join(name)) else {
            continue;
        };
        let base = file.file_name().unwrap_or_default().to_string_lossy();
        let is_of_driver = match &version {
            Some(version) => base == format!("{stem}.so.{version}") || parts::has_own_version(stem),
            None => true,
        };
        if !is_of_driver {
            continue;
        }
        if SHIMMED.contains(&stem) {
            libraries.shimmed.insert(name.clone());
            continue;
        }
        let found = |name: &str| Found {
            needs: known.unwrap_or(parts::ALL),
            file: file.clone(),
            place: Place::Library {
                name: name.to_owned(),
                beside_libcuda: parts::is_opened_by_libcuda(stem),
            },
        };
        for further in parts::further_names(stem) {
            others.entry(further.to_owned()).or_insert_with(|| found(further));
        }
        others.insert(name.clone(), found(name));
    }
    libraries.others.extend(others.into_values());
    libraries.others.extend(x_modules(search, own, version.as_deref()));
    libraries
}

/// Returns the names of all libraries, with their folders, each folder once. `own`: the folders of libcuda and NVML.
fn names(search: &mut Search<'_>, own: [PathBuf; 2]) -> Vec<(PathBuf, String)> {
    let known = LOADER_FOLDERS.into_iter().chain(OTHER_FOLDERS).map(PathBuf::from);
    let folders = known.chain(own);
    let folders: Vec<PathBuf> = folders.flat_map(|folder| [folder.join("vdpau"), folder]).collect();
    let (mut seen, mut all) = (BTreeSet::new(), Vec::new());
    for folder in folders {
        let Some((folder, names)) = search.list(&folder) else {
            continue;
        };
        if !seen.insert(folder.clone()) {
            continue;
        }
        let libraries = names.into_iter().filter(|name| name.starts_with("lib"));
        all.extend(libraries.map(|name| (folder.clone(), name)));
    }
    all
}

/// The modules of the X server. It finds them by the paths in its configuration, so a container has them at the same
/// paths as the node.
fn x_modules(search: &mut Search<'_>, own: &Path, version: Option<&str>) -> Vec<Found> {
    let Some(version) = version else {
        return Vec::new();
    };
    let below = |base: PathBuf| X_MODULES.map(|modules| base.join(modules));
    let servers = [own.join("xorg"), "usr/lib/xorg".into(), "usr/lib64/xorg".into()];
    let folders: Vec<PathBuf> = [own.join("nvidia/xorg"), "usr/lib/nvidia".into()]
        .into_iter()
        .chain(servers.into_iter().flat_map(below))
        .collect();
    let glx = format!("libglxserver_nvidia.so.{version}");
    let modules = [vec!["nvidia_drv.so"], vec![&glx, "libglxserver_nvidia.so"]];
    let mut found = Vec::new();
    for names in modules {
        let mut places = folders
            .iter()
            .flat_map(|folder| names.iter().map(move |name| (folder, name)));
        let first = places.find_map(|(folder, name)| Some((folder, search.file(folder.join(name))?)));
        let Some((folder, file)) = first else { continue };
        found.extend(names.iter().map(|name| Found {
            needs: parts::GRAPHICS,
            file: file.clone(),
            place: Place::Module(Path::new("/").join(folder).join(name)),
        }));
    }
    found
}

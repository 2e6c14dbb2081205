//! Finds the driver's libraries and device nodes under the driver root: NVIDIA's driver or the software GPU.
//!
//! The root has two paths: `--driver-root` in this process, `--driver-root-host` for the container runtime.
//! Symbolic links are resolved inside the root: an absolute link of a mounted root would lead into this
//! process's own file system, and the runtime would resolve a link in a bind mount's source on the node.
//! Every Prepare reads the files again, because a driver upgrade changes them.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::path::{Component, Path, PathBuf};
use vgpu_abi::paths::{LIBCUDA, LIBNVIDIA_ML};

/// Where distributions and driver containers put libraries, likeliest first. The root itself is last: a
/// software GPU may have all files in one folder.
const LIBRARY_FOLDERS: [&str; 9] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib64",
    "lib64",
    "lib/x86_64-linux-gnu",
    "usr/lib/nvidia",
    "usr/lib",
    "lib",
    "",
];
/// Libraries that libcuda opens by name: the JIT compiler for PTX and what that one opens.
const OPENED_BY_LIBCUDA: [&str; 3] = [
    "libnvidia-ptxjitcompiler.so.",
    "libnvidia-nvvm.so.",
    "libnvidia-gpucomp.so.",
];
const PROGRAM_FOLDERS: [&str; 3] = ["usr/bin", "bin", "opt/bin"];
const NVIDIA_SMI: &str = "nvidia-smi";
/// Device nodes that all GPUs share, and if a GPU works only with them.
const COMMON_NODES: [(&str, bool); 3] = [
    ("/dev/nvidiactl", true),
    ("/dev/nvidia-uvm", true),
    ("/dev/nvidia-uvm-tools", false),
];
/// The kernel's limit.
const MAX_LINKS: usize = 40;

/// The folder of a driver, and the kind of driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Its path in this process.
    pub here: PathBuf,
    /// Its path for the container runtime.
    pub host: PathBuf,
    /// The state folder of a software GPU, on the node.
    pub soft_gpu_state: Option<PathBuf>,
}

/// The files of a driver, with their paths for the container runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Driver {
    pub libcuda: PathBuf,
    pub libnvidia_ml: PathBuf,
    /// Name in the container and file on the node.
    pub companions: Vec<(String, PathBuf)>,
    pub nvidia_smi: Option<PathBuf>,
    /// Device nodes that every GPU needs; none for a software GPU.
    pub common_nodes: Vec<String>,
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
    /// # Errors
    /// A library or device node is missing without which no container can use the GPU.
    pub fn read(&self) -> Result<Driver, Error> {
        let library = |name| {
            let found = find(&self.here, name).and_then(|path| self.on_host(&path));
            found.ok_or_else(|| Error::NoLibrary {
                name,
                root: self.here.clone(),
            })
        };
        let mut driver = Driver {
            libcuda: library(LIBCUDA)?,
            libnvidia_ml: library(LIBNVIDIA_ML)?,
            soft_gpu_state: self.soft_gpu_state.clone(),
            ..Driver::default()
        };
        driver.nvidia_smi = PROGRAM_FOLDERS
            .iter()
            .find_map(|folder| self.on_host(&resolve(&self.here, Path::new(folder).join(NVIDIA_SMI))?));
        if self.soft_gpu_state.is_none() {
            driver.companions = self.companions();
            for (node, needed) in COMMON_NODES {
                if self.has_node(node) {
                    driver.common_nodes.push(node.to_owned());
                } else if needed {
                    return Err(Error::NoDeviceNode(node.to_owned()));
                }
            }
        }
        Ok(driver)
    }

    /// The device node of the GPU with this minor number; none for a software GPU.
    ///
    /// # Errors
    /// The node is missing: a container would start without its GPU.
    pub fn gpu_node(&self, minor: Option<u32>) -> Result<Option<String>, Error> {
        if self.soft_gpu_state.is_some() {
            return Ok(None);
        }
        let node = minor.map(|minor| format!("/dev/nvidia{minor}"));
        let node = node.ok_or_else(|| Error::NoDeviceNode("/dev/nvidiaN of a GPU without minor number".into()))?;
        if self.has_node(&node) {
            Ok(Some(node))
        } else {
            Err(Error::NoDeviceNode(node))
        }
    }

    /// Also looks at this process's /dev, because the root of a driver container has none of its own.
    fn has_node(&self, node: &str) -> bool {
        let inside = self.here.join(node.trim_start_matches('/'));
        inside.exists() || Path::new(node).exists()
    }

    fn on_host(&self, path: &Path) -> Option<PathBuf> {
        Some(self.host.join(path.strip_prefix(&self.here).ok()?))
    }

    /// The libraries that libcuda opens, under the names by which it opens them (`libx.so.1`,
    /// `libx.so.535.1`).
    fn companions(&self) -> Vec<(String, PathBuf)> {
        let mut found: Vec<(String, PathBuf)> = Vec::new();
        for folder in LIBRARY_FOLDERS {
            let Ok(entries) = fs::read_dir(self.here.join(folder)) else {
                continue;
            };
            for name in entries
                .flatten()
                .filter_map(|entry| entry.file_name().into_string().ok())
            {
                let wanted = OPENED_BY_LIBCUDA.iter().any(|prefix| name.starts_with(prefix));
                if !wanted || found.iter().any(|(known, _)| *known == name) {
                    continue;
                }
                let file = resolve(&self.here, Path::new(folder).join(&name));
                found.extend(file.and_then(|file| Some((name, self.on_host(&file)?))));
            }
        }
        found.sort();
        found
    }
}

/// Finds the library `name` under `root` and resolves its links.
#[must_use]
pub fn find(root: &Path, name: &str) -> Option<PathBuf> {
    LIBRARY_FOLDERS
        .iter()
        .find_map(|folder| resolve(root, Path::new(folder).join(name)))
}

/// Resolves `path` inside `root` to a regular file. The result starts with `root` and has no link below it.
fn resolve(root: &Path, path: PathBuf) -> Option<PathBuf> {
    let mut resolved = PathBuf::new();
    let mut left: VecDeque<OsString> = names(&path);
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        if name == ".." {
            resolved.pop();
            continue;
        }
        let next = resolved.join(&name);
        let Ok(target) = fs::read_link(root.join(&next)) else {
            resolved = next;
            continue;
        };
        links += 1;
        if links > MAX_LINKS {
            return None;
        }
        if target.is_absolute() {
            resolved = PathBuf::new();
        }
        let mut ahead = names(&target);
        ahead.append(&mut left);
        left = ahead;
    }
    let file = root.join(resolved);
    fs::symlink_metadata(&file)
        .is_ok_and(|found| found.is_file())
        .then_some(file)
}

/// The components of a path, without `/` and `.`.
fn names(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        .map(|part| part.as_os_str().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn file(root: &Path, path: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, path_text()).expect("written");
    }

    fn path_text() -> &'static str {
        "x"
    }

    fn root(here: &Path, soft: bool) -> Root {
        Root {
            here: here.to_path_buf(),
            host: PathBuf::from("/opt/driver"),
            soft_gpu_state: soft.then(|| PathBuf::from("/var/lib/soft-gpu")),
        }
    }

    #[test]
    fn links_are_followed_inside_the_root() {
        let dir = tempfile::tempdir().expect("a folder");
        let here = dir.path();
        file(here, "usr/lib/x86_64-linux-gnu/nvidia/libcuda.so.535");
        file(here, "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535");
        let folder = here.join("usr/lib/x86_64-linux-gnu");
        symlink(
            "/usr/lib/x86_64-linux-gnu/nvidia/libcuda.so.535",
            folder.join("libcuda.so.1"),
        )
        .expect("a link");
        symlink(
            "../x86_64-linux-gnu/libnvidia-ml.so.535",
            folder.join("libnvidia-ml.so.1"),
        )
        .expect("a link");
        let driver = root(here, true).read().expect("a driver");
        assert_eq!(
            driver.libcuda,
            Path::new("/opt/driver/usr/lib/x86_64-linux-gnu/nvidia/libcuda.so.535")
        );
        assert_eq!(
            driver.libnvidia_ml,
            Path::new("/opt/driver/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.535")
        );
        assert_eq!(driver.common_nodes, [""; 0], "a software GPU has no device nodes");
    }

    #[test]
    fn a_link_out_of_the_root_or_in_a_circle_finds_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let folder = dir.path().join("lib64");
        fs::create_dir_all(&folder).expect("a folder");
        symlink("libcuda.so.1", folder.join("libcuda.so.1")).expect("a link");
        assert_eq!(find(dir.path(), LIBCUDA), None);
        symlink("../../../../../../../bin/sh", folder.join("libnvidia-ml.so.1")).expect("a link");
        assert_eq!(
            find(dir.path(), LIBNVIDIA_ML),
            None,
            "the host has /bin/sh, the root has not"
        );
    }

    #[test]
    fn a_flat_software_gpu_is_found() {
        let dir = tempfile::tempdir().expect("a folder");
        for name in [LIBCUDA, LIBNVIDIA_ML] {
            file(dir.path(), name);
        }
        let driver = root(dir.path(), true).read().expect("a driver");
        assert_eq!(driver.libcuda, Path::new("/opt/driver/libcuda.so.1"));
        assert_eq!(root(dir.path(), true).gpu_node(None), Ok(None));
    }

    #[test]
    fn a_real_driver_brings_nodes_and_companions() {
        let dir = tempfile::tempdir().expect("a folder");
        for path in [
            "usr/lib64/libcuda.so.1",
            "usr/lib64/libnvidia-ml.so.1",
            "usr/lib64/libnvidia-ptxjitcompiler.so.1",
            "usr/lib64/libnvidia-gpucomp.so.535.161.08",
            "usr/lib64/libnvidia-other.so.1",
            "usr/bin/nvidia-smi",
            "dev/nvidiactl",
            "dev/nvidia-uvm",
            "dev/nvidia3",
        ] {
            file(dir.path(), path);
        }
        let root = root(dir.path(), false);
        let driver = root.read().expect("a driver");
        let names: Vec<_> = driver.companions.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["libnvidia-gpucomp.so.535.161.08", "libnvidia-ptxjitcompiler.so.1"]
        );
        assert_eq!(
            driver.nvidia_smi.as_deref(),
            Some(Path::new("/opt/driver/usr/bin/nvidia-smi"))
        );
        assert_eq!(driver.common_nodes[..2], ["/dev/nvidiactl", "/dev/nvidia-uvm"]);
        assert_eq!(root.gpu_node(Some(3)), Ok(Some("/dev/nvidia3".into())));
        assert_eq!(
            root.gpu_node(Some(99)),
            Err(Error::NoDeviceNode("/dev/nvidia99".into()))
        );
        fs::remove_file(dir.path().join("usr/lib64/libcuda.so.1")).expect("removed");
        let error = root.read().expect_err("no libcuda").to_string();
        assert!(error.contains(LIBCUDA) && error.contains("--driver-root"), "{error}");
    }
}

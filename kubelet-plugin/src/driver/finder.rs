//! The driver as it is now: its files, which are kept while the folders on which they depend do not change, and the device
//! nodes and sockets, which come and go by themselves, so these few are looked for each time.
//!
//! Failure modes:
//! - A driver is replaced: entries of a folder are made, removed or renamed, which changes its time of modification; or
//!   the root is another mount, which changes its device or inode.
//! - A folder changes while it is searched, or within the resolution of its time after that: what was found in a folder
//!   that changed in the last two seconds is not kept.
//! - A file is written in place: its path stays, so the mounts do.
//! - Nothing complete is there: the error is not kept, and the next caller searches again.
//! - Another driver is taken than before, or two versions are there: the log says so once.

use super::parts::{self, COMMON_NODES, SOCKETS};
use super::{Driver, Error, Files, Found, Place, Root};
use crate::publish::inventory::Gpu;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use vgpu_api::config::Capabilities;
use vgpu_node::gpus::Instance;

/// More than the resolution of any file system's times.
const SETTLED: Duration = Duration::from_secs(2);
const RUN_FOLDERS: [&str; 2] = ["run", "var/run"];

/// A root, and what was last found in it.
#[derive(Debug)]
pub struct Finder {
    root: Root,
    kept: Mutex<Option<Kept>>,
    /// The driver that was logged last, and the others beside it.
    logged: Mutex<Option<vgpu_find_driver::Driver>>,
}

#[derive(Debug)]
struct Kept {
    files: Arc<Files>,
    folders: Vec<(PathBuf, Option<Stamp>)>,
}

/// A state of a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    modified: (i64, i64),
}

/// A device node of the node, and its path in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFile {
    pub host: String,
    pub container: String,
    /// True: a plain file of the software GPU stands for the node.
    pub is_plain: bool,
    /// The device's numbers, major first. With them, a container can have the node although the machine has not.
    pub number: Option<(u32, u32)>,
}

// === impl Finder ===

impl Finder {
    #[must_use]
    pub fn new(root: Root) -> Self {
        Self {
            root,
            kept: Mutex::new(None),
            logged: Mutex::new(None),
        }
    }

    #[must_use]
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// The driver as it is now.
    ///
    /// # Errors
    /// A library or device node is missing without which no container can use the GPU.
    pub fn read(&self) -> Result<Driver, Error> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept.as_ref().filter(|known| known.is_current()) {
            return self.root.with(known.files.clone());
        }
        *kept = None;
        let started = SystemTime::now();
        let searched = self.root.search()?;
        self.log(&searched.chosen);
        let files = Arc::new(searched.files);
        let folders = searched.folders.into_iter().map(|folder| self.root.here.join(folder));
        let folders = folders.map(|folder| {
            let stamp = Stamp::of(&folder);
            (folder, stamp)
        });
        let folders: Vec<_> = folders.collect();
        let since = started.checked_sub(SETTLED).unwrap_or(started);
        if folders
            .iter()
            .flat_map(|(_, stamp)| stamp)
            .all(|stamp| stamp.is_before(since))
        {
            *kept = Some(Kept {
                files: files.clone(),
                folders,
            });
        }
        self.root.with(files)
    }

    /// Logs which driver was taken, if it changed.
    fn log(&self, chosen: &vgpu_find_driver::Driver) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.as_ref() == Some(chosen) {
            return;
        }
        tracing::info!("{}", chosen.describe(&self.root.here));
        if !chosen.others.is_empty() {
            let root = &self.root.here;
            let others: Vec<_> = chosen.others.iter().map(|other| root.join(other)).collect();
            tracing::warn!(
                ?others,
                "other versions of the driver are beside it and not used; if GPUs cannot be listed, remove what does not \
                 fit the kernel module"
            );
        }
        *logged = Some(chosen.clone());
    }
}

impl Kept {
    fn is_current(&self) -> bool {
        self.folders.iter().all(|(path, stamp)| Stamp::of(path) == *stamp)
    }
}

impl Stamp {
    /// None if there is no such folder.
    fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        Some(Self {
            device: found.dev(),
            inode: found.ino(),
            modified: (found.mtime(), found.mtime_nsec()),
        })
    }

    fn is_before(&self, time: SystemTime) -> bool {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.modified.0 < i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    }
}

// === impl Root ===

impl Root {
    /// The driver with these files, and with the nodes and sockets that are there now.
    pub(super) fn with(&self, files: Arc<Files>) -> Result<Driver, Error> {
        let mut driver = Driver {
            files,
            common_nodes: Vec::new(),
            sockets: Vec::new(),
            soft_gpu_state: self.soft_gpu_state.clone(),
            capability_major: None,
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
        driver.sockets = self.sockets();
        driver.capability_major = self.major_of_capabilities();
        Ok(driver)
    }

    /// The sockets of the driver's services.
    fn sockets(&self) -> Vec<Found> {
        let is_socket = |path: &PathBuf| {
            let found = self.here.join(path).metadata();
            found.is_ok_and(|found| found.file_type().is_socket())
        };
        let socket = |(name, needs): (&str, _)| {
            let mut paths = RUN_FOLDERS.iter().map(|folder| Path::new(folder).join(name));
            Some(Found {
                needs,
                file: self.host.join(paths.find(is_socket)?),
                place: Place::File(Path::new("/run").join(name)),
            })
        };
        SOCKETS.into_iter().filter_map(socket).collect()
    }

    /// The nodes of a GPU for a container with these capabilities; none for a software GPU. Those of an instance are its GPU's
    /// and its own capability nodes, which alone let a program use it.
    ///
    /// # Errors
    /// A node is missing: a container would start without its GPU.
    pub fn gpu_nodes(&self, gpu: &Gpu, capabilities: Capabilities) -> Result<Vec<DeviceFile>, Error> {
        let own = match &gpu.mig {
            Some(mig) => self.capability_nodes(gpu, mig)?,
            None => Vec::new(),
        };
        if self.soft_gpu_state.is_some() {
            return Ok(own);
        }
        let node = gpu.minor.map(|minor| format!("/dev/nvidia{minor}"));
        let node = node.ok_or_else(|| Error::NoDeviceNode("/dev/nvidiaN of a GPU without minor number".into()))?;
        if !self.has_node(&node) {
            return Err(Error::NoDeviceNode(node));
        }
        let mut nodes = vec![DeviceFile::same(node)];
        nodes.extend(own);
        // The kernel's graphics interface is the GPU's, and knows no instances.
        if gpu.mig.is_none() && capabilities.meets(parts::GRAPHICS) {
            nodes.extend(gpu.pci_bus_id.iter().flat_map(|bus| self.drm_nodes(bus)));
        }
        Ok(nodes)
    }

    /// The capability nodes of an instance, by the numbers that the kernel tells. The nodes need not exist on the machine: the
    /// kernel does not make them, and NVIDIA's libraries make them in the /dev of their own process, which may be this one's.
    fn capability_nodes(&self, gpu: &Gpu, mig: &Instance) -> Result<Vec<DeviceFile>, Error> {
        // The software GPU has plain files for both below its state, which has one path in this process and on the node.
        let soft_root = self.soft_gpu_state.as_deref();
        let proc = soft_root.map_or(self.proc.clone(), |state| state.join("proc"));
        let minor = gpu.minor.unwrap_or(gpu.index);
        let of_gpu = proc.join(format!("driver/nvidia/capabilities/gpu{minor}/mig"));
        let of_gpu_instance = of_gpu.join(format!("gi{}", mig.gpu_instance));
        let of_compute_instance = of_gpu_instance.join(format!("ci{}", mig.compute_instance));
        let node = |folder: PathBuf| {
            let access = folder.join("access");
            let text = fs::read_to_string(&access).unwrap_or_default();
            let number = text.lines().find_map(|line| line.strip_prefix("DeviceFileMinor:"));
            let number: u32 = number
                .and_then(|number| number.trim().parse().ok())
                .ok_or_else(|| Error::NoCapability(access.display().to_string()))?;
            let container = format!("/dev/nvidia-caps/nvidia-cap{number}");
            let Some(state) = soft_root else {
                let major = self.major_of_capabilities();
                let major = major.ok_or_else(|| Error::NoCapability("nvidia-caps in /proc/devices".into()))?;
                return Ok(DeviceFile {
                    number: Some((major, number)),
                    ..DeviceFile::same(container)
                });
            };
            Ok(DeviceFile {
                host: state
                    .join(container.trim_start_matches('/'))
                    .to_string_lossy()
                    .into_owned(),
                is_plain: true,
                ..DeviceFile::same(container)
            })
        };
        [of_gpu_instance, of_compute_instance].map(node).into_iter().collect()
    }

    /// The major number of all capability nodes. It changes when the kernel module is loaded again.
    fn major_of_capabilities(&self) -> Option<u32> {
        let text = fs::read_to_string(self.proc.join("devices")).ok()?;
        let mut lines = text.lines().filter_map(|line| line.trim().split_once(' '));
        let (major, _) = lines.find(|(_, name)| name.trim() == "nvidia-caps")?;
        major.parse().ok()
    }

    /// The device nodes of the kernel's graphics interface. Programs also look for a GPU in /dev/dri/by-path, where udev
    /// makes a link to each. CDI has no links, so each link becomes a second device node.
    fn drm_nodes(&self, bus_id: &str) -> Vec<DeviceFile> {
        let folder = self.sys.join("bus/pci/devices").join(bus_id).join("drm");
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        let mut nodes = Vec::new();
        for name in names {
            let Some(kind) = drm_kind(&name) else { continue };
            let path = format!("/dev/dri/{name}");
            if self.has_node(&path) {
                nodes.push(DeviceFile::same(path.clone()));
                nodes.push(DeviceFile {
                    container: format!("/dev/dri/by-path/pci-{bus_id}-{kind}"),
                    ..DeviceFile::same(path)
                });
            }
        }
        nodes
    }

    /// Returns true if the root or this process's /dev has this node: a driver container's root has no /dev.
    fn has_node(&self, node: &str) -> bool {
        let inside = self.here.join(node.trim_start_matches('/'));
        inside.exists() || Path::new(node).exists()
    }
}

// === impl DeviceFile ===

impl DeviceFile {
    /// Returns a node that has the same path in the container.
    #[must_use]
    pub fn same(path: impl Into<String>) -> Self {
        let path = path.into();
        Self {
            container: path.clone(),
            host: path,
            is_plain: false,
            number: None,
        }
    }
}

/// `card` of `card0`, `render` of `renderD128`; None of a connector such as `card0-DP-1`.
fn drm_kind(name: &str) -> Option<&'static str> {
    [("card", "card"), ("renderD", "render")]
        .into_iter()
        .find_map(|(prefix, kind)| {
            let number = name.strip_prefix(prefix)?;
            let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then_some(kind)
        })
}

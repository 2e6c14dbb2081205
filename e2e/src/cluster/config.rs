//! A cluster's nodes, names and addresses, and the folders of its state.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::{env, fs};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use vgpu_find_driver::{Driver, Search};

use crate::toolchain::Toolchain;
use crate::{layout, shell};

/// The first service address, where kube-apiserver itself listens, so that no kube-proxy is needed.
pub(super) const API_ADDRESS: &str = "10.96.0.1";
pub(super) const SERVICES: &str = "10.96.0.0/16";
/// The image of the pods' sandboxes.
pub(super) const PAUSE_IMAGE: &str = "docker.io/dra-driver-vgpu/pause:dev";

/// A node of a cluster: its number, from 1 on. The number is part of addresses and names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Node(u8);

impl Node {
    pub const FIRST: Self = Self(1);
    pub const SECOND: Self = Self(2);
    /// Limit of nodes. Each takes about 250 MiB of memory and some of the machine's inotify instances; more nodes
    /// would test the machine, not the driver.
    pub const MOST: u8 = 9;

    /// Every node that a cluster can have.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        Self::first(Self::MOST)
    }

    /// The first `count` nodes.
    pub(super) fn first(count: u8) -> impl Iterator<Item = Self> {
        (1..=count).map(Self)
    }

    #[must_use]
    pub fn name(self) -> String {
        format!("node{}", self.0)
    }

    /// The node's address on the bridge that joins the nodes.
    pub(super) fn address(self) -> String {
        format!("10.99.0.{}", self.0)
    }

    /// The addresses of its pods.
    pub(super) fn pods(self) -> String {
        format!("10.98.{}.0/24", self.0)
    }
}

/// Parses a number of nodes from the command line.
pub fn parse_nodes(text: &str) -> Result<u8, String> {
    match text.parse() {
        Ok(count) if (1..=Node::MOST).contains(&count) => Ok(count),
        _ => Err(format!("a cluster has 1 to {} nodes", Node::MOST)),
    }
}

/// A part of a cluster that has its own mount, network and PID namespaces, and an init in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Member {
    ControlPlane,
    Node(Node),
}

impl Member {
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::ControlPlane => "control-plane".to_owned(),
            Self::Node(node) => node.name(),
        }
    }
}

impl FromStr for Member {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        let mut all = Node::all().map(Self::Node).chain([Self::ControlPlane]);
        all.find(|member| member.name() == name)
            .with_context(|| format!("{name:?} is not one of control-plane, node1 to node{}", Node::MOST))
    }
}

/// The GPUs of every node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Gpu {
    /// No NVIDIA driver on this machine: the software GPU from this folder is installed in its place.
    Soft(PathBuf),
    /// This machine's NVIDIA driver.
    Nvidia {
        root: PathBuf,
        /// The folder of libcuda.
        folder: PathBuf,
        /// Description of the driver and why it was chosen, for people.
        found: String,
    },
    /// No GPU.
    Absent,
}

/// Variable that names the root of NVIDIA's driver if the machine's loader does not find it.
const DRIVER_ROOT: &str = "VGPU_DRIVER_ROOT";
/// The software GPU's driver root and state, inside the cluster.
pub const SOFT_GPU_DRIVER: &str = "/var/lib/soft-gpu/driver";
pub const SOFT_GPU_STATE: &str = "/var/lib/soft-gpu/state";

impl Gpu {
    /// The real driver if there is one, else the software GPU of the artefacts.
    ///
    /// # Errors
    /// The variable [`DRIVER_ROOT`] names a folder without a driver.
    pub fn of_this_machine(dist: &Path) -> Result<Self> {
        let library_path = env::var_os("LD_LIBRARY_PATH");
        let machine = Machine {
            root: Path::new("/"),
            driver_root: env::var_os(DRIVER_ROOT)
                .filter(|root| !root.is_empty())
                .map(PathBuf::from),
            library_path: vgpu_find_driver::library_path(library_path.as_deref()),
        };
        Ok(machine.driver()?.unwrap_or_else(|| Self::Soft(dist.join("soft-gpu"))))
    }

    /// The driver that was found below `searched`.
    fn nvidia(root: PathBuf, searched: &Path, found: &Driver) -> Self {
        Self::Nvidia {
            root,
            folder: searched.join(found.libcuda.file.parent().unwrap_or(Path::new(""))),
            found: found.describe(searched),
        }
    }

    #[must_use]
    pub fn is_nvidia(&self) -> bool {
        matches!(self, Self::Nvidia { .. })
    }

    /// The driver root for the kubelet plugin.
    #[must_use]
    pub fn driver_root(&self) -> &Path {
        match self {
            Self::Soft(_) => Path::new(SOFT_GPU_DRIVER),
            Self::Nvidia { root, .. } => root,
            Self::Absent => Path::new("/"),
        }
    }

    /// One line for people.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Soft(_) => "software GPUs (this machine has no NVIDIA driver)".to_owned(),
            Self::Nvidia { found, root, .. } => {
                format!("the GPUs of this machine ({found}; driverRoot {})", root.display())
            }
            Self::Absent => "no GPU".to_owned(),
        }
    }
}

/// Where to search for a driver.
struct Machine<'a> {
    root: &'a Path,
    /// The driver root that the caller named.
    driver_root: Option<PathBuf>,
    library_path: Vec<PathBuf>,
}

impl Machine<'_> {
    /// NVIDIA's driver; None if there is no driver, or no GPU for it.
    fn driver(&self) -> Result<Option<Gpu>> {
        let node = self.root.join("dev/nvidiactl");
        let Some(root) = &self.driver_root else {
            let found = vgpu_find_driver::driver(&mut Search::new(self.root), &self.library_path);
            let found = found.ok().filter(|_| node.exists());
            let root = |found: &Driver| vgpu_find_driver::root_for(self.root, &found.libcuda);
            return Ok(found.map(|found| Gpu::nvidia(root(&found), self.root, &found)));
        };
        let found = vgpu_find_driver::driver(&mut Search::new(root), &[]).with_context(|| {
            format!(
                "{DRIVER_ROOT}={}: set it to the root of NVIDIA's driver",
                root.display()
            )
        })?;
        ensure!(
            node.exists(),
            "{DRIVER_ROOT}={}: the driver there has no {}; load its kernel module, or unset the variable for the \
                 software GPU",
            root.display(),
            node.display()
        );
        Ok(Some(Gpu::nvidia(root.clone(), root, &found)))
    }
}

/// The configuration of the keeper and of each init, stored as JSON in the cluster's state folder.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Config {
    pub name: String,
    /// This crate's program, which runs as keeper and init.
    pub program: PathBuf,
    pub toolchain: Toolchain,
    pub gpu: Gpu,
    /// The archive of the pause image.
    pub pause: PathBuf,
    /// The user who may read the KUBECONFIG besides root.
    pub owner: Option<(u32, u32)>,
    /// The number of nodes at the start.
    pub nodes: u8,
    /// Makes containerd 1.7 apply CDI specs. Later versions always do.
    pub cdi: bool,
    /// The software GPU's NVML lists processes, as a real one does on a node. If false, it lists none: this is the
    /// worst case of a real driver in a container, where a pod's process does not find itself. Most test clusters set
    /// it to false.
    pub lists_processes: bool,
    /// The software GPU's driver limits the memory of cgroups, as one of r615 does (`memory_limits = misc`). It can where
    /// the machine has cgroup v2 alone.
    pub limits_cgroups: bool,
    /// Feature gates of Kubernetes that are switched on in every component.
    pub feature_gates: Vec<String>,
}

/// Checks the name, which becomes part of paths and of a cgroup's name.
pub fn check_name(name: &str) -> Result<()> {
    let good = !name.is_empty()
        && name.len() <= 40
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    ensure!(
        good && !name.starts_with('-'),
        "the cluster name {name:?} is not 1 to 40 of a-z, 0-9 and -: choose another"
    );
    Ok(())
}

/// The folder of a cluster's state, and the files in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State(pub PathBuf);

impl State {
    #[must_use]
    pub fn of(name: &str) -> Self {
        Self(Path::new(layout::STATE).join(name))
    }

    #[must_use]
    pub fn name(&self) -> String {
        self.0.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The lock that the keeper holds while the cluster lives.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.0.join("lock")
    }

    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.0.join("config.json")
    }

    /// The keeper's PID, for `down`.
    #[must_use]
    pub fn keeper(&self) -> PathBuf {
        self.0.join("keeper.pid")
    }

    /// The administrator's kubeconfig, through the host's 127.0.0.1.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.0.join("kubeconfig")
    }

    /// Prepares a client of the cluster, kubectl or helm, that writes nothing to its caller's home.
    pub(crate) fn client(&self, program: PathBuf) -> Command {
        let mut command = shell::command(program, ["--kubeconfig"]);
        command.arg(self.kubeconfig());
        for folder in ["KUBECACHEDIR", "HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(folder, self.0.join("tmp").join(folder.to_lowercase()));
        }
        command
    }

    /// A component's kubeconfig, for use inside the cluster.
    #[must_use]
    pub fn component_kubeconfig(&self, user: &str) -> PathBuf {
        self.0.join("pki").join(format!("{user}.kubeconfig"))
    }

    #[must_use]
    pub fn pki(&self, file: &str) -> PathBuf {
        self.0.join("pki").join(file)
    }

    /// The state of one member.
    #[must_use]
    pub fn member(&self, member: Member) -> MemberState {
        MemberState(self.0.join(member.name()))
    }

    pub fn load(&self) -> Result<Config> {
        let file = self.config();
        let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is damaged", file.display()))
    }
}

/// All clusters that have a state folder.
#[must_use]
pub fn names() -> Vec<String> {
    let entries = fs::read_dir(layout::STATE).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.path().is_dir())
        .map(|entry| State(entry.path()).name())
        .collect()
}

/// The folder of a member's state, and the files in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberState(pub(super) PathBuf);

impl MemberState {
    /// The PID of its init on the host, for nsenter. Exists while the member runs.
    #[must_use]
    pub fn init(&self) -> PathBuf {
        self.0.join("init.pid")
    }

    /// The file of a component's PID in the member's namespace.
    #[must_use]
    pub fn pid(&self, component: &str) -> PathBuf {
        self.0.join(format!("{component}.pid"))
    }

    /// The files of all PIDs.
    pub(super) fn pids(&self) -> impl Iterator<Item = PathBuf> + use<> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let files = entries.map(|entry| entry.path());
        files.filter(|file| file.extension().is_some_and(|end| end == "pid"))
    }

    #[must_use]
    pub fn log(&self, component: &str) -> PathBuf {
        self.0.join("logs").join(format!("{component}.log"))
    }

    #[must_use]
    pub fn etc(&self, file: &str) -> PathBuf {
        self.0.join("etc").join(file)
    }

    /// The folder on disk that is mounted at `/var/lib/<name>` or `/var/log/<name>` inside.
    #[must_use]
    pub fn var(&self, path: &str) -> PathBuf {
        self.0.join("var").join(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_nodes_that_make_no_cluster_are_refused() {
        for bad in ["0", "50", "10", "-1", "two", "", "1.5", "300"] {
            assert_eq!(parse_nodes(bad).unwrap_err(), "a cluster has 1 to 9 nodes", "{bad}");
        }
        assert_eq!((parse_nodes("1"), parse_nodes("9")), (Ok(1), Ok(9)));
    }

    #[test]
    fn a_member_is_found_by_its_name() {
        for member in [
            Member::ControlPlane,
            Member::Node(Node::FIRST),
            Member::Node(Node::SECOND),
        ] {
            assert_eq!(member.name().parse::<Member>().unwrap(), member);
        }
        assert!("node0".parse::<Member>().is_err() && "".parse::<Member>().is_err());
    }

    /// A machine with a driver in this folder, and with the kernel module's device node.
    fn machine(folder: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join(folder)).unwrap();
        for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            fs::write(root.path().join(folder).join(name), "").unwrap();
        }
        fs::create_dir(root.path().join("dev")).unwrap();
        fs::write(root.path().join("dev/nvidiactl"), "").unwrap();
        root
    }

    fn gpu_of(root: &Path, driver_root: Option<&Path>, library_path: &[&str]) -> Result<Option<Gpu>> {
        let machine = Machine {
            root,
            driver_root: driver_root.map(Path::to_path_buf),
            library_path: library_path.iter().map(PathBuf::from).collect(),
        };
        machine.driver()
    }

    #[test]
    fn a_machine_with_a_mounted_driver_has_nvidias() {
        let root = machine("usr/local/nvidia/lib64");
        let root = root.path();
        let gpu = gpu_of(root, None, &[]).unwrap().unwrap();
        assert_eq!(gpu.driver_root(), root);
        let said = gpu.describe();
        let folder = root.join("usr/local/nvidia/lib64").display().to_string();
        assert!(gpu.is_nvidia() && said.contains(&folder), "{said}");
        fs::remove_file(root.join("dev/nvidiactl")).unwrap();
        assert_eq!(
            gpu_of(root, None, &[]).unwrap(),
            None,
            "a driver without its kernel module"
        );
    }

    #[test]
    fn a_driver_that_only_library_path_names_gets_a_root_for_the_plugin() {
        let root = machine("srv/gpu/lib64");
        let root = root.path();
        assert_eq!(gpu_of(root, None, &[]).unwrap(), None);
        let gpu = gpu_of(root, None, &["/srv/gpu/lib64"]).unwrap().unwrap();
        assert_eq!(gpu.driver_root(), root.join("srv/gpu"));
        assert!(gpu.describe().contains("by LD_LIBRARY_PATH"), "{}", gpu.describe());
    }

    #[test]
    fn a_named_root_goes_before_all_others_and_without_a_driver_is_an_error() {
        let root = machine("usr/lib64");
        let root = root.path();
        let other = machine("lib64");
        let gpu = gpu_of(root, Some(other.path()), &["/usr/lib64"]).unwrap().unwrap();
        assert_eq!(gpu.driver_root(), other.path());
        let nothing = tempfile::tempdir().unwrap();
        let error = format!("{:#}", gpu_of(root, Some(nothing.path()), &[]).unwrap_err());
        for part in [DRIVER_ROOT, "libcuda.so.1", "/usr/local/nvidia/lib64"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        fs::remove_file(root.join("dev/nvidiactl")).unwrap();
        let error = gpu_of(root, Some(other.path()), &[]).unwrap_err().to_string();
        assert!(error.contains(DRIVER_ROOT) && error.contains("nvidiactl"), "{error}");
    }

    #[test]
    fn a_name_that_would_leave_the_state_folder_is_refused() {
        for bad in ["", "..", "a/b", "-a", "A", &"a".repeat(41)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        assert!(check_name("demo-2").is_ok());
    }
}

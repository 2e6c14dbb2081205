//! Raw flags and the validated configuration. The only file that reads the environment.
//!
//! Every path of docs/architecture.md is derived from a flag whose default gives that path, so that a test
//! can run the whole plugin in its own folder.

use crate::dra::instance::Folders;
use crate::publish::slice::Sharing;
use crate::publish::taints::Allocator;
use crate::text::is_dns_subdomain;
use clap::{Parser, ValueEnum};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use vgpu_api::{DRIVER_NAME, Pools, gpu_memory};
use vgpu_node::gpus::MemorySizes;

/// Where the kernel names the boot of the machine.
pub(crate) const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The socket of kubelet's service for containers, below its root folder.
pub(crate) const POD_RESOURCES: &str = "pod-resources/kubelet.sock";

/// Publishes this node's GPUs as ResourceSlices and prepares fractions of them for containers.
#[derive(Clone, Debug, Parser)]
#[command(name = "vgpu-kubelet-plugin", version)]
pub struct Flags {
    /// Name of this machine's Node object
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// UID of the pod of this process, which names its sockets, so that two instances can run during an update
    #[arg(long, env = "POD_UID")]
    pub pod_uid: String,
    /// Folder of NVIDIA's driver, as a path in this process
    #[arg(long, default_value = "/")]
    pub driver_root: PathBuf,
    /// The same folder, as a path for the node's container runtime [default: --driver-root]
    #[arg(long)]
    pub driver_root_host: Option<PathBuf>,
    /// State folder of a software GPU on the node; if set, the driver root must have the software GPU's
    /// libraries
    #[arg(long)]
    pub soft_gpu_state: Option<PathBuf>,
    /// Folder with this release's libvgpu.so, libvgpu-preload.so, vgpu-cdi-hook and vgpu-driver-limit
    #[arg(long, default_value = "/opt/vgpu")]
    pub library_dir: PathBuf,
    /// Largest number of claims that share one GPU
    #[arg(long, default_value_t = 64)]
    pub shares: u32,
    /// How claims take instances of GPUs in MIG mode: each one whole, or shared as GPUs are
    #[arg(long, value_enum, default_value_t)]
    pub mig_instances: MigInstances,
    /// Which GPUs claims may divide: none, those that are in MIG mode when the plugin first sees them, or these and all whose
    /// mode changes without a reset
    #[arg(long, value_enum, default_value_t)]
    pub mig_dynamic: MigDynamic,
    /// Kubelet's root folder
    #[arg(long, default_value = "/var/lib/kubelet")]
    pub kubelet_root: PathBuf,
    /// Folder of CDI spec files
    #[arg(long, default_value = "/var/run/cdi")]
    pub cdi_dir: PathBuf,
    /// Folder of claim directories and arbitration directories
    #[arg(long, default_value = "/run/vgpu")]
    pub run_dir: PathBuf,
    /// Folder in which releases of the library are installed
    #[arg(long, default_value = vgpu_abi::paths::NODE_LIBRARY_DIR)]
    pub library_store: PathBuf,
    /// Address of /healthz, /readyz and /metrics
    #[arg(long, default_value = "0.0.0.0:9440")]
    pub http_address: String,
    /// Memory charged for a CUDA context before its real size is measured, as a quantity
    #[arg(long, default_value = "0")]
    pub context_reserve: String,
    /// Size of a product's memory, of which the driver has no figure: PRODUCT=QUANTITY; may be given for several products
    #[arg(long, value_name = "PRODUCT=QUANTITY")]
    pub gpu_memory: Vec<String>,
    /// Memory of the node that is reserved for the library in each container with a share, as a quantity; 0: none
    #[arg(long, default_value = "0")]
    pub host_memory_per_container: String,
    /// Who allocates this node's GPUs
    #[arg(long, value_enum, default_value_t)]
    pub allocator: Allocator,
    /// Mounts the metadata of its devices into each container with a claim (KEP-5304)
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub device_metadata: bool,
    /// What `NVIDIA_VISIBLE_DEVICES` says in containers: nothing, or what the dialect of their claim says
    #[arg(long, value_enum, default_value_t)]
    pub visible_devices: VisibleDevices,
    /// What happens to a process whose share uses more memory than its limit
    #[arg(long, value_enum, default_value_t)]
    pub on_breach: OnBreach,
    /// XIDs that keep no claim away from a GPU, with commas between them; empty: none
    #[arg(long, default_value = "13,31,43,45,68,109")]
    pub ignored_xids: String,
    /// Export metrics under HAMi's names too
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set)]
    pub hami_metrics: bool,
    /// File that names the boot of the machine; another one only in tests, where a machine cannot be booted
    #[arg(long, default_value = BOOT_ID)]
    pub boot_id_file: PathBuf,
    /// The kernel's description of devices; another folder only in tests, whose machines have no GPU
    #[arg(long, default_value = "/sys")]
    pub sys: PathBuf,
    /// Mount a tmpfs for each share; off only in tests without root
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    pub ledger_tmpfs: bool,
}

/// How claims take instances of GPUs in MIG mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum MigInstances {
    /// One claim has an instance.
    #[default]
    Whole,
    /// Several claims have parts of its memory and time.
    Shared,
}

/// The GPUs on which claims make instances. Each value allows what those before it allow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum MigDynamic {
    /// Claims get instances that an administrator has made.
    #[default]
    Off,
    /// They are made at Prepare, and destroyed at Unprepare, on GPUs that an administrator has put in MIG mode.
    Instances,
    /// The same, and claims switch the mode of GPUs that need no reset for it.
    Modes,
}

/// What happens when a share is over its limit of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnBreach {
    /// A condition of the claim, an event on its pods, a metric.
    #[default]
    Report,
    /// The process that has most of what is over is killed too.
    Kill,
}

/// What `NVIDIA_VISIBLE_DEVICES` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum VisibleDevices {
    /// `void`: NVIDIA's runtime then mounts nothing.
    #[default]
    Void,
    /// The GPUs, if the claim has `reportAs`. Where NVIDIA's runtime starts containers it may then mount the driver
    /// itself beside the library, and its limits do not hold.
    Dialect,
}

/// The validated flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub node_name: String,
    pub pod_uid: String,
    pub driver_root: PathBuf,
    pub driver_root_host: PathBuf,
    pub soft_gpu_state: Option<PathBuf>,
    pub sys: PathBuf,
    pub library_dir: PathBuf,
    pub library_store: PathBuf,
    pub shares: u32,
    pub mig_instances: MigInstances,
    /// The chart's value, or that of the node's label (`node_labels`).
    pub mig_dynamic: MigDynamic,
    /// The folder of the records of instances that claims made.
    pub mig_records: PathBuf,
    pub kubelet_root: PathBuf,
    pub claims_dir: PathBuf,
    pub gpus_dir: PathBuf,
    /// Where vgpu-driver-limit records which shares were started in each pod.
    pub driver_limits_dir: PathBuf,
    pub cdi_dir: PathBuf,
    pub run_dir: PathBuf,
    /// The file in which the kernel names the boot of the machine.
    pub boot_id: PathBuf,
    pub lock: PathBuf,
    /// Locked by the instance that publishes.
    pub publisher_lock: PathBuf,
    /// Locked during a call of NVML for an instance.
    pub calls_lock: PathBuf,
    pub allocator: Allocator,
    pub allocator_mark: PathBuf,
    /// Where the sockets of all instances are.
    pub sockets: Folders,
    pub dra_socket: PathBuf,
    /// Two possible paths of one socket; `registration::name_in_turn` chooses.
    pub registration_sockets: [PathBuf; 2],
    pub http_address: SocketAddr,
    /// Bytes reserved for each CUDA context; 0: the measured size.
    pub context_reserve: u64,
    /// Configured sizes of GPUs' memory.
    pub memory_sizes: MemorySizes,
    /// Bytes of the node's memory that are reserved for the library in each container with a share.
    pub host_memory: u64,
    /// The file with the measured sizes of CUDA contexts.
    pub context_sizes: PathBuf,
    pub ledger_tmpfs: bool,
    pub device_metadata: bool,
    pub visible_devices: bool,
    pub on_breach: OnBreach,
    pub ignored_xids: BTreeSet<u64>,
    /// The file with the faults of GPUs in this boot.
    pub faults: PathBuf,
    pub hami_metrics: bool,
    /// kubelet's service that names the containers of shares.
    pub pod_resources: PathBuf,
}

/// Why a flag is refused, in one line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("--node-name {0:?} is not a node's name; pass spec.nodeName of this pod (NODE_NAME)")]
    NodeName(String),
    #[error(
        "--node-name {node} has {length} characters, and with {longest} the name of its pool is longer than the \
         {POOL_NAME_MAX} that Kubernetes accepts; register the node under a name of at most {most} \
         (kubelet --hostname-override)",
        node = vgpu_quantity::quoted(.node),
        length = .node.len(),
        most = POOL_NAME_MAX - .longest.len()
    )]
    PoolName { node: String, longest: &'static str },
    #[error("--pod-uid {0:?} is not a pod's UID; pass metadata.uid of this pod (POD_UID)")]
    PodUid(String),
    #[error("{flag} {} is not an absolute path; give one that starts with /", path.display())]
    Relative { flag: &'static str, path: PathBuf },
    #[error("--shares {0} is not within 1 to 64; a GPU has 64 arbitration slots")]
    Shares(u32),
    #[error("--http-address {0:?} is not ADDRESS:PORT, as in 0.0.0.0:9440")]
    HttpAddress(String),
    #[error("--context-reserve {0:?} is not an amount of memory; give a quantity such as 300Mi")]
    ContextReserve(String),
    #[error("--gpu-memory {0}; set the chart's gpuMemory")]
    GpuMemory(#[from] gpu_memory::SizeError),
    #[error("--host-memory-per-container {0:?} is not an amount of memory; give a quantity such as 16Mi")]
    HostMemory(String),
    #[error("--ignored-xids {0:?} is not a list of XIDs; give numbers with commas between them, such as 13,31")]
    IgnoredXids(String),
    #[error("--kubelet-root {} is too long: the socket {} would exceed 107 bytes", root.display(), socket.display())]
    SocketPath { root: PathBuf, socket: PathBuf },
    #[error("SOFT_GPU_STATE is not set; set it to where --soft-gpu-state {} is mounted for this process", .0.display())]
    SoftGpuUnset(PathBuf),
}

// === impl Flags ===

impl Flags {
    /// # Errors
    /// The first flag that is not valid.
    pub fn validate(self) -> Result<Config, Error> {
        let soft_gpu_seen = std::env::var_os("SOFT_GPU_STATE").is_some_and(|value| !value.is_empty());
        self.validate_with(soft_gpu_seen)
    }

    fn validate_with(self, soft_gpu_seen: bool) -> Result<Config, Error> {
        self.check_names()?;
        self.check_paths(soft_gpu_seen)?;
        if !(1..=64).contains(&self.shares) {
            return Err(Error::Shares(self.shares));
        }
        let http_address = self.http_address.parse();
        let http_address = http_address.map_err(|_| Error::HttpAddress(self.http_address.clone()))?;
        let context_reserve = bytes(&self.context_reserve);
        let context_reserve = context_reserve.ok_or_else(|| Error::ContextReserve(self.context_reserve.clone()))?;
        let memory_sizes = MemorySizes(gpu_memory::parse_all(self.gpu_memory.iter().map(String::as_str))?);
        let host_memory = bytes(&self.host_memory_per_container);
        let host_memory = host_memory.ok_or_else(|| Error::HostMemory(self.host_memory_per_container.clone()))?;
        let ignored_xids = xids(&self.ignored_xids).ok_or_else(|| Error::IgnoredXids(self.ignored_xids.clone()))?;
        let plugin_dir = self.kubelet_root.join("plugins").join(DRIVER_NAME);
        let sockets = Folders {
            plugin: plugin_dir.clone(),
            registry: self.kubelet_root.join("plugins_registry"),
        };
        let dra_socket = sockets.dra_socket(&self.pod_uid);
        let registration_sockets = sockets.registration_sockets(&self.pod_uid);
        self.check_sockets(registration_sockets.iter().chain([&dra_socket]))?;
        Ok(Config {
            node_name: self.node_name,
            pod_uid: self.pod_uid,
            driver_root_host: self.driver_root_host.unwrap_or_else(|| self.driver_root.clone()),
            driver_root: self.driver_root,
            soft_gpu_state: self.soft_gpu_state,
            sys: self.sys,
            context_sizes: self.library_store.join("contexts"),
            mig_records: self.library_store.join("mig"),
            library_dir: self.library_dir,
            library_store: self.library_store,
            shares: self.shares,
            mig_instances: self.mig_instances,
            mig_dynamic: self.mig_dynamic,
            claims_dir: self.run_dir.join("claims"),
            gpus_dir: self.run_dir.join("gpus"),
            driver_limits_dir: self.run_dir.join("driver-limits"),
            faults: self.run_dir.join("faults.json"),
            run_dir: self.run_dir,
            cdi_dir: self.cdi_dir,
            boot_id: self.boot_id_file,
            lock: plugin_dir.join("lock"),
            publisher_lock: plugin_dir.join("publisher"),
            calls_lock: plugin_dir.join("calls"),
            allocator: self.allocator,
            allocator_mark: plugin_dir.join("allocator"),
            sockets,
            dra_socket,
            registration_sockets,
            http_address,
            context_reserve,
            memory_sizes,
            host_memory,
            ledger_tmpfs: self.ledger_tmpfs,
            device_metadata: self.device_metadata,
            visible_devices: self.visible_devices == VisibleDevices::Dialect,
            on_breach: self.on_breach,
            ignored_xids,
            hami_metrics: self.hami_metrics,
            pod_resources: self.kubelet_root.join(POD_RESOURCES),
            kubelet_root: self.kubelet_root,
        })
    }

    fn check_sockets<'a>(&self, mut sockets: impl Iterator<Item = &'a PathBuf>) -> Result<(), Error> {
        let too_long = sockets.find(|socket| socket.as_os_str().len() > SOCKET_PATH_MAX);
        too_long.map_or(Ok(()), |socket| {
            Err(Error::SocketPath {
                root: self.kubelet_root.clone(),
                socket: socket.clone(),
            })
        })
    }

    fn check_names(&self) -> Result<(), Error> {
        if !is_dns_subdomain(&self.node_name) {
            return Err(Error::NodeName(self.node_name.clone()));
        }
        check_pool_names(&self.node_name, self.mig_dynamic)?;
        if !is_uid(&self.pod_uid) {
            return Err(Error::PodUid(self.pod_uid.clone()));
        }
        Ok(())
    }

    fn check_paths(&self, soft_gpu_seen: bool) -> Result<(), Error> {
        let all = [
            ("--driver-root", Some(&self.driver_root)),
            ("--driver-root-host", self.driver_root_host.as_ref()),
            ("--library-dir", Some(&self.library_dir)),
            ("--library-store", Some(&self.library_store)),
            ("--kubelet-root", Some(&self.kubelet_root)),
            ("--cdi-dir", Some(&self.cdi_dir)),
            ("--run-dir", Some(&self.run_dir)),
            ("--boot-id-file", Some(&self.boot_id_file)),
            ("--sys", Some(&self.sys)),
            ("--soft-gpu-state", self.soft_gpu_state.as_ref()),
        ];
        for (flag, path) in all {
            if let Some(path) = path.filter(|path| !path.is_absolute()) {
                let path = path.clone();
                return Err(Error::Relative { flag, path });
            }
        }
        match &self.soft_gpu_state {
            Some(state) if !soft_gpu_seen => Err(Error::SoftGpuUnset(state.clone())),
            _ => Ok(()),
        }
    }
}

impl Config {
    /// Names of this node's pools of devices.
    #[must_use]
    pub fn pools(&self) -> Pools {
        Pools::of(&self.node_name)
    }

    /// How claims share this node's devices.
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        Sharing {
            shares: self.shares,
            of_instances: self.mig_instances == MigInstances::Shared,
        }
    }
}

/// # Errors
/// The name of a pool of this node would be too long.
pub(crate) fn check_pool_names(node: &str, mig_dynamic: MigDynamic) -> Result<(), Error> {
    let longest = match mig_dynamic {
        MigDynamic::Off => Pools::LONGEST_SUFFIX,
        MigDynamic::Instances | MigDynamic::Modes => Pools::LONGEST_DYNAMIC_SUFFIX,
    };
    if node.len() + longest.len() > POOL_NAME_MAX {
        let node = node.to_owned();
        return Err(Error::PoolName { node, longest });
    }
    Ok(())
}

/// The longest name of a pool that the API server accepts in a ResourceSlice.
const POOL_NAME_MAX: usize = 253;
/// The kernel's limit, without the final NUL (unix(7)).
const SOCKET_PATH_MAX: usize = 107;

/// None: it is no quantity of bytes.
fn bytes(quantity: &str) -> Option<u64> {
    u64::try_from(vgpu_quantity::whole(quantity).ok()?).ok()
}

/// None: it is no list of numbers.
fn xids(list: &str) -> Option<BTreeSet<u64>> {
    match list {
        "" => Some(BTreeSet::new()),
        list => list.split(',').map(|xid| xid.parse().ok()).collect(),
    }
}

/// Accepts only characters that are safe in a file name. A UID has 36 bytes; that of a static pod has 32.
fn is_uid(uid: &str) -> bool {
    (1..=36).contains(&uid.len()) && uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// The API server refuses a slice whose pool has a longer name, and then nothing of the node is published.
    #[test]
    fn a_node_name_that_makes_the_pool_name_too_long_is_refused() {
        let named = |length: usize| {
            let name = format!(
                "{}.{}.{}.{}",
                "a".repeat(63),
                "b".repeat(63),
                "c".repeat(63),
                "d".repeat(length - 192)
            );
            let flags = Flags::try_parse_from(["p", &format!("--node-name={name}"), "--pod-uid=a"]);
            flags.expect("parses").validate_with(false)
        };
        assert_eq!(named(240).expect("fits").pools().monitors.len(), 253);
        for length in 241..=253 {
            let said = named(length).expect_err("too long").to_string();
            for part in ["--node-name", &format!("has {length} characters"), "253", "at most 240"] {
                assert!(said.contains(part), "{said}");
            }
        }
    }

    fn parse(more: &[&str]) -> Result<Config, Error> {
        let arguments = ["vgpu-kubelet-plugin", "--node-name=n1", "--pod-uid=a"].iter();
        let arguments =
            arguments.filter(|one| !more.iter().any(|more| more.split('=').next() == one.split('=').next()));
        let arguments = arguments.chain(more);
        Flags::try_parse_from(arguments).expect("parses").validate_with(false)
    }

    #[test]
    fn defaults_are_the_paths_of_the_architecture() {
        let config = parse(&[]).expect("valid");
        assert_eq!(config.claims_dir, Path::new(vgpu_abi::paths::NODE_CLAIMS_DIR));
        assert_eq!(config.gpus_dir, Path::new(vgpu_abi::paths::NODE_GPUS_DIR));
        assert_eq!(
            config.dra_socket,
            Path::new("/var/lib/kubelet/plugins/dra.vgpu/dra-a.sock")
        );
        assert_eq!(
            config.registration_sockets,
            ["", ".2"].map(|turn| PathBuf::from(format!(
                "/var/lib/kubelet/plugins_registry/registration-a{turn}@dra.vgpu.sock"
            )))
        );
        assert_eq!(config.driver_root_host, Path::new("/"));
        assert_eq!(config.pools(), Pools::of("n1"));
        assert!(config.ledger_tmpfs && !config.visible_devices);
    }

    #[test]
    fn ignored_xids_are_a_list_that_may_be_empty() {
        let ignored = |more: &[&str]| parse(more).expect("valid").ignored_xids;
        assert_eq!(ignored(&[]), BTreeSet::from(crate::publish::faults::IGNORED_XIDS));
        assert_eq!(ignored(&["--ignored-xids=94,13"]), BTreeSet::from([13, 94]));
        assert_eq!(ignored(&["--ignored-xids="]), BTreeSet::new());
    }

    #[test]
    fn sizes_of_memory_are_by_product() {
        let config = parse(&["--gpu-memory=NVIDIA GB10=96Gi", "--gpu-memory=NVIDIA Thor=64Gi"]).expect("valid");
        let expected = [
            ("NVIDIA GB10".to_owned(), 96 << 30),
            ("NVIDIA Thor".to_owned(), 64 << 30),
        ];
        assert_eq!(config.memory_sizes, MemorySizes(expected.into()));
    }

    #[test]
    fn an_instance_of_a_pod_has_sockets_of_its_own() {
        let uid = "5c0f3b9a-0000-4000-8000-000000000001";
        let config = parse(&[&format!("--pod-uid={uid}")]).expect("valid");
        let expected = [
            format!("/var/lib/kubelet/plugins/dra.vgpu/dra-{uid}.sock"),
            format!("/var/lib/kubelet/plugins_registry/registration-{uid}@dra.vgpu.sock"),
            format!("/var/lib/kubelet/plugins_registry/registration-{uid}.2@dra.vgpu.sock"),
        ];
        let [first, second] = config.registration_sockets;
        assert_eq!([config.dra_socket, first, second], expected.map(PathBuf::from));
    }

    #[test]
    fn the_authority_that_kubelet_makes_of_the_registration_socket_is_one() {
        for path in parse(&[]).expect("valid").registration_sockets {
            let encoded = path.to_str().expect("UTF-8").replace('/', "%2F");
            let authority: tonic::codegen::http::uri::Authority = encoded.parse().expect("an authority");
            assert_eq!(authority.host(), "dra.vgpu.sock");
        }
        assert!(
            "%2Fplugins_registry%2Fdra.vgpu-reg.sock"
                .parse::<tonic::codegen::http::uri::Authority>()
                .is_err()
        );
    }

    #[test]
    fn nonsense_is_one_line_that_names_flag_and_value() {
        let long = format!("--kubelet-root=/{}", "k".repeat(90));
        for (arguments, flag, value) in [
            (vec!["--node-name=UPPER"], "--node-name", "UPPER"),
            (vec!["--node-name=a..b"], "--node-name", "a..b"),
            (vec!["--pod-uid=../x"], "--pod-uid", "../x"),
            (vec!["--pod-uid="], "--pod-uid", "\"\""),
            (vec!["--driver-root=here"], "--driver-root", "here"),
            (vec!["--driver-root-host=here"], "--driver-root-host", "here"),
            (vec!["--soft-gpu-state=here"], "--soft-gpu-state", "here"),
            (vec!["--library-dir=here"], "--library-dir", "here"),
            (vec!["--library-store=here"], "--library-store", "here"),
            (vec!["--kubelet-root=here"], "--kubelet-root", "here"),
            (vec!["--cdi-dir=cdi"], "--cdi-dir", "cdi"),
            (vec!["--run-dir=./x"], "--run-dir", "./x"),
            (vec!["--boot-id-file=boot"], "--boot-id-file", "boot"),
            (vec!["--shares=0"], "--shares", "0"),
            (vec!["--shares=65"], "--shares", "65"),
            (
                vec!["--host-memory-per-container=8MB"],
                "--host-memory-per-container",
                "8MB",
            ),
            (vec!["--http-address=9440"], "--http-address", "9440"),
            (vec!["--context-reserve=-1Mi"], "--context-reserve", "-1Mi"),
            (vec!["--gpu-memory=NVIDIA GB10=much"], "--gpu-memory", "much"),
            (vec!["--ignored-xids=13,all"], "--ignored-xids", "13,all"),
            (vec!["--ignored-xids=13, 31"], "--ignored-xids", "13, 31"),
            (vec!["--ignored-xids=-1"], "--ignored-xids", "-1"),
            (vec![long.as_str()], "--kubelet-root", "kkkk"),
            (vec!["--soft-gpu-state=/s"], "--soft-gpu-state", "/s"),
        ] {
            let error = parse(&arguments).expect_err(value).to_string();
            assert!(
                error.contains(flag) && error.contains(value) && !error.contains('\n'),
                "{error}"
            );
        }
    }

    #[test]
    fn unparsable_values_name_their_flag() {
        for argument in ["--shares=many", "--ledger-tmpfs=perhaps", "--colour=red"] {
            let error = Flags::try_parse_from(["p", "--node-name=n", "--pod-uid=a", argument])
                .expect_err(argument)
                .to_string();
            let flag = argument.split('=').next().expect("a flag");
            assert!(error.lines().next().is_some_and(|line| line.contains(flag)), "{error}");
        }
    }
}

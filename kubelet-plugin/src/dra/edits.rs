//! Converts a claim's shares into its CDI spec. Pure.
//!
//! ```text
//! spec level (once per container): environment, the tmpfs of shares, library, preload and its hook, the hook for the
//!                                  driver's limit (`limit_hook`), driver, common device nodes
//! device `<uid>-<share>`:          the GPU's device nodes, share directory, ledger, arbitration folder and slot, and the
//!                                  metadata of the share's request
//! ```
//!
//! Which files of the driver are mounted depends on `driverCapabilities`; at the spec level, on those of all shares of the
//! claim. No file of the driver is mounted under a name that the shim has: these names always lead to the shim. Each
//! name of a library is a mount of its own, so no link has to be made in the image. The mounts are in folders that the
//! loader searches by default, so no cache has to be written; docs/injection.md says what a cache of the image changes.
//!
//! Runtimes apply the spec level before devices and sort mounts by depth, so that a file is mounted over the
//! read-only folder that contains it. Two shares of one GPU name the same arbitration folder, and the runtime
//! mounts it once, and so do two shares of one request with its metadata. The runtime may run a hook more than once, so hooks are idempotent.

use crate::dra::limit_hook;
use crate::dra::metadata;
use crate::dra::share::{Report, Role, Share};
use crate::driver::{DeviceFile, Driver, Found, Place};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use vgpu_abi::arbitration::slot_file_name;
use vgpu_abi::paths::{
    CONTAINER_ARBITRATION_DIR, CONTAINER_DIR, CONTAINER_DRIVER_DIR, CONTAINER_LIBRARY_DIRS, CONTAINER_OWN_LIBRARY_DIR,
    CONTAINER_PRELOAD, CONTAINER_SHIM, HOOK_FILE, LEDGER, LIBCUDA, LIBNVIDIA_ML, PRELOAD_FILE, SHIM_FILE, SHIM_NAMES,
    TMPFS_SOURCE,
};
use vgpu_api::DRIVER_NAME;
use vgpu_api::config::{Capabilities, Dialect};
use vgpu_cdi::{ContainerEdits, Device, DeviceNode, DeviceNumber, Hook, HookName, Kind, Mount, Spec};
use vgpu_dialects::{Environment, GpuShare};

const CONTAINER_SOFT_GPU: &str = "/run/soft-gpu";
/// Where the capability nodes of instances are.
const CONTAINER_CAPS: &str = "/dev/nvidia-caps";
const NVIDIA_SMI: &str = "nvidia-smi";
/// The path of nvidia-smi in manifests for gpu-manager.
const GPU_MANAGER_NVIDIA_SMI: &str = "/usr/local/nvidia/bin/nvidia-smi";
const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";
/// The mode that NVIDIA's udev rules and tools set.
const NODE_MODE: u32 = 0o666;
/// Seconds. The hook may read a file of a pod's volume, whose server may have stopped.
const HOOK_TIMEOUT: u32 = 10;
/// The tmpfs of shares: the runtime makes mount points in it, and then makes it read-only. It has room for these, and
/// for no content.
const TMPFS_OPTIONS: [&str; 7] = [
    "ro",
    "nosuid",
    "nodev",
    "noexec",
    "mode=0755",
    "size=64k",
    "nr_inodes=1024",
];

/// The inputs of a spec besides the shares.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    pub claim_dir: &'a Path,
    pub gpus_dir: &'a Path,
    /// Folder of the library release to which the claim is bound.
    pub library: &'a Path,
    pub driver: &'a Driver,
    /// True: name the GPUs in `NVIDIA_VISIBLE_DEVICES` if the claim's dialect does so (`--visible-devices=dialect`).
    pub visible_devices: bool,
    /// The metadata of the claim's requests; none if it is not known by which name pods find the claim.
    pub metadata: &'a [metadata::File],
    /// The hook for the driver's limit, and its folder of records; None: the containers need none.
    pub driver_limit: Option<(limit_hook::Command, &'a Path)>,
    /// The driver's version, if a container with a device of the claim can use no other one.
    pub alone: Option<&'a str>,
    /// Why no container of the claim may start any more.
    pub refused: Option<&'a str>,
}

/// A share with its slot and device node.
#[derive(Clone, Debug)]
pub struct Placed<'a> {
    pub share: &'a Share,
    pub slot: Option<u8>,
    /// The GPU's device nodes; none for a software GPU.
    pub nodes: Vec<DeviceFile>,
    /// The share in the variables of a dialect; `None` if its config names none.
    pub reported: Option<GpuShare>,
}

/// The kind of all our CDI devices.
#[must_use]
pub fn kind() -> Kind {
    // `dra.vgpu/claim` is well formed, which a test asserts.
    Kind::parse(&format!("{DRIVER_NAME}/claim")).expect("a CDI kind")
}

/// Name of a share's CDI device.
#[must_use]
pub fn device_name(uid: &str, share: &str) -> String {
    format!("{uid}-{share}")
}

/// The name by which kubelet passes a share to the container runtime.
#[must_use]
pub fn qualified_name(uid: &str, share: &str) -> String {
    format!("{}={}", kind(), device_name(uid, share))
}

/// The CDI spec of a claim.
#[must_use]
pub fn spec(inputs: &Inputs<'_>, uid: &str, shares: &[Placed<'_>]) -> Spec {
    let mut spec = Spec::new(kind());
    spec.container_edits = common(inputs, shares);
    spec.container_edits.hooks.extend(driver_limit_hook(inputs, shares));
    for placed in shares {
        let name = device_name(uid, &placed.share.name);
        // Two requests may monitor one GPU: they have the same device, with the metadata of both.
        if let Some(known) = spec.devices.iter_mut().find(|device| device.name == name) {
            let mounts = &mut known.container_edits.mounts;
            let more = metadata_mount(inputs, placed.share).filter(|more| !mounts.contains(more));
            mounts.extend(more);
            continue;
        }
        spec.devices.push(Device {
            name,
            container_edits: match placed.share.role {
                Role::Share => share(inputs, placed),
                Role::Monitor => monitor(inputs, placed),
            },
        });
    }
    spec
}

fn common(inputs: &Inputs<'_>, shares: &[Placed<'_>]) -> ContainerEdits {
    let driver = inputs.driver;
    let wanted = capabilities(shares);
    let nodes = driver.common_nodes.iter().filter(|(_, needs)| needs.meets(wanted));
    let mut edits = ContainerEdits {
        env: environment(inputs, shares),
        device_nodes: nodes.map(|(path, _)| device_node(&DeviceFile::same(path))).collect(),
        ..ContainerEdits::default()
    };
    if let Some(state) = &driver.soft_gpu_state {
        edits.env.push(format!("SOFT_GPU_STATE={CONTAINER_SOFT_GPU}"));
        edits.env.push(format!("SOFT_GPU_CAPS={CONTAINER_CAPS}"));
        edits.mounts.push(mount(state, CONTAINER_SOFT_GPU, Access::Write));
    }
    // One check is enough, because a claim has either shares or monitors.
    let limited = shares.iter().any(|placed| placed.share.role == Role::Share);
    if limited {
        edits.mounts.push(tmpfs(CONTAINER_DIR));
        for (name, file) in [
            (LIBCUDA, &driver.files.libcuda),
            (LIBNVIDIA_ML, &driver.files.libnvidia_ml),
        ] {
            let target = format!("{CONTAINER_DRIVER_DIR}/{name}");
            edits.mounts.push(mount(file, &target, Access::Execute));
        }
    }
    let found = driver.files.found.iter().chain(&driver.sockets);
    for found in found.filter(|found| found.needs.meets(wanted)) {
        edits.mounts.extend(driver_file(found, limited));
    }
    if let Some(smi) = nvidia_smi(driver)
        && report(shares).is_some_and(|report| report.dialect == Dialect::GpuManager)
    {
        edits.mounts.push(mount(smi, GPU_MANAGER_NVIDIA_SMI, Access::Execute));
    }
    let shim = inputs.library.join(SHIM_FILE);
    let names: BTreeSet<&str> = SHIM_NAMES
        .into_iter()
        .chain(driver.files.shimmed.iter().map(String::as_str))
        .collect();
    for folder in CONTAINER_LIBRARY_DIRS {
        for name in &names {
            let file = match limited {
                true => &shim,
                false if name.starts_with("libcuda.") => &driver.files.libcuda,
                false => &driver.files.libnvidia_ml,
            };
            edits
                .mounts
                .push(mount(file, &format!("{folder}/{name}"), Access::Execute));
        }
    }
    if limited {
        let preload = inputs.library.join(PRELOAD_FILE);
        edits.mounts.push(mount(&preload, CONTAINER_PRELOAD, Access::Execute));
        edits.mounts.push(mount(&shim, CONTAINER_SHIM, Access::Execute));
        let hook = preload_hook(inputs, &edits.mounts);
        edits.hooks.push(hook);
    }
    edits
}

/// The parts of the driver that the claim's containers get: those of all its shares.
fn capabilities(shares: &[Placed<'_>]) -> Capabilities {
    let all = shares.iter().map(|placed| placed.share.driver_capabilities);
    all.fold(Capabilities::of(&[]), Capabilities::with)
}

/// The mounts of a file of the driver.
fn driver_file(found: &Found, limited: bool) -> Vec<Mount> {
    match &found.place {
        Place::Library { name, beside_libcuda } => {
            // libcuda opens these by name alone, so they must be in the loader's default folders too.
            let beside = (limited && *beside_libcuda).then_some(&CONTAINER_DRIVER_DIR);
            let folders = CONTAINER_LIBRARY_DIRS.iter().chain(beside);
            folders
                .map(|folder| mount(&found.file, &format!("{folder}/{name}"), Access::Execute))
                .collect()
        }
        Place::Module(path) | Place::Program(path) => vec![mount(&found.file, &text(path), Access::Execute)],
        Place::File(path) => vec![mount(&found.file, &text(path), Access::Read)],
    }
}

fn nvidia_smi(driver: &Driver) -> Option<&Path> {
    let is_it = |found: &&Found| matches!(&found.place, Place::Program(path) if path.ends_with(NVIDIA_SMI));
    driver.files.found.iter().find(is_it).map(|found| found.file.as_path())
}

/// The variables of all containers: `void` stops NVIDIA's own runtime from injecting a second driver, and the others
/// are those of the dialect in which the claim was asked for.
fn environment(inputs: &Inputs<'_>, shares: &[Placed<'_>]) -> Vec<String> {
    let mut variables = BTreeMap::from([(VISIBLE_DEVICES.to_owned(), "void".to_owned())]);
    if let Some(report) = report(shares) {
        let of_it = shares.iter().filter(|placed| placed.share.report == Some(report));
        let gpus: Vec<GpuShare> = of_it.filter_map(|placed| placed.reported.clone()).collect();
        variables.extend(vgpu_dialects::environment(&Environment {
            dialect: report.dialect,
            shares: &gpus,
            priority: report.priority,
            visible_devices: inputs.visible_devices,
        }));
    }
    variables
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect()
}

/// A claim's shares may differ in their configs: the first that names a dialect decides for its containers.
fn report(shares: &[Placed<'_>]) -> Option<Report> {
    shares.iter().find_map(|placed| placed.share.report)
}

fn share(inputs: &Inputs<'_>, placed: &Placed<'_>) -> ContainerEdits {
    let folder = inputs.claim_dir.join(&placed.share.name);
    let inside = format!("{CONTAINER_DIR}/{}", placed.share.name);
    let mut mounts = vec![
        mount(&folder, &inside, Access::Read),
        mount(&folder.join(LEDGER), &format!("{inside}/{LEDGER}"), Access::Write),
    ];
    if let Some(slot) = placed.slot {
        let folder = inputs.gpus_dir.join(&placed.share.gpu);
        let inside = format!("{CONTAINER_ARBITRATION_DIR}/{}", placed.share.gpu);
        let file = slot_file_name(slot);
        mounts.push(mount(&folder, &inside, Access::Read));
        mounts.push(mount(&folder.join(&file), &format!("{inside}/{file}"), Access::Write));
    }
    mounts.extend(metadata_mount(inputs, placed.share));
    let (plain, nodes): (Vec<&DeviceFile>, Vec<&DeviceFile>) = placed.nodes.iter().partition(|node| node.is_plain);
    mounts.extend(
        plain
            .iter()
            .map(|file| mount(Path::new(&file.host), &file.container, Access::Read)),
    );
    ContainerEdits {
        device_nodes: nodes.into_iter().map(device_node).collect(),
        mounts,
        ..ContainerEdits::default()
    }
}

/// Edits of a monitor: the driver without the library. CDI refuses a device without edits, and a software GPU has no device
/// nodes, so the device repeats a mount of the spec level.
fn monitor(inputs: &Inputs<'_>, placed: &Placed<'_>) -> ContainerEdits {
    let library = format!("{}/{LIBNVIDIA_ML}", CONTAINER_LIBRARY_DIRS[0]);
    let library = mount(&inputs.driver.files.libnvidia_ml, &library, Access::Execute);
    ContainerEdits {
        device_nodes: placed.nodes.iter().map(device_node).collect(),
        mounts: [library]
            .into_iter()
            .chain(metadata_mount(inputs, placed.share))
            .collect(),
        ..ContainerEdits::default()
    }
}

/// The mount of the metadata of the share's request.
fn metadata_mount(inputs: &Inputs<'_>, share: &Share) -> Option<Mount> {
    let file = inputs
        .metadata
        .iter()
        .find(|file| file.request == share.base_request())?;
    Some(mount(&inputs.claim_dir.join(file.name()), &file.target, Access::Read))
}

/// The hook gets the names of all files in our folders of libraries, because it cannot tell a file of the node from one
/// of a pod's volume.
fn preload_hook(inputs: &Inputs<'_>, mounts: &[Mount]) -> Hook {
    let arguments = [HOOK_FILE, "preload", "--library", CONTAINER_PRELOAD, "--report"];
    let folders = [CONTAINER_OWN_LIBRARY_DIR, CONTAINER_DRIVER_DIR].map(Path::new);
    let targets = mounts.iter().map(|mount| Path::new(&mount.container_path));
    let ours = targets.filter(|path| path.parent().is_some_and(|parent| folders.contains(&parent)));
    let files = ours.filter_map(|path| path.strip_prefix(CONTAINER_DIR).ok());
    let option = |name: &str, value: Option<&str>| value.map(|value| [name.to_owned(), value.to_owned()]);
    let options = [option("--alone", inputs.alone), option("--refused", inputs.refused)];
    Hook {
        hook_name: HookName::CreateContainer,
        path: text(&inputs.library.join(HOOK_FILE)),
        args: arguments
            .iter()
            .map(|one| (*one).to_owned())
            .chain([text(inputs.claim_dir)])
            .chain(options.into_iter().flatten().flatten())
            .chain(files.flat_map(|file| ["--file".to_owned(), text(file)]))
            .collect(),
        timeout: HOOK_TIMEOUT,
    }
}

/// The hook for the driver's limit, if the claim's containers need one.
fn driver_limit_hook(inputs: &Inputs<'_>, shares: &[Placed<'_>]) -> Option<Hook> {
    let (command, records) = inputs.driver_limit?;
    let folders = limit_hook::Folders {
        claim: inputs.claim_dir,
        records,
        library: inputs.library,
    };
    let gpus: BTreeSet<&str> = shares.iter().map(|placed| placed.share.gpu.as_str()).collect();
    Some(limit_hook::hook(command, &folders, inputs.driver, gpus))
}

#[derive(Clone, Copy)]
enum Access {
    Read,
    Write,
    Execute,
}

fn mount(host: &Path, container: &str, access: Access) -> Mount {
    let own: &[&str] = match access {
        Access::Read => &["ro", "noexec"],
        Access::Write => &["rw", "noexec"],
        Access::Execute => &["ro"],
    };
    Mount {
        host_path: text(host),
        container_path: container.to_owned(),
        r#type: None,
        options: own
            .iter()
            .chain(&["nosuid", "nodev", "bind", "rprivate"])
            .map(|one| (*one).to_owned())
            .collect(),
    }
}

fn tmpfs(container: &str) -> Mount {
    Mount {
        host_path: TMPFS_SOURCE.to_owned(),
        container_path: container.to_owned(),
        r#type: Some("tmpfs".to_owned()),
        options: TMPFS_OPTIONS.iter().map(|one| (*one).to_owned()).collect(),
    }
}

fn device_node(node: &DeviceFile) -> DeviceNode {
    DeviceNode {
        path: node.container.clone(),
        host_path: (node.host != node.container).then(|| node.host.clone()),
        file_mode: NODE_MODE,
        number: node
            .number
            .map(|(major, minor)| DeviceNumber::Character { major, minor }),
    }
}

/// Paths come from flags, UUIDs and our own names. A path that is not UTF-8 is changed here, and the runtime then
/// reports it as missing.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::checkpoint::NamedBy;
    use crate::dra::share::ClaimId;
    use crate::dra::share::tests::{GPU, share};
    use crate::driver::{Files, parts};
    use std::sync::Arc;

    const UID: &str = "5c0f3b9a-0000-4000-8000-000000000001";

    fn soft() -> Driver {
        let files = Files {
            libcuda: "/opt/soft/libcuda.so.1".into(),
            libnvidia_ml: "/opt/soft/libnvidia-ml.so.1".into(),
            ..Files::default()
        };
        Driver {
            files: Arc::new(files),
            common_nodes: Vec::new(),
            sockets: Vec::new(),
            capability_major: None,
            soft_gpu_state: Some("/var/lib/soft-gpu".into()),
        }
    }

    fn found(needs: Capabilities, file: &str, place: Place) -> Found {
        Found {
            needs,
            file: file.into(),
            place,
        }
    }

    fn library(needs: Capabilities, name: &str) -> Found {
        let place = Place::Library {
            name: name.into(),
            beside_libcuda: name.contains("jit"),
        };
        found(needs, "/usr/lib/jit.so", place)
    }

    fn real() -> Driver {
        let files = Files {
            libcuda: "/usr/lib/libcuda.so.535.1".into(),
            libnvidia_ml: "/usr/lib/libnvidia-ml.so.535.1".into(),
            shimmed: [
                "libcuda.so.1",
                "libcuda.so.535.1",
                "libnvidia-ml.so",
                "libnvidia-ml.so.535.1",
            ]
            .map(String::from)
            .into(),
            found: vec![
                library(parts::COMPUTE, "libnvidia-ptxjitcompiler.so.1"),
                library(parts::VIDEO, "libnvidia-encode.so.1"),
                library(parts::GRAPHICS, "gbm/nvidia-drm_gbm.so"),
                found(
                    parts::UTILITY,
                    "/usr/bin/nvidia-smi",
                    Place::Program("/usr/bin/nvidia-smi".into()),
                ),
                found(parts::GRAPHICS, "/usr/share/icd", Place::File("/etc/vulkan/icd".into())),
                found(
                    parts::GRAPHICS,
                    "/usr/lib/drv",
                    Place::Module("/usr/lib/nvidia/drv".into()),
                ),
            ],
        };
        let socket = Place::File("/run/nvidia-persistenced/socket".into());
        Driver {
            files: Arc::new(files),
            common_nodes: vec![
                ("/dev/nvidiactl".into(), Capabilities::ALL),
                ("/dev/nvidia-uvm".into(), Capabilities::ALL),
                ("/dev/nvidia-modeset".into(), parts::GRAPHICS),
            ],
            sockets: vec![found(parts::UTILITY, "/run/nvidia-persistenced/socket", socket)],
            capability_major: Some(508),
            soft_gpu_state: None,
        }
    }

    fn placed(share: &Share, slot: Option<u8>, nodes: Vec<DeviceFile>) -> Placed<'_> {
        Placed {
            share,
            slot,
            nodes,
            reported: None,
        }
    }

    fn build(driver: &Driver, shares: &[Placed<'_>]) -> Spec {
        build_with(driver, shares, false)
    }

    fn build_with(driver: &Driver, shares: &[Placed<'_>], visible_devices: bool) -> Spec {
        let claim_dir = Path::new("/run/vgpu/claims").join(UID);
        let inputs = Inputs {
            claim_dir: &claim_dir,
            gpus_dir: Path::new("/run/vgpu/gpus"),
            library: Path::new("/var/lib/vgpu/abc"),
            driver,
            visible_devices,
            metadata: &[],
            driver_limit: None,
            alone: None,
            refused: None,
        };
        let spec = spec(&inputs, UID, shares);
        spec.validate().expect("a valid spec");
        spec
    }

    #[test]
    fn a_claim_gets_the_hook_for_the_drivers_limit_once_and_before_the_container_exists() {
        let (first, second) = (share("s1"), share("s2"));
        let placed = [
            placed(&first, Some(0), Vec::new()),
            placed(&second, Some(1), Vec::new()),
        ];
        let hooks = |command| {
            let driver = soft();
            let inputs = Inputs {
                claim_dir: Path::new("/run/vgpu/claims/u"),
                gpus_dir: Path::new("/run/vgpu/gpus"),
                library: Path::new("/var/lib/vgpu/abc"),
                driver: &driver,
                visible_devices: false,
                metadata: &[],
                driver_limit: Some((command, Path::new("/run/vgpu/driver-limits"))),
                alone: None,
                refused: None,
            };
            let spec = spec(&inputs, "u", &placed);
            spec.validate().expect("a valid spec");
            spec.container_edits.hooks
        };
        let required = hooks(limit_hook::Command::Set { is_required: true });
        let [preload, set] = required.as_slice() else {
            panic!("{required:?}");
        };
        assert_eq!(preload.hook_name, HookName::CreateContainer);
        assert_eq!(set.hook_name, HookName::CreateRuntime);
        assert_eq!(set.path, "/var/lib/vgpu/abc/vgpu-driver-limit");
        assert_eq!(set.timeout, 35, "more than the 25 s after which the hook ends itself");
        assert_eq!(
            set.args.join(" "),
            "vgpu-driver-limit set --claim /run/vgpu/claims/u --records /run/vgpu/driver-limits --nvml \
             /opt/soft/libnvidia-ml.so.1 --soft-gpu /var/lib/soft-gpu --required"
        );
        assert!(limit_hook::is_required(&[preload.args.clone(), set.args.clone()]));
        let lift = hooks(limit_hook::Command::Lift).pop().expect("a hook").args;
        assert_eq!(lift[1], "lift");
        assert_eq!(lift[lift.len() - 2..], ["--gpu", GPU], "two shares of one GPU");
        assert!(!limit_hook::is_required(&[lift]));
    }

    fn targets(edits: &ContainerEdits) -> Vec<(&str, &str)> {
        edits
            .mounts
            .iter()
            .map(|m| (m.container_path.as_str(), m.host_path.as_str()))
            .collect()
    }

    #[test]
    fn a_software_share_has_the_mounts_of_the_architecture() {
        let share = share("s1");
        let placed = placed(&share, Some(3), Vec::new());
        let spec = build(&soft(), &[placed]);
        let common = &spec.container_edits;
        assert_eq!(
            common.env,
            [
                "NVIDIA_VISIBLE_DEVICES=void",
                "SOFT_GPU_STATE=/run/soft-gpu",
                "SOFT_GPU_CAPS=/dev/nvidia-caps"
            ]
        );
        assert!(common.device_nodes.is_empty());
        let shim = "/var/lib/vgpu/abc/libvgpu.so";
        assert_eq!(
            targets(common),
            [
                ("/run/soft-gpu", "/var/lib/soft-gpu"),
                ("/dev/vgpu", "vgpu"),
                ("/dev/vgpu/.driver/libcuda.so.1", "/opt/soft/libcuda.so.1"),
                ("/dev/vgpu/.driver/libnvidia-ml.so.1", "/opt/soft/libnvidia-ml.so.1"),
                (concat!("/usr/lib/", vgpu_abi::arch!(triplet), "/libcuda.so"), shim),
                (concat!("/usr/lib/", vgpu_abi::arch!(triplet), "/libcuda.so.1"), shim),
                (
                    concat!("/usr/lib/", vgpu_abi::arch!(triplet), "/libnvidia-ml.so.1"),
                    shim
                ),
                ("/usr/lib64/libcuda.so", shim),
                ("/usr/lib64/libcuda.so.1", shim),
                ("/usr/lib64/libnvidia-ml.so.1", shim),
                (
                    "/dev/vgpu/.lib/libvgpu-preload.so",
                    "/var/lib/vgpu/abc/libvgpu-preload.so"
                ),
                ("/dev/vgpu/.lib/libcuda.so.1", shim),
            ]
        );
        let device = &spec.devices[0];
        assert_eq!(device.name, format!("{UID}-s1"));
        let claim = format!("/run/vgpu/claims/{UID}/s1");
        assert_eq!(
            targets(&device.container_edits),
            [
                ("/dev/vgpu/s1", claim.as_str()),
                ("/dev/vgpu/s1/ledger", &format!("{claim}/ledger")),
                (
                    &format!("/dev/vgpu/.arbitration/{GPU}"),
                    &format!("/run/vgpu/gpus/{GPU}")
                ),
                (
                    &format!("/dev/vgpu/.arbitration/{GPU}/03"),
                    &format!("/run/vgpu/gpus/{GPU}/03")
                ),
            ]
        );
        let writable = |m: &&Mount| m.options.contains(&"rw".to_owned());
        assert_eq!(
            device.container_edits.mounts.iter().filter(writable).count(),
            2,
            "ledger and own slot alone"
        );
        let hook = &common.hooks[0];
        assert_eq!(hook.path, "/var/lib/vgpu/abc/vgpu-cdi-hook");
        assert_eq!(hook.timeout, 10);
        assert_eq!(hook.args[0..3], ["vgpu-cdi-hook", "preload", "--library"]);
        assert_eq!(hook.args[5], format!("/run/vgpu/claims/{UID}"));
        let files = [
            ".driver/libcuda.so.1",
            ".driver/libnvidia-ml.so.1",
            ".lib/libvgpu-preload.so",
            ".lib/libcuda.so.1",
        ];
        assert_eq!(hook.args[6..], files.map(|file| ["--file", file]).concat());
    }

    #[test]
    fn the_folder_of_shares_is_a_read_only_tmpfs_of_the_node() {
        let share = share("s1");
        let placed = placed(&share, None, Vec::new());
        let spec = build(&soft(), &[placed]);
        let mounts = &spec.container_edits.mounts;
        let tmpfs: Vec<_> = mounts.iter().filter(|mount| mount.r#type.is_some()).collect();
        let [tmpfs] = tmpfs.as_slice() else {
            panic!("{tmpfs:?}");
        };
        assert_eq!(
            (tmpfs.container_path.as_str(), tmpfs.host_path.as_str()),
            ("/dev/vgpu", "vgpu")
        );
        for option in ["ro", "nosuid", "nodev", "noexec"] {
            assert!(tmpfs.options.iter().any(|found| found == option), "{option}");
        }
    }

    #[test]
    fn a_real_gpu_brings_its_nodes_with_their_mode() {
        let share = share("s1");
        let placed = placed(&share, Some(0), vec![DeviceFile::same("/dev/nvidia3")]);
        let spec = build(&real(), &[placed]);
        let nodes = |edits: &ContainerEdits| {
            let all = edits
                .device_nodes
                .iter()
                .map(|node| (node.path.clone(), node.file_mode));
            all.collect::<Vec<_>>()
        };
        assert_eq!(
            nodes(&spec.container_edits),
            [("/dev/nvidiactl".into(), 0o666), ("/dev/nvidia-uvm".into(), 0o666)]
        );
        assert_eq!(
            nodes(&spec.devices[0].container_edits),
            [("/dev/nvidia3".into(), 0o666)]
        );
        let common = targets(&spec.container_edits);
        for folder in [
            "/dev/vgpu/.driver",
            "/usr/lib64",
            concat!("/usr/lib/", vgpu_abi::arch!(triplet)),
        ] {
            let jit = format!("{folder}/libnvidia-ptxjitcompiler.so.1");
            assert!(common.contains(&(&jit, "/usr/lib/jit.so")), "{jit}");
        }
        assert!(common.contains(&("/usr/bin/nvidia-smi", "/usr/bin/nvidia-smi")));
        let arguments = &spec.container_edits.hooks[0].args;
        assert!(arguments.contains(&".driver/libnvidia-ptxjitcompiler.so.1".to_owned()));
    }

    /// Returns the edits of a share with these capabilities.
    fn given(driver_capabilities: Capabilities) -> ContainerEdits {
        let share = Share {
            driver_capabilities,
            ..share("s1")
        };
        let placed = placed(&share, Some(0), vec![DeviceFile::same("/dev/nvidia3")]);
        build(&real(), &[placed]).container_edits
    }

    #[test]
    fn capabilities_decide_what_of_the_driver_is_there() {
        let video_library = "/usr/lib64/libnvidia-encode.so.1";
        for (capabilities, expected) in [
            (
                Capabilities::default(),
                vec!["/usr/bin/nvidia-smi", "/run/nvidia-persistenced/socket"],
            ),
            (parts::COMPUTE, vec![]),
            (parts::VIDEO, vec![video_library]),
            (
                parts::GRAPHICS,
                vec![
                    concat!("/usr/lib/", vgpu_abi::arch!(triplet), "/gbm/nvidia-drm_gbm.so"),
                    "/etc/vulkan/icd",
                    "/usr/lib/nvidia/drv",
                ],
            ),
        ] {
            let edits = given(capabilities);
            let targets: Vec<&str> = targets(&edits).into_iter().map(|(target, _)| target).collect();
            for path in [
                "/usr/bin/nvidia-smi",
                "/run/nvidia-persistenced/socket",
                video_library,
                concat!("/usr/lib/", vgpu_abi::arch!(triplet), "/gbm/nvidia-drm_gbm.so"),
                "/etc/vulkan/icd",
                "/usr/lib/nvidia/drv",
            ] {
                assert_eq!(
                    targets.contains(&path),
                    expected.contains(&path),
                    "{capabilities}: {path}"
                );
            }
            let has_modeset = edits.device_nodes.iter().any(|node| node.path == "/dev/nvidia-modeset");
            assert_eq!(has_modeset, capabilities == parts::GRAPHICS, "{capabilities}");
        }
    }

    #[test]
    fn the_shim_has_every_name_of_libcuda_and_nvml_and_no_path_is_mounted_twice() {
        let edits = given(Capabilities::ALL);
        let targets = targets(&edits);
        let shimmed = |target: &&(&str, &str)| {
            let name = target.0.rsplit('/').next().unwrap_or_default();
            name.starts_with("libcuda.so") || name.starts_with("libnvidia-ml.so")
        };
        let of_shim: Vec<_> = targets
            .iter()
            .filter(shimmed)
            .filter(|(target, _)| !target.starts_with(CONTAINER_DRIVER_DIR))
            .collect();
        // Six names in both of the loader's folders, and the shim's own path.
        assert_eq!(of_shim.len(), 13, "{of_shim:?}");
        assert!(
            of_shim.iter().all(|(_, host)| host.ends_with("/libvgpu.so")),
            "{of_shim:?}"
        );
        let paths: BTreeSet<&str> = targets.iter().map(|(target, _)| *target).collect();
        assert_eq!(paths.len(), targets.len(), "{targets:?}");
    }

    #[test]
    fn a_second_name_of_a_node_names_the_first() {
        let share = share("s1");
        let by_path = DeviceFile {
            host: "/dev/dri/card1".into(),
            container: "/dev/dri/by-path/pci-0000:3b:00.0-card".into(),
            ..DeviceFile::same("")
        };
        let placed = placed(&share, Some(0), vec![DeviceFile::same("/dev/dri/card1"), by_path]);
        let spec = build(&real(), &[placed]);
        let nodes = spec.devices[0].container_edits.device_nodes.iter();
        let nodes: Vec<_> = nodes
            .map(|node| (node.path.as_str(), node.host_path.as_deref()))
            .collect();
        assert_eq!(
            nodes,
            [
                ("/dev/dri/card1", None),
                ("/dev/dri/by-path/pci-0000:3b:00.0-card", Some("/dev/dri/card1"))
            ]
        );
        let text = String::from_utf8(spec.render().expect("rendered")).expect("text");
        assert!(text.contains("\"0.5.0\""), "podman 4.3 reads no later version: {text}");
    }

    #[test]
    fn a_monitor_sees_the_driver_itself_and_two_requests_share_it() {
        let monitor = Share {
            role: Role::Monitor,
            name: "gpu-3f8a1c20-monitor".into(),
            ..share("m")
        };
        let other = Share {
            request: "second".into(),
            ..monitor.clone()
        };
        let both = [&monitor, &other].map(|share| placed(share, None, Vec::new()));
        let spec = build(&soft(), &both);
        assert_eq!(spec.devices.len(), 1);
        assert!(spec.container_edits.hooks.is_empty());
        let common = targets(&spec.container_edits);
        assert!(common.contains(&("/usr/lib64/libnvidia-ml.so.1", "/opt/soft/libnvidia-ml.so.1")));
        assert!(common.iter().all(|(target, _)| !target.contains("vgpu")), "{common:?}");
    }

    /// Returns the edits of a claim in this dialect with two shares, on the GPUs 0 and 1 of the node.
    fn reported(dialect: Dialect, whole: bool, visible_devices: bool) -> ContainerEdits {
        let report = Report {
            dialect,
            whole,
            priority: Some(vgpu_api::config::Priority::Low),
        };
        let shares = [0, 1].map(|index| {
            let gpu = crate::publish::inventory::tests::gpu(index);
            let share = Share {
                gpu: gpu.uuid.clone(),
                report: Some(report),
                ..share(&format!("s{index}"))
            };
            (gpu, share)
        });
        let placed = shares.each_ref().map(|(gpu, share)| Placed {
            share,
            slot: Some(0),
            nodes: Vec::new(),
            reported: share.reported(gpu),
        });
        build_with(&real(), &placed, visible_devices).container_edits
    }

    #[test]
    fn containers_get_the_variables_of_their_dialect_and_no_gpu_by_nvidias() {
        assert_eq!(
            reported(Dialect::Hami, false, false).env,
            [
                "CUDA_DEVICE_MEMORY_LIMIT_0=20480m",
                "CUDA_DEVICE_MEMORY_LIMIT_1=20480m",
                "CUDA_DEVICE_SM_LIMIT=25",
                "CUDA_TASK_PRIORITY=1",
                "NVIDIA_VISIBLE_DEVICES=void",
            ]
        );
        assert_eq!(
            reported(Dialect::Volcano, true, false).env,
            ["NVIDIA_VISIBLE_DEVICES=void", "VOLCANO_GPU_ALLOCATED=2"]
        );
        for dialect in Dialect::ALL {
            let visible = |visible_devices| {
                let mut env = reported(dialect, false, visible_devices).env;
                env.retain(|variable| variable.starts_with("NVIDIA_VISIBLE_DEVICES="));
                env
            };
            assert_eq!(visible(false), ["NVIDIA_VISIBLE_DEVICES=void"], "{dialect:?}");
            let [uuids, indices] = [
                "NVIDIA_VISIBLE_DEVICES=GPU-3f8a1c20-1111-2222-3333-444455556666",
                "NVIDIA_VISIBLE_DEVICES=0,1",
            ];
            match dialect {
                Dialect::Hami | Dialect::VolcanoVgpu => {
                    assert!(visible(true)[0].starts_with(uuids), "{:?}", visible(true))
                }
                _ => assert_eq!(visible(true), [indices], "{dialect:?}"),
            }
        }
    }

    #[test]
    fn the_metadata_of_a_request_is_in_the_containers_that_have_one_of_its_shares() {
        let gpu = crate::publish::inventory::tests::gpu(0);
        let id = ClaimId {
            namespace: "d".into(),
            name: "c".into(),
            uid: UID.into(),
        };
        let targets_of = |shares: &[Share]| {
            let known: Vec<_> = shares.iter().map(|share| (share, &gpu)).collect();
            let files = metadata::files(&id, &NamedBy::Claim, &known, &vgpu_api::Pools::of("n1")).expect("files");
            let driver = soft();
            let inputs = Inputs {
                claim_dir: Path::new("/run/vgpu/claims/u"),
                gpus_dir: Path::new("/run/vgpu/gpus"),
                library: Path::new("/var/lib/vgpu/abc"),
                driver: &driver,
                visible_devices: false,
                metadata: &files,
                driver_limit: None,
                alone: None,
                refused: None,
            };
            let placed: Vec<_> = shares.iter().map(|share| placed(share, None, Vec::new())).collect();
            let spec = spec(&inputs, UID, &placed);
            spec.validate().expect("a valid spec");
            let of_device = |device: &Device| -> Vec<(String, String)> {
                let mounts = device.container_edits.mounts.iter();
                let mounts = mounts.filter(|mount| mount.host_path.ends_with(metadata::SUFFIX));
                mounts
                    .inspect(|mount| assert!(mount.options.contains(&"ro".to_owned()), "{mount:?}"))
                    .map(|mount| (mount.host_path.clone(), mount.container_path.clone()))
                    .collect()
            };
            spec.devices.iter().map(of_device).collect::<Vec<_>>()
        };
        let of = |request: &str| {
            let folder = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/c";
            (
                format!("/run/vgpu/claims/u/{request}.metadata.json"),
                format!("{folder}/{request}/dra.vgpu-metadata.json"),
            )
        };
        let other = Share {
            request: "second/small".into(),
            ..share("s3")
        };
        assert_eq!(
            targets_of(&[share("s1"), share("s2"), other]),
            [vec![of("gpu")], vec![of("gpu")], vec![of("second")]]
        );
        let monitor = Share {
            role: Role::Monitor,
            name: "gpu-3f8a1c20-monitor".into(),
            ..share("m")
        };
        let again = Share {
            request: "second".into(),
            ..monitor.clone()
        };
        assert_eq!(
            targets_of(&[monitor.clone(), again, monitor]),
            [vec![of("gpu"), of("second")]],
            "requests that monitor one GPU have one device"
        );
    }

    #[test]
    fn nvidia_smi_is_where_manifests_for_gpu_manager_run_it() {
        for dialect in Dialect::ALL {
            let edits = reported(dialect, false, false);
            let is_there = targets(&edits).contains(&("/usr/local/nvidia/bin/nvidia-smi", "/usr/bin/nvidia-smi"));
            assert_eq!(is_there, dialect == Dialect::GpuManager, "{dialect:?}");
        }
    }

    #[test]
    fn names_differ_by_share_and_the_version_is_low() {
        let (first, second) = (share("s1"), share("s2"));
        let placed = |share, slot| Placed {
            share,
            slot: Some(slot),
            nodes: Vec::new(),
            reported: None,
        };
        let spec = build(&soft(), &[placed(&first, 0), placed(&second, 1)]);
        assert_ne!(spec.devices[0].name, spec.devices[1].name);
        let text = String::from_utf8(spec.render().expect("rendered")).expect("text");
        assert!(
            text.contains("\"0.5.0\""),
            "a UID starts with a digit, which needs 0.5.0: {text}"
        );
        assert_eq!(qualified_name("u", "s1"), "dra.vgpu/claim=u-s1");
    }
}

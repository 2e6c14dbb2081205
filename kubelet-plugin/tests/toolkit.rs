//! Compares what a container gets of a driver with what NVIDIA's nvidia-ctk lists, for three layouts of a driver root made
//! of NVIDIA's own packages. Each difference is in the table of docs/injection.md, with its reason.
//!
//! nvidia-ctk asks NVML for the GPUs, so the root has the software GPU's. It looks for character devices, so the test needs
//! root. DRM nodes are not compared: nvidia-ctk finds them by /proc/driver/nvidia, which only a machine with a GPU has.

mod packages;
mod soft_gpu;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use packages::{BOOKWORM, LIBRARIES, choose, copy, fetch, give, share};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use vgpu_cache::{go, run};
use vgpu_kubelet_plugin::dra::edits::{self, Inputs, Placed};
use vgpu_kubelet_plugin::dra::share::Share;
use vgpu_kubelet_plugin::driver::{DeviceFile, Root};
use vgpu_skip::skip;

const TEST: &str = "a_container_gets_what_nvidias_toolkit_lists_or_there_is_a_reason";
const TOOLKIT: &str = "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// As the packages have it, with the links of update-alternatives.
    Debian,
    /// All libraries in /usr/lib64.
    RedHat,
    /// The root of a driver container, at /run/nvidia/driver of the node: NVIDIA's installer on Ubuntu.
    DriverContainer,
}

/// A root in this layout, and the version of its driver.
fn make(layout: Layout, packages: &Path, root: &Path) -> String {
    let own = packages.join(LIBRARIES).join("nvidia/current");
    let version = fs::read_link(own.join("libcuda.so.1")).expect("a link");
    let version = version.to_string_lossy().replace("libcuda.so.", "");
    let libraries = match layout {
        Layout::Debian => {
            copy(packages, root);
            choose(root, "current");
            root.join(LIBRARIES).join("nvidia/current")
        }
        Layout::RedHat | Layout::DriverContainer => {
            let folder = match layout {
                Layout::RedHat => root.join("usr/lib64"),
                _ => root.join(LIBRARIES),
            };
            flatten(packages, &folder, root, layout);
            folder
        }
    };
    // Files that the packages left out, by their names; the services' sockets; and a file of an earlier driver.
    let put = |path: PathBuf| {
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(path, "").expect("a file");
    };
    put(libraries.join(format!("libnvoptix.so.{version}")));
    symlink(format!("libnvoptix.so.{version}"), libraries.join("libnvoptix.so.1")).expect("a link");
    put(libraries.join("libnvidia-encode.so.470.256.02"));
    put(root.join("usr/share/nvidia/nvoptix.bin"));
    let firmware = match layout {
        Layout::DriverContainer => root.join("lib/firmware"),
        _ => root.join("usr/lib/firmware"),
    };
    put(firmware.join("nvidia").join(&version).join("gsp_ga10x.bin"));
    for name in ["nvidia-persistenced", "nvidia-fabricmanager"] {
        let folder = root.join("run").join(name);
        fs::create_dir_all(&folder).expect("folders");
        drop(UnixListener::bind(folder.join("socket")).expect("a socket"));
    }
    // NVML of the software GPU, which answers without a GPU.
    let nvml = libraries.join(format!("libnvidia-ml.so.{version}"));
    fs::remove_file(&nvml).expect("removed");
    fs::copy(soft_gpu::folder().join("libnvidia-ml.so.1"), nvml).expect("a copy");
    fs::create_dir(root.join("dev")).expect("a folder");
    for (name, minor) in [
        ("nvidiactl", 255),
        ("nvidia-modeset", 254),
        ("nvidia-uvm", 253),
        ("nvidia-uvm-tools", 252),
        ("nvidia0", 0),
        ("nvidia1", 1),
    ] {
        let made = mknod(
            &root.join("dev").join(name),
            SFlag::S_IFCHR,
            Mode::from_bits_truncate(0o666),
            makedev(195, minor),
        );
        made.expect("a device node");
    }
    version
}

/// Copies the same files, with all libraries in one folder and without the links of alternatives.
fn flatten(packages: &Path, libraries: &Path, root: &Path, layout: Layout) {
    let from = packages.join(LIBRARIES);
    for folder in [from.clone(), from.join("nvidia/current")] {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.path().is_dir() || !name.contains(".so") {
                continue;
            }
            let below = match name.as_str() {
                "nvidia-drm_gbm.so" => {
                    fs::create_dir_all(libraries.join("gbm")).expect("a folder");
                    symlink("../libnvidia-allocator.so.1", libraries.join("gbm").join(name)).expect("a link");
                    continue;
                }
                name if name.starts_with("libvdpau") => "vdpau",
                _ => "",
            };
            give(&entry.path(), &libraries.join(below).join(name));
        }
    }
    let programs = packages.join("usr/lib/nvidia/current");
    let (drivers, extensions) = match layout {
        Layout::DriverContainer => ("nvidia/xorg", "nvidia/xorg"),
        _ => ("xorg/modules/drivers", "xorg/modules/extensions"),
    };
    for entry in fs::read_dir(programs).expect("a folder").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let to = match name.as_str() {
            "nvidia_drv.so" => libraries.join(drivers),
            name if name.starts_with("libglxserver") => libraries.join(extensions),
            "nvidia-smi" | "nvidia-debugdump" => root.join("usr/bin"),
            _ => continue,
        };
        give(&entry.path(), &to.join(name));
    }
    for folder in [
        "usr/bin",
        "usr/sbin",
        "etc/OpenCL",
        "usr/share/egl",
        "usr/share/glvnd",
        "usr/share/vulkan",
    ] {
        if packages.join(folder).is_dir() {
            copy(&packages.join(folder), &root.join(folder));
        }
    }
    if layout == Layout::RedHat {
        symlink("usr/lib64", root.join("lib64")).expect("a link");
        symlink("usr/lib", root.join("lib")).expect("a link");
        let icd = root.join("usr/share/vulkan/icd.d");
        fs::rename(
            icd.join("nvidia_icd.json"),
            icd.join(concat!("nvidia_icd.", vgpu_abi::arch!(uname), ".json")),
        )
        .expect("renamed");
    }
}

/// The entries that nvidia-ctk lists for a root.
fn listed(toolkit: &Path, root: &Path, state: &Path) -> BTreeSet<String> {
    let mut command = Command::new(toolkit);
    command
        .args("--quiet cdi generate --mode=nvml --format=json --device-name-strategy=index".split(' '))
        .arg(format!("--driver-root={}", root.display()))
        .env("SOFT_GPU_STATE", state);
    let said = run(&mut command).unwrap_or_else(|error| panic!("{error}"));
    let spec: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    let all = |edits: &Value, list: &str| edits[list].as_array().cloned().unwrap_or_default();
    let devices = spec["devices"].as_array().cloned().unwrap_or_default();
    let first = devices.iter().find(|device| device["name"] == "0");
    let edits = [&spec["containerEdits"], &first.expect("a device")["containerEdits"]];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut entries = BTreeSet::new();
    for edits in edits {
        entries.extend(
            all(edits, "mounts")
                .iter()
                .map(|mount| entry(&text(&mount["containerPath"]))),
        );
        let nodes = all(edits, "deviceNodes");
        entries.extend(nodes.iter().map(|node| format!("node {}", text(&node["path"]))));
        for variable in all(edits, "env") {
            let variable = text(&variable);
            let name = variable.split_once('=').map_or(variable.as_str(), |(name, _)| name);
            entries.insert(format!("variable {name}"));
        }
        for hook in all(edits, "hooks") {
            let arguments: Vec<String> = all(&hook, "args").iter().map(text).collect();
            match arguments.get(1).map(String::as_str) {
                Some("create-symlinks") => {
                    let links = arguments.iter().filter_map(|argument| argument.split_once("::"));
                    entries.extend(links.map(|(_, link)| entry(link)));
                }
                name => drop(entries.insert(format!("hook {}", name.unwrap_or_default()))),
            }
        }
    }
    entries
}

/// The entries that a container of ours gets, with all capabilities.
fn given(root: &Path) -> BTreeSet<String> {
    let here = Root {
        here: root.to_path_buf(),
        host: "/run/nvidia/driver".into(),
        sys: root.join("sys"),
        proc: root.join("proc"),
        soft_gpu_state: None,
    };
    let driver = here.read().expect("a driver");
    let share = Share {
        share_id: None,
        ..share()
    };
    let placed = Placed {
        share: &share,
        slot: None,
        nodes: vec![DeviceFile::same("/dev/nvidia0")],
        reported: None,
    };
    let inputs = Inputs {
        claim_dir: Path::new("/run/vgpu/claims/u"),
        gpus_dir: Path::new("/run/vgpu/gpus"),
        library: Path::new("/var/lib/vgpu/l"),
        driver: &driver,
        visible_devices: false,
        metadata: &[],
        driver_limit: None,
        alone: None,
        refused: None,
    };
    let spec = edits::spec(&inputs, "u", &[placed]);
    spec.validate().expect("a valid spec");
    let mut entries = BTreeSet::new();
    for edits in [&spec.container_edits, &spec.devices[0].container_edits] {
        // Files below /dev/vgpu are only ours, and are not compared.
        let mounts = edits.mounts.iter().map(|mount| mount.container_path.as_str());
        entries.extend(mounts.filter(|path| !path.starts_with("/dev/vgpu")).map(entry));
        entries.extend(edits.device_nodes.iter().map(|node| format!("node {}", node.path)));
        let names = edits.env.iter().filter_map(|variable| variable.split_once('='));
        entries.extend(names.map(|(name, _)| format!("variable {name}")));
    }
    entries
}

/// Names a path in the container so that both sides can be compared: libraries by their names, because ours are in the
/// loader's default folders and those of the toolkit at their paths on the node; programs by theirs.
fn entry(path: &str) -> String {
    let folders = [
        concat!("/usr/lib/", vgpu_abi::arch!(triplet), "/nvidia/current/"),
        concat!("/usr/lib/", vgpu_abi::arch!(triplet), "/"),
        "/usr/lib64/",
    ];
    let below = folders.iter().find_map(|folder| path.strip_prefix(folder));
    if let Some(name) = below.filter(|name| ["lib", "gbm/", "vdpau/"].iter().any(|start| name.starts_with(start))) {
        return format!("library {name}");
    }
    match path.rsplit_once('/') {
        Some((folder, name)) if folder.ends_with("/bin") || folder.ends_with("/sbin") => format!("program {name}"),
        _ => format!("file {path}"),
    }
}

#[test]
fn a_container_gets_what_nvidias_toolkit_lists_or_there_is_a_reason() {
    if !nix::unistd::geteuid().is_root() {
        return skip(TEST, "device nodes can only be made by root");
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../e2e/tools/nvidia");
    let toolkit = match go::tool(&source, TOOLKIT) {
        Ok(toolkit) => toolkit,
        Err(vgpu_cache::Error::Unavailable(why)) => return skip(TEST, &why),
        Err(vgpu_cache::Error::Failed(why)) => panic!("{why}"),
    };
    let Some(packages) = fetch(TEST, "bookworm", "main non-free", BOOKWORM) else {
        return;
    };
    let mut found: BTreeMap<(&str, String), Vec<Layout>> = BTreeMap::new();
    for layout in [Layout::Debian, Layout::RedHat, Layout::DriverContainer] {
        let dir = tempfile::tempdir().expect("a folder");
        let root = match layout {
            Layout::DriverContainer => dir.path().join("run/nvidia/driver"),
            _ => dir.path().join("root"),
        };
        let version = make(layout, &packages, &root);
        let state = dir.path().join("state");
        fs::create_dir(&state).expect("a folder");
        fs::write(state.join("profile"), format!("driver_version = {version}\n")).expect("a profile");
        let (listed, given) = (listed(&toolkit, &root, &state), given(&root));
        assert!(
            listed.len() > 60,
            "{layout:?}: nvidia-ctk lists too little to compare: {listed:?}"
        );
        let missing = listed.difference(&given).map(|entry| ("nvidia-ctk", entry));
        for (side, entry) in missing.chain(given.difference(&listed).map(|entry| ("ours", entry))) {
            let entry = entry.replace(&version, "535");
            found.entry((side, entry)).or_default().push(layout);
        }
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/injection.md");
    let page = fs::read_to_string(page).expect("a page");
    let explained: BTreeSet<(&str, String)> = page.lines().filter_map(difference).collect();
    let unexplained: Vec<_> = found.iter().filter(|(key, _)| !explained.contains(key)).collect();
    assert!(
        unexplained.is_empty(),
        "docs/injection.md gives no reason: {unexplained:#?}"
    );
    let gone: Vec<_> = explained.iter().filter(|key| !found.contains_key(key)).collect();
    assert!(gone.is_empty(), "docs/injection.md: no difference any more: {gone:#?}");
}

/// The side and the entry in a row of the page: `| ours | ENTRY | REASON |`.
fn difference(row: &str) -> Option<(&str, String)> {
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    let ["", side @ ("nvidia-ctk" | "ours"), entry, reason, ""] = cells[..] else {
        return None;
    };
    assert!(!reason.is_empty(), "a row without a reason: {row}");
    Some((side, entry.trim_matches('`').to_owned()))
}

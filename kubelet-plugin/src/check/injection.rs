//! Lists the driver's files and device nodes that containers get, each with the capabilities that include it.

use crate::driver::parts;
use crate::driver::{Driver, Error, Found, Place, Root};
use crate::publish::inventory::{Gpu, Gpus};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use vgpu_api::config::{Capabilities, Capability};

/// The files and device nodes of a driver root.
#[derive(Debug, Serialize)]
pub(super) struct Injection {
    libcuda: PathBuf,
    libnvidia_ml: PathBuf,
    /// All names of these two libraries. In a container, each leads to libvgpu.so.
    shimmed: BTreeSet<String>,
    files: Vec<File>,
    nodes: Vec<DeviceNode>,
    /// Why a container with a GPU could not start.
    missing: Vec<String>,
}

/// A file under one of its names.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct File {
    file: PathBuf,
    /// Its path in a container; for a library, its name in the loader's folders.
    at: PathBuf,
    kind: &'static str,
    capabilities: Capabilities,
    /// True if one of our tables lists it. A file that no table lists is given to every container.
    known: bool,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct DeviceNode {
    /// UUID; None: all GPUs share it.
    gpu: Option<String>,
    host: String,
    container: String,
    capabilities: Capabilities,
}

pub(super) fn check(root: &Root, gpus: &impl Gpus) -> Result<Injection, String> {
    let driver = root.read().map_err(|error| error.to_string())?;
    let list = gpus.list().map_err(|error| error.to_string())?;
    let (nodes, missing) = nodes(root, &driver, &list.gpus);
    let found = driver.files.found.iter().map(|found| file(found, false));
    let sockets = driver.sockets.iter().map(|found| file(found, true));
    Ok(Injection {
        files: found.chain(sockets).collect(),
        nodes,
        missing,
        libcuda: driver.files.libcuda.clone(),
        libnvidia_ml: driver.files.libnvidia_ml.clone(),
        shimmed: driver.files.shimmed.clone(),
    })
}

fn file(found: &Found, is_socket: bool) -> File {
    let (kind, at) = match &found.place {
        Place::Library { name, .. } => ("library", PathBuf::from(name)),
        Place::Program(path) => ("program", path.clone()),
        Place::Module(path) => ("module", path.clone()),
        Place::File(path) if is_socket => ("socket", path.clone()),
        Place::File(path) => ("file", path.clone()),
    };
    File {
        known: kind != "library" || is_in_table(found),
        file: found.file.clone(),
        at,
        kind,
        capabilities: found.needs,
    }
}

fn is_in_table(found: &Found) -> bool {
    let name = found.file.file_name().unwrap_or_default().to_string_lossy();
    let stem = name.split_once(".so").map_or(&*name, |(stem, _)| stem);
    parts::library(stem).is_some()
}

/// Returns the nodes that all GPUs share and those of each GPU; for a GPU without nodes the reason.
fn nodes(root: &Root, driver: &Driver, gpus: &[Gpu]) -> (Vec<DeviceNode>, Vec<String>) {
    let common = driver.common_nodes.iter();
    let common = common.map(|(path, capabilities)| DeviceNode {
        gpu: None,
        host: path.clone(),
        container: path.clone(),
        capabilities: *capabilities,
    });
    let (mut nodes, mut missing): (Vec<_>, Vec<_>) = (common.collect(), Vec::new());
    for gpu in gpus {
        match of_gpu(root, gpu) {
            Ok(more) => nodes.extend(more),
            Err(error) => missing.push(error.to_string()),
        }
    }
    (nodes, missing)
}

fn of_gpu(root: &Root, gpu: &Gpu) -> Result<Vec<DeviceNode>, Error> {
    let mut nodes: Vec<DeviceNode> = Vec::new();
    for capability in Capability::ALL.map(|capability| Capabilities::of(&[capability])) {
        for node in root.gpu_nodes(gpu, capability)? {
            match nodes.iter_mut().find(|known| known.container == node.container) {
                Some(known) => known.capabilities = known.capabilities.with(capability),
                None => nodes.push(DeviceNode {
                    gpu: Some(gpu.uuid.clone()),
                    host: node.host,
                    container: node.container,
                    capabilities: capability,
                }),
            }
        }
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::inventory::tests::{Listed, gpu};
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    /// Makes a driver root: a library that a table lists, another one, a program, and the device nodes of GPU 3.
    fn install(here: &Path) -> Root {
        let libraries = here.join("usr/lib64");
        for folder in [
            "usr/lib64",
            "usr/bin",
            "dev/dri",
            "sys/bus/pci/devices/0000:3b:00.0/drm/renderD77",
        ] {
            fs::create_dir_all(here.join(folder)).expect("a folder");
        }
        for stem in ["libcuda", "libnvidia-ml", "libnvidia-encode", "libnvidia-tomorrow"] {
            let name = format!("{stem}.so.535.1");
            fs::write(libraries.join(&name), "x").expect("written");
            symlink(name, libraries.join(format!("{stem}.so.1"))).expect("a link");
        }
        fs::write(here.join("usr/bin/nvidia-smi"), "x").expect("written");
        for node in ["nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidia3", "dri/renderD77"] {
            fs::write(here.join("dev").join(node), "").expect("written");
        }
        Root {
            here: here.to_path_buf(),
            host: here.to_path_buf(),
            sys: here.join("sys"),
            proc: here.join("proc"),
            soft_gpu_state: None,
        }
    }

    fn of_minor(minor: u32) -> Gpu {
        Gpu {
            minor: Some(minor),
            ..gpu(0)
        }
    }

    #[test]
    fn each_name_of_a_file_is_listed_with_who_gets_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let root = install(dir.path());
        let found = check(&root, &Listed(vec![of_minor(3)])).expect("a driver");
        let text = |file: &File| {
            let name = file.at.display();
            format!("{} {name} {} {}", file.kind, file.capabilities, file.known)
        };
        let all = "compute, utility, video, graphics";
        assert_eq!(
            found.files.iter().map(text).collect::<Vec<_>>(),
            [
                "library libnvidia-encode.so.1 video true".to_owned(),
                "library libnvidia-encode.so.535.1 video true".into(),
                format!("library libnvidia-tomorrow.so.1 {all} false"),
                format!("library libnvidia-tomorrow.so.535.1 {all} false"),
                "program /usr/bin/nvidia-smi utility true".into(),
            ]
        );
        assert_eq!(found.libcuda, dir.path().join("usr/lib64/libcuda.so.535.1"));
        assert!(found.shimmed.contains("libnvidia-ml.so.535.1") && found.missing.is_empty());
        // Other nodes of this machine's /dev may be there too.
        let has = |gpu: Option<&str>, container: &str, capabilities: &str| {
            let is_it = |node: &&DeviceNode| node.gpu.as_deref() == gpu && node.container == container;
            let node = found.nodes.iter().find(is_it);
            assert_eq!(
                node.map(|node| node.capabilities.to_string()).as_deref(),
                Some(capabilities)
            );
        };
        let uuid = gpu(0).uuid;
        has(None, "/dev/nvidiactl", all);
        has(None, "/dev/nvidia-modeset", "graphics");
        has(Some(&uuid), "/dev/nvidia3", all);
        has(Some(&uuid), "/dev/dri/renderD77", "graphics");
        has(Some(&uuid), "/dev/dri/by-path/pci-0000:3b:00.0-render", "graphics");
    }

    #[test]
    fn a_gpu_without_its_node_is_missing_and_hides_no_file() {
        let dir = tempfile::tempdir().expect("a folder");
        let root = install(dir.path());
        let found = check(&root, &Listed(vec![of_minor(77), of_minor(3)])).expect("a driver");
        assert!(
            found.missing.len() == 1 && found.missing[0].contains("/dev/nvidia77"),
            "{:?}",
            found.missing
        );
        assert!(found.files.len() == 5 && found.nodes.iter().any(|node| node.host == "/dev/nvidia3"));
    }

    #[test]
    fn a_software_gpu_has_no_nodes_and_a_root_without_a_driver_is_an_error() {
        let dir = tempfile::tempdir().expect("a folder");
        let soft = Root {
            soft_gpu_state: Some("/var/lib/soft-gpu".into()),
            ..install(dir.path())
        };
        assert!(check(&soft, &Listed(vec![gpu(0)])).expect("a driver").nodes.is_empty());
        let empty = tempfile::tempdir().expect("a folder");
        let none = Root {
            here: empty.path().to_path_buf(),
            ..soft
        };
        let error = check(&none, &Listed(Vec::new())).expect_err("no driver");
        assert!(error.contains("libcuda.so.1"), "{error}");
    }
}

//! The driver as it is found in folders that a test makes.

use super::*;
use crate::publish::inventory::tests::{gpu, instance};
use std::fs;
use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};
use vgpu_abi::arch;
use vgpu_abi::paths::{LIBCUDA, LIBNVIDIA_ML};
use vgpu_api::config::Capability;

const LIBRARIES: &str = concat!("usr/lib/", arch!(triplet));

fn file(root: &Path, path: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(path, "x").expect("written");
}

fn link(root: &Path, target: &str, path: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    symlink(target, path).expect("a link");
}

fn root(here: &Path, soft: bool) -> Root {
    Root {
        here: here.to_path_buf(),
        host: PathBuf::from("/opt/driver"),
        sys: here.join("sys"),
        proc: here.join("proc"),
        soft_gpu_state: soft.then(|| PathBuf::from("/var/lib/soft-gpu")),
    }
}

/// A driver of this version, as NVIDIA's installer leaves it, with the device nodes that it needs.
fn install(here: &Path, version: &str) {
    for stem in [
        "libcuda",
        "libnvidia-ml",
        "libnvidia-ptxjitcompiler",
        "libnvidia-encode",
        "libGLX_nvidia",
    ] {
        let name = format!("{stem}.so.{version}");
        file(here, &format!("{LIBRARIES}/{name}"));
        let soname = here.join(LIBRARIES).join(format!("{stem}.so.1"));
        let _ = fs::remove_file(&soname);
        symlink(name, soname).expect("a link");
    }
    for node in ["nvidiactl", "nvidia-uvm", "nvidia-modeset", "nvidia3"] {
        file(here, &format!("dev/{node}"));
    }
}

/// The names and paths under which a container with these capabilities has files.
fn places(driver: &Driver, capabilities: &[Capability]) -> Vec<String> {
    let capabilities = Capabilities::of(capabilities);
    let found = driver.files.found.iter().chain(&driver.sockets);
    let place = |found: &Found| match &found.place {
        Place::Library { name, .. } => name.clone(),
        Place::Program(path) | Place::Module(path) | Place::File(path) => path.display().to_string(),
    };
    found
        .filter(|found| found.needs.meets(capabilities))
        .map(place)
        .collect()
}

fn file_of(driver: &Driver, library: &str) -> Option<PathBuf> {
    let is_it = |found: &&Found| matches!(&found.place, Place::Library { name, .. } if name == library);
    driver.files.found.iter().find(is_it).map(|found| found.file.clone())
}

#[test]
fn links_are_followed_inside_the_root() {
    let dir = tempfile::tempdir().expect("a folder");
    let here = dir.path();
    file(here, concat!("usr/lib/", arch!(triplet), "/nvidia/libcuda.so.535"));
    file(here, concat!("usr/lib/", arch!(triplet), "/libnvidia-ml.so.535"));
    link(
        here,
        concat!("/usr/lib/", arch!(triplet), "/nvidia/libcuda.so.535"),
        concat!("usr/lib/", arch!(triplet), "/libcuda.so.1"),
    );
    link(
        here,
        concat!("../", arch!(triplet), "/libnvidia-ml.so.535"),
        concat!("usr/lib/", arch!(triplet), "/libnvidia-ml.so.1"),
    );
    let driver = root(here, true).read().expect("a driver");
    assert_eq!(
        driver.files.libcuda,
        Path::new(concat!(
            "/opt/driver/usr/lib/",
            arch!(triplet),
            "/nvidia/libcuda.so.535"
        ))
    );
    assert_eq!(
        driver.files.libnvidia_ml,
        Path::new(concat!("/opt/driver/usr/lib/", arch!(triplet), "/libnvidia-ml.so.535"))
    );
    assert!(driver.common_nodes.is_empty(), "a software GPU has no device nodes");
}

#[test]
fn a_link_out_of_the_root_or_in_a_circle_finds_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("lib64");
    fs::create_dir_all(&folder).expect("a folder");
    symlink("libcuda.so.1", folder.join("libcuda.so.1")).expect("a link");
    assert!(find(dir.path()).is_err());
    symlink("../../../../../../../bin/sh", folder.join("libnvidia-ml.so.1")).expect("a link");
    let nvml = find_nvml(dir.path());
    assert!(nvml.is_err(), "the host has /bin/sh, the root has not: {nvml:?}");
}

/// As on machines whose driver is mounted from outside: nothing is in a folder of a distribution.
#[test]
fn a_driver_in_usr_local_nvidia_is_found_with_its_programs() {
    let dir = tempfile::tempdir().expect("a folder");
    let here = dir.path();
    for name in [
        "lib64/libcuda.so.550.54",
        "lib64/libnvidia-ml.so.550.54",
        "lib64/libnvidia-ptxjitcompiler.so.550.54",
        "bin/nvidia-smi",
    ] {
        file(here, &format!("usr/local/nvidia/{name}"));
    }
    for name in ["libcuda", "libnvidia-ml"] {
        let target = format!("{name}.so.550.54");
        link(here, &target, &format!("usr/local/nvidia/lib64/{name}.so.1"));
    }
    for node in ["dev/nvidiactl", "dev/nvidia-uvm"] {
        file(here, node);
    }
    // The CUDA toolkit's stub is no driver.
    file(here, "usr/local/cuda/lib64/stubs/libcuda.so");
    link(here, "/usr/local/cuda/lib64/stubs/libcuda.so", "usr/lib64/libcuda.so.1");
    let driver = root(here, false).read().expect("a driver");
    let folder = Path::new("/opt/driver/usr/local/nvidia");
    assert_eq!(driver.files.libcuda, folder.join("lib64/libcuda.so.550.54"));
    assert_eq!(driver.files.libnvidia_ml, folder.join("lib64/libnvidia-ml.so.550.54"));
    let jit = "libnvidia-ptxjitcompiler.so.550.54";
    assert_eq!(file_of(&driver, jit), Some(folder.join("lib64").join(jit)));
    assert!(places(&driver, &[Capability::Utility]).contains(&"/usr/bin/nvidia-smi".to_owned()));
    let pair = find(here).expect("a driver");
    assert_eq!(pair.libcuda, here.join("usr/local/nvidia/lib64/libcuda.so.550.54"));
    assert_eq!(find_nvml(here), Ok(pair.libnvidia_ml));
}

#[test]
fn a_folder_that_is_an_absolute_link_is_the_one_in_the_root() {
    let dir = tempfile::tempdir().expect("a folder");
    let here = dir.path();
    file(here, "usr/lib64/libcuda.so.535.1");
    file(here, "usr/lib64/libnvidia-ml.so.1");
    file(here, "usr/lib64/libnvidia-encode.so.535.1");
    link(here, "libcuda.so.535.1", "usr/lib64/libcuda.so.1");
    link(here, "/usr/lib64", "lib64");
    link(here, "/etc", "usr/bin");
    let driver = root(here, true).read().expect("a driver");
    let expected = "/opt/driver/usr/lib64/libnvidia-encode.so.535.1";
    assert_eq!(file_of(&driver, "libnvidia-encode.so.535.1"), Some(expected.into()));
}

#[test]
fn a_flat_software_gpu_is_found() {
    let dir = tempfile::tempdir().expect("a folder");
    for name in [LIBCUDA, LIBNVIDIA_ML] {
        file(dir.path(), name);
    }
    let root = root(dir.path(), true);
    let driver = root.read().expect("a driver");
    assert_eq!(driver.files.libcuda, Path::new("/opt/driver/libcuda.so.1"));
    assert!(driver.files.found.is_empty());
    let nodes = root.gpu_nodes(&gpu(0), Capabilities::ALL);
    assert_eq!(nodes, Ok(Vec::new()));
}

#[test]
fn a_driver_without_versions_in_its_names_has_the_libraries_that_are_known() {
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
    ] {
        file(dir.path(), path);
    }
    let root = root(dir.path(), false);
    let driver = root.read().expect("a driver");
    assert_eq!(
        places(&driver, &[Capability::Compute]),
        ["libnvidia-gpucomp.so.535.161.08", "libnvidia-ptxjitcompiler.so.1"]
    );
    assert!(places(&driver, &[Capability::Utility]).contains(&"/usr/bin/nvidia-smi".to_owned()));
    fs::remove_file(dir.path().join("usr/lib64/libcuda.so.1")).expect("removed");
    let error = root.read().expect_err("no libcuda").to_string();
    for part in [
        LIBCUDA,
        "--driver-root",
        "driverRoot",
        "/etc/ld.so.cache",
        "/usr/local/nvidia/lib64",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn a_library_is_given_by_capability_under_all_its_names_and_only_of_the_drivers_version() {
    let dir = tempfile::tempdir().expect("a folder");
    let here = dir.path();
    install(here, "535.1.2");
    // Libraries of an earlier driver, of another program, of a newer driver (in no table), and with a version of their own.
    for name in [
        "libnvidia-opencl.so.470.9",
        "libnvidia-encode.so.470.9",
        "libother.so.1",
        "libnvidia-news.so.535.1.2",
        "libnvidia-egl-gbm.so.1.1.0",
    ] {
        file(here, &format!("{LIBRARIES}/{name}"));
    }
    link(
        here,
        "libnvidia-news.so.535.1.2",
        &format!("{LIBRARIES}/libnvidia-news.so.2"),
    );
    link(
        here,
        "libnvidia-opencl.so.470.9",
        &format!("{LIBRARIES}/libnvidia-opencl.so.1"),
    );
    link(
        here,
        "libnvidia-encode.so.470.9",
        &format!("{LIBRARIES}/libnvidia-encode.so"),
    );
    let driver = root(here, false).read().expect("a driver");
    let news = ["libnvidia-news.so.2", "libnvidia-news.so.535.1.2"];
    let jit = ["libnvidia-ptxjitcompiler.so.1", "libnvidia-ptxjitcompiler.so.535.1.2"];
    assert_eq!(places(&driver, &[Capability::Compute]), [news, jit].concat());
    assert_eq!(places(&driver, &[Capability::Utility]), news);
    let encode = ["libnvidia-encode.so.1", "libnvidia-encode.so.535.1.2"];
    assert_eq!(places(&driver, &[Capability::Video]), [encode, news].concat());
    let graphics = places(&driver, &[Capability::Graphics]);
    for name in [
        "libGLX_nvidia.so.535.1.2",
        "libGLX_indirect.so.0",
        "libnvidia-egl-gbm.so.1.1.0",
    ] {
        assert!(graphics.contains(&name.to_owned()), "{name}: {graphics:?}");
    }
    let shimmed: Vec<_> = driver.files.shimmed.iter().map(String::as_str).collect();
    assert_eq!(
        shimmed,
        [
            "libcuda.so.1",
            "libcuda.so.535.1.2",
            "libnvidia-ml.so.1",
            "libnvidia-ml.so.535.1.2"
        ]
    );
}

#[test]
fn programs_data_and_firmware_are_found_where_distributions_have_them() {
    let dir = tempfile::tempdir().expect("a folder");
    let here = dir.path();
    install(here, "535.1.2");
    for path in [
        "usr/sbin/nvidia-cuda-mps-server",
        "etc/OpenCL/vendors/nvidia.icd",
        "usr/share/vulkan/icd.d/nvidia_icd.json",
        "usr/share/nvidia/nvoptix.bin",
        "usr/lib/firmware/nvidia/535.1.2/gsp_ga10x.bin",
        "usr/lib/firmware/nvidia/535.1.2/notes.txt",
        "usr/lib/firmware/nvidia/470.9/gsp.bin",
        "usr/lib/nvidia/nvidia_drv.so",
        "usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.535.1.2",
    ] {
        file(here, path);
    }
    link(here, "/usr/lib", "lib");
    let driver = root(here, false).read().expect("a driver");
    let compute = places(&driver, &[Capability::Compute]);
    for path in [
        "/usr/bin/nvidia-cuda-mps-server",
        "/etc/OpenCL/vendors/nvidia.icd",
        "/lib/firmware/nvidia/535.1.2/gsp_ga10x.bin",
    ] {
        assert!(compute.contains(&path.to_owned()), "{path}: {compute:?}");
    }
    let graphics = places(&driver, &[Capability::Graphics]);
    for path in [
        "/etc/vulkan/icd.d/nvidia_icd.json",
        "/usr/share/nvidia/nvoptix.bin",
        "/usr/lib/nvidia/nvidia_drv.so",
        "/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so",
        "/usr/lib/xorg/modules/extensions/libglxserver_nvidia.so.535.1.2",
    ] {
        assert!(graphics.contains(&path.to_owned()), "{path}: {graphics:?}");
    }
    let all = [compute, graphics].concat();
    assert!(
        all.iter().all(|path| !path.contains("470") && !path.contains("notes")),
        "{all:?}"
    );
}

#[test]
fn sockets_are_there_while_their_service_is() {
    let dir = tempfile::tempdir().expect("a folder");
    let here = dir.path();
    install(here, "535.1.2");
    // A regular file in its place is no socket.
    file(here, "run/nvidia-fabricmanager/socket");
    fs::create_dir_all(here.join("var/run/nvidia-persistenced")).expect("a folder");
    let path = here.join("var/run/nvidia-persistenced/socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
    let finder = Finder::new(root(here, false));
    let sockets = || finder.read().expect("a driver").sockets;
    let found = sockets();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        found[0].file,
        Path::new("/opt/driver/var/run/nvidia-persistenced/socket")
    );
    assert_eq!(found[0].place, Place::File("/run/nvidia-persistenced/socket".into()));
    drop(listener);
    fs::remove_file(path).expect("removed");
    assert_eq!(sockets(), []);
}

#[test]
fn a_gpu_has_its_node_and_with_graphics_those_of_its_bus_id() {
    let dir = tempfile::tempdir().expect("a folder");
    let here = dir.path();
    install(here, "535.1.2");
    let device = "sys/bus/pci/devices/0000:3b:00.0/drm";
    for name in ["card1", "card1/card1-DP-1", "renderD129", "renderDx", "controlD64"] {
        fs::create_dir_all(here.join(device).join(name)).expect("a folder");
    }
    for node in ["card0", "card1", "renderD128", "renderD129"] {
        file(here, &format!("dev/dri/{node}"));
    }
    let root = root(here, false);
    let gpu = crate::publish::inventory::Gpu {
        minor: Some(3),
        pci_bus_id: Some("0000:3b:00.0".into()),
        ..gpu(0)
    };
    let nodes = |capabilities| {
        let nodes = root.gpu_nodes(&gpu, capabilities).expect("nodes");
        nodes
            .into_iter()
            .map(|node| (node.container, node.host))
            .collect::<Vec<_>>()
    };
    let pair = |container: &str, host: &str| (container.to_owned(), host.to_owned());
    let own = pair("/dev/nvidia3", "/dev/nvidia3");
    assert_eq!(nodes(Capabilities::default()), std::slice::from_ref(&own));
    assert_eq!(
        nodes(Capabilities::ALL),
        [
            own,
            pair("/dev/dri/card1", "/dev/dri/card1"),
            pair("/dev/dri/by-path/pci-0000:3b:00.0-card", "/dev/dri/card1"),
            pair("/dev/dri/renderD129", "/dev/dri/renderD129"),
            pair("/dev/dri/by-path/pci-0000:3b:00.0-render", "/dev/dri/renderD129"),
        ]
    );
    let needs = |driver: &Driver, node: &str| {
        let found = driver.common_nodes.iter().find(|(path, _)| path == node);
        found.map(|(_, needs)| needs.to_string())
    };
    let driver = root.read().expect("a driver");
    assert_eq!(needs(&driver, "/dev/nvidia-modeset").as_deref(), Some("graphics"));
    assert_eq!(needs(&driver, "/dev/nvidiactl"), Some(Capabilities::ALL.to_string()));
    let gone = crate::publish::inventory::Gpu { minor: Some(99), ..gpu };
    assert_eq!(
        root.gpu_nodes(&gone, Capabilities::default()),
        Err(Error::NoDeviceNode("/dev/nvidia99".into()))
    );
}

/// Makes all folders look as if they had not changed for an hour.
fn settle(folder: &Path) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        if entry.file_type().expect("a type").is_dir() {
            settle(&entry.path());
        }
    }
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    let opened = fs::File::open(folder).expect("a folder");
    opened.set_modified(hour_ago).expect("a time");
}

#[test]
fn what_was_found_is_kept_until_a_folder_changes() {
    let dir = tempfile::tempdir().expect("a folder");
    let here = dir.path().join("root");
    install(&here, "535.1.2");
    link(&here, "/etc/alternatives/smi", "usr/bin/nvidia-smi");
    link(&here, "/usr/lib/nvidia/535/nvidia-smi", "etc/alternatives/smi");
    file(&here, "usr/lib/nvidia/535/nvidia-smi");
    file(&here, "usr/lib/nvidia/550/nvidia-smi");
    let finder = Finder::new(root(&here, false));
    let files = || finder.read().expect("a driver").files;
    let is_kept = || Arc::ptr_eq(&files(), &files());
    assert!(
        !is_kept(),
        "it has just changed, and may change again within the time's resolution"
    );
    settle(&here);
    assert!(is_kept());

    // A new library; a link of alternatives that leads elsewhere; the whole root replaced.
    let before = files();
    file(&here, &format!("{LIBRARIES}/libnvidia-nvvm.so.535.1.2"));
    assert_eq!(files().found.len(), before.found.len() + 1);

    settle(&here);
    assert!(is_kept());
    fs::remove_file(here.join("etc/alternatives/smi")).expect("removed");
    link(&here, "/usr/lib/nvidia/550/nvidia-smi", "etc/alternatives/smi");
    let smi = Path::new("/opt/driver/usr/lib/nvidia/550/nvidia-smi");
    assert!(files().found.iter().any(|found| found.file == smi), "{:?}", files());

    let other = dir.path().join("other");
    install(&other, "550.3");
    settle(&other);
    settle(&here);
    assert!(is_kept());
    fs::rename(&here, dir.path().join("former")).expect("renamed");
    assert!(finder.read().is_err(), "the driver is being replaced");
    fs::rename(&other, &here).expect("renamed");
    assert!(files().libcuda.ends_with("libcuda.so.550.3"), "{:?}", files());
}

#[test]
fn an_instance_has_its_gpus_node_and_its_own_capability_nodes_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    let here = dir.path();
    let root = root(here, false);
    let instance = instance(3, "MIG-aaaabbbb-1111-5222-8333-444455556666");
    let nodes = || root.gpu_nodes(&instance, Capabilities::default());
    file(here, "dev/nvidia3");
    let of_kernel = "proc/driver/nvidia/capabilities/gpu3/mig/gi2";
    let missing = nodes().expect_err("the kernel does not know it").to_string();
    assert!(
        missing.starts_with(&format!("{}/{of_kernel}/access does not exist", here.display())),
        "{missing}"
    );
    for (access, minor) in [("access", 426), ("ci0/access", 427)] {
        file(here, &format!("{of_kernel}/{access}"));
        let text = format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n");
        fs::write(here.join(of_kernel).join(access), text).expect("written");
    }
    let no_major = Error::NoCapability("nvidia-caps in /proc/devices".into());
    assert_eq!(nodes(), Err(no_major));
    // No capability node exists on the machine.
    for major in [508, 509] {
        let devices =
            format!("Character devices:\n  1 mem\n195 nvidia\n{major} nvidia-caps\n\nBlock devices:\n  8 sd\n");
        fs::write(here.join("proc/devices"), devices).expect("written");
        let capability = |minor: u32| DeviceFile {
            number: Some((major, minor)),
            ..DeviceFile::same(format!("/dev/nvidia-caps/nvidia-cap{minor}"))
        };
        let expected = vec![DeviceFile::same("/dev/nvidia3"), capability(426), capability(427)];
        assert_eq!(
            nodes(),
            Ok(expected),
            "with numbers, so that no node is needed on the machine"
        );
    }
}

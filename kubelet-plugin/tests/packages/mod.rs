//! Driver roots made of NVIDIA's own packages, from the distribution. The packages are downloaded by the tests and never
//! committed. No script of theirs runs, so the links that update-alternatives would make are made here.
#![allow(dead_code, reason = "each test uses some of it")]

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use vgpu_abi::limits::{ComputePolicy, Priority};
use vgpu_api::config::{Capabilities, MemoryEnforcement};
use vgpu_cache::apt::{self, Release, With};
use vgpu_kubelet_plugin::dra::share::{Role, Share};
use vgpu_skip::skip;

pub(crate) const LIBRARIES: &str = concat!("usr/lib/", vgpu_abi::arch!(triplet));

/// The packages of bookworm's driver, without the large ones of OptiX and firmware.
pub(crate) const BOOKWORM: &str = "libcuda1 libcudadebugger1 libegl-nvidia0 libgles-nvidia1 libgles-nvidia2 libglx-nvidia0 libnvcuvid1 \
    libnvidia-allocator1 libnvidia-cfg1 libnvidia-egl-wayland1 libnvidia-eglcore libnvidia-encode1 \
    libnvidia-fbc1 libnvidia-glcore libnvidia-glvkspirv libnvidia-ml1 libnvidia-ngx1 libnvidia-nvvm4 \
    libnvidia-opticalflow1 libnvidia-pkcs11-openssl3 libnvidia-ptxjitcompiler1 libnvidia-rtcore \
    nvidia-cuda-mps nvidia-driver-bin nvidia-egl-common nvidia-opencl-common nvidia-opencl-icd nvidia-smi \
    nvidia-vdpau-driver nvidia-vulkan-common nvidia-vulkan-icd xserver-xorg-video-nvidia";

/// A share with all capabilities.
pub(crate) fn share() -> Share {
    Share {
        name: "s1".into(),
        role: Role::Share,
        request: "gpu".into(),
        device: "gpu".into(),
        share_id: Some("s1".into()),
        gpu: "GPU-3f8a1c20-1111-2222-3333-444455556666".into(),
        memory: 1 << 30,
        cores: 0,
        compute_policy: ComputePolicy::Balanced,
        priority: Priority::Low,
        host_memory: 0,
        memory_enforcement: MemoryEnforcement::Prefer,
        report: None,
        driver_capabilities: Capabilities::ALL,
    }
}

/// The root file system with these packages of Debian's, shared with other tests: change nothing in it. None: skipped.
pub(crate) fn fetch(test: &str, codename: &str, components: &str, packages: &str) -> Option<PathBuf> {
    let packages: Vec<&str> = packages.split(' ').collect();
    let release = Release { codename, components };
    match apt::root(release, &packages, With::Nothing) {
        Ok(root) => Some(root),
        Err(reason) => {
            let name = format!("{test}, {codename}, {}", packages[0]);
            skip(&name, reason.lines().last().unwrap_or_default());
            None
        }
    }
}

/// Copies a tree, its files by hard links where the file system allows that.
pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        let (kind, path) = (entry.file_type().expect("a type"), to.join(entry.file_name()));
        if kind.is_dir() {
            copy(&entry.path(), &path);
        } else {
            give(&entry.path(), &path);
        }
    }
}

/// Copies a file or a link to a path, for which it makes the folders.
pub(crate) fn give(from: &Path, to: &Path) {
    fs::create_dir_all(to.parent().expect("a folder")).expect("folders");
    if from.is_symlink() {
        symlink(fs::read_link(from).expect("a link"), to).expect("a link");
        return;
    }
    match fs::hard_link(from, to) {
        Err(error) if matches!(error.kind(), ErrorKind::CrossesDevices | ErrorKind::PermissionDenied) => {
            fs::copy(from, to).expect("a copy");
        }
        linked => linked.expect("a link"),
    }
}

/// Makes the links of update-alternatives: absolute, by way of /etc/alternatives. `folder` is the last part of the folders
/// in which the driver has its files.
pub(crate) fn choose(root: &Path, folder: &str) {
    fs::create_dir_all(root.join("etc/alternatives")).expect("a folder");
    let smi = Path::new("usr/lib/nvidia").join(folder).join("nvidia-smi");
    let libraries = Path::new(LIBRARIES).join("nvidia").join(folder);
    let names = fs::read_dir(root.join(&libraries)).expect("a folder").flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    // Names that end with a number alone, such as libcuda.so.1.
    let names = names.filter(|name| {
        name.rsplit_once(".so.")
            .is_some_and(|(_, end)| end.parse::<u32>().is_ok())
    });
    let links = names.map(|name| (Path::new(LIBRARIES).join(&name), libraries.join(&name)));
    fs::create_dir_all(root.join("usr/bin")).expect("a folder");
    for (link, file) in links.chain([(PathBuf::from("usr/bin/nvidia-smi"), smi)]) {
        let name = link.file_name().expect("a name").to_string_lossy().into_owned();
        let chosen = Path::new("/etc/alternatives").join(format!("nvidia--{name}"));
        symlink(
            Path::new("/").join(file),
            root.join("etc/alternatives").join(format!("nvidia--{name}")),
        )
        .expect("a link");
        symlink(chosen, root.join(link)).expect("a link");
    }
}

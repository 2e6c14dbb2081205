//! Maps each file to its part of the driver, which says which containers get it. Pure.
//!
//! The parts are those of NVIDIA's runtime for NVIDIA_DRIVER_CAPABILITIES. A library of the driver's version that is not
//! in the table is given to every container: a later release of the driver may need it for anything.

use vgpu_api::config::{Capabilities, Capability};

pub(crate) const COMPUTE: Capabilities = Capabilities::of(&[Capability::Compute]);
pub(crate) const UTILITY: Capabilities = Capabilities::of(&[Capability::Utility]);
pub(crate) const VIDEO: Capabilities = Capabilities::of(&[Capability::Video]);
pub(crate) const GRAPHICS: Capabilities = Capabilities::of(&[Capability::Graphics]);
pub(crate) const ALL: Capabilities = Capabilities::ALL;

const COMPUTE_AND_GRAPHICS: Capabilities = COMPUTE.with(GRAPHICS);
const VIDEO_AND_GRAPHICS: Capabilities = VIDEO.with(GRAPHICS);

/// A library by its name before `.so`, except libcuda and libnvidia-ml, which every container has.
const LIBRARIES: &[(&str, Capabilities)] = &[
    ("libnvidia-cfg", UTILITY.with(GRAPHICS)),
    ("libnvidia-nscq", UTILITY),
    ("libnvidia-sandboxutils", UTILITY),
    ("libcudadebugger", COMPUTE),
    ("libnvidia-compiler", COMPUTE),
    ("libnvidia-fatbinaryloader", COMPUTE),
    ("libnvidia-nvvm", COMPUTE),
    ("libnvidia-nvvm70", COMPUTE),
    ("libnvidia-opencl", COMPUTE),
    ("libnvidia-pkcs11", COMPUTE),
    ("libnvidia-pkcs11-openssl3", COMPUTE),
    ("libnvidia-ptxjitcompiler", COMPUTE),
    ("libnvidia-tileiras", COMPUTE),
    ("libnvidia-allocator", COMPUTE_AND_GRAPHICS),
    // Compilers of shaders and of CUDA.
    ("libnvidia-gpucomp", ALL),
    ("libnvcuvid", VIDEO),
    ("libnvidia-encode", VIDEO),
    ("libnvidia-opticalflow", VIDEO),
    ("libvdpau_nvidia", VIDEO_AND_GRAPHICS),
    ("libEGL_nvidia", GRAPHICS),
    ("libGLESv1_CM_nvidia", GRAPHICS),
    ("libGLESv2_nvidia", GRAPHICS),
    ("libGLX_nvidia", GRAPHICS),
    ("libglxserver_nvidia", GRAPHICS),
    ("libnvidia-cbl", GRAPHICS),
    ("libnvidia-egl-gbm", GRAPHICS),
    ("libnvidia-egl-wayland", GRAPHICS),
    ("libnvidia-egl-wayland2", GRAPHICS),
    ("libnvidia-egl-xcb", GRAPHICS),
    ("libnvidia-egl-xlib", GRAPHICS),
    ("libnvidia-eglcore", GRAPHICS),
    ("libnvidia-fbc", GRAPHICS),
    ("libnvidia-glcore", VIDEO_AND_GRAPHICS),
    ("libnvidia-glsi", VIDEO_AND_GRAPHICS),
    ("libnvidia-glvkspirv", GRAPHICS),
    ("libnvidia-gtk2", GRAPHICS),
    ("libnvidia-gtk3", GRAPHICS),
    ("libnvidia-ifr", GRAPHICS),
    ("libnvidia-ngx", GRAPHICS),
    ("libnvidia-present", GRAPHICS),
    ("libnvidia-rtcore", GRAPHICS),
    ("libnvidia-tls", VIDEO_AND_GRAPHICS),
    ("libnvidia-vksc-core", GRAPHICS),
    ("libnvidia-vulkan-producer", GRAPHICS),
    ("libnvidia-wayland-client", GRAPHICS),
    ("libnvoptix", GRAPHICS),
];

/// Libraries that have versions of their own.
const OF_OTHER_VERSIONS: [&str; 6] = [
    "libnvidia-egl-gbm",
    "libnvidia-egl-wayland",
    "libnvidia-egl-wayland2",
    "libnvidia-egl-xcb",
    "libnvidia-egl-xlib",
    "libnvidia-nvvm70",
];

/// Names that libraries have in a container beside those on the node, where the links depend on the distribution.
const FURTHER_NAMES: [(&str, &str); 5] = [
    ("libGLX_nvidia", "libGLX_indirect.so.0"),
    ("libnvidia-allocator", "gbm/nvidia-drm_gbm.so"),
    ("libnvidia-opticalflow", "libnvidia-opticalflow.so"),
    ("libnvidia-vulkan-producer", "libnvidia-vulkan-producer.so"),
    ("libvdpau_nvidia", "vdpau/libvdpau_nvidia.so.1"),
];

/// Libraries that libcuda opens by name: the JIT compiler for PTX and the libraries that it opens.
const OPENED_BY_LIBCUDA: [&str; 3] = ["libnvidia-ptxjitcompiler", "libnvidia-nvvm", "libnvidia-gpucomp"];

/// Programs, as NVIDIA's toolkit gives them.
pub(super) const PROGRAMS: [(&str, Capabilities); 8] = [
    ("nvidia-smi", UTILITY),
    ("nvidia-debugdump", UTILITY),
    ("nvidia-persistenced", UTILITY),
    ("nvidia-cuda-mps-control", COMPUTE),
    ("nvidia-cuda-mps-server", COMPUTE),
    ("nvidia-imex", COMPUTE),
    ("nvidia-imex-ctl", COMPUTE),
    ("nvidia-xconfig", GRAPHICS),
];

/// Files that loaders and X read: the path below a folder for configurations, and the folder in which a container has it.
pub(super) const CONFIGURATIONS: [(&str, &str, Capabilities); 14] = [
    ("OpenCL/vendors/nvidia.icd", "/etc", COMPUTE),
    ("glvnd/egl_vendor.d/10_nvidia.json", "/usr/share", GRAPHICS),
    (
        "egl/egl_external_platform.d/09_nvidia_wayland2.json",
        "/usr/share",
        GRAPHICS,
    ),
    (
        "egl/egl_external_platform.d/10_nvidia_wayland.json",
        "/usr/share",
        GRAPHICS,
    ),
    ("egl/egl_external_platform.d/15_nvidia_gbm.json", "/usr/share", GRAPHICS),
    ("egl/egl_external_platform.d/20_nvidia_xcb.json", "/usr/share", GRAPHICS),
    (
        "egl/egl_external_platform.d/20_nvidia_xlib.json",
        "/usr/share",
        GRAPHICS,
    ),
    ("nvidia/nvoptix.bin", "/usr/share", GRAPHICS),
    ("X11/xorg.conf.d/10-nvidia.conf", "/usr/share", GRAPHICS),
    ("X11/xorg.conf.d/nvidia-drm-outputclass.conf", "/usr/share", GRAPHICS),
    ("vulkan/icd.d/nvidia_icd.json", "/etc", GRAPHICS),
    (
        concat!("vulkan/icd.d/nvidia_icd.", vgpu_abi::arch!(uname), ".json"),
        "/etc",
        GRAPHICS,
    ),
    ("vulkan/icd.d/nvidia_layers.json", "/etc", GRAPHICS),
    ("vulkan/implicit_layer.d/nvidia_layers.json", "/etc", GRAPHICS),
];

/// Sockets of services on the node.
pub(super) const SOCKETS: [(&str, Capabilities); 2] = [
    ("nvidia-persistenced/socket", UTILITY),
    ("nvidia-fabricmanager/socket", COMPUTE),
];

/// Device nodes that all GPUs share, who gets them, and if a GPU works only with them.
pub(super) const COMMON_NODES: [(&str, Capabilities, bool); 4] = [
    ("/dev/nvidiactl", ALL, true),
    ("/dev/nvidia-uvm", ALL, true),
    ("/dev/nvidia-uvm-tools", ALL, false),
    ("/dev/nvidia-modeset", GRAPHICS, false),
];

/// The part of the library with this name before `.so`, if it is in the table.
pub(crate) fn library(stem: &str) -> Option<Capabilities> {
    let found = LIBRARIES.iter().find(|(name, _)| *name == stem);
    found.map(|(_, needs)| *needs)
}

pub(super) fn has_own_version(stem: &str) -> bool {
    OF_OTHER_VERSIONS.contains(&stem)
}

pub(super) fn is_opened_by_libcuda(stem: &str) -> bool {
    OPENED_BY_LIBCUDA.contains(&stem)
}

pub(super) fn further_names(stem: &str) -> impl Iterator<Item = &'static str> {
    let of_it = FURTHER_NAMES.iter().filter(move |(name, _)| *name == stem);
    of_it.map(|(_, further)| *further)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_in_the_table_once_and_what_the_other_tables_name_is_in_it() {
        for (index, (name, _)) in LIBRARIES.iter().enumerate() {
            let first = LIBRARIES.iter().position(|(other, _)| other == name);
            assert_eq!(first, Some(index), "{name}");
        }
        let others = OF_OTHER_VERSIONS.iter().chain(&OPENED_BY_LIBCUDA);
        for name in others.chain(FURTHER_NAMES.iter().map(|(name, _)| name)) {
            assert!(library(name).is_some(), "{name}");
        }
        assert_eq!(library("libcuda"), None, "the shim has its names");
    }
}

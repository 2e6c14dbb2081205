//! Paths on the node and in the container (docs/architecture.md, "Fixed points between crates").

/// Name of the limits file in a share's directory.
pub const LIMITS: &str = "limits";
/// Name of the ledger in a share's directory.
pub const LEDGER: &str = "ledger";
/// Name of the folder of arbitration directories, one for each GPU, in a directory of shares. The dot distinguishes it
/// from shares, whose names have none.
pub const ARBITRATION: &str = ".arbitration";
/// Name of the node's page in an arbitration directory, beside the pages of the slots.
pub const NODE_PAGE: &str = "node";

/// The container's directory of shares: a read-only tmpfs that the node mounts. In a container, limits come from here
/// only. It is below /dev, because each container has its own mount there, which root cannot rename, and because no
/// link of an image and no volume of an honest pod leads there.
pub const CONTAINER_DIR: &str = "/dev/vgpu";
/// The source of the tmpfs that the node mounts for shares, as mountinfo shows it. A pod cannot choose the source of a
/// volume.
pub const TMPFS_SOURCE: &str = "vgpu";
/// Variable that names the directory of shares of a `vgpu run`.
pub const RUN_DIR_VARIABLE: &str = "VGPU_RUN_DIR";
/// The directory of shares in the mount namespace of root's `vgpu run`.
pub const NAMESPACE_DIR: &str = "/run/vgpu";
/// The container's arbitration directories: [`ARBITRATION`] in [`CONTAINER_DIR`].
pub const CONTAINER_ARBITRATION_DIR: &str = "/dev/vgpu/.arbitration";
/// The container's folder of our libraries: the backstop, and beside it the shim as [`LIBCUDA`].
pub const CONTAINER_OWN_LIBRARY_DIR: &str = "/dev/vgpu/.lib";
/// The backstop library in the container.
pub const CONTAINER_PRELOAD: &str = "/dev/vgpu/.lib/libvgpu-preload.so";
/// The shim in the container, beside the backstop, which opens it there and nowhere else.
pub const CONTAINER_SHIM: &str = "/dev/vgpu/.lib/libcuda.so.1";
/// The real driver's libraries in the container.
pub const CONTAINER_DRIVER_DIR: &str = "/dev/vgpu/.driver";
/// The loader's default folders, on Debian's and on Red Hat's layout.
pub const CONTAINER_LIBRARY_DIRS: [&str; 2] = [concat!("/usr/lib/", arch!(triplet)), "/usr/lib64"];
/// The names under which libvgpu.so is mounted in each of [`CONTAINER_LIBRARY_DIRS`].
pub const SHIM_NAMES: [&str; 3] = ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"];

/// The node's directories of claims and of arbitration. If one of them exists, this is a node and not a container.
pub const NODE_CLAIMS_DIR: &str = "/run/vgpu/claims";
pub const NODE_GPUS_DIR: &str = "/run/vgpu/gpus";
/// Root's `vgpu run` creates this directory to mark /run/vgpu as a node's.
pub const NODE_MARK_DIR: &str = "/run/vgpu/.node";
/// The node's releases of the library, one folder for each digest, unless the chart names another folder. Containers
/// cannot see this path.
pub const NODE_LIBRARY_DIR: &str = "/var/lib/vgpu";

/// Files of one release of the library.
pub const SHIM_FILE: &str = "libvgpu.so";
pub const PRELOAD_FILE: &str = "libvgpu-preload.so";
pub const HOOK_FILE: &str = "vgpu-cdi-hook";
pub const DRIVER_LIMIT_FILE: &str = "vgpu-driver-limit";

/// The names by which programs open the real driver's libraries.
pub const LIBCUDA: &str = "libcuda.so.1";
pub const LIBNVIDIA_ML: &str = "libnvidia-ml.so.1";

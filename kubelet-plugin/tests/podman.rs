//! A CDI file of ours, loaded by Debian's podman (4.3.1 in bookworm, which reads CDI up to 0.5.0) with crun: the mounts are
//! there, the hook ran, and libcuda and NVML are ours under all names, also where the image brings a driver of its own.
//!
//! podman is unpacked, not installed. It runs in a mount namespace with its own root (crun does not keep a changed root),
//! and the container runs without cgroups and network. The files of driver and library are texts that say what they are.

mod packages;

use packages::{copy, give, share};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use vgpu_cache::apt::{self, Release, With};
use vgpu_kubelet_plugin::dra::edits::{self, Inputs, Placed};
use vgpu_kubelet_plugin::driver::Root;
use vgpu_skip::skip;

const TEST: &str = "podman_loads_a_claim_and_the_shims_names_win";
const LIBRARIES: &str = concat!("usr/lib/", vgpu_abi::arch!(triplet));
const UID: &str = "5c0f3b9a-0000-4000-8000-000000000001";

/// The script of a mount namespace; its first argument is the root. It mounts a /sys/fs/cgroup that crun understands,
/// whatever the machine has.
const SCRIPT: &str = "set -e; R=$1; shift
mount --make-rprivate /
mount --bind $R $R; cd $R
mkdir -p proc sys dev run tmp old
mount --rbind /proc proc; mount --rbind /sys sys; mount --rbind /dev dev; mount -t tmpfs shm dev/shm
mount -t cgroup2 none sys/fs/cgroup
mount -t tmpfs run run; mount -t tmpfs tmp tmp
mkdir -p run/vgpu/claims/$CLAIM/s1 run/soft-gpu; mount -t tmpfs vgpu run/vgpu/claims/$CLAIM/s1
echo limits >run/vgpu/claims/$CLAIM/s1/limits; echo ledger >run/vgpu/claims/$CLAIM/s1/ledger
pivot_root . old; busybox umount -l old; cd /
exec podman --root /run/storage --runroot /run/podman --storage-driver vfs --cgroup-manager cgroupfs \
  --events-backend none --runtime /usr/bin/crun run --rm --network none --cgroups disabled \
  --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 --security-opt seccomp=unconfined \
  --device dra.vgpu/claim=$CLAIM-s1 --rootfs /box sh -c \"$1\"";

fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
    fs::write(path, text).expect("written");
}

fn hook() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist");
    let hook = std::env::var_os("VGPU_DIST")
        .map_or(own, PathBuf::from)
        .join("vgpu-cdi-hook");
    assert!(hook.is_file(), "{} is missing: run `make dist`", hook.display());
    hook
}

/// Installs a software driver with NVIDIA's names of files: it needs no device nodes.
fn install(root: &Path) -> Root {
    let here = root.join("driver");
    for stem in [
        "libcuda",
        "libnvidia-ml",
        "libnvidia-encode",
        "libnvidia-ptxjitcompiler",
    ] {
        let file = format!("{stem}.so.535.1");
        put(&here.join(LIBRARIES).join(&file), stem);
        symlink(&file, here.join(LIBRARIES).join(format!("{stem}.so.1"))).expect("a link");
    }
    put(&here.join("usr/share/vulkan/icd.d/nvidia_icd.json"), "icd");
    Root {
        here,
        host: "/driver".into(),
        sys: "/sys".into(),
        proc: "/proc".into(),
        soft_gpu_state: Some("/run/soft-gpu".into()),
    }
}

/// An image with a driver of its own, as a link, a file and in `compat`.
fn image(root: &Path) {
    let image = root.join("box");
    for name in ["sh", "cat"] {
        give(&root.join("bin/busybox"), &image.join("bin").join(name));
    }
    for folder in [LIBRARIES, "usr/local/cuda/compat"] {
        put(&image.join(folder).join("libcuda.so.470.1"), "the image's");
        symlink("libcuda.so.470.1", image.join(folder).join("libcuda.so.1")).expect("a link");
    }
    // The same version as the node's, and a link that leads from another library to libcuda.
    put(&image.join("usr/lib64/libcuda.so.535.1"), "the image's");
    symlink("libcuda.so.535.1", image.join("usr/lib64/libcuda.so")).expect("a link");
    put(&image.join("etc/ld.so.preload"), "/of/the/image.so\n");
}

#[test]
fn podman_loads_a_claim_and_the_shims_names_win() {
    let may_mount = Command::new("unshare")
        .args(["-m", "mount", "-t", "tmpfs", "none", "/mnt"])
        .output();
    if !nix::unistd::geteuid().is_root() || !may_mount.is_ok_and(|tried| tried.status.success()) {
        return skip(TEST, "podman needs root here, and to mount");
    }
    let release = Release {
        codename: "bookworm",
        components: "main",
    };
    let packages = match apt::root(release, &["podman", "crun", "busybox-static"], With::AllThatTheyNeed) {
        Ok(packages) => packages,
        Err(reason) => return skip(TEST, reason.lines().last().unwrap_or_default()),
    };
    let dir = tempfile::tempdir().expect("a folder");
    let root = dir.path().join("root");
    copy(&packages, &root);
    put(
        &root.join("etc/containers/policy.json"),
        r#"{"default": [{"type": "insecureAcceptAnything"}]}"#,
    );
    let driver = install(&root).read().expect("a driver");
    image(&root);
    let library = Path::new("/var/lib/vgpu/release");
    let installed = root.join(library.strip_prefix("/").expect("absolute"));
    put(&installed.join("libvgpu.so"), "the shim");
    put(&installed.join("libvgpu-preload.so"), "the backstop");
    fs::copy(hook(), installed.join("vgpu-cdi-hook")).expect("a copy");
    let executable = fs::Permissions::from_mode(0o755);
    fs::set_permissions(installed.join("vgpu-cdi-hook"), executable).expect("executable");
    let (share, claim_dir) = (share(), Path::new("/run/vgpu/claims").join(UID));
    let placed = Placed {
        share: &share,
        slot: None,
        nodes: Vec::new(),
        reported: None,
    };
    let inputs = Inputs {
        claim_dir: &claim_dir,
        gpus_dir: Path::new("/run/vgpu/gpus"),
        library,
        driver: &driver,
        visible_devices: false,
        metadata: &[],
        driver_limit: None,
        alone: None,
        refused: None,
    };
    let spec = edits::spec(&inputs, UID, &[placed]).render().expect("rendered");
    put(
        &root.join("etc/cdi/claim.json"),
        &String::from_utf8(spec).expect("text"),
    );

    let look = format!(
        "for f in \
        /{LIBRARIES}/libcuda.so /{LIBRARIES}/libcuda.so.1 /{LIBRARIES}/libcuda.so.535.1 /{LIBRARIES}/libnvidia-ml.so.1 \
        /usr/lib64/libcuda.so /usr/lib64/libcuda.so.1 /usr/lib64/libcuda.so.535.1 /usr/lib64/libnvidia-ml.so.535.1 \
        /usr/lib64/libnvidia-encode.so.1 /dev/vgpu/.driver/libcuda.so.1 /dev/vgpu/.driver/libnvidia-ptxjitcompiler.so.1 \
        /etc/vulkan/icd.d/nvidia_icd.json /dev/vgpu/s1/limits /dev/vgpu/.lib/libvgpu-preload.so; \
        do cat $f; echo; done; cat /etc/ld.so.preload; echo $NVIDIA_VISIBLE_DEVICES; \
        (: >/usr/lib64/libcuda.so.1) 2>/dev/null && echo written"
    );
    let ran = Command::new("unshare")
        .args(["-m", "sh", "-c", SCRIPT, "sh"])
        .arg(&root)
        .arg(look)
        .env("CLAIM", UID)
        .output()
        .expect("unshare");
    let (said, errors) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    let lines: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
    let mut expected = vec!["the shim"; 8];
    expected.extend([
        "libnvidia-encode",
        "libcuda",
        "libnvidia-ptxjitcompiler",
        "icd",
        "limits",
        "the backstop",
        "/of/the/image.so",
        "/dev/vgpu/.lib/libvgpu-preload.so",
        "void",
    ]);
    assert_eq!(lines, expected, "{errors}");
    let compat = fs::read_to_string(root.join("box/usr/local/cuda/compat/libcuda.so.1")).expect("a file");
    assert_eq!(compat, "the image's", "nothing is written to the image's files");
}

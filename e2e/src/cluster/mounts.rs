//! The file systems in a member's mount namespace.
//!
//! ```text
//! /run                        tmpfs, noexec, nosuid, nodev, as on distributions
//! /etc /opt /var/lib /var/log overlays over the machine's; writes stay in memory and end with the namespace
//! /proc                       of the new PID namespace
//! on a node also
//! /var/lib/kubelet, ...       folders of its state folder, on the disk: containers' file systems lie there
//! /etc/cdi                    empty
//! /etc/machine-id             its own
//! /proc/sys/...               the sysctls that a kubelet sets are private files
//! ```

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use sha2::{Digest, Sha256};

use super::config::{Member, MemberState, State};

/// Overlaid, so that mount points and files created there never reach the machine.
const OVERLAYS: [&str; 4] = ["/etc", "/opt", "/var/lib", "/var/log"];
/// Folders on the disk, under these names in `<state>/var`.
pub(super) const ON_DISK: [&str; 7] = [
    "lib/kubelet",
    "lib/containerd",
    "lib/cni",
    "lib/vgpu",
    "lib/soft-gpu",
    "log/pods",
    "log/containers",
];
/// The sysctls that a kubelet sets (pkg/kubelet/cm, setupKernelTunables), with the values that it expects.
const SYSCTLS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Prepares the mount sources of `enter` on the host.
pub(super) fn prepare(member: Member, own: &MemberState) -> Result<()> {
    if let Member::Node(_) = member {
        for path in ON_DISK {
            let folder = own.var(path);
            fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        }
        for (name, value) in SYSCTLS {
            let file = sysctl_copy(own, name);
            let folder = file.parent().unwrap_or(&own.0);
            fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
            fs::write(&file, format!("{value}\n")).with_context(|| format!("cannot write {}", file.display()))?;
        }
    }
    fs::create_dir_all(own.0.join("memory")).context("cannot create a mount point in the state folder")
}

fn sysctl_copy(own: &MemberState, name: &str) -> PathBuf {
    own.0.join("sysctl").join(name)
}

/// Mounts the file systems. The caller is in a new mount namespace whose mounts are private.
pub(super) fn enter(state: &State, member: Member) -> Result<()> {
    let own = state.member(member);
    mount("proc", "/proc", "proc", quiet(), None).context("cannot mount /proc")?;

    // The overlay over /var/lib hides the state folder, which stays reachable through these descriptors.
    let kept = File::open(&state.0).with_context(|| format!("cannot open {}", state.0.display()))?;
    let memory = own.0.join("memory");
    mount("tmpfs", &memory, "tmpfs", MountFlags::NOSUID, Some(c"mode=0755")).context("cannot mount a tmpfs")?;
    let memory = File::open(&memory).with_context(|| format!("cannot open {}", memory.display()))?;
    for path in OVERLAYS {
        overlay(Path::new(path), &reopened(&memory))?;
    }
    // If the state folder is on its own file system, the overlay does not show that mount but the folder below it.
    fs::create_dir_all(&state.0).with_context(|| format!("cannot create {}", state.0.display()))?;
    bind(&reopened(&kept), &state.0)?;
    if let Member::Node(node) = member {
        enter_node(&own, &machine_id(&state.name(), &node.name()))?;
    }
    mount("tmpfs", "/run", "tmpfs", quiet(), Some(c"mode=0755")).context("cannot mount /run")?;
    fs::create_dir_all("/run/lock").context("cannot create /run/lock")?;
    // Pods may ask for mounts that propagate in both directions.
    mount_change("/", MountPropagationFlags::SHARED | MountPropagationFlags::REC).context("cannot share the mounts")
}

fn enter_node(own: &MemberState, machine_id: &str) -> Result<()> {
    for (name, _) in SYSCTLS {
        let real = Path::new("/proc/sys").join(name);
        if real.exists() {
            bind(&sysctl_copy(own, name), &real)?;
        }
    }
    for path in ON_DISK {
        let point = Path::new("/var").join(path);
        fs::create_dir_all(&point).with_context(|| format!("cannot create {}", point.display()))?;
        bind(&own.var(path), &point)?;
    }
    if is_overlay(&own.0) {
        // An overlay cannot be mounted on another overlay's upper folder, so on such a machine containers' file
        // systems are in memory.
        mount("tmpfs", "/var/lib/containerd", "tmpfs", MountFlags::empty(), None).context("cannot mount a tmpfs")?;
    }
    fs::create_dir_all("/etc/cdi").context("cannot create /etc/cdi")?;
    mount("tmpfs", "/etc/cdi", "tmpfs", quiet(), Some(c"mode=0755")).context("cannot mount /etc/cdi")?;
    fs::write("/etc/machine-id", format!("{machine_id}\n")).context("cannot write /etc/machine-id")
}

fn quiet() -> MountFlags {
    MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC
}

/// As on real machines, each node has its own ID, which survives restarts.
pub(super) fn machine_id(cluster: &str, node: &str) -> String {
    let hash = Sha256::digest(format!("{cluster}/{node}"));
    hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// A path for an open folder that is valid wherever the folder is mounted.
fn reopened(folder: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()))
}

fn overlay(over: &Path, memory: &Path) -> Result<()> {
    ensure!(
        over.is_dir(),
        "{} is missing: every distribution has it, create an empty one",
        over.display()
    );
    let own = memory.join(over.to_string_lossy().trim_start_matches('/').replace('/', "-"));
    let (upper, work) = (own.join("upper"), own.join("work"));
    for folder in [&upper, &work] {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        over.display(),
        upper.display(),
        work.display()
    );
    let options = CString::new(options).context("a mount option holds a zero byte")?;
    mount(
        "overlay",
        over,
        "overlay",
        MountFlags::empty(),
        Some(options.as_c_str()),
    )
    .with_context(|| format!("cannot mount an overlay over {}", over.display()))
}

fn is_overlay(folder: &Path) -> bool {
    const OVERLAYFS_MAGIC: i64 = 0x794c_7630;
    rustix::fs::statfs(folder).is_ok_and(|found| i128::from(found.f_type) == i128::from(OVERLAYFS_MAGIC))
}

fn bind(from: &Path, to: &Path) -> Result<()> {
    mount_bind(from, to).with_context(|| format!("cannot bind {} to {}", from.display(), to.display()))
}

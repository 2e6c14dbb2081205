//! `vgpu-kubelet-plugin soft-gpu`: puts the software GPU on a node that has none, for the chart's `softGpu.gpus`. It runs as an
//! init container of the plugin, from an image of its own that has the software GPU's libraries too.
//!
//! ```text
//!  /sys, the node's root ──► refuse: an NVIDIA GPU or driver
//!  the image's libraries ──► DRIVER_ROOT/usr/lib/<architecture>   where the plugin finds them like a driver's
//!  --gpus, the node's name ──► STATE/profile, STATE/machine-id      read by the first process that uses the folder
//! ```
//!
//! How it fails: with one line and exit status 1; kubelet runs it again. It refuses before it writes anything. A run that ends
//! between two files is completed by the next one. Files are replaced atomically and only if they differ, so it may run while
//! pods use them.

use clap::Parser;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use vgpu_abi::paths::{LIBCUDA, LIBNVIDIA_ML};
use vgpu_find_driver::Search;
use vgpu_node::files::{self, Failed, failed};
use vgpu_node::gpus::nvidia_gpus;

/// The first argument.
pub const ARGUMENT: &str = "soft-gpu";

const LIBRARIES: &str = concat!("usr/lib/", vgpu_abi::arch!(triplet));
/// Where drivers are looked for on the node: the distribution's, and the GPU Operator's.
const DRIVER_ROOTS: [&str; 2] = ["", "run/nvidia/driver"];
/// The file that a state has once it is set up.
const IS_SET_UP: &str = "gpus";
const PROFILE: &str = "profile";
/// How many GPUs a profile without the line `gpus = N` describes.
const DEFAULT_GPUS: u32 = 2;

/// Puts the software GPU on this node; refuses where an NVIDIA GPU or driver is.
#[derive(Debug, Parser)]
#[command(name = "vgpu-kubelet-plugin soft-gpu")]
struct Flags {
    /// How many GPUs
    #[arg(long)]
    gpus: u32,
    /// Folder with the software GPU's libraries
    #[arg(long, default_value = "/opt/soft-gpu")]
    from: PathBuf,
    /// Folder that becomes the driver root
    #[arg(long)]
    driver_root: PathBuf,
    /// Folder of the GPUs' state
    #[arg(long)]
    state: PathBuf,
    /// The node's root folder, which is only read
    #[arg(long)]
    node_root: PathBuf,
    /// The kernel's description of devices; another folder only in tests
    #[arg(long, default_value = "/sys")]
    sys: PathBuf,
    /// Name of the node; GPUs of two nodes have different UUIDs
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
}

/// Why there is no software GPU.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(
        "softGpu.gpus={gpus}, and this node has NVIDIA {what}: software GPUs are only for nodes without. Set softGpu.gpus to 0 and \
         driverRoot to the driver's folder, or keep the plugin off this node (plugin.nodeSelector, plugin.affinity)"
    )]
    IsReal { gpus: u32, what: String },
    #[error(
        "softGpu.gpus={gpus}, and the state in {} was set up with {was} GPUs. Set softGpu.gpus={was}, or delete the pods with a \
         share on this node and then that folder",
        state.display()
    )]
    OtherNumber { gpus: u32, was: u32, state: PathBuf },
    #[error(transparent)]
    File(#[from] Failed),
}

/// Runs `vgpu-kubelet-plugin soft-gpu`. `arguments` are those after [`ARGUMENT`].
#[must_use]
pub fn main(arguments: &[OsString]) -> ExitCode {
    let name = OsString::from(format!("vgpu-kubelet-plugin {ARGUMENT}"));
    let flags = Flags::parse_from(std::iter::once(&name).chain(arguments));
    match install(&flags) {
        Ok(()) => {
            println!(
                "{} software GPUs are on this node, in {} and {}: nothing computes on them",
                flags.gpus,
                flags.driver_root.display(),
                flags.state.display()
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn install(flags: &Flags) -> Result<(), Error> {
    let real = real_gpu(flags);
    real.map_or(Ok(()), |what| Err(Error::IsReal { gpus: flags.gpus, what }))?;
    let profile = profile(flags)?;
    let libraries = flags.driver_root.join(LIBRARIES);
    make(&libraries, 0o755)?;
    for name in [LIBCUDA, LIBNVIDIA_ML] {
        let from = flags.from.join(name);
        let bytes = fs::read(&from).map_err(failed("read", &from))?;
        write(&libraries.join(name), &bytes, 0o755)?;
    }
    // Programs of all users keep files in it.
    make(&flags.state, 0o1777)?;
    if let Some(text) = profile {
        write(&flags.state.join(PROFILE), text.as_bytes(), 0o644)?;
    }
    write(&flags.state.join("machine-id"), flags.node_name.as_bytes(), 0o644)?;
    Ok(())
}

/// Names the NVIDIA GPUs of this node, or else its driver; None if it has neither. GPUs that the kernel keeps for
/// virtual machines are included.
fn real_gpu(flags: &Flags) -> Option<String> {
    let gpus: Vec<String> = nvidia_gpus(&flags.sys).into_iter().map(|gpu| gpu.address).collect();
    if !gpus.is_empty() {
        return Some(format!("GPUs ({})", gpus.join(", ")));
    }
    DRIVER_ROOTS.iter().find_map(|below| {
        let root = flags.node_root.join(below);
        let found = vgpu_find_driver::libraries(&mut Search::new(&root), &[], LIBCUDA);
        let library = Path::new("/").join(below).join(&found.first()?.file);
        Some(format!("drivers ({})", library.display()))
    })
}

/// The profile to write; None if it is written already.
fn profile(flags: &Flags) -> Result<Option<String>, Error> {
    let is_set_up = flags.state.join(IS_SET_UP).exists();
    let path = flags.state.join(PROFILE);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        text => Some(text.map_err(failed("read", &path))?),
    };
    let was = text.as_deref().map_or(DEFAULT_GPUS, gpus_of);
    if was == flags.gpus && (is_set_up || text.is_some()) {
        return Ok(None);
    }
    match is_set_up {
        true => Err(Error::OtherNumber {
            gpus: flags.gpus,
            was,
            state: flags.state.clone(),
        }),
        false => Ok(Some(format!("gpus = {}\n", flags.gpus))),
    }
}

/// How many GPUs a profile describes.
fn gpus_of(profile: &str) -> u32 {
    let values = profile.lines().filter_map(|line| line.split_once('='));
    let mut gpus = values.filter(|(key, _)| key.trim() == "gpus");
    gpus.next()
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(DEFAULT_GPUS)
}

fn make(folder: &Path, mode: u32) -> Result<(), Failed> {
    fs::create_dir_all(folder).map_err(failed("create", folder))?;
    let opened = fs::set_permissions(folder, fs::Permissions::from_mode(mode));
    opened.map_err(failed("set the mode of", folder))
}

/// Writes a file unless it has these bytes: programs may have it mapped, and the search for the driver is cached.
fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Failed> {
    match fs::read(path) {
        Ok(known) if known == bytes => Ok(()),
        _ => files::replace(path, bytes, mode).map_err(failed("write", path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    fn flags(at: &Path, gpus: u32) -> Flags {
        let argument = |name: &str, folder: &str| format!("--{name}={}", at.join(folder).display());
        Flags::parse_from([
            ARGUMENT.to_owned(),
            format!("--gpus={gpus}"),
            argument("from", "image"),
            argument("driver-root", "node/var/lib/soft-gpu/driver"),
            argument("state", "node/var/lib/soft-gpu/state"),
            argument("node-root", "node"),
            argument("sys", "sys"),
            "--node-name=n1".to_owned(),
        ])
    }

    fn file(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }

    fn node() -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a folder");
        for name in [LIBCUDA, LIBNVIDIA_ML] {
            file(&dir.path().join("image").join(name), "one");
        }
        dir
    }

    #[test]
    fn the_plugin_finds_the_software_gpu_as_a_driver_and_a_second_run_changes_nothing() {
        let dir = node();
        let flags = flags(dir.path(), 3);
        install(&flags).expect("installed");
        let found = crate::driver::find(&flags.driver_root).expect("a driver");
        assert_eq!(fs::read_to_string(&found.libcuda).expect("read"), "one");
        let state = |name: &str| fs::read_to_string(flags.state.join(name)).expect("read");
        assert_eq!(
            (state(PROFILE).as_str(), state("machine-id").as_str()),
            ("gpus = 3\n", "n1")
        );
        let mode = fs::metadata(&flags.state).expect("a folder").mode();
        assert_eq!(mode & 0o7777, 0o1777);

        let inode = || fs::metadata(&found.libcuda).expect("a file").ino();
        let before = inode();
        install(&flags).expect("installed");
        assert_eq!(inode(), before, "programs have it mapped");
        file(&dir.path().join("image").join(LIBCUDA), "two");
        install(&flags).expect("installed");
        assert_ne!(inode(), before);
    }

    #[test]
    fn another_number_is_taken_before_a_program_has_used_the_state_and_refused_afterwards() {
        let dir = node();
        install(&flags(dir.path(), 3)).expect("installed");
        let four = flags(dir.path(), 4);
        install(&four).expect("nothing has used it");
        file(&four.state.join(IS_SET_UP), "");
        install(&four).expect("the same number");
        let said = install(&flags(dir.path(), 2)).expect_err("another number").to_string();
        assert!(
            said.contains("softGpu.gpus=2, and the state in") && said.contains("Set softGpu.gpus=4"),
            "{said}"
        );
        // A state whose profile has no line `gpus = N`.
        file(&four.state.join(PROFILE), "nvml_pids = none\n");
        install(&flags(dir.path(), DEFAULT_GPUS)).expect("the default");
        assert_eq!(
            fs::read_to_string(four.state.join(PROFILE)).expect("read"),
            "nvml_pids = none\n"
        );
    }

    #[test]
    fn a_node_with_an_nvidia_gpu_or_driver_is_refused_and_nothing_is_written() {
        type Real = fn(&Path);
        let gpu: Real = |at| {
            let device = at.join("sys/bus/pci/devices/0000:3b:00.0");
            file(&device.join("vendor"), "0x10de\n");
            file(&device.join("class"), "0x030200\n");
        };
        let driver: Real = |at| file(&at.join("node/usr/lib64").join(LIBCUDA), "");
        let operator: Real = |at| file(&at.join("node/run/nvidia/driver/usr/lib64").join(LIBCUDA), "");
        for (real, words) in [
            (gpu, "GPUs (0000:3b:00.0)"),
            (driver, "drivers (/usr/lib64/libcuda.so.1)"),
            (operator, "drivers (/run/nvidia/driver/usr/lib64/libcuda.so.1)"),
        ] {
            let dir = node();
            real(dir.path());
            let said = install(&flags(dir.path(), 2)).expect_err(words).to_string();
            assert!(said.contains(words) && said.contains("softGpu.gpus"), "{said}");
            assert!(!dir.path().join("node/var").exists(), "{words}");
        }
    }
}

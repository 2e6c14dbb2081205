//! `vgpu-kubelet-plugin check`: what the plugin sees of this machine's driver, as one line of JSON, for `make gpu-check`
//! (docs/gpu-check.md), which is its only reader. Its output may change with every release.
//!
//! ```text
//!  flags ─┬─► child      nvml: starts a child, kills it, has another one ─┐
//!         ├─► processes  enforcement: compares once ──────────────────────┼─► JSON on standard output
//!         ├─► injection  driver: files and device nodes ──────────────────┤
//!         └─► container  claimdir, edits: one share's folder, CDI spec ───┘
//! ```
//!
//! It runs the plugin's own code, needs no kubelet, no API server and no claim. Only `container` writes files, below the
//! folder that it is given.
//!
//! How it fails: with an error in one line and exit status 1. It waits no longer than its few questions to NVML may
//! take (`crate::nvml`).

mod child;
mod container;
mod injection;

use crate::driver::Root;
use crate::enforcement::{Processes, ShareFiles, compare_share};
use crate::nvml::{GpuDriver as _, Nvml};
use clap::{Parser, Subcommand};
use serde::Serialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use vgpu_api::gpu_memory;
use vgpu_node::gpus::MemorySizes;

/// The first argument.
pub const ARGUMENT: &str = "check";

/// Prints what the plugin sees of this machine's driver, as JSON, for `make gpu-check`.
#[derive(Debug, Parser)]
#[command(name = "vgpu-kubelet-plugin check")]
struct Flags {
    /// Folder of NVIDIA's driver
    #[arg(long, default_value = "/")]
    driver_root: PathBuf,
    /// Size of a product's memory, of which the driver has no figure
    #[arg(long, value_name = "PRODUCT=QUANTITY")]
    gpu_memory: Vec<String>,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The process with NVML: the GPUs that it lists, how long that takes, its memory, and that another one replaces it
    Child,
    /// The processes on a GPU, and one share compared with them
    Processes {
        /// The GPU's UUID
        #[arg(long)]
        gpu: String,
        /// Folder with the share's limits and ledger
        #[arg(long)]
        share: PathBuf,
        /// The tmpfs by which the share's mount namespaces are recognised; without it processes have no share
        #[arg(long)]
        tmpfs: Option<PathBuf>,
    },
    /// The files and device nodes that containers get
    Injection {
        /// State folder of the software GPU, if the driver is that one
        #[arg(long)]
        soft_gpu_state: Option<PathBuf>,
    },
    /// Makes the folder of one share and prints the CDI spec of a container with it
    Container {
        /// The GPU's UUID
        #[arg(long)]
        gpu: String,
        /// The share's memory in MiB
        #[arg(long)]
        memory: u64,
        /// Folder with libvgpu.so, libvgpu-preload.so, vgpu-cdi-hook and vgpu-driver-limit
        #[arg(long)]
        library_dir: PathBuf,
        /// Folder for the share
        #[arg(long)]
        folder: PathBuf,
        /// State folder of the software GPU, if the driver is that one
        #[arg(long)]
        soft_gpu_state: Option<PathBuf>,
    },
}

/// Runs the check. `arguments` are those after [`ARGUMENT`].
#[must_use]
pub fn main(arguments: &[OsString]) -> ExitCode {
    let name = OsString::from(format!("vgpu-kubelet-plugin {ARGUMENT}"));
    let flags = Flags::parse_from(std::iter::once(&name).chain(arguments));
    match run(flags) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("vgpu-kubelet-plugin {ARGUMENT}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: Flags) -> Result<String, String> {
    let sizes = gpu_memory::parse_all(flags.gpu_memory.iter().map(String::as_str));
    let sizes = MemorySizes(sizes.map_err(|error| format!("--gpu-memory {error}"))?);
    let nvml = Nvml::new(Path::new("/proc/self/exe"), &flags.driver_root, &sizes);
    match flags.what {
        What::Child => json(&child::check(&nvml)?),
        What::Processes { gpu, share, tmpfs } => {
            let files = ShareFiles { folder: share, tmpfs };
            let memory = || nvml.sample(false).memory(&gpu);
            json(&compare_share(memory, &Processes::of_node(None), &gpu, &files)?)
        }
        What::Injection { soft_gpu_state } => json(&injection::check(&root(flags.driver_root, soft_gpu_state), &nvml)?),
        What::Container {
            gpu,
            memory,
            library_dir,
            folder,
            soft_gpu_state,
        } => {
            let memory = memory.checked_mul(1 << 20).ok_or("--memory: more than 64 bits")?;
            let wanted = container::Wanted {
                gpu,
                memory,
                library: library_dir,
                folder,
            };
            json(&container::check(
                &root(flags.driver_root, soft_gpu_state),
                &nvml,
                &wanted,
                true,
            )?)
        }
    }
}

fn root(folder: PathBuf, soft_gpu_state: Option<PathBuf>) -> Root {
    Root {
        here: folder.clone(),
        host: folder,
        sys: "/sys".into(),
        proc: "/proc".into(),
        soft_gpu_state,
    }
}

fn json(found: &impl Serialize) -> Result<String, String> {
    serde_json::to_string(found).map_err(|error| error.to_string())
}

//! `vgpu-bench`: the cluster's and the controller's parts of `make bench`.
//!
//! ```text
//! cluster/node.rs      a node's start, a pod's start and a Prepare
//! cluster/burst.rs     many pods at once on hand-made nodes (fleet.rs): kube-scheduler alone and with vgpu-controller,
//!                      in turn, timed by one watch (bound.rs)
//! cluster/memory.rs    vgpu-controller's memory in a large cluster
//! cluster/usage.rs     what VgpuNodes cost, and how long `vgpu top`, `explain` and `doctor` take
//! cluster/deployed.rs  vgpu-controller as the chart runs it: its memory, its CPU time, its own metrics
//! ```
//! The programs in `bin/` need no cluster, except those that these parts run on the node; plugin.rs and resident.rs
//! are parts of several of them. run.py with client.c measures the library's overhead.
//!
//! Each part has a cluster of its own, which is always removed afterwards. No time is asserted: figures differ by
//! machine. Anything that makes a figure meaningless is an error: a pod that is never bound, or a claim that something
//! else allocated.
#![forbid(unsafe_code)]

mod cluster;
mod common;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use vgpu_e2e::prepared::Prepared;
use vgpu_e2e::{cli, interrupt, patience, preflight};

use cluster::{burst, memory, node, usage};

#[derive(Debug, Parser)]
#[command(name = "vgpu-bench", about = "Measures dra-driver-vgpu on a cluster of this machine")]
struct Arguments {
    /// The cluster's name.
    #[arg(long, global = true, env = "CLUSTER", default_value = "bench")]
    cluster: String,
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Measures a node's start, a pod's start and a Prepare.
    Node {
        /// The program bench-prepare.
        #[arg(long)]
        prepare: PathBuf,
    },
    /// Measures the start of pods translated from another system, and the webhook.
    Translate {
        /// The program bench-webhook.
        #[arg(long)]
        webhook: PathBuf,
    },
    /// Measures how soon a quota's gate opens.
    Quota {
        /// The program bench-gates.
        #[arg(long)]
        gates: PathBuf,
    },
    /// Measures how long many pods take until the last is bound, by kube-scheduler alone and with vgpu-controller.
    Burst(burst::Size),
    /// Measures vgpu-controller's memory in a large cluster.
    Memory(memory::Size),
    /// Measures what VgpuNodes cost vgpu-controller, and the commands that read them.
    Usage(usage::Options),
}

fn main() -> ExitCode {
    let done = run(&Arguments::parse());
    interrupt::wait_if_interrupted();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vgpu-bench: {error:#}");
            ExitCode::from(cli::status(&error))
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    patience::check()?;
    let prepared = prepare()?;
    interrupt::handle()?;
    let name = &arguments.cluster;
    match &arguments.part {
        Part::Node { prepare } => node::run(name, &prepared, prepare),
        Part::Translate { webhook } => node::translate(name, &prepared, webhook),
        Part::Quota { gates } => node::quota(name, &prepared, gates),
        Part::Burst(size) => burst::run(name, &prepared, size),
        Part::Memory(size) => memory::run(name, &prepared, size),
        Part::Usage(options) => usage::run(name, &prepared, options),
    }
}

/// Prepares what a cluster is made of. It runs as the calling user first, and returns as root.
fn prepare() -> Result<Prepared> {
    if let Some(prepared) = Prepared::inherited()? {
        return Ok(prepared);
    }
    let own = std::env::current_exe().context("this program has no path")?;
    let program = own.with_file_name("vgpu-e2e");
    ensure!(
        program.exists(),
        "{} is missing: cargo build --release -p vgpu-e2e builds it",
        program.display()
    );
    preflight::check(&program, true)?;
    Prepared::make(program, &mut |text| eprintln!("{text}"))?.as_root()
}

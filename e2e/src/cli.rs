//! The command line of `vgpu-e2e`.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};

use vgpu_abi::arch;

use crate::cluster::{self, Cluster, Config, Gpu, Member};
use crate::prepared::{self, Prepared};
use crate::toolchain::{self, Toolchain, Versions};
use crate::{demo, guest, image, interrupt, layout, patience, preflight};

#[derive(Debug, Parser)]
#[command(
    name = "vgpu-e2e",
    about = "A real Kubernetes on this machine, and dra-driver-vgpu on it"
)]
pub struct Arguments {
    /// The cluster's name; each name is a separate cluster.
    #[arg(long, global = true, env = "CLUSTER", default_value = "demo")]
    cluster: String,
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the demo: a local share, then a cluster whose pods share its GPUs.
    Demo {
        /// Keep the cluster running.
        #[arg(long, env = "KEEP", value_parser = clap::builder::FalseyValueParser::new())]
        keep: bool,
        /// Also apply the file, whose pod `extra` must succeed, and print its output.
        #[arg(long, hide = true, value_name = "FILE")]
        extra: Option<PathBuf>,
    },
    /// Start a cluster that has our images, and leave it running.
    Up {
        /// Stay in the foreground; the cluster is removed when this program ends, however it ends.
        #[arg(long)]
        hold: bool,
        /// Number of nodes, 1 to 9.
        #[arg(long, default_value = "1", value_parser = cluster::parse_nodes)]
        nodes: u8,
        /// Import only the images of pods: those of the driver come from a registry.
        #[arg(long)]
        pull_driver: bool,
    },
    /// Stop the cluster, and remove leftovers of earlier runs.
    Down,
    /// Run kubectl on the cluster.
    Kubectl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run a command as root on a node.
    Exec {
        /// The node, or control-plane.
        #[arg(long, default_value = "node1")]
        node: Member,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<String>,
    },
    /// Check if a cluster can be created on this machine and name what is missing: exit status 0 or 3.
    Preflight {
        /// If sudo would ask for a password, assume that it will be given.
        #[arg(long)]
        without_asking: bool,
    },
    /// Build the tools that are not in the cache.
    Tools {
        /// The tools of `make release` instead of the cluster's; prints their folders.
        #[arg(long)]
        release: bool,
    },
    /// Build the images of this project, and print their archives' names.
    Images,
    /// Build the images of a release, and print each archive's name and the image's digest.
    ReleaseImages {
        folder: PathBuf,
        /// Also for another architecture, with the artefacts in a folder: arm64=FOLDER
        #[arg(long, value_name = "ARCHITECTURE=FOLDER", value_parser = artefacts)]
        also: Vec<(&'static str, PathBuf)>,
        #[command(flatten)]
        release: image::Release,
    },
    /// Pack everything that a cluster needs into a tar for another machine, and print its paths there as JSON.
    Payload { file: PathBuf },
    /// Run the demo and the tests of the machine in an emulated Debian, and print a transcript.
    Guest(guest::Arguments),
    #[command(hide = true)]
    Probe {
        #[arg(long)]
        inside: bool,
    },
    #[command(hide = true)]
    Keeper { state: PathBuf },
    #[command(hide = true)]
    Init { state: PathBuf, member: Member },
}

/// The exit status for this error.
#[must_use]
pub fn status(error: &anyhow::Error) -> u8 {
    if error.is::<preflight::Nowhere>() {
        preflight::STATUS
    } else {
        1
    }
}

/// Runs the command and returns the exit status.
pub fn run(arguments: Arguments) -> Result<u8> {
    patience::check()?;
    match arguments.command {
        Verb::Keeper { state } => cluster::run_keeper(state)?,
        Verb::Init { state, member } => cluster::run_init(state, member)?,
        Verb::Preflight { without_asking } => {
            Versions::chosen()?;
            preflight::check(&own_program()?, !without_asking)?;
            // Does not print the artefacts, which may not be built yet.
            println!(
                "a cluster here has {}",
                Gpu::of_this_machine(Path::new("dist"))?.describe()
            );
        }
        Verb::Probe { inside: false } => preflight::as_root()?,
        Verb::Probe { inside: true } => preflight::in_namespaces()?,
        Verb::Tools { release: true } => release_tools()?,
        Verb::Tools { release: false } => {
            let tools = Toolchain::build(&mut |text| println!("{text}"))?;
            println!(
                "Kubernetes {}, containerd {} and the other tools are in {}",
                tools.kubernetes,
                tools.containerd,
                layout::cache()?.join("tools").display()
            );
        }
        Verb::Images => {
            let images = image::all(&layout::dist()?, &mut |text| eprintln!("{text}"))?;
            for archive in images.archives {
                println!("{}", archive.display());
            }
        }
        Verb::ReleaseImages { folder, also, release } => release_images(&folder, also, &release)?,
        Verb::Payload { file } => {
            let prepared = Prepared::make(own_program()?, &mut |text| eprintln!("{text}"))?;
            let unpacked = guest::for_another_machine(&prepared, &file)?;
            println!("{}", serde_json::to_string(&unpacked)?);
        }
        Verb::Guest(arguments) => return guest::run(arguments),
        Verb::Demo { keep, extra } => demo::run(&arguments.cluster, keep, extra.as_deref())?,
        Verb::Up {
            hold,
            nodes,
            pull_driver,
        } => up(&arguments.cluster, hold, nodes, pull_driver)?,
        Verb::Down => {
            prepared::rerun_as_root()?;
            let removed = cluster::down(&arguments.cluster)?;
            match removed.len() {
                0 => println!("no cluster named {} runs, and nothing was left", arguments.cluster),
                _ => println!("removed: {}", removed.join(", ")),
            }
        }
        Verb::Kubectl { arguments: words } => return kubectl(&arguments.cluster, &words),
        Verb::Exec { node, command } => return exec(&arguments.cluster, node, &command),
    }
    Ok(0)
}

fn release_tools() -> Result<()> {
    for folder in toolchain::release_tools(&mut |text| eprintln!("{text}"))? {
        println!("{}", folder.display());
    }
    Ok(())
}

/// Parses the option `--also`.
fn artefacts(text: &str) -> Result<(&'static str, PathBuf), String> {
    let parts = text.split_once('=');
    let known =
        parts.and_then(|(name, folder)| Some((*["amd64", "arm64"].iter().find(|known| **known == name)?, folder)));
    let (name, folder) = known.ok_or("write amd64=FOLDER or arm64=FOLDER")?;
    Ok((name, folder.into()))
}

fn release_images(folder: &Path, also: Vec<(&'static str, PathBuf)>, release: &image::Release) -> Result<()> {
    let mut dists = vec![(arch!(oci), layout::dist()?)];
    for (architecture, dist) in also {
        dists.push((architecture, layout::complete(dist)?));
    }
    for image in image::release(&dists, folder, release, &mut |text| eprintln!("{text}"))? {
        println!("{} {}", image.file.display(), image.digest);
    }
    Ok(())
}

fn kubectl(name: &str, words: &[String]) -> Result<u8> {
    let cluster = Cluster::attach(name)?;
    let mut command = cluster.state().client(cluster.toolchain().program("kubectl")?);
    let status = command.args(words).stdin(Stdio::inherit()).status();
    Ok(code(status.context("cannot run kubectl")?))
}

fn exec(name: &str, node: Member, command: &[String]) -> Result<u8> {
    prepared::rerun_as_root()?;
    let cluster = Cluster::attach(name)?;
    ensure!(
        cluster.state().member(node).init().exists(),
        "{} does not run in cluster {name}",
        node.name()
    );
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let status = cluster.inside_member(node, &words).stdin(Stdio::inherit()).status();
    Ok(code(status.context("cannot run nsenter")?))
}

fn code(status: std::process::ExitStatus) -> u8 {
    status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

fn own_program() -> Result<PathBuf> {
    std::env::current_exe().context("this program has no path")
}

/// Builds everything that a cluster needs. Called as the calling user; returns as root.
fn build(say: &mut dyn FnMut(&str)) -> Result<Prepared> {
    match Prepared::inherited()? {
        Some(prepared) => Ok(prepared),
        None => {
            preflight::check(&own_program()?, true)?;
            Prepared::make(own_program()?, say)?.as_root()
        }
    }
}

fn up(name: &str, hold: bool, nodes: u8, pull_driver: bool) -> Result<()> {
    let prepared = build(&mut |text| println!("{text}"))?;
    interrupt::handle()?;
    println!(
        "Kubernetes {} on {nodes} node{} with {}",
        prepared.toolchain.kubernetes,
        if nodes == 1 { "" } else { "s" },
        prepared.gpu.describe()
    );
    let cluster = Cluster::up(Config {
        nodes,
        ..prepared.config(name)
    })?;
    for archive in &prepared.images.archives {
        if !(pull_driver && image::is_of_the_driver(archive)) {
            cluster.import(archive)?;
        }
    }
    println!("export KUBECONFIG={}", cluster.kubeconfig().display());
    if hold {
        loop {
            std::thread::park(); // a signal ends the program, and with it the cluster
        }
    }
    cluster.keep()
}

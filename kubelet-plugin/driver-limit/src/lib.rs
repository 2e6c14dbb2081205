//! vgpu-driver-limit is a createRuntime hook. It has NVIDIA's driver limit the GPU memory of a container's cgroup: the
//! second wall, behind the library in the container (docs/adr/0013-the-drivers-limit-behind-the-librarys.md).
//!
//! ```text
//!  runtime ──stdin──► state (id, pid) ──► /proc/<pid>/cgroup, mountinfo ──► hierarchy: the container's cgroup
//!                                                                              │ +dmem from the root down
//!  --claim ──► <claim>/<share>/limits ──► claim ──► records: the pod's shares ─┤
//!                                                                              ▼
//!  --nvml  ──► libnvidia-ml.so.1 ──► nvml ◄── set, then read back ──────────  apply
//! ```
//!
//! It runs on the node, in the runtime's namespaces, before any program of the container. What it sets comes from the
//! claim's files alone: a pod's author can choose neither the container's cgroup nor those.
//!
//! `probe` asks the same driver in the same way, whether it limits cgroups here at all.
//!
//! It is not part of vgpu-cdi-hook, because NVML needs a loader, and that hook is static: it runs inside root file
//! systems of any kind.
//!
//! How it fails:
//! - Without `--required`: the container starts without the driver's limit, and a file in the claim's directory says
//!   why. With it: exit status 1 and one line that names the container, the object and the remedy.
//! - Killed at any time: the runtime ends the container. The pod's record may name a share that did not start, so the
//!   pod's limit may be too large by that share. The library and the ledger bound the claim all the same.
//! - Two at once, in one pod: they take turns, by a lock on the folder of records.
//! - Run again, for a restarted container or for another claim: the record has the container's shares so far, and the sum
//!   is set again. Records of pods without a cgroup are removed.
//! - Files of another release, damaged ones, a driver that answers another limit than was set: refused, never guessed.
#![deny(unsafe_code)]

mod apply;
mod arguments;
mod claim;
mod code;
mod hierarchy;
mod namespaces;
mod nvml;
mod probe;
mod records;
mod report;
mod state;

use std::{ffi::OsString, io::Read, path::PathBuf};

use arguments::{Command, Enter, Node, Probe, Set};
use hierarchy::Hierarchy;
use nvml::Nvml;
use records::Records;
use state::Container;

/// Why the driver's limit was not set.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Arguments(#[from] arguments::Error),
    #[error(transparent)]
    State(#[from] state::Error),
    #[error("container {id}: {source}")]
    Container { id: String, source: Reason },
    #[error(transparent)]
    Node(Reason),
}

/// What is in the way.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    #[error(transparent)]
    Hierarchy(#[from] hierarchy::Error),
    #[error(transparent)]
    Claim(#[from] claim::Error),
    #[error(transparent)]
    Records(#[from] records::Error),
    #[error(transparent)]
    Nvml(#[from] nvml::Error),
    #[error(transparent)]
    Apply(#[from] apply::Error),
    #[error(transparent)]
    Namespaces(#[from] namespaces::Error),
    #[error(transparent)]
    Probe(#[from] probe::Error),
}

/// Runs the program and returns its standard output.
///
/// # Errors
/// The arguments are wrong, or the limit is required and was not set.
pub fn run(arguments: impl Iterator<Item = OsString>, stdin: impl Read) -> Result<String, Error> {
    match Command::parse(arguments)? {
        Command::Help => Ok(arguments::HELP.to_owned()),
        Command::Version => Ok(format!("vgpu-driver-limit {}\n", env!("CARGO_PKG_VERSION"))),
        Command::Probe(probe) => run_probe(&probe).map_err(Error::Node),
        Command::Enter(enter) => run_in(&enter).map_err(Error::Node),
        Command::Set(set) => match set_limits(&set, stdin) {
            Err(error) if !set.is_required => {
                report::write(&set.claim, &error);
                Ok(String::new())
            }
            done => done.map(|()| String::new()),
        },
    }
}

fn set_limits(set: &Set, stdin: impl Read) -> Result<(), Error> {
    let container = Container::read(stdin)?;
    let failed = |source| Error::Container {
        id: container.id.clone(),
        source,
    };
    set_for(set, &container).map_err(failed)
}

fn set_for(set: &Set, container: &Container) -> Result<(), Reason> {
    let Node { nvml, soft_gpu, .. } = &set.node;
    let hierarchy = Hierarchy::read(&set.node.proc, &set.node.cgroups)?;
    let leaf = hierarchy.container(container.pid)?;
    let shares = claim::shares(&set.claim)?;
    // Loaded before anything is changed: on a driver without limits nothing is.
    let driver = Nvml::load(nvml, soft_gpu.as_deref())?;
    let records = Records::lock(&set.records)?;
    records.remove_ended(|cgroup| hierarchy.folder(cgroup).is_dir());
    let record = records.add(&leaf, &container.id, &shares)?;
    hierarchy.enable_controllers(&leaf)?;
    let folder = |cgroup: &str| -> PathBuf { hierarchy.folder(cgroup) };
    Ok(apply::apply(&driver, &record.limits(&leaf), folder)?)
}

fn run_probe(probe: &Probe) -> Result<String, Reason> {
    let Node {
        nvml,
        soft_gpu,
        cgroups,
        proc,
    } = &probe.node;
    let hierarchy = Hierarchy::read(proc, cgroups)?;
    let driver = Nvml::load(nvml, soft_gpu.as_deref())?;
    let way = probe::probe(&hierarchy, &driver, &probe.gpu)?;
    Ok(format!("{}\n", way.name()))
}

/// Returns only if the program cannot be run.
fn run_in(enter: &Enter) -> Result<String, Reason> {
    let Err(error) = namespaces::run(enter.pid, &enter.program, &enter.arguments);
    Err(error.into())
}

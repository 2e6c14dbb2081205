//! vgpu-driver-limit is a createRuntime hook. It has NVIDIA's driver limit the GPU memory of a container's cgroup: the
//! second wall, behind the library in the container (docs/adr/0013-the-drivers-limit-behind-the-librarys.md).
//!
//! ```text
//!  runtime ──stdin──► state (id, pid) ──► /proc/<pid>/cgroup, mountinfo ──► hierarchy: the container's cgroup
//!                                                                              │ +dmem, +misc from the root down
//!  --claim ──► <claim>/<share>/limits ──► claim ──► records: the pod's shares ─┤
//!                                                                              ▼
//!  --nvml  ──► libnvidia-ml.so.1 ──► nvml ◄── serve ◄─ lines ─ remote ◄────── apply: set, then read back
//!                                     (a child process)
//! ```
//!
//! It runs on the node, in the runtime's namespaces, before any program of the container. What it sets comes from the
//! claim's files alone: a pod's author can choose neither the container's cgroup nor those.
//!
//! | command | who runs it | what it does |
//! |---|---|---|
//! | `set` | the runtime, for a claim with a limit | limits the container's cgroup and its pod's |
//! | `lift` | the runtime, for a claim without one | removes the pod's limit, and notes that in its record |
//! | `check` | the plugin | compares the driver's limits with all records, and sets them again where they differ |
//! | `probe` | the plugin | asks whether the driver limits cgroups here at all, on each GPU |
//! | `enter` | the plugin | runs `check` or `probe` where hooks run |
//!
//! It is not part of vgpu-cdi-hook, because NVML needs a loader, and that hook is static: it runs inside root file
//! systems of any kind.
//!
//! How it fails:
//! - Without `--required`: the container starts, a file in the claim's directory says why, and neither it nor its pod has a limit
//!   any more, which would lack the claim's shares. With it: exit status 1 and one line that names the
//!   container, the object and the remedy, on stderr and in the claim's directory.
//! - The driver hangs: it is asked in a child process, and given up on (`clock`). Nobody waits longer for the lock either. The
//!   exit status tells that from a refusal (`vgpu_node::driver_limit`).
//! - Killed at any time: the runtime ends the container. The pod's record may name a share that did not start, so the
//!   pod's limit may be too large by that share. The library and the ledger bound the claim all the same.
//! - Two at once, in one pod: they take turns, by a lock beside its record.
//! - Run again, for a restarted container or for another claim: the record has the container's shares so far, and the sum
//!   is set again. Records of pods without a cgroup are removed.
//! - Files of another release, damaged ones, a driver that answers another limit than was set: refused, never guessed.
#![deny(unsafe_code)]

mod apply;
mod arguments;
mod check;
mod claim;
mod clock;
mod code;
mod error;
mod hierarchy;
mod namespaces;
mod nvml;
mod probe;
mod records;
mod remote;
mod report;
mod serve;
mod start;
mod state;
mod strangers;

use std::{
    ffi::OsString,
    io::{self, Read},
    path::Path,
};

use arguments::{Check, Command, Enter, Lift, Probe, Set};
use clock::Clock;
use hierarchy::Hierarchy;
use serde::Serialize;
use start::Start;
use state::Container;

pub use error::{Error, Reason};

/// Runs the program and returns its standard output.
///
/// # Errors
/// The arguments are wrong, the limit is required and was not set, or nothing could be probed or checked.
pub fn run(arguments: impl Iterator<Item = OsString>, stdin: impl Read) -> Result<String, Error> {
    let arguments: Vec<OsString> = arguments.collect();
    let command = match (Command::parse(arguments.iter().cloned()), Command::hook(&arguments)) {
        (Err(error), Some(hook)) => return reported(hook.claim.as_deref(), hook.is_required, Err(error.into())),
        (command, _) => command?,
    };
    match command {
        Command::Help => Ok(arguments::HELP.to_owned()),
        Command::Version => Ok(format!("vgpu-driver-limit {}\n", env!("CARGO_PKG_VERSION"))),
        Command::Probe(probe) => run_probe(&probe, &Clock::of_probe(&probe.node)).map_err(Error::Node),
        Command::Check(check) => run_check(&check, &Clock::of_check(&check.node)).map_err(Error::Node),
        Command::Enter(enter) => run_in(&enter).map_err(Error::Node),
        Command::Serve(serve) => {
            let done = serve::run(&serve, io::BufReader::new(stdin), io::stdout());
            done.map(|()| String::new()).map_err(Error::Serve)
        }
        Command::Set(set) => {
            let clock = Clock::of_hook(&set.node);
            let done = for_container(stdin, |container| run_set(&set, container, &clock));
            reported(Some(&set.claim), set.is_required, done)
        }
        Command::Lift(lift) => {
            let clock = Clock::of_hook(&lift.node);
            let done = for_container(stdin, |container| run_lift(&lift, container, &clock));
            reported(Some(&lift.claim), false, done)
        }
    }
}

/// Does something for the container of the state, and names it in an error.
fn for_container(stdin: impl Read, work: impl Fn(&Container) -> Result<(), Reason>) -> Result<(), Error> {
    let container = Container::read(stdin)?;
    work(&container).map_err(|source| Error::Container {
        id: container.id,
        source,
    })
}

/// The output of a hook. Reports an error in the claim's directory. Unless the limit is required, the container starts all
/// the same.
fn reported(claim: Option<&Path>, is_required: bool, done: Result<(), Error>) -> Result<String, Error> {
    match done {
        Err(error) if !is_required => report::write(claim, &error),
        done => done.inspect_err(|error| report::not_started(claim, error))?,
    }
    Ok(String::new())
}

fn run_set(set: &Set, container: &Container, clock: &Clock) -> Result<(), Reason> {
    let hierarchy = Hierarchy::read(&set.node.proc, &set.node.cgroups)?;
    let leaf = hierarchy.container(container.pid)?;
    let start = Start {
        hierarchy: &hierarchy,
        leaf,
        id: &container.id,
        records: &set.records,
        clock,
    };
    start.set(claim::shares(&set.claim), &set.node, set.is_required)
}

fn run_lift(lift: &Lift, container: &Container, clock: &Clock) -> Result<(), Reason> {
    let hierarchy = Hierarchy::read(&lift.node.proc, &lift.node.cgroups)?;
    let leaf = hierarchy.container(container.pid)?;
    let start = Start {
        hierarchy: &hierarchy,
        leaf,
        id: &container.id,
        records: &lift.records,
        clock,
    };
    start.lift(&lift.gpus, &lift.node)
}

fn run_check(check: &Check, clock: &Clock) -> Result<String, Reason> {
    let hierarchy = Hierarchy::read(&check.node.proc, &check.node.cgroups)?;
    records::remove_ended(&check.records, |cgroup| hierarchy.exists(cgroup));
    if records::all(&check.records).is_empty() {
        return Ok(String::new());
    }
    let driver = clock.load_alone(&check.node)?;
    let readings = check::Check::new(&hierarchy, &driver).run(&check.records, clock.answered);
    Ok(readings.iter().map(line).collect())
}

fn run_probe(probe: &Probe, clock: &Clock) -> Result<String, Reason> {
    let hierarchy = Hierarchy::read(&probe.node.proc, &probe.node.cgroups)?;
    let answers = probe::probe(&hierarchy, &probe.gpus, || clock.load_alone(&probe.node))?;
    Ok(answers.iter().map(line).collect())
}

/// An answer to the plugin.
fn line(answer: &impl Serialize) -> String {
    let text = serde_json::to_string(answer).unwrap_or_default();
    format!("{text}\n")
}

/// Returns only if the program cannot be run.
fn run_in(enter: &Enter) -> Result<String, Reason> {
    let Err(error) = namespaces::run(enter.pid, &enter.program, &enter.arguments);
    Err(error.into())
}

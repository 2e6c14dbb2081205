//! End-to-end tests: a real cluster with this project on it, started once and always removed.
//!
//! ```text
//! machine.rs    clusters of their own: two at once, with decoys, killed in every way, nothing left
//! example.rs    the documented examples
//! attacks.rs    attacks of tenants on their limits: held, lifted, or refused with an event
//! bad_input.rs  users' mistakes, and where users read about them
//! dialects.rs   manifests of other systems, unchanged
//! explain.rs    why a pod waits, by the controller and by vgpu explain
//! controller.rs controller mode: the steps of one pod, refusals, the leader killed
//! storm.rs      controller mode with many pods, and controllers that are killed
//! adversity.rs  controller mode when others misbehave: leaders, third parties, nodes, the API server
//! elsewhere.rs  controller mode and other constraints of pods: CPU, labels, taints, other drivers
//! mistakes.rs   users' mistakes in controller mode, and that other pods are not affected
//! modes.rs      nodes that move from the controller to kube-scheduler and back under load
//! translate.rs  pods of other systems and the webhook, while replicas and certificates are replaced
//! platforms.rs the values files of every platform at a real API server, without creating anything
//! people.rs     what the 51 mistakes and situations of users are answered, by the files in e2e/people
//! nodes.rs      two real nodes: spread, packed, dead, back, drained, upgraded
//! kueue.rs      queues by Kueue, with VGPU_FULL_SIZE=1
//! karpenter.rs  nodes that Karpenter makes and removes, with VGPU_FULL_SIZE=1; beside.rs installs it, and Kueue
//! quota.rs      namespace quotas: who waits, who starts, while leaders end
//! containers.rs init containers, sidecars, monitors
//! autoscaler.rs the cluster autoscaler's rule for how far a node is in use
//! reallocated.rs shares that are reallocated while a former process still uses them
//! plugin_storm.rs pods created and deleted while the plugin is killed every 2 s
//! upgrades.rs   upgrade and rollback under load, and releases that never get ready
//! softgpu.rs    software GPUs that the chart puts on the node (of_chart.rs); mig.rs those in MIG mode
//! driver_limit.rs a driver that limits cgroups itself, on machines with cgroup v2 alone
//! node_faults.rs no API server, a reboot, a full disk, a replaced driver
//! truth.rs      conditions of claims, and pods that bypass the library or use a GPU without a claim
//! health.rs     faults of GPUs: taints, health in pods' status, recovery
//! privileges.rs the rights of a stolen plugin token
//! restarts.rs   kubelet, containerd and plugin restarted and killed under running pods
//! shared.rs     the clusters; fleet.rs hand-made nodes; checker.rs adds them up; processes.rs stops and adds processes
//! load.rs       pods created and deleted; plugins.rs the plugin's pods; releases.rs other releases; size.rs sizes of tests
//! ```
//! One test at a time, because they share the node's GPUs. A test that cannot run prints its name and reason and is
//! reported as ignored.
//!
//! Most of a run is waiting, so `make test` runs its parts at the same time, each in a process with its own clusters:
//! VGPU_E2E_PART names a part (`Part`), and `tests` lists its tests. Without the variable, one run has all parts.

mod adversity;
mod attacks;
mod autoscaler;
mod bad_input;
mod beside;
mod checker;
mod containers;
mod controller;
mod dialects;
mod driver_limit;
mod elsewhere;
mod example;
mod explain;
mod fleet;
mod health;
mod karpenter;
mod kueue;
mod load;
mod machine;
mod manifests;
mod mig;
mod mistakes;
mod modes;
mod node_faults;
mod nodes;
mod of_chart;
mod people;
mod platforms;
mod plugin_storm;
mod plugins;
mod privileges;
mod processes;
mod quota;
mod reallocated;
mod releases;
mod restarts;
mod shared;
mod size;
mod softgpu;
mod storm;
mod translate;
mod truth;
mod upgrades;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use libtest_mimic::{Arguments, Trial};
use vgpu_e2e::preflight::{self, Nowhere};
use vgpu_e2e::prepared::Prepared;
use vgpu_e2e::{interrupt, patience};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let tests = match wanted() {
        Ok(part) => tests(part),
        Err(error) => {
            eprintln!("{error:#}");
            return ExitCode::FAILURE;
        }
    };
    if arguments.list {
        return libtest_mimic::run(&arguments, trials(tests)).exit_code();
    }
    match prepare(&programs_beside(&arguments, &tests)) {
        Ok(prepared) => shared::provide(prepared),
        Err(error) if error.is::<Nowhere>() => {
            let reason = error.to_string().replace('\n', "; ");
            return libtest_mimic::run(&arguments, skipped(tests, &reason)).exit_code();
        }
        Err(error) => {
            eprintln!("the end-to-end tests cannot run: {error:#}");
            return ExitCode::FAILURE;
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials(tests));
    if let Err(error) = shared::end() {
        eprintln!("the cluster could not be taken down: {error:#}");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

/// Programs that tests run beside the driver, by the start of the tests' names.
const BESIDE: [(&str, &str); 3] = [
    ("kueue::", "kueue"),
    ("karpenter::", "karpenter"),
    ("karpenter::", "kwok"),
];

/// The programs beside the driver that this run needs. They take minutes to build, so short runs have none.
fn programs_beside(arguments: &Arguments, tests: &[Named]) -> Vec<&'static str> {
    let is = |test: &str, word: &String| {
        if arguments.exact {
            test == word
        } else {
            test.contains(word.as_str())
        }
    };
    let runs = |test: &str| {
        let skip = &arguments.skip;
        arguments.filter.iter().all(|word| is(test, word)) && !skip.iter().any(|word| is(test, word))
    };
    let needs = |module: &str| tests.iter().any(|(test, _)| test.starts_with(module) && runs(test));
    let wanted = BESIDE
        .into_iter()
        .filter(|(module, _)| size::is_full() && needs(module));
    wanted.map(|(_, program)| program).collect()
}

fn prepare(beside: &[&str]) -> Result<Prepared> {
    patience::check()?;
    let prepared = match Prepared::inherited()? {
        Some(prepared) => prepared,
        None => {
            let program = PathBuf::from(env!("CARGO_BIN_EXE_vgpu-e2e"));
            preflight::check(&program, true)?;
            let mut say = |text: &str| println!("{text}");
            let mut prepared = Prepared::make(program, &mut say)?;
            prepared.build_beside(beside, &mut say)?;
            prepared.as_root()?
        }
    };
    interrupt::handle()?;
    Ok(prepared)
}

fn trials(tests: Vec<Named>) -> Vec<Trial> {
    let all = tests.into_iter();
    all.map(|(name, test)| Trial::test(name, move || test().map_err(|e| format!("{e:#}").into())))
        .collect()
}

/// The tests for a machine on which no cluster can be created: each is named and reported as ignored.
fn skipped(tests: Vec<Named>, reason: &str) -> Vec<Trial> {
    let of = |(name, _): Named| {
        let reason = reason.to_owned();
        Trial::test(name.clone(), move || {
            vgpu_skip::skip(&name, &reason);
            Ok(())
        })
    };
    tests.into_iter().map(of).collect()
}

/// A test with its module's name, as in `cargo test`.
type Named = (String, fn() -> Result<()>);

/// Tests that run one after another because they share a cluster. Starting one and installing the driver takes as much
/// CPU time as eight tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The cluster on which kube-scheduler allocates.
    Scheduler,
    /// The cluster on which vgpu-controller allocates.
    Controller,
    /// The cluster whose driver lists processes.
    Observed,
    /// Quotas, on a second cluster of kube-scheduler: together with the tests of `Scheduler` they would be by far the
    /// longest part.
    Quota,
    /// The cluster whose webhook translates.
    Translating,
    /// Clusters that a test starts and removes itself. These tests compare the machine before and after.
    Machine,
    /// The cluster of kube-scheduler while nothing else runs on the machine.
    Quiet,
}

const PARTS: [(&str, Part); 7] = [
    ("machine", Part::Machine),
    ("scheduler", Part::Scheduler),
    ("controller", Part::Controller),
    ("observed", Part::Observed),
    ("quota", Part::Quota),
    ("translating", Part::Translating),
    ("quiet", Part::Quiet),
];
const PART: &str = "VGPU_E2E_PART";

/// The part of this run, or None for all.
fn wanted() -> Result<Option<Part>> {
    let name = std::env::var(PART).unwrap_or_default();
    if name.is_empty() {
        return Ok(None);
    }
    match PARTS.iter().find(|(known, _)| *known == name) {
        Some((_, part)) => Ok(Some(*part)),
        None => {
            let known = PARTS.map(|(known, _)| known).join(", ");
            bail!("{PART}={name}: write one of {known}, or unset it to run all tests")
        }
    }
}

fn tests(wanted: Option<Part>) -> Vec<Named> {
    let modules = [
        // These run before any cluster that outlives its test.
        (Part::Machine, "machine", machine::TESTS),
        (Part::Quiet, "example", example::QUIET),
        (Part::Scheduler, "example", example::TESTS),
        (Part::Scheduler, "dialects", dialects::ON_KUBE_SCHEDULER),
        (Part::Scheduler, "bad_input", bad_input::TESTS),
        (Part::Scheduler, "attacks", attacks::TESTS),
        (Part::Scheduler, "containers", containers::TESTS),
        (Part::Scheduler, "privileges", privileges::TESTS),
        (Part::Scheduler, "explain", explain::TESTS),
        (Part::Scheduler, "people", people::TESTS),
        (Part::Scheduler, "truth", truth::WITHOUT_PROCESSES),
        (Part::Scheduler, "restarts", restarts::TESTS),
        (Part::Scheduler, "health", health::TESTS),
        // These add a node to the cluster, so they are the last ones there.
        (Part::Scheduler, "nodes", nodes::ON_KUBE_SCHEDULER),
        (Part::Controller, "controller", controller::TESTS),
        (Part::Controller, "dialects", dialects::IN_CONTROLLER_MODE),
        (Part::Controller, "storm", storm::TESTS),
        (Part::Controller, "adversity", adversity::TESTS),
        (Part::Controller, "elsewhere", elsewhere::TESTS),
        (Part::Controller, "mistakes", mistakes::TESTS),
        (Part::Controller, "mig", mig::IN_CONTROLLER_MODE),
        (Part::Controller, "modes", modes::TESTS),
        (Part::Controller, "quota", quota::IN_CONTROLLER_MODE),
        (Part::Controller, "kueue", kueue::IN_CONTROLLER_MODE),
        (Part::Controller, "karpenter", karpenter::IN_CONTROLLER_MODE),
        (Part::Controller, "nodes", nodes::IN_CONTROLLER_MODE),
        (Part::Observed, "reallocated", reallocated::TESTS),
        (Part::Observed, "plugin_storm", plugin_storm::TESTS),
        (Part::Observed, "upgrades", upgrades::TESTS),
        (Part::Observed, "node_faults", node_faults::TESTS),
        (Part::Observed, "softgpu", softgpu::TESTS),
        (Part::Observed, "mig", mig::TESTS),
        (Part::Quota, "quota", quota::ON_KUBE_SCHEDULER),
        (Part::Quota, "kueue", kueue::ON_KUBE_SCHEDULER),
        (Part::Quota, "karpenter", karpenter::ON_KUBE_SCHEDULER),
        // It changes the plugin of its cluster permanently, so it is the last one there.
        (Part::Observed, "truth", truth::TESTS),
        // On a cluster of its own, where the machine can have one.
        (Part::Observed, "driver_limit", driver_limit::TESTS),
        (Part::Translating, "platforms", platforms::TESTS),
        (Part::Translating, "translate", translate::TESTS),
    ];
    let of = |(_, module, tests): (Part, &str, &[shared::Test])| -> Vec<Named> {
        let tests = tests.iter();
        tests.map(|(name, test)| (format!("{module}::{name}"), *test)).collect()
    };
    let here = modules
        .into_iter()
        .filter(|(part, ..)| wanted.is_none_or(|wanted| wanted == *part));
    here.flat_map(of).collect()
}

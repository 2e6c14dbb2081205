//! Controller mode on a node with two whole GPUs, one with instances of an administrator, and one on which claims make them.
//!
//! First claims share instances; then the chart is upgraded so that each has one whole.

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use vgpu_e2e::install;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::wait::wait;

use super::nvml::{OfChart, published};
use super::pods::{EIGHTH, HALF, allocated, claim, delete, is_skipped, memory_of, part_of, runs_with, scene, whole_of};
use crate::of_chart::{STATE, on_gpus_of_the_chart, upgrade};
use crate::plugins;
use crate::shared::{self, LIMIT, memory_enforced};

/// The GPU with instances of an administrator.
const DIVIDED: u64 = 2;
/// The GPU on which claims make instances.
const DYNAMIC: u64 = 3;
const PROFILE: &str = "gpus = 4\nnvml_pids = own\nmig = 2: 3g.40gb@0, 1g.10gb@4; 3:\n";
const VALUES: &str = "softGpu.gpus=4,mig.dynamic=instances,mig.instances=shared";

pub(super) fn in_controller_mode() -> Result<()> {
    if is_skipped("mig::whole_gpus_and_instances_are_given_beside_each_other_in_controller_mode") {
        return Ok(());
    }
    shared::in_namespace_of(shared::controlled()?, "mig", |installed, kube| {
        let of = |gpu| OfChart {
            cluster: &installed.cluster,
            state: STATE,
            first: gpu,
            count: 1,
        };
        let (divided, gpus) = (of(DIVIDED), of(DYNAMIC));
        on_gpus_of_the_chart(installed, kube, [STATE, VALUES, PROFILE], || {
            let administrators = divided.instances()?;
            scene("shares of an administrator's", || shares(kube, DIVIDED, None))?;
            scene("shares of a claim's", || shares(kube, DYNAMIC, Some(gpus)))?;
            scene("change to whole ones", || change(gpus, kube))?;
            scene("beside each other", || beside_each_other(kube))?;
            scene("last place", || last_place(gpus, kube))?;
            let left = divided.instances()?;
            ensure!(
                left == administrators,
                "NVML lists {left:?}, and before {administrators:?}"
            );
            Ok(())
        })
    })
}

/// A share of a GPU, a whole GPU, an administrator's instance and one that a claim makes.
fn beside_each_other(kube: &Kube<'_>) -> Result<()> {
    let of_gpus = json!([{"cel": {"expression": "device.attributes['dra.vgpu'].type == 'gpu'"}}]);
    let share = json!({"deviceClassName": "vgpu", "selectors": of_gpus,
        "capacity": {"requests": {"memory": "10Gi", "cores": "25"}}});
    let whole = json!({"deviceClassName": "gpu"});
    let wanted = [
        ("share", share, "gpu-"),
        ("whole", whole, "gpu-"),
        ("half", whole_of("3g.40gb", DIVIDED), "mig-"),
        ("made", whole_of("1g.10gb", DYNAMIC), "mig-of-"),
    ];
    for (name, request, _) in &wanted {
        kube.apply(&claim(name, request))?;
    }
    for (name, _, device) in &wanted {
        kube.wait_running(name, LIMIT)?;
        let given = allocated(kube, name)?;
        let is_made = given["device"]
            .as_str()
            .is_some_and(|found| found.starts_with("mig-of-"));
        let is_so = given["device"].as_str().is_some_and(|found| found.starts_with(device));
        ensure!(is_so && is_made == (*name == "made"), "{name} has {given}");
    }
    runs_with(kube, "half", HALF)?;
    runs_with(kube, "made", EIGHTH)?;
    let whole = install::published(kube)?
        .iter()
        .map(|gpu| gpu.memory)
        .max()
        .unwrap_or(0);
    let (part, all) = (memory_of(kube, "share")?, memory_of(kube, "whole")?);
    ensure!(part == 10 << 30 && all == whole, "{part} and {all} of {whole} bytes");
    delete(kube, &["share", "whole", "half", "made"])
}

/// Two claims have parts of an instance, which a third one that wants all of it then gets when they have ended. `made`: NVML's
/// list, if it is an instance that claims make.
fn shares(kube: &Kube<'_>, gpu: u64, made: Option<OfChart<'_>>) -> Result<()> {
    let part = part_of("3g.40gb", gpu, "10Gi");
    let agrees = || made.map_or(Ok(()), |gpus| gpus.agrees(kube));
    for name in ["first", "second"] {
        kube.apply(&claim(name, &part))?;
    }
    for name in ["first", "second"] {
        runs_with(kube, name, 10 << 30)?;
    }
    let (first, second) = (allocated(kube, "first")?, allocated(kube, "second")?);
    ensure!(
        first["device"] == second["device"] && first["shareID"] != second["shareID"],
        "{first} {second}"
    );
    agrees()?;
    memory_enforced(kube, "first", "True", "Library")?;
    // A GPU has two places for halves, and its administrator may have made one.
    let others = if made.is_some() {
        &["whole", "other"][..]
    } else {
        &["whole"]
    };
    for name in others {
        kube.apply(&claim(name, &whole_of("3g.40gb", gpu)))?;
    }
    let waiting = one_waits(kube, others, others.len() - 1, "3g.40gb")?;
    delete(kube, &["first"])?;
    agrees()?;
    delete(kube, &["second"])?;
    runs_with(kube, &waiting, HALF)?;
    agrees()?;
    delete(kube, others)?;
    agrees()
}

/// Waits until this many of the pods run and the remaining one says why it waits: instances of the profile are taken. Returns it.
fn one_waits(kube: &Kube<'_>, pods: &[&str], running: usize, profile: &str) -> Result<String> {
    wait(LIMIT, &format!("one of the pods {pods:?} to say why it waits"), || {
        let phases = kube.phases()?;
        let is = |name: &str, wanted: &str| phases.iter().any(|(pod, phase)| pod == name && phase == wanted);
        let waiting: Vec<&str> = pods.iter().copied().filter(|pod| is(pod, "Pending")).collect();
        let run = pods.iter().filter(|pod| is(pod, "Running")).count();
        let [waiting] = waiting[..] else {
            bail!("the pods are {phases:?}");
        };
        let events = kube.events(waiting, "")?;
        let says = |event: &String| event.contains(&format!("{profile}: ")) && event.contains(" taken");
        ensure!(
            run == running && events.iter().any(says),
            "{run} run, and {waiting} says {events:?}"
        );
        Ok(Some(waiting.to_owned()))
    })
}

/// From now on, claims have instances whole.
fn change(gpus: OfChart<'_>, kube: &Kube<'_>) -> Result<()> {
    let before = plugins::uids(gpus.cluster)?;
    upgrade(gpus.cluster, "mig.instances=whole")?;
    plugins::settle(gpus.cluster, &before)?;
    wait(LIMIT, "instances to be published whole", || {
        let devices = published(kube)?;
        let shared = devices
            .values()
            .filter(|device| device["allowMultipleAllocations"] == true);
        ensure!(
            !devices.is_empty() && shared.count() == 0,
            "{} are published",
            devices.len()
        );
        Ok(Some(()))
    })
}

/// Two claims want the last place at the same time: one gets it, and the other one when that has ended.
fn last_place(gpus: OfChart<'_>, kube: &Kube<'_>) -> Result<()> {
    let pods = ["one", "other"];
    for name in pods {
        kube.apply(&claim(name, &whole_of("7g.80gb", DYNAMIC)))?;
    }
    let waiting = one_waits(kube, &pods, 1, "7g.80gb")?;
    gpus.agrees(kube)?;
    let running = pods.into_iter().find(|pod| *pod != waiting).context("no other pod")?;
    let all = memory_of(kube, running)?;
    ensure!(all > HALF, "{running} has {all} bytes");
    delete(kube, &[running])?;
    runs_with(kube, &waiting, all)?;
    gpus.agrees(kube)?;
    delete(kube, &[&waiting])?;
    gpus.agrees(kube)
}

//! GPUs in MIG mode: a claim has an instance whole, claims share one, claims make one, and claims switch the mode.
//!
//! ```text
//! mig/by_claims.rs  claims make instances: places, drain, upgrade; killed.rs: kills between the steps
//! mig/mixed.rs      controller mode, on a node with whole GPUs, one with instances, and one on which claims make them
//! mig/nvml.rs       the instances that NVML lists, beside those of claims; pods.rs: claims and their pods
//! ```

mod by_claims;
mod killed;
mod mixed;
mod nvml;
mod pods;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use vgpu_e2e::cluster::Node;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{install, workload};

use self::pods::{EIGHTH, HALF, allocated, claim, delete, is_skipped, memory_of, part_of, runs_with, waits, whole_of};
use crate::of_chart::{STATE, on_gpus_of_the_chart};
use crate::plugins;
use crate::shared::{self, Installed, LIMIT, Test, memory_enforced};

pub(crate) const TESTS: &[Test] = &[
    ("example_mig_has_an_instance_whole", whole_instances),
    ("claims_make_instances", by_claims::in_scheduler_mode),
    ("claims_switch_mig_mode", modes),
];
pub(crate) const IN_CONTROLLER_MODE: &[Test] = &[(
    "whole_gpus_and_instances_are_given_beside_each_other_in_controller_mode",
    mixed::in_controller_mode,
)];

/// A GPU without MIG beside two instances.
fn whole_instances() -> Result<()> {
    if is_skipped("mig::example_mig_has_an_instance_whole") {
        return Ok(());
    }
    shared::in_namespace_of(shared::observed()?, "mig", |installed, kube| {
        let state = format!("{STATE}-whole");
        let profile = "gpus = 2\nnvml_pids = own\nmig = 1: 3g.40gb@0, 1g.10gb@4\n";
        let values = "softGpu.gpus=2,mig.instances=shared";
        on_gpus_of_the_chart(installed, kube, [&state, values, profile], || {
            whole(installed, kube, &state)
        })
    })
}

fn two_instances(kube: &Kube<'_>) -> Result<()> {
    wait(LIMIT, "two instances to be published", || {
        Ok((instances(kube)?.len() == 2).then_some(()))
    })
}

/// The published instances: the name and the taints of each.
fn instances(kube: &Kube<'_>) -> Result<Vec<(String, Vec<String>)>> {
    let slices = kube.get(&["resourceslices"])?;
    let all = slices["items"].as_array().cloned().unwrap_or_default();
    let devices = all
        .iter()
        .flat_map(|slice| slice["spec"]["devices"].as_array().cloned().unwrap_or_default());
    let instances = devices.filter(|device| device["attributes"]["type"]["string"] == "mig");
    let of = |device: Value| {
        let taints = device["taints"].as_array().cloned().unwrap_or_default();
        let keys = taints.iter().filter_map(|taint| taint["key"].as_str());
        let name = device["name"].as_str().unwrap_or_default().to_owned();
        (name, keys.map(str::to_owned).collect())
    };
    Ok(instances.map(of).collect())
}

/// The documented example gets the instance that is large enough, whole, and sees nothing else, beside a part of the other one.
/// One that is destroyed is tainted.
fn whole(installed: &Installed, kube: &Kube<'_>, state: &str) -> Result<()> {
    two_instances(kube)?;
    kube.apply(&workload::manifests(&install::example("mig"))?)?;
    runs_with(kube, "mig", HALF)?;
    let shares = workload::shares(kube)?;
    let of_pod = shares.iter().filter_map(|share| share.device.clone());
    let device = of_pod
        .filter(|device| device.starts_with("mig-"))
        .collect::<Vec<String>>();
    let [device] = &device[..] else {
        anyhow::bail!("{device:?}");
    };
    let of_mig = shares
        .iter()
        .find(|share| share.pod == "mig")
        .context("no claim of the pod")?;
    memory_enforced(kube, &of_mig.claim, "True", "Library")?;
    kube.apply(&claim("part", &part_of("1g.10gb", 1, "4Gi")))?;
    runs_with(kube, "part", 4 << 30)?;
    delete(kube, &["part"])?;
    // The smaller one is not large enough for a second pod.
    let second = workload::manifests(&install::example("mig"))?;
    let second = second.replace("name: mig\n  labels", "name: second\n  labels");
    kube.apply(&second)?;
    waits(kube, "second")?;
    kube.run(&["delete", "pod", "second", "--wait=false"])?;
    let state = installed.cluster.node(Node::FIRST).path_inside(state)?;
    std::fs::write(state.join("control"), "gone 1 1\n").context("cannot write the control file")?;
    wait(LIMIT, "the destroyed instance to be tainted", || {
        let all = instances(kube)?;
        let found = all.iter().find(|(name, _)| name == device);
        Ok(found
            .is_some_and(|(_, taints)| taints.contains(&"dra.vgpu/lost".to_owned()))
            .then_some(()))
    })?;
    // Delete the pod now, because the plugin that the rollback restores does not know these GPUs.
    kube.run(&["delete", "pod", "mig"]).map(drop)
}

/// One GPU whose mode claims switch.
fn modes() -> Result<()> {
    if is_skipped("mig::claims_switch_mig_mode") {
        return Ok(());
    }
    shared::in_namespace_of(shared::observed()?, "mig", |installed, kube| {
        let state = format!("{STATE}-modes");
        let values = "softGpu.gpus=1,mig.dynamic=modes";
        let profile = "gpus = 1\nnvml_pids = own\nmig_product = h100-80gb\n";
        on_gpus_of_the_chart(installed, kube, [&state, values, profile], || switched(installed, kube))
    })
}

/// The whole GPU, shares of it and an instance, each after the former ones have ended. A claim of another form waits meanwhile.
fn switched(installed: &Installed, kube: &Kube<'_>) -> Result<()> {
    wait(LIMIT, "all places of the GPU to be published", || {
        Ok((instances(kube)?.len() == 25).then_some(()))
    })?;
    let files = || -> Result<Vec<String>> {
        let folder = installed.cluster.node(Node::FIRST).path_inside("/var/lib/vgpu/mig")?;
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
        Ok(names.filter(|name| name.ends_with(".json")).collect())
    };
    let ends = || {
        wait(LIMIT, "no trace of the instance", || {
            Ok(files()?.is_empty().then_some(()))
        })
    };
    let part = |memory: &str| {
        let of_gpu = "device.attributes['dra.vgpu'].type == 'gpu'";
        json!({"deviceClassName": "vgpu", "capacity": {"requests": {"memory": memory, "cores": "25"}},
            "selectors": [{"cel": {"expression": of_gpu}}]})
    };
    kube.apply(&claim("whole", &json!({"deviceClassName": "gpu"})))?;
    kube.wait_running("whole", LIMIT)?;
    let result = allocated(kube, "whole")?;
    let names = (result["device"].as_str(), result["pool"].as_str());
    ensure!(
        names.0.is_some_and(|name| name.ends_with("-undivided"))
            && names.1.is_some_and(|pool| pool.contains("/vgpu-mig-")),
        "{result}"
    );
    kube.apply(&claim("half", &whole_of("3g.40gb", 0)))?;
    waits(kube, "half")?;
    delete(kube, &["whole"])?;
    // The pod that waited has an instance now, and shares of the GPU wait.
    runs_with(kube, "half", HALF)?;
    ensure!(
        files()?.iter().any(|name| name.ends_with(".mode.json")),
        "{:?}",
        files()?
    );
    for name in ["first", "second"] {
        kube.apply(&claim(name, &part("10Gi")))?;
    }
    waits(kube, "first")?;
    // The mode is switched off by the plugin that comes after a kill.
    plugins::kill(&installed.cluster)?;
    delete(kube, &["half"])?;
    for name in ["first", "second"] {
        kube.wait_running(name, LIMIT)?;
        ensure!(memory_of(kube, name)? == 10 << 30, "{name}");
    }
    ends()?;
    memory_enforced(kube, "first", "True", "Library")?;
    delete(kube, &["first", "second"])?;
    kube.apply(&claim("eighth", &whole_of("1g.10gb", 0)))?;
    runs_with(kube, "eighth", EIGHTH)?;
    delete(kube, &["eighth"])?;
    ends()?;
    // Records alone do not say that the mode is off: no program can use the whole GPU before.
    kube.apply(&claim("again", &json!({"deviceClassName": "gpu"})))?;
    kube.wait_running("again", LIMIT)?;
    ensure!(memory_of(kube, "again")? > HALF, "not the whole GPU");
    delete(kube, &["again"])
}

//! GPUs in MIG mode: a claim has an instance whole, claims share one, claims make one, and claims switch the mode.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use vgpu_e2e::cluster::Node;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{install, workload};

use crate::manifests::pod;
use crate::of_chart::{STATE, on_gpus_of_the_chart};
use crate::plugins;
use crate::shared::{self, Installed, LIMIT, Test, memory_enforced};

pub(crate) const TESTS: &[Test] = &[
    ("example_mig_has_an_instance_whole", whole_instances),
    ("claims_make_instances", in_scheduler_mode),
    ("claims_switch_mig_mode", modes),
];
pub(crate) const IN_CONTROLLER_MODE: &[Test] = &[("claims_share_an_instance_in_controller_mode", in_controller_mode)];

/// The memory of the larger instance.
const HALF: u64 = 40_448 << 20;
/// The memory of the smallest one.
const EIGHTH: u64 = 9_984 << 20;

/// Skips a test on a machine with a real driver. Returns true if it was skipped.
fn is_skipped(test: &str) -> bool {
    let is_real = shared::prepared().gpu.is_nvidia();
    if is_real {
        vgpu_skip::skip(test, "the init container refuses this machine, which has a real driver");
    }
    is_real
}

/// A GPU without MIG beside two instances.
fn in_controller_mode() -> Result<()> {
    if is_skipped("mig::claims_share_an_instance_in_controller_mode") {
        return Ok(());
    }
    shared::in_namespace_of(shared::controlled()?, "mig", |installed, kube| {
        let values = "softGpu.gpus=2,mig.instances=shared";
        let profile = "gpus = 2\nmig = 1: 3g.40gb@0, 1g.10gb@4\n";
        on_gpus_of_the_chart(installed, kube, [STATE, values, profile], || shares(kube))
    })
}

/// A GPU without MIG beside two instances.
fn whole_instances() -> Result<()> {
    if is_skipped("mig::example_mig_has_an_instance_whole") {
        return Ok(());
    }
    shared::in_namespace_of(shared::observed()?, "mig", |installed, kube| {
        let state = format!("{STATE}-whole");
        let profile = "gpus = 2\nnvml_pids = own\nmig = 1: 3g.40gb@0, 1g.10gb@4\n";
        on_gpus_of_the_chart(installed, kube, [&state, "softGpu.gpus=2", profile], || {
            whole(installed, kube, &state)
        })
    })
}

/// A GPU without MIG beside one in MIG mode without instances.
fn in_scheduler_mode() -> Result<()> {
    if is_skipped("mig::claims_make_instances") {
        return Ok(());
    }
    shared::in_namespace_of(shared::observed()?, "mig", |installed, kube| {
        let state = format!("{STATE}-dynamic");
        let values = "softGpu.gpus=2,mig.dynamic=instances";
        let profile = "gpus = 2\nnvml_pids = own\nmig = 1:\n";
        on_gpus_of_the_chart(installed, kube, [&state, values, profile], || made(installed, kube))
    })
}

/// A claim of this spec of a request, and a pod that has it.
fn claim(name: &str, exactly: &Value) -> String {
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}});
    let pod = pod(name, "client", &["vgpu-client", "hold"], name);
    let pod = pod.replace("resourceClaimTemplateName", "resourceClaimName");
    format!("{claim}\n---\n{pod}")
}

/// A request for a whole instance of this profile.
fn of_profile(profile: &str) -> Value {
    let expression = format!("device.attributes['dra.vgpu'].profile == '{profile}'");
    json!({"deviceClassName": "vgpu-mig", "selectors": [{"cel": {"expression": expression}}]})
}

/// Waits for a pod, and checks that its CUDA has this much memory and that it has the nodes of one instance.
fn runs_with(kube: &Kube<'_>, pod: &str, memory: u64) -> Result<()> {
    kube.wait_running(pod, LIMIT)?;
    let line: Value = serde_json::from_str(&kube.exec(pod, &["vgpu-client", "check"])?)?;
    ensure!(line["total"].as_u64() == Some(memory), "{pod}: {line}");
    let caps = kube.exec(pod, &["ls", "/dev/nvidia-caps"])?;
    ensure!(caps.split_whitespace().count() == 2, "{pod}: {caps}");
    Ok(())
}

fn delete(kube: &Kube<'_>, names: &[&str]) -> Result<()> {
    kube.run(&[&["delete", "pod"], names].concat())?;
    kube.run(&[&["delete", "resourceclaim"], names].concat()).map(drop)
}

/// Instances come with the first claim and go with the last, also while the plugin is killed.
fn made(installed: &Installed, kube: &Kube<'_>) -> Result<()> {
    wait(LIMIT, "all places of the GPU to be published", || {
        Ok((instances(kube)?.len() == 25).then_some(()))
    })?;
    let records = || -> Result<usize> {
        let folder = installed.cluster.node(Node::FIRST).path_inside("/var/lib/vgpu/mig")?;
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        Ok(files
            .filter(|file| file.path().extension().is_some_and(|end| end == "json"))
            .count())
    };
    ensure!(records()? == 0, "an instance without a claim");
    kube.apply(&claim("half", &of_profile("3g.40gb")))?;
    runs_with(kube, "half", HALF)?;
    kube.apply(&claim("eighth", &of_profile("1g.10gb")))?;
    runs_with(kube, "eighth", EIGHTH)?;
    ensure!(records()? == 2, "{} records", records()?);
    // The rest has no place for another half.
    kube.apply(&claim("second", &of_profile("3g.40gb")))?;
    wait(LIMIT, "the pod of the second half to wait", || {
        let events = kube.get(&["events", "--field-selector", "involvedObject.name=second"])?;
        Ok(events.to_string().contains("FailedScheduling").then_some(()))
    })?;
    plugins::kill(&installed.cluster)?;
    delete(kube, &["eighth"])?;
    runs_with(kube, "second", HALF)?;
    delete(kube, &["half", "second"])?;
    wait(LIMIT, "the instances to be destroyed", || {
        Ok((records()? == 0).then_some(()))
    })
}

/// Two claims have parts of an instance, which a third one that wants all of it then gets when they have ended.
fn shares(kube: &Kube<'_>) -> Result<()> {
    two_instances(kube)?;
    let part = json!({"deviceClassName": "vgpu", "capacity": {"requests": {"memory": "10Gi", "cores": "25"}},
        "selectors": of_profile("3g.40gb")["selectors"]});
    for name in ["first", "second"] {
        kube.apply(&claim(name, &part))?;
    }
    for name in ["first", "second"] {
        runs_with(kube, name, 10 << 30)?;
    }
    let device = |name: &str| -> Result<Value> {
        let claim = kube.get(&["resourceclaim", name])?;
        Ok(claim["status"]["allocation"]["devices"]["results"][0].clone())
    };
    let (first, second) = (device("first")?, device("second")?);
    ensure!(
        first["device"] == second["device"] && first["shareID"] != second["shareID"],
        "{first} {second}"
    );
    ensure!(
        first["pool"].as_str().is_some_and(|pool| pool.ends_with("/vgpu-mig")),
        "{first}"
    );
    kube.apply(&claim("whole", &of_profile("3g.40gb")))?;
    wait(
        LIMIT,
        "the pod that wants the instance whole to say why it waits",
        || {
            let events = kube.get(&["events", "--field-selector", "involvedObject.name=whole"])?;
            Ok(events.to_string().contains("mig-").then_some(()))
        },
    )?;
    delete(kube, &["first", "second"])?;
    runs_with(kube, "whole", HALF)?;
    // Delete the pod now, because the plugin that the rollback restores does not know these GPUs.
    kube.run(&["delete", "pod", "whole"]).map(drop)
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

/// The documented example gets the instance that is large enough, whole, and sees nothing else. One that is destroyed is tainted.
fn whole(installed: &Installed, kube: &Kube<'_>, state: &str) -> Result<()> {
    two_instances(kube)?;
    kube.apply(&workload::manifests(&install::example("mig"))?)?;
    kube.wait_running("mig", LIMIT)?;
    let line: Value = serde_json::from_str(&kube.exec("mig", &["vgpu-client", "check"])?)?;
    ensure!(line["total"].as_u64() == Some(HALF), "{line}");
    let caps = kube.exec("mig", &["ls", "/dev/nvidia-caps"])?;
    ensure!(caps.split_whitespace().count() == 2, "{caps}");
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
    // The smaller one is not large enough for a second pod.
    let second = workload::manifests(&install::example("mig"))?;
    let second = second.replace("name: mig\n  labels", "name: second\n  labels");
    kube.apply(&second)?;
    wait(LIMIT, "the second pod to wait for an instance", || {
        let events = kube.get(&["events", "--field-selector", "involvedObject.name=second"])?;
        Ok(events.to_string().contains("FailedScheduling").then_some(()))
    })?;
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
    let device = |claim: &str| -> Result<Value> {
        let claim = kube.get(&["resourceclaim", claim])?;
        Ok(claim["status"]["allocation"]["devices"]["results"][0].clone())
    };
    let waits = |pod: &str| {
        wait(LIMIT, "a pod of another form to wait", || {
            let events = kube.get(&["events", "--field-selector", &format!("involvedObject.name={pod}")])?;
            Ok(events.to_string().contains("FailedScheduling").then_some(()))
        })
    };
    kube.apply(&claim("whole", &json!({"deviceClassName": "gpu"})))?;
    kube.wait_running("whole", LIMIT)?;
    let result = device("whole")?;
    let names = (result["device"].as_str(), result["pool"].as_str());
    ensure!(
        names.0.is_some_and(|name| name.ends_with("-undivided"))
            && names.1.is_some_and(|pool| pool.contains("/vgpu-mig-")),
        "{result}"
    );
    kube.apply(&claim("half", &of_profile("3g.40gb")))?;
    waits("half")?;
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
    waits("first")?;
    // The mode is switched off by the plugin that comes after a kill.
    plugins::kill(&installed.cluster)?;
    delete(kube, &["half"])?;
    for name in ["first", "second"] {
        kube.wait_running(name, LIMIT)?;
        let line: Value = serde_json::from_str(&kube.exec(name, &["vgpu-client", "check"])?)?;
        ensure!(line["total"].as_u64() == Some(10 << 30), "{name}: {line}");
    }
    ends()?;
    memory_enforced(kube, "first", "True", "Library")?;
    delete(kube, &["first", "second"])?;
    kube.apply(&claim("eighth", &of_profile("1g.10gb")))?;
    runs_with(kube, "eighth", EIGHTH)?;
    // Delete it now, because the plugin that the rollback restores does not switch the mode off.
    delete(kube, &["eighth"])?;
    ends()
}

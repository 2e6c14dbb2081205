//! A driver that limits cgroups itself, on a machine with cgroup v2 alone: the software GPU as one of r615, with limits of
//! its own (`misc`), because no Debian kernel has the controller dmem (`make dmem` tests that one).

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use vgpu_e2e::cluster::{Cluster, Node, NodeHandle, SOFT_GPU_STATE};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{install, node, patience, shell};

use crate::fleet::TAKEOVER;
use crate::manifests::{config, pod_object, template};
use crate::plugins;
use crate::shared::{self, Installed, LIMIT, Test};
use crate::truth::{AROUND, LOADER, becomes, claim, event, kit, logs, scripted};

pub(crate) const TESTS: &[Test] = &[
    (
        "a_program_that_bypasses_the_library_ends_at_the_drivers_limit",
        bypassed,
    ),
    (
        "limits_outlive_restarts_and_are_set_again_where_they_were_lost",
        restarted,
    ),
    ("a_node_that_boots_again_limits_its_pods_again", booted),
    // It uninstalls the project, so it is the last one.
    ("an_uninstall_leaves_no_record_and_pods_start_without_it", uninstalled),
];

/// Bytes of the tests' shares, with the tolerance of docs/truth.md.
const HARD: u64 = (1 << 30) + (64 << 20);
const RECORDS: &str = "/run/vgpu/driver-limits";

/// Runs a test in its own namespace of the cluster whose driver limits cgroups.
fn on_such_a_node(name: &str, test: impl FnOnce(&Installed, &Kube<'_>) -> Result<()>) -> Result<()> {
    let unable = if !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        Some("the driver limits cgroup v2 alone, and this machine has v1; `make guest` runs it")
    } else if shared::prepared().gpu.is_nvidia() {
        Some("it changes the software GPU, and this machine has a real one")
    } else {
        None
    };
    if let Some(reason) = unable {
        vgpu_skip::skip(&format!("driver_limit, {name}"), reason);
        return Ok(());
    }
    shared::in_namespace_of(shared::limited()?, &format!("driver-limit-{name}"), test)
}

/// The template `t`: a share of 1 GiB that requires the driver's limit.
fn requiring() -> String {
    let config = config(&json!({"memoryEnforcement": "Require"}));
    let capacity = json!({"memory": "1Gi", "cores": "10"});
    template("t", "vgpu", capacity, &[("dra.vgpu", config)])
}

/// A pod that keeps this memory of its share. The kubelet starts its container again.
fn holding(name: &str, bytes: u64) -> Result<Value> {
    let mut pod = pod_object(name, &["vgpu-client", "hold", &bytes.to_string()], "t")?;
    pod["spec"]["restartPolicy"] = json!("Always");
    Ok(pod)
}

fn uid_of(claim: &Value) -> String {
    claim["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

/// Runs `vgpu-driver-limit check` on the node, which also sets lost limits again. Returns its answers for a claim's containers.
fn checked(cluster: &Cluster, claim_uid: &str) -> Result<Vec<Value>> {
    let (file, spec) = node::cdi_spec(cluster, claim_uid)?;
    let spec: Value = serde_json::from_str(&spec).with_context(|| format!("{file} is no JSON"))?;
    let mut hooks = spec["containerEdits"]["hooks"].as_array().into_iter().flatten();
    let hook = hooks.find(|hook| hook["hookName"] == "createRuntime");
    let hook = hook.with_context(|| format!("{file} has no hook for the driver's limit"))?;
    // `vgpu-driver-limit set --claim FOLDER --records ... --required`: the rest is what a check needs.
    let arguments = hook["args"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let arguments: Vec<&str> = arguments.skip(4).filter(|argument| *argument != "--required").collect();
    let program = hook["path"].as_str().unwrap_or_default();
    let command = [&[program, "check"], &arguments[..]].concat();
    let printed = shell::output(&mut cluster.node(Node::FIRST).inside(&command))?;
    let lines = printed.lines().map(serde_json::from_str::<Value>);
    let lines: Vec<Value> = lines.collect::<Result<_, _>>().context("a line that is no JSON")?;
    Ok(lines.into_iter().filter(|line| line["claim"] == claim_uid).collect())
}

/// Waits until the one container of a pod has the limit of its claim, and returns its cgroup.
fn limited(cluster: &Cluster, kube: &Kube<'_>, name: &str) -> Result<String> {
    let uid = uid_of(&claim(kube, name)?);
    wait(LIMIT, &format!("the driver's limit of {name}"), || {
        let lines = checked(cluster, &uid)?;
        match &lines[..] {
            [line] if line["state"] == "held" && line["hard"] == HARD => {
                Ok(Some(line["cgroup"].as_str().unwrap_or_default().to_owned()))
            }
            _ => bail!("a check says {lines:?}"),
        }
    })
}

/// The attribute `driverLimit` of every GPU.
fn attributes(kube: &Kube<'_>) -> Result<Vec<String>> {
    let slices = kube.get(&["resourceslices"])?;
    let devices = slices["items"].as_array().into_iter().flatten();
    let devices = devices.flat_map(|slice| slice["spec"]["devices"].as_array().into_iter().flatten());
    let gpus = devices.filter(|device| device["attributes"]["type"]["string"] == "gpu");
    let answers = gpus.map(|gpu| gpu["attributes"]["driverLimit"]["string"].as_str().unwrap_or("absent"));
    Ok(answers.map(str::to_owned).collect())
}

fn publishes_misc(kube: &Kube<'_>) -> Result<()> {
    wait(LIMIT, "driverLimit misc of every GPU", || {
        let found = attributes(kube)?;
        ensure!(
            !found.is_empty() && found.iter().all(|answer| answer == "misc"),
            "it is {found:?}"
        );
        Ok(Some(()))
    })
}

/// A program that loads the driver without the library gets its claim's size, and the tolerance, and nothing more.
fn ends_at_the_limit(kube: &Kube<'_>, name: &str) -> Result<()> {
    kube.apply(&scripted(name, &format!("{LOADER}{AROUND}")).to_string())?;
    // The second GiB; 2 is CUDA_ERROR_OUT_OF_MEMORY.
    logs(kube, name, "cuMemAlloc_v2: 2")
}

fn bypassed() -> Result<()> {
    on_such_a_node("bypassed", |installed, kube| {
        publishes_misc(kube)?;
        kube.apply(&format!(
            "{}{}\n---\n{}",
            requiring(),
            kit(),
            holding("holds", 512 << 20)?
        ))?;
        kube.wait_running("holds", LIMIT)?;
        limited(&installed.cluster, kube, "holds")?;
        becomes(kube, "holds", "MemoryEnforced", "True", "DriverAndLibrary")?;
        ends_at_the_limit(kube, "around")?;
        becomes(kube, "holds", "MemoryEnforced", "True", "DriverAndLibrary").map(drop)
    })
}

/// Waits until the pod's container was started again after `before` starts, and runs.
fn started_again(kube: &Kube<'_>, name: &str, before: u64) -> Result<()> {
    wait(TAKEOVER, &format!("{name} to be started again"), || {
        let found = kube.get(&["pod", name])?;
        let status = &found["status"]["containerStatuses"][0];
        let restarts = status["restartCount"].as_u64().unwrap_or(0);
        ensure!(
            restarts > before && status["ready"] == true,
            "it was started again {restarts} times"
        );
        Ok(Some(()))
    })
}

fn restarts_of(kube: &Kube<'_>, name: &str) -> Result<u64> {
    let found = kube.get(&["pod", name])?;
    let count = &found["status"]["containerStatuses"][0]["restartCount"];
    Ok(count.as_u64().unwrap_or(0))
}

fn kill_program(node: &NodeHandle<'_>, bytes: u64) -> Result<()> {
    let program = format!("^vgpu-client hold {bytes}$");
    shell::run(&mut node.inside(&["pkill", "-KILL", "-f", &program]))
}

fn restarted() -> Result<()> {
    const BYTES: u64 = 11 << 20;
    on_such_a_node("restarted", |installed, kube| {
        let cluster = &installed.cluster;
        let node = cluster.node(Node::FIRST);
        kube.apply(&format!("{}{}\n---\n{}", requiring(), kit(), holding("holds", BYTES)?))?;
        kube.wait_running("holds", LIMIT)?;
        let cgroup = limited(cluster, kube, "holds")?;
        node.restart("kubelet", true)?;
        node.restart("containerd", true)?;
        plugins::kill(cluster)?;
        plugins::settle(cluster, &[])?;
        plugins::published(installed, kube)?;
        publishes_misc(kube)?;
        ensure!(
            limited(cluster, kube, "holds")? == cgroup,
            "the container was replaced by restarts of others"
        );

        kill_program(&node, BYTES)?;
        started_again(kube, "holds", 0)?;
        ensure!(
            limited(cluster, kube, "holds")? != cgroup,
            "the new container has the old one's cgroup"
        );

        // The driver forgets all limits. The plugin notices before a check of this test can: it is the one with an event.
        fs::remove_file(node.path_inside(&format!("{SOFT_GPU_STATE}/memory-limits"))?).context("no limits")?;
        let text = event(kube, "holds", "DriverLimitSetAgain")?;
        ensure!(text.contains("set"), "{text}");
        limited(cluster, kube, "holds")?;
        ends_at_the_limit(kube, "around")
    })
}

fn booted() -> Result<()> {
    const BYTES: u64 = 13 << 20;
    on_such_a_node("booted", |installed, kube| {
        let cluster = &installed.cluster;
        let node = cluster.node(Node::FIRST);
        kube.apply(&format!("{}{}\n---\n{}", requiring(), kit(), holding("holds", BYTES)?))?;
        kube.wait_running("holds", LIMIT)?;
        limited(cluster, kube, "holds")?;
        let before = restarts_of(kube, "holds")?;
        // A driver that is loaded again has no limits.
        let table = node.path_inside(&format!("{SOFT_GPU_STATE}/memory-limits"))?;
        fs::remove_file(table).context("no limits")?;
        node.end()?;
        node.start(&shared::prepared().images.archives)?;
        plugins::settle(cluster, &[])?;
        plugins::published(installed, kube)?;
        publishes_misc(kube)?;
        started_again(kube, "holds", before)?;
        limited(cluster, kube, "holds")?;
        ends_at_the_limit(kube, "around")
    })
}

/// Returns the names in the folder of records.
fn records(node: &NodeHandle<'_>) -> Result<Vec<String>> {
    let entries = fs::read_dir(node.path_inside(RECORDS)?);
    let names = entries.into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(names.filter(|name| name.ends_with(".pod")).collect())
}

fn uninstalled() -> Result<()> {
    on_such_a_node("uninstalled", |installed, kube| {
        let cluster = &installed.cluster;
        let node = cluster.node(Node::FIRST);
        kube.apply(&format!("{}{}", requiring(), holding("holds", 512 << 20)?))?;
        kube.wait_running("holds", LIMIT)?;
        limited(cluster, kube, "holds")?;
        ensure!(records(&node)?.len() == 1, "records: {:?}", records(&node)?);
        kube.run(&["delete", "pod", "holds", &patience::timeout(LIMIT)])?;
        wait(LIMIT * 2, "the pod's record to be gone", || {
            let left = records(&node)?;
            ensure!(left.is_empty(), "records: {left:?}");
            Ok(Some(()))
        })?;
        let project = Kube::new(cluster, install::NAME);
        wait(LIMIT, "an uninstall without claims", || {
            project.helm(&["uninstall", install::NAME, "--wait"]).map(Some)
        })?;
        let plain = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain"}, "spec": {
            "dnsPolicy": "Default", "containers": [{"name": "main", "image": "dra-driver-vgpu/pause:dev"}]}});
        kube.apply(&plain.to_string())?;
        kube.wait_running("plain", LIMIT)
    })
}

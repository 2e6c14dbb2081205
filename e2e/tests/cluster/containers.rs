//! Kinds of containers that use a claim: init containers, sidecars, and monitors of a whole GPU.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use vgpu_e2e::kube::Kube;
use vgpu_e2e::wait::wait;
use vgpu_e2e::{layout, node, shell};

use crate::autoscaler::utilisation;
use crate::load::{PROVES, share};
use crate::manifests::{HOLD, pod_object};
use crate::shared::{self, Installed, LIMIT, Test};

pub(crate) const TESTS: &[Test] = &[
    ("init_container_sidecar_and_container_have_one_share", kinds),
    ("monitor_sees_whole_gpus_and_reserves_nothing", monitor),
];

const GI: u64 = 1 << 30;

/// The client's view of its share in the container: free and total bytes.
fn seen(kube: &Kube<'_>, pod: &str, container: &str) -> Result<(u64, u64)> {
    let said = kube.run(&["exec", pod, "-c", container, "--", "vgpu-client", "check"])?;
    let line: Value = serde_json::from_str(&said).context("vgpu-client gave no JSON")?;
    let number = |key: &str| line[key].as_u64().with_context(|| format!("no {key} in {line}"));
    Ok((number("free")?, number("total")?))
}

fn kinds() -> Result<()> {
    const HELD: &str = "1073741824";
    shared::in_namespace("kinds-of-containers", |installed, kube| {
        let mut pod = pod_object("kinds", &HOLD, "load")?;
        let container = |name: &str, command: &[&str]| {
            let mut container = pod["spec"]["containers"][0].clone();
            (container["name"], container["command"]) = (json!(name), json!(command));
            container
        };
        let first = container("first", &["sh", "-c", PROVES]);
        let mut sidecar = container("sidecar", &["vgpu-client", "hold", HELD]);
        sidecar["restartPolicy"] = json!("Always");
        // After the sidecar has started, before it ends.
        let last = container("last", &["sh", "-c", PROVES]);
        pod["spec"]["initContainers"] = json!([first, sidecar, last]);
        kube.apply(&format!("{}{pod}", share()))?;
        kube.wait_running("kinds", LIMIT)?;
        let shared_with_the_sidecar = || {
            for container in ["main", "sidecar"] {
                wait(LIMIT, &format!("{container} to see what the sidecar holds"), || {
                    let seen = seen(kube, "kinds", container)?;
                    ensure!(seen == (GI, 2 * GI), "it sees {seen:?}");
                    Ok(Some(()))
                })?;
            }
            Ok::<_, anyhow::Error>(())
        };
        shared_with_the_sidecar()?;
        reads_its_metadata(kube, "kinds")?;
        // A restarted sidecar gets its memory again, because its previous memory was freed.
        let kill = ["pkill", "-KILL", "-f", &format!("^vgpu-client hold {HELD}$")];
        shell::run(&mut installed.cluster.node(vgpu_e2e::cluster::Node::FIRST).inside(&kill))?;
        wait(LIMIT, "the sidecar to be started again", || {
            let found = kube.get(&["pod", "kinds"])?;
            let status = found["status"]["initContainerStatuses"]
                .as_array()
                .and_then(|all| all.get(1))
                .cloned();
            let status = status.context("no status of the sidecar")?;
            Ok((status["restartCount"] == 1 && status["ready"] == true).then_some(()))
        })?;
        shared_with_the_sidecar()
    })
}

/// Runs the program of docs/using.md that reads the metadata of claim `gpu`, made from a template, in a container: it prints
/// what the share is.
fn reads_its_metadata(kube: &Kube<'_>, pod: &str) -> Result<()> {
    let document = std::fs::read_to_string(layout::workspace().join("docs/using.md"))?;
    let program = document
        .split_once("```python\n")
        .and_then(|(_, rest)| rest.split_once("```"));
    let (program, _) = program.context("docs/using.md has no program in Python")?;
    let said = kube.exec(pod, &["python3", "-c", program])?;
    let check: Value = serde_json::from_str(&kube.exec(pod, &["vgpu-client", "check"])?)?;
    let uuid = check["uuid"].as_str().context("no UUID")?;
    ensure!(
        said.trim() == format!("{uuid} {} 1", 2 * GI),
        "the metadata says {said:?} of a share of {uuid} with 2Gi and 1 core"
    );
    Ok(())
}

/// Prints the total memory and the UUID of the first GPU that NVML lists.
const LOOKS: &str = "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); \
                     print(n.nvmlDeviceGetMemoryInfo(h).total, n.nvmlDeviceGetUUID(h))";

fn monitor() -> Result<()> {
    shared::in_namespace("monitor", |installed, kube| {
        kube.run(&[
            "label",
            "namespace",
            "monitor",
            "resource.kubernetes.io/admin-access=true",
        ])?;
        let request = json!({"name": "gpu", "exactly": {"deviceClassName": "vgpu-monitor", "adminAccess": true}});
        let template = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"name": "monitor"}, "spec": {"spec": {"devices": {"requests": [request]}}}});
        // All memory of each GPU is allocated before the monitor starts.
        let memory = installed.gpus.iter().map(|gpu| gpu.memory).max().unwrap_or(0);
        let whole = crate::manifests::template("whole", "vgpu", json!({"memory": memory.to_string()}), &[]);
        kube.apply(&format!("{whole}{template}"))?;
        let gpus = installed.gpus.len();
        used(kube, 0, gpus)?;
        for number in 0..gpus {
            kube.apply(&pod_object(&format!("whole-{number}"), &HOLD, "whole")?.to_string())?;
            kube.wait_running(&format!("whole-{number}"), LIMIT)?;
            used(kube, number + 1, gpus)?;
        }
        let before = held(installed)?;
        kube.apply(&pod_object("looks", &["sleep", "600"], "monitor")?.to_string())?;
        kube.wait_running("looks", LIMIT)?;
        let said = kube.exec("looks", &["python3", "-c", LOOKS])?;
        let (total, uuid) = said
            .trim()
            .split_once(' ')
            .with_context(|| format!("it said {said:?}"))?;
        // Memory that the driver reserves is not published, and no share sees it.
        let total: u64 = total.parse().with_context(|| format!("it said {said:?}"))?;
        ensure!(
            total > memory && total - memory < GI,
            "the monitor sees {total} bytes, and {memory} are published"
        );
        ensure!(
            before.contains_key(uuid),
            "the monitor sees {uuid}, and these are held: {before:?}"
        );
        let now = held(installed)?;
        ensure!(
            now.values().eq(before.values()),
            "{before:?} was held, and {now:?} is with a monitor"
        );
        used(kube, gpus, gpus)
    })
}

/// Waits until the cluster autoscaler would find that `used` of `all` devices of the node are used.
fn used(kube: &Kube<'_>, used: usize, all: usize) -> Result<()> {
    let what = format!("an autoscaler to find {used} of {all} devices in use");
    wait(LIMIT, &what, || {
        let pools = utilisation(kube)?;
        ensure!(pools.len() == 2, "the pools are {pools:?}");
        let highest = pools.into_values().fold(0.0, f64::max);
        Ok((highest == used as f64 / all as f64).then_some(()))
    })
}

fn held(installed: &Installed) -> Result<BTreeMap<String, (u64, u64)>> {
    Ok(node::held(&node::claims(&installed.cluster)?))
}

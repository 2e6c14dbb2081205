//! The examples of other systems' manifests, applied unchanged: containers see exactly what they requested.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use vgpu_e2e::install;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::workload;

use crate::shared::{self, Installed, LIMIT, Test};

pub(crate) const ON_KUBE_SCHEDULER: &[Test] = &[(
    "example_dialects_run_unchanged_with_limits_that_hold",
    on_kube_scheduler,
)];
pub(crate) const IN_CONTROLLER_MODE: &[Test] = &[("dialects_run_unchanged_in_controller_mode", in_controller_mode)];

const NAMESPACE: &str = "dialects";
const MIB: u64 = 1 << 20;

/// A row for each container: its file; its pod, or the label `app` of its pods; its name; its number of GPUs; the memory of
/// each of them, which may be a percentage of the GPU's, rounded down to 1Mi; and the variables that it gets back.
const CONTAINERS: &str = "
hami hami-part main 1 3000Mi CUDA_DEVICE_MEMORY_LIMIT_0=3000m CUDA_DEVICE_SM_LIMIT=30 NVIDIA_VISIBLE_DEVICES=void
hami hami-percent main 1 50% CUDA_DEVICE_SM_LIMIT=30
# 3000M is 2861.02 MiB.
hami hami-memory-alone main 1 2862Mi
hami hami-two-gpus main 2 10000Mi CUDA_DEVICE_MEMORY_LIMIT_0=10000m CUDA_DEVICE_MEMORY_LIMIT_1=10000m
hami hami-type main 1 3000Mi
hami hami-priority main 1 3000Mi CUDA_TASK_PRIORITY=1
hami hami-two-containers first 1 3000Mi
hami hami-two-containers second 1 6000Mi
hami hami-two-containers none 0 none
hami-whole hami-whole main 1 all
hami-deployment app=hami-deployment main 1 3000Mi
koordinator koordinator-shared main 1 50% CUDA_DEVICE_SM_LIMIT=50 NVIDIA_VISIBLE_DEVICES=void
koordinator koordinator-bytes main 1 10240Mi CUDA_DEVICE_MEMORY_LIMIT=10737418240
koordinator koordinator-two-gpus main 2 10240Mi CUDA_DEVICE_SM_LIMIT=20
koordinator-whole koordinator-whole main 1 all
volcano volcano-memory main 1 1024Mi VOLCANO_GPU_ALLOCATED=1024 NVIDIA_VISIBLE_DEVICES=void
volcano volcano-vgpu main 1 3000Mi CUDA_DEVICE_SM_LIMIT=50
volcano volcano-vgpu-percent main 1 25%
volcano-whole volcano-whole main 1 all VOLCANO_GPU_ALLOCATED=1
gpu-manager vcuda-part main 1 7680Mi NVIDIA_VISIBLE_DEVICES=void
gpu-manager vcuda-capped main 1 7680Mi
gpu-manager-whole vcuda-whole main 1 all
kai kai-fraction main 1 50% GPU_PORTION=0.50 RUNAI_NUM_OF_GPUS=0.50 NVIDIA_VISIBLE_DEVICES=void
kai kai-memory main 1 4096Mi CUDA_DEVICE_MEMORY_LIMIT=4096m
kai kai-two-gpus main 2 25% GPU_PORTION=0.25
kai kai-second-container first 0 none
kai kai-second-container second 1 4096Mi
kai kai-container first 0 none
kai kai-container second 1 8192Mi CUDA_DEVICE_MEMORY_LIMIT=8192m
";

fn rows() -> impl Iterator<Item = Vec<&'static str>> {
    let rows = CONTAINERS
        .lines()
        .filter(|row| !row.is_empty() && !row.starts_with('#'));
    rows.map(|row| row.split(' ').collect())
}

/// The bytes that a container sees; None: it requested nothing, and sees no GPU.
fn total(memory: &str, of_gpu: u64) -> Result<Option<u64>> {
    Ok(match (memory, memory.strip_suffix('%')) {
        ("none", _) => None,
        ("all", _) => Some(of_gpu),
        (_, Some(percent)) => Some(of_gpu * percent.parse::<u64>()? / 100 / MIB * MIB),
        _ => Some(install::bytes(memory).with_context(|| format!("{memory} is no size"))?),
    })
}

fn on_kube_scheduler() -> Result<()> {
    shared::in_namespace(NAMESPACE, examples)
}

fn in_controller_mode() -> Result<()> {
    shared::in_namespace_of(shared::controlled()?, NAMESPACE, examples)
}

/// Each file by itself, because together they request more than the node has.
fn examples(installed: &Installed, kube: &Kube<'_>) -> Result<()> {
    kube.run(&["label", "namespace", NAMESPACE, "dra.vgpu/translate=true"])?;
    let folder = install::example("dialects");
    let mut files: Vec<String> = std::fs::read_dir(&folder)
        .with_context(|| format!("cannot read {}", folder.display()))?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".yaml").map(str::to_owned))
        .collect();
    files.sort();
    for file in &files {
        let expected: Vec<_> = rows().filter(|row| row[0] == file).collect();
        ensure!(!expected.is_empty(), "nothing is expected of {file}.yaml");
        example(installed, kube, file, &expected).with_context(|| format!("{file}.yaml"))?;
    }
    let missing = rows().find(|row| !files.iter().any(|file| file == row[0]));
    ensure!(missing.is_none(), "no such example: {missing:?}");
    Ok(())
}

fn example(installed: &Installed, kube: &Kube<'_>, file: &str, expected: &[Vec<&str>]) -> Result<()> {
    let path = install::example("dialects").join(format!("{file}.yaml"));
    let manifests = std::fs::read_to_string(&path)?;
    kube.apply(&manifests)?;
    let pods = manifests.matches("kind: Pod\n").count() + 2 * manifests.matches("kind: Deployment\n").count();
    workload::settle(kube, pods, 0, LIMIT)?;
    let again = kube.try_apply(&manifests)?;
    ensure!(
        again.status.success(),
        "a second `kubectl apply` is refused: {}",
        again.stderr
    );
    for row in expected {
        let [_, pod, container, gpus, memory, variables @ ..] = &row[..] else {
            bail!("too few cells: {row:?}");
        };
        let total = total(memory, installed.gpus[0].memory)?;
        for pod in pods_of(kube, pod)? {
            sees(kube, &pod, container, gpus.parse()?, total)
                .with_context(|| format!("{pod}, container {container}"))?;
            let environment = kube.run(&["exec", &pod, "-c", container, "--", "env"])?;
            for variable in variables {
                ensure!(
                    environment.lines().any(|line| line == *variable),
                    "{pod}, container {container}, has no {variable}:\n{environment}"
                );
            }
        }
    }
    legacy_view(kube, file)?;
    // Deployments and ReplicaSets would create new pods, so they are deleted first. One second, because the examples
    // in Python do not handle SIGTERM, and the kubelet would wait 30 s for them.
    let owners = [
        "delete",
        "--cascade=orphan",
        "--all",
        "deployments,replicasets,resourcequotas",
    ];
    kube.run(&owners)?;
    kube.run(&["delete", "--all", "pods", "--grace-period=1"])?;
    Ok(())
}

/// The pod with that name, or the pods with that label.
fn pods_of(kube: &Kube<'_>, name: &str) -> Result<Vec<String>> {
    if !name.contains('=') {
        return Ok(vec![name.to_owned()]);
    }
    let names = kube.run(&["get", "pods", "-l", name, "-o", "jsonpath={.items[*].metadata.name}"])?;
    Ok(names.split_whitespace().map(str::to_owned).collect())
}

/// Checks the limit from the inside: all of it can be allocated, and not one granule more.
fn sees(kube: &Kube<'_>, pod: &str, container: &str, gpus: u64, total: Option<u64>) -> Result<()> {
    let said = kube.try_run(&["exec", pod, "-c", container, "--", "vgpu-client", "check"])?;
    let Some(total) = total else {
        ensure!(!said.status.success(), "sees a GPU and asked for none: {}", said.stdout);
        return Ok(());
    };
    let line: Value = serde_json::from_str(&said.stdout)
        .with_context(|| format!("vgpu-client says {}{}", said.stdout, said.stderr))?;
    if line["total"].as_u64() != Some(total) || line["devices"].as_u64() != Some(gpus) {
        bail!(
            "sees {} GPUs of {}, not {gpus} of {total}",
            line["devices"],
            line["total"]
        );
    }
    Ok(())
}

/// Annotations that pods get back: the example, the pod, the key, and the value. `{uuid}`, `{index}` and `{node}` are
/// those of the pod's GPU, and `{half}` is half of its memory.
const LEGACY_VIEW: &[(&str, &str, &str, &str)] = &[
    (
        "hami",
        "hami-part",
        "hami.io/vgpu-devices-allocated",
        "{uuid},NVIDIA,3000,30:;",
    ),
    ("hami", "hami-part", "hami.io/vgpu-node", "{node}"),
    ("hami", "hami-part", "hami.io/bind-phase", "success"),
    (
        "koordinator",
        "koordinator-shared",
        "scheduling.koordinator.sh/device-allocated",
        r#"{"gpu":[{"minor":{index},"resources":{"koordinator.sh/gpu-core":"50","koordinator.sh/gpu-memory":"{half}","koordinator.sh/gpu-memory-ratio":"50"}}]}"#,
    ),
    ("volcano", "volcano-memory", "volcano.sh/gpu-index", "{index}"),
    ("volcano", "volcano-memory", "volcano.sh/gpu-assigned", "true"),
    (
        "volcano",
        "volcano-vgpu",
        "volcano.sh/vgpu-ids-new",
        "{uuid},NVIDIA,3000,50:",
    ),
    ("volcano", "volcano-vgpu", "volcano.sh/vgpu-node", "{node}"),
    (
        "gpu-manager",
        "vcuda-part",
        "tencent.com/predicate-gpu-idx-0",
        "{index}",
    ),
    ("gpu-manager", "vcuda-part", "tencent.com/predicate-node", "{node}"),
    ("gpu-manager", "vcuda-part", "tencent.com/gpu-assigned", "true"),
    ("kai", "kai-fraction", "received-resource-type", "Fraction"),
];

/// Checks the annotations of the earlier system.
fn legacy_view(kube: &Kube<'_>, file: &str) -> Result<()> {
    for (_, pod, key, value) in LEGACY_VIEW.iter().filter(|(of, ..)| *of == file) {
        let seen: Value = serde_json::from_str(&kube.exec(pod, &["vgpu-client", "check"])?)?;
        let uuid = seen["uuid"].as_str().context("no UUID")?;
        let (node, gpu) = published(kube, uuid)?;
        let bytes = gpu["capacity"]["memory"]["value"].as_str().and_then(install::bytes);
        let half = bytes.context("no memory")? / 2;
        let half = match half % (1 << 30) {
            0 => format!("{}Gi", half >> 30),
            _ => format!("{}Mi", half >> 20),
        };
        let value = value
            .replace("{uuid}", uuid)
            .replace("{index}", &gpu["attributes"]["index"]["int"].to_string())
            .replace("{node}", &node)
            .replace("{half}", &half);
        vgpu_e2e::wait::wait(LIMIT, &format!("{key} on {pod}"), || {
            let found = kube.get(&["pod", pod])?;
            match found["metadata"]["annotations"][key].as_str() {
                Some(text) if text == value => Ok(Some(())),
                Some(text) => bail!("{pod}: {key} is {text}, not {value}"),
                None => Ok(None),
            }
        })?;
    }
    Ok(())
}

/// The node and the published device of a GPU.
fn published(kube: &Kube<'_>, uuid: &str) -> Result<(String, Value)> {
    let slices = kube.get(&["resourceslices"])?;
    for slice in slices["items"].as_array().into_iter().flatten() {
        let mut devices = slice["spec"]["devices"].as_array().into_iter().flatten();
        let attribute = |device: &Value, key: &str| device["attributes"][key]["string"].as_str().map(str::to_owned);
        let found = devices.find(|device| {
            attribute(device, "type").as_deref() == Some("gpu") && attribute(device, "uuid").as_deref() == Some(uuid)
        });
        if let Some(device) = found {
            let node = slice["spec"]["nodeName"].as_str().context("no node")?;
            return Ok((node.to_owned(), device.clone()));
        }
    }
    bail!("no ResourceSlice has GPU {uuid}")
}

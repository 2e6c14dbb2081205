//! The examples of other systems' manifests, applied as they are: what they asked for is what their containers see.

use anyhow::{Context, Result, bail};
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
const VISIBLE: &str = "NVIDIA_VISIBLE_DEVICES=void";

/// What a container has of each of its GPUs.
enum Memory {
    Mib(u64),
    /// Percent of a GPU's memory, rounded down to 1Mi.
    Percent(u64),
    All,
    /// It asked for nothing, and sees no GPU.
    None,
}

/// A container: its pod (or the label `app` of its pods), its name, its GPUs, their memory, and the variables that it gets
/// back.
type Expected = (&'static str, &'static str, u64, Memory, &'static [&'static str]);

/// An example, and what is in it.
const EXAMPLES: &[(&str, &[Expected])] = &[
    (
        "hami",
        &[
            (
                "hami-part",
                "main",
                1,
                Memory::Mib(3000),
                &["CUDA_DEVICE_MEMORY_LIMIT_0=3000m", "CUDA_DEVICE_SM_LIMIT=30", VISIBLE],
            ),
            (
                "hami-percent",
                "main",
                1,
                Memory::Percent(50),
                &["CUDA_DEVICE_SM_LIMIT=30"],
            ),
            // 3000M is 2861.02 MiB.
            ("hami-memory-alone", "main", 1, Memory::Mib(2862), &[]),
            (
                "hami-two-gpus",
                "main",
                2,
                Memory::Mib(10_000),
                &["CUDA_DEVICE_MEMORY_LIMIT_0=10000m", "CUDA_DEVICE_MEMORY_LIMIT_1=10000m"],
            ),
            ("hami-type", "main", 1, Memory::Mib(3000), &[]),
            ("hami-priority", "main", 1, Memory::Mib(3000), &["CUDA_TASK_PRIORITY=1"]),
            ("hami-two-containers", "first", 1, Memory::Mib(3000), &[]),
            ("hami-two-containers", "second", 1, Memory::Mib(6000), &[]),
            ("hami-two-containers", "none", 0, Memory::None, &[]),
        ],
    ),
    ("hami-whole", &[("hami-whole", "main", 1, Memory::All, &[])]),
    (
        "hami-deployment",
        &[("app=hami-deployment", "main", 1, Memory::Mib(3000), &[])],
    ),
    (
        "koordinator",
        &[
            (
                "koordinator-shared",
                "main",
                1,
                Memory::Percent(50),
                &["CUDA_DEVICE_SM_LIMIT=50", VISIBLE],
            ),
            (
                "koordinator-bytes",
                "main",
                1,
                Memory::Mib(10 << 10),
                &["CUDA_DEVICE_MEMORY_LIMIT=10737418240"],
            ),
            (
                "koordinator-two-gpus",
                "main",
                2,
                Memory::Mib(10 << 10),
                &["CUDA_DEVICE_SM_LIMIT=20"],
            ),
        ],
    ),
    (
        "koordinator-whole",
        &[("koordinator-whole", "main", 1, Memory::All, &[])],
    ),
    (
        "volcano",
        &[
            (
                "volcano-memory",
                "main",
                1,
                Memory::Mib(1024),
                &["VOLCANO_GPU_ALLOCATED=1024", VISIBLE],
            ),
            (
                "volcano-vgpu",
                "main",
                1,
                Memory::Mib(3000),
                &["CUDA_DEVICE_SM_LIMIT=50"],
            ),
            ("volcano-vgpu-percent", "main", 1, Memory::Percent(25), &[]),
        ],
    ),
    (
        "volcano-whole",
        &[("volcano-whole", "main", 1, Memory::All, &["VOLCANO_GPU_ALLOCATED=1"])],
    ),
    (
        "gpu-manager",
        &[
            ("vcuda-part", "main", 1, Memory::Mib(30 * 256), &[VISIBLE]),
            ("vcuda-capped", "main", 1, Memory::Mib(30 * 256), &[]),
        ],
    ),
    ("gpu-manager-whole", &[("vcuda-whole", "main", 1, Memory::All, &[])]),
    (
        "kai",
        &[
            (
                "kai-fraction",
                "main",
                1,
                Memory::Percent(50),
                &["GPU_PORTION=0.50", "RUNAI_NUM_OF_GPUS=0.50", VISIBLE],
            ),
            (
                "kai-memory",
                "main",
                1,
                Memory::Mib(4096),
                &["CUDA_DEVICE_MEMORY_LIMIT=4096m"],
            ),
            ("kai-two-gpus", "main", 2, Memory::Percent(25), &["GPU_PORTION=0.25"]),
            ("kai-second-container", "first", 0, Memory::None, &[]),
            ("kai-second-container", "second", 1, Memory::Mib(4096), &[]),
        ],
    ),
];

fn on_kube_scheduler() -> Result<()> {
    shared::in_namespace(NAMESPACE, examples)
}

fn in_controller_mode() -> Result<()> {
    shared::in_namespace_of(shared::controlled()?, NAMESPACE, examples)
}

/// Every file, one after the other: together they ask for more than the node has.
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
        let known = EXAMPLES.iter().find(|(name, _)| name == file);
        let (_, expected) = known.with_context(|| format!("nothing is expected of {file}.yaml"))?;
        example(installed, kube, file, expected).with_context(|| format!("{file}.yaml"))?;
    }
    if files.len() < EXAMPLES.len() {
        bail!(
            "there are {} examples, and {} are expected",
            files.len(),
            EXAMPLES.len()
        );
    }
    Ok(())
}

fn example(installed: &Installed, kube: &Kube<'_>, file: &str, expected: &[Expected]) -> Result<()> {
    let path = install::example("dialects").join(format!("{file}.yaml"));
    let manifests = std::fs::read_to_string(&path)?;
    kube.apply(&manifests)?;
    let pods = manifests.matches("kind: Pod\n").count() + 2 * manifests.matches("kind: Deployment\n").count();
    workload::settle(kube, pods, 0, LIMIT)?;
    let again = kube.try_apply(&manifests)?;
    if !again.status.success() {
        bail!("a second `kubectl apply` is refused: {}", again.stderr);
    }
    for (pod, container, gpus, memory, variables) in expected {
        for pod in pods_of(kube, pod)? {
            let total = match memory {
                Memory::Mib(mib) => Some(mib * MIB),
                Memory::Percent(percent) => Some(installed.gpus[0].memory * percent / 100 / MIB * MIB),
                Memory::All => Some(installed.gpus[0].memory),
                Memory::None => None,
            };
            sees(kube, &pod, container, *gpus, total).with_context(|| format!("{pod}, container {container}"))?;
            let environment = kube.run(&["exec", &pod, "-c", container, "--", "env"])?;
            for variable in *variables {
                if !environment.lines().any(|line| line == *variable) {
                    bail!("{pod}, container {container}, has no {variable}:\n{environment}");
                }
            }
        }
    }
    given_back(kube, file)?;
    // Deployments and ReplicaSets would make new pods, so they are deleted first. One second, because the examples in
    // Python do not handle SIGTERM, and kubelet would wait 30 s for them.
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

/// The pod of that name, or those with that label.
fn pods_of(kube: &Kube<'_>, name: &str) -> Result<Vec<String>> {
    if !name.contains('=') {
        return Ok(vec![name.to_owned()]);
    }
    let names = kube.run(&["get", "pods", "-l", name, "-o", "jsonpath={.items[*].metadata.name}"])?;
    Ok(names.split_whitespace().map(str::to_owned).collect())
}

/// Checks the limit from the inside: all of it can be allocated, and no granule more.
fn sees(kube: &Kube<'_>, pod: &str, container: &str, gpus: u64, total: Option<u64>) -> Result<()> {
    let said = kube.try_run(&["exec", pod, "-c", container, "--", "vgpu-client", "check"])?;
    let Some(total) = total else {
        if said.status.success() {
            bail!("sees a GPU and asked for none: {}", said.stdout);
        }
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

/// Annotations that pods get back: the example, the pod, the key, and the value. `{uuid}`, `{index}` and `{node}` are those
/// of the pod's GPU, and `{half}` is half of its memory.
const GIVEN_BACK: &[(&str, &str, &str, &str)] = &[
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
fn given_back(kube: &Kube<'_>, file: &str) -> Result<()> {
    for (_, pod, key, value) in GIVEN_BACK.iter().filter(|(of, ..)| *of == file) {
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

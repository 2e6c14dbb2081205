//! Many hand-made nodes with GPUs. No kubelet keeps them ready, so after a minute they count as unreachable, which pods
//! that tolerate every taint ignore. Measurements begin after the writes of that minute.

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use serde_json::{Value, json};

use vgpu_e2e::hand_made;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::patience;
use vgpu_e2e::wait::wait;

/// kube-controller-manager gives a node 50 s.
const UNREACHABLE: Duration = Duration::from_secs(180);
/// Objects for one call of kubectl, and calls at once.
const CHUNK: usize = 250;
const SIDE_BY_SIDE: usize = 4;
const FLEET: &str = "bench";

/// So many nodes with so many GPUs each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fleet {
    pub(super) nodes: usize,
    pub(super) gpus: usize,
}

/// Whose the GPUs are, by the taint that our plugin gives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Scheduler,
    Controller,
}

pub(super) fn toleration() -> Value {
    json!({"key": "dra.vgpu/allocator", "operator": "Equal", "value": "controller", "effect": "NoSchedule"})
}

impl Fleet {
    pub(super) fn node(number: usize) -> String {
        format!("made-{number:04}")
    }

    pub(super) fn make_nodes(self, kube: &Kube<'_>) -> Result<()> {
        write(kube, &["create"], &(0..self.nodes).map(node).collect::<Vec<_>>())
    }

    /// Waits until all of them count as unreachable, so that nobody writes to them any more.
    pub(super) fn wait_until_still(self, kube: &Kube<'_>) -> Result<()> {
        wait(UNREACHABLE, "hand-made nodes to count as unreachable", || {
            let nodes = kube.get(&["nodes", "-l", "fleet=bench"])?;
            let is_out = |node: &&Value| {
                let taints = node["spec"]["taints"].as_array().into_iter().flatten();
                taints
                    .clone()
                    .any(|taint| taint["key"] == "node.kubernetes.io/unreachable" && taint["effect"] == "NoSchedule")
            };
            match nodes["items"].as_array().into_iter().flatten().filter(is_out).count() {
                out if out == self.nodes => Ok(Some(())),
                out => Err(anyhow!("{out} of {} do", self.nodes)),
            }
        })
    }

    /// Publishes the GPUs, instead of those that were published before.
    pub(super) fn publish(self, kube: &Kube<'_>, owner: Owner) -> Result<()> {
        kube.run(&[
            "delete",
            "resourceslices",
            "-l",
            "fleet=bench",
            &patience::timeout(Duration::from_secs(60)),
        ])?;
        let slices = (0..self.nodes).map(|number| slice(number, self.gpus, owner));
        write(kube, &["create"], &slices.collect::<Vec<_>>())
    }
}

fn node(number: usize) -> Value {
    hand_made::node(FLEET, &Fleet::node(number), "64")
}

fn slice(number: usize, gpus: usize, owner: Owner) -> Value {
    let devices: Vec<Value> = (0..gpus)
        .flat_map(|gpu| [shared(number, gpu, owner), monitor(number, gpu)])
        .collect();
    hand_made::slice(FLEET, &Fleet::node(number), &devices)
}

fn shared(number: usize, gpu: usize, owner: Owner) -> Value {
    let mut device = json!({"name": device(gpu), "allowMultipleAllocations": true,
        "attributes": attributes("gpu", number, gpu), "capacity": hand_made::capacity()});
    device["capacity"]["shares"] = json!({"value": "64", "requestPolicy": {"default": "1", "validValues": ["1"]}});
    if owner == Owner::Controller {
        device["taints"] = json!([hand_made::settled()]);
    }
    device
}

fn monitor(number: usize, gpu: usize) -> Value {
    json!({"name": format!("{}-monitor", device(gpu)), "attributes": attributes("monitor", number, gpu)})
}

pub(super) fn device(gpu: usize) -> String {
    format!("gpu-{gpu}")
}

fn attributes(kind: &str, number: usize, gpu: usize) -> Value {
    json!({"type": {"string": kind}, "uuid": {"string": format!("GPU-{number:08x}-1111-2222-3333-{gpu:012x}")},
        "index": {"int": gpu}, "productName": {"string": "NVIDIA H100 80GB HBM3"}, "brand": {"string": "Nvidia"},
        "architecture": {"string": "Hopper"}, "cudaComputeCapability": {"version": "9.0.0"},
        "driverVersion": {"version": "535.161.8"}, "cudaDriverVersion": {"version": "12.2.0"},
        "resource.kubernetes.io/pciBusID": {"string": format!("0000:{:02x}:00.0", 16 * gpu + 11)},
        "resource.kubernetes.io/pcieRoot": {"string": format!("pci0000:{:02x}", 16 * gpu + 10)},
        "resource.kubernetes.io/numaNode": {"int": gpu / 4}})
}

/// Writes many objects by a command of kubectl that takes them, a few calls side by side.
pub(super) fn write(kube: &Kube<'_>, command: &[&str], objects: &[Value]) -> Result<()> {
    let chunks: Vec<&[Value]> = objects.chunks(CHUNK).collect();
    for some in chunks.chunks(SIDE_BY_SIDE) {
        std::thread::scope(|scope| {
            let calls: Vec<_> = some
                .iter()
                .map(|chunk| scope.spawn(|| write_once(kube, command, chunk)))
                .collect();
            calls
                .into_iter()
                .try_for_each(|call| call.join().map_err(|_| anyhow!("a thread panicked"))?)
        })?;
    }
    Ok(())
}

fn write_once(kube: &Kube<'_>, command: &[&str], objects: &[Value]) -> Result<()> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    let said = kube.try_run_with_input(&[command, &["-f", "-", "-o", "name"]].concat(), &list)?;
    if !said.status.success() {
        bail!(
            "kubectl {}: {}",
            command.join(" "),
            vgpu_e2e::shell::tail(&said.stderr, 5)
        );
    }
    Ok(())
}

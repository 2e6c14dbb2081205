//! Many hand-made nodes with GPUs. No kubelet reports them ready, so after a minute they become unreachable, which
//! pods that tolerate every taint ignore. Measurements start once the writes of that minute have ended.

use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use serde_json::{Value, json};

use vgpu_e2e::hand_made;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::patience;
use vgpu_e2e::wait::wait;

/// Time until all nodes are unreachable; kube-controller-manager waits 50 s for a silent node.
const UNREACHABLE: Duration = Duration::from_secs(180);
/// Objects per call of kubectl, and concurrent calls.
const CHUNK: usize = 250;
const SIDE_BY_SIDE: usize = 4;
const FLEET: &str = "bench";

/// A number of nodes with the same number of GPUs each.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fleet {
    pub(super) nodes: usize,
    pub(super) gpus: usize,
}

/// The component that allocates the GPUs, shown by the taint that our plugin sets.
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

    /// Waits until all nodes are unreachable, so that nobody writes to them any more.
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

    /// Publishes the GPUs, replacing those published before.
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
        .flat_map(|gpu| [shared(number, gpu, owner), hand_made::monitor(number, gpu)])
        .collect();
    hand_made::slice(FLEET, &Fleet::node(number), &devices)
}

fn shared(number: usize, gpu: usize, owner: Owner) -> Value {
    let mut device = hand_made::shared(number, gpu);
    if owner == Owner::Controller {
        device["taints"] = json!([hand_made::settled()]);
    }
    device
}

/// Passes many objects to a command of kubectl, with a few concurrent calls.
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
    ensure!(
        said.status.success(),
        "kubectl {}: {}",
        command.join(" "),
        vgpu_e2e::shell::tail(&said.stderr, 5)
    );
    Ok(())
}

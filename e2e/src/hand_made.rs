//! Objects of hand-made nodes with GPUs, as a kubelet and our plugin would write them, without a machine behind them.
//! A pod on such a node is bound and never starts.

use serde_json::{Value, json};

/// The time of a taint that is older than any age that a component waits for.
const LONG_AGO: &str = "2026-01-01T00:00:00Z";

/// A node without the label for its operating system, so that the chart's pods do not run there.
#[must_use]
pub fn node(fleet: &str, name: &str, cpu: &str) -> Value {
    let room = json!({"cpu": cpu, "memory": "512Gi", "pods": "110"});
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"fleet": fleet, "kubernetes.io/hostname": name}},
        "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True",
            "reason": "HandMade", "lastHeartbeatTime": null, "lastTransitionTime": null}]}})
}

/// The pool of a node.
#[must_use]
pub fn pool(node: &str) -> String {
    format!("{node}/vgpu")
}

/// The slices that a node publishes; here only one.
#[must_use]
pub fn slice(fleet: &str, node: &str, devices: &[Value]) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": format!("{node}-vgpu"), "labels": {"fleet": fleet}},
        "spec": {"driver": "dra.vgpu", "nodeName": node,
            "pool": {"name": pool(node), "generation": 1, "resourceSliceCount": 1},
            "devices": devices}})
}

/// The memory of each GPU.
const MEMORY: &str = "80Gi";

/// The capacity of a shared GPU: its memory and 100 cores, in the form of the plugin's slices.
#[must_use]
pub fn capacity() -> Value {
    json!({
        "memory": {"value": MEMORY,
            "requestPolicy": {"default": MEMORY, "validRange": {"min": "64Mi", "step": "1Mi"}}},
        "cores": {"value": "100",
            "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}}}})
}

/// The name of a node's GPU.
#[must_use]
pub fn device(gpu: usize) -> String {
    format!("gpu-{gpu}")
}

/// The shared device of a GPU, with every attribute that the plugin publishes.
#[must_use]
pub fn shared(node: usize, gpu: usize) -> Value {
    let mut capacity = capacity();
    capacity["shares"] = json!({"value": "64", "requestPolicy": {"default": "1", "validValues": ["1"]}});
    json!({"name": device(gpu), "allowMultipleAllocations": true, "attributes": attributes("gpu", node, gpu),
        "capacity": capacity})
}

/// The monitor device of a GPU.
#[must_use]
pub fn monitor(node: usize, gpu: usize) -> Value {
    json!({"name": format!("{}-monitor", device(gpu)), "attributes": attributes("monitor", node, gpu)})
}

fn attributes(kind: &str, node: usize, gpu: usize) -> Value {
    json!({"type": {"string": kind}, "uuid": {"string": format!("GPU-{node:08x}-1111-2222-3333-{gpu:012x}")},
        "index": {"int": gpu}, "productName": {"string": "NVIDIA H100 80GB HBM3"}, "brand": {"string": "Nvidia"},
        "architecture": {"string": "Hopper"}, "cudaComputeCapability": {"version": "9.0.0"},
        "driverVersion": {"version": "535.161.8"}, "cudaDriverVersion": {"version": "12.2.0"},
        "resource.kubernetes.io/pciBusID": {"string": format!("0000:{:02x}:00.0", 16 * gpu + 11)},
        "resource.kubernetes.io/pcieRoot": {"string": format!("pci0000:{:02x}", 16 * gpu + 10)},
        "resource.kubernetes.io/numaNode": {"int": gpu / 4}})
}

/// A quarter of a GPU, as in requests and allocations.
#[must_use]
pub fn quarter() -> Value {
    json!({"memory": "20Gi", "cores": "25"})
}

/// The taint for the component that allocates the device. The server adds the time.
#[must_use]
pub fn taint(value: &str) -> Value {
    json!({"key": "dra.vgpu/allocator", "value": value, "effect": "NoSchedule"})
}

/// The controller's taint with an old time.
#[must_use]
pub fn settled() -> Value {
    let mut taint = taint("controller");
    taint["timeAdded"] = LONG_AGO.into();
    taint
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::bytes;

    #[test]
    fn four_quarters_are_a_gpu() {
        let (all, quarter) = (capacity(), quarter());
        for name in ["memory", "cores"] {
            let number = |value: &Value| value.as_str().and_then(bytes).unwrap();
            assert_eq!(number(&all[name]["value"]), 4 * number(&quarter[name]), "{name}");
        }
    }
}

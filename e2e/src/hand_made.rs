//! Objects of hand-made nodes with GPUs, as a kubelet and our plugin write them, without a machine behind them. A pod
//! on such a node is bound and never starts.

use serde_json::{Value, json};

/// A taint's time so long ago that nobody waits for its age.
const LONG_AGO: &str = "2026-01-01T00:00:00Z";

/// Without a system's name, which keeps the pods of our chart away.
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

/// The slices that a node publishes; one is enough here.
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

/// The capacity of a shared GPU: its memory and 100 cores, in the form of `kubelet-plugin/src/slice.rs`.
#[must_use]
pub fn capacity() -> Value {
    json!({
        "memory": {"value": MEMORY,
            "requestPolicy": {"default": MEMORY, "validRange": {"min": "64Mi", "step": "1Mi"}}},
        "cores": {"value": "100",
            "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}}}})
}

/// A quarter of that, as requests ask for it and allocations consume it.
#[must_use]
pub fn quarter() -> Value {
    json!({"memory": "20Gi", "cores": "25"})
}

/// The taint for the component that allocates the device. The server adds the time.
#[must_use]
pub fn taint(value: &str) -> Value {
    json!({"key": "dra.vgpu/allocator", "value": value, "effect": "NoSchedule"})
}

/// The controller's, as it was long ago.
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

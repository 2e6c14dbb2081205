//! Builds the objects of the measured cluster, as the API server would send them.

use serde_json::{Value, json};

pub(crate) fn class() -> Value {
    json!({"metadata": {"name": "vgpu"}, "spec": {"selectors": [
        {"cel": {"expression": "device.driver == \"dra.vgpu\" && device.attributes[\"dra.vgpu\"].type == \"gpu\""}},
    ]}})
}

pub(crate) fn node(node: usize) -> Value {
    json!({"metadata": {"name": format!("node-{node}")}})
}

pub(crate) fn slice(node: usize) -> Value {
    let gpus: Vec<Value> = (0..8)
        .map(|gpu| {
            json!({"name": format!("gpu-{gpu}"), "allowMultipleAllocations": true, "attributes": {
                "type": {"string": "gpu"}, "uuid": {"string": format!("GPU-{node:08x}-{gpu}")}, "index": {"int": gpu},
                "productName": {"string": "NVIDIA H100 80GB HBM3"}, "architecture": {"string": "Hopper"},
                "driverVersion": {"version": "535.161.8"}, "resource.kubernetes.io/numaNode": {"int": gpu / 4},
            }, "capacity": {
                "memory": {"value": "80Gi", "requestPolicy": {"default": "80Gi", "validRange": {"min": "64Mi", "step": "1Mi"}}},
                "cores": {"value": "100", "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}}},
                "shares": {"value": "64", "requestPolicy": {"default": "1", "validValues": ["1"]}},
            }})
        })
        .collect();
    json!({"metadata": {"name": format!("slice-{node}")}, "spec": {
        "driver": "dra.vgpu", "nodeName": format!("node-{node}"), "devices": gpus,
        "pool": {"name": format!("node-{node}"), "generation": 1, "resourceSliceCount": 1},
    }})
}

pub(crate) fn claim(number: usize) -> Value {
    let memory = ["4Gi", "10Gi", "20Gi", "7Gi"][number % 4];
    json!({"metadata": {"name": format!("claim-{number}"), "namespace": "ns", "uid": format!("uid-{number}")},
    "spec": {"devices": {"requests": [
        {"name": "gpu", "exactly": {"deviceClassName": "vgpu", "allocationMode": "ExactCount", "count": 1,
            "capacity": {"requests": {"memory": memory, "cores": "5"}}}},
    ]}}})
}

pub(crate) fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap_or_else(|error| panic!("{error}"))
}

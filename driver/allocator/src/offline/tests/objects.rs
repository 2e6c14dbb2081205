//! Objects for tests, here and in the planner, which answers `vgpu explain` from the same files.

use serde_json::{Value, json};

use super::Objects;

pub(super) fn node(name: &str) -> Value {
    json!({"kind": "Node", "metadata": {"name": name, "labels": {"zone": "a"}}})
}

pub(super) fn class() -> Value {
    json!({"kind": "DeviceClass", "metadata": {"name": "gpu"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == \"drv\""}}]}})
}

pub(super) fn gpu(name: &str, memory: &str) -> Value {
    json!({"name": name, "allowMultipleAllocations": true, "attributes": {"model": {"string": "h100"},
        "type": {"string": "gpu"}, "profile": {"string": "none"}, "placement": {"string": "none"}}, "capacity": {
        "memory": {"value": memory, "requestPolicy": {"default": memory, "validRange": {"min": "1Mi", "step": "1Mi"}}},
        "cores": {"value": "100", "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}}},
    }})
}

pub(super) fn slice(node: &str, devices: impl IntoIterator<Item = Value>) -> Value {
    json!({"kind": "ResourceSlice", "metadata": {"name": format!("{node}-slice")}, "spec": {
        "driver": "drv", "nodeName": node, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": devices.into_iter().collect::<Vec<_>>(),
    }})
}

pub(super) fn claim(name: &str, exactly: Value) -> Value {
    let mut ask = json!({"deviceClassName": "gpu"});
    ask.as_object_mut()
        .unwrap()
        .extend(exactly.as_object().unwrap().clone());
    json!({"kind": "ResourceClaim", "metadata": {"name": name, "namespace": "ns"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": ask}]}}})
}

pub(super) fn memory(name: &str, amount: &str) -> Value {
    claim(name, json!({"capacity": {"requests": {"memory": amount}}}))
}

/// A claim that holds a share, or the whole device if `amount` is `None`.
pub(super) fn held(name: &str, pool: &str, device: &str, amount: Option<&str>) -> Value {
    let mut claim = memory(name, amount.unwrap_or("1Gi"));
    let mut result = json!({"request": "r", "driver": "drv", "pool": pool, "device": device});
    if let Some(amount) = amount {
        result["shareID"] = "s".into();
        result["consumedCapacity"] = json!({"memory": amount, "cores": "0"});
    }
    claim["status"] = json!({"allocation": {"devices": {"results": [result]}}});
    claim
}

/// Objects that are given in this order, without their apiVersion.
pub(super) fn objects(all: impl IntoIterator<Item = Value>) -> Objects {
    let mut objects = Objects::default();
    for mut document in all {
        let version = if document["kind"] == "Node" {
            "v1"
        } else {
            "resource.k8s.io/v1"
        };
        document["apiVersion"] = version.into();
        objects.add(document, "test.yaml").unwrap();
    }
    objects
}

//! Shared by the measurements: pods with HAMi's resource names, and percentiles.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

/// Prints p50 and p99 of the times.
pub(crate) fn percentiles(name: &str, times: &mut [Duration]) {
    times.sort_unstable();
    for (percent, of) in [("p50", 50), ("p99", 99)] {
        println!("{name}_{percent} us {}", times[times.len() * of / 100].as_micros());
    }
}

/// The limits of a container that requests a GPU as for HAMi.
pub(crate) fn asking(mebibytes: u32) -> Value {
    json!({"nvidia.com/gpu": 1, "nvidia.com/gpumem": mebibytes, "nvidia.com/gpucores": 5})
}

/// A pod that fits on no node.
pub(crate) fn waiting_pod(name: &str, limits: &Value) -> Result<Pod> {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "nodeSelector": {"vgpu-bench/none": "none"},
        "containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}]}});
    Ok(serde_json::from_value(pod)?)
}

//! How much memory the controller's state of a large cluster takes, without a cluster:
//! `cargo run --release -p vgpu-bench --bin bench-state -- scheduler` or `controller`.
//!
//! The objects of `vgpu-bench memory` (1,000 nodes with 8 GPUs, 10,000 pods with a quarter of one) are decoded and
//! applied as the watches do it. Prints how much each kind of object raises the resident memory.

use serde_json::{Value, json};
use vgpu_allocator::Features;
use vgpu_controller::decode::{Object, Readable};
use vgpu_e2e::hand_made;
use vgpu_planner::{Change, Mode, Planner, Settings, State, Time};

const NODES: usize = 1_000;
const GPUS: usize = 8;
const CLAIMS: usize = 10_000;
const FLEET: &str = "bench";
const NAMESPACE: &str = "bench";
/// Later than any taint's age.
const NOW: Time = Time::from_millis(1_800_000_000_000);

/// The state of either mode.
enum Known {
    Scheduler(Box<State>),
    Controller(Box<Planner>),
}

impl Known {
    fn apply(&mut self, change: Change) {
        match self {
            Self::Scheduler(state) => drop(state.apply(change, NOW)),
            Self::Controller(planner) => drop(planner.apply(change, NOW)),
        }
    }
}

fn main() {
    let mode = std::env::args().nth(1).unwrap_or_default();
    let mut known = match mode.as_str() {
        "scheduler" => Known::Scheduler(Box::new(State::new(Mode::Scheduler, Features::default()))),
        "controller" => {
            let planner = Planner::new(Settings::default(), Features::default(), Box::new(String::new));
            Known::Controller(Box::new(planner))
        }
        other => panic!("{other:?} is no mode; write scheduler or controller"),
    };
    let begun = resident();
    let mut before = begun;
    let mut grown = |what: &str| {
        let now = resident();
        println!("{what}: {} KiB", now.saturating_sub(before));
        before = now;
    };
    known.apply(Change::Class(read(&class())));
    for number in 0..NODES {
        known.apply(Change::Node(read(&node(number))));
    }
    grown("nodes");
    for number in 0..NODES {
        let slice = read(&slice(number));
        known.apply(Change::Slice { slice, read: None });
    }
    grown("slices");
    for number in 0..CLAIMS {
        known.apply(Change::Claim(read(&claim(number))));
    }
    grown("claims");
    // In scheduler mode bound pods are not watched.
    if matches!(known, Known::Controller(_)) {
        for number in 0..CLAIMS {
            known.apply(Change::Pod(read(&pod(number))));
        }
        grown("pods");
    }
    println!("{mode} mode: {} KiB", resident().saturating_sub(begun));
    // Freeing it takes longer than making it.
    std::mem::forget(known);
}

fn read<T: Readable>(object: &Value) -> T {
    // The kind names the object in the log, and nothing else here.
    type Any<T> = Object<k8s_openapi::api::core::v1::Pod, T>;
    let object: Any<T> = serde_json::from_str(&object.to_string()).expect("an object of its kind");
    object.body.expect("an object that can be read")
}

fn with_metadata(mut object: Value, number: usize) -> Value {
    object["metadata"]["uid"] = json!(format!("11111111-1111-2222-3333-{number:012}"));
    object["metadata"]["resourceVersion"] = json!((number + 1).to_string());
    object
}

fn class() -> Value {
    json!({"metadata": {"name": "vgpu"}, "spec": {"selectors": [{"cel": {"expression":
        "device.driver == \"dra.vgpu\" && device.attributes[\"dra.vgpu\"].type == \"gpu\""}}]}})
}

fn node_name(number: usize) -> String {
    format!("made-{number:04}")
}

fn node(number: usize) -> Value {
    with_metadata(hand_made::node(FLEET, &node_name(number), "64"), number)
}

fn slice(number: usize) -> Value {
    let devices: Vec<Value> = (0..GPUS)
        .flat_map(|gpu| [shared(number, gpu), monitor(number, gpu)])
        .collect();
    with_metadata(hand_made::slice(FLEET, &node_name(number), &devices), number)
}

fn shared(number: usize, gpu: usize) -> Value {
    let mut device = json!({"name": device(gpu), "allowMultipleAllocations": true,
        "attributes": attributes("gpu", number, gpu), "capacity": hand_made::capacity()});
    device["capacity"]["shares"] = json!({"value": "64", "requestPolicy": {"default": "1", "validValues": ["1"]}});
    device["taints"] = json!([hand_made::settled()]);
    device
}

fn monitor(number: usize, gpu: usize) -> Value {
    json!({"name": format!("{}-monitor", device(gpu)), "attributes": attributes("monitor", number, gpu)})
}

fn device(gpu: usize) -> String {
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

fn share(number: usize) -> String {
    format!("share-{number:05}")
}

fn pod(number: usize) -> Value {
    let name = share(number);
    let pod = json!({"metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": "share"}}, "spec": {
        "nodeName": node_name(number % NODES), "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "main", "image": "dra-driver-vgpu/pause:dev",
            "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "claims": [{"name": "gpu"}]}}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}, "status": {"phase": "Pending"}});
    with_metadata(pod, number)
}

/// As vgpu-controller allocates, after the release of its hold.
fn claim(number: usize) -> Value {
    let (name, node) = (share(number), node_name(number % NODES));
    let mut consumed = hand_made::quarter();
    consumed["shares"] = json!("1");
    let result = json!({"request": "gpu", "driver": "dra.vgpu", "pool": hand_made::pool(&node),
        "device": device(number / NODES % GPUS), "shareID": format!("00000000-0000-4000-8000-{number:012}"),
        "consumedCapacity": consumed, "tolerations": [{"key": "dra.vgpu/allocator", "operator": "Equal",
            "value": "controller", "effect": "NoSchedule"}]});
    let selector = json!({"nodeSelectorTerms": [{"matchFields": [
        {"key": "metadata.name", "operator": "In", "values": [node]}]}]});
    let claim = json!({"metadata": {"name": name, "namespace": NAMESPACE,
            "finalizers": ["resource.kubernetes.io/delete-protection"],
            "annotations": {"dra.vgpu/epoch": "made-by-hand#1"}},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu",
            "allocationMode": "ExactCount", "count": 1, "capacity": {"requests": hand_made::quarter()}}}]}},
        "status": {"allocation": {"devices": {"results": [result]}, "nodeSelector": selector,
                "allocationTimestamp": "2026-01-02T00:00:00Z"},
            "reservedFor": [{"resource": "pods", "name": name, "uid": "1"}]}});
    with_metadata(claim, number)
}

/// In KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

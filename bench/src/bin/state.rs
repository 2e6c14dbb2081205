//! Measures the memory of the controller's state of a large cluster, without a cluster: `cargo run --release -p
//! vgpu-bench --bin bench-state -- scheduler` or `controller`.
//!
//! Decodes and applies the objects of `vgpu-bench memory` (1,000 nodes with 8 GPUs, 10,000 pods with a quarter of one)
//! as the watches do. Prints by how much each kind of object raises the resident memory.

#[path = "../resident.rs"]
mod resident;

use resident::resident;
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
/// A time at which every taint has reached the age that the controller waits for.
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
    // Scheduler mode does not watch bound pods.
    if matches!(known, Known::Controller(_)) {
        for number in 0..CLAIMS {
            known.apply(Change::Pod(read(&pod(number))));
        }
        grown("pods");
    }
    println!("{mode} mode: {} KiB", resident().saturating_sub(begun));
    // Freeing it would take longer than building it.
    std::mem::forget(known);
}

fn read<T: Readable>(object: &Value) -> T {
    // The kind only names the object in the log.
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
        .flat_map(|gpu| [shared(number, gpu), hand_made::monitor(number, gpu)])
        .collect();
    with_metadata(hand_made::slice(FLEET, &node_name(number), &devices), number)
}

fn shared(number: usize, gpu: usize) -> Value {
    let mut device = hand_made::shared(number, gpu);
    device["taints"] = json!([hand_made::settled()]);
    device
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

/// A claim as vgpu-controller allocates it, after it has released its hold.
fn claim(number: usize) -> Value {
    let (name, node) = (share(number), node_name(number % NODES));
    let mut consumed = hand_made::quarter();
    consumed["shares"] = json!("1");
    let result = json!({"request": "gpu", "driver": "dra.vgpu", "pool": hand_made::pool(&node),
        "device": hand_made::device(number / NODES % GPUS), "shareID": format!("00000000-0000-4000-8000-{number:012}"),
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

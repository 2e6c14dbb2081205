//! Measures the cost of explanations in a large cluster: a part of `bench/run.sh controller`.
//!
//! 1,000 nodes with 8 GPUs, each GPU full: four claims use a quarter each. 500 pods wait, with equal claims or with
//! ten or fifty different ones. Asserts nothing, because figures differ by machine.

#[path = "../resident.rs"]
mod resident;

use resident::resident;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vgpu_allocator::Features;
use vgpu_planner::explain::{Answers, messages};
use vgpu_planner::{Change, Mode, State, Time};

const NODES: usize = 1000;
const GPUS: usize = 8;
const PODS: usize = 500;
/// The length of the controller's turns of work.
const TURN: Duration = Duration::from_millis(50);

fn read<T: serde::de::DeserializeOwned>(object: &Value) -> T {
    serde_json::from_str(&object.to_string()).expect("an object of its kind")
}

/// Gives the object the newest resource version.
fn newest(mut object: Value) -> Value {
    static VERSION: AtomicU64 = AtomicU64::new(1);
    let version = VERSION.fetch_add(1, Ordering::Relaxed);
    object["metadata"]["resourceVersion"] = json!(version.to_string());
    object
}

fn set_claim(state: &mut State, claim: Value) {
    state.apply(Change::Claim(read(&newest(claim))), Time::default());
}

fn main() {
    let before = resident();
    let begun = Instant::now();
    let mut state = full_cluster();
    let after = resident();
    println!(
        "{NODES} nodes x {GPUS} GPUs, {} live claims: taken in after {:.1?}, RSS grown by {} MiB",
        NODES * GPUS * 4,
        begun.elapsed(),
        after.saturating_sub(before) / 1024
    );
    for asks in [1, 10, 50] {
        let pods = waiting(&mut state, asks);
        let mut answers = Answers::default();
        report(
            &format!("{PODS} pods, {asks} different questions, all new"),
            &mut state,
            &mut answers,
        );
        set_claim(&mut state, held(0, 0, 0, "19Gi"));
        report("  after one claim changed", &mut state, &mut answers);
        report("  when nothing changed", &mut state, &mut answers);
        set_claim(&mut state, held(0, 0, 0, "20Gi"));
        for key in pods {
            state.apply(Change::PodGone { key }, Time::default());
        }
    }
}

fn report(what: &str, state: &mut State, answers: &mut Answers) {
    let begun = Instant::now();
    let (mut turns, mut longest) = (0, Duration::ZERO);
    let said = loop {
        let turn = Instant::now();
        answers.update_queue(state);
        let done = answers.work(state, &mut || turn.elapsed() < TURN);
        let said = messages(state, answers);
        longest = longest.max(turn.elapsed());
        turns += 1;
        if done {
            break said;
        }
    };
    println!(
        "{what}: {:.1?} of work in {turns} turns, the longest {longest:.1?}; {} texts",
        begun.elapsed(),
        said.len()
    );
    assert!(said.len() == PODS, "every pod is answered");
}

fn full_cluster() -> State {
    let mut state = State::new(Mode::Scheduler, Features::default());
    let class = json!({"metadata": {"name": "vgpu"}, "spec": {"selectors": [{"cel": {"expression":
        "device.driver == \"dra.vgpu\" && device.attributes[\"dra.vgpu\"].type == \"gpu\""}}]}});
    state.apply(Change::Class(read(&class)), Time::default());
    for node in 0..NODES {
        let name = format!("node-{node}");
        let object = json!({"metadata": {"name": name}});
        state.apply(Change::Node(read(&object)), Time::default());
        let devices: Vec<Value> = (0..GPUS).flat_map(|gpu| [device(gpu), monitor(gpu)]).collect();
        let slice = json!({"metadata": {"name": name}, "spec": {"driver": "dra.vgpu", "nodeName": name, "devices": devices,
            "pool": {"name": format!("{name}/vgpu"), "generation": 1, "resourceSliceCount": 1}}});
        let slice = read(&newest(slice));
        state.apply(Change::Slice { slice, read: None }, Time::default());
        for gpu in 0..GPUS {
            for share in 0..4 {
                set_claim(&mut state, held(node, gpu, share, "20Gi"));
            }
        }
    }
    state
}

/// Adds waiting pods with this number of different claims, which no node can satisfy. Returns the pods' keys.
fn waiting(state: &mut State, asks: usize) -> Vec<String> {
    let conditions = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
    let make = |at: usize| {
        let name = format!("waiting-{at}");
        let memory = format!("{}Mi", 20_480 + at % asks);
        let claim = json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"devices": {"requests": [{"name": "gpu",
            "exactly": {"deviceClassName": "vgpu", "capacity": {"requests": {"memory": memory, "cores": "25"}}}}]}}});
        set_claim(state, claim);
        let pod = json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "status": {"conditions": conditions},
            "spec": {"containers": [], "resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}});
        state.apply(Change::Pod(read(&pod)), Time::default());
        format!("ns/{name}")
    };
    (0..PODS).map(make).collect()
}

fn held(node: usize, gpu: usize, share: usize, memory: &str) -> Value {
    json!({"metadata": {"name": format!("held-{node}-{gpu}-{share}"), "namespace": "ns"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu"}}]}},
        "status": {"allocation": {"devices": {"results": [{"request": "gpu", "driver": "dra.vgpu", "device": format!("gpu-{gpu}"),
            "pool": format!("node-{node}/vgpu"), "shareID": format!("00000000-0000-4000-8000-{:012}", node * 100 + gpu * 10 + share),
            "consumedCapacity": {"memory": memory, "cores": "25", "shares": "1"}}]}}}})
}

fn device(gpu: usize) -> Value {
    json!({"name": format!("gpu-{gpu}"), "allowMultipleAllocations": true, "attributes": {"type": {"string": "gpu"},
        "uuid": {"string": format!("GPU-{gpu}")}, "numaNode": {"int": gpu / 4}}, "capacity": {
        "memory": {"value": "80Gi", "requestPolicy": {"default": "80Gi", "validRange": {"min": "64Mi", "step": "1Mi"}}},
        "cores": {"value": "100", "requestPolicy": {"default": "0", "validRange": {"min": "0", "max": "100", "step": "1"}}},
        "shares": {"value": "64", "requestPolicy": {"default": "1", "validValues": ["1"]}}}})
}

fn monitor(gpu: usize) -> Value {
    json!({"name": format!("gpu-{gpu}-monitor"), "attributes": {"type": {"string": "monitor"}}})
}

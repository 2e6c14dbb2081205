//! What explanations cost in a large cluster: a part of `bench/run.sh controller`.
//!
//! 1,000 nodes with 8 GPUs, each GPU full: four claims hold a quarter. 500 pods wait, all for the same, or for ten or
//! fifty different things. Nothing is asserted: figures differ by machine.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vgpu_controller::answers::Answers;
use vgpu_controller::cluster::{Change, Cluster, Step};
use vgpu_controller::pending::verdicts;
use vgpu_controller::{convert, wire};

const NODES: usize = 1000;
const GPUS: usize = 8;
const PODS: usize = 500;
/// As the controller works on them.
const TURN: Duration = Duration::from_millis(50);

fn read<W: serde::de::DeserializeOwned + Into<T>, T>(object: &Value) -> Step<T> {
    let object: W = serde_json::from_str(&object.to_string()).expect("an object of its kind");
    Step::Changed(object.into())
}

fn main() {
    let before = resident();
    let begun = Instant::now();
    let mut cluster = full_cluster();
    let after = resident();
    println!(
        "{NODES} nodes x {GPUS} GPUs, {} live claims: taken in after {:.1?}, RSS grown by {} MiB",
        NODES * GPUS * 4,
        begun.elapsed(),
        after.saturating_sub(before) / 1024
    );
    for asks in [1, 10, 50] {
        let pods = waiting(&mut cluster, asks);
        let mut answers = Answers::default();
        report(
            &format!("{PODS} pods, {asks} different questions, all new"),
            &mut cluster,
            &mut answers,
        );
        cluster.apply(Change::Claim(read::<wire::Claim, _>(&held(0, 0, 0, "19Gi"))));
        report("  after one claim changed", &mut cluster, &mut answers);
        report("  when nothing changed", &mut cluster, &mut answers);
        cluster.apply(Change::Claim(read::<wire::Claim, _>(&held(0, 0, 0, "20Gi"))));
        for pod in pods {
            cluster.apply(Change::Pod(Step::Gone(pod)));
        }
    }
}

fn report(what: &str, cluster: &mut Cluster, answers: &mut Answers) {
    let begun = Instant::now();
    let (mut turns, mut longest) = (0, Duration::ZERO);
    let said = loop {
        let turn = Instant::now();
        answers.ask(cluster, None);
        let done = answers.work(cluster, None, &mut || turn.elapsed() < TURN);
        let said = verdicts(cluster, answers);
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

fn full_cluster() -> Cluster {
    let mut cluster = Cluster::default();
    let class = json!({"metadata": {"name": "vgpu"}, "spec": {"selectors": [{"cel": {"expression":
        "device.driver == \"dra.vgpu\" && device.attributes[\"dra.vgpu\"].type == \"gpu\""}}]}});
    cluster.apply(Change::Class(read::<wire::Class, _>(&class)));
    for node in 0..NODES {
        let name = format!("node-{node}");
        cluster.apply(Change::Node(read::<wire::Node, _>(
            &json!({"metadata": {"name": name}}),
        )));
        let devices: Vec<Value> = (0..GPUS).flat_map(|gpu| [device(gpu), monitor(gpu)]).collect();
        let slice = json!({"metadata": {"name": name}, "spec": {"driver": "dra.vgpu", "nodeName": name, "devices": devices,
            "pool": {"name": format!("{name}/vgpu"), "generation": 1, "resourceSliceCount": 1}}});
        cluster.apply(Change::Slice(read::<wire::Slice, _>(&slice)));
        for gpu in 0..GPUS {
            for share in 0..4 {
                let claim = held(node, gpu, share, "20Gi");
                cluster.apply(Change::Claim(read::<wire::Claim, _>(&claim)));
            }
        }
    }
    cluster
}

/// Pods that ask for so many different things; the nodes have none of them.
fn waiting(cluster: &mut Cluster, asks: usize) -> Vec<vgpu_controller::model::Pod> {
    let conditions = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
    let make = |at: usize| {
        let name = format!("waiting-{at}");
        let memory = format!("{}Mi", 20_480 + at % asks);
        let claim = json!({"metadata": {"name": name, "namespace": "ns"}, "spec": {"devices": {"requests": [{"name": "gpu",
            "exactly": {"deviceClassName": "vgpu", "capacity": {"requests": {"memory": memory, "cores": "25"}}}}]}}});
        cluster.apply(Change::Claim(read::<wire::Claim, _>(&claim)));
        let pod = json!({"metadata": {"name": name, "namespace": "ns", "uid": name}, "status": {"conditions": conditions},
            "spec": {"containers": [], "resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}});
        let pod = convert::pod(serde_json::from_value(pod).expect("a pod"));
        cluster.apply(Change::Pod(Step::Changed(pod.clone())));
        pod
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

/// In KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

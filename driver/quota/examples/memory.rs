//! Measures the memory that quotas need in the leader, and how often it writes: 1,000 namespaces with a quota and ten claims each, on
//! 1,000 nodes with 8 GPUs. `cargo run --release -p vgpu-quota --example memory`.
//!
//! The objects are decoded and applied as the watches do it, and a minute is planned second by second. Watches and their
//! buffers are not in it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use vgpu_quota::{Change, Desk, Now, Outcome, Quota, Steady, Task, Wall, Write};

const NODES: usize = 1_000;
const GPUS: usize = 8;
const NAMESPACES: usize = 1_000;
const CLAIMS: usize = 10_000;
const START: Wall = Wall(1_795_309_200_000);
const MINUTE: u64 = 60;

fn main() {
    // The API server's copies are files: they are not memory of the leader's.
    let api = std::env::temp_dir().join(format!("vgpu-quota-memory-{}", std::process::id()));
    std::fs::create_dir_all(&api).expect("a folder");
    let mut before = resident();
    let mut desk = Desk::new("term", Steady::new(Now::ZERO, START));
    let mut grown = |what: &str| {
        let now = resident();
        println!("{what}: {} KiB", now.saturating_sub(before));
        before = now;
    };
    desk.apply(Change::Class(read(&class())), Now::ZERO);
    let names = vec!["vgpu".to_owned()];
    desk.apply(Change::Classes { names }, Now::ZERO);
    for number in 0..NODES {
        desk.apply(Change::Slice(read(&slice(number))), Now::ZERO);
    }
    let names = (0..NODES).map(node).collect();
    desk.apply(Change::Slices { names }, Now::ZERO);
    desk.apply(Change::ResourceQuotas { names: Vec::new() }, Now::ZERO);
    desk.apply(Change::Namespaces { uids: Vec::new() }, Now::ZERO);
    desk.apply(Change::Defaults { names: Vec::new() }, Now::ZERO);
    grown("slices");
    for number in 0..NAMESPACES {
        let quota = quota(number);
        std::fs::write(api.join(namespace(number)), quota.to_string()).expect("written");
        desk.apply(Change::Quota(Box::new(read(&quota))), Now::ZERO);
    }
    let uids = (0..NAMESPACES).map(namespace).collect();
    desk.apply(Change::Quotas { uids }, Now::ZERO);
    grown("quotas");
    for number in 0..CLAIMS {
        desk.apply(Change::Claim(read(&claim(number))), Now::ZERO);
    }
    let uids = (0..CLAIMS).map(|number| uid("claim", number)).collect();
    desk.apply(Change::Claims { uids }, Now::ZERO);
    grown("claims");
    for number in 0..CLAIMS {
        desk.apply(Change::Pod(read(&pod(number))), Now::ZERO);
    }
    let uids = (0..CLAIMS).map(|number| uid("pod", number)).collect();
    desk.apply(Change::Pods { uids }, Now::ZERO);
    grown("pods");
    let mut version = 1_u64;
    let mut writes: BTreeMap<String, usize> = BTreeMap::new();
    let mut took = Duration::ZERO;
    for second in 0..=MINUTE {
        let now = Duration::from_secs(second);
        let began = Instant::now();
        let plan = desk.plan(now);
        took += began.elapsed();
        for write in plan.writes {
            let outcome = match &write {
                Write::Status { namespace, status, .. } => {
                    *writes.entry(namespace.clone()).or_default() += usize::from(second > 0);
                    version += 1;
                    let mut quota = stored(&api.join(namespace));
                    quota["status"] = serde_json::to_value(status).expect("a status");
                    quota["metadata"]["resourceVersion"] = json!(version.to_string());
                    std::fs::write(api.join(namespace), quota.to_string()).expect("written");
                    Outcome::Quota(Box::new(read::<Quota>(&quota)))
                }
                _ => Outcome::Again,
            };
            desk.report(&write.task(), outcome, now);
            if let Task::Namespace(name) = write.task() {
                // The watch shows it too.
                desk.apply(Change::Quota(Box::new(read(&stored(&api.join(&name))))), now);
            }
        }
    }
    grown("a minute, with a status of each");
    std::fs::remove_dir_all(&api).expect("removed");
    let most = writes.values().max().copied().unwrap_or_default();
    println!("status writes of a namespace in {MINUTE} s, after the first: {most} at most");
    println!("planning in that minute: {} ms", took.as_millis());
    println!("highest so far: {} KiB", of_status("VmHWM:"));
}

fn stored(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).expect("a file")).expect("a quota")
}

fn read<T: DeserializeOwned>(value: &Value) -> T {
    // As from the API server: from a text.
    serde_json::from_str(&value.to_string()).expect("an object")
}

fn node(number: usize) -> String {
    format!("node-{number:04}")
}

fn namespace(number: usize) -> String {
    format!("team-{number:04}")
}

fn uid(of: &str, number: usize) -> String {
    format!("{of:-<8}-0000-4000-8000-{number:012}")
}

fn class() -> Value {
    json!({"metadata": {"name": "vgpu"}, "spec": {"selectors": [{"cel": {"expression":
        "device.driver == \"dra.vgpu\" && device.attributes[\"dra.vgpu\"].type == \"gpu\""}}]}})
}

fn slice(number: usize) -> Value {
    let gpu = |gpu: usize| {
        json!({"name": format!("gpu-{gpu}"), "allowMultipleAllocations": true,
            "attributes": {"type": {"string": "gpu"}, "uuid": {"string": uid("gpu", number * GPUS + gpu)}},
            "capacity": {"memory": {"value": "80Gi"}, "cores": {"value": "100"}, "shares": {"value": "16"}}})
    };
    let name = node(number);
    json!({"metadata": {"name": name}, "spec": {"driver": "dra.vgpu", "nodeName": name, "pool": {"name": name},
        "devices": (0..GPUS).map(gpu).collect::<Vec<_>>()}})
}

fn quota(number: usize) -> Value {
    let name = namespace(number);
    json!({"metadata": {"name": "vgpu", "namespace": name, "uid": name, "resourceVersion": "1", "generation": 1,
            "creationTimestamp": START.text()},
        "spec": {"hard": {"memory": "800Gi", "shares": 40}, "budget": {"gpuHours": 1000, "every": "7d"}}})
}

fn claim(number: usize) -> Value {
    let capacity = json!({"memory": "20Gi", "cores": "25"});
    let result = json!({"request": "gpu", "driver": "dra.vgpu", "pool": node(number % NODES),
        "device": format!("gpu-{}", number / NODES % GPUS), "shareID": uid("share", number),
        "consumedCapacity": {"memory": "20Gi", "cores": "25", "shares": "1"}});
    json!({"metadata": {"name": format!("share-{number:05}-gpu"), "namespace": namespace(number % NAMESPACES),
            "uid": uid("claim", number)},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "vgpu",
            "capacity": {"requests": capacity}}}]}},
        "status": {"allocation": {"devices": {"results": [result]}, "allocationTimestamp": START.text()}}})
}

fn pod(number: usize) -> Value {
    let name = format!("share-{number:05}");
    json!({"metadata": {"name": name, "namespace": namespace(number % NAMESPACES), "uid": uid("pod", number),
            "creationTimestamp": START.text()},
        "spec": {"nodeName": node(number % NODES), "containers": [{"name": "main",
            "resources": {"limits": {"cpu": "1"}}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]},
        "status": {"phase": "Running", "resourceClaimStatuses": [
            {"name": "gpu", "resourceClaimName": format!("{name}-gpu")}]}})
}

/// In KiB.
fn resident() -> u64 {
    of_status("VmRSS:")
}

fn of_status(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).expect("a number of KiB")
}

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
use vgpu_planner::model::Version;
use vgpu_planner::{Change as Cluster, Time};
use vgpu_quota::{Change, Now, Outcome, Quota, QuotaController, Steady, Task, Write};

const NODES: usize = 1_000;
const GPUS: usize = 8;
const NAMESPACES: usize = 1_000;
const CLAIMS: usize = 10_000;
const START: Time = Time::from_millis(1_795_309_200_000);
const MINUTE: u64 = 60;

fn main() {
    // The API server's copies are files: they are not memory of the leader's.
    let api = std::env::temp_dir().join(format!("vgpu-quota-memory-{}", std::process::id()));
    std::fs::create_dir_all(&api).expect("a folder");
    let mut leader = Leader {
        controller: QuotaController::new("term", Steady::new(Now::ZERO, START)),
        before: resident(),
    };
    leader.list(&api);
    leader.plan_for_a_minute(&api);
    std::fs::remove_dir_all(&api).expect("removed");
    println!("highest so far: {} KiB", of_status("VmHWM:"));
}

struct Leader {
    controller: QuotaController,
    /// The memory at the last output, in KiB.
    before: u64,
}

impl Leader {
    fn grown(&mut self, what: &str) {
        let now = resident();
        println!("{what}: {} KiB", now.saturating_sub(self.before));
        self.before = now;
    }

    fn apply(&mut self, change: Change) {
        self.controller.apply(change, Now::ZERO);
    }

    fn apply_cluster(&mut self, change: Cluster) {
        self.apply(Change::Cluster(change));
    }

    /// All objects, and the ends of their lists.
    fn list(&mut self, api: &Path) {
        let version = Version::default();
        self.apply_cluster(Cluster::Class(read(&class())));
        let names = vec!["vgpu".to_owned()];
        self.apply_cluster(Cluster::Classes { names });
        for number in 0..NODES {
            let (slice, read) = (read(&slice(number)), None);
            self.apply_cluster(Cluster::Slice { slice, read });
        }
        let names = (0..NODES).map(node).collect();
        self.apply_cluster(Cluster::Slices { names, version });
        self.apply(Change::ResourceQuotas { names: Vec::new() });
        self.apply(Change::Namespaces { uids: Vec::new() });
        self.apply(Change::Defaults { names: Vec::new() });
        self.grown("slices");
        for number in 0..NAMESPACES {
            let quota = quota(number);
            std::fs::write(api.join(namespace(number)), quota.to_string()).expect("written");
            self.apply(Change::Quota(Box::new(read(&quota))));
        }
        let uids = (0..NAMESPACES).map(namespace).collect();
        self.apply(Change::Quotas { uids });
        self.grown("quotas");
        for number in 0..CLAIMS {
            self.apply_cluster(Cluster::Claim(read(&claim(number))));
        }
        self.apply_cluster(Cluster::Claims {
            claims: Vec::new(),
            same: (0..CLAIMS).map(|number| key(number, "-gpu")).collect(),
            version,
            read: None,
        });
        self.grown("claims");
        for number in 0..CLAIMS {
            self.apply_cluster(Cluster::Pod(read(&pod(number))));
        }
        let keys = (0..CLAIMS).map(|number| key(number, "")).collect();
        self.apply_cluster(Cluster::Pods { keys });
        self.grown("pods");
    }

    /// Plans every second, and prints how long that took and how often a status is written.
    fn plan_for_a_minute(&mut self, api: &Path) {
        let mut version = 1_u64;
        let mut writes: BTreeMap<String, usize> = BTreeMap::new();
        let mut took = Duration::ZERO;
        for second in 0..=MINUTE {
            let now = Duration::from_secs(second);
            let began = Instant::now();
            let plan = self.controller.plan(now);
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
                self.controller.report(&write.task(), outcome, now);
                if let Task::Namespace(name) = write.task() {
                    // The watch shows it too.
                    let quota = read(&stored(&api.join(&name)));
                    self.controller.apply(Change::Quota(Box::new(quota)), now);
                }
            }
        }
        self.grown("a minute, with a status of each");
        let most = writes.values().max().copied().unwrap_or_default();
        println!("status writes of a namespace in {MINUTE} s, after the first: {most} at most");
        println!("planning in that minute: {} ms", took.as_millis());
    }
}

fn stored(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).expect("a file")).expect("a quota")
}

fn read<T: DeserializeOwned>(value: &Value) -> T {
    // Parsed from a text, as from the API server.
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

/// Namespace and name of a pod, or of its claim.
fn key(number: usize, suffix: &str) -> String {
    format!("{}/share-{number:05}{suffix}", namespace(number % NAMESPACES))
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
    json!({"metadata": {"name": name}, "spec": {"driver": "dra.vgpu", "nodeName": name, "pool": {"name": name, "resourceSliceCount": 1},
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

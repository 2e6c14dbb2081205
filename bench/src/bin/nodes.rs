//! Plays the plugins of hand-made nodes: writes the VgpuNode of each node once a minute, from the node's slices and the
//! claims that are allocated there. The usage of the shares changes every minute.
//!
//! Runs inside the cluster's namespaces, as root, with KUBECONFIG set: `bench-nodes --selector fleet=bench --minutes 4`.
//! Each node writes at its own moment of the minute. At the end it prints one figure per line: `<name> <unit> <value>`.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::Instant;
use vgpu_api::usage::{VgpuNode, VgpuNodeSpec};

#[derive(Parser)]
struct Flags {
    /// The label of the nodes' slices.
    #[arg(long)]
    selector: String,
    #[arg(long)]
    minutes: u32,
}

const MINUTE: Duration = Duration::from_secs(60);
const GIB: u64 = 1 << 30;

/// The GPUs and shares of a node, read from its slices and claims.
#[derive(Default)]
struct Node {
    /// Device, UUID and model.
    gpus: Vec<(String, String, String)>,
    shares: Vec<Share>,
}

struct Share {
    namespace: String,
    claim: String,
    uid: String,
    share: String,
    device: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let flags = Flags::parse();
    let client = kube::Client::try_default().await.context("KUBECONFIG")?;
    let nodes = read(&client, &flags.selector).await?;
    ensure!(!nodes.is_empty(), "no slice has the label {}", flags.selector);
    let count = u32::try_from(nodes.len())?;
    let mut timer = tokio::time::interval(MINUTE / count);
    let begun = Instant::now();
    let mut writes = Vec::new();
    for minute in 0..flags.minutes {
        for (name, node) in &nodes {
            timer.tick().await;
            let object = object(name, node, minute)?;
            let api = Api::<VgpuNode>::all(client.clone());
            writes.push(tokio::spawn(async move {
                let begun = Instant::now();
                let parameters = PatchParams::apply("dra.vgpu/kubelet-plugin").force();
                let name = object.metadata.name.clone().unwrap_or_default();
                api.patch(&name, &parameters, &Patch::Apply(&object)).await?;
                anyhow::Ok(begun.elapsed())
            }));
        }
    }
    let mut times = Vec::new();
    for write in writes {
        times.push(write.await??);
    }
    let took = begun.elapsed();
    times.sort_unstable();
    println!("vgpunode_writes count {}", times.len());
    println!(
        "vgpunode_writes per_second {:.1}",
        times.len() as f64 / took.as_secs_f64()
    );
    println!(
        "vgpunode_bytes count {}",
        serde_json::to_string(&object_of_first(&nodes)?)?.len()
    );
    for (percent, of) in [("p50", 50), ("p99", 99)] {
        println!(
            "vgpunode_write_{percent} us {}",
            times[times.len() * of / 100].as_micros()
        );
    }
    Ok(())
}

/// The nodes by name.
async fn read(client: &kube::Client, selector: &str) -> Result<BTreeMap<String, Node>> {
    let slices = Api::<ResourceSlice>::all(client.clone());
    let claims = Api::<ResourceClaim>::all(client.clone());
    let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
    for slice in slices.list(&ListParams::default().labels(selector)).await? {
        let slice = serde_json::to_value(slice)?;
        let node = nodes.entry(text(&slice, "/spec/nodeName")).or_default();
        for device in slice["spec"]["devices"].as_array().into_iter().flatten() {
            if device["attributes"]["type"]["string"] == "gpu" {
                let of = |path| text(device, path);
                node.gpus.push((
                    of("/name"),
                    of("/attributes/uuid/string"),
                    of("/attributes/productName/string"),
                ));
            }
        }
    }
    for claim in claims.list(&ListParams::default()).await? {
        let claim = serde_json::to_value(claim)?;
        let results = claim["status"]["allocation"]["devices"]["results"].as_array();
        for result in results.into_iter().flatten() {
            let pool = text(result, "/pool");
            let node = pool.split('/').next().and_then(|node| nodes.get_mut(node));
            node.context("a claim of another node")?.shares.push(Share {
                namespace: text(&claim, "/metadata/namespace"),
                claim: text(&claim, "/metadata/name"),
                uid: text(&claim, "/metadata/uid"),
                share: text(result, "/shareID"),
                device: text(result, "/device"),
            });
        }
    }
    Ok(nodes)
}

fn text(value: &Value, path: &str) -> String {
    value
        .pointer(path)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

fn object_of_first(nodes: &BTreeMap<String, Node>) -> Result<VgpuNode> {
    let (name, node) = nodes.first_key_value().context("no node")?;
    object(name, node, 0)
}

/// The object that the node's plugin would write in this minute. Every share holds a quarter of a GPU of 80 GiB.
fn object(name: &str, node: &Node, minute: u32) -> Result<VgpuNode> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Timestamp::from_second(now.as_secs().try_into()?)?.to_string();
    let used = |number: usize| format!("{}Mi", (number as u64 * 997 + u64::from(minute) * 1013) % (20 * 1024));
    let gpu = |(device, uuid, model): &(String, String, String)| {
        let held = node.shares.iter().filter(|share| share.device == *device).count() as u64;
        json!({"device": device, "uuid": uuid, "model": model, "memory": "80Gi", "memoryHeld": format!("{}Gi", 20 * held),
            "memoryUsed": used(held as usize), "largestFree": format!("{}", (80 - 20 * held.min(4)) * GIB),
            "coresHeld": 25 * held, "shares": held})
    };
    let share = |(number, share): (usize, &Share)| {
        json!({"namespace": share.namespace, "claim": share.claim, "uid": share.uid, "share": share.share,
            "device": share.device, "memory": "20Gi", "memoryUsed": used(number), "memoryPeak": "20Gi",
            "memoryMean": used(number + 1), "cores": 25, "gpuTimePercent": (number as u32 * 7 + minute * 11) % 25,
            "gpuTimePeakPercent": 25, "gpuTimeMeanPercent": 12, "processes": 1, "refusals": 0, "since": now})
    };
    let status = json!({"asOf": now, "version": env!("CARGO_PKG_VERSION"), "gpuCount": node.gpus.len(),
        "shareCount": node.shares.len(), "withoutClaim": 0, "model": node.gpus.first().map(|gpu| gpu.2.clone()),
        "memory": {"held": format!("{}Gi", 20 * node.shares.len()), "used": used(1)}, "largestFree": "20Gi",
        "gpus": node.gpus.iter().map(gpu).collect::<Vec<_>>(),
        "shares": node.shares.iter().enumerate().map(share).collect::<Vec<_>>(),
        "conditions": [{"type": "Ready", "status": "True", "reason": "EveryPartWorks", "message": "", "lastTransitionTime": now}]});
    let mut object = VgpuNode::new(name, VgpuNodeSpec {});
    object.status = Some(serde_json::from_value(status)?);
    Ok(object)
}

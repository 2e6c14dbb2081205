//! How long one claim takes: `cargo run --release -p vgpu-allocator --example figures [NODES [CLAIMS]]`.
//!
//! A cluster of NODES nodes with 8 GPUs of 80 GiB and CLAIMS live claims (default 1,000 and none). Then claims come one
//! after the other, each a fraction: taking in the last allocation's event and choosing node and device by binpack is
//! what is measured, on one thread.

use std::time::Instant;

use serde_json::{Value, json};
use vgpu_allocator::{Event, Features, Index, Policy, SelectorCache};

const ROUNDS: usize = 2_000;

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{text:?} is not a number")));
    let nodes = arguments.next().unwrap_or(1_000);
    let live: usize = arguments.next().unwrap_or(0);
    let before = resident();
    let begin = Instant::now();
    let mut index = Index::new(Features::default());
    let mut cache = SelectorCache::default();
    index.apply(Event::Class(read(
        json!({"metadata": {"name": "vgpu"}, "spec": {"selectors": [
            {"cel": {"expression": "device.driver == \"dra.vgpu\" && device.attributes[\"dra.vgpu\"].type == \"gpu\""}},
        ]}}),
    )));
    for node in 0..nodes {
        index.apply(Event::Node(read(json!({"metadata": {"name": format!("node-{node}")}}))));
        index.apply(slice(node));
    }
    let mut times = Vec::new();
    for number in 0..live + ROUNDS {
        let mut claim = claim(number);
        let asked = Instant::now();
        let placement = index
            .allocate(&[&claim], Policy::Binpack, &mut cache, &mut || {
                format!("share-{number}")
            })
            .unwrap_or_else(|error| panic!("{error}"));
        let Some(placement) = placement else {
            println!("the cluster is full after {number} claims");
            break;
        };
        let chosen = asked.elapsed();
        claim.status.allocation = placement.allocations.into_iter().next();
        let told = Instant::now();
        index.apply(Event::Claim(claim));
        if number >= live {
            times.push(chosen + told.elapsed());
        } else if number + 1 == live {
            println!(
                "built in {:?}, RSS grown by {} MiB",
                begin.elapsed(),
                (resident() - before) >> 20
            );
        }
    }
    times.sort_unstable();
    if let (Some(median), Some(late)) = (times.get(times.len() / 2), times.get(times.len() * 99 / 100)) {
        println!(
            "{nodes} nodes x 8, {live} live claims: median {median:?}, p99 {late:?}; RSS grown by {} MiB",
            (resident() - before) >> 20
        );
    }
}

fn slice(node: usize) -> Event {
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
    Event::Slice(read(json!({"metadata": {"name": format!("slice-{node}")}, "spec": {
        "driver": "dra.vgpu", "nodeName": format!("node-{node}"), "devices": gpus,
        "pool": {"name": format!("node-{node}"), "generation": 1, "resourceSliceCount": 1},
    }})))
}

fn claim(number: usize) -> vgpu_allocator::model::ResourceClaim {
    let memory = ["4Gi", "10Gi", "20Gi", "7Gi"][number % 4];
    read(
        json!({"metadata": {"name": format!("claim-{number}"), "namespace": "ns"}, "spec": {"devices": {"requests": [
            {"name": "gpu", "exactly": {"deviceClassName": "vgpu", "capacity": {"requests": {"memory": memory, "cores": "5"}}}},
        ]}}}),
    )
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap_or_else(|error| panic!("{error}"))
}

/// Bytes of memory in use.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}

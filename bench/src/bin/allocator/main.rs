//! How long the allocation of one claim takes:
//! `cargo run --release -p vgpu-bench --bin bench-allocator -- [NODES [CLAIMS [POLICY]]] [--kubernetes PROGRAM]`.
//!
//! A cluster has NODES nodes with 8 GPUs of 80 GiB and CLAIMS live claims (default 1,000 and none). Then claims come
//! one after the other, each for a fraction. Measured is, on one thread, applying the last allocation's event and
//! choosing node and device. PROGRAM is e2e/kubernetes-go: Kubernetes' own allocator gets the same cluster, and the
//! ratio is printed.

mod cluster;
mod kubernetes;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vgpu_allocator::{Features, Index, SelectorCache};
use vgpu_api::config::AllocationPolicy;

const ROUNDS: usize = 2_000;

struct Flags {
    nodes: usize,
    live: usize,
    policy: AllocationPolicy,
    kubernetes: Option<PathBuf>,
}

impl Flags {
    fn read() -> Self {
        let mut flags = Self {
            nodes: 1_000,
            live: 0,
            policy: AllocationPolicy::Binpack,
            kubernetes: None,
        };
        let mut arguments = std::env::args().skip(1);
        let mut place = 0;
        while let Some(text) = arguments.next() {
            if text == "--kubernetes" {
                flags.kubernetes = arguments.next().map(PathBuf::from);
                continue;
            }
            let number = || text.parse().unwrap_or_else(|_| panic!("{text:?} is not a number"));
            match place {
                0 => flags.nodes = number(),
                1 => flags.live = number(),
                _ => flags.policy = text.parse().unwrap_or_else(|error| panic!("{error}")),
            }
            place += 1;
        }
        flags
    }
}

fn main() {
    let flags = Flags::read();
    let before = resident();
    let begin = Instant::now();
    let mut index = Index::new(Features::default());
    let mut cache = SelectorCache::default();
    index.set_class(cluster::read(cluster::class()));
    for node in 0..flags.nodes {
        index.set_node(cluster::read::<vgpu_allocator::model::Node>(cluster::node(node)));
        index.set_slice(cluster::read(cluster::slice(node)));
    }
    let mut live = Vec::new();
    let mut times = Vec::new();
    let mut grown = resident().saturating_sub(before);
    for number in 0..flags.live + ROUNDS {
        let mut claim: vgpu_allocator::model::ResourceClaim = cluster::read(cluster::claim(number));
        let asked = Instant::now();
        let placement = index
            .allocate(&[&claim], flags.policy, &mut cache, &mut || format!("share-{number}"))
            .unwrap_or_else(|error| panic!("{error}"));
        let Some(placement) = placement else {
            println!("the cluster is full after {number} claims");
            break;
        };
        let chosen = asked.elapsed();
        claim.status.allocation = placement.allocations.into_iter().next().map(Arc::new);
        if number < flags.live && flags.kubernetes.is_some() {
            live.extend(claim.status.allocation.as_deref().cloned());
        }
        let told = Instant::now();
        index.set_claim(&claim.key(), claim.status.allocation.as_ref());
        if number >= flags.live {
            times.push(chosen + told.elapsed());
        } else if number + 1 == flags.live {
            grown = resident().saturating_sub(before);
        }
    }
    let built = begin.elapsed() - times.iter().sum::<Duration>();
    times.sort_unstable();
    let (Some(median), Some(late)) = (times.get(times.len() / 2), times.get(times.len() * 99 / 100)) else {
        return;
    };
    println!(
        "{} nodes x 8 GPUs, {} live claims, {}: median {median:?}, p99 {late:?} of {} claims; built in {built:.1?}, RSS grown by {} MiB",
        flags.nodes,
        flags.live,
        flags.policy.name(),
        times.len(),
        grown >> 20
    );
    if let Some(program) = &flags.kubernetes {
        let theirs = kubernetes::ask(program, flags.nodes, &live, flags.live);
        println!(
            "Kubernetes, one NewAllocator and {} times Allocate: median {:?}, p99 {:?}; it fits on {} nodes; ratio 1/{:.0}",
            flags.nodes,
            theirs.median,
            theirs.p99,
            theirs.fit,
            theirs.median.as_secs_f64() / median.as_secs_f64()
        );
    }
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

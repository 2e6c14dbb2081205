//! Measures the allocation of one claim: `cargo run --release -p vgpu-bench --bin bench-allocator -- [NODES [CLAIMS
//! [POLICY]]] [--kubernetes PROGRAM]`.
//!
//! The cluster has NODES nodes with 8 GPUs of 80 GiB and CLAIMS live claims (default 1,000 and none). Then claims for
//! a fraction arrive one after another. The measured time is, on one thread, applying the previous allocation's event
//! and choosing node and device. PROGRAM is e2e/kubernetes-go: Kubernetes' own allocator gets the same cluster, and
//! the ratio is printed.

mod cluster;
mod kubernetes;
#[path = "../../resident.rs"]
mod resident;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use resident::resident;
use vgpu_allocator::model::{Allocation, Node, ResourceClaim};
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
    let measured = measure(&flags);
    let built = measured.took - measured.times.iter().sum::<Duration>();
    let mut times = measured.times;
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
        measured.grown >> 10
    );
    if let Some(program) = &flags.kubernetes {
        let theirs = kubernetes::ask(program, flags.nodes, &measured.live, flags.live);
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

struct Measured {
    /// Time for each claim that was allocated after the live ones.
    times: Vec<Duration>,
    /// Allocations of the live claims, if Kubernetes' allocator needs them.
    live: Vec<Allocation>,
    /// Memory of the cluster with its live claims, in KiB.
    grown: u64,
    took: Duration,
}

fn measure(flags: &Flags) -> Measured {
    let before = resident();
    let begin = Instant::now();
    let mut index = index_of(flags.nodes);
    let mut cache = SelectorCache::default();
    let (mut live, mut times) = (Vec::new(), Vec::new());
    let mut grown = resident().saturating_sub(before);
    for number in 0..flags.live + ROUNDS {
        let mut claim: ResourceClaim = cluster::read(cluster::claim(number));
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
        let event = Instant::now();
        index.set_claim(&claim.key(), claim.status.allocation.as_ref());
        if number >= flags.live {
            times.push(chosen + event.elapsed());
        } else if number + 1 == flags.live {
            grown = resident().saturating_sub(before);
        }
    }
    Measured {
        times,
        live,
        grown,
        took: begin.elapsed(),
    }
}

fn index_of(nodes: usize) -> Index {
    let mut index = Index::new(Features::default());
    index.set_class(cluster::read(cluster::class()));
    for node in 0..nodes {
        index.set_node(cluster::read::<Node>(cluster::node(node)));
        index.set_slice(cluster::read(cluster::slice(node)));
    }
    index
}

//! The cluster's parts of `make bench`, each on a cluster of its own that is gone afterwards, however it ends.
//!
//! ```text
//! node.rs     how long a node, a pod and a Prepare take
//! burst.rs    many pods at once on hand-made nodes (fleet.rs): kube-scheduler alone beside vgpu-controller, in turn,
//!             timed by one watch (bound.rs)
//! memory.rs   what vgpu-controller keeps in memory of a large cluster
//! deployed.rs vgpu-controller as the chart runs it: none or some of it, its memory, its CPU time, its own counts
//! ```
//! Nothing is asserted about time: figures differ by machine. What would make a figure one of something else is an
//! error: a pod that is never bound, or a claim that was allocated by the other one.

mod bound;
mod burst;
mod deployed;
mod fleet;
mod memory;
mod node;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Subcommand;

use crate::cluster::Cluster;
use crate::kube::Kube;
use crate::outcome::after;
use crate::prepared::Prepared;
use crate::wait::wait;

const NAMESPACE: &str = "bench";

/// What there is to measure.
#[derive(Debug, Subcommand)]
pub enum Part {
    /// How long a node, a pod and a Prepare take.
    Node {
        /// The kubelet plugin's example program of that name.
        #[arg(long)]
        prepare_bench: PathBuf,
    },
    /// How long many pods take until the last is bound, by kube-scheduler alone and with vgpu-controller.
    Burst(burst::Size),
    /// What vgpu-controller keeps in memory of a large cluster.
    Memory(memory::Size),
}

/// Brings a cluster up, prints the figures, takes it down.
pub fn run(name: &str, prepared: &Prepared, part: &Part) -> Result<()> {
    match part {
        Part::Node { prepare_bench } => node::run(name, prepared, prepare_bench),
        Part::Burst(size) => burst::run(name, prepared, size),
        Part::Memory(size) => memory::run(name, prepared, size),
    }
}

/// Measures on a cluster that is gone afterwards.
fn on_cluster<T>(name: &str, prepared: &Prepared, measure: impl FnOnce(&Cluster) -> Result<T>) -> Result<T> {
    let cluster = Cluster::up(prepared.config(name))?;
    let outcome = measure(&cluster);
    after(outcome, cluster.down())
}

fn make_namespace(kube: &Kube<'_>) -> Result<()> {
    kube.run(&["create", "namespace", NAMESPACE])?;
    wait(Duration::from_secs(60), "the namespace's service account", || {
        kube.run(&["get", "serviceaccount", "default"]).map(drop).map(Some)
    })
}

/// One line about this machine.
fn machine() -> String {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let name = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cpus = info.lines().filter(|line| line.starts_with("processor")).count();
    let load = read("/proc/loadavg");
    format!(
        "{}, {cpus} CPUs, load {}; Linux {}",
        name.map_or("a CPU without a name", |(_, name)| name.trim()),
        load.split(' ').next().unwrap_or_default(),
        read("/proc/sys/kernel/osrelease").trim()
    )
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len().is_multiple_of(2) {
        (values[middle - 1] + values[middle]) / 2.0
    } else {
        values[middle]
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_middle_is_found_among_even_and_odd() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(vec![4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < f64::EPSILON);
    }
}

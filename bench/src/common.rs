//! Shared by the benchmarks on a cluster: the cluster itself, the namespace, the machine's name, the median.

use std::time::Duration;

use anyhow::Result;
use vgpu_e2e::cluster::Cluster;
use vgpu_e2e::kube::Kube;
use vgpu_e2e::outcome::after;
use vgpu_e2e::prepared::Prepared;
use vgpu_e2e::wait::wait;

pub(crate) const NAMESPACE: &str = "bench";

/// Runs a measurement on a temporary cluster.
pub(crate) fn on_cluster<T>(name: &str, prepared: &Prepared, measure: impl FnOnce(&Cluster) -> Result<T>) -> Result<T> {
    let cluster = Cluster::up(prepared.config(name))?;
    let outcome = measure(&cluster);
    after(outcome, cluster.down())
}

pub(crate) fn make_namespace(kube: &Kube<'_>) -> Result<()> {
    kube.run(&["create", "namespace", kube.namespace()])?;
    wait(Duration::from_secs(60), "the namespace's service account", || {
        kube.run(&["get", "serviceaccount", "default"]).map(drop).map(Some)
    })
}

/// One line that describes this machine.
pub(crate) fn machine() -> String {
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

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
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

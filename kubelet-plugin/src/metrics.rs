//! Metrics for Prometheus. `usage` and `compute` read what shares use at each scrape.

use crate::compute::Comparison;
use crate::compute::metrics::ComputeUsage;
use crate::node::SharedNode;
use crate::truth::{Truth, metrics::Observed};
use crate::usage::Usage;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use std::time::Duration;

/// Bucket limits around the goals: 5 ms for one claim, 50 ms for a hundred.
const SECONDS: [f64; 12] = [
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0, 10.0,
];

/// Counters shared by all tasks.
#[derive(Clone)]
pub struct Metrics {
    prepare: Histogram,
    unprepare: Histogram,
    prepare_errors: Counter,
    unprepare_errors: Counter,
    checkpoint_damaged: Counter,
    stale_claims: Counter,
    pub(crate) gpus: Gauge,
    pub(crate) slice_writes: Counter,
}

// === impl Metrics ===

impl Default for Metrics {
    fn default() -> Self {
        Self {
            prepare: Histogram::new(SECONDS),
            unprepare: Histogram::new(SECONDS),
            prepare_errors: Counter::default(),
            unprepare_errors: Counter::default(),
            checkpoint_damaged: Counter::default(),
            stale_claims: Counter::default(),
            gpus: Gauge::default(),
            slice_writes: Counter::default(),
        }
    }
}

impl Metrics {
    pub(crate) fn prepared(&self, took: Duration, errors: usize) {
        self.prepare.observe(took.as_secs_f64());
        self.prepare_errors.inc_by(errors as u64);
    }

    pub(crate) fn unprepared(&self, took: Duration, errors: usize) {
        self.unprepare.observe(took.as_secs_f64());
        self.unprepare_errors.inc_by(errors as u64);
    }

    pub(crate) fn damaged(&self) {
        self.checkpoint_damaged.inc();
    }

    pub(crate) fn stale(&self) {
        self.stale_claims.inc();
    }

    /// Registers every metric under its name.
    #[must_use]
    pub fn registry(&self, node: SharedNode, comparison: Comparison, truth: Truth) -> Registry {
        let mut registry = Registry::with_prefix("vgpu");
        registry.register(
            "prepare_seconds",
            "Time of a NodePrepareResources call",
            self.prepare.clone(),
        );
        registry.register(
            "unprepare_seconds",
            "Time of a NodeUnprepareResources call",
            self.unprepare.clone(),
        );
        registry.register(
            "prepare_errors",
            "Claims that could not be prepared",
            self.prepare_errors.clone(),
        );
        registry.register(
            "unprepare_errors",
            "Claims that could not be unprepared",
            self.unprepare_errors.clone(),
        );
        registry.register(
            "checkpoint_damaged",
            "Checkpoints that were found damaged and rebuilt",
            self.checkpoint_damaged.clone(),
        );
        registry.register(
            "stale_claims",
            "Claims that ended without an Unprepare and were cleaned up",
            self.stale_claims.clone(),
        );
        registry.register("gpus", "GPUs that this node publishes", self.gpus.clone());
        registry.register("slice_writes", "Writes of ResourceSlices", self.slice_writes.clone());
        registry.register_collector(Box::new(Usage::new(node.clone())));
        registry.register_collector(Box::new(ComputeUsage::new(node.clone(), comparison)));
        registry.register_collector(Box::new(Observed::new(node, truth)));
        registry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::Rig;

    /// The rows of docs/metrics.md are those that are served.
    #[test]
    fn the_documentation_has_every_metric() {
        let node = SharedNode::new(Rig::new(false).open());
        let registry = Metrics::default().registry(node, Comparison::default(), Truth::default());
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("encoded");
        let mut kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let helps = text
            .lines()
            .filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
        let served: Vec<String> = helps
            .map(|(name, help)| {
                let total = if kinds.next().is_some_and(|kind| kind.ends_with(" counter")) {
                    "_total"
                } else {
                    ""
                };
                format!("| `{name}{total}` | {} |", help.trim_end_matches('.'))
            })
            .collect();
        let rows = include_str!("../../docs/metrics.md")
            .lines()
            .filter(|line| line.starts_with("| `"));
        let documented: Vec<&str> = rows.filter(|row| !row.starts_with("| `vgpu_controller_")).collect();
        assert_eq!(documented, served);
    }
}

//! How every metric is named and registered.

use prometheus_client::registry::{Metric, Registry};

pub(super) type Labels = [(&'static str, &'static str); 1];

/// Registers a metric and returns it.
pub(super) fn register<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(format!("vgpu_controller_{name}"), help, metric.clone());
    metric
}

pub(super) fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

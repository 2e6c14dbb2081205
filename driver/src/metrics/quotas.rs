//! The metrics of quotas: sums over all namespaces, and at most five figures of each namespace that has one.

use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use vgpu_quota::Numbers;

use super::register::{Labels, count, register};

#[derive(Debug, Clone)]
pub(crate) struct Quotas {
    quotas: Family<Labels, Gauge>,
    reservations: Gauge,
    waiting: Gauge,
    writes: Family<[(&'static str, &'static str); 2], Counter>,
    used: Family<Ceiling, Gauge<f64, AtomicU64>>,
    /// The label sets in `used`.
    ceilings: Arc<Mutex<HashSet<Ceiling>>>,
}

/// Namespace and dimension.
type Ceiling = [(&'static str, String); 2];

impl Quotas {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let quotas = Self {
            quotas: register(registry, "quotas", Family::default()),
            reservations: register(registry, "quota_reservations", Gauge::default()),
            waiting: register(registry, "quota_waiting_pods", Gauge::default()),
            writes: register(registry, "quota_writes", Family::default()),
            used: register(registry, "quota_used_ratio", Family::default()),
            ceilings: Arc::default(),
        };
        quotas.observe(Numbers::default());
        quotas
    }

    pub(crate) fn observe(&self, numbers: Numbers) {
        let set = |state, number| {
            self.quotas.get_or_create(&[("state", state)]).set(count(number));
        };
        set(
            "in budget",
            numbers.quotas.saturating_sub(numbers.spent + numbers.refused),
        );
        set("spent", numbers.spent);
        set("refused", numbers.refused);
        self.reservations.set(count(numbers.reservations));
        self.waiting.set(count(numbers.waiting));
    }

    /// Replaces the figures of all namespaces. A figure that stays is never missing in a scrape, which would restart an
    /// alert.
    pub(crate) fn used(&self, used: &[(&str, &'static str, f64)]) {
        let labels = |(namespace, resource, _): &(&str, &'static str, f64)| {
            [
                ("namespace", (*namespace).to_owned()),
                ("resource", (*resource).to_owned()),
            ]
        };
        let now: HashSet<Ceiling> = used.iter().map(labels).collect();
        let mut known = self.ceilings.lock().unwrap_or_else(PoisonError::into_inner);
        for gone in known.difference(&now) {
            self.used.remove(gone);
        }
        for figure in used {
            self.used.get_or_create(&labels(figure)).set(figure.2);
        }
        *known = now;
    }

    pub(crate) fn wrote(&self, intent: &'static str, outcome: &'static str) {
        self.writes
            .get_or_create(&[("intent", intent), ("outcome", outcome)])
            .inc();
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    #[test]
    fn a_ceiling_that_is_gone_has_no_figure() {
        let mut registry = Registry::default();
        let quotas = Quotas::new(&mut registry);
        let text = || {
            let mut text = String::new();
            encode(&mut text, &registry).unwrap();
            let lines = text
                .lines()
                .filter(|line| line.starts_with("vgpu_controller_quota_used_ratio"));
            let mut lines: Vec<String> = lines.map(str::to_owned).collect();
            lines.sort();
            lines
        };
        let a =
            |ratio: &str| format!("vgpu_controller_quota_used_ratio{{namespace=\"a\",resource=\"memory\"}} {ratio}");
        quotas.used(&[("a", "memory", 0.5), ("b", "gpuHours", 1.25)]);
        let b = "vgpu_controller_quota_used_ratio{namespace=\"b\",resource=\"gpuHours\"} 1.25".to_owned();
        assert_eq!(text(), [a("0.5"), b]);
        quotas.used(&[("a", "memory", 0.75)]);
        assert_eq!(text(), [a("0.75")]);
        quotas.used(&[]);
        assert_eq!(text(), Vec::<String>::new());
    }
}

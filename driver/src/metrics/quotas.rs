//! The metrics of quotas: sums over all namespaces, so their number is bounded.

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
}

impl Quotas {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let quotas = Self {
            quotas: register(
                registry,
                "quotas",
                "VgpuQuotas by state: in budget (also those without one), spent, refused. Zero where this replica does not lead",
                Family::default(),
            ),
            reservations: register(
                registry,
                "quota_reservations",
                "Claims that are reserved in all quotas",
                Gauge::default(),
            ),
            waiting: register(
                registry,
                "quota_waiting_pods",
                "Pods behind the scheduling gate that do not fit into their quota yet",
                Gauge::default(),
            ),
            writes: register(
                registry,
                "quota_writes",
                "Writes for quotas by intent and outcome: status, read, gate, label, default, evict; done, again, refused, dropped",
                Family::default(),
            ),
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

    pub(crate) fn wrote(&self, intent: &'static str, outcome: &'static str) {
        self.writes
            .get_or_create(&[("intent", intent), ("outcome", outcome)])
            .inc();
    }
}

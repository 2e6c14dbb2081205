//! What this controller counts about itself.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

type Labels = [(&'static str, &'static str); 1];

#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) pending_pods: Gauge,
    pub(crate) events: Family<Labels, Counter>,
    pub(crate) watch_errors: Family<Labels, Counter>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let pending_pods = Gauge::default();
        let events = Family::<Labels, Counter>::default();
        let watch_errors = Family::<Labels, Counter>::default();
        registry.register(
            "vgpu_controller_pending_pods",
            "Unschedulable pods that wait for a claim on our classes",
            pending_pods.clone(),
        );
        registry.register(
            "vgpu_controller_events",
            "Events by outcome: said, refused, failed",
            events.clone(),
        );
        registry.register(
            "vgpu_controller_watch_errors",
            "Watches that stumbled, by resource",
            watch_errors.clone(),
        );
        Self {
            registry,
            pending_pods,
            events,
            watch_errors,
        }
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

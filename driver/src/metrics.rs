//! What this controller counts about itself.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

type Labels = [(&'static str, &'static str); 1];

#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    pending_pods: Gauge,
    questions: Gauge,
    explain_seconds: Counter<f64, AtomicU64>,
    pub(crate) events: Family<Labels, Counter>,
    pub(crate) watch_errors: Family<Labels, Counter>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let pending_pods = Gauge::default();
        let questions = Gauge::default();
        let explain_seconds = Counter::<f64, AtomicU64>::default();
        let events = Family::<Labels, Counter>::default();
        let watch_errors = Family::<Labels, Counter>::default();
        registry.register(
            "vgpu_controller_pending_pods",
            "Unschedulable pods that wait for a claim on our classes",
            pending_pods.clone(),
        );
        registry.register(
            "vgpu_controller_pending_questions",
            "Different things that these pods wait for, each of which is explained once",
            questions.clone(),
        );
        registry.register(
            "vgpu_controller_explain_seconds",
            "Time spent on explanations",
            explain_seconds.clone(),
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
            questions,
            explain_seconds,
            events,
            watch_errors,
        }
    }

    /// After a turn of explaining: its time, and how many pods wait, for how many different things.
    pub(crate) fn looked(&self, took: Duration, pods: usize, questions: usize) {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.pending_pods.set(count(pods));
        self.questions.set(count(questions));
        self.explain_seconds.inc_by(took.as_secs_f64());
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

//! What this controller counts about itself.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};
use vgpu_planner::Verdict;

/// Registers a metric and gives it back.
fn register<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(format!("vgpu_controller_{name}"), help, metric.clone());
    metric
}

type Labels = [(&'static str, &'static str); 1];

#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    pending_pods: Gauge,
    questions: Gauge,
    explain_seconds: Counter<f64, AtomicU64>,
    pub(crate) events: Family<Labels, Counter>,
    pub(crate) watch_errors: Family<Labels, Counter>,
    pub(crate) decisions: Decisions,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        Self {
            pending_pods: register(
                &mut registry,
                "pending_pods",
                "Unschedulable pods that wait for a claim on our classes",
                Gauge::default(),
            ),
            questions: register(
                &mut registry,
                "pending_questions",
                "Different things that these pods wait for, each of which is explained once",
                Gauge::default(),
            ),
            explain_seconds: register(
                &mut registry,
                "explain_seconds",
                "Time spent on explanations",
                Counter::default(),
            ),
            events: register(
                &mut registry,
                "events",
                "Events by outcome: said, refused, failed",
                Family::default(),
            ),
            watch_errors: register(
                &mut registry,
                "watch_errors",
                "Watches that stumbled, by resource",
                Family::default(),
            ),
            decisions: Decisions::new(&mut registry),
            registry,
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

/// Of controller mode.
#[derive(Debug, Clone)]
pub(crate) struct Decisions {
    is_leading: Gauge,
    plan_seconds: Histogram,
    write_seconds: Family<Labels, Histogram>,
    writes: Family<[(&'static str, &'static str); 2], Counter>,
    holds_timed_out: Counter,
    verdicts: Family<Labels, Counter>,
}

impl Decisions {
    fn new(registry: &mut Registry) -> Self {
        Self {
            is_leading: register(
                registry,
                "leading",
                "Whether this replica allocates: it has the lease and has fenced off its predecessor",
                Gauge::default(),
            ),
            plan_seconds: register(
                registry,
                "plan_seconds",
                "Time that one round of deciding took",
                Histogram::new(exponential_buckets(0.000_1, 4.0, 10)),
            ),
            write_seconds: register(
                registry,
                "write_seconds",
                "Time from a decision to what came of its write, by intent: mark, allocate, release, clear",
                Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 14))),
            ),
            writes: register(
                registry,
                "writes",
                "Writes to claims by intent and outcome: done, conflict, refused, unknown, dropped",
                Family::default(),
            ),
            holds_timed_out: register(
                registry,
                "holds_timed_out",
                "Holds whose pod was not bound in time",
                Counter::default(),
            ),
            verdicts: register(
                registry,
                "verdicts",
                "What there was to tell of pods and claims, by the event's reason",
                Family::default(),
            ),
        }
    }

    pub(crate) fn planned(&self, took: Duration, is_leading: bool) {
        self.plan_seconds.observe(took.as_secs_f64());
        self.is_leading.set(i64::from(is_leading));
    }

    pub(crate) fn wrote(&self, intent: &'static str, outcome: &'static str, took: Duration) {
        self.write_seconds
            .get_or_create(&[("intent", intent)])
            .observe(took.as_secs_f64());
        self.writes
            .get_or_create(&[("intent", intent), ("outcome", outcome)])
            .inc();
    }

    pub(crate) fn decided(&self, verdict: &Verdict) {
        self.verdicts.get_or_create(&[("reason", verdict.reason())]).inc();
        if matches!(verdict, Verdict::TooSlow { .. }) {
            self.holds_timed_out.inc();
        }
    }
}

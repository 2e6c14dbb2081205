//! What this controller counts about itself.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use vgpu_planner::Verdict;

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
        let decisions = Decisions::new(&mut registry);
        Self {
            registry,
            pending_pods,
            questions,
            explain_seconds,
            events,
            watch_errors,
            decisions,
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
        let new = Self {
            is_leading: Gauge::default(),
            plan_seconds: Histogram::new(exponential_buckets(0.000_1, 4.0, 10)),
            write_seconds: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 14))),
            writes: Family::default(),
            holds_timed_out: Counter::default(),
            verdicts: Family::default(),
        };
        registry.register(
            "vgpu_controller_leading",
            "Whether this replica allocates: it has the lease and has fenced off its predecessor",
            new.is_leading.clone(),
        );
        registry.register(
            "vgpu_controller_plan_seconds",
            "Time that one round of deciding took",
            new.plan_seconds.clone(),
        );
        registry.register(
            "vgpu_controller_write_seconds",
            "Time from a decision to what came of its write, by intent: mark, allocate, release, clear",
            new.write_seconds.clone(),
        );
        registry.register(
            "vgpu_controller_writes",
            "Writes to claims by intent and outcome: done, conflict, refused, unknown, dropped",
            new.writes.clone(),
        );
        registry.register(
            "vgpu_controller_holds_timed_out",
            "Holds whose pod was not bound in time",
            new.holds_timed_out.clone(),
        );
        registry.register(
            "vgpu_controller_verdicts",
            "What there was to tell of pods and claims, by the event's reason",
            new.verdicts.clone(),
        );
        new
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

//! The controller's metrics.

mod quotas;
mod register;
mod reviews;

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use vgpu_allocator::Free;
use vgpu_api::config::AllocationPolicy;
use vgpu_planner::{Planner, Queue, Time, Verdict};

pub(crate) use self::quotas::Quotas;
use self::register::{Labels, count, register};
pub(crate) use self::reviews::Reviews;
use crate::publish::Delivery;

#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    pending_pods: Gauge,
    questions: Gauge,
    explain_seconds: Counter<f64, AtomicU64>,
    events: Family<Labels, Counter>,
    watch_errors: Family<[(&'static str, String); 1], Counter>,
    pub(crate) decisions: Decisions,
    pub(crate) reviews: Reviews,
    pub(crate) quotas: Quotas,
    usage_writes: Family<[(&'static str, &'static str); 2], Counter>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let build = Info::new([("program", "vgpu-controller"), ("version", env!("CARGO_PKG_VERSION"))]);
        // Named as in the plugin, so without our prefix.
        registry.register("vgpu_build", "The release of a program", build);
        Self {
            pending_pods: register(&mut registry, "pending_pods", Gauge::default()),
            questions: register(&mut registry, "pending_questions", Gauge::default()),
            explain_seconds: register(&mut registry, "explain_seconds", Counter::default()),
            events: register(&mut registry, "events", Family::default()),
            watch_errors: register(&mut registry, "watch_errors", Family::default()),
            reviews: Reviews::new(&mut registry),
            quotas: Quotas::new(&mut registry),
            usage_writes: register(&mut registry, "usage_writes", Family::default()),
            decisions: Decisions::new(&mut registry),
            registry,
        }
    }

    /// Records a turn of explaining: its time, the number of waiting pods, and the number of shapes.
    pub(crate) fn looked(&self, took: Duration, pods: usize, questions: usize) {
        self.pending_pods.set(count(pods));
        self.questions.set(count(questions));
        self.explain_seconds.inc_by(took.as_secs_f64());
    }

    pub(crate) fn watch_failed(&self, kind: &str) {
        self.watch_errors.get_or_create(&[("resource", kind.to_owned())]).inc();
    }

    /// Records the outcome of an event.
    pub(crate) fn delivered(&self, delivery: Delivery) {
        let outcome = match delivery {
            Delivery::Said => "said",
            Delivery::Refused => "refused",
            Delivery::Failed => "failed",
        };
        self.events.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Records a decision for which the queue of events had no room.
    pub(crate) fn dropped(&self) {
        self.events.get_or_create(&[("outcome", "too many")]).inc();
    }

    pub(crate) fn usage_wrote(&self, intent: &'static str, outcome: &'static str) {
        self.usage_writes
            .get_or_create(&[("intent", intent), ("outcome", outcome)])
            .inc();
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// The metrics of controller mode.
#[derive(Debug, Clone)]
pub(crate) struct Decisions {
    is_leading: Gauge,
    plan_seconds: Histogram,
    write_seconds: Family<Labels, Histogram>,
    writes: Family<[(&'static str, &'static str); 2], Counter>,
    holds_timed_out: Counter,
    verdicts: Family<Labels, Counter>,
    allocations: Family<Labels, Counter>,
    queue: Waiting,
    capacity: Capacity,
}

/// What waits for the controller.
#[derive(Debug, Clone)]
struct Waiting {
    pods: Gauge,
    claims: Gauge,
    oldest: Gauge<f64, AtomicU64>,
}

/// What is free on the GPUs.
#[derive(Debug, Clone)]
struct Capacity {
    free_memory: Family<Labels, Gauge>,
    fragmentation: Gauge<f64, AtomicU64>,
    stranded_memory: Gauge,
    stranded_cores: Gauge,
}

impl Waiting {
    fn new(registry: &mut Registry) -> Self {
        Self {
            pods: register(registry, "queue_pods", Gauge::default()),
            claims: register(registry, "queue_claims", Gauge::default()),
            oldest: register(registry, "queue_oldest_seconds", Gauge::default()),
        }
    }
}

impl Capacity {
    fn new(registry: &mut Registry) -> Self {
        Self {
            free_memory: register(registry, "free_memory_bytes", Family::default()),
            fragmentation: register(registry, "fragmentation_ratio", Gauge::default()),
            stranded_memory: register(registry, "stranded_memory_bytes", Gauge::default()),
            stranded_cores: register(registry, "stranded_cores", Gauge::default()),
        }
    }
}

impl Decisions {
    fn new(registry: &mut Registry) -> Self {
        Self {
            is_leading: register(registry, "leading", Gauge::default()),
            plan_seconds: register(
                registry,
                "plan_seconds",
                Histogram::new(exponential_buckets(0.000_1, 4.0, 10)),
            ),
            write_seconds: register(
                registry,
                "write_seconds",
                Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 14))),
            ),
            writes: register(registry, "writes", Family::default()),
            holds_timed_out: register(registry, "holds_timed_out", Counter::default()),
            verdicts: register(registry, "verdicts", Family::default()),
            allocations: register(registry, "allocations", Family::default()),
            queue: Waiting::new(registry),
            capacity: Capacity::new(registry),
        }
    }

    pub(crate) fn planned(&self, took: Duration) {
        self.plan_seconds.observe(took.as_secs_f64());
    }

    pub(crate) fn leads(&self, leads: bool) {
        self.is_leading.set(i64::from(leads));
    }

    /// Sets the metrics from the planner's numbers; all zero if it does not lead.
    pub(crate) fn observe(&self, planner: &Planner, now: Time) {
        let leads = planner.is_leading();
        let (queue, free) = match leads {
            true => (planner.queue(), planner.state().free()),
            false => (Queue::default(), Free::default()),
        };
        self.leads(leads);
        self.queue.pods.set(count(queue.pods));
        self.queue.claims.set(count(queue.claims));
        self.queue.oldest.set(queue.oldest(now).as_secs_f64());
        for (gpus, memory) in [("unused", free.memory_of_unused), ("used", free.memory_of_used)] {
            self.capacity.free_memory.get_or_create(&[("gpus", gpus)]).set(memory);
        }
        self.capacity.fragmentation.set(free.fragmentation());
        self.capacity.stranded_memory.set(free.stranded_memory);
        self.capacity.stranded_cores.set(free.stranded_cores);
    }

    pub(crate) fn allocated(&self, policy: AllocationPolicy) {
        self.allocations.get_or_create(&[("policy", policy.name())]).inc();
    }

    pub(crate) fn wrote(&self, intent: &'static str, outcome: &'static str, took: Duration) {
        self.write_seconds
            .get_or_create(&[("intent", intent)])
            .observe(took.as_secs_f64());
        self.writes
            .get_or_create(&[("intent", intent), ("outcome", outcome)])
            .inc();
    }

    /// Records a decision that becomes an event.
    pub(crate) fn decided(&self, reason: &'static str) {
        self.verdicts.get_or_create(&[("reason", reason)]).inc();
    }

    pub(crate) fn found(&self, verdict: &Verdict) {
        if matches!(verdict, Verdict::TooSlow { .. } | Verdict::NotBound { .. }) {
            self.holds_timed_out.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_runs_out_whether_its_pod_was_reserved_for_or_not() {
        let metrics = Metrics::new();
        let (pod, node) = ("p".to_owned(), "n".to_owned());
        let (other, there) = (pod.clone(), node.clone());
        metrics.decisions.found(&Verdict::TooSlow { pod, node });
        metrics.decisions.found(&Verdict::NotBound {
            pod: other,
            node: there,
        });
        let (text, line) = (metrics.text(), "vgpu_controller_holds_timed_out_total 2");
        assert!(text.lines().any(|is| is == line), "{text}");
    }
    /// docs/metrics.md has a row for exactly the metrics that are served.
    #[test]
    fn the_documentation_has_every_metric() {
        let metrics = Metrics::new();
        // A metric with labels is served once it has a value.
        metrics.delivered(Delivery::Said);
        metrics.watch_failed("pods");
        metrics.reviews.bad();
        metrics.reviews.certificate_until(0);
        metrics.quotas.wrote("gate", "done");
        metrics.quotas.used(&[("team", "memory", 0.5)]);
        metrics.usage_wrote("set", "done");
        let decisions = &metrics.decisions;
        decisions.wrote("mark", "done", Duration::ZERO);
        decisions.allocated(AllocationPolicy::Binpack);
        decisions.decided("HoldTimeout");
        decisions.capacity.free_memory.get_or_create(&[("gpus", "used")]).set(1);
        let text = metrics.text();
        let mut kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let helps = text
            .lines()
            .filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
        let served: Vec<String> = helps
            .map(|(name, help)| {
                let total = match kinds.next().and_then(|kind| kind.rsplit(' ').next()) {
                    Some("counter") => "_total",
                    Some("info") => "_info",
                    _ => "",
                };
                format!("| `{name}{total}` | {} |", help.trim_end_matches('.'))
            })
            .collect();
        let docs = include_str!("../../docs/metrics.md");
        let (_, controller) = docs.split_once("\n## The controller\n").expect("its part");
        let documented: Vec<&str> = controller.lines().filter(|line| line.starts_with("| `")).collect();
        assert_eq!(documented, served);
    }
}

//! Metrics for Prometheus: counters of calls, and figures of shares and GPUs that are read at each scrape.
//!
//! A share has at most 46 series, and a GPU 60, HAMi's names included. Tenants can only add series by more containers
//! of a share, and few of these are named. A scrape reads ledgers and waits up to 8 s for a running turn (`http`).
//! Labels are names of objects and UUIDs, never a text of a tenant's process.

mod figures;
mod gpus;
pub mod hami;
#[cfg(test)]
mod prometheus_tests;
mod shares;
mod sources;

use crate::dra::node::Parts;
use crate::enforcement::counters::Counters;
use figures::{Figure, Labels, Metric};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
pub use sources::Sources;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Bucket limits around the goals: 2 ms for the plugin's own part of one claim, 5 ms with the read.
const SECONDS: [f64; 12] = [
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0, 10.0,
];
/// Bucket limits of the parts, which are shorter.
const PART_SECONDS: [f64; 10] = [0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.02, 0.1, 2.0];

/// Why claims cannot be prepared, and the parts of a Prepare.
const REASONS: [&str; 8] = ["api", "claim", "full", "ailing", "lock", "library", "files", "other"];
const PARTS: [&str; 3] = ["read", "lock", "room"];

/// Reads shares and GPUs at each scrape.
struct Scraped {
    sources: Sources,
    counters: Mutex<Counters>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Part {
    part: &'static str,
}

/// How long a Prepare spent in each part.
#[derive(Debug)]
pub(crate) struct Times {
    read: Duration,
    rest: Mutex<Rest>,
}

#[derive(Clone, Debug, Default)]
struct Rest {
    lock: Duration,
    room: Duration,
    turns: Vec<Parts>,
}

/// Counters shared by all tasks.
#[derive(Clone)]
pub struct Metrics {
    prepare: Histogram,
    unprepare: Histogram,
    prepare_parts: Family<Part, Histogram>,
    prepare_errors: Family<Reason, Counter>,
    unprepare_errors: Counter,
    checkpoint_damaged: Counter,
    stale_claims: Counter,
    pub(crate) gpus: Gauge,
    pub(crate) slice_writes: Counter,
}

// === impl Times ===

impl Times {
    /// `read`: the claims from the API server.
    pub(crate) fn new(read: Duration) -> Self {
        Self {
            read,
            rest: Mutex::default(),
        }
    }

    /// Notes a turn, and the wait for it.
    pub(crate) fn turned(&self, lock: Duration, parts: Parts) {
        let mut rest = self.rest();
        rest.lock += lock;
        rest.turns.push(parts);
    }

    /// Notes the time after the first turn, in which claims without room waited.
    pub(crate) fn waited(&self, room: Duration) {
        self.rest().room = room;
    }

    fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Metrics ===

impl Default for Metrics {
    fn default() -> Self {
        Self {
            prepare: Histogram::new(SECONDS),
            unprepare: Histogram::new(SECONDS),
            prepare_parts: Family::new_with_constructor(|| Histogram::new(PART_SECONDS)),
            prepare_errors: Family::default(),
            unprepare_errors: Counter::default(),
            checkpoint_damaged: Counter::default(),
            stale_claims: Counter::default(),
            gpus: Gauge::default(),
            slice_writes: Counter::default(),
        }
    }
}

impl Metrics {
    pub(crate) fn prepared(&self, took: Duration, times: &Times, errors: impl IntoIterator<Item = &'static str>) {
        self.prepare.observe(took.as_secs_f64());
        let rest = times.rest().clone();
        let whole = [("read", times.read), ("lock", rest.lock), ("room", rest.room)];
        let turns = rest.turns.iter().flat_map(Parts::by_name);
        for (part, time) in whole.into_iter().chain(turns) {
            self.prepare_parts
                .get_or_create(&Part { part })
                .observe(time.as_secs_f64());
        }
        for reason in errors {
            self.prepare_errors.get_or_create(&Reason { reason }).inc();
        }
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

    /// Creates every series, so that a first error is an increase.
    fn create_all(&self) {
        for reason in REASONS {
            drop(self.prepare_errors.get_or_create(&Reason { reason }));
        }
        for part in PARTS
            .into_iter()
            .chain(Parts::default().by_name().map(|(part, _)| part))
        {
            drop(self.prepare_parts.get_or_create(&Part { part }));
        }
    }

    /// Registers every metric under its name. Each has the Node's name as a label: a scrape's own labels name the pod's
    /// address.
    #[must_use]
    pub fn registry(&self, sources: Sources) -> Registry {
        self.create_all();
        let node = sources.node.lock().name().to_owned();
        let labels = [("node".into(), node.into())];
        let mut registry = Registry::with_prefix_and_labels("vgpu", labels.into_iter());
        registry.register(
            "prepare_seconds",
            "Time of a NodePrepareResources call",
            self.prepare.clone(),
        );
        registry.register(
            "prepare_part_seconds",
            "Time of each part of a Prepare: read (GET of the claims), lock (wait for the node's lock), state, driver, \
             directory, arbitration, cdi, record and pages (the work, of all calls that waited for the lock), room (wait until \
             a share is released)",
            self.prepare_parts.clone(),
        );
        registry.register(
            "unprepare_seconds",
            "Time of a NodeUnprepareResources call",
            self.unprepare.clone(),
        );
        registry.register(
            "prepare_errors",
            "Claims that could not be prepared, by reason: api, claim, full, ailing, lock, library, files, other",
            self.prepare_errors.clone(),
        );
        registry.register(
            "unprepare_errors",
            "Claims that could not be unprepared",
            self.unprepare_errors.clone(),
        );
        registry.register(
            "checkpoint_damaged",
            "Files of the state that were found damaged",
            self.checkpoint_damaged.clone(),
        );
        registry.register(
            "stale_claims",
            "Claims that ended without an Unprepare and were cleaned up",
            self.stale_claims.clone(),
        );
        registry.register("gpus", "GPUs that this node publishes", self.gpus.clone());
        registry.register("slice_writes", "Writes of ResourceSlices", self.slice_writes.clone());
        let build = Info::new([
            ("program", "vgpu-kubelet-plugin"),
            ("version", env!("CARGO_PKG_VERSION")),
        ]);
        registry.register("build", "The release of a program", build);
        registry.register_collector(Box::new(Scraped {
            sources,
            counters: Mutex::default(),
        }));
        registry
    }
}

// === impl Scraped ===

const KILLED: Metric<u64> = Metric::counter(
    "killed_processes",
    "Processes that were killed because their share was over its limit (plugin.onBreach: kill)",
    |kills| Some(Figure::bytes(*kills)),
);

const SET_AGAIN: Metric<u64> = Metric::counter(
    "driver_limits_set_again",
    "Limits of containers that somebody had changed in the driver, and that were set again",
    |count| Some(Figure::bytes(*count)),
);

const READY: Metric<bool> = Metric::gauge(
    "ready",
    "1 if this part of the plugin works, has nothing to do or is paused, 0 if it does not; /readyz says why",
    |is_ready| Some(Figure::from(*is_ready)),
);

impl fmt::Debug for Scraped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scraped")
    }
}

impl Collector for Scraped {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let samples = shares::samples(&self.sources, Some(&self.counters));
        shares::encode(&samples, &mut encoder)?;
        let (kills, set_again) = {
            let state = self.sources.observations.lock();
            (state.kills, state.set_again)
        };
        KILLED.encode(&mut encoder, [(&Labels::new(), &kills)])?;
        SET_AGAIN.encode(&mut encoder, [(&Labels::new(), &set_again)])?;
        let parts = self.sources.readiness.parts().into_iter();
        let parts: Vec<(Labels, bool)> = parts
            .map(|(part, is_ready)| (vec![("part", part.to_owned())], is_ready))
            .collect();
        READY.encode(&mut encoder, parts.iter().map(|(labels, is_ready)| (labels, is_ready)))?;
        gpus::encode(&self.sources, &mut encoder)
    }
}

/// The page with these metrics.
#[cfg(test)]
pub(crate) fn page(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).expect("encoded");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::node::SharedNode;
    use crate::dra::node::tests::{Rig, prepared};

    /// The rows of docs/metrics.md are those that are served.
    #[test]
    fn the_documentation_has_every_metric() {
        let node = SharedNode::new(Rig::new(false).open());
        let registry = Metrics::default().registry(Sources::new(node));
        let text = page(&registry);
        let mut kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let helps = text
            .lines()
            .filter_map(|line| line.strip_prefix("# HELP ")?.split_once(' '));
        let served: Vec<String> = helps
            .map(|(name, help)| {
                let kind = kinds.next().and_then(|kind| kind.rsplit(' ').next());
                let total = match kind {
                    Some("counter") => "_total",
                    Some("info") => "_info",
                    _ => "",
                };
                format!("| `{name}{total}` | {} |", help.trim_end_matches('.'))
            })
            .collect();
        let docs = include_str!("../../docs/metrics.md");
        let (plugin, _) = docs.split_once("\n## The controller\n").expect("its part");
        let documented: Vec<&str> = plugin.lines().filter(|line| line.starts_with("| `")).collect();
        assert_eq!(documented, served);
    }

    /// An alert on any of them says where to look.
    #[test]
    fn every_series_names_the_node_and_a_gpu_its_model() {
        let (_rig, node) = prepared(20, 30);
        let name = format!("node=\"{}\"", node.name());
        let registry = Metrics::default().registry(Sources::new(SharedNode::new(node)));
        let text = page(&registry);
        let mut series = text.lines().filter(|line| !line.starts_with('#'));
        assert_eq!(series.clone().find(|line| !line.contains(&name)), None);
        let info = series.find(|line| line.starts_with("vgpu_gpu_info{")).expect("a GPU");
        let model = format!("model=\"{}\"", crate::publish::inventory::tests::gpu(0).name);
        assert!(info.contains(&model), "{info}");
    }

    /// A tenant cannot make Prometheus hold more than this.
    #[test]
    fn a_share_has_at_most_46_series_and_a_gpu_60() {
        let (_rig, node) = prepared(20, 30);
        let sources = Sources::new(SharedNode::new(node));
        let key = ("u1".to_owned(), "s1".to_owned());
        let container = |at: u32| (format!("p{at}"), "main".to_owned());
        sources
            .containers
            .set([(key.clone(), (0..256).map(container).collect())].into());
        sources.observations.know_all(&key);
        let mut text = String::new();
        for registry in [Metrics::default().registry(sources.clone()), hami::registry(sources)] {
            prometheus_client::encoding::text::encode(&mut text, &registry).expect("encoded");
        }
        let count = |has: fn(&str) -> bool| text.lines().filter(|line| has(line)).count();
        let (share, hami) = (
            count(|line| line.starts_with("vgpu_share_")),
            count(|line| line.contains("podname=")),
        );
        let gpu = count(|line| line.starts_with("vgpu_gpu_")) / 2;
        assert!(share >= 30 && hami == 10, "{share} and {hami}");
        assert!(
            share + hami < 46,
            "{share} and {hami}: a ratio comes with the first charge"
        );
        assert!((6..60).contains(&gpu), "{gpu}: HAMi's has one more");
    }
}

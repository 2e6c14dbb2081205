//! Shares: their limits, their use by their ledgers, by their pages and by NVML, and the names by which these metrics are
//! joined with those of others: dcgm-exporter's by GPU, claim and device, kube-state-metrics' by pod and container.
//!
//! Every metric has dcgm-exporter's names of claim and device beside ours, so that one variable of a dashboard selects in
//! both. They are the same for all series of a share, so they add no series.
//!
//! Unknown values are left out. A tenant can write anything into its ledger and its page: reads have a size limit, a ledger
//! that cannot be read is exported as damaged, unless it has the format of another release, and so are counters that
//! cannot be right.

use super::figures::{Figure, Labels, Metric, encode_info};
use super::sources::Sources;
use crate::containers::{ContainerName, MOST};
use crate::dra::checkpoint::Entry;
use crate::dra::node::{LedgerReading, Node};
use crate::dra::share::{Share, ShareKey};
use crate::enforcement::counters::Counters;
use crate::enforcement::usage::ShareUsage;
use crate::enforcement::{ComputeVerdict, State};
use prometheus_client::encoding::DescriptorEncoder;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};
use vgpu_abi::arbitration::Counted;
use vgpu_abi::ledger::Usage;

/// A share at the time of a scrape.
pub(super) struct Sample {
    pub(super) labels: Labels,
    pub(super) share: Share,
    /// The index of the share in its claim.
    pub(super) index: usize,
    /// None if the ledger cannot be read.
    pub(super) usage: Option<Usage>,
    /// Processes that live; None in the same case.
    living: Option<usize>,
    is_damaged: bool,
    /// None: it has no page. Some(None): the page is damaged.
    counted: Option<Option<Counted>>,
    pub(super) verdict: ComputeVerdict,
    pub(super) active: Option<SystemTime>,
    /// Bytes by NVML.
    used: Option<u64>,
    /// Memory of its GPU.
    gpu_memory: Option<u64>,
    memory_mean: Option<u64>,
    since: Option<SystemTime>,
    memory_enforced: Option<bool>,
    /// The driver's own limit of its containers, and what they use of it, in bytes.
    driver_limit: Option<u64>,
    driver_used: Option<u64>,
    injected: Option<bool>,
    pub(super) containers: BTreeSet<ContainerName>,
}

/// Reads all shares. `counters` checks the counters of their pages; None: the pages are not read.
pub(super) fn samples(sources: &Sources, counters: Option<&Mutex<Counters>>) -> Vec<Sample> {
    let containers = sources.containers.known();
    let node = sources.node.lock();
    let read = |counters: &Mutex<Counters>| {
        let mut counters = counters.lock().unwrap_or_else(PoisonError::into_inner);
        counters.read(&node, Instant::now())
    };
    let counted = counters.map(read).unwrap_or_default();
    let (mut samples, mut buffer) = (Vec::new(), Vec::new());
    for (uid, entry) in &node.claims().claims {
        for (index, share) in entry.limited().enumerate() {
            let key = (uid.clone(), share.name.clone());
            let sample = Sample {
                counted: counted.get(&key).copied(),
                containers: containers.get(&key).cloned().unwrap_or_default(),
                index,
                ..Sample::of(&node, entry, share, &key, &mut buffer)
            };
            samples.push((key, sample));
        }
    }
    drop(node);
    // Lock the observations only after the ledgers are read: a disk that hangs must not block the observers.
    let state = sources.observations.lock();
    let observed = samples.into_iter().map(|(key, sample)| sample.observed(&state, &key));
    observed.collect()
}

// === impl Sample ===

impl Sample {
    fn of(node: &Node, entry: &Entry, share: &Share, key: &ShareKey, buffer: &mut Vec<u8>) -> Self {
        let ledger = node.ledger(&key.0, entry, share, buffer);
        let is_damaged = matches!(ledger, LedgerReading::Damaged(_));
        let usage = ledger.usage();
        Self {
            labels: vec![
                ("namespace", entry.namespace.clone()),
                ("claim", entry.name.clone()),
                ("share", share.name.clone()),
                ("gpu", share.gpu.clone()),
                ("dra_claim_name", entry.name.clone()),
                ("dra_claim_namespace", entry.namespace.clone()),
                ("dra_device_name", share.device.clone()),
                ("dra_pool_name", node.pools().of_device(&share.device)),
            ],
            living: usage.as_ref().and_then(|_| node.living(&key.0, share, buffer)),
            usage,
            is_damaged,
            share: share.clone(),
            index: 0,
            counted: None,
            verdict: ComputeVerdict::default(),
            active: None,
            used: None,
            gpu_memory: node.claims().gpus.get(&share.gpu).map(|gpu| gpu.memory),
            memory_mean: None,
            since: None,
            memory_enforced: None,
            driver_limit: None,
            driver_used: None,
            injected: None,
            containers: BTreeSet::new(),
        }
    }

    /// Adds what was observed of the share.
    fn observed(self, state: &State, key: &ShareKey) -> Self {
        let found = state.findings.get(key).cloned().unwrap_or_default();
        let wall = state.second_walls.get(key);
        let usage = state.usage.get(key);
        Self {
            memory_mean: usage.and_then(ShareUsage::memory_mean),
            since: usage.and_then(|usage| usage.since),
            verdict: state.compute.get(key).copied().unwrap_or_default(),
            active: state.last_active.get(key).copied(),
            used: state.used.get(key).copied(),
            memory_enforced: found.memory.status,
            driver_limit: wall.and_then(|wall| wall.limit),
            driver_used: wall.and_then(|wall| wall.used),
            injected: found.injected.status,
            ..self
        }
    }

    /// None: it has no page, or the page is damaged.
    fn counted(&self) -> Option<Counted> {
        self.counted.flatten()
    }
}

const METRICS: [Metric<Sample>; 27] = [
    Metric::gauge(
        "share_memory_limit_bytes",
        "Limit of the device memory of a share",
        |s| Some(Figure::bytes(s.share.memory)),
    ),
    Metric::gauge(
        "share_memory_used_bytes",
        "Device memory in use by a share's processes",
        |s| Some(Figure::bytes(s.usage.as_ref()?.charged)),
    ),
    Metric::gauge(
        "share_memory_peak_bytes",
        "The most device memory that a share's processes had in use at once. Absent if the ledger says more than the limit",
        |s| {
            Some(s.usage.as_ref()?.peak)
                .filter(|peak| *peak <= s.share.memory)
                .map(Figure::bytes)
        },
    ),
    Metric::gauge(
        "share_memory_mean_bytes",
        "Mean of the device memory in use by a share's processes since the node prepared it. Absent while that is not known",
        |s| s.memory_mean.map(Figure::bytes),
    ),
    Metric::gauge(
        "share_prepared_timestamp_seconds",
        "When the node prepared a share, in seconds since 1970. Absent while that is not known",
        |s| timestamp(s.since?),
    ),
    Metric::counter(
        "share_memory_refusals",
        "Calls refused because a share's limit was reached. Programs may have gone on",
        |s| Some(count(s.usage.as_ref()?.refusals.by_limit)),
    ),
    Metric::counter(
        "share_gpu_full_refusals",
        "Calls refused by the driver, although the share had room",
        |s| Some(count(s.usage.as_ref()?.refusals.by_driver)),
    ),
    Metric::gauge(
        "share_host_memory_limit_bytes",
        "Limit of the host memory of a share (memoryPolicy Oversubscribe)",
        |s| Some(Figure::bytes(s.share.host_memory)),
    ),
    Metric::gauge(
        "share_host_memory_used_bytes",
        "Host memory in use by a share's processes",
        |s| Some(Figure::bytes(s.usage.as_ref()?.host)),
    ),
    Metric::gauge("share_processes", "Living processes of a share that use its GPU", |s| {
        Some(Figure::Whole(s.living? as i64))
    }),
    Metric::gauge("share_cores", "Percent of GPU time reserved for a share", |s| {
        Some(Figure::Whole(s.share.cores.into()))
    }),
    Metric::gauge(
        "share_gpu_fraction",
        "Part of its GPU that a share has: of the memory or of the time, whichever is more. Absent while the GPU's \
         memory is not known",
        |s| Some(Figure::Real(s.share.fraction(s.gpu_memory?))),
    ),
    Metric::gauge(
        "share_ledger_damaged",
        "1 if a share's ledger is damaged: its limit may not be enforced",
        |s| Some(s.is_damaged.into()),
    ),
    Metric::counter(
        "share_gpu_seconds",
        "GPU time that a share was charged: work, and turns that it kept while others waited. Absent while its page is damaged",
        |s| Some(seconds(s.counted()?.charged)),
    ),
    Metric::counter(
        "share_throttled_seconds",
        "Time in which processes of a share waited because it had used its cores, added up over processes",
        |s| Some(seconds(s.counted()?.throttled)),
    ),
    Metric::counter(
        "share_waited_seconds",
        "Time in which processes of a share waited for its turn on the GPU, added up over processes",
        |s| Some(seconds(s.counted()?.waited)),
    ),
    Metric::gauge(
        "share_overlap_ratio",
        "Part of a share's GPU time in which another share had a turn too",
        |s| ratio(s.counted()?).map(Figure::Real),
    ),
    Metric::gauge(
        "share_compute_damaged",
        "1 if the counters of a share went backwards or are beyond its lifetime, so that they are not published",
        |s| Some(Figure::Real(f64::from(u8::from(s.counted?.is_none())))),
    ),
    Metric::gauge(
        "share_compute_enforced",
        "1 if NVML saw a share keep to its limit of GPU time, 0 if it broke it. Absent while NVML says nothing",
        |s| Some(Figure::Real(f64::from(u8::from(s.verdict.enforced?)))),
    ),
    Metric::gauge(
        "share_compute_error_points",
        "What NVML saw a share use less what it was charged, in percent of the GPU, over the last 10 s",
        |s| s.verdict.error_points.map(Figure::Real),
    ),
    Metric::gauge(
        "share_utilization_percent",
        "GPU time that NVML saw a share use in the last 2 s, in percent of the GPU. Absent while NVML says nothing",
        |s| s.verdict.used.map(Figure::Real),
    ),
    Metric::gauge(
        "share_last_activity_timestamp_seconds",
        "When a share was last charged GPU time, in seconds since 1970. Absent before this instance saw it",
        |s| timestamp(s.active?),
    ),
    Metric::gauge(
        "share_driver_memory_bytes",
        "Device memory of a share's processes by NVML. Where the driver limits cgroups, its figure of the containers fills in for processes that are not known. Absent while that is not known, or if their container has several shares of the GPU",
        |s| s.used.map(Figure::bytes),
    ),
    Metric::gauge(
        "share_memory_enforced",
        "1 if the condition MemoryEnforced of a share is True, 0 if it is False. Absent while that is not known",
        |s| s.memory_enforced.map(Figure::from),
    ),
    Metric::gauge(
        "share_driver_limit_bytes",
        "The driver's own limit of each container of a share. Absent where none was read back in the last minute",
        |s| s.driver_limit.map(Figure::bytes),
    ),
    Metric::gauge(
        "share_driver_used_bytes",
        "What the driver charged to the containers of a share. Absent while that is not known of each, or if one has several shares of the GPU",
        |s| s.driver_used.map(Figure::bytes),
    ),
    Metric::gauge(
        "share_injected",
        "1 if a container has a share's mounts, 0 if one that uses its claim lacks them. Absent before a container was seen",
        |s| s.injected.map(Figure::from),
    ),
];

pub(super) fn encode(samples: &[Sample], encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    for metric in &METRICS {
        metric.encode(encoder, samples.iter().map(|sample| (&sample.labels, sample)))?;
    }
    let joined = |sample: &Sample, more: &[(&'static str, String)]| [&sample.labels, more].concat();
    let devices = samples
        .iter()
        .map(|sample| joined(sample, &[("UUID", sample.share.gpu.clone())]));
    encode_info(
        encoder,
        "share_info",
        "1 for each share, with dcgm-exporter's name of its GPU's UUID",
        devices,
    )?;
    let containers = samples.iter().flat_map(|sample| {
        let named = sample.containers.iter().take(MOST);
        named.map(move |(pod, container)| joined(sample, &[("pod", pod.clone()), ("container", container.clone())]))
    });
    encode_info(
        encoder,
        "share_container_info",
        "1 for each container of a share, by kubelet, with the labels of kube-state-metrics; at most 8 of a share",
        containers,
    )
}

fn timestamp(at: SystemTime) -> Option<Figure> {
    let seconds = at.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(Figure::Real(seconds.as_secs_f64()))
}

fn seconds(ns: u64) -> Figure {
    Figure::Real(ns as f64 / 1e9)
}

/// A tenant can write any number into its ledger.
fn count(value: u64) -> Figure {
    Figure::Whole(i64::try_from(value).unwrap_or(i64::MAX))
}

/// None before the first charge.
fn ratio(counted: Counted) -> Option<f64> {
    (counted.charged > 0).then(|| (counted.overlapped as f64 / counted.charged as f64).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::node::SharedNode;
    use crate::dra::node::tests::prepared;
    use crate::metrics::Metrics;
    use crate::publish::inventory::tests::gpu;
    use vgpu_abi::arbitration::{PAGE, SlotPage};
    use vgpu_abi::ledger::{self, refusal};

    /// A slot page with these counters: charged, throttled, waited, overlapped.
    fn page(counters: [u64; 4]) -> Vec<u8> {
        let mut bytes = vec![0; PAGE];
        let at = std::mem::offset_of!(SlotPage, counters);
        for (place, value) in counters.into_iter().enumerate() {
            bytes[at + 8 * place..at + 8 * place + 8].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn shares_have_their_gpu_time_unless_it_cannot_be() {
        let (rig, node) = prepared(20, 30);
        let slot = rig.path("run/gpus").join(&gpu(0).uuid).join("00");
        let node = SharedNode::new(node);
        let sources = Sources::new(node);
        let observations = sources.observations.clone();
        let registry = Metrics::default().registry(sources);
        let scrape = || {
            let text = crate::metrics::page(&registry);
            let ours = text.lines().filter(|line| line.contains("share=\"s1\""));
            let values = ours.filter_map(|line| {
                let (name, value) = (line.split('{').next()?, line.rsplit(' ').next()?);
                Some((name.to_owned(), value.parse::<f64>().expect("a number")))
            });
            values.collect::<std::collections::BTreeMap<_, _>>()
        };
        std::fs::write(&slot, page([500_000_000, 20_000_000, 40_000_000, 125_000_000])).expect("written");
        let found = scrape();
        for (name, value) in [
            ("vgpu_share_gpu_seconds_total", 0.5),
            ("vgpu_share_throttled_seconds_total", 0.02),
            ("vgpu_share_waited_seconds_total", 0.04),
            ("vgpu_share_overlap_ratio", 0.25),
            ("vgpu_share_compute_damaged", 0.0),
        ] {
            assert_eq!(found.get(name), Some(&value), "{name}");
        }
        assert!(
            !found.contains_key("vgpu_share_compute_enforced"),
            "nothing is known yet"
        );
        let key = ("u1".to_owned(), "s1".to_owned());
        let verdict = ComputeVerdict {
            enforced: Some(false),
            error_points: Some(-3.5),
            used: Some(42.0),
        };
        observations.lock().compute.insert(key.clone(), verdict);
        let found = scrape();
        assert_eq!(found.get("vgpu_share_compute_enforced"), Some(&0.0));
        assert_eq!(found.get("vgpu_share_compute_error_points"), Some(&-3.5));
        assert_eq!(found.get("vgpu_share_utilization_percent"), Some(&42.0));
        assert!(!found.contains_key("vgpu_share_last_activity_timestamp_seconds"));
        let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
        observations.lock().last_active.insert(key, then);
        assert_eq!(
            scrape().get("vgpu_share_last_activity_timestamp_seconds"),
            Some(&1_700_000_000.0)
        );
        // Backwards, beyond its lifetime, cut, and grown.
        for bytes in [page([0; 4]), page([u64::MAX; 4]), vec![0; 100], vec![0; PAGE + 1]] {
            std::fs::write(&slot, bytes).expect("written");
            let found = scrape();
            assert_eq!(found.get("vgpu_share_compute_damaged"), Some(&1.0));
            assert!(!found.contains_key("vgpu_share_gpu_seconds_total"), "{found:?}");
        }
        std::fs::write(&slot, page([600_000_000, 20_000_000, 40_000_000, 125_000_000])).expect("written");
        assert_eq!(
            scrape().get("vgpu_share_gpu_seconds_total"),
            Some(&0.6),
            "plausible again"
        );
    }

    #[test]
    fn a_share_has_its_peak_and_its_refusals_unless_they_cannot_be() {
        let (rig, node) = prepared(20, 30);
        let path = rig.path("run/claims/u1/s1/ledger");
        let registry = Metrics::default().registry(Sources::new(SharedNode::new(node)));
        let values = |words: &[(usize, u64)]| {
            let mut bytes = std::fs::read(&path).expect("a ledger");
            for (at, value) in words {
                bytes[*at..*at + 8].copy_from_slice(&value.to_le_bytes());
            }
            std::fs::write(&path, bytes).expect("written");
            let text = crate::metrics::page(&registry);
            let value = |name: &str| {
                let line = text
                    .lines()
                    .find(|line| line.starts_with(name) && line.contains("share=\"s1\""))?;
                line.rsplit(' ').next()?.parse::<f64>().ok()
            };
            [
                "vgpu_share_memory_peak_bytes",
                "vgpu_share_memory_refusals_total",
                "vgpu_share_gpu_full_refusals_total",
            ]
            .map(value)
        };
        assert_eq!(values(&[]), [Some(0.0); 3]);
        let words = [
            (ledger::PEAK_AT, 7 << 20),
            (refusal::BY_LIMIT_AT, 5),
            (refusal::BY_DRIVER_AT, 2),
        ];
        assert_eq!(values(&words), [Some(7_340_032.0), Some(5.0), Some(2.0)]);
        assert_eq!(values(&[(ledger::PEAK_AT, u64::MAX)])[0], None, "more than the limit");
    }

    #[test]
    fn there_is_no_ratio_before_the_first_charge() {
        assert_eq!(ratio(Counted::default()), None);
        let more = Counted {
            charged: 1,
            overlapped: 5,
            ..Counted::default()
        };
        assert_eq!(ratio(more), Some(1.0));
    }
}

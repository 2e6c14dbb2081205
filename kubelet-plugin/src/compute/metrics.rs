//! GPU time of shares as metrics, at each scrape.
//!
//! Counters that are damaged are left out, and `share_compute_damaged` is 1. What is not known is left out too.

use super::charged::Charges;
use super::compare::Comparison;
use super::judge::Verdict;
use crate::node::SharedNode;
use crate::share::ShareKey;
use crate::usage::labels;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime};
use vgpu_abi::arbitration::Counted;

/// Exports what the pages and the comparison say.
pub struct ComputeUsage {
    node: SharedNode,
    comparison: Comparison,
    charges: Mutex<Charges>,
}

/// A share at the time of a scrape.
struct Sample {
    labels: [(&'static str, String); 4],
    /// None: damaged.
    counted: Option<Counted>,
    verdict: Verdict,
    active: Option<SystemTime>,
}

// === impl ComputeUsage ===

impl ComputeUsage {
    #[must_use]
    pub fn new(node: SharedNode, comparison: Comparison) -> Self {
        Self {
            node,
            comparison,
            charges: Mutex::default(),
        }
    }

    fn samples(&self) -> Vec<Sample> {
        let (verdicts, active) = (self.comparison.verdicts(), self.comparison.last_active());
        let node = self.node.lock();
        let mut charges = self.charges.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = charges.read(&node, Instant::now());
        let sample = |(key, counted): (ShareKey, Option<Counted>)| {
            let entry = node.claims().claims.get(&key.0)?;
            let held = entry.shares.iter().find(|held| held.share.name == key.1)?;
            Some(Sample {
                labels: labels(entry, &held.share),
                counted,
                verdict: verdicts.get(&key).copied().unwrap_or_default(),
                active: active.get(&key).copied(),
            })
        };
        counted.into_iter().filter_map(sample).collect()
    }
}

impl fmt::Debug for ComputeUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ComputeUsage")
    }
}

type Value = fn(&Sample) -> Option<f64>;

const COUNTERS: [(&str, &str, Value); 3] = [
    (
        "share_gpu_seconds",
        "GPU time that a share was charged: work, and turns that it kept while others waited. Absent while its page is damaged",
        |s| Some(seconds(s.counted?.charged)),
    ),
    (
        "share_throttled_seconds",
        "Time in which processes of a share waited because it had used its cores, added up over processes",
        |s| Some(seconds(s.counted?.throttled)),
    ),
    (
        "share_waited_seconds",
        "Time in which processes of a share waited for its turn on the GPU, added up over processes",
        |s| Some(seconds(s.counted?.waited)),
    ),
];

const GAUGES: [(&str, &str, Value); 6] = [
    (
        "share_overlap_ratio",
        "Part of a share's GPU time in which another share had a turn too",
        |s| ratio(s.counted?),
    ),
    (
        "share_compute_damaged",
        "1 if the counters of a share went backwards or are beyond its lifetime, so that they are not published",
        |s| Some(f64::from(u8::from(s.counted.is_none()))),
    ),
    (
        "share_compute_enforced",
        "1 if NVML saw a share keep to its limit of GPU time, 0 if it broke it. Absent while NVML says nothing",
        |s| s.verdict.enforced.map(|enforced| f64::from(u8::from(enforced))),
    ),
    (
        "share_compute_error_points",
        "What NVML saw a share use less what it was charged, in percent of the GPU, over the last 10 s",
        |s| s.verdict.error_points,
    ),
    (
        "share_utilization_percent",
        "GPU time that NVML saw a share use in the last 2 s, in percent of the GPU. Absent while NVML says nothing",
        |s| s.verdict.used,
    ),
    (
        "share_last_activity_timestamp_seconds",
        "When a share was last charged GPU time, in seconds since 1970. Absent before this instance saw it",
        |s| Some(s.active?.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs_f64()),
    ),
];

impl Collector for ComputeUsage {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let samples = self.samples();
        for (name, help, value) in COUNTERS {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (sample, value) in samples.iter().filter_map(|sample| Some((sample, value(sample)?))) {
                ConstCounter::new(value).encode(family.encode_family(&sample.labels)?)?;
            }
        }
        for (name, help, value) in GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (sample, value) in samples.iter().filter_map(|sample| Some((sample, value(sample)?))) {
                ConstGauge::new(value).encode(family.encode_family(&sample.labels)?)?;
            }
        }
        Ok(())
    }
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// None before the first charge.
fn ratio(counted: Counted) -> Option<f64> {
    (counted.charged > 0).then(|| (counted.overlapped as f64 / counted.charged as f64).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::tests::gpu;
    use crate::metrics::Metrics;
    use crate::node::tests::{Rig, claim};
    use std::collections::BTreeMap;
    use vgpu_abi::arbitration::{PAGE, SlotPage};

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
        let rig = Rig::new(false);
        let mut node = rig.open();
        assert!(node.prepare(&node.locked(), &[claim("u1", &[("s1", 20, 30)])])[0].is_ok());
        let slot = rig.path("run/gpus").join(&gpu(0).uuid).join("00");
        let node = SharedNode::new(node);
        let comparison = Comparison::default();
        let registry = Metrics::default().registry(crate::metrics::Sources {
            comparison: comparison.clone(),
            ..crate::metrics::Sources::new(node)
        });
        let scrape = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).expect("encoded");
            let ours = text.lines().filter(|line| line.contains("share=\"s1\""));
            let values = ours.filter_map(|line| {
                let (name, value) = (line.split('{').next()?, line.rsplit(' ').next()?);
                Some((name.to_owned(), value.parse::<f64>().expect("a number")))
            });
            values.collect::<BTreeMap<_, _>>()
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
        let verdict = Verdict {
            enforced: Some(false),
            error_points: Some(-3.5),
            used: Some(42.0),
        };
        comparison.set(BTreeMap::from([(key, verdict)]));
        let found = scrape();
        assert_eq!(found.get("vgpu_share_compute_enforced"), Some(&0.0));
        assert_eq!(found.get("vgpu_share_compute_error_points"), Some(&-3.5));
        assert_eq!(found.get("vgpu_share_utilization_percent"), Some(&42.0));
        assert!(!found.contains_key("vgpu_share_last_activity_timestamp_seconds"));
        let then = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
        comparison.touch([("u1".to_owned(), "s1".to_owned())], then);
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

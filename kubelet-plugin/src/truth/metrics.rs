//! What was observed, as metrics, at each scrape. What is not known is left out.

use super::finding::Finding;
use super::observe::Truth;
use crate::node::SharedNode;
use crate::share::ShareKey;
use crate::usage::labels;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;

/// Exports what was observed.
pub struct Observed {
    node: SharedNode,
    truth: Truth,
}

/// A share at the time of a scrape.
struct Sample {
    labels: [(&'static str, String); 4],
    used: Option<i64>,
    memory: Option<bool>,
    injected: Option<bool>,
}

// === impl Observed ===

impl Observed {
    #[must_use]
    pub fn new(node: SharedNode, truth: Truth) -> Self {
        Self { node, truth }
    }

    fn samples(&self) -> Vec<Sample> {
        let (findings, used) = {
            let state = self.truth.lock();
            (state.findings.clone(), state.used.clone())
        };
        let node = self.node.lock();
        let sample = |(key, found): (&ShareKey, &super::conditions::ShareFindings)| {
            let entry = node.claims().claims.get(&key.0)?;
            let held = entry.shares.iter().find(|held| held.share.name == key.1)?;
            let status = |finding: Finding| finding.status;
            Some(Sample {
                labels: labels(entry, &held.share),
                used: used.get(key).map(|bytes| i64::try_from(*bytes).unwrap_or(i64::MAX)),
                memory: status(found.memory),
                injected: status(found.injected),
            })
        };
        findings.iter().filter_map(sample).collect()
    }
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observed")
    }
}

type Value = fn(&Sample) -> Option<i64>;

const GAUGES: [(&str, &str, Value); 3] = [
    (
        "share_driver_memory_bytes",
        "Device memory of a share's processes by NVML. Absent while that is not known, or if their container has several shares of the GPU",
        |s| s.used,
    ),
    (
        "share_memory_enforced",
        "1 if the condition MemoryEnforced of a share is True, 0 if it is False. Absent while that is not known",
        |s| s.memory.map(i64::from),
    ),
    (
        "share_injected",
        "1 if a container has a share's mounts, 0 if one that uses its claim lacks them. Absent before a container was seen",
        |s| s.injected.map(i64::from),
    ),
];

impl Collector for Observed {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let samples = self.samples();
        for (name, help, value) in GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (sample, value) in samples.iter().filter_map(|sample| Some((sample, value(sample)?))) {
                ConstGauge::new(value).encode(family.encode_family(&sample.labels)?)?;
            }
        }
        let (gpus, kills) = {
            let state = self.truth.lock();
            (state.gpus.clone(), state.kills)
        };
        let help = "Device memory of processes without a share of a GPU, by NVML. Absent while that is not known";
        let mut family = encoder.encode_descriptor("gpu_unexplained_bytes", help, None, MetricType::Gauge)?;
        for (gpu, found) in &gpus {
            let Some(bytes) = found.unexplained else { continue };
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            ConstGauge::new(bytes).encode(family.encode_family(&[("gpu", gpu.as_str())])?)?;
        }
        let help = "Processes that were killed because their share was over its limit (plugin.onBreach: kill)";
        let family = encoder.encode_descriptor("killed_processes", help, None, MetricType::Counter)?;
        ConstCounter::new(kills).encode(family)
    }
}

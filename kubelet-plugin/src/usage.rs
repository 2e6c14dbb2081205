//! What shares hold, from their ledgers, at the time of a scrape.
//!
//! A ledger is its tenant's to write: reads are bounded, numbers are what they are, and a ledger
//! that says nothing is counted as damaged instead of being left out in silence.

use crate::node::SharedNode;
use crate::share::Role;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;

/// Reads ledgers.
pub struct Usage {
    node: SharedNode,
}

/// One share at one moment.
struct Sample {
    labels: [(&'static str, String); 4],
    limit: i64,
    cores: i64,
    /// Device memory, host memory and processes; `None` where the ledger says nothing.
    used: Option<(i64, i64, i64)>,
    host_limit: i64,
}

// === impl Usage ===

impl Usage {
    #[must_use]
    pub fn new(node: SharedNode) -> Self {
        Self { node }
    }

    fn samples(&self) -> Vec<Sample> {
        let node = self.node.lock();
        let mut samples = Vec::new();
        for (uid, entry) in &node.claims().claims {
            for held in entry.shares.iter().filter(|held| held.share.role == Role::Share) {
                let usage = node.dirs().usage(uid, &held.share).ok();
                samples.push(Sample {
                    labels: [
                        ("namespace", entry.namespace.clone()),
                        ("claim", entry.name.clone()),
                        ("share", held.share.name.clone()),
                        ("gpu", held.share.gpu.clone()),
                    ],
                    limit: signed(held.share.memory),
                    cores: i64::from(held.share.cores),
                    used: usage.map(|usage| (signed(usage.charged), signed(usage.host), usage.processes.len() as i64)),
                    host_limit: signed(held.share.host_memory),
                });
            }
        }
        samples
    }
}

impl fmt::Debug for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Usage")
    }
}

impl Collector for Usage {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let samples = self.samples();
        type Value = fn(&Sample) -> Option<i64>;
        let figures: [(&str, &str, Value); 7] = [
            ("share_memory_limit_bytes", "Device memory that a share may hold", |s| {
                Some(s.limit)
            }),
            (
                "share_memory_used_bytes",
                "Device memory that a share's processes hold",
                |s| s.used.map(|(charged, _, _)| charged),
            ),
            (
                "share_host_memory_limit_bytes",
                "Host memory that a share may hold beyond its device memory (memoryPolicy Oversubscribe)",
                |s| Some(s.host_limit),
            ),
            (
                "share_host_memory_used_bytes",
                "Host memory that a share's processes hold beyond its device memory",
                |s| s.used.map(|(_, host, _)| host),
            ),
            ("share_processes", "Processes of a share that use its GPU", |s| {
                s.used.map(|(_, _, processes)| processes)
            }),
            ("share_cores", "Percent of GPU time guaranteed to a share", |s| {
                Some(s.cores)
            }),
            (
                "share_ledger_damaged",
                "1 where a share's ledger cannot be read: its limit may not hold",
                |s| Some(i64::from(s.used.is_none())),
            ),
        ];
        for (name, help, value) in figures {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for sample in &samples {
                if let Some(value) = value(sample) {
                    ConstGauge::new(value).encode(family.encode_family(&sample.labels)?)?;
                }
            }
        }
        Ok(())
    }
}

/// A tenant can claim to hold more than any number.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

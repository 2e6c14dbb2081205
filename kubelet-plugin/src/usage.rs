//! Reads what shares use from their ledgers, at each scrape of /metrics.
//!
//! A tenant can write anything into its ledger: reads have a size limit, numbers are passed on as they are,
//! and a ledger that cannot be read is exported as damaged instead of being left out, unless it has the format of another
//! release.

use crate::checkpoint::Entry;
use crate::node::{LedgerReading, SharedNode};
use crate::share::{Role, Share};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;

/// Exports the ledgers' contents as metrics.
pub struct Usage {
    node: SharedNode,
}

/// A share's limits and use at the time of a scrape.
struct Sample {
    labels: [(&'static str, String); 4],
    limit: i64,
    cores: i64,
    /// Device memory and host memory; `None` if the ledger cannot be read.
    used: Option<(i64, i64)>,
    /// Processes that live; `None` in the same case.
    living: Option<usize>,
    is_damaged: bool,
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
        let (mut samples, mut buffer) = (Vec::new(), Vec::new());
        for (uid, entry) in &node.claims().claims {
            for held in entry.shares.iter().filter(|held| held.share.role == Role::Share) {
                let ledger = node.ledger(uid, entry, &held.share, &mut buffer);
                let is_damaged = matches!(ledger, LedgerReading::Damaged(_));
                let usage = ledger.usage();
                let has_usage = usage.is_some();
                samples.push(Sample {
                    labels: labels(entry, &held.share),
                    limit: signed(held.share.memory),
                    cores: i64::from(held.share.cores),
                    used: usage.map(|usage| (signed(usage.charged), signed(usage.host))),
                    living: has_usage.then(|| node.living(uid, &held.share, &buffer)).flatten(),
                    is_damaged,
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
            (
                "share_memory_limit_bytes",
                "Limit of the device memory of a share",
                |s| Some(s.limit),
            ),
            (
                "share_memory_used_bytes",
                "Device memory in use by a share's processes",
                |s| s.used.map(|(charged, _)| charged),
            ),
            (
                "share_host_memory_limit_bytes",
                "Limit of the host memory of a share (memoryPolicy Oversubscribe)",
                |s| Some(s.host_limit),
            ),
            (
                "share_host_memory_used_bytes",
                "Host memory in use by a share's processes",
                |s| s.used.map(|(_, host)| host),
            ),
            ("share_processes", "Living processes of a share that use its GPU", |s| {
                s.living.map(|living| living as i64)
            }),
            ("share_cores", "Percent of GPU time reserved for a share", |s| {
                Some(s.cores)
            }),
            (
                "share_ledger_damaged",
                "1 if a share's ledger is damaged: its limit may not be enforced",
                |s| Some(i64::from(s.is_damaged)),
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

/// The labels of every metric of a share.
pub(crate) fn labels(entry: &Entry, share: &Share) -> [(&'static str, String); 4] {
    [
        ("namespace", entry.namespace.clone()),
        ("claim", entry.name.clone()),
        ("share", share.name.clone()),
        ("gpu", share.gpu.clone()),
    ]
}

/// A tenant can write any number into its ledger, so clamp it.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

//! The node's GPUs: what claims hold of each, and its health.

use crate::inventory::Inventory;
use crate::node::SharedNode;
use crate::share::{Role, Share, ShareKeys};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;

pub(super) struct Gpus {
    node: SharedNode,
}

struct Sample {
    labels: [(&'static str, String); 4],
    model: String,
    driver_version: String,
    memory: u64,
    held: u64,
    shares: usize,
    cores: u32,
    healthy: bool,
    /// Name and effect of each taint.
    taints: Vec<(&'static str, &'static str)>,
    /// How many of the shares have no claim; None while that is not known.
    unclaimed: Option<usize>,
}

// === impl Gpus ===

impl Gpus {
    pub(super) fn new(node: SharedNode) -> Self {
        Self { node }
    }

    fn samples(&self) -> Vec<Sample> {
        let node = self.node.lock();
        let Some(inventory) = node.inventory() else {
            return Vec::new();
        };
        let sample = |(device, gpu): (&str, &crate::inventory::Gpu)| {
            let entries = node.claims().claims.iter();
            let shares = entries.flat_map(|(uid, entry)| entry.shares.iter().map(move |held| (uid, &held.share)));
            let is_own = |share: &Share| share.role == Role::Share && share.gpu == gpu.uuid;
            let (keys, own): (ShareKeys, Vec<_>) = shares
                .filter(|(_, share)| is_own(share))
                .map(|(uid, share)| ((uid.clone(), share.name.clone()), share))
                .unzip();
            Sample {
                labels: [
                    ("gpu", gpu.uuid.clone()),
                    ("UUID", gpu.uuid.clone()),
                    ("dra_device_name", device.to_owned()),
                    ("dra_pool_name", node.pool()),
                ],
                model: gpu.name.clone(),
                driver_version: gpu.driver_version.clone(),
                memory: gpu.memory,
                held: own.iter().fold(0, |sum, share| sum.saturating_add(share.memory)),
                shares: own.len(),
                cores: own.iter().map(|share| share.cores).sum(),
                healthy: inventory.troubles(&gpu.uuid).is_empty(),
                taints: taints(inventory, &gpu.uuid),
                unclaimed: node.unclaimed().map(|unclaimed| keys.intersection(unclaimed).count()),
            }
        };
        inventory.by_index().into_iter().map(sample).collect()
    }
}

impl fmt::Debug for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gpus")
    }
}

type Value = fn(&Sample) -> i64;

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

const GAUGES: [(&str, &str, Value); 6] = [
    ("gpu_memory_bytes", "Memory of a GPU for shares", |s| signed(s.memory)),
    (
        "gpu_held_memory_bytes",
        "Memory of a GPU that prepared claims hold",
        |s| signed(s.held),
    ),
    (
        "gpu_free_memory_bytes",
        "Memory of a GPU that no prepared claim holds",
        |s| signed(s.memory.saturating_sub(s.held)),
    ),
    ("gpu_shares", "Shares of a GPU that prepared claims hold", |s| {
        s.shares as i64
    }),
    (
        "gpu_held_cores",
        "Percent of a GPU's time that is reserved for prepared claims",
        |s| i64::from(s.cores),
    ),
    (
        "gpu_healthy",
        "1 if new claims may have a GPU, 0 if a taint keeps them away",
        |s| i64::from(s.healthy),
    ),
];

fn taints(inventory: &Inventory, uuid: &str) -> Vec<(&'static str, &'static str)> {
    let ailment = inventory.ailment(uuid).map(|ailment| (ailment.name(), "NoSchedule"));
    let faults = inventory.faults(uuid).iter();
    let faults = faults.map(|fault| (fault.reason.name(), fault.effect()));
    ailment.into_iter().chain(faults).collect()
}

impl Collector for Gpus {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let samples = self.samples();
        for (name, help, value) in GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for sample in &samples {
                ConstGauge::new(value(sample)).encode(family.encode_family(&sample.labels)?)?;
            }
        }
        let help = "1 for each GPU, with its model and the driver's version";
        let mut family = encoder.encode_descriptor("gpu_info", help, None, MetricType::Gauge)?;
        for sample in &samples {
            let own = [
                ("model", sample.model.clone()),
                ("driver_version", sample.driver_version.clone()),
            ];
            let labels: Vec<_> = sample.labels.iter().cloned().chain(own).collect();
            ConstGauge::new(1_i64).encode(family.encode_family(&labels)?)?;
        }
        let (name, help) = (
            "gpu_taint",
            "1 for each taint of a GPU that is about its health, by reason and effect",
        );
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for sample in &samples {
            for (reason, effect) in &sample.taints {
                let own = [("reason", (*reason).to_owned()), ("effect", (*effect).to_owned())];
                let labels: Vec<_> = sample.labels.iter().cloned().chain(own).collect();
                ConstGauge::new(1_i64).encode(family.encode_family(&labels)?)?;
            }
        }
        let (name, help) = (
            "gpu_shares_without_claim",
            "Shares of a GPU that containers have and whose claim is gone, so that allocator and quota do not count them. \
             Absent while that is not known",
        );
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for sample in &samples {
            let Some(count) = sample.unclaimed else { continue };
            ConstGauge::new(count as i64).encode(family.encode_family(&sample.labels)?)?;
        }
        Ok(())
    }
}

//! The names that HAMi's monitor gives its metrics, for dashboards that were made for it. Behind a flag.
//!
//! Only what is known here: HAMi's split of memory by kind (`Device_memory_desc_of_container`) and the utilisation of the
//! whole GPU (`HostCoreUtilization`) are not. A share has a line for each container that kubelet names, as HAMi's has, but
//! for three at most: with them it has no more than the 40 series that a share may have.

use super::Sources;
use crate::share::Role;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::time::SystemTime;

/// Containers of a share that these metrics name, with a series for each of `GAUGES`.
const MOST: usize = 3;

/// A registry with these metrics alone, whose names have no prefix.
#[must_use]
pub fn registry(sources: Sources) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Hami(sources)));
    registry
}

struct Hami(Sources);

struct Sample {
    labels: [(&'static str, String); 5],
    limit: f64,
    used: Option<f64>,
    utilisation: Option<f64>,
    idle: Option<f64>,
}

type HostLine = ([(&'static str, String); 3], f64);

// === impl Hami ===

impl Hami {
    fn samples(&self) -> (Vec<Sample>, Vec<HostLine>) {
        let known = self.0.containers.known();
        let (verdicts, active) = (self.0.comparison.verdicts(), self.0.comparison.last_active());
        let gpus = self.0.truth.lock().gpus.clone();
        let node = self.0.node.lock();
        let now = SystemTime::now();
        let (mut samples, mut buffer) = (Vec::new(), Vec::new());
        for (uid, entry) in &node.claims().claims {
            for (index, held) in entry
                .shares
                .iter()
                .enumerate()
                .filter(|(_, held)| held.share.role == Role::Share)
            {
                let share = &held.share;
                let key = (uid.clone(), share.name.clone());
                let used = node
                    .ledger(uid, entry, share, &mut buffer)
                    .usage()
                    .map(|usage| usage.charged as f64);
                let idle = active.get(&key).and_then(|at| now.duration_since(*at).ok());
                for (pod, container) in known.get(&key).into_iter().flatten().take(MOST) {
                    samples.push(Sample {
                        labels: [
                            ("podnamespace", entry.namespace.clone()),
                            ("podname", pod.clone()),
                            ("ctrname", container.clone()),
                            ("vdeviceid", index.to_string()),
                            ("deviceuuid", share.gpu.clone()),
                        ],
                        limit: share.memory as f64,
                        used,
                        utilisation: verdicts.get(&key).and_then(|verdict| verdict.used),
                        idle: idle.map(|idle| idle.as_secs_f64()),
                    });
                }
            }
        }
        let inventory = node.inventory().into_iter().flat_map(|inventory| inventory.by_index());
        let host = inventory.filter_map(|(_, gpu)| {
            let used = gpus.get(&gpu.uuid)?.used?;
            let labels = [
                ("deviceidx", gpu.index.to_string()),
                ("deviceuuid", gpu.uuid.clone()),
                ("devicetype", gpu.name.clone()),
            ];
            Some((labels, used as f64))
        });
        (samples, host.collect())
    }
}

impl fmt::Debug for Hami {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hami")
    }
}

type Value = fn(&Sample) -> Option<f64>;

const GAUGES: [(&str, &str, Value); 4] = [
    ("vGPU_device_memory_usage_in_bytes", "vGPU device usage", |s| s.used),
    ("vGPU_device_memory_limit_in_bytes", "vGPU device limit", |s| {
        Some(s.limit)
    }),
    (
        "Device_utilization_desc_of_container",
        "Container device utilization description",
        |s| s.utilisation,
    ),
    (
        "Device_last_kernel_of_container",
        "Container device last kernel description",
        |s| s.idle,
    ),
];

impl Collector for Hami {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (samples, host) = self.samples();
        for (name, help, value) in GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (sample, value) in samples.iter().filter_map(|sample| Some((sample, value(sample)?))) {
                ConstGauge::new(value).encode(family.encode_family(&sample.labels)?)?;
            }
        }
        let mut family =
            encoder.encode_descriptor("HostGPUMemoryUsage", "GPU device memory usage", None, MetricType::Gauge)?;
        for (labels, used) in &host {
            ConstGauge::new(*used).encode(family.encode_family(labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::Verdict;
    use crate::node::SharedNode;
    use crate::node::tests::{Rig, claim};
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn dashboards_of_hami_find_their_names_and_labels() {
        let rig = Rig::new(false);
        let mut node = rig.open();
        assert!(node.prepare(&node.locked(), &[claim("u1", &[("s1", 20, 30)])])[0].is_ok());
        let sources = Sources::new(SharedNode::new(node));
        let key = ("u1".to_owned(), "s1".to_owned());
        let text = || {
            let mut text = String::new();
            let registry = registry(sources.clone());
            prometheus_client::encoding::text::encode(&mut text, &registry).expect("encoded");
            text
        };
        assert!(!text().contains("podname"), "kubelet has not named its container");
        let container = BTreeSet::from([("p".to_owned(), "main".to_owned())]);
        sources.containers.set(BTreeMap::from([(key.clone(), container)]));
        let verdict = Verdict {
            used: Some(17.0),
            ..Verdict::default()
        };
        sources.comparison.set(BTreeMap::from([(key.clone(), verdict)]));
        sources.comparison.touch([key], SystemTime::now());
        let gpu = crate::inventory::tests::gpu(0).uuid;
        let labels = format!(r#"podnamespace="d",podname="p",ctrname="main",vdeviceid="0",deviceuuid="{gpu}""#);
        let text = text();
        for line in [
            format!("vGPU_device_memory_limit_in_bytes{{{labels}}} {}.0", 20_u64 << 30),
            format!("vGPU_device_memory_usage_in_bytes{{{labels}}} 0.0"),
            format!("Device_utilization_desc_of_container{{{labels}}} 17.0"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert!(text.contains("Device_last_kernel_of_container{"), "{text}");
    }
}

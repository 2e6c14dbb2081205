//! The names that HAMi's monitor gives its metrics, for dashboards that were made for it. Behind a flag.
//!
//! Only what is known here. HAMi puts its split of memory by kind into labels of `Device_memory_desc_of_container`
//! (`context`, `module`, `data`, `offset`): the ledger does not split, and sizes in labels are a new series at each change,
//! which a tenant decides on. So these labels are left out; the value is HAMi's, all memory in use.
//!
//! A share has a line for each container that kubelet names, as HAMi's has, but for two at most: with them it has no more
//! than the 40 series that a share may have.
//!
//! A scrape never waits for the driver: how busy GPUs are comes from [`crate::compute::busy`].

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
const MOST: usize = 2;

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

/// A GPU: its labels, its memory in use and how busy it is.
struct HostSample {
    labels: [(&'static str, String); 3],
    memory: Option<f64>,
    busy: Option<f64>,
}

// === impl Hami ===

impl Hami {
    fn samples(&self) -> (Vec<Sample>, Vec<HostSample>) {
        let known = self.0.containers.known();
        let (verdicts, active) = (self.0.comparison.verdicts(), self.0.comparison.last_active());
        let gpus = self.0.truth.lock().gpus.clone();
        let busy = self.0.busy.rates();
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
        let host = inventory.map(|(_, gpu)| HostSample {
            labels: [
                ("deviceidx", gpu.index.to_string()),
                ("deviceuuid", gpu.uuid.clone()),
                ("devicetype", gpu.name.clone()),
            ],
            memory: gpus.get(&gpu.uuid).and_then(|gpu| gpu.used).map(|used| used as f64),
            busy: busy.get(&gpu.uuid).copied().map(f64::from),
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

type HostValue = fn(&HostSample) -> Option<f64>;

const HOST_GAUGES: [(&str, &str, HostValue); 2] = [
    ("HostGPUMemoryUsage", "GPU device memory usage", |gpu| gpu.memory),
    ("HostCoreUtilization", "GPU core utilization", |gpu| gpu.busy),
];

const GAUGES: [(&str, &str, Value); 5] = [
    ("vGPU_device_memory_usage_in_bytes", "vGPU device usage", |s| s.used),
    ("vGPU_device_memory_limit_in_bytes", "vGPU device limit", |s| {
        Some(s.limit)
    }),
    (
        "Device_memory_desc_of_container",
        "Container device memory description",
        |s| s.used,
    ),
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
        for (name, help, value) in HOST_GAUGES {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (gpu, value) in host.iter().filter_map(|gpu| Some((gpu, value(gpu)?))) {
                ConstGauge::new(value).encode(family.encode_family(&gpu.labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::busy::watch_every;
    use crate::compute::{GpuRates, Rates, Verdict};
    use crate::node::SharedNode;
    use crate::node::tests::{Rig, claim};
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Duration;

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
            format!("Device_memory_desc_of_container{{{labels}}} 0.0"),
            format!("Device_utilization_desc_of_container{{{labels}}} 17.0"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert!(text.contains("Device_last_kernel_of_container{"), "{text}");
    }

    /// Answers once, and then hangs.
    struct Hangs(std::sync::atomic::AtomicBool);

    impl GpuRates for Hangs {
        fn rates(&self) -> Rates {
            if self.0.swap(true, std::sync::atomic::Ordering::Relaxed) {
                std::thread::sleep(Duration::from_secs(1));
            }
            Rates::from([(crate::inventory::tests::gpu(0).uuid, 42)])
        }
    }

    #[tokio::test]
    async fn how_busy_a_gpu_is_is_served_until_nvml_hangs() {
        let rig = Rig::new(false);
        let sources = Sources::new(SharedNode::new(rig.open()));
        let registry = registry(sources.clone());
        let served = || {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &registry).expect("encoded");
            let mut lines = text.lines().filter(|line| line.starts_with("HostCoreUtilization{"));
            lines.next().map(str::to_owned)
        };
        assert_eq!(served(), None, "nothing is known before the first answer");
        let every = Duration::from_millis(100);
        let watch = tokio::spawn(watch_every(every, Hangs(false.into()), sources.busy.clone()));
        while served().is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let gpu = crate::inventory::tests::gpu(0);
        let (uuid, name) = (gpu.uuid, gpu.name);
        assert_eq!(
            served(),
            Some(format!(
                "HostCoreUtilization{{deviceidx=\"0\",deviceuuid=\"{uuid}\",devicetype=\"{name}\"}} 42.0"
            ))
        );
        let asked = std::time::Instant::now();
        while served().is_some() {
            assert!(
                asked.elapsed() < Duration::from_millis(900),
                "a figure of long ago is served while NVML hangs"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        watch.abort();
    }
}

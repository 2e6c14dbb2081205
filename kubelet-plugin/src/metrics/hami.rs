//! The names that HAMi's monitor gives its metrics, for dashboards that were made for it. Behind a flag.
//!
//! HAMi puts its split of memory by kind into labels of `Device_memory_desc_of_container` (`context`, `module`, `data`,
//! `offset`). The ledger has no such split, and a size in a label would create a new series at each change, which a
//! tenant controls. So these labels are left out; the value is the same as HAMi's, all memory in use.
//!
//! As in HAMi, a share has a line for each container that kubelet names, but for at most two, so that it has no more
//! than the 40 series that a share may have.
//!
//! A scrape never waits for the driver: all figures are those of the last sample.

use super::figures::{Figure, Labels, Metric};
use super::shares;
use super::sources::Sources;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;
use std::fmt;
use std::time::SystemTime;

/// Containers of a share that these metrics name, with a series for each of `METRICS`.
const MOST: usize = 2;

/// A registry with these metrics alone, whose names have no prefix.
#[must_use]
pub fn registry(sources: Sources) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Hami(sources)));
    registry
}

struct Hami(Sources);

/// A GPU: its memory in use and how busy it is.
struct Gpu {
    memory: Option<u64>,
    busy: Option<u32>,
}

impl fmt::Debug for Hami {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hami")
    }
}

fn real(value: u64) -> Figure {
    Figure::Real(value as f64)
}

const METRICS: [Metric<shares::Sample>; 5] = [
    Metric::gauge("vGPU_device_memory_usage_in_bytes", "vGPU device usage", |s| {
        Some(real(s.usage.as_ref()?.charged))
    }),
    Metric::gauge("vGPU_device_memory_limit_in_bytes", "vGPU device limit", |s| {
        Some(real(s.share.memory))
    }),
    Metric::gauge(
        "Device_memory_desc_of_container",
        "Container device memory description",
        |s| Some(real(s.usage.as_ref()?.charged)),
    ),
    Metric::gauge(
        "Device_utilization_desc_of_container",
        "Container device utilization description",
        |s| s.verdict.used.map(Figure::Real),
    ),
    Metric::gauge(
        "Device_last_kernel_of_container",
        "Container device last kernel description",
        |s| {
            Some(Figure::Real(
                SystemTime::now().duration_since(s.active?).ok()?.as_secs_f64(),
            ))
        },
    ),
];

const GPU_METRICS: [Metric<Gpu>; 2] = [
    Metric::gauge("HostGPUMemoryUsage", "GPU device memory usage", |gpu| {
        gpu.memory.map(real)
    }),
    Metric::gauge("HostCoreUtilization", "GPU core utilization", |gpu| {
        Some(Figure::Real(gpu.busy?.into()))
    }),
];

impl Collector for Hami {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let samples = shares::samples(&self.0, None);
        let named: Vec<(Labels, &shares::Sample)> = samples.iter().flat_map(of_containers).collect();
        for metric in &METRICS {
            metric.encode(&mut encoder, named.iter().map(|(labels, sample)| (labels, *sample)))?;
        }
        let gpus = gpus(&self.0);
        for metric in &GPU_METRICS {
            metric.encode(&mut encoder, gpus.iter().map(|(labels, gpu)| (labels, gpu)))?;
        }
        Ok(())
    }
}

fn of_containers(sample: &shares::Sample) -> impl Iterator<Item = (Labels, &shares::Sample)> {
    let namespace = &sample.labels[0].1;
    let named = sample.containers.iter().take(MOST);
    named.map(move |(pod, container)| {
        let labels = vec![
            ("podnamespace", namespace.clone()),
            ("podname", pod.clone()),
            ("ctrname", container.clone()),
            ("vdeviceid", sample.index.to_string()),
            ("deviceuuid", sample.share.gpu.clone()),
        ];
        (labels, sample)
    })
}

fn gpus(sources: &Sources) -> Vec<(Labels, Gpu)> {
    let node = sources.node.lock();
    let known = sources.observations.lock().gpus.clone();
    let inventory = node.inventory().into_iter().flat_map(|inventory| inventory.by_index());
    let gpu = |(_, gpu): (&str, &crate::publish::inventory::Gpu)| {
        let labels = vec![
            ("deviceidx", gpu.index.to_string()),
            ("deviceuuid", gpu.uuid.clone()),
            ("devicetype", gpu.name.clone()),
        ];
        let known = known.get(&gpu.uuid).copied().unwrap_or_default();
        let gpu = Gpu {
            memory: known.used,
            busy: known.busy,
        };
        (labels, gpu)
    };
    inventory.map(gpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::node::SharedNode;
    use crate::dra::node::tests::prepared;

    #[test]
    fn dashboards_of_hami_find_their_names_and_labels() {
        let (_rig, node) = prepared(20, 30);
        let sources = Sources::new(SharedNode::new(node));
        let key = ("u1".to_owned(), "s1".to_owned());
        let text = || crate::metrics::page(&registry(sources.clone()));
        let unknown = text();
        assert!(!unknown.contains("podname"), "kubelet has not named its container");
        assert!(!unknown.contains("HostCoreUtilization{"), "there was no sample");
        let container = [("p".to_owned(), "main".to_owned())].into();
        sources.containers.set([(key.clone(), container)].into());
        sources.observations.know_all(&key);
        let gpu = crate::publish::inventory::tests::gpu(0);
        let (uuid, model) = (gpu.uuid, gpu.name);
        let labels = format!(r#"podnamespace="d",podname="p",ctrname="main",vdeviceid="0",deviceuuid="{uuid}""#);
        let of_gpu = format!(r#"deviceidx="0",deviceuuid="{uuid}",devicetype="{model}""#);
        let text = text();
        for line in [
            format!("vGPU_device_memory_limit_in_bytes{{{labels}}} {}.0", 20_u64 << 30),
            format!("vGPU_device_memory_usage_in_bytes{{{labels}}} 0.0"),
            format!("Device_memory_desc_of_container{{{labels}}} 0.0"),
            format!("Device_utilization_desc_of_container{{{labels}}} 17.0"),
            format!("HostGPUMemoryUsage{{{of_gpu}}} 1.0"),
            format!("HostCoreUtilization{{{of_gpu}}} 42.0"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert!(text.contains("Device_last_kernel_of_container{"), "{text}");
    }
}

//! The node's GPUs: what claims hold of each, and its health.

use super::figures::{Figure, Labels, Metric, encode_info};
use super::sources::Sources;
use crate::dra::checkpoint::HeldOnGpu;
use crate::publish::inventory::Inventory;
use prometheus_client::encoding::DescriptorEncoder;
use std::fmt;
use vgpu_node::driver_limit::DriverLimit;

/// A GPU at the time of a scrape.
struct Sample {
    labels: Labels,
    model: String,
    driver_version: String,
    /// Who limits cgroups on it: `dmem`, `misc` or `none`.
    driver_limit: &'static str,
    /// Where the size of its memory comes from: `nvml` or `configured`.
    memory_source: &'static str,
    memory: u64,
    held: HeldOnGpu,
    healthy: bool,
    /// Name and effect of each taint.
    taints: Vec<(&'static str, &'static str)>,
    /// How many of the shares have no claim; None while that is not known.
    unclaimed: Option<usize>,
}

fn samples(sources: &Sources) -> Vec<Sample> {
    let node = sources.node.lock();
    let Some(inventory) = node.inventory() else {
        return Vec::new();
    };
    let sample = |(device, gpu): (&str, &crate::publish::inventory::Gpu)| {
        let held = node.claims().held_on(gpu);
        Sample {
            labels: vec![
                ("gpu", gpu.uuid.clone()),
                ("UUID", gpu.uuid.clone()),
                ("dra_device_name", device.to_owned()),
                ("dra_pool_name", node.pools().of_device(device).to_owned()),
            ],
            model: gpu.name.clone(),
            driver_version: gpu.driver_version.clone(),
            driver_limit: gpu.driver_limit.as_ref().map_or("none", DriverLimit::name),
            memory_source: gpu.memory_source.name(),
            memory: gpu.memory,
            healthy: inventory.troubles(&gpu.uuid).is_empty(),
            taints: taints(inventory, &gpu.uuid),
            unclaimed: node
                .unclaimed()
                .map(|unclaimed| held.shares.intersection(unclaimed).count()),
            held,
        }
    };
    inventory.by_index().into_iter().map(sample).collect()
}

const METRICS: [Metric<Sample>; 7] = [
    Metric::gauge("gpu_memory_bytes", "Memory of a GPU for shares", |s| {
        Some(Figure::bytes(s.memory))
    }),
    Metric::gauge(
        "gpu_held_memory_bytes",
        "Memory of a GPU that prepared claims hold",
        |s| Some(Figure::bytes(s.held.memory)),
    ),
    Metric::gauge(
        "gpu_free_memory_bytes",
        "Memory of a GPU that no prepared claim holds",
        |s| Some(Figure::bytes(s.memory.saturating_sub(s.held.memory))),
    ),
    Metric::gauge("gpu_shares", "Shares of a GPU that prepared claims hold", |s| {
        Some(Figure::Whole(s.held.shares.len() as i64))
    }),
    Metric::gauge(
        "gpu_held_cores",
        "Percent of a GPU's time that is reserved for prepared claims",
        |s| Some(Figure::Whole(s.held.cores.into())),
    ),
    Metric::gauge(
        "gpu_idle_fraction",
        "Part of a GPU that no share has: 1 less the fractions of its shares, at least 0",
        |s| Some(Figure::Real((1.0 - s.held.fraction).max(0.0))),
    ),
    Metric::gauge(
        "gpu_healthy",
        "1 if new claims may have a GPU, 0 if a taint keeps them away",
        |s| Some(s.healthy.into()),
    ),
];

const WITHOUT_CLAIM: Metric<Sample> = Metric::gauge(
    "gpu_shares_without_claim",
    "Shares of a GPU that containers have and whose claim is gone, so that the allocator does not count them. Absent \
     while that is not known",
    |s| Some(Figure::Whole(s.unclaimed? as i64)),
);

/// By the GPU's UUID alone, also before the first list of the GPUs.
const UNEXPLAINED: Metric<Option<u64>> = Metric::gauge(
    "gpu_unexplained_bytes",
    "Device memory of processes without a share of a GPU, by NVML. Absent while that is not known",
    |bytes| bytes.map(Figure::bytes),
);

fn taints(inventory: &Inventory, uuid: &str) -> Vec<(&'static str, &'static str)> {
    let unavailable = inventory.unavailable(uuid).map(|why| (why.name(), "NoSchedule"));
    let faults = inventory.faults(uuid).iter();
    let faults = faults.map(|fault| (fault.reason.name(), fault.effect()));
    unavailable.into_iter().chain(faults).collect()
}

pub(super) fn encode(sources: &Sources, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let gpus = sources.observations.lock().gpus.clone().into_iter();
    let unexplained: Vec<(Labels, Option<u64>)> = gpus
        .map(|(gpu, found)| (vec![("gpu", gpu)], found.unexplained))
        .collect();
    UNEXPLAINED.encode(encoder, unexplained.iter().map(|(labels, bytes)| (labels, bytes)))?;
    let samples = samples(sources);
    let all = || samples.iter().map(|sample| (&sample.labels, sample));
    for metric in &METRICS {
        metric.encode(encoder, all())?;
    }
    let joined = |sample: &Sample, more: &[(&'static str, String)]| [&sample.labels[..], more].concat();
    let models = samples.iter().map(|sample| {
        let own = [
            ("model", sample.model.clone()),
            ("driver_version", sample.driver_version.clone()),
            ("driver_limit", sample.driver_limit.to_owned()),
            ("memory_source", sample.memory_source.to_owned()),
        ];
        joined(sample, &own)
    });
    encode_info(
        encoder,
        "gpu_info",
        "1 for each GPU, with its model, the driver's version, who limits cgroups on it (dmem, misc or none), and where the size of its memory comes from (nvml or configured)",
        models,
    )?;
    let taints = samples.iter().flat_map(|sample| {
        sample.taints.iter().map(move |(reason, effect)| {
            joined(
                sample,
                &[("reason", (*reason).to_owned()), ("effect", (*effect).to_owned())],
            )
        })
    });
    let help = "1 for each taint of a GPU that is about its health, by reason and effect";
    encode_info(encoder, "gpu_taint", help, taints)?;
    WITHOUT_CLAIM.encode(encoder, all())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dra::node::SharedNode;
    use crate::dra::node::tests::{Rig, claim};
    use crate::metrics::{Metrics, page};

    /// The values of a metric on GPU 0.
    fn values(page: &str, name: &str) -> Vec<f64> {
        let uuid = crate::publish::inventory::tests::gpu(0).uuid;
        let lines = page
            .lines()
            .filter(|line| line.starts_with(name) && line.contains(&uuid));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect()
    }

    fn served(shares: &[(&str, u64, u32)]) -> (Vec<f64>, f64) {
        let rig = Rig::new(false);
        let mut node = rig.open();
        let claims: Vec<_> = shares
            .iter()
            .map(|share| claim(&share.0.replace('s', "u"), &[*share]))
            .collect();
        assert!(node.prepare(&node.locked(), &claims).0.iter().all(Result::is_ok));
        let page = page(&Metrics::default().registry(Sources::new(SharedNode::new(node))));
        let idle = values(&page, "vgpu_gpu_idle_fraction{");
        assert_eq!(idle.len(), 1);
        (values(&page, "vgpu_share_gpu_fraction{"), idle[0])
    }

    /// GPU 0 has 80 GiB.
    #[test]
    fn four_quarters_are_one_gpu_and_what_is_left_is_idle() {
        let quarters = [("s1", 20, 0), ("s2", 20, 25), ("s3", 20, 10), ("s4", 20, 25)];
        let (fractions, idle) = served(&quarters);
        assert_eq!((fractions.iter().sum::<f64>(), fractions.len(), idle), (1.0, 4, 0.0));
        assert_eq!(served(&[]), (vec![], 1.0));
        assert_eq!(served(&quarters[..1]), (vec![0.25], 0.75));
        // Time or memory, whichever is more; together they may be more than the GPU.
        assert_eq!(served(&[("s1", 20, 75), ("s2", 60, 25)]), (vec![0.75, 0.75], 0.0));
    }
}

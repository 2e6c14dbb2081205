//! Names by which the metrics of shares are joined with those of others: dcgm-exporter's by GPU, claim and device,
//! kube-state-metrics' by pod and container.

use crate::containers::{Containers, MOST};
use crate::node::SharedNode;
use crate::share::Role;
use crate::usage::labels;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt;

pub(super) struct ShareInfo {
    node: SharedNode,
    containers: Containers,
}

// === impl ShareInfo ===

impl ShareInfo {
    pub(super) fn new(node: SharedNode, containers: Containers) -> Self {
        Self { node, containers }
    }
}

impl fmt::Debug for ShareInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShareInfo")
    }
}

impl Collector for ShareInfo {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let known = self.containers.known();
        let (mut devices, mut containers) = (Vec::new(), Vec::new());
        {
            let node = self.node.lock();
            for (uid, entry) in &node.claims().claims {
                for share in entry
                    .shares
                    .iter()
                    .map(|held| &held.share)
                    .filter(|share| share.role == Role::Share)
                {
                    let own = || labels(entry, share).into_iter();
                    let device = [
                        ("UUID", share.gpu.clone()),
                        ("dra_claim_name", entry.name.clone()),
                        ("dra_claim_namespace", entry.namespace.clone()),
                        ("dra_device_name", share.device.clone()),
                        ("dra_pool_name", node.pool()),
                    ];
                    devices.push(own().chain(device).collect::<Vec<_>>());
                    let names = known.get(&(uid.clone(), share.name.clone())).into_iter().flatten();
                    let named = |(pod, container): &(String, String)| {
                        let container = [("pod", pod.clone()), ("container", container.clone())];
                        own().chain(container).collect()
                    };
                    containers.extend(names.take(MOST).map(named));
                }
            }
        }
        let infos = [
            (
                "share_info",
                "1 for each share, with dcgm-exporter's names of labels",
                devices,
            ),
            (
                "share_container_info",
                "1 for each container of a share, by kubelet, with the labels of kube-state-metrics; at most 8 of a share",
                containers,
            ),
        ];
        for (name, help, all) in infos {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for labels in &all {
                ConstGauge::new(1_i64).encode(family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

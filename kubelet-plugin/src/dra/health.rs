//! Streams the health of devices to kubelet, v1 and v1alpha1.
//!
//! Each scan of the GPUs makes a report, which is sent at once with the time of that scan; a fault that begins or ends
//! changes the last report, but not its time: kubelet treats a device whose report is older than 30 s as unknown, which is
//! right when scans have ended. A stream that kubelet drops ends with the next report; kubelet opens a new one.

use crate::publish::inventory::Inventory;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use vgpu_api::{MONITOR_SUFFIX, Pools, gpu_of_undivided};
use vgpu_proto::health::{v1, v1alpha1};

const STALE_SECONDS: i64 = 30;
/// kubelet's limit for a message.
const MAX_MESSAGE: usize = 1024;

/// Devices and why they are unhealthy; an empty text means healthy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub pools: Pools,
    /// When the driver was asked, in seconds of Unix time.
    pub seen: i64,
    pub devices: BTreeMap<String, String>,
}

/// Implements kubelet's health service.
#[derive(Clone)]
pub struct Health {
    reports: watch::Receiver<Report>,
}

// === impl Report ===

impl Report {
    /// The health of the published devices by a scan of the driver at `seen`.
    #[must_use]
    pub fn new(pools: Pools, published: &Inventory, seen: SystemTime) -> Self {
        let mut devices = BTreeMap::new();
        for dynamic in published.dynamic() {
            let why = message(&published.troubles_of_parts(&dynamic.gpu.uuid));
            let names = dynamic.pool.candidates.iter().map(|candidate| candidate.name.clone());
            devices.extend(names.map(|name| (name, why.clone())));
        }
        for (name, gpu) in published.by_index() {
            let why = message(&published.troubles(&gpu.uuid));
            if gpu.mig.is_none() && gpu_of_undivided(name).is_none() {
                devices.insert(format!("{name}{MONITOR_SUFFIX}"), why.clone());
            }
            devices.insert(name.to_owned(), why);
        }
        let seen = seen.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Self {
            pools,
            seen: i64::try_from(seen).unwrap_or(i64::MAX),
            devices,
        }
    }
}

/// Why a device is unhealthy, as much of it as kubelet takes.
fn message(troubles: &[String]) -> String {
    let mut why = troubles.join("; ");
    let mut end = why.len().min(MAX_MESSAGE);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    why.truncate(end);
    why
}

// === impl Health ===

impl Health {
    #[must_use]
    pub fn new(reports: watch::Receiver<Report>) -> Self {
        Self { reports }
    }

    /// A stream of reports in one version of the API.
    fn stream<M: Send + 'static>(&self, message: fn(&Report) -> M) -> ReceiverStream<Result<M, Status>> {
        let (sender, receiver) = mpsc::channel(1);
        let mut reports = self.reports.clone();
        tokio::spawn(async move {
            loop {
                let report = reports.borrow_and_update().clone();
                // Before the first scan there is nothing to report.
                if !report.devices.is_empty() && sender.send(Ok(message(&report))).await.is_err() {
                    return;
                }
                tokio::select! {
                    () = sender.closed() => return,
                    changed = reports.changed() => if changed.is_err() { return },
                }
            }
        });
        ReceiverStream::new(receiver)
    }
}

macro_rules! serve {
    ($version:ident) => {
        #[tonic::async_trait]
        impl $version::dra_resource_health_server::DraResourceHealth for Health {
            type NodeWatchResourcesStream = ReceiverStream<Result<$version::NodeWatchResourcesResponse, Status>>;

            async fn node_watch_resources(
                &self,
                _: Request<$version::NodeWatchResourcesRequest>,
            ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
                Ok(Response::new(self.stream(|report| {
                    let devices = report.devices.iter().map(|(name, why)| $version::DeviceHealth {
                        device: Some($version::DeviceIdentifier {
                            pool_name: report.pools.of_device(name),
                            device_name: name.clone(),
                        }),
                        health: match why.is_empty() {
                            true => $version::HealthStatus::Healthy.into(),
                            false => $version::HealthStatus::Unhealthy.into(),
                        },
                        last_updated_time: report.seen,
                        health_check_timeout_seconds: STALE_SECONDS,
                        message: why.clone(),
                    });
                    $version::NodeWatchResourcesResponse {
                        devices: devices.collect(),
                    }
                })))
            }
        }
    };
}
serve!(v1);
serve!(v1alpha1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::inventory::{Unavailable, tests::gpu};

    #[test]
    fn a_gpu_that_fell_off_is_unhealthy_with_its_monitor() {
        let unhealthy = |why| {
            let unavailable = BTreeMap::from([(gpu(0).uuid, why)]);
            let published = Inventory::with_unavailable(vec![gpu(0), gpu(1)], unavailable);
            Report::new(Pools::of("n1"), &published, UNIX_EPOCH)
        };
        let report = unhealthy(Unavailable::Lost(String::new()));
        assert_eq!(report.devices.len(), 4);
        for name in ["gpu-3f8a1c20", "gpu-3f8a1c20-monitor"] {
            assert!(report.devices[name].contains("not in the driver's list"), "{name}");
        }
        assert_eq!(report.devices["gpu-3f8a1c21"], "");
        let report = unhealthy(Unavailable::Silent("x".repeat(2000)));
        assert_eq!(report.devices["gpu-3f8a1c20"].len(), MAX_MESSAGE);
    }
}

//! The node's one reporter: what was observed goes into claims, events, and the VgpuNode of this node.
//!
//! ```text
//!  observations, node ──┬─► claims: status.devices
//!                       ├─► events
//!                       └─► node: node_status (pure) ─► VgpuNode
//! ```

pub(crate) mod claims;
pub(crate) mod events;
mod node;
mod node_conditions;
mod node_status;

use super::api::{NodeObjects, Pods, Statuses};
use super::observations::Observations;
use crate::api::{Claims, Events};
use crate::metrics::{Metrics, Sources};
use claims::Writer;
use events::Reporter;
use k8s_openapi::api::core::v1::ObjectReference;
use node::NodeWriter;
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(1);
/// Number of rounds between two checks of the node's own problems.
const NODE_EVERY: u32 = 5;

/// Reports until the plugin ends.
pub async fn run<A: Claims + Events + Statuses + Pods + NodeObjects>(
    sources: Sources,
    api: A,
    metrics: Metrics,
    node_object: ObjectReference,
) {
    let Sources {
        node,
        observations,
        readiness,
        ..
    } = sources.clone();
    let (mut writer, mut reporter) = (Writer::default(), Reporter::new(metrics, node_object.clone()));
    let mut node_writer = NodeWriter::new(sources, node_object, Instant::now());
    for round in 0_u32.. {
        tokio::time::sleep(EVERY).await;
        list_pods(&api, &observations).await;
        writer.write(&node, &api, &observations).await;
        reporter.report(&node, &api, &observations).await;
        if round.is_multiple_of(NODE_EVERY) {
            reporter.report_node(&node, &api).await;
            reporter.report_readiness(&readiness, &api, Instant::now()).await;
        }
        node_writer.write(&api, Instant::now()).await;
    }
}

/// Lists the node's pods if that was asked for.
pub(crate) async fn list_pods<A: Pods>(api: &A, observations: &Observations) {
    let questions = std::mem::take(&mut observations.lock().questions);
    if questions.is_empty() {
        return;
    }
    match api.pods().await {
        Ok(pods) => {
            let mut state = observations.lock();
            state.pods = Some(pods);
            for container in questions {
                state
                    .asked
                    .entry(container)
                    .and_modify(|(times, _)| *times = times.saturating_add(1));
            }
        }
        Err(error) => tracing::warn!(%error, "cannot list this node's pods; who uses which claim is asked again"),
    }
}

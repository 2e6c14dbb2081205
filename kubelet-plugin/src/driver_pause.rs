//! Ends the process with NVML while the driver of this node is to be unloaded.
//!
//! The GPU Operator sets the node's label `nvidia.com/gpu.deploy.client` to `paused-for-...` before it unloads the driver,
//! and back afterwards. Nothing may have the driver open then.
//!
//! How it fails: while the API server cannot be reached, the last label that was seen applies. After a restart of the
//! plugin NVML may be used until the watch has delivered its first list. A deleted node has no label.

use crate::nvml::Nvml;
use futures::{Stream, StreamExt as _};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use std::sync::Arc;
use tokio::sync::Notify;

pub const LABEL: &str = "nvidia.com/gpu.deploy.client";
const PAUSED: &str = "paused";

type Node = PartialObjectMeta<k8s_openapi::api::core::v1::Node>;

/// Follows the events of this node's object. `rescan` has the GPUs listed again.
pub async fn run(events: impl Stream<Item = watcher::Result<Event<Node>>>, nvml: Nvml, rescan: Arc<Notify>) {
    let mut events = std::pin::pin!(events);
    let mut last = None;
    while let Some(event) = events.next().await {
        let node = match event {
            Ok(Event::Apply(node) | Event::InitApply(node)) => node,
            Ok(_) => continue,
            Err(error) => {
                tracing::debug!("the watch of this node fails: {error}; retrying");
                continue;
            }
        };
        let paused = reason(&node);
        if paused == last {
            continue;
        }
        match &paused {
            Some(reason) => {
                tracing::info!("{reason}: the driver is not asked any more, and no new claim is prepared");
                nvml.pause(reason);
            }
            None => {
                tracing::info!("the label {LABEL} does not pause the driver any more");
                nvml.resume();
            }
        }
        last = paused;
        rescan.notify_one();
    }
}

/// Why the driver may not be used; None if it may.
fn reason(node: &Node) -> Option<String> {
    let value = node.metadata.labels.as_ref()?.get(LABEL)?;
    value
        .starts_with(PAUSED)
        .then(|| format!("the node's label {LABEL} is {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::inventory::Gpus as _;
    use std::path::Path;

    fn node(value: Option<&str>) -> Node {
        let mut node = Node::default();
        let labels = value.map(|value| [(LABEL.to_owned(), value.to_owned())].into());
        node.metadata.labels = labels;
        node
    }

    #[test]
    fn only_a_label_that_says_paused_pauses() {
        for value in [None, Some("true"), Some("false"), Some("")] {
            assert_eq!(reason(&node(value)), None);
        }
        for value in ["paused", "paused-for-driver-upgrade", "paused-for-mig-change"] {
            assert!(reason(&node(Some(value))).is_some_and(|reason| reason.contains(value)));
        }
    }

    #[tokio::test]
    async fn the_driver_is_not_asked_while_the_label_says_so() {
        // The program does not exist, so an attempt to start it would return another error.
        let nvml = Nvml::new(
            Path::new("/none"),
            Path::new("/"),
            &vgpu_node::gpus::MemorySizes::default(),
        );
        let rescan = Arc::new(Notify::new());
        let (sender, events) = futures::channel::mpsc::unbounded();
        let running = tokio::spawn(run(events, nvml.clone(), rescan.clone()));
        let said = |event| sender.unbounded_send(Ok(event)).expect("heard");
        said(Event::InitApply(node(Some("true"))));
        said(Event::Apply(node(Some("paused-for-driver-upgrade"))));
        rescan.notified().await;
        let error = nvml.list().expect_err("paused").to_string();
        assert!(
            error.contains(LABEL) && error.contains("paused-for-driver-upgrade"),
            "{error}"
        );
        said(Event::Delete(node(None)));
        said(Event::Apply(node(Some("true"))));
        rescan.notified().await;
        assert!(!nvml.list().expect_err("no program").to_string().contains(LABEL));
        drop(sender);
        running.await.expect("ended");
    }
}

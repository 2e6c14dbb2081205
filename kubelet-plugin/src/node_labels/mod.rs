//! The labels of this node that the plugin follows, by one watch of the Node's metadata.
//!
//! | label | |
//! |---|---|
//! | `nvidia.com/gpu.deploy.client`, `nvidia.com/mig.config.state` | [`driver_pause`]: nobody may use the driver now |
//! | `dra.vgpu/mig-dynamic` | [`mig_dynamic`]: whether claims make instances on this node |
//!
//! Failure modes:
//! - The API server cannot be reached: the labels that were seen last apply. A start waits [`LISTED_WITHIN`] for them. Without
//!   them NVML may be used, and nothing is published ([`mig_dynamic`]).
//! - The plugin may not list nodes: as before the first list, for as long as that lasts. `/readyz` says so.
//! - The Node is deleted: its last labels apply until it is there again.

pub(crate) mod driver_pause;
pub(crate) mod mig_dynamic;

use futures::{Stream, StreamExt as _};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use std::time::Duration;
use tokio::sync::watch;

const CLIENT: &str = "nvidia.com/gpu.deploy.client";
const MIG_MANAGER: &str = "nvidia.com/mig.config.state";
const MIG_DYNAMIC: &str = "dra.vgpu/mig-dynamic";
/// How long a start waits for the first list. kubelet's probe allows a minute.
const LISTED_WITHIN: Duration = Duration::from_secs(10);

type Node = PartialObjectMeta<k8s_openapi::api::core::v1::Node>;

/// The values of the labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Labels {
    /// GPU Operator's, which pauses all programs that have the driver open.
    client: Option<String>,
    /// The state that GPU Operator's MIG manager reports.
    mig_manager: Option<String>,
    mig_dynamic: Option<String>,
}

/// The labels; None before the API server has listed them.
pub(crate) type Seen = watch::Receiver<Option<Labels>>;

// === impl Labels ===

impl Labels {
    fn of(node: &Node) -> Self {
        let value = |label: &str| node.metadata.labels.as_ref()?.get(label).cloned();
        Self {
            client: value(CLIENT),
            mig_manager: value(MIG_MANAGER),
            mig_dynamic: value(MIG_DYNAMIC),
        }
    }
}

/// Follows the events of this node's object.
pub(crate) async fn follow(
    events: impl Stream<Item = watcher::Result<Event<Node>>>,
    labels: watch::Sender<Option<Labels>>,
) {
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(node) | Event::InitApply(node)) => {
                let new = Some(Labels::of(&node));
                labels.send_if_modified(|known| {
                    let is_new = *known != new;
                    *known = new;
                    is_new
                });
            }
            Ok(_) => {}
            Err(error) => tracing::debug!("the watch of this node fails: {error}; retrying"),
        }
    }
}

/// Waits until the labels are listed, but not for long. Returns None if they are not.
pub(crate) async fn first(seen: &Seen) -> Option<Labels> {
    let mut seen = seen.clone();
    let listed = tokio::time::timeout(LISTED_WITHIN, seen.wait_for(Option::is_some)).await;
    listed.ok()?.ok()?.clone()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A Node with these labels.
    pub(crate) fn node(labels: &[(&str, &str)]) -> Node {
        let mut node = Node::default();
        let labels = labels.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        node.metadata.labels = Some(labels.collect());
        node
    }

    /// Sends events to [`follow`].
    pub(crate) struct Events {
        sender: futures::channel::mpsc::UnboundedSender<watcher::Result<Event<Node>>>,
        pub(crate) seen: Seen,
    }

    impl Events {
        pub(crate) fn new() -> Self {
            let (sender, events) = futures::channel::mpsc::unbounded();
            let (labels, seen) = watch::channel(None);
            tokio::spawn(follow(events, labels));
            Self { sender, seen }
        }

        pub(crate) fn send(&self, event: watcher::Result<Event<Node>>) {
            self.sender.unbounded_send(event).expect("it is followed");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn labels_are_known_once_they_are_listed_and_last_while_the_watch_fails_or_the_node_is_gone() {
        let events = Events::new();
        events.send(Ok(Event::Init));
        events.send(Err(watcher::Error::NoResourceVersion));
        assert_eq!(first(&events.seen).await, None, "the API server is silent");
        events.send(Ok(Event::InitApply(node(&[(MIG_DYNAMIC, "off"), ("another", "x")]))));
        let known = first(&events.seen).await.expect("listed");
        assert_eq!(known.mig_dynamic.as_deref(), Some("off"));
        let mut seen = events.seen.clone();
        seen.borrow_and_update();
        for event in [
            Err(watcher::Error::NoResourceVersion),
            Ok(Event::Delete(node(&[]))),
            Ok(Event::Init),
            Ok(Event::InitDone),
            Ok(Event::Apply(node(&[(MIG_DYNAMIC, "off")]))),
        ] {
            events.send(event);
        }
        events.send(Ok(Event::Apply(node(&[(CLIENT, "true")]))));
        seen.changed().await.expect("followed");
        let expected = Labels {
            client: Some("true".into()),
            ..Labels::default()
        };
        assert_eq!(*seen.borrow_and_update(), Some(expected), "the first news");
    }
}

//! Ends the process with NVML while the driver of this node is to be unloaded, or GPU Operator's MIG manager changes instances.
//!
//! | label | the driver is not asked |
//! |---|---|
//! | `nvidia.com/gpu.deploy.client` | while it begins with `paused`: the GPU Operator sets it before it unloads the driver, and back afterwards. Nothing may have the driver open then |
//! | `nvidia.com/mig.config.state` | while it is `pending` or `rebooting`: the MIG manager destroys and makes instances |
//!
//! Both must allow it. Failure modes:
//! - The labels are not known: the driver is asked (`node_labels`).
//! - The MIG manager fails half-way: its label stays `pending` until an administrator acts (GPU Operator's issue 2833), and the
//!   driver is not asked until then. The reason in the log and in `/readyz` says what to do.

use super::{CLIENT, Labels, MIG_MANAGER, Seen};
use crate::nvml::Nvml;
use std::sync::Arc;
use tokio::sync::Notify;

const PAUSED: &str = "paused";
const CHANGING: [&str; 2] = ["pending", "rebooting"];

/// Pauses NVML as the labels say. `rescan` has the GPUs listed again. Returns once nobody follows the labels any more.
pub(crate) async fn run(mut seen: Seen, nvml: Nvml, rescan: Arc<Notify>) {
    let mut last = None;
    loop {
        let paused = seen.borrow_and_update().as_ref().and_then(reason);
        if paused != last {
            match &paused {
                Some(reason) => {
                    tracing::info!("{reason}: the driver is not asked any more, and no new claim is prepared");
                    nvml.pause(reason);
                }
                None => {
                    tracing::info!("no label of this node pauses the driver any more");
                    nvml.resume();
                }
            }
            last = paused;
            rescan.notify_one();
        }
        if seen.changed().await.is_err() {
            return;
        }
    }
}

/// Why the driver may not be used; None if it may.
fn reason(labels: &Labels) -> Option<String> {
    let client = labels.client.as_ref().filter(|value| value.starts_with(PAUSED));
    let client = client.map(|value| format!("the node's label {CLIENT} is {value}"));
    let manager = labels.mig_manager.as_ref();
    let manager = manager.filter(|value| CHANGING.contains(&value.as_str())).map(|value| {
        format!(
            "the node's label {MIG_MANAGER} is {value}, so GPU Operator's MIG manager changes instances; if it stays so, read the \
             log of its pod on this node, and set the label nvidia.com/mig.config to another value and back, so that it begins \
             again, or remove {MIG_MANAGER} where no MIG manager runs"
        )
    });
    let reasons: Vec<String> = client.into_iter().chain(manager).collect();
    (!reasons.is_empty()).then(|| reasons.join("; and "))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Events, node};
    use super::*;
    use crate::publish::inventory::Gpus as _;
    use kube::runtime::watcher::Event;
    use std::path::Path;

    fn reason_of(labels: &[(&str, &str)]) -> Option<String> {
        reason(&Labels::of(&node(labels)))
    }

    #[test]
    fn only_labels_that_say_so_pause_and_the_reason_says_label_and_value() {
        assert_eq!(reason_of(&[]), None);
        for value in ["true", "false", ""] {
            assert_eq!(reason_of(&[(CLIENT, value)]), None);
        }
        for value in ["paused", "paused-for-driver-upgrade", "paused-for-mig-change"] {
            assert!(reason_of(&[(CLIENT, value)]).is_some_and(|reason| reason.contains(value)));
        }
        for value in ["success", "failed", "", "pending-x"] {
            assert_eq!(reason_of(&[(MIG_MANAGER, value)]), None);
        }
        for value in CHANGING {
            let said = reason_of(&[(MIG_MANAGER, value), (CLIENT, "true")]).expect("paused");
            let expected = format!("{MIG_MANAGER} is {value}");
            assert!(
                said.contains(&expected) && said.contains("nvidia.com/mig.config to another value"),
                "{said}"
            );
        }
        let both = reason_of(&[(MIG_MANAGER, "pending"), (CLIENT, "paused-for-mig-change")]).expect("paused");
        assert!(both.contains("paused-for-mig-change; and the node's label nvidia.com/mig.config.state is pending"));
    }

    #[tokio::test]
    async fn the_driver_is_not_asked_until_both_labels_allow_it() {
        // The program does not exist, so an attempt to start it would return another error.
        let nvml = Nvml::new(
            Path::new("/none"),
            Path::new("/"),
            &vgpu_node::gpus::MemorySizes::default(),
        );
        let rescan = Arc::new(Notify::new());
        let events = Events::new();
        let running = tokio::spawn(run(events.seen.clone(), nvml.clone(), rescan.clone()));
        let error = || nvml.list().expect_err("no program").to_string();
        events.send(Ok(Event::InitApply(node(&[(CLIENT, "paused-for-mig-change")]))));
        rescan.notified().await;
        assert!(error().contains(CLIENT), "{}", error());
        let both = [(CLIENT, "paused-for-mig-change"), (MIG_MANAGER, "pending")];
        events.send(Ok(Event::Apply(node(&both))));
        rescan.notified().await;
        assert!(error().contains(CLIENT) && error().contains(MIG_MANAGER), "{}", error());
        let manager = [(CLIENT, "true"), (MIG_MANAGER, "pending")];
        events.send(Ok(Event::Apply(node(&manager))));
        rescan.notified().await;
        assert!(
            !error().contains(CLIENT) && error().contains(MIG_MANAGER),
            "{}",
            error()
        );
        events.send(Ok(Event::Delete(node(&manager))));
        events.send(Ok(Event::Apply(node(&[(CLIENT, "true"), (MIG_MANAGER, "success")]))));
        rescan.notified().await;
        assert!(!error().contains("label"), "{}", error());
        drop(events);
        running.await.expect("ended");
    }
}

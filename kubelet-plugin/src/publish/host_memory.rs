//! The node's memory that the library needs in each container with a share, so that kube-scheduler and kubelet reserve it:
//! `nodeAllocatableResources` of the shareable devices (KEP-5517, alpha in Kubernetes 1.37). Pure.
//!
//! ```text
//!  the server's version ─► adding ─► the write ─► refused? ─► without it
//!                                                └─► compare with what the server stored ─► Outcome ─► VgpuNode
//! ```
//!
//! Failure modes:
//! - Kubernetes 1.36 has another field: nothing is sent to it.
//! - The gate is off in kube-apiserver: it drops the field in silence, so what it stored is compared with what was sent.
//! - The gate is on there, and the node's kubelet does not declare it: the server refuses the whole slice, which is then sent
//!   without. Tried again every five minutes, and kubelet deletes the slices when it starts.
//! - The gate is switched on later: kubelet has to start again for it, and the slices are then sent again.
//! - The version cannot be read: nothing is sent, and it is asked again.

use crate::publish::slice::{self, Slice, devices_mut, is_held};
use crate::ready::Readiness;
use k8s_openapi::api::resource::v1::{Device, NodeAllocatableOverhead, NodeAllocatableResource};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;
use vgpu_quantity::format_bytes;

/// The part's name in [`crate::ready::Readiness`].
pub(crate) const PART: &str = "host-memory";
/// The feature gate of kube-apiserver, kube-scheduler and kubelet.
const GATE: &str = "DRANodeAllocatableResources";
/// The first version of Kubernetes with this field.
const SINCE: (u32, u32) = (1, 37);

/// Adds the reservation to devices, and notes what becomes of it.
#[derive(Debug)]
pub(crate) struct HostMemory {
    /// For each container that names a claim with a share.
    amount: Quantity,
    outcome: Outcome,
}

/// What became of the reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The amount is 0.
    NotWanted,
    /// The server's version has to be read.
    NotAsked,
    /// Nothing was published yet with it.
    NotPublished,
    VersionUnknown(String),
    Older((u32, u32)),
    /// The server refuses slices that have it, because of the node.
    Refused(String),
    Dropped,
    Kept,
}

// === impl HostMemory ===

impl HostMemory {
    /// `bytes`: for each container; 0: none.
    pub(crate) fn new(bytes: u64) -> Self {
        Self {
            amount: Quantity(format_bytes(bytes)),
            outcome: match bytes {
                0 => Outcome::NotWanted,
                _ => Outcome::NotAsked,
            },
        }
    }

    pub(crate) fn must_ask(&self) -> bool {
        self.outcome == Outcome::NotAsked
    }

    /// Sets the server's version, or why it is not known.
    pub(crate) fn set_version(&mut self, version: Result<(u32, u32), String>) {
        self.outcome = match version {
            Ok(version) if version < SINCE => Outcome::Older(version),
            Ok(_) => Outcome::NotPublished,
            Err(why) => Outcome::VersionUnknown(why),
        };
    }

    /// Has what may have changed since asked again.
    pub(crate) fn ask_again(&mut self) {
        if matches!(
            self.outcome,
            Outcome::VersionUnknown(_) | Outcome::Older(_) | Outcome::Refused(_)
        ) {
            self.outcome = Outcome::NotAsked;
        }
    }

    /// Adds the reservation to the shareable devices, if the server may get it.
    pub(crate) fn adding(&self, mut slices: Vec<Slice>) -> Vec<Slice> {
        if !matches!(self.outcome, Outcome::NotPublished | Outcome::Dropped | Outcome::Kept) {
            return slices;
        }
        let overhead = NodeAllocatableOverhead {
            per_container: Some(self.amount.clone()),
            per_pod: None,
        };
        let memory = NodeAllocatableResource {
            overhead: Some(overhead),
            mapping: None,
        };
        for device in devices_mut(&mut slices).filter(|device| is_held(device)) {
            device.node_allocatable_resources = Some(BTreeMap::from([("memory".to_owned(), memory.clone())]));
        }
        slices
    }

    /// Compares what was sent with what the server has.
    pub(crate) fn compare(&mut self, sent: &[Slice], stored: &[Device]) {
        let has_it = |device: &&Device| device.node_allocatable_resources.is_some();
        let sent: Vec<&Device> = slice::devices(sent).filter(has_it).collect();
        if sent.is_empty() {
            return;
        }
        let is_kept = |sent: &&Device| {
            let stored = stored.iter().find(|stored| stored.name == sent.name);
            stored.is_some_and(|stored| stored.node_allocatable_resources == sent.node_allocatable_resources)
        };
        self.outcome = match sent.iter().all(is_kept) {
            true => Outcome::Kept,
            false => Outcome::Dropped,
        };
    }

    /// Returns true if the server refused a write because of the reservation: then the next one is without.
    pub(crate) fn is_refused(&mut self, why: &str) -> bool {
        let sent = matches!(self.outcome, Outcome::NotPublished | Outcome::Dropped | Outcome::Kept);
        let is_refused = sent && why.contains(GATE);
        if is_refused {
            self.outcome = Outcome::Refused(why.to_owned());
        }
        is_refused
    }

    /// Returns whether the memory is reserved, or why not. None: that is not known yet.
    pub(crate) fn report(&self) -> Option<Result<(), String>> {
        let why = match &self.outcome {
            Outcome::NotAsked | Outcome::NotPublished => return None,
            Outcome::Kept => return Some(Ok(())),
            Outcome::NotWanted => "plugin.hostMemoryPerContainer is 0".to_owned(),
            Outcome::VersionUnknown(why) => format!("the version of the API server is not known: {why}"),
            Outcome::Older((major, minor)) => {
                format!(
                    "the API server is Kubernetes {major}.{minor}, and {}.{} is needed",
                    SINCE.0, SINCE.1
                )
            }
            Outcome::Refused(why) => format!(
                "the API server refuses it for this node; switch the feature gate {GATE} on in its kubelet and in \
                 kube-scheduler: {why}"
            ),
            Outcome::Dropped => format!(
                "the API server dropped it; switch the feature gate {GATE} on in kube-apiserver, kube-scheduler and kubelet"
            ),
        };
        Some(Err(why))
    }
}

/// Reports whether the memory is reserved. If it is not, the plugin is ready all the same.
pub(crate) fn note(memory: &HostMemory, readiness: &Readiness) {
    let Some(report) = memory.report() else { return };
    let changed = match &report {
        Ok(()) => readiness.set(PART, Ok(())),
        Err(why) => readiness.idle(PART, why.clone()),
    };
    match (changed, report) {
        (false, _) => {}
        (true, Ok(())) => tracing::info!("the library's memory on the node is reserved for containers with a share"),
        (true, Err(why)) => tracing::info!("the library's memory on the node is not reserved: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::inventory::Inventory;
    use crate::publish::inventory::tests::gpu;
    use crate::publish::slice::slices;
    use crate::publish::slice::tests::WHOLE;

    fn devices() -> Vec<Slice> {
        slices(&Inventory::new(vec![gpu(0)]), WHOLE)
    }

    fn known(version: (u32, u32)) -> HostMemory {
        let mut memory = HostMemory::new(16 << 20);
        memory.set_version(Ok(version));
        memory
    }

    #[test]
    fn shareable_devices_reserve_memory_for_each_container_from_1_37_on() {
        let found = known((1, 37)).adding(devices());
        let json = serde_json::to_value(&found[0].devices[0].node_allocatable_resources).expect("JSON");
        assert_eq!(
            json,
            serde_json::json!({"memory": {"overhead": {"perContainer": "16Mi"}}})
        );
        assert_eq!(found[1], devices()[1], "monitors have no library");
        assert_eq!(known((1, 36)).adding(devices()), devices());
        let mut off = HostMemory::new(0);
        assert!(!off.must_ask());
        off.ask_again();
        assert_eq!(off.adding(devices()), devices());
        assert_eq!(HostMemory::new(1).adding(devices()), devices(), "not asked yet");
    }

    #[test]
    fn what_the_server_does_is_reported_and_asked_again() {
        let mut memory = known((1, 37));
        assert_eq!(memory.report(), None);
        let sent = memory.adding(devices());
        memory.compare(&devices(), &devices()[0].devices);
        assert_eq!(memory.report(), None, "nothing was sent");
        memory.compare(&sent, &sent[0].devices);
        assert_eq!(memory.report(), Some(Ok(())));
        memory.compare(&sent, &devices()[0].devices);
        let why = memory.report().expect("known").expect_err("dropped");
        assert!(why.contains("dropped it") && why.contains(GATE), "{why}");
        memory.ask_again();
        assert_eq!(memory.adding(devices()), sent, "the next write shows if it is kept now");

        assert!(!memory.is_refused("node n1 not found"));
        assert!(memory.is_refused("forbidden: node \"n1\" does not support DRANodeAllocatableResources feature"));
        assert!(!memory.is_refused(GATE), "what was sent had none");
        assert_eq!(memory.adding(devices()), devices());
        let why = memory.report().expect("known").expect_err("refused");
        assert!(why.contains("for this node") && why.contains("\"n1\""), "{why}");
        memory.ask_again();
        assert!(memory.must_ask());

        for (version, said) in [
            (Ok((1, 36)), "Kubernetes 1.36, and 1.37 is needed"),
            (Err("403".to_owned()), "not known: 403"),
        ] {
            memory.set_version(version);
            let why = memory.report().expect("known").expect_err("not sent");
            assert!(why.contains(said), "{why}");
            memory.ask_again();
            assert!(memory.must_ask());
        }
    }
}

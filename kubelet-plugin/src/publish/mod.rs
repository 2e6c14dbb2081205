//! Keeps this node's ResourceSlices as they are wanted.
//!
//! ```text
//!  watch (own driver and node) ─► existing ─┐
//!  inventory ─► wanted ─────────────────────┴─► plan ─► delete, update, create ─► existing
//! ```
//!
//! kubelet wipes a node's slices whenever it starts, and people delete what they do not know: a
//! deletion is believed at once and answered by writing again. What an own write was answered with
//! counts until the watch brings something newer, so that a slow watch does not cause doubles.
//!
//! A slice belongs to its Node object, and goes with it: before slices are created the object's UID
//! is read again, for a node that was deleted and registered anew has another.
//!
//! An API server without consumable capacity drops the fields that make a GPU shareable and would
//! then give it away whole. A dry run shows it before anything is stored; such a server gets the
//! monitor devices only, until it is asked again.

pub mod allocator;
pub mod plan;

use crate::api::{Error, Slices};
use crate::metrics::Metrics;
use crate::ready::Readiness;
use crate::slice::{keeps_capacity, without_shared};
use allocator::Taints;
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use kube::runtime::watcher;
use plan::{Owner, Plan, Stored, learn, plan};
use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::pin::pin;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Of [`Readiness`].
pub const PART: &str = "slices";
const FIRST_DELAY: Duration = Duration::from_millis(200);
const LAST_DELAY: Duration = Duration::from_secs(60);
/// How often a server without consumable capacity is asked again, and everything compared anew.
const ASK_AGAIN: Duration = Duration::from_secs(300);

/// What is to be published.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Wanted {
    /// Nobody has seen the GPUs yet.
    #[default]
    Unknown,
    /// The node has no driver. Slices that exist stay: a driver that is being replaced comes back.
    NoDriver,
    /// The devices of each slice.
    Slices(Vec<Vec<Device>>),
}

/// What exists, by UID, and what was learnt of the server.
pub struct Publisher {
    taints: Taints,
    existing: BTreeMap<String, ResourceSlice>,
    /// What a list that is not complete yet brought.
    listing: Option<BTreeMap<String, ResourceSlice>>,
    synced: bool,
    stored: Stored,
    /// Whether the server keeps consumable capacity; `None` until it was asked.
    consumable: Option<bool>,
    /// Whether devices lack the taint that they should have.
    untainted: bool,
    /// When to come back although nothing happens.
    again_at: Option<Instant>,
    pub(crate) writes: u64,
}

// === impl Publisher ===

impl Publisher {
    #[must_use]
    pub fn new(taints: Taints) -> Self {
        Self {
            taints,
            existing: BTreeMap::new(),
            listing: None,
            synced: false,
            stored: Stored::new(),
            consumable: None,
            untainted: false,
            again_at: None,
            writes: 0,
        }
    }

    /// Takes what the watch says.
    pub fn apply(&mut self, event: watcher::Event<ResourceSlice>) {
        match event {
            watcher::Event::Init => self.listing = Some(BTreeMap::new()),
            watcher::Event::InitApply(slice) => match &mut self.listing {
                Some(listing) => newer(listing, slice),
                None => newer(&mut self.existing, slice),
            },
            watcher::Event::InitDone => {
                self.existing = self.listing.take().unwrap_or_default();
                self.synced = true;
            }
            watcher::Event::Apply(slice) => newer(&mut self.existing, slice),
            watcher::Event::Delete(slice) => {
                self.existing.remove(uid(&slice));
            }
        }
    }

    /// Whether what exists is known.
    #[must_use]
    pub fn synced(&self) -> bool {
        self.synced
    }

    /// Does what is to be done; after an error the caller comes back.
    ///
    /// # Errors
    /// The first write that fails.
    pub async fn reconcile<S: Slices>(
        &mut self,
        api: &S,
        owner: &mut Owner,
        wanted: &[Vec<Device>],
    ) -> Result<(), Error> {
        // The owner may turn out to be another, and a write's answer may show that the server drops
        // fields: then once more, with the one and without the others.
        for _ in 0..3 {
            let reduced = (self.consumable == Some(false)).then(|| without_shared(wanted.to_vec()));
            let wanted = reduced.as_deref().unwrap_or(wanted);
            let existing: Vec<_> = self.existing.values().cloned().collect();
            let devices = plan::current_devices(owner, &existing);
            let tainted = self.taints.of(wanted, &devices, Instant::now());
            self.again_at = tainted.until;
            let steps = plan(owner, &tainted.devices, &existing, &self.stored);
            if steps.is_empty() {
                self.taints.settled(&devices);
                self.note_tainted(self.taints.are_kept(&devices));
                return Ok(());
            }
            if !steps.create.is_empty() {
                let node_uid = api.node_uid().await?;
                if node_uid != owner.node_uid {
                    tracing::info!(node_uid, "this node's object was created anew; its slices are, too");
                    owner.node_uid = node_uid;
                    continue;
                }
            }
            if self.consumable.is_none() && self.drops_capacity(api, &steps).await? {
                continue;
            }
            self.carry_out(api, steps).await?;
        }
        Ok(())
    }

    /// Asks the server, without storing anything, whether it keeps what makes a GPU shareable.
    async fn drops_capacity<S: Slices>(&mut self, api: &S, steps: &Plan) -> Result<bool, Error> {
        let Some(slice) = steps.create.iter().chain(&steps.update).find(|slice| has_shared(slice)) else {
            return Ok(false);
        };
        let mut probe = slice.clone();
        probe.metadata.uid = None;
        probe.metadata.resource_version = None;
        probe.metadata.name = None;
        probe.metadata.generate_name.get_or_insert_with(|| "vgpu-probe-".into());
        let answer = api.create(&probe, true).await?;
        self.note_consumable(keeps_capacity(plan::devices(&probe), plan::devices(&answer)));
        Ok(self.consumable == Some(false))
    }

    fn note_consumable(&mut self, kept: bool) {
        if !kept {
            tracing::error!(
                "the API server drops consumable capacity, so that a shared GPU would be given away whole; \
                 publishing no shareable GPU: switch the feature gate DRAConsumableCapacity on in kube-apiserver \
                 and kube-scheduler"
            );
        }
        self.consumable = Some(kept);
    }

    fn note_tainted(&mut self, kept: bool) {
        if !kept && !self.untainted {
            tracing::error!(
                "the API server drops device taints, so kube-scheduler allocates this node's GPUs and not \
                 vgpu-controller: switch the feature gate DRADeviceTaints on in kube-apiserver and kube-scheduler, or \
                 run this plugin with --allocator=scheduler"
            );
        }
        self.untainted = !kept;
    }

    async fn carry_out<S: Slices>(&mut self, api: &S, steps: Plan) -> Result<(), Error> {
        for slice in &steps.delete {
            self.writes += 1;
            match api.delete(slice).await {
                Ok(()) | Err(Error::NotFound(_)) => drop(self.existing.remove(uid(slice))),
                Err(error) => return Err(error),
            }
        }
        for slice in &steps.update {
            self.writes += 1;
            match api.replace(slice).await {
                Ok(answer) => self.written(slice, answer),
                Err(error) => {
                    if matches!(error, Error::NotFound(_)) {
                        self.existing.remove(uid(slice));
                    }
                    return Err(error);
                }
            }
        }
        for slice in &steps.create {
            self.writes += 1;
            let answer = api.create(slice, false).await?;
            self.written(slice, answer);
        }
        Ok(())
    }

    fn written(&mut self, sent: &ResourceSlice, answer: ResourceSlice) {
        learn(&mut self.stored, plan::devices(sent), &answer);
        if has_shared(sent) && !keeps_capacity(plan::devices(sent), plan::devices(&answer)) {
            self.note_consumable(false);
        }
        if let Some(listing) = &mut self.listing {
            newer(listing, answer.clone());
        }
        newer(&mut self.existing, answer);
    }
}

/// Publishes until the watch ends, which it does not.
pub async fn run<S: Slices>(
    api: S,
    events: impl Stream<Item = watcher::Result<watcher::Event<ResourceSlice>>>,
    taints: Taints,
    mut owner: Owner,
    mut wanted: watch::Receiver<Wanted>,
    readiness: Readiness,
    metrics: Metrics,
) {
    let mut events = pin!(events);
    let mut publisher = Publisher::new(taints);
    let mut failures = 0;
    let mut wake = Instant::now() + ASK_AGAIN;
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(event)) => publisher.apply(event),
                Some(Err(error)) => tracing::warn!("cannot watch ResourceSlices: {error}"),
                None => return,
            },
            changed = wanted.changed() => if changed.is_err() { return },
            () = sleep_until(wake) => {
                if publisher.consumable == Some(false) {
                    publisher.consumable = None;
                }
            }
        }
        let now = wanted.borrow_and_update().clone();
        let devices = match now {
            Wanted::Slices(devices) if publisher.synced() => devices,
            idle => {
                if idle == Wanted::NoDriver && publisher.synced() {
                    readiness.idle(PART, "no driver on this node, so no GPU to publish".into());
                }
                // Nothing to try again, and a time that is over would wake without end.
                failures = 0;
                wake = Instant::now() + ASK_AGAIN;
                continue;
            }
        };
        // While the server refuses, events alone do not make it try more often.
        if failures > 0 && Instant::now() < wake {
            continue;
        }
        let before = publisher.writes;
        let result = publisher.reconcile(&api, &mut owner, &devices).await;
        metrics.slice_writes.inc_by(publisher.writes - before);
        match result {
            Ok(()) => {
                failures = 0;
                let again = Instant::now() + ASK_AGAIN;
                wake = publisher.again_at.unwrap_or(again).min(again);
                let state = match (publisher.consumable, publisher.untainted) {
                    (Some(false), _) => Err("the API server drops consumable capacity (DRAConsumableCapacity)".into()),
                    (_, true) => Err("the API server drops device taints (DRADeviceTaints)".into()),
                    _ => Ok(()),
                };
                if readiness.set(PART, state) {
                    tracing::info!(
                        slices = publisher.existing.len(),
                        "ResourceSlices are as they should be"
                    );
                }
            }
            Err(error) => {
                wake = Instant::now() + delay(failures);
                failures += 1;
                if readiness.set(PART, Err(format!("cannot write ResourceSlices: {error}"))) {
                    tracing::warn!("cannot write ResourceSlices: {error}; trying again");
                }
            }
        }
    }
}

/// Doubles with every failure, less a random part of up to a half: a restarted API server is not
/// to be met by all nodes at once.
pub(crate) fn delay(failures: u32) -> Duration {
    let whole = FIRST_DELAY.saturating_mul(1 << failures.min(16)).min(LAST_DELAY);
    // A hasher that std seeds at random, in place of a crate for one number.
    let random = RandomState::new().build_hasher().finish() % 1000;
    whole - whole.mul_f64(random as f64 / 2000.0)
}

fn has_shared(slice: &ResourceSlice) -> bool {
    plan::devices(slice)
        .iter()
        .any(|device| device.allow_multiple_allocations == Some(true))
}

/// Takes `slice` unless the same object is known in a later version.
fn newer(existing: &mut BTreeMap<String, ResourceSlice>, slice: ResourceSlice) {
    let version = |slice: &ResourceSlice| {
        slice
            .metadata
            .resource_version
            .as_ref()
            .and_then(|v| v.parse::<u64>().ok())
    };
    let key = uid(&slice).to_owned();
    if existing.get(&key).is_none_or(|known| version(known) <= version(&slice)) {
        existing.insert(key, slice);
    }
}

fn uid(slice: &ResourceSlice) -> &str {
    slice.metadata.uid.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests;

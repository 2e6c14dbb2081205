//! Publishes this node's ResourceSlices and keeps them up to date.
//!
//! ```text
//!  watch (own driver and node) ─► existing ───────┐
//!  gpus ─► wanted: devices of each slice ─► taints ┴─► plan ─► delete, update, create ─► existing
//! ```
//!
//! kubelet deletes a node's slices whenever it starts, and people delete objects that they do not know. A
//! deletion is applied at once and answered by writing again. The API server's answer to a write counts until
//! the watch delivers something newer, so that a slow watch does not cause duplicates.
//!
//! A slice is owned by its Node object and deleted with it. Before slices are created the Node's UID is read
//! again: a node that was deleted and registered anew has another one.
//!
//! While the driver has not answered since the start, it is not known which GPUs there are. What is published stays, with
//! the taint of a driver that does not answer: without it, pods would be scheduled to a node that refuses to prepare their
//! claims. kubelet may have deleted the slices; then nothing is published.
//!
//! An API server without consumable capacity drops the fields that make a GPU shareable, and the scheduler
//! would then allocate it whole. A dry run detects this before anything is stored. Such a server gets the
//! monitor devices only, until the next dry run. One that refuses taints with the effect None gets none of those.

pub mod plan;
pub mod reached;
pub mod taints;

use crate::api::{Error, Slices};
use crate::metrics::Metrics;
use crate::ready::Readiness;
use crate::slice::{has_information, keeps_capacity, silenced, without_information, without_shared};
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use kube::runtime::watcher;
use plan::{Owner, Plan, Stored, learn, plan};
use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::pin::pin;
use std::time::Duration;
use taints::Taints;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The part's name in [`Readiness`].
pub const PART: &str = "slices";
const FIRST_DELAY: Duration = Duration::from_millis(200);
const LAST_DELAY: Duration = Duration::from_secs(60);
/// How often the dry run is repeated on a server without consumable capacity, and everything is compared
/// again.
const ASK_AGAIN: Duration = Duration::from_secs(300);

/// The devices to publish.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Wanted {
    /// The GPUs were not scanned yet, or kubelet does not reach this instance. Existing slices stay as they are.
    #[default]
    Unknown,
    /// Another instance on this node publishes.
    ByAnother,
    /// The node has no driver. Existing slices stay, with a taint, because a driver that is being replaced comes back.
    NoDriver,
    /// The driver has not answered yet. Existing slices stay, with a taint.
    Silent,
    /// The devices of each slice.
    Slices(Vec<Vec<Device>>),
}

/// The existing slices by UID, and what is known about the API server.
pub struct Publisher {
    taints: Taints,
    existing: BTreeMap<String, ResourceSlice>,
    /// The slices of a list that is not complete yet.
    listing: Option<BTreeMap<String, ResourceSlice>>,
    /// True once a list is complete, so `existing` has all slices.
    synced: bool,
    /// What the server stored for the devices that were sent to it.
    stored: Stored,
    /// True if the server keeps consumable capacity; `None` before the dry run.
    consumable: Option<bool>,
    /// True if devices lack the taint that they should have.
    untainted: bool,
    /// True if the server refused slices with taints that only tell.
    refuses_information: bool,
    /// When to reconcile although nothing happened.
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
            refuses_information: false,
            again_at: None,
            writes: 0,
        }
    }

    /// Applies an event of the watch.
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

    /// Returns true if all existing slices are known.
    #[must_use]
    pub fn synced(&self) -> bool {
        self.synced
    }

    /// Returns the devices of each slice that there should be. None: the slices stay as they are.
    fn devices(&self, owner: &Owner, wanted: &Wanted) -> Option<Vec<Vec<Device>>> {
        if !self.synced {
            return None;
        }
        match wanted {
            Wanted::Unknown | Wanted::ByAnother => None,
            Wanted::NoDriver | Wanted::Silent => {
                let existing: Vec<_> = self.existing.values().cloned().collect();
                plan::used_devices(owner, &existing).map(silenced)
            }
            Wanted::Slices(devices) => Some(devices.clone()),
        }
    }

    /// Writes what differs from `wanted`. After an error the caller retries.
    ///
    /// # Errors
    /// The first write that failed.
    pub async fn reconcile<S: Slices>(
        &mut self,
        api: &S,
        owner: &mut Owner,
        wanted: &[Vec<Device>],
    ) -> Result<(), Error> {
        if !has_information(wanted) {
            return self.write(api, owner, wanted).await;
        }
        if !self.refuses_information {
            match self.write(api, owner, wanted).await {
                Err(Error::Invalid(why)) if why.contains(".effect") => {
                    tracing::warn!(
                        "the API server refuses device taints with the effect None, so ResourceSlices do not tell of \
                         faults that keep no claim away; metrics and logs do: {why}"
                    );
                    self.refuses_information = true;
                }
                written => return written,
            }
        }
        self.write(api, owner, &without_information(wanted.to_vec())).await
    }

    async fn write<S: Slices>(&mut self, api: &S, owner: &mut Owner, wanted: &[Vec<Device>]) -> Result<(), Error> {
        // The owner may have changed, and a write's answer may show that the server drops fields. Then plan
        // again, with the new owner and without the shareable devices.
        for _ in 0..3 {
            let reduced = (self.consumable == Some(false)).then(|| without_shared(wanted.to_vec()));
            let wanted = reduced.as_deref().unwrap_or(wanted);
            let existing: Vec<_> = self.existing.values().cloned().collect();
            let devices = plan::current_devices(owner, &existing);
            let tainted = self.taints.apply(wanted, &devices, Instant::now());
            self.again_at = tainted.until;
            let steps = plan(owner, &tainted.devices, &existing, &self.stored);
            if steps.is_empty() {
                self.taints.confirm_stored(&devices);
                self.note_tainted(self.taints.are_kept(&devices));
                return Ok(());
            }
            if !steps.create.is_empty() {
                let node_uid = api.node_uid().await?;
                if node_uid != owner.node_uid {
                    tracing::info!(node_uid, "this node's object was recreated; creating its slices again");
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

    /// Checks by a dry run if the server drops the fields that make a GPU shareable.
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
                "the API server drops consumable capacity, so a shared GPU would be allocated whole; \
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

    /// Makes all writes: one that is refused stops no other. Returns the first error, of what has to be published before what
    /// has to go.
    async fn carry_out<S: Slices>(&mut self, api: &S, steps: Plan) -> Result<(), Error> {
        let (mut undeleted, mut unwritten) = (None, None);
        for slice in &steps.delete {
            self.writes += 1;
            match api.delete(slice).await {
                Ok(()) | Err(Error::NotFound(_)) => drop(self.existing.remove(uid(slice))),
                Err(error) => drop(undeleted.get_or_insert(error)),
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
                    unwritten.get_or_insert(error);
                }
            }
        }
        for slice in &steps.create {
            self.writes += 1;
            match api.create(slice, false).await {
                Ok(answer) => self.written(slice, answer),
                Err(error) => drop(unwritten.get_or_insert(error)),
            }
        }
        unwritten.or(undeleted).map_or(Ok(()), Err)
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

/// Publishes until the watch ends, which it normally never does.
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
        let Some(devices) = publisher.devices(&owner, &now) else {
            let nothing_to_do = match now {
                Wanted::NoDriver => Some("no driver on this node, so no GPU to publish"),
                Wanted::ByAnother => Some("another instance of the plugin publishes, until it ends"),
                Wanted::Unknown | Wanted::Silent | Wanted::Slices(_) => None,
            };
            if let Some(why) = nothing_to_do.filter(|_| publisher.synced()) {
                readiness.idle(PART, why.into());
            }
            // Nothing to retry; an expired `wake` would make the loop spin.
            failures = 0;
            wake = Instant::now() + ASK_AGAIN;
            continue;
        };
        // While the server refuses writes, events alone do not cause more attempts.
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
                    tracing::info!(slices = publisher.existing.len(), "ResourceSlices are up to date");
                }
            }
            Err(error) => {
                wake = Instant::now() + delay(failures);
                failures += 1;
                if readiness.set(PART, Err(format!("cannot write ResourceSlices: {error}"))) {
                    tracing::warn!("cannot write ResourceSlices: {error}; retrying");
                }
            }
        }
    }
}

/// Doubles with every failure, minus a random part of up to half, so that not all nodes meet a restarted API
/// server at once.
pub(crate) fn delay(failures: u32) -> Duration {
    let whole = FIRST_DELAY.saturating_mul(1 << failures.min(16)).min(LAST_DELAY);
    // std seeds this hasher at random, which saves a crate for one number.
    let random = RandomState::new().build_hasher().finish() % 1000;
    whole - whole.mul_f64(random as f64 / 2000.0)
}

fn has_shared(slice: &ResourceSlice) -> bool {
    plan::devices(slice)
        .iter()
        .any(|device| device.allow_multiple_allocations == Some(true))
}

/// Inserts `slice` unless a later version of the same object is known.
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

//! Publishes this node's ResourceSlices and keeps them up to date.
//!
//! ```text
//!  watch (own driver and node) ─► existing ───────┐
//!  gpus ─► the slices that are wanted ────► taints ┴─► plan ─► delete, update, create ─► existing
//! ```
//!
//! kubelet deletes a node's slices whenever it starts, and people delete objects that they do not know. A deletion is
//! applied at once and answered by writing again. The API server's answer to a write is used until the watch delivers
//! something newer, so that a slow watch does not cause duplicates.
//!
//! A slice is owned by its Node object and deleted with it. Before slices are created the Node's UID is read again: a
//! node that was deleted and registered again has another one.
//!
//! While the driver has not answered since the start, it is not known which GPUs there are. What is published stays, with
//! the taint of a driver that does not answer: without it, pods would be scheduled to a node that refuses to prepare their
//! claims. kubelet may have deleted the slices; then nothing is published.
//!
//! While nothing is known of the instances that a GPU's claims could make, the same holds for the pool of that GPU alone.
//!
//! An API server without consumable capacity drops the fields that make a GPU shareable, and the scheduler would then
//! allocate it whole. A dry run detects this before anything is stored. Such a server gets the monitor devices only,
//! until the next dry run. A server that refuses taints with the effect None gets no such taints. What it does with the
//! memory that devices reserve on the node is in `host_memory`.

pub mod contexts;
pub mod faults;
pub mod gpus;
pub(crate) mod host_memory;
pub mod inventory;
pub mod plan;
pub mod publish_gate;
pub mod slice;
pub mod taints;

use crate::api::{Error, Slices};
use crate::metrics::Metrics;
use crate::publish::slice::{
    Slice, has_information, keeps_capacity, silenced, without_counters, without_information, without_shared,
};
use crate::ready::Readiness;
use crate::retry::delay;
use futures::{Stream, StreamExt as _};
use host_memory::HostMemory;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::runtime::watcher;
use plan::{Owner, Plan, Stored, learn, plan};
use publish_gate::Gate;
pub use publish_gate::Wanted;
use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;
use taints::Taints;
use tokio::time::{Instant, sleep_until};

/// The part's name in [`Readiness`].
pub const PART: &str = "slices";
/// How often the dry run is repeated on a server without consumable capacity, and everything is compared
/// again.
const ASK_AGAIN: Duration = Duration::from_secs(300);

/// The existing slices by UID, and what is known about the API server.
pub struct Publisher {
    taints: Taints,
    host_memory: HostMemory,
    existing: BTreeMap<String, ResourceSlice>,
    /// The slices of a list that is not complete yet.
    listing: Option<BTreeMap<String, ResourceSlice>>,
    /// True once a list is complete, so `existing` has all slices.
    synced: bool,
    /// What the server stored for the devices that were sent to it.
    stored: Stored,
    /// True if the server keeps consumable capacity; `None` before the dry run.
    consumable: Option<bool>,
    /// True if the server keeps shared counters; `None` before the dry run.
    partitionable: Option<bool>,
    /// True if devices lack the taint that they should have.
    untainted: bool,
    /// True if the server refused slices with taints that only inform.
    refuses_information: bool,
    /// When to reconcile although nothing happened.
    again_at: Option<Instant>,
    pub(crate) writes: u64,
}

// === impl Publisher ===

impl Publisher {
    #[must_use]
    pub(crate) fn new(taints: Taints, host_memory: HostMemory) -> Self {
        Self {
            taints,
            host_memory,
            existing: BTreeMap::new(),
            listing: None,
            synced: false,
            stored: Stored::new(),
            consumable: None,
            partitionable: None,
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

    /// Returns the slices that there should be. None: the slices stay as they are.
    fn slices(&self, owner: &Owner, wanted: &Wanted) -> Option<Vec<Slice>> {
        if !self.synced {
            return None;
        }
        let existing = || self.existing.values().cloned().collect::<Vec<_>>();
        match wanted {
            Wanted::Unknown => None,
            Wanted::NoDriver | Wanted::Silent => plan::used_slices(owner, &existing()).map(silenced),
            Wanted::Slices(slices) => Some(plan::with_kept(owner, slices, &existing())),
        }
    }

    /// Writes what differs from `wanted`. After an error the caller retries.
    ///
    /// # Errors
    /// The first write that failed.
    pub async fn reconcile<S: Slices>(&mut self, api: &S, owner: &mut Owner, wanted: &[Slice]) -> Result<(), Error> {
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

    async fn write<S: Slices>(&mut self, api: &S, owner: &mut Owner, wanted: &[Slice]) -> Result<(), Error> {
        if self.host_memory.must_ask() {
            let version = api.version().await;
            self.host_memory.set_version(version.map_err(|error| error.to_string()));
        }
        match self.write_reserving(api, owner, wanted).await {
            Err(error) if self.host_memory.is_refused(&error.to_string()) => {
                self.write_reserving(api, owner, wanted).await
            }
            written => written,
        }
    }

    async fn write_reserving<S: Slices>(&mut self, api: &S, owner: &mut Owner, wanted: &[Slice]) -> Result<(), Error> {
        let wanted = self.host_memory.adding(wanted.to_vec());
        // The owner may have changed, and a write's answer may show that the server drops fields. Then plan
        // again, with the new owner and without the shareable devices.
        for _ in 0..4 {
            let wanted = &self.as_the_server_keeps(wanted.clone());
            let existing: Vec<_> = self.existing.values().cloned().collect();
            let devices = plan::current_devices(owner, &existing);
            let tainted = self.taints.apply(wanted, &devices, Instant::now());
            self.again_at = tainted.until;
            let steps = plan(owner, &tainted.slices, &existing, &self.stored);
            if steps.is_empty() {
                self.taints.confirm_stored(&devices);
                self.host_memory.compare(wanted, &devices);
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
            if self.partitionable.is_none() && self.drops_counters(api, &steps).await? {
                continue;
            }
            self.carry_out(api, steps).await?;
        }
        Ok(())
    }

    /// Leaves out what the server drops in silence.
    fn as_the_server_keeps(&self, mut wanted: Vec<Slice>) -> Vec<Slice> {
        if self.consumable == Some(false) {
            wanted = without_shared(wanted);
        }
        if self.partitionable == Some(false) {
            wanted = without_counters(wanted);
        }
        wanted
    }

    /// Checks by a dry run if the server drops the fields that make a GPU shareable.
    async fn drops_capacity<S: Slices>(&mut self, api: &S, steps: &Plan) -> Result<bool, Error> {
        let Some(slice) = steps.create.iter().chain(&steps.update).find(|slice| has_shared(slice)) else {
            return Ok(false);
        };
        let answer = dry_run(api, slice).await?;
        self.note_consumable(keeps_capacity(plan::devices(slice), plan::devices(&answer)));
        Ok(self.consumable == Some(false))
    }

    /// Checks by a dry run if the server drops the counters of instances that claims make.
    async fn drops_counters<S: Slices>(&mut self, api: &S, steps: &Plan) -> Result<bool, Error> {
        let has_counters = |slice: &&ResourceSlice| !plan::counters(slice).is_empty();
        let Some(slice) = steps.create.iter().chain(&steps.update).find(has_counters) else {
            return Ok(false);
        };
        let answer = dry_run(api, slice).await?;
        self.note_partitionable(keeps_counters(slice, &answer));
        Ok(self.partitionable == Some(false))
    }

    fn note_partitionable(&mut self, kept: bool) {
        if !kept {
            tracing::error!(
                "the API server drops shared counters, so instances that exclude each other would be allocated together; \
                 publishing no instances for claims to make: switch the feature gate DRAPartitionableDevices on in \
                 kube-apiserver and kube-scheduler, or set the chart's mig.dynamic to \"off\""
            );
        }
        self.partitionable = Some(kept);
    }

    /// Has the server show again whether it keeps what it has dropped.
    fn ask_again(&mut self) {
        self.consumable = self.consumable.filter(|is_kept| *is_kept);
        self.partitionable = self.partitionable.filter(|is_kept| *is_kept);
        self.host_memory.ask_again();
    }

    /// The feature of the API server without which the devices cannot be published as they are.
    fn missing_feature(&self) -> Result<(), String> {
        match (self.consumable, self.untainted) {
            (Some(false), _) => Err("the API server drops consumable capacity (DRAConsumableCapacity)".into()),
            _ if self.partitionable == Some(false) => {
                Err("the API server drops shared counters (DRAPartitionableDevices)".into())
            }
            (_, true) => Err("the API server drops device taints (DRADeviceTaints)".into()),
            _ => Ok(()),
        }
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

    /// Makes all writes, also after one was refused. Returns the first error of slices to be published, else of slices to
    /// be deleted.
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
        learn(&mut self.stored, sent, &answer);
        if has_shared(sent) && !keeps_capacity(plan::devices(sent), plan::devices(&answer)) {
            self.note_consumable(false);
        }
        if !keeps_counters(sent, &answer) {
            self.note_partitionable(false);
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
    mut publisher: Publisher,
    mut owner: Owner,
    mut gate: Gate,
    readiness: Readiness,
    metrics: Metrics,
) {
    let mut events = pin!(events);
    let mut attempts = Attempts::new();
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(event)) => publisher.apply(event),
                Some(Err(error)) => tracing::warn!("cannot watch ResourceSlices: {error}"),
                None => return,
            },
            changed = gate.changed() => if changed.is_err() { return },
            () = sleep_until(attempts.next) => {
                publisher.ask_again();
            }
        }
        let now = gate.now();
        let Some(slices) = publisher.slices(&owner, &now) else {
            if now == Wanted::NoDriver && publisher.synced() {
                readiness.idle(PART, "no driver on this node, so no GPU to publish".into());
            }
            // Nothing to retry; an expired time would make the loop spin.
            attempts = Attempts::new();
            continue;
        };
        if attempts.must_wait() {
            continue;
        }
        let before = publisher.writes;
        let result = publisher.reconcile(&api, &mut owner, &slices).await;
        metrics.slice_writes.inc_by(publisher.writes - before);
        match result {
            Ok(()) => {
                attempts = Attempts::until(publisher.again_at);
                host_memory::note(&publisher.host_memory, &readiness);
                if readiness.set(PART, publisher.missing_feature()) {
                    tracing::info!(slices = publisher.existing.len(), "ResourceSlices are up to date");
                }
            }
            Err(error) => {
                attempts.failed();
                if readiness.set(PART, Err(format!("cannot write ResourceSlices: {error}"))) {
                    tracing::warn!("cannot write ResourceSlices: {error}; retrying");
                }
            }
        }
    }
}

/// When the slices are compared next.
struct Attempts {
    failures: u32,
    next: Instant,
}

// === impl Attempts ===

impl Attempts {
    fn new() -> Self {
        Self::until(None)
    }

    /// Starts again after a success. `at` is a time before [`ASK_AGAIN`] at which something is due.
    fn until(at: Option<Instant>) -> Self {
        let latest = Instant::now() + ASK_AGAIN;
        Self {
            failures: 0,
            next: at.unwrap_or(latest).min(latest),
        }
    }

    fn failed(&mut self) {
        self.next = Instant::now() + delay(self.failures);
        self.failures += 1;
    }

    /// While the server refuses writes, events alone do not cause more attempts.
    fn must_wait(&self) -> bool {
        self.failures > 0 && Instant::now() < self.next
    }
}

/// Has the server say what it would store for a slice.
async fn dry_run<S: Slices>(api: &S, slice: &ResourceSlice) -> Result<ResourceSlice, Error> {
    let mut probe = slice.clone();
    probe.metadata.uid = None;
    probe.metadata.resource_version = None;
    probe.metadata.name = None;
    probe.metadata.generate_name.get_or_insert_with(|| "vgpu-probe-".into());
    api.create(&probe, true).await
}

/// Returns true if the API server kept the counters of `sent`, and what devices take from them.
fn keeps_counters(sent: &ResourceSlice, stored: &ResourceSlice) -> bool {
    let takes = |slice: &ResourceSlice| {
        let devices = plan::devices(slice).iter();
        devices.filter(|device| device.consumes_counters.is_some()).count()
    };
    plan::counters(stored).len() == plan::counters(sent).len() && takes(stored) == takes(sent)
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

mod counters;

use super::plan::tests::owner;
use super::taints::{Allocator, HANDOVER};
use super::*;
use crate::publish::inventory::Inventory;
use crate::publish::inventory::tests::gpu;
use crate::publish::slice::tests::WHOLE;
use crate::publish::slice::{Slice, slices};
use k8s_openapi::api::resource::v1::Device;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// An API server with slices in memory.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    slices: BTreeMap<String, ResourceSlice>,
    version: u64,
    /// Drops the fields of consumable capacity.
    gate_off: bool,
    /// Drops shared counters.
    no_counters: bool,
    /// Drops taints.
    no_taints: bool,
    /// Refuses taints with the effect None.
    refuses_none: bool,
    /// Drops nodeAllocatableResources.
    drops_host_memory: bool,
    /// Refuses slices with nodeAllocatableResources, because the node's kubelet does not declare the feature.
    refuses_host_memory: bool,
    /// 0: 37.
    minor: u32,
    fail: bool,
    /// Refuses to delete the slice with this UID.
    keeps: String,
    /// UID of the Node object; that of `owner()` if empty.
    node_uid: String,
    dry_runs: usize,
}

impl Memory {
    fn with<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        change(&mut self.0.lock().expect("not poisoned"))
    }

    fn all(&self) -> Vec<ResourceSlice> {
        self.with(|state| state.slices.values().cloned().collect())
    }
}

impl State {
    fn store(&mut self, slice: &ResourceSlice, dry_run: bool) -> Result<ResourceSlice, Error> {
        if self.fail {
            return Err(Error::Other("down".into()));
        }
        if self.refuses_none && crate::publish::slice::has_information(&[Slice::new("", plan::devices(slice).to_vec())])
        {
            let text = "spec.devices[0].taints[0].effect: Unsupported value: \"None\" (422)";
            return Err(Error::Invalid(text.into()));
        }
        let mut slice = slice.clone();
        for device in slice.spec.devices.iter_mut().flatten() {
            if device.node_allocatable_resources.is_some() && self.refuses_host_memory {
                let text = "slice is forbidden: node \"n1\" does not support DRANodeAllocatableResources feature (403)";
                return Err(Error::Other(text.into()));
            }
            if self.drops_host_memory {
                device.node_allocatable_resources = None;
            }
        }
        if self.no_counters {
            counters::drop_from(&mut slice);
        }
        if self.gate_off {
            for device in slice.spec.devices.iter_mut().flatten() {
                device.allow_multiple_allocations = None;
                for capacity in device.capacity.iter_mut().flat_map(BTreeMap::values_mut) {
                    capacity.request_policy = None;
                }
            }
        }
        self.version += 1;
        for device in slice.spec.devices.iter_mut().flatten() {
            if self.no_taints {
                device.taints = None;
            }
            for taint in device.taints.iter_mut().flatten() {
                let second = i64::try_from(self.version).expect("few");
                let now = k8s_openapi::jiff::Timestamp::from_second(second).expect("a time");
                taint.time_added.get_or_insert(Time(now));
            }
        }
        let version = self.version.to_string();
        let uid = slice
            .metadata
            .uid
            .get_or_insert_with(|| format!("uid-{version}"))
            .clone();
        slice.metadata.resource_version = Some(version);
        if dry_run {
            self.dry_runs += 1;
        } else {
            self.slices.insert(uid, slice.clone());
        }
        Ok(slice)
    }
}

impl Slices for Memory {
    async fn node_uid(&self) -> Result<String, Error> {
        let uid = self.with(|state| state.node_uid.clone());
        Ok(if uid.is_empty() { owner().node_uid } else { uid })
    }

    async fn version(&self) -> Result<(u32, u32), Error> {
        let minor = self.with(|state| state.minor);
        Ok((1, if minor == 0 { 37 } else { minor }))
    }

    async fn create(&self, slice: &ResourceSlice, dry_run: bool) -> Result<ResourceSlice, Error> {
        self.with(|state| state.store(slice, dry_run))
    }

    async fn replace(&self, slice: &ResourceSlice) -> Result<ResourceSlice, Error> {
        let known = self.with(|state| state.slices.contains_key(uid(slice)));
        if !known {
            return Err(Error::NotFound("gone".into()));
        }
        self.with(|state| state.store(slice, false))
    }

    async fn delete(&self, slice: &ResourceSlice) -> Result<(), Error> {
        if self.with(|state| state.keeps == uid(slice)) {
            return Err(Error::Invalid("spec.pool.name: old/vgpu (422)".into()));
        }
        self.with(|state| state.slices.remove(uid(slice)))
            .map(drop)
            .ok_or(Error::NotFound("gone".into()))
    }
}

fn wanted(count: u32) -> Vec<Slice> {
    slices(&Inventory::new((0..count).map(gpu).collect()), WHOLE)
}

/// The taints of a node that never was the controller's: nothing is written.
fn no_taints() -> Taints {
    Taints::new(Allocator::Scheduler, "/nonexistent/allocator".into()).expect("a mark")
}

fn synced() -> Publisher {
    let mut publisher = Publisher::new(no_taints(), HostMemory::new(0));
    publisher.apply(watcher::Event::Init);
    assert!(!publisher.synced());
    publisher.apply(watcher::Event::InitDone);
    publisher
}

impl Publisher {
    async fn publish(&mut self, api: &Memory, wanted: &[Slice]) {
        self.reconcile(api, &mut owner(), wanted).await.expect("published");
    }
}

#[tokio::test]
async fn a_wipe_is_answered_and_an_old_event_is_not() {
    let (api, mut publisher) = (Memory::default(), synced());
    publisher.publish(&api, &wanted(1)).await;
    let first = api.all();
    assert_eq!(first.len(), 2, "one of each pool");
    publisher.publish(&api, &wanted(1)).await;
    assert_eq!(publisher.writes, 2);
    // The watch is late: it delivers the state before our update.
    publisher.publish(&api, &wanted(2)).await;
    publisher.apply(watcher::Event::Apply(first[0].clone()));
    publisher.publish(&api, &wanted(2)).await;
    assert_eq!(publisher.writes, 4);
    // kubelet starts.
    let wiped = api.all();
    api.with(|state| state.slices.clear());
    for slice in wiped {
        publisher.apply(watcher::Event::Delete(slice));
    }
    publisher.publish(&api, &wanted(2)).await;
    assert_eq!(api.all().iter().flat_map(plan::devices).count(), 4);
}

#[tokio::test]
async fn slices_of_a_node_that_was_created_anew_belong_to_the_new_object() {
    let (api, mut publisher, mut owner) = (Memory::default(), synced(), owner());
    let all = publisher.reconcile(&api, &mut owner, &wanted(1)).await;
    all.expect("published");
    // The garbage collector removes what the old object owned.
    let old = api.all();
    api.with(|state| {
        state.slices.clear();
        state.node_uid = "another".into();
    });
    for slice in old {
        publisher.apply(watcher::Event::Delete(slice));
    }
    let all = publisher.reconcile(&api, &mut owner, &wanted(1)).await;
    all.expect("published again");
    let owners = api.all().remove(0).metadata.owner_references.expect("an owner");
    assert_eq!(owners[0].uid, "another");
    assert_eq!(publisher.writes, 4, "no slice was written for the old object");
}

#[tokio::test]
async fn a_write_during_a_list_is_not_done_twice() {
    let (api, mut publisher) = (Memory::default(), synced());
    publisher.apply(watcher::Event::Init);
    publisher.publish(&api, &wanted(1)).await;
    publisher.apply(watcher::Event::InitDone);
    publisher.publish(&api, &wanted(1)).await;
    assert_eq!(api.all().len(), 2);
}

#[tokio::test]
async fn a_server_without_consumable_capacity_gets_no_shareable_gpu() {
    let (api, mut publisher) = (Memory::default(), synced());
    api.with(|state| state.gate_off = true);
    publisher.publish(&api, &wanted(2)).await;
    let devices = |api: &Memory| {
        let all = api
            .all()
            .into_iter()
            .flat_map(|slice| slice.spec.devices.unwrap_or_default());
        all.map(|device| device.name).collect::<Vec<_>>()
    };
    assert_eq!(devices(&api), ["gpu-3f8a1c20-monitor", "gpu-3f8a1c21-monitor"]);
    for _ in 0..3 {
        publisher.publish(&api, &wanted(2)).await;
    }
    assert_eq!(api.with(|state| state.dry_runs), 1, "no loop");
    assert_eq!(publisher.writes, 1);
    // The gate is switched on, and the dry run is repeated.
    api.with(|state| state.gate_off = false);
    publisher.consumable = None;
    publisher.publish(&api, &wanted(2)).await;
    assert_eq!(devices(&api).len(), 4);
}

#[tokio::test]
async fn a_gate_that_goes_off_later_is_seen_in_the_answer() {
    let (api, mut publisher) = (Memory::default(), synced());
    publisher.publish(&api, &wanted(1)).await;
    api.with(|state| state.gate_off = true);
    publisher.publish(&api, &wanted(2)).await;
    let shared = |slice: &ResourceSlice| {
        plan::devices(slice)
            .iter()
            .any(|device| !device.name.ends_with("monitor"))
    };
    assert!(!api.all().iter().any(shared), "the stripped GPU was taken back at once");
}

/// What each kind of server makes of the library's memory, and what the plugin says of it.
#[tokio::test]
async fn memory_of_the_node_is_reserved_where_the_server_keeps_it_and_else_nothing_breaks() {
    let reserving = |api: &Memory| {
        let devices = api
            .all()
            .into_iter()
            .flat_map(|slice| slice.spec.devices.unwrap_or_default());
        devices
            .filter(|device| device.node_allocatable_resources.is_some())
            .count()
    };
    type Server = (&'static str, fn(&mut State), usize);
    let servers: [Server; 4] = [
        ("", |_| {}, 2),
        ("dropped it", |state| state.drops_host_memory = true, 0),
        ("for this node", |state| state.refuses_host_memory = true, 0),
        ("Kubernetes 1.36", |state| state.minor = 36, 0),
    ];
    for (said, server, count) in servers {
        let (api, mut publisher) = (Memory::default(), synced());
        publisher.host_memory = HostMemory::new(8 << 20);
        api.with(server);
        for _ in 0..3 {
            publisher.publish(&api, &wanted(2)).await;
        }
        let writes = publisher.writes;
        publisher.publish(&api, &wanted(2)).await;
        assert_eq!(publisher.writes, writes, "no loop: {said}");
        assert_eq!((api.all().len(), reserving(&api)), (2, count), "{said}");
        let report = publisher.host_memory.report().expect("known");
        match report {
            Ok(()) => assert_eq!(said, ""),
            Err(why) => assert!(!said.is_empty() && why.contains(said), "{why}"),
        }
        // The server is updated and its gate switched on, and kubelet, which starts again for it, deletes the slices.
        api.with(|state| {
            (state.drops_host_memory, state.refuses_host_memory, state.minor) = (false, false, 0);
            state.slices.clear();
        });
        publisher.existing.clear();
        publisher.host_memory.ask_again();
        publisher.publish(&api, &wanted(2)).await;
        assert_eq!(publisher.host_memory.report(), Some(Ok(())), "{said}");
        assert_eq!(reserving(&api), 2, "{said}");
    }
}

/// A gate of an instance that kubelet reaches.
fn reached(wanted: watch::Receiver<Wanted>) -> Gate {
    let (reach, reached) = watch::channel(true);
    std::mem::forget(reach);
    Gate { wanted, reached }
}

#[tokio::test(start_paused = true)]
async fn the_loop_survives_a_server_that_is_down_and_says_so() {
    let api = Memory::default();
    api.with(|state| state.fail = true);
    let running = Running::start_with(Wanted::Unknown, api.clone(), no_taints());
    let status = || running.readiness.status();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(status().1.contains("waiting"), "nothing is wanted yet");
    running.wanted.send(Wanted::NoDriver).expect("running");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(status().0, "nothing to publish: {}", status().1);
    assert_eq!(api.all().len(), 0);
    running.wanted.send(Wanted::Slices(wanted(1))).expect("running");
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(status().1.contains("API server: down"), "{}", status().1);
    api.with(|state| state.fail = false);
    tokio::time::sleep(Duration::from_secs(61)).await;
    assert!(status().0, "{}", status().1);
    assert_eq!(api.all().len(), 2);
    running.task.abort();
}

/// The slice is of another release, or of a backup, and a policy forbids to delete it.
#[tokio::test]
async fn a_slice_that_cannot_be_deleted_stops_no_other_write() {
    let api = Memory::default();
    let stray = plan::slice(&owner(), "old/vgpu", &wanted(1)[0], 1, 1);
    let stray = api.create(&stray, false).await.expect("stored");
    api.with(|state| state.keeps = uid(&stray).to_owned());
    let mut publisher = Publisher::new(no_taints(), HostMemory::new(0));
    publisher.apply(watcher::Event::Init);
    publisher.apply(watcher::Event::InitApply(stray));
    publisher.apply(watcher::Event::InitDone);
    let said = publisher.reconcile(&api, &mut owner(), &wanted(1)).await;
    assert!(said.is_err_and(|error| error.to_string().contains("old/vgpu")));
    let pools = || -> Vec<_> { api.all().into_iter().map(|slice| slice.spec.pool.name).collect() };
    assert!(pools().contains(&owner().pools.gpus), "{:?}", pools());
    api.with(|state| state.keeps.clear());
    publisher.publish(&api, &wanted(1)).await;
    assert_eq!(pools(), ["n1/vgpu", "n1/vgpu-monitor"]);
}

#[tokio::test(start_paused = true)]
async fn a_node_without_anything_to_publish_rests() {
    for is_synced in [true, false] {
        let looks = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = looks.clone();
        let listed = [Ok(watcher::Event::Init), Ok(watcher::Event::InitDone)];
        let events = futures::stream::iter(listed.into_iter().take(if is_synced { 2 } else { 1 }));
        let events = events.chain(futures::stream::poll_fn(move |_| {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            std::task::Poll::Pending
        }));
        let (_sender, receiver) = watch::channel(Wanted::NoDriver);
        let readiness = Readiness::new(&[PART]);
        let metrics = Metrics::default();
        let running = tokio::spawn(run(
            Memory::default(),
            events,
            Publisher::new(no_taints(), HostMemory::new(0)),
            owner(),
            reached(receiver),
            readiness,
            metrics,
        ));
        for _ in 0..3 {
            // While tasks are busy, the paused clock does not advance by itself.
            tokio::time::advance(ASK_AGAIN + Duration::from_secs(1)).await;
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        }
        let looks = looks.load(std::sync::atomic::Ordering::Relaxed);
        assert!((3..20).contains(&looks), "{looks} looks, synced: {is_synced}");
        running.abort();
    }
}

/// A running publisher of one GPU, its server, and its readiness.
struct Running {
    api: Memory,
    readiness: Readiness,
    task: tokio::task::JoinHandle<()>,
    wanted: watch::Sender<Wanted>,
}

impl Running {
    fn start(api: Memory, taints: Taints) -> Self {
        Self::start_with(Wanted::Slices(wanted(1)), api, taints)
    }

    fn start_with(wanted: Wanted, api: Memory, taints: Taints) -> Self {
        let readiness = Readiness::new(&[PART]);
        let (sender, receiver) = watch::channel(wanted);
        let listed: Vec<_> = api.all().into_iter().map(watcher::Event::InitApply).collect();
        let events = [watcher::Event::Init].into_iter().chain(listed);
        let events = events.chain([watcher::Event::InitDone]).map(Ok);
        let events = futures::stream::iter(events.collect::<Vec<_>>()).chain(futures::stream::pending());
        let metrics = Metrics::default();
        let task = tokio::spawn(run(
            api.clone(),
            events,
            Publisher::new(taints, HostMemory::new(0)),
            owner(),
            reached(receiver),
            readiness.clone(),
            metrics,
        ));
        Self {
            api,
            readiness,
            task,
            wanted: sender,
        }
    }

    /// The value and the time of the GPU's taint.
    fn taint(&self) -> Option<(String, i64)> {
        let slices = self.api.all();
        let gpu = slices
            .iter()
            .flat_map(plan::devices)
            .find(|device| !device.name.ends_with("-monitor"))?;
        let taint = gpu.taints.iter().flatten().next()?;
        let time = taint.time_added.as_ref().expect("the server's").0.as_second();
        Some((taint.value.clone().expect("a value"), time))
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_changes_hands_by_itself_and_a_restart_keeps_the_age() {
    let folder = tempfile::tempdir().expect("a folder");
    let taints = |allocator| Taints::new(allocator, folder.path().join("allocator")).expect("a mark");
    let first = Running::start(Memory::default(), taints(Allocator::Controller));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(first.taint(), Some(("controller".into(), 2)), "1 was the dry run");
    first.task.abort();
    let second = Running::start(first.api, taints(Allocator::Controller));
    tokio::time::sleep(2 * ASK_AGAIN).await;
    assert_eq!(second.taint(), Some(("controller".into(), 2)));
    second.task.abort();
    let third = Running::start(second.api, taints(Allocator::Scheduler));
    tokio::time::sleep(HANDOVER - Duration::from_secs(1)).await;
    assert!(third.taint().is_some_and(|(value, _)| value == "released"));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(third.taint(), None);
    assert!(third.readiness.status().0, "{}", third.readiness.status().1);
    third.task.abort();
}

/// `name: key,key` of each device that has a taint.
fn tainted(api: &Memory) -> Vec<String> {
    let slices = api.all();
    let devices = slices.iter().flat_map(plan::devices);
    let keys = |device: &Device| {
        let keys = device.taints.iter().flatten().map(|taint| taint.key.as_str());
        let keys: Vec<&str> = keys.collect();
        (!keys.is_empty()).then(|| format!("{}: {}", device.name, keys.join(",")))
    };
    let mut all: Vec<String> = devices.filter_map(keys).collect();
    all.sort();
    all
}

/// Two GPUs in a slice each, and their monitors in one each.
fn two_slices() -> Vec<Slice> {
    let of = |index| slices(&Inventory::new(vec![gpu(index)]), WHOLE);
    [of(0), of(1)].concat()
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_has_not_answered_since_the_start_keeps_new_claims_away() {
    let folder = tempfile::tempdir().expect("a folder");
    let taints = |allocator| Taints::new(allocator, folder.path().join("allocator")).expect("a mark");
    for allocator in [Allocator::Scheduler, Allocator::Controller] {
        let api = Memory::default();
        let first = Running::start_with(Wanted::Slices(two_slices()), api.clone(), taints(allocator));
        tokio::time::sleep(2 * HANDOVER).await;
        first.task.abort();
        let (before, well) = (api.all(), tainted(&api));
        let names = |slices: &[ResourceSlice]| -> Vec<String> {
            let all = slices.iter().flat_map(plan::devices);
            all.map(|device| device.name.clone()).collect()
        };
        // The plugin starts again. It knows nothing yet, and then that the driver is silent.
        let second = Running::start_with(Wanted::Unknown, api.clone(), taints(allocator));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(api.all(), before);
        for blind in [Wanted::Silent, Wanted::NoDriver, Wanted::Silent] {
            second.wanted.send(blind).expect("running");
            tokio::time::sleep(2 * ASK_AGAIN).await;
            let with = |own: &str| {
                let gpus = ["gpu-3f8a1c20", "gpu-3f8a1c21"];
                gpus.map(|gpu| format!("{gpu}: {own}"))
            };
            let expected = match allocator {
                Allocator::Scheduler => with("dra.vgpu/silent"),
                Allocator::Controller => with("dra.vgpu/silent,dra.vgpu/allocator"),
            };
            assert_eq!(tainted(&api), expected);
            assert_eq!(names(&api.all()), names(&before), "and no other change");
        }
        let version = api.with(|state| state.version);
        tokio::time::sleep(2 * ASK_AGAIN).await;
        assert_eq!(api.with(|state| state.version), version, "no loop");
        second.wanted.send(Wanted::Slices(two_slices())).expect("running");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(tainted(&api), well, "the driver answers");
        second.task.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_driver_publishes_nothing_that_the_scheduler_does_not_use_already() {
    let api = Memory::default();
    let nothing = Running::start_with(Wanted::Silent, api.clone(), no_taints());
    tokio::time::sleep(2 * ASK_AGAIN).await;
    assert!(api.all().is_empty() && !nothing.readiness.status().0);
    nothing.task.abort();
    // A pool that lacks a slice, and one of another name.
    let first = Running::start_with(Wanted::Slices(two_slices()), api.clone(), no_taints());
    tokio::time::sleep(Duration::from_secs(1)).await;
    first.task.abort();
    let mut other = api.all().remove(0);
    api.with(|state| state.slices.pop_last());
    other.spec.pool.name = "another".into();
    other.metadata.uid = Some("another".into());
    api.with(|state| state.slices.insert("another".into(), other));
    let before = api.all();
    let second = Running::start_with(Wanted::Silent, api.clone(), no_taints());
    tokio::time::sleep(2 * ASK_AGAIN).await;
    assert_eq!(api.all(), before);
    second.task.abort();
}

#[tokio::test(start_paused = true)]
async fn a_server_without_taints_leaves_the_scheduler_at_it_and_the_plugin_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let api = Memory::default();
    api.with(|state| state.no_taints = true);
    let taints = Taints::new(Allocator::Controller, folder.path().join("allocator")).expect("a mark");
    let running = Running::start(api.clone(), taints);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (ready, why) = running.readiness.status();
    assert!(!ready && why.contains("DRADeviceTaints"), "{why}");
    let version = api.with(|state| state.version);
    tokio::time::sleep(3 * ASK_AGAIN).await;
    assert_eq!(api.with(|state| state.version), version, "no loop");
    running.task.abort();
}

#[tokio::test]
async fn a_server_without_the_effect_none_gets_the_taints_that_count() {
    let fault = |reason, blocks| crate::publish::inventory::Fault {
        reason,
        value: "1".into(),
        blocks,
    };
    let faults = |blocks| {
        let reasons = [
            crate::publish::inventory::Reason::Xid,
            crate::publish::inventory::Reason::Remap,
        ];
        let faults = vec![fault(reasons[0], false), fault(reasons[1], blocks)];
        slices(
            &Inventory::new(vec![gpu(0)]).with_faults(&[(gpu(0).uuid, faults)].into()),
            WHOLE,
        )
    };
    let effects = |api: &Memory| -> Vec<String> {
        let slices = api.all();
        let devices = slices.iter().flat_map(plan::devices);
        let taints = devices.flat_map(|device| device.taints.clone().unwrap_or_default());
        taints.map(|taint| taint.effect).collect()
    };
    for (refuses_none, expected) in [(true, &["NoSchedule"][..]), (false, &["None", "NoSchedule"])] {
        let (api, mut publisher) = (Memory::default(), synced());
        api.with(|state| state.refuses_none = refuses_none);
        for wanted in [wanted(1), faults(true)] {
            publisher.publish(&api, &wanted).await;
        }
        assert_eq!(effects(&api), expected);
        let writes = publisher.writes;
        publisher.publish(&api, &faults(true)).await;
        assert_eq!(publisher.writes, writes, "not tried again");
        publisher.publish(&api, &faults(false)).await;
        assert!(!effects(&api).iter().any(|effect| effect == "NoSchedule"));
    }
}

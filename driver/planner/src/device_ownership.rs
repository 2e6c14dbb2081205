//! Who allocates each device of the slices, and therefore who allocates a claim: all classes that it names must have
//! devices of the same allocator. [`crate::device_taints`] has the rule for one device.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use vgpu_allocator::model::{Device, DeviceClass, ResourceClaim, ResourceSlice, Taint};
use vgpu_allocator::{Index, SelectorCache};
use vgpu_api::{capacity, device_type};
use vgpu_quantity::Quantity;

use crate::allocation::{MOST_TOLERATIONS, as_controller, as_scheduler, asks};
use crate::change::Last;
use crate::device_taints::{DeviceAllocator, Handover, rewrite_taints};
use crate::model::{self, Version};
use crate::names::{DRIVER, TAINT_KEY};
use crate::time::Time;
use crate::verdict::Verdict;

/// Who allocates a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ClaimAllocator {
    Controller,
    /// kube-scheduler; also if its class has no device or does not exist yet.
    Scheduler,
    Nobody(Unallocatable),
}

/// Why nobody may allocate a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unallocatable {
    /// Some requests are for the controller's devices and others are not. One class of each kind.
    Mixed {
        ours: String,
        other: String,
    },
    /// The claim tolerates our taint, so kube-scheduler may allocate the controller's devices to it.
    Tolerates,
    TooManyTolerations,
}

impl Unallocatable {
    /// The verdict on a claim of this name.
    #[must_use]
    pub fn verdict(self, claim: String) -> Verdict {
        match self {
            Self::Mixed { ours, other } => Verdict::Mixed { claim, ours, other },
            Self::Tolerates => Verdict::Tolerates { claim },
            Self::TooManyTolerations => Verdict::TooManyTolerations { claim },
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct DeviceOwnership {
    slices: BTreeMap<String, KnownSlice>,
    classes: BTreeMap<String, KnownClass>,
    /// Our driver's slices by pool.
    pools: HashMap<String, BTreeSet<String>>,
    /// When the last consistent list of all claims was begun.
    listed: Option<Time>,
    /// How old a taint must be to count; `None` if kube-scheduler allocates everything.
    settle: Option<Duration>,
}

/// What a slice of our driver publishes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Published {
    pub devices: usize,
    /// The memory of the largest GPU in bytes, 0 without a GPU.
    pub largest: u64,
}

#[derive(Debug)]
struct KnownSlice {
    version: Version,
    /// When the slice was last received.
    seen: Time,
    /// The slice's pool, if it is our driver's.
    pool: Option<String>,
    published: Published,
    /// Who allocates each device, in the slice's order; empty if kube-scheduler allocates everything.
    allocators: Box<[DeviceAllocator]>,
    /// When the last consistent read of the slice began.
    read: Option<Time>,
    /// The published taints of the slice's devices, as long as one of them is settling. The rest of the slice is in the
    /// index.
    taints: Option<Vec<Vec<Taint>>>,
}

/// When a slice was received, and when its consistent read began; `None` if it came from a watch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sighting {
    pub(crate) at: Time,
    pub(crate) read: Option<Time>,
}

#[derive(Debug)]
struct KnownClass {
    by_slice: HashMap<String, DeviceCounts>,
    total: DeviceCounts,
}

/// How many devices of a class each allocator has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct DeviceCounts {
    controller: usize,
    scheduler: usize,
    other_driver: usize,
}

impl DeviceOwnership {
    /// For controller mode: devices are divided between kube-scheduler and the controller by their taint.
    pub(crate) fn divided(settle: Duration) -> Self {
        Self {
            settle: Some(settle),
            ..Self::default()
        }
    }

    /// Inserts or replaces a slice. An older version than the known one changes only the time of the last read: the
    /// known version is newer than that read.
    pub(crate) fn set_slice(
        &mut self,
        slice: model::Slice,
        seen: Sighting,
        index: &mut Index,
        cache: &mut SelectorCache<'_>,
    ) {
        let name = slice.name().to_owned();
        let mut read = seen.read;
        if let Some(known) = self.slices.get_mut(&name) {
            read = read.max(known.read);
            if slice.version < known.version {
                known.read = read;
                return;
            }
        }
        let mut facts = slice.facts;
        let published = Published::of(&facts);
        let mut taints = None;
        let mut allocators = Vec::new();
        if let Some(after) = self.settle {
            let handover = Handover {
                after,
                listed: self.listed,
                is_listed_now: self.listed == Some(seen.at),
            };
            let before = facts.spec.devices.iter().map(|device| device.taints.clone()).collect();
            allocators = rewrite_taints(&mut facts, handover);
            taints = allocators
                .iter()
                .any(|who| matches!(who, DeviceAllocator::Settling { .. }))
                .then_some(before);
        }
        self.forget(&name);
        let pool = (facts.spec.driver == DRIVER).then(|| facts.spec.pool.name.clone());
        if let Some(pool) = &pool {
            self.pools.entry(pool.clone()).or_default().insert(name.clone());
        }
        let known = KnownSlice {
            version: slice.version,
            seen: seen.at,
            pool,
            published,
            allocators: allocators.into(),
            read,
            taints,
        };
        index.set_slice(facts);
        for (class, of_class) in &mut self.classes {
            of_class.count(class, &name, &known, index, cache);
        }
        self.slices.insert(name, known);
    }

    /// Removes a slice, unless the known one is newer than its removal.
    pub(crate) fn remove_slice(&mut self, name: &str, last: Last, index: &mut Index) {
        let is_newer = |known: &KnownSlice| match last {
            Last::Version(version) => known.version > version,
            // This may keep a slice that is gone. That does no harm: it is read again before any decision on it.
            Last::Read(begun) => known.seen > begun,
        };
        if self.slices.get(name).is_some_and(is_newer) {
            return;
        }
        self.forget(name);
        index.remove_slice(name);
    }

    pub(crate) fn set_class(&mut self, object: DeviceClass, index: &mut Index, cache: &mut SelectorCache<'_>) {
        let name = object.metadata.name.clone();
        index.set_class(object);
        let mut class = KnownClass {
            by_slice: HashMap::new(),
            total: DeviceCounts::default(),
        };
        for (slice, known) in &self.slices {
            class.count(&name, slice, known, index, cache);
        }
        self.classes.insert(name, class);
    }

    pub(crate) fn remove_class(&mut self, name: &str, index: &mut Index) {
        self.classes.remove(name);
        index.remove_class(name);
    }

    /// A list of all claims that was begun at `read` is complete: devices that had settled by then are the
    /// controller's.
    pub(crate) fn set_listed(&mut self, read: Time, index: &mut Index, cache: &mut SelectorCache<'_>) {
        if self.listed.is_some_and(|listed| read <= listed) {
            return;
        }
        self.listed = Some(read);
        let is_settled = |slice: &KnownSlice| slice.ready().any(|ready| ready <= read);
        let settled = self.slices.iter().filter(|(_, slice)| is_settled(slice));
        let settled: Vec<String> = settled.map(|(name, _)| name.clone()).collect();
        for name in settled {
            let Some(known) = self.slices.get_mut(&name) else {
                continue;
            };
            let (version, at) = (known.version, known.seen);
            if let (Some(taints), Some(mut facts)) = (known.taints.take(), index.slice(&name)) {
                for (device, taints) in facts.spec.devices.iter_mut().zip(taints) {
                    device.taints = taints;
                }
                let slice = model::Slice { version, facts };
                self.set_slice(slice, Sighting { at, read: None }, index, cache);
            }
        }
    }

    /// The clock was set back, so the times of all reads are unknown. Devices that the controller allocates already
    /// stay its own; the others settle by the next list.
    pub(crate) fn set_back(&mut self, now: Time) {
        self.listed = None;
        for slice in self.slices.values_mut() {
            slice.read = None;
            slice.seen = slice.seen.min(now);
        }
    }

    /// When the next device will have settled: a list of the claims that is begun then makes it the controller's.
    pub(crate) fn next_ready(&self) -> Option<Time> {
        self.slices.values().flat_map(KnownSlice::ready).min()
    }

    /// The slices of a pool, and when the last consistent read of each was begun.
    pub(crate) fn reads<'a>(&'a self, pool: &str) -> impl Iterator<Item = (&'a String, Option<Time>)> {
        let slices = self.pools.get(pool).into_iter().flatten();
        slices.filter_map(|name| Some((name, self.slices.get(name)?.read)))
    }

    pub(crate) fn slices(&self) -> impl Iterator<Item = &String> {
        self.slices.keys()
    }

    pub(crate) fn published(&self) -> impl Iterator<Item = Published> {
        let ours = self.slices.values().filter(|slice| slice.pool.is_some());
        ours.map(|slice| slice.published)
    }

    /// Returns the claim with the toleration of its allocator.
    ///
    /// # Errors
    /// Why nobody may allocate the claim.
    pub(crate) fn as_its_allocator(&self, claim: &ResourceClaim) -> Result<ResourceClaim, Unallocatable> {
        if self.settle.is_none() {
            return Ok(claim.clone());
        }
        match self.claim_allocator(claim) {
            ClaimAllocator::Controller => Ok(as_controller(claim)),
            ClaimAllocator::Scheduler => Ok(as_scheduler(claim)),
            ClaimAllocator::Nobody(why) => Err(why),
        }
    }

    /// Returns true if the controller allocates all devices of the class.
    pub(crate) fn is_controllers_alone(&self, class: &str) -> bool {
        let total = self.classes.get(class).map(|class| class.total);
        total.is_some_and(|total| total.controller > 0 && total.scheduler == 0 && total.other_driver == 0)
    }

    /// A device of our driver, and the node of its slice.
    pub(crate) fn device(&self, pool: &str, name: &str, index: &Index) -> Option<(Device, Option<String>)> {
        self.pools.get(pool)?.iter().find_map(|slice| {
            let spec = index.slice(slice)?.spec;
            let device = spec.devices.into_iter().find(|device| device.name == name)?;
            Some((device, spec.node_name))
        })
    }

    /// Who allocates a device of our driver.
    pub(crate) fn device_allocator(&self, pool: &str, device: &str, index: &Index) -> Option<DeviceAllocator> {
        self.pools.get(pool)?.iter().find_map(|name| {
            let devices = index.devices_of_slice(name).iter();
            let place = devices.into_iter().position(|known| known.name == device)?;
            self.slices.get(name)?.allocators.get(place).copied()
        })
    }

    /// Returns who allocates a claim: the controller, if all classes that it names have devices of the controller's and
    /// of no other driver.
    pub(crate) fn claim_allocator(&self, claim: &ResourceClaim) -> ClaimAllocator {
        let mut ours = None;
        let mut others = None;
        for ask in asks(claim) {
            let total = self
                .classes
                .get(&ask.class)
                .map_or(DeviceCounts::default(), |class| class.total);
            let list = match total.controller > 0 && total.other_driver == 0 {
                true => &mut ours,
                false => &mut others,
            };
            list.get_or_insert(&ask.class);
        }
        match (ours, others) {
            (None, _) => ClaimAllocator::Scheduler,
            (Some(ours), Some(other)) => ClaimAllocator::Nobody(Unallocatable::Mixed {
                ours: ours.clone(),
                other: other.clone(),
            }),
            (Some(_), None) => {
                let mut tolerations = asks(claim).flat_map(|ask| &ask.tolerations);
                if tolerations.any(|toleration| toleration.key.is_empty() || toleration.key == TAINT_KEY) {
                    ClaimAllocator::Nobody(Unallocatable::Tolerates)
                } else if asks(claim).any(|ask| ask.tolerations.len() >= MOST_TOLERATIONS) {
                    ClaimAllocator::Nobody(Unallocatable::TooManyTolerations)
                } else {
                    ClaimAllocator::Controller
                }
            }
        }
    }

    fn forget(&mut self, name: &str) {
        let Some(known) = self.slices.remove(name) else {
            return;
        };
        if let Some(pool) = known.pool
            && let Some(slices) = self.pools.get_mut(&pool)
        {
            slices.remove(name);
            if slices.is_empty() {
                self.pools.remove(&pool);
            }
        }
        for class in self.classes.values_mut() {
            class.forget(name);
        }
    }
}

impl Published {
    fn of(slice: &ResourceSlice) -> Self {
        let devices = &slice.spec.devices;
        let gpus = devices.iter().filter(|device| {
            let of_type = device.attributes.get(device_type::ATTRIBUTE);
            of_type.and_then(|value| value.text()) == Some(device_type::GPU)
        });
        let memory = gpus.filter_map(|gpu| gpu.capacity.get(capacity::MEMORY));
        let bytes = memory.filter_map(|memory| Quantity::whole_away_from_zero(&memory.value));
        Self {
            devices: devices.len(),
            largest: bytes.max().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0),
        }
    }
}

impl KnownSlice {
    fn ready(&self) -> impl Iterator<Item = Time> {
        self.allocators.iter().filter_map(|who| match who {
            DeviceAllocator::Settling { until } => *until,
            _ => None,
        })
    }
}

impl KnownClass {
    /// Counts the devices of a slice that the class selects, and replaces the slice's earlier count.
    fn count(&mut self, class: &str, slice: &str, known: &KnownSlice, index: &Index, cache: &mut SelectorCache<'_>) {
        if known.allocators.is_empty() {
            return self.forget(slice);
        }
        let mut seen = DeviceCounts::default();
        let matches = index.devices_of_class(class, slice, cache);
        for (who, _) in known.allocators.iter().zip(matches).filter(|(_, matches)| *matches) {
            match who {
                DeviceAllocator::Controller { .. } | DeviceAllocator::Settling { .. } => seen.controller += 1,
                DeviceAllocator::Scheduler | DeviceAllocator::Released => seen.scheduler += 1,
                DeviceAllocator::OtherDriver => seen.other_driver += 1,
            }
        }
        self.forget(slice);
        if seen != DeviceCounts::default() {
            self.total.controller += seen.controller;
            self.total.scheduler += seen.scheduler;
            self.total.other_driver += seen.other_driver;
            self.by_slice.insert(slice.to_owned(), seen);
        }
    }

    fn forget(&mut self, slice: &str) {
        if let Some(seen) = self.by_slice.remove(slice) {
            self.total.controller -= seen.controller;
            self.total.scheduler -= seen.scheduler;
            self.total.other_driver -= seen.other_driver;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_allocator::Features;

    fn slice(name: &str, driver: &str, taint: &str) -> model::Slice {
        of_version(1, name, driver, taint)
    }

    fn of_version(version: u64, name: &str, driver: &str, taint: &str) -> model::Slice {
        serde_json::from_str(&format!(
            r#"{{"metadata":{{"name":"{name}","resourceVersion":"{version}"}},"spec":{{"driver":"{driver}","nodeName":"{name}","pool":{{"name":"{name}","resourceSliceCount":1}},
                "devices":[{{"name":"d","taints":[{taint}]}}]}}}}"#
        ))
        .unwrap()
    }

    fn seen(read: Option<Time>) -> Sighting {
        let at = Time::default();
        Sighting { at, read }
    }

    fn claim(requests: &str) -> ResourceClaim {
        serde_json::from_str(&format!(r#"{{"spec":{{"devices":{{"requests":[{requests}]}}}}}}"#)).unwrap()
    }

    const TAINT: &str =
        r#"{"key":"dra.vgpu/allocator","value":"controller","effect":"NoSchedule","timeAdded":"1970-01-01T00:00:00Z"}"#;

    #[test]
    fn a_claim_is_the_controllers_if_all_its_classes_are() {
        let mut ownership = DeviceOwnership::divided(Duration::from_secs(30));
        let mut index = Index::new(Features::default());
        let mut cache = SelectorCache::default();
        for (name, driver) in [("vgpu", "dra.vgpu"), ("nic", "nic.example.com")] {
            let text = format!(
                r#"{{"metadata":{{"name":"{name}"}},"spec":{{"selectors":[{{"cel":{{"expression":"device.driver == '{driver}'"}}}}]}}}}"#
            );
            ownership.set_class(serde_json::from_str(&text).unwrap(), &mut index, &mut cache);
        }
        let (vgpu, nic) = (
            r#"{"name":"r","exactly":{"deviceClassName":"vgpu"}}"#,
            r#"{"name":"n","exactly":{"deviceClassName":"nic"}}"#,
        );
        assert_eq!(
            ownership.claim_allocator(&claim(vgpu)),
            ClaimAllocator::Scheduler,
            "nothing is published"
        );
        ownership.set_slice(slice("n1", DRIVER, TAINT), seen(None), &mut index, &mut cache);
        ownership.set_slice(slice("n2", "nic.example.com", ""), seen(None), &mut index, &mut cache);
        assert_eq!(ownership.claim_allocator(&claim(vgpu)), ClaimAllocator::Controller);
        assert_eq!(ownership.claim_allocator(&claim(nic)), ClaimAllocator::Scheduler);
        assert_eq!(
            ownership.claim_allocator(&claim(&format!("{vgpu},{nic}"))),
            ClaimAllocator::Nobody(Unallocatable::Mixed {
                ours: "vgpu".into(),
                other: "nic".into()
            })
        );
        let open = vgpu.replace("\"vgpu\"}", r#""vgpu","tolerations":[{"operator":"Exists"}]}"#);
        assert_eq!(
            ownership.claim_allocator(&claim(&open)),
            ClaimAllocator::Nobody(Unallocatable::Tolerates)
        );
        assert!(ownership.is_controllers_alone("vgpu") && !ownership.is_controllers_alone("nic"));
        ownership.set_slice(slice("n1", DRIVER, ""), seen(None), &mut index, &mut cache);
        assert_eq!(ownership.claim_allocator(&claim(vgpu)), ClaimAllocator::Scheduler);
        ownership.remove_class("vgpu", &mut index);
        ownership.remove_slice("n1", Last::Version(Version(2)), &mut index);
        assert_eq!(ownership.claim_allocator(&claim(vgpu)), ClaimAllocator::Scheduler);
    }

    #[test]
    fn a_device_is_taken_over_by_a_list_of_claims_after_it_settled() {
        let mut ownership = DeviceOwnership::divided(Duration::from_secs(30));
        let mut index = Index::new(Features::default());
        let mut cache = SelectorCache::default();
        ownership.set_slice(slice("n1", DRIVER, TAINT), seen(None), &mut index, &mut cache);
        assert_eq!(ownership.next_ready(), Some(Time::from_millis(30_000)));
        ownership.set_listed(Time::from_millis(29_000), &mut index, &mut cache);
        assert!(matches!(
            ownership.device_allocator("n1", "d", &index),
            Some(DeviceAllocator::Settling { .. })
        ));
        ownership.set_listed(Time::from_millis(30_000), &mut index, &mut cache);
        assert!(matches!(
            ownership.device_allocator("n1", "d", &index),
            Some(DeviceAllocator::Controller { .. })
        ));
        assert_eq!(ownership.next_ready(), None);
        let read = |ownership: &DeviceOwnership| ownership.reads("n1").map(|(_, read)| read).collect::<Vec<_>>();
        assert_eq!(read(&ownership), [None], "a watch is no proof");
        let again = slice("n1", DRIVER, TAINT);
        ownership.set_slice(again.clone(), seen(Some(Time::from_millis(5))), &mut index, &mut cache);
        ownership.set_slice(again, seen(None), &mut index, &mut cache);
        assert_eq!(read(&ownership), [Some(Time::from_millis(5))]);
    }

    #[test]
    fn a_watch_that_lags_does_not_bring_back_what_was_read() {
        let mut ownership = DeviceOwnership::divided(Duration::from_secs(30));
        let mut index = Index::new(Features::default());
        let mut cache = SelectorCache::default();
        ownership.set_listed(Time::from_millis(60_000), &mut index, &mut cache);
        let at = |at: i64| Sighting {
            at: Time::from_millis(at),
            read: None,
        };
        let released = TAINT.replace("controller", "released");
        let old = || of_version(5, "n1", DRIVER, TAINT);
        ownership.set_slice(old(), at(1), &mut index, &mut cache);
        assert!(matches!(
            ownership.device_allocator("n1", "d", &index),
            Some(DeviceAllocator::Controller { .. })
        ));
        let read = Some(Time::from_millis(2));
        let new = of_version(7, "n1", DRIVER, &released);
        ownership.set_slice(new, Sighting { read, ..at(3) }, &mut index, &mut cache);
        ownership.set_slice(old(), at(4), &mut index, &mut cache);
        assert_eq!(
            ownership.device_allocator("n1", "d", &index),
            Some(DeviceAllocator::Released)
        );
        // An event has overtaken the read: the known version is newer than the read.
        let read = Some(Time::from_millis(5));
        ownership.set_slice(old(), Sighting { read, ..at(6) }, &mut index, &mut cache);
        assert_eq!(
            ownership.device_allocator("n1", "d", &index),
            Some(DeviceAllocator::Released)
        );
        assert_eq!(ownership.reads("n1").next().unwrap().1, read);
        // A deletion of an earlier version, and a read that began before the slice came.
        ownership.remove_slice("n1", Last::Version(Version(6)), &mut index);
        ownership.remove_slice("n1", Last::Read(Time::from_millis(2)), &mut index);
        assert!(ownership.device_allocator("n1", "d", &index).is_some());
        ownership.remove_slice("n1", Last::Read(Time::from_millis(7)), &mut index);
        assert!(ownership.device_allocator("n1", "d", &index).is_none());
    }
}

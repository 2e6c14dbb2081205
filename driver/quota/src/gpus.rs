//! The memory of the GPUs that ResourceSlices of our driver publish.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use vgpu_allocator::model::ResourceSlice;
use vgpu_api::{DRIVER_NAME, capacity, device_type};

use crate::Now;
use crate::amount::{Amount, bytes};

/// The GPUs of a slice, and their fixed slots.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Slice {
    name: String,
    pool: String,
    /// The node of the slice's devices. For a slice without a node, its pool's name.
    node: String,
    /// Name and bytes of each. Boxed: there may be a thousand nodes, and a map takes twice as much.
    gpus: Box<[(Box<str>, u64)]>,
    /// The same of instances of GPUs in MIG mode. No share is a part of one.
    instances: Box<[(Box<str>, u64)]>,
}

impl From<&ResourceSlice> for Slice {
    fn from(slice: &ResourceSlice) -> Self {
        let spec = &slice.spec;
        let devices = spec.devices.iter().filter(|_| spec.driver == DRIVER_NAME);
        let (mut gpus, mut instances) = (Vec::new(), Vec::new());
        let sized = |device: &vgpu_allocator::model::Device| {
            let memory = bytes(&device.capacity.get(capacity::MEMORY)?.value)?;
            (memory > 0).then(|| (device.name.as_str().into(), memory))
        };
        for device in devices {
            let kind = device.attributes.get(device_type::ATTRIBUTE);
            match kind.and_then(|kind| kind.text()) {
                None | Some(device_type::MONITOR) => {}
                Some(device_type::MIG) => instances.extend(sized(device)),
                Some(_) => gpus.extend(sized(device)),
            }
        }
        let node = spec.node_name.as_ref().filter(|node| !node.is_empty());
        Self {
            name: slice.metadata.name.clone(),
            pool: spec.pool.name.clone(),
            node: node.unwrap_or(&spec.pool.name).clone(),
            gpus: gpus.into(),
            instances: instances.into(),
        }
    }
}

impl Slice {
    /// Its GPUs and instances.
    fn all(&self) -> impl Iterator<Item = &(Box<str>, u64)> {
        self.gpus.iter().chain(&self.instances)
    }
}

/// How long GPUs that are no longer published still count as possible for claims: when kubelet restarts, the slices of
/// its node disappear and come back.
const MAY_RETURN: Duration = Duration::from_secs(600);

/// All GPUs, by slice.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gpus {
    slices: BTreeMap<String, Slice>,
    /// By pool: the names of its slices.
    pools: HashMap<String, Vec<String>>,
    /// The number of GPUs of each size.
    sizes: BTreeMap<u64, usize>,
    /// Slices that are gone and may return, and until when.
    gone: BTreeMap<String, (Now, Slice)>,
    /// The number of GPUs of each size that a claim may get; the last known ones while there are none.
    possible: BTreeMap<u64, usize>,
}

impl Gpus {
    /// Returns true if the GPUs have changed.
    pub(crate) fn set(&mut self, slice: &ResourceSlice, now: Now) -> bool {
        let slice = Slice::from(slice);
        self.gone.remove(&slice.name);
        if self.slices.get(&slice.name) == Some(&slice) {
            return false;
        }
        self.forget(&slice.name);
        for (_, memory) in &slice.gpus {
            *self.sizes.entry(*memory).or_default() += 1;
        }
        let of_pool = self.pools.entry(slice.pool.clone()).or_default();
        of_pool.push(slice.name.clone());
        let pool = slice.pool.clone();
        self.slices.insert(slice.name.clone(), slice);
        self.forget_returned(&pool);
        self.remember(now);
        true
    }

    /// Slices come back under other names. A missing slice counts as returned when all of its GPUs are published again.
    fn forget_returned(&mut self, pool: &str) {
        let is_back = |old: &Slice| old.all().all(|(name, _)| self.memory(pool, name).is_some());
        let gone = self
            .gone
            .iter()
            .filter(|(_, (_, old))| old.pool == pool && is_back(old));
        for name in gone.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.gone.remove(&name);
        }
    }

    pub(crate) fn remove(&mut self, name: &str, now: Now) -> bool {
        let gone = self.forget(name);
        let is_known = gone.is_some();
        self.gone
            .extend(gone.map(|slice| (name.to_owned(), (now + MAY_RETURN, slice))));
        self.remember(now);
        is_known
    }

    /// The known slices that a list no longer contains.
    pub(crate) fn others(&self, listed: &[String]) -> Vec<String> {
        let listed: HashSet<&String> = listed.iter().collect();
        let others = self.slices.keys().filter(|name| !listed.contains(name));
        others.cloned().collect()
    }

    fn forget(&mut self, name: &str) -> Option<Slice> {
        let slice = self.slices.remove(name)?;
        for (_, memory) in &slice.gpus {
            if let Some(count) = self.sizes.get_mut(memory) {
                *count -= 1;
            }
        }
        self.sizes.retain(|_, count| *count > 0);
        if let Some(of_pool) = self.pools.get_mut(&slice.pool) {
            of_pool.retain(|known| known != name);
        }
        self.pools.retain(|_, slices| !slices.is_empty());
        Some(slice)
    }

    /// Forgets GPUs that have been gone for long. Returns true if claims may count less now.
    pub(crate) fn expire(&mut self, now: Now) -> bool {
        let is_due = self.gone.values().any(|(until, _)| *until <= now);
        if is_due {
            self.remember(now);
        }
        is_due
    }

    fn remember(&mut self, now: Now) {
        self.gone.retain(|_, (until, _)| *until > now);
        let mut possible = self.sizes.clone();
        for (_, memory) in self.gone.values().flat_map(|(_, slice)| &slice.gpus) {
            *possible.entry(*memory).or_default() += 1;
        }
        if !possible.is_empty() {
            self.possible = possible;
        }
    }

    fn of_pool(&self, pool: &str) -> impl Iterator<Item = &Slice> {
        let slices = self.pools.get(pool).into_iter().flatten();
        slices.filter_map(|name| self.slices.get(name))
    }

    /// The memory of a device; `None` if it is not published.
    pub(crate) fn memory(&self, pool: &str, device: &str) -> Option<u64> {
        self.of_pool(pool)
            .find_map(|slice| slice.all().find(|(name, _)| **name == *device))
            .map(|(_, memory)| *memory)
    }

    /// The memory of the largest GPU that was ever seen.
    pub(crate) fn largest(&self) -> Option<u64> {
        self.possible.last_key_value().map(|(size, _)| *size)
    }

    /// The node of a pool.
    pub(crate) fn node(&self, pool: &str) -> Option<&str> {
        Some(self.of_pool(pool).next()?.node.as_str())
    }

    /// The most that a share with this request may take, on whichever GPU it comes. `None` while no GPU was ever seen.
    pub(crate) fn worst(&self, memory: Option<u64>, cores: u64) -> Option<Amount> {
        let (largest, _) = self.possible.last_key_value()?;
        Some(match memory {
            None => Amount::share(*largest, cores, *largest),
            Some(memory) => {
                // The fraction is largest on the smallest GPU that has room. A request larger than every GPU can run
                // nowhere.
                let smallest = self.possible.range(memory..).next().map_or(memory, |(size, _)| *size);
                Amount::share(memory, cores, smallest)
            }
        })
    }

    /// The most that a request for an instance may take, and the number of instances; `None` while there is none.
    pub(crate) fn worst_instance(&self) -> Option<(Amount, usize)> {
        let gone = self.gone.values().map(|(_, slice)| slice);
        let sizes = self.slices.values().chain(gone).flat_map(|slice| &slice.instances);
        let (largest, count) = sizes.fold((0, 0), |(largest, count), (_, memory)| {
            (*memory.max(&largest), count + 1)
        });
        (count > 0).then(|| (Amount::share(largest, 0, largest), count))
    }

    /// The number of GPUs. A request for all devices of a node cannot exceed it.
    pub(crate) fn count(&self) -> usize {
        self.possible.values().sum()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    pub(crate) fn slice(name: &str, gibibytes: &[u64]) -> ResourceSlice {
        let device = |(i, size): (usize, &u64)| {
            json!({"name": format!("gpu-{i}"), "attributes": {"type": {"string": "gpu"}},
                "capacity": {"memory": {"value": format!("{size}Gi")}}})
        };
        let devices: Vec<_> = gibibytes.iter().enumerate().map(device).collect();
        serde_json::from_value(json!({"metadata": {"name": name},
            "spec": {"driver": "dra.vgpu", "pool": {"name": name}, "devices": devices}}))
        .unwrap()
    }

    #[test]
    fn the_worst_case_is_the_largest_gpu_or_the_smallest_with_room() {
        const GI: u64 = 1 << 30;
        let mut gpus = Gpus::default();
        assert_eq!(gpus.worst(None, 0), None);
        assert!(gpus.set(&slice("a", &[80, 40]), Now::ZERO));
        assert!(!gpus.set(&slice("a", &[80, 40]), Now::ZERO));
        assert_eq!(gpus.worst(None, 0), Some(Amount::share(80 * GI, 0, 80 * GI)));
        assert_eq!(gpus.worst(Some(20 * GI), 0).unwrap().gpus, 500_000);
        assert_eq!(gpus.worst(Some(60 * GI), 0).unwrap().gpus, 750_000);
        assert_eq!(gpus.worst(Some(90 * GI), 0).unwrap().gpus, 1_000_000);
        assert_eq!(gpus.memory("a", "gpu-1"), Some(40 * GI));
        assert!(gpus.remove("a", Now::ZERO));
        assert!(gpus.worst(None, 0).is_some(), "a restart of kubelet");
        assert_eq!(gpus.memory("a", "gpu-1"), None);
    }

    /// An instance is a device of its own: a share is never a part of it.
    #[test]
    fn instances_are_counted_apart_from_gpus() {
        const GI: u64 = 1 << 30;
        let mut with_instance = slice("a", &[80, 10]);
        let kind = serde_json::json!({"string": "mig"});
        let devices = &mut with_instance.spec.devices;
        devices[1].attributes = serde_json::from_value(json!({"type": kind})).unwrap();
        let mut gpus = Gpus::default();
        assert_eq!(gpus.worst_instance(), None);
        gpus.set(&with_instance, Now::ZERO);
        assert_eq!(gpus.worst(Some(10 * GI), 0), Some(Amount::share(10 * GI, 0, 80 * GI)));
        assert_eq!(gpus.worst_instance(), Some((Amount::share(10 * GI, 0, 10 * GI), 1)));
        assert_eq!((gpus.memory("a", "gpu-1"), gpus.count()), (Some(10 * GI), 1));
        gpus.remove("a", Now::ZERO);
        assert!(gpus.worst_instance().is_some(), "a restart of kubelet");
    }

    #[test]
    fn the_largest_gpu_counts_while_its_node_is_away_for_a_moment() {
        const GI: u64 = 1 << 30;
        let mut gpus = Gpus::default();
        gpus.set(&slice("large", &[80]), Now::ZERO);
        gpus.set(&slice("small", &[40]), Now::ZERO);
        let largest = |gpus: &Gpus| gpus.worst(None, 0).unwrap().memory / GI;
        gpus.remove("large", Now::from_secs(1));
        assert_eq!(largest(&gpus), 80, "it may come back before the claim is allocated");
        assert!(!gpus.expire(Now::from_secs(600)));
        assert!(gpus.expire(Now::from_secs(601)));
        assert_eq!(largest(&gpus), 40, "it is gone for good");
        gpus.set(&slice("large", &[80]), Now::from_secs(700));
        assert_eq!(gpus.others(&["small".to_owned()]), ["large"]);
        gpus.remove("large", Now::from_secs(701));
        assert_eq!((largest(&gpus), gpus.count()), (80, 2));
        gpus.set(&slice("large", &[60]), Now::from_secs(702));
        assert_eq!(largest(&gpus), 60, "what it has now counts");
        // It comes back under another name.
        gpus.remove("large", Now::from_secs(703));
        let mut renamed = slice("large", &[60]);
        renamed.metadata.name = "large-2".into();
        gpus.set(&renamed, Now::from_secs(704));
        assert_eq!(gpus.count(), 2);
    }
}

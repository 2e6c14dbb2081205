//! The devices that claims may hold, as ResourceSlices of our driver publish them: GPUs with their fixed slots, and instances
//! of GPUs in MIG mode.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use vgpu_allocator::model::{Device, DeviceClass, Exactly, ResourceSlice};
use vgpu_api::{DRIVER_NAME, INSTANCE_PREFIX, Profile, capacity, device_type};

use crate::Now;
use crate::amount::{Amount, bytes};
use crate::instance::{Kind, Matches, named_profiles};

/// The GPUs of a slice, and its instances.
#[derive(Debug, PartialEq)]
struct Slice {
    name: String,
    pool: String,
    /// The node of the slice's devices. For a slice without a node, its pool's name.
    node: String,
    /// Name and bytes of each. Boxed: there may be a thousand nodes, and a map takes twice as much.
    gpus: Box<[(Box<str>, u64)]>,
    instances: Box<[(Box<str>, Arc<Kind>)]>,
}

impl From<&ResourceSlice> for Slice {
    fn from(slice: &ResourceSlice) -> Self {
        let spec = &slice.spec;
        let devices = spec.devices.iter().filter(|_| spec.driver == DRIVER_NAME);
        let (mut gpus, mut instances) = (Vec::new(), Vec::new());
        for device in devices {
            let Some(memory) = memory_of(device) else { continue };
            let name = device.name.as_str().into();
            let kind = device.attributes.get(device_type::ATTRIBUTE);
            match kind.and_then(|kind| kind.text()) {
                None | Some(device_type::MONITOR) => {}
                Some(device_type::MIG) => instances.push((name, Arc::new(Kind::new(device, memory)))),
                Some(_) => gpus.push((name, memory)),
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

fn memory_of(device: &Device) -> Option<u64> {
    bytes(&device.capacity.get(capacity::MEMORY)?.value).filter(|memory| *memory > 0)
}

/// A device that a claim may hold.
#[derive(Debug, Clone, Copy)]
enum Known<'a> {
    Gpu(u64),
    Instance(&'a Kind),
}

impl Known<'_> {
    const fn memory(self) -> u64 {
        match self {
            Self::Gpu(memory) => memory,
            Self::Instance(kind) => kind.memory,
        }
    }

    /// The amount of a share on it. Without `memory` it is held whole.
    fn share(self, memory: Option<u64>, cores: u64) -> Amount {
        match self {
            Self::Gpu(all) => Amount::share(memory.unwrap_or(all), cores, all),
            Self::Instance(kind) => kind.share(memory, cores),
        }
    }
}

impl Slice {
    fn names(&self) -> impl Iterator<Item = &str> {
        let gpus = self.gpus.iter().map(|(name, _)| &**name);
        gpus.chain(self.instances.iter().map(|(name, _)| &**name))
    }

    fn device(&self, device: &str) -> Option<Known<'_>> {
        let gpu = self.gpus.iter().find(|(name, _)| **name == *device);
        let instance = || self.instances.iter().find(|(name, _)| **name == *device);
        match gpu {
            Some((_, memory)) => Some(Known::Gpu(*memory)),
            None => instance().map(|(_, kind)| Known::Instance(kind)),
        }
    }
}

/// How long GPUs that are no longer published still count as possible for claims: when kubelet restarts, the slices of
/// its node disappear and come back.
const MAY_RETURN: Duration = Duration::from_secs(600);

/// All GPUs and instances, by slice.
#[derive(Debug, Default)]
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
    /// The same of instances: their kinds, and those that a claim may get. There are few kinds.
    kinds: Vec<(Arc<Kind>, usize)>,
    possible_kinds: Vec<(Arc<Kind>, usize)>,
    matches: Matches,
}

/// Adds instances of a kind, and returns the kind that is kept.
fn add_kind(kinds: &mut Vec<(Arc<Kind>, usize)>, kind: &Arc<Kind>) -> Arc<Kind> {
    // Comparing pointers first is fast: after this function equal kinds have one pointer.
    let is_same = |known: &Arc<Kind>| Arc::ptr_eq(known, kind) || known == kind;
    match kinds.iter_mut().find(|(known, _)| is_same(known)) {
        Some((known, count)) => {
            *count += 1;
            known.clone()
        }
        None => {
            kinds.push((kind.clone(), 1));
            kind.clone()
        }
    }
}

impl Gpus {
    /// Returns true if the GPUs have changed.
    pub(crate) fn set(&mut self, slice: &ResourceSlice, now: Now) -> bool {
        let mut slice = Slice::from(slice);
        self.gone.remove(&slice.name);
        if self.slices.get(&slice.name) == Some(&slice) {
            return false;
        }
        self.forget(&slice.name);
        for (_, memory) in &slice.gpus {
            *self.sizes.entry(*memory).or_default() += 1;
        }
        for (_, kind) in &mut slice.instances {
            *kind = add_kind(&mut self.kinds, kind);
        }
        let of_pool = self.pools.entry(slice.pool.clone()).or_default();
        of_pool.push(slice.name.clone());
        let pool = slice.pool.clone();
        self.slices.insert(slice.name.clone(), slice);
        self.forget_returned(&pool);
        self.remember(now);
        true
    }

    /// Slices come back under other names. A missing slice counts as returned when all of its devices are published
    /// again.
    fn forget_returned(&mut self, pool: &str) {
        let is_back = |old: &Slice| old.names().all(|name| self.memory(pool, name).is_some());
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
        for (_, kind) in &slice.instances {
            if let Some((_, count)) = self.kinds.iter_mut().find(|(known, _)| Arc::ptr_eq(known, kind)) {
                *count -= 1;
            }
        }
        self.kinds.retain(|(_, count)| *count > 0);
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
        let mut kinds = self.kinds.clone();
        for (_, kind) in self.gone.values().flat_map(|(_, slice)| &slice.instances) {
            add_kind(&mut kinds, kind);
        }
        if !kinds.is_empty() {
            self.possible_kinds = kinds;
        }
    }

    fn of_pool(&self, pool: &str) -> impl Iterator<Item = &Slice> {
        let slices = self.pools.get(pool).into_iter().flatten();
        slices.filter_map(|name| self.slices.get(name))
    }

    fn published(&self, pool: &str, device: &str) -> Option<Known<'_>> {
        self.of_pool(pool).find_map(|slice| slice.device(device))
    }

    /// The memory of a device; `None` if it is not published.
    pub(crate) fn memory(&self, pool: &str, device: &str) -> Option<u64> {
        self.published(pool, device).map(Known::memory)
    }

    /// The memory of the largest device that was ever seen.
    pub(crate) fn largest(&self) -> Option<u64> {
        let gpu = self.possible.last_key_value().map(|(size, _)| *size);
        gpu.max(self.possible_kinds.iter().map(|(kind, _)| kind.memory).max())
    }

    /// The node of a pool.
    pub(crate) fn node(&self, pool: &str) -> Option<&str> {
        Some(self.of_pool(pool).next()?.node.as_str())
    }

    /// The amount of a share on this device.
    pub(crate) fn share(&self, pool: &str, device: &str, memory: Option<u64>, cores: u64) -> Amount {
        let gone = || {
            let mut gone = self.gone.values().filter(|(_, slice)| slice.pool == pool);
            gone.find_map(|(_, slice)| slice.device(device))
        };
        if let Some(known) = self.published(pool, device).or_else(gone) {
            return known.share(memory, cores);
        }
        // The same as before the allocation, if the name says nothing.
        let gpu = || {
            self.worst_gpu(memory, cores)
                .filter(|_| !device.starts_with(INSTANCE_PREFIX))
        };
        match Profile::of_device(device) {
            Some(profile) => self.unpublished(profile).share(memory, cores),
            None => gpu()
                .or_else(|| self.worst_of_any(memory, cores, true))
                .unwrap_or_default(),
        }
    }

    /// As much as the largest device, and all compute slices if it may be an instance. `None` while no device of ours was
    /// ever seen.
    fn worst_of_any(&self, memory: Option<u64>, cores: u64, is_instance: bool) -> Option<Amount> {
        let memory = memory.or(self.largest())?;
        let kinds = self.possible_kinds.iter();
        let slices = kinds.filter_map(|(kind, _)| Some(kind.profile?.compute_slices));
        let slices = if is_instance { slices.fold(SLICES, u64::max) } else { 0 };
        Some(Amount::share_of_instance(memory, cores, memory, slices))
    }

    /// The largest instance with this profile. Its name alone says the size if no node has one.
    fn unpublished(&self, profile: Profile) -> Kind {
        let alike = self
            .possible_kinds
            .iter()
            .filter(|(kind, _)| kind.profile == Some(profile));
        let largest = alike.max_by_key(|(kind, _)| kind.memory);
        largest.map_or_else(|| Kind::of_profile(profile), |(kind, _)| Kind::clone(kind))
    }

    /// The most that a share with this request may take, on whichever GPU it comes. `None` while no GPU was ever seen.
    fn worst_gpu(&self, memory: Option<u64>, cores: u64) -> Option<Amount> {
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

    /// The cost of all evaluations of selectors so far.
    pub(crate) fn cost(&self) -> u64 {
        self.matches.cost()
    }

    /// The most that one device of this request may take, whichever it gets, and the number of devices that it may get.
    /// `None` while no device of ours was ever seen. Past the limit of [`Self::cost`] any instance may match.
    pub(crate) fn worst(
        &self,
        class: &DeviceClass,
        ask: &Exactly,
        (memory, cores): (Option<u64>, u64),
        limit: u64,
    ) -> Option<(Amount, usize)> {
        let selectors = class.spec.selectors.iter().chain(&ask.selectors);
        let named = named_profiles(selectors.clone());
        let gives_gpus = [device_type::GPU, device_type::SLOT]
            .iter()
            .any(|kind| class.may_give(kind));
        // A GPU has no profile.
        let is_gpu = gives_gpus && named.is_none();
        let gpu = is_gpu.then(|| self.worst_gpu(memory, cores)).flatten();
        let gpus = gpu.map(|worst| (worst, self.count()));
        let is_instance = class.may_give(device_type::MIG);
        let kinds = self.possible_kinds.iter().filter(|_| is_instance);
        let kinds = kinds.filter(|(kind, _)| self.matches.may_match(kind, selectors.clone(), limit));
        let instances = kinds.filter_map(|(kind, count)| Some((kind.worst(memory, cores)?, *count)));
        let all = gpus.into_iter().chain(instances);
        let sum = all.reduce(|(worst, sum), (other, count)| (worst.worst(other), sum + count));
        sum.or_else(|| {
            // No device that is known fits. A node with others may come, and only if the pod is not held back.
            self.largest()?;
            let named = named.filter(|_| is_instance).unwrap_or_default();
            let named = Kind::named(&named, class, &self.matches, limit);
            let named = named.iter().filter_map(|kind| kind.worst(memory, cores));
            let worst = named.reduce(Amount::worst);
            Some((
                worst.or_else(|| self.worst_of_any(memory, cores, is_instance))?,
                usize::MAX,
            ))
        })
    }

    /// The number of GPUs. A request for all devices of a node cannot exceed it.
    fn count(&self) -> usize {
        self.possible.values().sum()
    }
}

/// The compute slices of most boards.
const SLICES: u64 = 7;

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
        let mut gpus = Gpus::default();
        assert_eq!(gpus.worst_gpu(None, 0), None);
        assert!(gpus.set(&slice("a", &[80, 40]), Now::ZERO));
        assert!(!gpus.set(&slice("a", &[80, 40]), Now::ZERO));
        assert_eq!(gpus.worst_gpu(None, 0), Some(Amount::share(80 * GI, 0, 80 * GI)));
        assert_eq!(gpus.worst_gpu(Some(20 * GI), 0).unwrap().gpus, 500_000);
        assert_eq!(gpus.worst_gpu(Some(60 * GI), 0).unwrap().gpus, 750_000);
        assert_eq!(gpus.worst_gpu(Some(90 * GI), 0).unwrap().gpus, 1_000_000);
        assert_eq!(gpus.memory("a", "gpu-1"), Some(40 * GI));
        assert!(gpus.remove("a", Now::ZERO));
        assert!(gpus.worst_gpu(None, 0).is_some(), "a restart of kubelet");
        assert_eq!(gpus.memory("a", "gpu-1"), None);
    }

    const GI: u64 = 1 << 30;

    /// A slice of instances, by profile and GiB. `shared`: claims may share them.
    pub(crate) fn instances(name: &str, profiles: &[(&str, u64)], shared: bool) -> ResourceSlice {
        let device = |(i, (profile, size)): (usize, &(&str, u64))| {
            let attributes = json!({"type": {"string": "mig"}, "profile": {"string": profile},
                "uuid": {"string": format!("MIG-{i}")}, "productName": {"string": "H100"}});
            json!({"name": format!("mig-0000000{i}-{}-{i}", profile.replace('.', "-")), "attributes": attributes,
                "allowMultipleAllocations": shared, "capacity": {"memory": {"value": format!("{size}Gi")}}})
        };
        let devices: Vec<_> = profiles.iter().enumerate().map(device).collect();
        serde_json::from_value(json!({"metadata": {"name": name},
            "spec": {"driver": "dra.vgpu", "pool": {"name": name}, "devices": devices}}))
        .unwrap()
    }

    fn class(cel: &str) -> DeviceClass {
        let selectors = json!([{"cel": {"expression": format!("device.driver == 'dra.vgpu' && ({cel})")}}]);
        serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {"selectors": selectors}})).unwrap()
    }

    const MIG: &str = "device.attributes['dra.vgpu'].type == 'mig'";
    const VGPU: &str = "device.attributes['dra.vgpu'].type == 'gpu'
        || device.attributes['dra.vgpu'].type == 'mig' && device.allowMultipleAllocations";

    /// Nobody knows how many devices a node has that may come.
    const MANY: usize = usize::MAX;

    /// Memory, compute slices and number of the devices that a request may get.
    fn worst(gpus: &Gpus, of: &str, selector: &str, memory: Option<u64>) -> Option<(u64, u64, usize)> {
        let ask = json!({"deviceClassName": "c", "selectors": [{"cel": {"expression": selector}}]});
        let (amount, count) = gpus.worst(&class(of), &serde_json::from_value(ask).unwrap(), (memory, 0), u64::MAX)?;
        Some((amount.memory / GI, amount.compute_slices, count))
    }

    #[test]
    fn an_instance_counts_as_the_selectors_say() {
        let mut gpus = Gpus::default();
        assert_eq!(worst(&gpus, MIG, "true", None), None);
        gpus.set(&slice("whole", &[80]), Now::ZERO);
        gpus.set(
            &instances("n", &[("3g.40gb", 39), ("1g.10gb", 9), ("1g.10gb", 9)], false),
            Now::ZERO,
        );
        let attribute = |name: &str, value: &str| format!("device.attributes['dra.vgpu'].{name} == '{value}'");
        let of = |selector: &str| worst(&gpus, MIG, selector, None);
        assert_eq!(of("true"), Some((39, 3_000_000, 3)));
        assert_eq!(of(&attribute("profile", "1g.10gb")), Some((9, 1_000_000, 2)));
        let small = "device.capacity['dra.vgpu'].memory.compareTo(quantity('20Gi')) < 0";
        assert_eq!(of(small), Some((9, 1_000_000, 2)));
        // Instances of a kind differ in this attribute, so any of them may match.
        assert_eq!(of(&attribute("uuid", "MIG-1")), Some((39, 3_000_000, 3)));
        assert_eq!(of("not CEL"), Some((39, 3_000_000, 3)));
        // A node with such a profile may come.
        assert_eq!(of(&attribute("profile", "2g.20gb")), Some((20, 2_000_000, MANY)));
        let either = format!("{} || {}", attribute("profile", "2g.20gb"), attribute("uuid", "MIG-9"));
        assert_eq!(of(&either), Some((39, 3_000_000, 3)), "it may match any");
        let two = "device.attributes['dra.vgpu'].profile in ['2g.20gb', '4g.40gb']";
        assert_eq!(of(two), Some((40, 4_000_000, MANY)));
        let not_read = "device.attributes['dra.vgpu'].profile.startsWith('2g')";
        assert_eq!(of(not_read), Some((80, 7_000_000, MANY)), "as much as any device");
        // A name that the selector only mentions.
        let hidden = format!(
            "{} || {}",
            attribute("profile", "2g.20gb"),
            attribute("architecture", "A")
        );
        assert_eq!(
            of(&format!("({hidden}) && {}", attribute("productName", "B"))),
            Some((80, 7_000_000, MANY))
        );
        // Beside other devices.
        let profile = attribute("profile", "1g.10gb");
        assert_eq!(
            worst(&gpus, "true", &profile, None),
            Some((9, 1_000_000, 2)),
            "no GPU has it"
        );
        assert_eq!(worst(&gpus, "true", "true", None), Some((80, 3_000_000, 4)));
        assert_eq!(
            worst(&gpus, VGPU, "true", Some(GI)),
            Some((1, 0, 1)),
            "they are not shared"
        );
        assert_eq!(
            gpus.share("whole", "gpu-0", Some(10 * GI), 0),
            Amount::share(10 * GI, 0, 80 * GI)
        );
    }

    /// As the dialects translate HAMi's mode `mig`: no larger instance is counted than the pod can get.
    #[test]
    fn a_translated_claim_counts_the_instance_that_it_gets() {
        let mut gpus = Gpus::default();
        let all = [("1g.10gb", 9), ("1g.10gb+me", 9), ("7g.80gb", 79)];
        gpus.set(&instances("n", &all, false), Now::ZERO);
        let profile = r#"device.attributes["dra.vgpu"].profile in ["1g.10gb", "1g.10gb+me"]"#;
        let memory = r#"device.capacity["dra.vgpu"].memory.compareTo(quantity("8000Mi")) >= 0"#;
        let ask = json!({"deviceClassName": "c", "selectors": [{"cel": {"expression": profile}}, {"cel": {"expression": memory}}]});
        let (amount, count) = gpus
            .worst(&class(MIG), &serde_json::from_value(ask).unwrap(), (None, 0), u64::MAX)
            .unwrap();
        assert_eq!((amount.memory / GI, amount.compute_slices, count), (9, 1_000_000, 2));
    }

    #[test]
    fn with_instances_alone_their_shares_count() {
        let mut gpus = Gpus::default();
        gpus.set(&instances("n", &[("4g.40gb", 40), ("1g.10gb", 10)], true), Now::ZERO);
        assert_eq!(worst(&gpus, VGPU, "true", Some(5 * GI)), Some((5, 500_000, 2)));
        assert_eq!(
            worst(&gpus, VGPU, "true", Some(20 * GI)),
            Some((20, 2_000_000, 1)),
            "it fits one only"
        );
        assert_eq!(worst(&gpus, VGPU, "true", None), Some((40, 4_000_000, 2)));
        assert_eq!(
            worst(&gpus, VGPU, "true", Some(50 * GI)),
            Some((50, 7_000_000, MANY)),
            "it fits none"
        );
        assert_eq!(gpus.largest(), Some(40 * GI));
        gpus.remove("n", Now::ZERO);
        assert_eq!(
            worst(&gpus, MIG, "true", None),
            Some((40, 4_000_000, 2)),
            "a restart of kubelet"
        );
        gpus.set(&instances("n", &[("1g.10gb", 10)], true), Now::ZERO);
        assert_eq!(
            worst(&gpus, MIG, "true", None),
            Some((10, 1_000_000, 1)),
            "the other one is destroyed"
        );
    }

    #[test]
    fn an_instance_that_is_not_published_counts_as_its_name_says() {
        let mut gpus = Gpus::default();
        let counted = |gpus: &Gpus, device: &str, memory: Option<u64>| {
            let amount = gpus.share("n", device, memory, 0);
            (amount.memory / GI, amount.compute_slices)
        };
        assert_eq!(counted(&gpus, "mig-0a0b0c0d-3g-40gb-4", None), (40, 3_000_000));
        gpus.set(&slice("whole", &[80]), Now::ZERO);
        gpus.set(&instances("n", &[("3g.40gb", 39)], false), Now::ZERO);
        assert_eq!(counted(&gpus, "mig-0a0b0c0d-3g-40gb-4", None), (39, 3_000_000));
        assert_eq!(counted(&gpus, "mig-0a0b0c0d-1g-10gb-4", None), (10, 1_000_000));
        assert_eq!(
            counted(&gpus, "mig-00000000-3g-40gb-0", Some(13 * GI)),
            (13, 1_000_000),
            "a third"
        );
        assert_eq!(counted(&gpus, "gpu-9", None), (80, 0));
        assert_eq!(counted(&gpus, "mig-of-3f8a1c20-1g-10gb-4", None), (10, 1_000_000));
        assert_eq!(
            counted(&gpus, "mig-new", None),
            (80, 7_000_000),
            "a name that is not read"
        );
        let mut alone = Gpus::default();
        alone.set(&instances("n", &[("3g.40gb", 39)], false), Now::ZERO);
        assert_eq!(
            counted(&alone, "another", None),
            (39, 7_000_000),
            "a name that is not read"
        );
    }

    #[test]
    fn the_largest_gpu_counts_while_its_node_is_away_for_a_moment() {
        let mut gpus = Gpus::default();
        gpus.set(&slice("large", &[80]), Now::ZERO);
        gpus.set(&slice("small", &[40]), Now::ZERO);
        let largest = |gpus: &Gpus| gpus.worst_gpu(None, 0).unwrap().memory / GI;
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

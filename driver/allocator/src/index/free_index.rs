//! Devices by what they have left.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use super::free::Free;
use crate::allocated::{AllocatedDevices, Usage};
use crate::capacity::{CORES, MEMORY};
use crate::inventory::Slice;
use crate::model::{Device, DeviceResult, Exactly};
use crate::pools::Candidate;
use crate::search::capacity_of;

/// A place in the order in which `binpack` takes devices, over all nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spot {
    conditions: bool,
    memory: i128,
    cores: i128,
    device: Arc<str>,
    node: Arc<str>,
    serial: u64,
}

/// The least that the first request takes of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    memory: i128,
    cores: i128,
}

#[derive(Debug, Default)]
pub(super) struct FreeIndex {
    order: BTreeSet<Spot>,
    /// Driver, pool, device: what is in the index, or taken whole. More than one while generations change.
    known: HashMap<String, HashMap<String, HashMap<String, Vec<Known>>>>,
    /// Slices that are not of one node.
    strays: Vec<Arc<Slice>>,
    /// By driver, of the devices that are known.
    free: HashMap<String, Free>,
}

#[derive(Debug)]
struct Known {
    slice: Arc<Slice>,
    /// Its place in the slice.
    index: usize,
    spot: Spot,
    /// Whether it stands there: not if somebody has it whole.
    stands: bool,
    /// Its part in what is free.
    part: Free,
}

impl Spot {
    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// The device, as long as it is published like this.
    pub(super) fn serial(&self) -> u64 {
        self.serial
    }
}

impl Wanted {
    pub(super) fn of(exactly: &Exactly) -> Self {
        let requests = exactly.capacity.as_ref().map(|capacity| &capacity.requests);
        let wanted = |name: &str| {
            let amount = requests.and_then(|requests| requests.get(name));
            amount.map_or(i128::MIN, vgpu_quantity::Quantity::rank)
        };
        Self {
            memory: wanted(MEMORY),
            cores: wanted(CORES),
        }
    }
}

impl FreeIndex {
    /// Devices that are not of one node, and so not in the index.
    pub(super) fn strays(&self) -> impl Iterator<Item = Candidate> {
        self.strays.iter().flat_map(|slice| {
            let devices = 0..slice.spec.devices.len();
            devices.map(move |index| Candidate::alone(slice, index))
        })
    }

    /// What the driver's devices have left together.
    pub(super) fn free(&self, driver: &str) -> Free {
        self.free.get(driver).copied().unwrap_or_default()
    }

    /// The next device that has enough left.
    pub(super) fn next(&self, wanted: &Wanted, after: Option<&Spot>) -> Option<Spot> {
        let mut from = match after {
            Some(after) => Bound::Excluded(after.clone()),
            None => Bound::Unbounded,
        };
        let nothing: Arc<str> = Arc::default();
        loop {
            let found = self.order.range((from, Bound::Unbounded)).next()?;
            // What has too little of one is skipped with all others of its kind.
            let jump = if found.memory < wanted.memory {
                (wanted.memory, wanted.cores)
            } else if found.cores < wanted.cores {
                (found.memory, wanted.cores)
            } else {
                return Some(found.clone());
            };
            from = Bound::Included(Spot {
                conditions: found.conditions,
                memory: jump.0,
                cores: jump.1,
                device: nothing.clone(),
                node: nothing.clone(),
                serial: 0,
            });
        }
    }

    pub(super) fn insert(&mut self, slice: &Arc<Slice>, allocated: &AllocatedDevices) {
        let Some(node) = slice.spec.node_name.as_deref().filter(|node| !node.is_empty()) else {
            self.strays.push(slice.clone());
            return;
        };
        let node: Arc<str> = node.into();
        let pools = self.known.entry(slice.spec.driver.clone()).or_default();
        let devices = pools.entry(slice.spec.pool.name.clone()).or_default();
        let free = self.free.entry(slice.spec.driver.clone()).or_default();
        for (index, device) in slice.spec.devices.iter().enumerate() {
            let spot = Spot {
                conditions: device.binding_conditions.is_some(),
                memory: 0,
                cores: 0,
                device: device.name.as_str().into(),
                node: node.clone(),
                serial: slice.serial(index),
            };
            let mut known = Known {
                slice: slice.clone(),
                index,
                spot,
                stands: false,
                part: Free::default(),
            };
            known.stand(&mut self.order, free, allocated);
            devices.entry(device.name.clone()).or_default().push(known);
        }
    }

    pub(super) fn remove(&mut self, slice: &Slice) {
        if slice.spec.node_name.as_deref().is_none_or(str::is_empty) {
            self.strays.retain(|known| known.name != slice.name);
            return;
        }
        let devices = self
            .known
            .get_mut(&slice.spec.driver)
            .and_then(|pools| pools.get_mut(&slice.spec.pool.name));
        let (Some(devices), Some(free)) = (devices, self.free.get_mut(&slice.spec.driver)) else {
            return;
        };
        for (index, device) in slice.spec.devices.iter().enumerate() {
            let Some(known) = devices.get_mut(&device.name) else {
                continue;
            };
            known.retain(|known| {
                let goes = known.spot.serial == slice.serial(index);
                if goes {
                    free.replace(known.part, Free::default());
                }
                if goes && known.stands {
                    self.order.remove(&known.spot);
                }
                !goes
            });
            if known.is_empty() {
                devices.remove(&device.name);
            }
        }
        // Nodes come and go.
        if devices.is_empty()
            && let Some(pools) = self.known.get_mut(&slice.spec.driver)
        {
            pools.remove(&slice.spec.pool.name);
        }
    }

    /// Puts the devices of an allocation where they belong now.
    pub(super) fn update(&mut self, results: &[DeviceResult], allocated: &AllocatedDevices) {
        for result in results {
            let known = self
                .known
                .get_mut(&result.driver)
                .and_then(|pools| pools.get_mut(&result.pool))
                .and_then(|devices| devices.get_mut(&result.device));
            let Some(free) = self.free.get_mut(&result.driver) else {
                continue;
            };
            for known in known.into_iter().flatten() {
                known.stand(&mut self.order, free, allocated);
            }
        }
    }
}

impl Known {
    /// Puts the device where it belongs by what it has left, and counts that.
    fn stand(&mut self, order: &mut BTreeSet<Spot>, free: &mut Free, allocated: &AllocatedDevices) {
        let spec = &self.slice.spec;
        let device = &spec.devices[self.index];
        let usage = allocated.usage(&spec.driver, &spec.pool.name, &device.name);
        let part = Free::of(device, &spec.driver, usage);
        free.replace(self.part, part);
        self.part = part;
        let left = |name| left(device, &spec.driver, usage, name);
        let (memory, cores) = (left(MEMORY), left(CORES));
        let stands = !usage.is_some_and(Usage::is_dedicated);
        if (self.stands, self.spot.memory, self.spot.cores) == (stands, memory, cores) {
            return;
        }
        if self.stands {
            order.remove(&self.spot);
        }
        (self.spot.memory, self.spot.cores) = (memory, cores);
        if stands {
            order.insert(self.spot.clone());
        }
        self.stands = stands;
    }
}

fn left(device: &Device, driver: &str, usage: Option<&Usage>, name: &str) -> i128 {
    let Some((name, capacity)) = capacity_of(device, driver, name) else {
        return 0;
    };
    match usage.and_then(|usage| usage.consumed().get(name)) {
        Some(used) => {
            let mut left = capacity.value.clone();
            left.subtract(used);
            left.rank()
        }
        None => capacity.value.rank(),
    }
}

//! Sorts devices by what is free on them, in the order in which `binpack` takes them.

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

/// A device's position in the order in which `binpack` takes devices, over all nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spot {
    conditions: bool,
    memory: i128,
    cores: i128,
    device: Arc<str>,
    node: Arc<str>,
    serial: u64,
}

/// The smallest amounts that the first request consumes of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    memory: i128,
    cores: i128,
}

#[derive(Debug, Default)]
pub(super) struct FreeIndex {
    order: BTreeSet<Spot>,
    /// All devices by driver, pool and name, also those that are allocated whole and so not in `order`. A name has
    /// several devices while the pool's generation changes.
    known: HashMap<String, HashMap<String, HashMap<String, Vec<Known>>>>,
    /// Slices that do not belong to one node.
    strays: Vec<Arc<Slice>>,
    /// The sum of what is free, by driver.
    free: HashMap<String, Free>,
}

#[derive(Debug)]
struct Known {
    slice: Arc<Slice>,
    /// The device's index in the slice.
    index: usize,
    spot: Spot,
    /// True if `spot` is in the order. False if the device is allocated as a whole.
    is_listed: bool,
    /// The free part of the device, as it was added to the sum.
    part: Free,
}

impl Spot {
    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// The serial number of the device in this version of its slice.
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
    /// Devices that do not belong to one node, and so are not in the order.
    pub(super) fn strays(&self) -> impl Iterator<Item = Candidate> {
        self.strays.iter().flat_map(|slice| {
            let devices = 0..slice.spec.devices.len();
            devices.map(move |index| Candidate::alone(slice, index))
        })
    }

    /// The sum of what is free on the driver's devices.
    pub(super) fn free(&self, driver: &str) -> Free {
        self.free.get(driver).copied().unwrap_or_default()
    }

    /// The next device after `after` that has enough left.
    pub(super) fn next(&self, wanted: &Wanted, after: Option<&Spot>) -> Option<Spot> {
        let mut from = match after {
            Some(after) => Bound::Excluded(after.clone()),
            None => Bound::Unbounded,
        };
        let nothing: Arc<str> = Arc::default();
        loop {
            let found = self.order.range((from, Bound::Unbounded)).next()?;
            // Skips not only a device with too little memory or cores, but also all following devices with too little.
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
                is_listed: false,
                part: Free::default(),
            };
            known.update(&mut self.order, free, allocated);
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
                if goes && known.is_listed {
                    self.order.remove(&known.spot);
                }
                !goes
            });
            if known.is_empty() {
                devices.remove(&device.name);
            }
        }
        // Removes empty maps, because nodes come and go.
        if devices.is_empty()
            && let Some(pools) = self.known.get_mut(&slice.spec.driver)
        {
            pools.remove(&slice.spec.pool.name);
        }
    }

    /// Updates the devices of an allocation that was added or removed.
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
                known.update(&mut self.order, free, allocated);
            }
        }
    }
}

impl Known {
    /// Updates the device's position in the order and its part of the sum.
    fn update(&mut self, order: &mut BTreeSet<Spot>, free: &mut Free, allocated: &AllocatedDevices) {
        let spec = &self.slice.spec;
        let device = &spec.devices[self.index];
        let usage = allocated.usage(&spec.driver, &spec.pool.name, &device.name);
        let part = Free::of(device, &spec.driver, usage);
        free.replace(self.part, part);
        self.part = part;
        let left = |name| left(device, &spec.driver, usage, name);
        let (memory, cores) = (left(MEMORY), left(CORES));
        let is_listed = !usage.is_some_and(Usage::is_dedicated);
        if (self.is_listed, self.spot.memory, self.spot.cores) == (is_listed, memory, cores) {
            return;
        }
        if self.is_listed {
            order.remove(&self.spot);
        }
        (self.spot.memory, self.spot.cores) = (memory, cores);
        if is_listed {
            order.insert(self.spot.clone());
        }
        self.is_listed = is_listed;
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

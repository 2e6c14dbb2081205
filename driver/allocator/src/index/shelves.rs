//! Devices by what they have left.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;

use crate::inventory::Slice;
use crate::ledger::Ledger;
use crate::model::{Allocation, Device, ResourceClaim};
use crate::search::{CORES, MEMORY, capacity_of};

/// A place in the order in which `binpack` takes devices, over all nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spot {
    conditions: bool,
    memory: i128,
    cores: i128,
    device: String,
    node: String,
    serial: u64,
}

/// The least that the first request takes of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    memory: i128,
    cores: i128,
}

#[derive(Debug, Default)]
pub(super) struct Shelves {
    order: BTreeSet<Spot>,
    /// Driver, pool, device: what is on the shelves, or taken whole. More than one while generations change.
    known: HashMap<String, HashMap<String, HashMap<String, Vec<Known>>>>,
    /// Slices that are not of one node.
    strays: usize,
}

#[derive(Debug)]
struct Known {
    /// With everything left.
    full: Device,
    node: String,
    serial: u64,
    /// Where it stands, unless somebody has it whole.
    spot: Option<Spot>,
}

impl Spot {
    pub(super) fn device(&self) -> &str {
        &self.device
    }
}

impl Wanted {
    pub(super) fn of(claims: &[&ResourceClaim]) -> Self {
        let request = claims.first().and_then(|claim| claim.spec.devices.requests.first());
        let capacity = request
            .and_then(|request| request.exactly.as_ref())
            .and_then(|exactly| exactly.capacity.as_ref());
        let wanted = |name: &str| {
            let amount = capacity.and_then(|capacity| capacity.requests.get(name));
            amount.map_or(i128::MIN, crate::quantity::Quantity::rank)
        };
        Self {
            memory: wanted(MEMORY),
            cores: wanted(CORES),
        }
    }
}

impl Shelves {
    /// Whether every device is of one node.
    pub(super) fn hold_everything(&self) -> bool {
        self.strays == 0
    }

    /// The next device that has enough left, and its node.
    pub(super) fn next(&self, wanted: &Wanted, after: Option<&Spot>) -> Option<(Spot, &str)> {
        let mut from = match after {
            Some(after) => Bound::Excluded(after.clone()),
            None => Bound::Unbounded,
        };
        loop {
            let found = self.order.range((from, Bound::Unbounded)).next()?;
            // What has too little of one is skipped with all others of its kind.
            let jump = if found.memory < wanted.memory {
                (wanted.memory, wanted.cores)
            } else if found.cores < wanted.cores {
                (found.memory, wanted.cores)
            } else {
                return Some((found.clone(), &found.node));
            };
            from = Bound::Included(Spot {
                conditions: found.conditions,
                memory: jump.0,
                cores: jump.1,
                device: String::new(),
                node: String::new(),
                serial: 0,
            });
        }
    }

    pub(super) fn insert(&mut self, slice: &Slice, ledger: &Ledger) {
        let Some(node) = slice.spec.node_name.as_deref().filter(|node| !node.is_empty()) else {
            self.strays += 1;
            return;
        };
        let (driver, pool) = (&slice.spec.driver, &slice.spec.pool.name);
        for (index, device) in slice.spec.devices.iter().enumerate() {
            let full = Device {
                name: device.name.clone(),
                capacity: device.capacity.clone(),
                binding_conditions: device.binding_conditions.clone(),
                ..Device::default()
            };
            let mut known = Known {
                full,
                node: node.to_owned(),
                serial: slice.serial(index),
                spot: None,
            };
            known.spot = known.place(driver, pool, ledger);
            self.order.extend(known.spot.clone());
            let pools = self.known.entry(driver.clone()).or_default();
            let devices = pools.entry(pool.clone()).or_default();
            devices.entry(device.name.clone()).or_default().push(known);
        }
    }

    pub(super) fn remove(&mut self, slice: &Slice) {
        if slice.spec.node_name.as_deref().is_none_or(str::is_empty) {
            self.strays -= 1;
            return;
        }
        let devices = self
            .known
            .get_mut(&slice.spec.driver)
            .and_then(|pools| pools.get_mut(&slice.spec.pool.name));
        let Some(devices) = devices else {
            return;
        };
        for (index, device) in slice.spec.devices.iter().enumerate() {
            let Some(known) = devices.get_mut(&device.name) else {
                continue;
            };
            known.retain(|known| {
                let stays = known.serial != slice.serial(index);
                if let (false, Some(spot)) = (stays, &known.spot) {
                    self.order.remove(spot);
                }
                stays
            });
            if known.is_empty() {
                devices.remove(&device.name);
            }
        }
    }

    /// Puts the devices of an allocation where they belong now.
    pub(super) fn update(&mut self, allocation: &Allocation, ledger: &Ledger) {
        for result in &allocation.devices.results {
            let known = self
                .known
                .get_mut(&result.driver)
                .and_then(|pools| pools.get_mut(&result.pool))
                .and_then(|devices| devices.get_mut(&result.device));
            for known in known.into_iter().flatten() {
                let spot = known.place(&result.driver, &result.pool, ledger);
                if spot != known.spot {
                    if let Some(old) = &known.spot {
                        self.order.remove(old);
                    }
                    self.order.extend(spot.clone());
                    known.spot = spot;
                }
            }
        }
    }
}

impl Known {
    fn place(&self, driver: &str, pool: &str, ledger: &Ledger) -> Option<Spot> {
        let usage = ledger.usage(driver, pool, &self.full.name);
        if usage.is_some_and(crate::ledger::Usage::is_dedicated) {
            return None;
        }
        let left = |name: &str| {
            let Some((name, capacity)) = capacity_of(&self.full, driver, name) else {
                return 0;
            };
            let mut left = capacity.value.clone();
            if let Some(used) = usage.and_then(|usage| usage.consumed().get(name)) {
                left.subtract(used);
            }
            left.rank()
        };
        Some(Spot {
            conditions: self.full.binding_conditions.is_some(),
            memory: left(MEMORY),
            cores: left(CORES),
            device: self.full.name.clone(),
            node: self.node.clone(),
            serial: self.serial,
        })
    }
}

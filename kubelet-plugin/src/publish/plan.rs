//! Computes the writes that turn the existing slices into the wanted ones. Pure.
//!
//! The scheduler uses only the highest generation of a pool, and only if all its slices exist. So one changed
//! slice is updated in place; anything more (a slice created, deleted, or two changed) gets a new generation
//! on all slices, and the scheduler ignores the pool until the last one is written. GPUs, instances, monitors and each GPU's
//! instances that claims make are pools with generations of their own.

use crate::publish::slice::{Slice, silenced};
use k8s_openapi::api::resource::v1::{CounterSet, Device, ResourcePool, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::collections::{BTreeMap, BTreeSet};
use vgpu_api::{DRIVER_NAME, Pools};

/// The node and the pools to which the slices belong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub node: String,
    pub node_uid: String,
    pub pools: Pools,
}

/// Writes, in the order in which they must be done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub delete: Vec<ResourceSlice>,
    pub update: Vec<ResourceSlice>,
    pub create: Vec<ResourceSlice>,
}

/// The values that the API server stored for devices and counters that were sent, both as JSON. Fields that it drops or writes differently
/// must not be sent again and again.
pub type Stored = BTreeMap<String, String>;

// === impl Owner ===

impl Owner {
    fn pool(&self, slice: &Slice) -> String {
        format!("{}/{}", self.node, slice.pool)
    }

    /// The content of a slice of one of this node's pools. None: it is of another pool.
    fn read(&self, slice: &ResourceSlice) -> Option<Slice> {
        let pool = slice.spec.pool.name.strip_prefix(&self.node)?.strip_prefix('/')?;
        Some(Slice {
            counters: counters(slice).to_vec(),
            ..Slice::new(pool, devices(slice).to_vec())
        })
    }

    /// The names of this node's pools that have slices.
    fn pools_of<'a>(&self, existing: impl IntoIterator<Item = &'a ResourceSlice>) -> BTreeSet<String> {
        let names = existing.into_iter().map(|slice| slice.spec.pool.name.clone());
        names.filter(|name| self.pools.contains(name)).collect()
    }
}

// === impl Plan ===

impl Plan {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.delete.is_empty() && self.update.is_empty() && self.create.is_empty()
    }

    fn append(&mut self, other: Self) {
        self.delete.extend(other.delete);
        self.update.extend(other.update);
        self.create.extend(other.create);
    }
}

/// Returns the writes that turn `existing` into `wanted`. All slices are of this driver and node.
#[must_use]
pub fn plan(owner: &Owner, wanted: &[Slice], existing: &[ResourceSlice], stored: &Stored) -> Plan {
    let is_stray = |slice: &&ResourceSlice| !owner.pools.contains(&slice.spec.pool.name);
    let mut plan = Plan {
        delete: existing.iter().filter(is_stray).cloned().collect(),
        ..Plan::default()
    };
    let mut pools = owner.pools_of(existing);
    pools.extend(wanted.iter().map(|slice| owner.pool(slice)));
    for pool in pools {
        let wanted: Vec<&Slice> = wanted.iter().filter(|slice| owner.pool(slice) == pool).collect();
        plan.append(plan_pool(owner, &pool, &wanted, existing, stored));
    }
    plan
}

fn plan_pool(owner: &Owner, pool: &str, wanted: &[&Slice], existing: &[ResourceSlice], stored: &Stored) -> Plan {
    let of_pool = of_pool(pool, existing);
    let newest = newest(&of_pool).unwrap_or(0);
    let current = |slice: &&ResourceSlice| slice.spec.pool.generation == newest;
    let mut left: Vec<&ResourceSlice> = of_pool.iter().copied().filter(current).collect();
    let matched = matched(wanted, &mut left, stored);
    let mut plan = Plan {
        delete: of_pool
            .into_iter()
            .filter(|slice| !current(slice))
            .chain(left)
            .cloned()
            .collect(),
        ..Plan::default()
    };
    let count = wanted.len() as i64;
    let fits = |slice: &ResourceSlice| slice.spec.pool.resource_slice_count == count;
    let changed = |wanted: &Slice, slice: &ResourceSlice| !is_stored(wanted, slice, stored) || !fits(slice);
    let pairs = || matched.iter().zip(wanted);
    let creates = pairs().filter(|(found, _)| found.is_none()).count();
    let updates = pairs()
        .filter(|(found, wanted)| found.is_some_and(|slice| changed(wanted, slice)))
        .count();
    let deletes = plan.delete.iter().filter(current).count();
    // Without a stored slice there is no generation to replace.
    let next = if creates + deletes > 0 || updates > 1 {
        newest + 1
    } else {
        newest
    };
    for (found, wanted) in pairs() {
        match found {
            None => plan.create.push(slice(owner, pool, wanted, next, count)),
            Some(old) if next != newest || changed(wanted, old) => {
                let mut new = slice(owner, pool, wanted, next, count);
                new.metadata = old.metadata.clone();
                new.metadata.managed_fields = None;
                plan.update.push(new);
            }
            Some(_) => {}
        }
    }
    plan
}

/// Matches each wanted slice with the existing one that is equal, else with the one that has most devices in common. Those
/// are taken out of `left`.
fn matched<'a>(
    wanted: &[&Slice],
    left: &mut Vec<&'a ResourceSlice>,
    stored: &Stored,
) -> Vec<Option<&'a ResourceSlice>> {
    let mut matched: Vec<Option<&ResourceSlice>> = vec![None; wanted.len()];
    for (place, wanted) in matched.iter_mut().zip(wanted) {
        let equal = left.iter().position(|slice| is_stored(wanted, slice, stored));
        *place = equal.map(|at| left.swap_remove(at));
    }
    for (place, wanted) in matched.iter_mut().zip(wanted).filter(|(place, _)| place.is_none()) {
        let common = left.iter().map(|slice| in_common(wanted, slice));
        let alike = common.zip(0..).max().filter(|(common, _)| *common > 0);
        *place = alike.map(|(_, at)| left.swap_remove(at));
    }
    matched
}

/// The devices of all pools' newest generations.
#[must_use]
pub fn current_devices(owner: &Owner, existing: &[ResourceSlice]) -> Vec<Device> {
    let pools = owner.pools_of(existing);
    let slices = pools.iter().flat_map(|pool| current(pool, existing));
    slices.flat_map(devices).cloned().collect()
}

/// The content of the slices that the scheduler uses. None: there is no slice, or one of a pool is missing.
#[must_use]
pub fn used_slices(owner: &Owner, existing: &[ResourceSlice]) -> Option<Vec<Slice>> {
    let pools = owner.pools_of(existing).into_iter();
    let used = pools.map(|pool| used_slices_of(owner, &pool, existing));
    let used = used.collect::<Option<Vec<_>>>()?.concat();
    (!used.is_empty()).then_some(used)
}

/// The content of the slices of a pool. None: one of them is missing, so the scheduler uses none.
fn used_slices_of(owner: &Owner, pool: &str, existing: &[ResourceSlice]) -> Option<Vec<Slice>> {
    let current = current(pool, existing);
    let is_whole = |slice: &&ResourceSlice| slice.spec.pool.resource_slice_count == current.len() as i64;
    let used = current.iter().filter_map(|slice| owner.read(slice));
    current.iter().all(is_whole).then(|| used.collect())
}

/// The same slices, with those that are used of each pool that is kept in its place.
#[must_use]
pub fn with_kept(owner: &Owner, wanted: &[Slice], existing: &[ResourceSlice]) -> Vec<Slice> {
    let slices = wanted.iter().flat_map(|slice| match slice.is_kept {
        true => silenced(used_slices_of(owner, &owner.pool(slice), existing).unwrap_or_default()),
        false => vec![slice.clone()],
    });
    slices.collect()
}

/// The slices of the pool's newest generation.
fn current<'a>(pool: &str, existing: &'a [ResourceSlice]) -> Vec<&'a ResourceSlice> {
    let mut slices = of_pool(pool, existing);
    let newest = newest(&slices);
    slices.retain(|slice| Some(slice.spec.pool.generation) == newest);
    slices
}

fn of_pool<'a>(pool: &str, existing: &'a [ResourceSlice]) -> Vec<&'a ResourceSlice> {
    existing.iter().filter(|slice| slice.spec.pool.name == pool).collect()
}

fn newest(slices: &[&ResourceSlice]) -> Option<i64> {
    slices.iter().map(|slice| slice.spec.pool.generation).max()
}

/// Records what the API server stored for `sent`.
pub fn learn(stored: &mut Stored, sent: &ResourceSlice, answer: &ResourceSlice) {
    stored.insert(json_of(sent), json_of(answer));
}

pub(super) fn slice(owner: &Owner, pool: &str, wanted: &Slice, generation: i64, count: i64) -> ResourceSlice {
    ResourceSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-{DRIVER_NAME}-", owner.node)),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".into(),
                kind: "Node".into(),
                name: owner.node.clone(),
                uid: owner.node_uid.clone(),
                controller: Some(true),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: ResourceSliceSpec {
            driver: DRIVER_NAME.into(),
            node_name: Some(owner.node.clone()),
            pool: ResourcePool {
                generation,
                name: pool.to_owned(),
                resource_slice_count: count,
            },
            devices: (!wanted.devices.is_empty()).then(|| wanted.devices.clone()),
            shared_counters: (!wanted.counters.is_empty()).then(|| wanted.counters.clone()),
            ..ResourceSliceSpec::default()
        },
    }
}

/// Returns true if `slice` has what the server stores for `wanted`.
fn is_stored(wanted: &Slice, slice: &ResourceSlice, stored: &Stored) -> bool {
    let (wanted, found) = (json(&wanted.devices, &wanted.counters), json_of(slice));
    wanted == found || stored.get(&wanted) == Some(&found)
}

fn in_common(wanted: &Slice, slice: &ResourceSlice) -> usize {
    let has = |device: &&Device| devices(slice).iter().any(|found| found.name == device.name);
    let has_set = |set: &&CounterSet| counters(slice).iter().any(|found| found.name == set.name);
    wanted.devices.iter().filter(has).count() + wanted.counters.iter().filter(has_set).count()
}

pub(super) fn devices(slice: &ResourceSlice) -> &[Device] {
    slice.spec.devices.as_deref().unwrap_or_default()
}

pub(super) fn counters(slice: &ResourceSlice) -> &[CounterSet] {
    slice.spec.shared_counters.as_deref().unwrap_or_default()
}

fn json_of(slice: &ResourceSlice) -> String {
    json(devices(slice), counters(slice))
}

/// Maps are sorted, so equal devices have equal text; quantities are written as the server writes them.
fn json(devices: &[Device], counters: &[CounterSet]) -> String {
    // Every Device can be written as JSON.
    serde_json::to_string(&(devices, counters)).unwrap_or_default()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
pub(super) mod tests;

//! Computes the writes that turn the existing slices into the wanted ones. Pure.
//!
//! The scheduler uses only the highest generation of a pool, and only if all its slices exist. So one changed
//! slice is updated in place; anything more (a slice created, deleted, or two changed) gets a new generation
//! on all slices, and the scheduler ignores the pool until the last one is written. GPUs, instances and monitors are pools
//! with generations of their own.

use k8s_openapi::api::resource::v1::{Device, ResourcePool, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::collections::BTreeMap;
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

/// The devices that the API server stored for those that were sent, both as JSON. Fields that it drops or
/// writes differently must not be sent again and again.
pub type Stored = BTreeMap<String, String>;

// === impl Owner ===

impl Owner {
    /// The pool of a slice with these devices. Slices of releases that had one pool also contain monitors.
    fn pool(&self, devices: &[Device]) -> &str {
        let mut pools = devices.iter().map(|device| self.pools.of_device(&device.name));
        let first = pools.next().unwrap_or(&self.pools.gpus);
        match pools.all(|pool| pool == first) {
            true => first,
            false => &self.pools.gpus,
        }
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
pub fn plan(owner: &Owner, wanted: &[Vec<Device>], existing: &[ResourceSlice], stored: &Stored) -> Plan {
    let is_stray = |slice: &&ResourceSlice| !owner.pools.contains(&slice.spec.pool.name);
    let mut plan = Plan {
        delete: existing.iter().filter(is_stray).cloned().collect(),
        ..Plan::default()
    };
    for pool in owner.pools.all() {
        let wanted = wanted.iter().map(Vec::as_slice);
        let wanted: Vec<&[Device]> = wanted.filter(|devices| owner.pool(devices) == pool).collect();
        plan.append(plan_pool(owner, pool, &wanted, existing, stored));
    }
    plan
}

fn plan_pool(owner: &Owner, pool: &str, wanted: &[&[Device]], existing: &[ResourceSlice], stored: &Stored) -> Plan {
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
    let changed = |devices: &[Device], slice: &ResourceSlice| !is_stored(devices, slice, stored) || !fits(slice);
    let pairs = || matched.iter().zip(wanted);
    let creates = pairs().filter(|(found, _)| found.is_none()).count();
    let updates = pairs()
        .filter(|(found, devices)| found.is_some_and(|slice| changed(devices, slice)))
        .count();
    let deletes = plan.delete.iter().filter(current).count();
    // Without a stored slice there is no generation to replace.
    let next = if creates + deletes > 0 || updates > 1 {
        newest + 1
    } else {
        newest
    };
    for (found, devices) in pairs() {
        match found {
            None => plan.create.push(slice(owner, pool, devices, next, count)),
            Some(old) if next != newest || changed(devices, old) => {
                let mut new = slice(owner, pool, devices, next, count);
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
    wanted: &[&[Device]],
    left: &mut Vec<&'a ResourceSlice>,
    stored: &Stored,
) -> Vec<Option<&'a ResourceSlice>> {
    let mut matched: Vec<Option<&ResourceSlice>> = vec![None; wanted.len()];
    for (place, devices) in matched.iter_mut().zip(wanted) {
        let equal = left.iter().position(|slice| is_stored(devices, slice, stored));
        *place = equal.map(|at| left.swap_remove(at));
    }
    for (place, devices) in matched.iter_mut().zip(wanted).filter(|(place, _)| place.is_none()) {
        let common = left.iter().map(|slice| in_common(devices, slice));
        let alike = common.zip(0..).max().filter(|(common, _)| *common > 0);
        *place = alike.map(|(_, at)| left.swap_remove(at));
    }
    matched
}

/// The devices of all pools' newest generations.
#[must_use]
pub fn current_devices(owner: &Owner, existing: &[ResourceSlice]) -> Vec<Device> {
    let slices = owner.pools.all().into_iter().flat_map(|pool| current(pool, existing));
    slices.flat_map(devices).cloned().collect()
}

/// The devices of each slice that the scheduler uses. None: there is no slice, or one of a pool is missing.
#[must_use]
pub fn used_devices(owner: &Owner, existing: &[ResourceSlice]) -> Option<Vec<Vec<Device>>> {
    let mut used = Vec::new();
    for pool in owner.pools.all() {
        let current = current(pool, existing);
        let count = current.len() as i64;
        if current
            .iter()
            .any(|slice| slice.spec.pool.resource_slice_count != count)
        {
            return None;
        }
        used.extend(current.into_iter().map(|slice| devices(slice).to_vec()));
    }
    (!used.is_empty()).then_some(used)
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

/// Records the devices that the API server stored for `sent`.
pub fn learn(stored: &mut Stored, sent: &[Device], answer: &ResourceSlice) {
    stored.insert(json(sent), json(devices(answer)));
}

pub(super) fn slice(owner: &Owner, pool: &str, devices: &[Device], generation: i64, count: i64) -> ResourceSlice {
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
            devices: Some(devices.to_vec()),
            ..ResourceSliceSpec::default()
        },
    }
}

/// Returns true if `slice` has the devices that the server stores for `devices`.
fn is_stored(wanted: &[Device], slice: &ResourceSlice, stored: &Stored) -> bool {
    let (wanted, found) = (json(wanted), json(devices(slice)));
    wanted == found || stored.get(&wanted) == Some(&found)
}

fn in_common(wanted: &[Device], slice: &ResourceSlice) -> usize {
    let has = |device: &&Device| devices(slice).iter().any(|found| found.name == device.name);
    wanted.iter().filter(has).count()
}

pub(super) fn devices(slice: &ResourceSlice) -> &[Device] {
    slice.spec.devices.as_deref().unwrap_or_default()
}

/// Maps are sorted, so equal devices have equal text; quantities are written as the server writes them.
fn json(devices: &[Device]) -> String {
    // Every Device can be written as JSON.
    serde_json::to_string(devices).unwrap_or_default()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
pub(super) mod tests;

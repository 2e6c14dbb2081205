//! Computes the writes that turn the existing slices into the wanted ones. Pure.
//!
//! The scheduler uses only the highest generation of a pool, and only if all its slices exist. So one changed
//! slice is updated in place; anything more (a slice created, deleted, or two changed) gets a new generation
//! on all slices, and the scheduler ignores the pool until the last one is written.

use k8s_openapi::api::resource::v1::{Device, ResourcePool, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::collections::BTreeMap;
use vgpu_api::DRIVER_NAME;

/// The node and pool to which the slices belong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub node: String,
    pub node_uid: String,
    pub pool: String,
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

// === impl Plan ===

impl Plan {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.delete.is_empty() && self.update.is_empty() && self.create.is_empty()
    }
}

/// Returns the writes that turn `existing` into `wanted`. All slices are of this driver and node.
#[must_use]
pub fn plan(owner: &Owner, wanted: &[Vec<Device>], existing: &[ResourceSlice], stored: &Stored) -> Plan {
    let generation = |slice: &ResourceSlice| slice.spec.pool.generation;
    let ours = |slice: &&ResourceSlice| slice.spec.pool.name == owner.pool;
    let newest = existing.iter().filter(ours).map(generation).max().unwrap_or(0);
    let current = |slice: &&ResourceSlice| ours(slice) && generation(slice) == newest;
    let mut left: Vec<&ResourceSlice> = existing.iter().filter(current).collect();
    let matched = matched(wanted, &mut left, stored);
    let mut plan = Plan {
        delete: existing
            .iter()
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
    let of_pool = plan.delete.iter().filter(current).count();
    // Without a stored slice there is no generation to replace.
    let next = if creates + of_pool > 0 || updates > 1 {
        newest + 1
    } else {
        newest
    };
    for (found, devices) in pairs() {
        match found {
            None => plan.create.push(slice(owner, devices, next, count)),
            Some(old) if next != newest || changed(devices, old) => {
                let mut new = slice(owner, devices, next, count);
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
    wanted: &[Vec<Device>],
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

/// The devices of the pool's newest generation.
#[must_use]
pub fn current_devices(owner: &Owner, existing: &[ResourceSlice]) -> Vec<Device> {
    current(owner, existing)
        .into_iter()
        .flat_map(devices)
        .cloned()
        .collect()
}

/// The devices of each slice that the scheduler uses. None: it uses none, because there is none or one is missing.
#[must_use]
pub fn used_devices(owner: &Owner, existing: &[ResourceSlice]) -> Option<Vec<Vec<Device>>> {
    let current = current(owner, existing);
    let count = current.len() as i64;
    let is_whole = |slice: &&ResourceSlice| slice.spec.pool.resource_slice_count == count;
    let used = count > 0 && current.iter().all(is_whole);
    used.then(|| current.into_iter().map(|slice| devices(slice).to_vec()).collect())
}

/// The slices of the pool's newest generation.
fn current<'a>(owner: &Owner, existing: &'a [ResourceSlice]) -> Vec<&'a ResourceSlice> {
    let ours = || existing.iter().filter(|slice| slice.spec.pool.name == owner.pool);
    let newest = ours().map(|slice| slice.spec.pool.generation).max();
    ours()
        .filter(|slice| Some(slice.spec.pool.generation) == newest)
        .collect()
}

/// Records the devices that the API server stored for `sent`.
pub fn learn(stored: &mut Stored, sent: &[Device], answer: &ResourceSlice) {
    stored.insert(json(sent), json(devices(answer)));
}

pub(super) fn slice(owner: &Owner, devices: &[Device], generation: i64, count: i64) -> ResourceSlice {
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
                name: owner.pool.clone(),
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

//! Cases: objects and what is in use.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part")]

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::Deserialize;
use vgpu_allocator::model::{Allocation, DeviceClass, DeviceTaintRule, Node, ResourceClaim, ResourceSlice};
use vgpu_allocator::{
    AllocateError, AllocatedDevices, Attempt, Classes, Features, Inventory, NodeView, SelectorCache, Slice,
};
use vgpu_api::config::AllocationPolicy;
use vgpu_quantity::Quantity;

/// One case, in the form of the conformance vectors.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Case {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub features: Vec<String>,
    pub node: Node,
    pub claims: Vec<ResourceClaim>,
    pub classes: Option<Vec<DeviceClass>>,
    pub slices: Option<Vec<ResourceSlice>>,
    pub rules: Option<Vec<DeviceTaintRule>>,
    /// `driver/pool/device`.
    pub allocated_devices: Option<Vec<String>>,
    /// `driver/pool/device/shareID`.
    pub allocated_shared: Option<Vec<String>>,
    pub aggregated_capacity: Option<BTreeMap<String, BTreeMap<String, Quantity>>>,
    pub results: Option<Vec<Allocation>>,
    pub error: Option<String>,
}

pub struct ByName(HashMap<String, DeviceClass>);

impl Classes for ByName {
    fn get(&self, name: &str) -> Option<&DeviceClass> {
        self.0.get(name)
    }
}

impl Case {
    pub fn features(&self) -> Features {
        let mut features = Features::all(false);
        for name in self.features.iter().flat_map(|name| name.split('+')) {
            features.set(name, true).unwrap();
        }
        features
    }

    pub fn classes(&self) -> ByName {
        let mut classes = HashMap::new();
        for class in self.classes.iter().flatten() {
            classes
                .entry(class.metadata.name.clone())
                .or_insert_with(|| class.clone());
        }
        ByName(classes)
    }

    pub fn inventory(&self) -> Inventory {
        let mut inventory = Inventory::default();
        for slice in self.slices.iter().flatten() {
            inventory.insert(Arc::new(Slice::new(slice.clone())));
        }
        inventory.set_rules(self.rules.clone().unwrap_or_default());
        inventory
    }

    /// The devices in use, with claims that hold them.
    pub fn allocated(&self) -> AllocatedDevices {
        let mut allocated = AllocatedDevices::default();
        let holder: Arc<str> = "another".into();
        let mut add = |path: &str, rest: serde_json::Value| {
            let mut words = path.split('/');
            let mut result = serde_json::json!({"request": "r", "driver": words.next(), "pool": words.next(), "device": words.next()});
            result
                .as_object_mut()
                .unwrap()
                .extend(rest.as_object().unwrap().clone());
            let result = serde_json::from_value(result).unwrap();
            allocated.add(&holder, &[result], Features::default());
        };
        for path in self.allocated_devices.iter().flatten() {
            add(path, serde_json::json!({}));
        }
        for path in self.allocated_shared.iter().flatten() {
            add(path, serde_json::json!({"shareID": "s"}));
        }
        for (path, amounts) in self.aggregated_capacity.iter().flatten() {
            add(path, serde_json::json!({"shareID": "s", "consumedCapacity": amounts}));
        }
        allocated
    }

    pub fn allocate(
        &self,
        policy: AllocationPolicy,
        cache: &mut SelectorCache<'_>,
    ) -> Result<Option<Vec<Allocation>>, AllocateError> {
        let features = self.features();
        let view = NodeView::new(self.node.clone(), &self.inventory(), features)?;
        let claims: Vec<&ResourceClaim> = self.claims.iter().collect();
        let attempt = Attempt {
            claims: &claims,
            classes: &self.classes(),
            allocated: &self.allocated(),
            features,
            policy,
        };
        attempt.on_node(&view, cache, &mut || "share".to_owned())
    }
}

/// Where the conformance vectors lie: in a folder `shared` beside the clone, or further up.
pub fn conformance() -> Option<std::path::PathBuf> {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors()
        .map(|folder| folder.join("shared/conformance/allocator"))
        .find(|folder| folder.is_dir())
}

/// Allocations in a comparable form: without share IDs, with devices sorted and the requests of every config listed.
pub fn normalised(mut allocations: Vec<Allocation>, claims: &[ResourceClaim]) -> Vec<serde_json::Value> {
    for (allocation, claim) in allocations.iter_mut().zip(claims) {
        let results = &mut allocation.devices.results;
        for result in results.iter_mut() {
            result.share_id = result.share_id.as_ref().map(|_| "share".to_owned());
        }
        results.sort_by(|a, b| {
            (&a.request, &a.driver, &a.pool, &a.device).cmp(&(&b.request, &b.driver, &b.pool, &b.device))
        });
        for config in &mut allocation.devices.config {
            let covers = |name: &String| {
                config.requests.iter().any(|known| {
                    known == name
                        || known
                            .strip_prefix(name.as_str())
                            .is_some_and(|rest| rest.starts_with('/'))
                })
            };
            if claim.spec.devices.requests.iter().all(|request| covers(&request.name)) {
                config.requests.clear();
            }
        }
    }
    // Quantities are in canonical form: equal numbers with the same unit have equal texts; those with different units
    // do not.
    let canonical = |allocation: Allocation| {
        let mut value = serde_json::to_value(&allocation).unwrap();
        for (result, original) in value["devices"]["results"]
            .as_array_mut()
            .into_iter()
            .flatten()
            .zip(&allocation.devices.results)
        {
            for (name, amount) in &original.consumed_capacity {
                result["consumedCapacity"][name] = serde_json::json!(amount.rank().to_string());
            }
        }
        value
    };
    allocations.into_iter().map(canonical).collect()
}

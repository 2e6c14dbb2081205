//! The objects of `resource.k8s.io/v1` that allocation reads and writes, with the fields that it needs.
//!
//! Only their shape is validated, and allocation accepts any content, because not every object has passed the API
//! server's validation. Defaults that the API server fills in are filled in here too, because objects from files have
//! not been through it.

mod attribute;
mod claim;
mod class;
mod node;
mod outcome;
mod parts;
mod slice;

use std::sync::Arc;

use litemap::LiteMap;
use serde::{Deserialize, Deserializer};
use vgpu_api::capacity;

pub use attribute::Attribute;
pub use claim::{
    Alternative, CapacityRequirements, ClaimSpec, ClaimStatus, Constraint, DeviceClaim, Exactly, Mode, Request,
    ResourceClaim,
};
pub use class::{ClassSpec, DeviceClass};
pub use node::{Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
pub use outcome::{Allocation, AllocationConfig, ConfigSource, DeviceResult, DeviceResults};
pub use parts::{CelSelector, OpaqueConfig, RequestedConfig, Selector, Toleration};
pub use slice::{
    Capacity, ConsumedCounters, Counter, CounterSet, Device, DeviceTaintRule, NodeAllocatableOverhead,
    NodeAllocatableResource, Pool, Range, RequestPolicy, ResourceSlice, RuleSelector, RuleSpec, SliceSpec, Taint,
};

/// The fields of `metadata` that allocation needs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    #[serde(deserialize_with = "or_default")]
    pub name: String,
    #[serde(deserialize_with = "or_default")]
    pub namespace: String,
    #[serde(deserialize_with = "or_default")]
    pub uid: String,
    #[serde(deserialize_with = "or_default")]
    pub labels: LiteMap<String, String>,
}

/// Decodes a field whose `null` means its default: Go writes empty lists and maps as `null`.
///
/// # Errors
/// The errors of the field's own type.
pub fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(d: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

/// Like [`or_default`], for a map by capacity, with [`by_short_name`].
fn by_capacity<'de, D: Deserializer<'de>, T: Deserialize<'de>>(d: D) -> Result<LiteMap<String, T>, D::Error> {
    Ok(by_short_name(Option::deserialize(d)?.unwrap_or_default()))
}

/// Returns the map with the short names of our capacities, which slices have. Where both names are there, the longer one
/// stays, which no device has: such a request is never allocated, and reported as a mistake.
fn by_short_name<T>(mut map: LiteMap<String, T>) -> LiteMap<String, T> {
    let is_long = |name: &&String| capacity::short(name) != *name && !map.contains_key(capacity::short(name));
    let long: Vec<String> = map.keys().filter(is_long).cloned().collect();
    for name in long {
        if let Some(value) = map.remove(&name) {
            map.insert(capacity::short(&name).to_owned(), value);
        }
    }
    map
}

/// Like [`or_default`], in an [`Arc`].
fn shared<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(d: D) -> Result<Arc<T>, D::Error> {
    or_default(d).map(Arc::new)
}

fn shared_option<'de, D: Deserializer<'de>, T: Deserialize<'de>>(d: D) -> Result<Option<Arc<T>>, D::Error> {
    Ok(Option::deserialize(d)?.map(Arc::new))
}

/// Like [`or_default`], for a list, without spare capacity: most lists have one entry, serde allocates four, and a
/// cluster has many lists.
///
/// # Errors
/// The errors of an entry.
pub fn fitted<'de, D: Deserializer<'de>, T: Deserialize<'de>>(d: D) -> Result<Vec<T>, D::Error> {
    let mut list: Vec<T> = or_default(d)?;
    list.shrink_to_fit();
    Ok(list)
}

//! ResourceQuotas with the resource names of earlier systems, as additional ceilings.
//!
//! Once a pod is translated, Kubernetes counts nothing under these names, so without this a user's quota would silently
//! have no effect. If a DeviceClass has such a name, Kubernetes counts its claims itself, and compares its own sum with
//! the number; here all shares are counted, each once, so that those of translated pods are included. ResourceQuotas
//! with scopes are ignored, because they apply only to some pods of a namespace.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Deserialize;
use vgpu_api::quota::{Dimension, GPU};

use crate::amount::{CORES, Ceilings, MOST};

const MI: u64 = 1 << 20;

/// Resource names of earlier systems: the dimension that each limits, and the size of one unit.
const NAMES: [(&str, Dimension, u64); 15] = [
    ("nvidia.com/gpu", Dimension::Shares, 1),
    ("nvidia.com/gpumem", Dimension::Memory, MI),
    ("nvidia.com/gpucores", Dimension::Cores, 1),
    ("koordinator.sh/gpu", Dimension::Gpus, GPU / CORES),
    ("koordinator.sh/gpu-core", Dimension::Cores, 1),
    ("koordinator.sh/gpu-memory", Dimension::Memory, 1),
    ("koordinator.sh/gpu-memory-ratio", Dimension::Gpus, GPU / CORES),
    ("koordinator.sh/gpu.shared", Dimension::Shares, 1),
    ("volcano.sh/gpu-memory", Dimension::Memory, MI),
    ("volcano.sh/gpu-number", Dimension::Gpus, GPU),
    ("volcano.sh/vgpu-number", Dimension::Shares, 1),
    ("volcano.sh/vgpu-memory", Dimension::Memory, MI),
    ("volcano.sh/vgpu-cores", Dimension::Cores, 1),
    ("tencent.com/vcuda-core", Dimension::Cores, 1),
    ("tencent.com/vcuda-memory", Dimension::Memory, 256 * MI),
];

/// A ResourceQuota, with its entries under these names.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "core::ResourceQuota")]
pub struct ResourceQuota {
    pub namespace: String,
    pub name: String,
    /// The whole key, its dimension, and its limit in that dimension.
    entries: Vec<(String, Dimension, u64)>,
}

impl From<core::ResourceQuota> for ResourceQuota {
    fn from(quota: core::ResourceQuota) -> Self {
        let spec = quota.spec.unwrap_or_default();
        let is_scoped = spec.scopes.is_some_and(|scopes| !scopes.is_empty()) || spec.scope_selector.is_some();
        let hard = spec.hard.into_iter().flatten().filter(|_| !is_scoped);
        let entry = |(key, Quantity(text)): (String, Quantity)| {
            let name = ["requests.", "limits."]
                .iter()
                .find_map(|prefix| key.strip_prefix(prefix))?;
            let (_, dimension, unit) = NAMES.iter().find(|(known, ..)| *known == name)?;
            let number = u64::try_from(vgpu_quantity::whole(&text).ok()?).ok()?;
            let number = number.saturating_mul(*unit).min(MOST);
            Some((key, *dimension, number))
        };
        Self {
            namespace: quota.metadata.namespace.unwrap_or_default(),
            name: quota.metadata.name.unwrap_or_default(),
            entries: hard.filter_map(entry).collect(),
        }
    }
}

impl ResourceQuota {
    #[must_use]
    pub fn is_relevant(&self) -> bool {
        !self.entries.is_empty()
    }
}

/// The tightest of all ceilings, and the name of the ResourceQuota for each that comes from one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Effective {
    pub ceilings: Ceilings,
    pub from: BTreeMap<&'static str, String>,
}

impl Effective {
    pub(crate) fn new<'a>(hard: Ceilings, quotas: impl Iterator<Item = &'a ResourceQuota>) -> Self {
        let mut effective = Self {
            ceilings: hard,
            from: BTreeMap::new(),
        };
        for quota in quotas {
            for (key, dimension, number) in &quota.entries {
                let field = effective.ceilings.field(*dimension);
                if field.is_none_or(|known| *number < known) {
                    *field = Some(*number);
                    let whose = format!("ResourceQuota {} {key}", quota.name);
                    effective.from.insert(dimension.name(), whose);
                }
            }
        }
        effective
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn quota(name: &str, spec: Value) -> ResourceQuota {
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "t"}, "spec": spec})).unwrap()
    }

    #[test]
    fn the_tighter_ceiling_holds() {
        let hami = quota(
            "hami",
            json!({"hard": {"limits.nvidia.com/gpumem": "40960", "requests.nvidia.com/gpucores": "200",
            "requests.nvidia.com/gpu": "3", "pods": "10", "limits.nvidia.com/other": "1"}}),
        );
        let tencent = quota("tencent", json!({"hard": {"requests.tencent.com/vcuda-memory": "40"}}));
        let scoped = quota(
            "scoped",
            json!({"hard": {"limits.nvidia.com/gpumem": "1"}, "scopes": ["BestEffort"]}),
        );
        assert!(hami.is_relevant() && !scoped.is_relevant());
        let hard = Ceilings {
            memory: Some(80 << 30),
            cores: Some(100),
            ..Ceilings::default()
        };
        let all = [hami, tencent, scoped];
        let effective = Effective::new(hard, all.iter());
        assert_eq!(
            effective.ceilings,
            Ceilings {
                memory: Some(10 << 30),
                cores: Some(100),
                gpus: None,
                shares: Some(3),
                compute_slices: None
            }
        );
        let from: Vec<_> = effective.from.iter().map(|(at, whose)| (*at, whose.as_str())).collect();
        assert_eq!(
            from,
            [
                ("memory", "ResourceQuota tencent requests.tencent.com/vcuda-memory"),
                ("shares", "ResourceQuota hami requests.nvidia.com/gpu"),
            ]
        );
    }
}

//! The memory of the GPUs that ResourceSlices of our driver publish.

use std::collections::BTreeMap;

use serde::Deserialize;
use vgpu_api::{DRIVER_NAME, capacity, device_type};

use crate::amount::Amount;

/// A ResourceSlice of our driver: its GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    pub name: String,
    pool: String,
    /// By device: bytes.
    gpus: BTreeMap<String, u64>,
}

impl<'de> Deserialize<'de> for Slice {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Whole {
            metadata: Meta,
            #[serde(default)]
            spec: Spec,
        }
        #[derive(Deserialize)]
        struct Meta {
            #[serde(default)]
            name: String,
        }
        #[derive(Default, Deserialize)]
        struct Spec {
            #[serde(default)]
            driver: String,
            #[serde(default)]
            pool: Pool,
            devices: Option<Vec<Device>>,
        }
        #[derive(Default, Deserialize)]
        struct Pool {
            #[serde(default)]
            name: String,
        }
        #[derive(Deserialize)]
        struct Device {
            #[serde(default)]
            name: String,
            #[serde(default)]
            attributes: BTreeMap<String, Attribute>,
            #[serde(default)]
            capacity: BTreeMap<String, Capacity>,
        }
        #[derive(Deserialize)]
        struct Attribute {
            string: Option<String>,
        }
        #[derive(Deserialize)]
        struct Capacity {
            value: String,
        }
        let whole = Whole::deserialize(deserializer)?;
        let devices = whole.spec.devices.into_iter().flatten();
        let gpu = |device: Device| {
            let kind = device.attributes.get(device_type::ATTRIBUTE)?.string.as_deref()?;
            let memory = vgpu_quantity::whole(&device.capacity.get(capacity::MEMORY)?.value).ok()?;
            let is_gpu = kind != device_type::MONITOR && memory > 0;
            is_gpu.then(|| (device.name, memory.unsigned_abs()))
        };
        let is_ours = whole.spec.driver == DRIVER_NAME;
        Ok(Self {
            name: whole.metadata.name,
            pool: whole.spec.pool.name,
            gpus: devices.filter_map(gpu).filter(|_| is_ours).collect(),
        })
    }
}

/// All GPUs, by slice. What was the largest and smallest stays so while no GPU is published: a restart of kubelet takes
/// the slices of its node away for a moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gpus {
    slices: BTreeMap<String, Slice>,
    /// By size: how many.
    sizes: BTreeMap<u64, usize>,
    last: BTreeMap<u64, usize>,
}

impl Gpus {
    /// Returns true if there are other GPUs now.
    pub(crate) fn set(&mut self, slice: Slice) -> bool {
        if self.slices.get(&slice.name) == Some(&slice) {
            return false;
        }
        self.slices.insert(slice.name.clone(), slice);
        self.sum();
        true
    }

    pub(crate) fn remove(&mut self, name: &str) -> bool {
        let is_known = self.slices.remove(name).is_some();
        self.sum();
        is_known
    }

    pub(crate) fn retain(&mut self, listed: &[String]) -> bool {
        let before = self.slices.len();
        self.slices.retain(|name, _| listed.contains(name));
        self.sum();
        self.slices.len() != before
    }

    fn sum(&mut self) {
        self.sizes.clear();
        for memory in self.slices.values().flat_map(|slice| slice.gpus.values()) {
            *self.sizes.entry(*memory).or_default() += 1;
        }
        if !self.sizes.is_empty() {
            self.last.clone_from(&self.sizes);
        }
    }

    /// The memory of a device; `None` if it is not published.
    pub(crate) fn memory(&self, pool: &str, device: &str) -> Option<u64> {
        let of_pool = self.slices.values().filter(|slice| slice.pool == pool);
        of_pool.filter_map(|slice| slice.gpus.get(device)).copied().next()
    }

    /// The most that a share with this request may take, on whichever GPU it comes. `None` while no GPU was ever seen.
    pub(crate) fn worst(&self, memory: Option<u64>, cores: u64) -> Option<Amount> {
        let (largest, _) = self.last.last_key_value()?;
        Some(match memory {
            None => Amount::share(*largest, cores, *largest),
            Some(memory) => {
                // Its part is largest on the smallest GPU that has room. More than any has runs nowhere.
                let smallest = self.last.range(memory..).next().map_or(memory, |(size, _)| *size);
                Amount::share(memory, cores, smallest)
            }
        })
    }

    /// Pool, device and memory of each.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        self.slices.values().flat_map(|slice| {
            let gpus = slice.gpus.iter();
            gpus.map(|(device, memory)| (slice.pool.as_str(), device.as_str(), *memory))
        })
    }

    /// The number of GPUs, which no request of all of a node's exceeds.
    pub(crate) fn count(&self) -> usize {
        self.last.values().sum()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::json;

    pub(crate) fn slice(name: &str, gibibytes: &[u64]) -> Slice {
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
        const GI: u64 = 1 << 30;
        let mut gpus = Gpus::default();
        assert_eq!(gpus.worst(None, 0), None);
        assert!(gpus.set(slice("a", &[80, 40])));
        assert!(!gpus.set(slice("a", &[80, 40])));
        assert_eq!(gpus.worst(None, 0), Some(Amount::share(80 * GI, 0, 80 * GI)));
        assert_eq!(gpus.worst(Some(20 * GI), 0).unwrap().gpus, 500_000);
        assert_eq!(gpus.worst(Some(60 * GI), 0).unwrap().gpus, 750_000);
        assert_eq!(gpus.worst(Some(90 * GI), 0).unwrap().gpus, 1_000_000);
        assert_eq!(gpus.memory("a", "gpu-1"), Some(40 * GI));
        assert!(gpus.remove("a"));
        assert!(gpus.worst(None, 0).is_some(), "a restart of kubelet");
        assert_eq!(gpus.memory("a", "gpu-1"), None);
    }
}

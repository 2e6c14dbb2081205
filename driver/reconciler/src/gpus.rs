//! The GPUs that ResourceSlices of our driver publish: for templates, and to find an allocated device again.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use vgpu_api::DRIVER_NAME;
use vgpu_dialects::{Gpu, Inventory};

use crate::Now;

/// How long a GPU is remembered after it was published last: kubelet deletes the slices of its node when it starts.
const KEEP: Duration = Duration::from_secs(600);

/// A published GPU with its number on the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Published {
    pub(crate) gpu: Gpu,
    pub(crate) index: u32,
}

/// UUID and profile: an instance that claims could make has its GPU's UUID.
type Key = (String, String);

fn key(gpu: &Gpu) -> Key {
    (gpu.uuid.clone(), gpu.profile.clone())
}

/// The GPUs by slice.
#[derive(Debug, Clone, Default)]
pub struct Gpus {
    /// By slice: the pool, and its devices by name.
    slices: BTreeMap<String, (String, BTreeMap<String, Published>)>,
    /// GPUs that are gone, and since when.
    gone: BTreeMap<Key, (Gpu, Now)>,
}

impl Gpus {
    /// Returns true if this changes the GPUs.
    pub fn set(&mut self, slice: &ResourceSlice, now: Now) -> bool {
        let name = slice.metadata.name.clone().unwrap_or_default();
        if slice.spec.driver != DRIVER_NAME {
            return self.remove(&name, now);
        }
        let devices = slice.spec.devices.iter().flatten();
        let devices = devices.filter_map(|device| Some((device.name.clone(), published(device)?)));
        let new = (slice.spec.pool.name.clone(), devices.collect());
        if self.slices.get(&name) == Some(&new) {
            return false;
        }
        self.forget(&name, now);
        self.slices.insert(name, new);
        true
    }

    /// Returns true if it was known.
    pub fn remove(&mut self, slice: &str, now: Now) -> bool {
        self.forget(slice, now)
    }

    /// Removes all slices except these. Returns true if any were removed.
    pub fn retain(&mut self, listed: &[String], now: Now) -> bool {
        let gone: Vec<String> = self
            .slices
            .keys()
            .filter(|name| !listed.contains(name))
            .cloned()
            .collect();
        gone.iter().for_each(|name| {
            self.forget(name, now);
        });
        !gone.is_empty()
    }

    fn forget(&mut self, slice: &str, now: Now) -> bool {
        let Some((_, devices)) = self.slices.remove(slice) else {
            return false;
        };
        let gone = devices.into_values().map(|one| (key(&one.gpu), (one.gpu, now)));
        self.gone.extend(gone);
        true
    }

    /// Forgets GPUs that are gone for long. Returns true if there were any.
    pub(crate) fn expire(&mut self, now: Now) -> bool {
        let before = self.gone.len();
        self.gone.retain(|_, (_, since)| now < *since + KEEP);
        self.gone.len() != before
    }

    /// When the next missing GPU will be forgotten.
    pub(crate) fn next_expiry(&self) -> Option<Now> {
        self.gone.values().map(|(_, since)| *since + KEEP).min()
    }

    /// The published GPUs, and those that were published until recently.
    #[must_use]
    pub fn inventory(&self) -> Inventory {
        let mut gpus: BTreeMap<Key, &Gpu> = self.gone.iter().map(|(key, (gpu, _))| (key.clone(), gpu)).collect();
        let published = self.slices.values().flat_map(|(_, devices)| devices.values());
        gpus.extend(published.map(|one| (key(&one.gpu), &one.gpu)));
        Inventory {
            gpus: gpus.into_values().cloned().collect(),
        }
    }

    /// The device of an allocation.
    pub(crate) fn device(&self, pool: &str, device: &str) -> Option<&Published> {
        let slices = self.slices.values().filter(|(of, _)| of == pool);
        slices.filter_map(|(_, devices)| devices.get(device)).next()
    }
}

/// `None` for a device that is no GPU of ours.
fn published(device: &Device) -> Option<Published> {
    let index = device.attributes.as_ref()?.get("index")?.int?;
    Some(Published {
        gpu: Gpu::of_device(device)?,
        index: u32::try_from(index).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_gpu_and_the_instances_that_claims_could_make_of_it_are_all_known() {
        let device = |name: &str, kind: &str, profile: &str, memory: &str| {
            let attributes = json!({"type": {"string": kind}, "uuid": {"string": "GPU-1"}, "index": {"int": 0},
                "profile": {"string": profile}, "parentUUID": {"string": "GPU-1"}});
            json!({"name": name, "attributes": attributes, "capacity": {"memory": {"value": memory}}})
        };
        let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": DRIVER_NAME,
            "pool": {"name": "n1/vgpu-mig-3f8a1c20", "generation": 1, "resourceSliceCount": 1},
            "devices": [device("mig-of-3f8a1c20-1g-10gb-6", "mig", "1g.10gb", "10Gi"),
                device("mig-of-3f8a1c20-3g-40gb-4", "mig", "3g.40gb", "40Gi"),
                device("gpu-3f8a1c20-undivided", "gpu", "none", "80Gi")]}});
        let slice: ResourceSlice = serde_json::from_value(slice).expect("a slice");
        let profiles =
            |gpus: &Gpus| -> Vec<String> { gpus.inventory().gpus.into_iter().map(|gpu| gpu.profile).collect() };
        let mut gpus = Gpus::default();
        gpus.set(&slice, Now::default());
        assert_eq!(profiles(&gpus), ["1g.10gb", "3g.40gb", "none"]);
        gpus.remove("s", Now::default());
        assert_eq!(profiles(&gpus), ["1g.10gb", "3g.40gb", "none"], "for a while");
    }
}

//! GPUs in MIG mode: the instances that a profile describes, with NVIDIA's profiles and placements.
//!
//! ```text
//!  mig = 0: 3g.40gb@0, 1g.10gb@4; 1:     GPU 0 has two instances, GPU 1 is in MIG mode and has none
//!  mig_product = h100-80gb               whose table the names and sizes are from
//! ```
//!
//! `@4` is the first memory slice of the instance. Each of these has one compute instance, which fills it.
//! In the state a compute instance has a place of its own, as a GPU has one: the GPUs come first, then the instances of all
//! GPUs. So memory, processes and time are kept for each instance as for a GPU.
//!
//! The profile says which instances there are at first; `instances` makes and ends others.

use std::fmt;

use crate::products::{Product, Shape};

/// An instance as a profile describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub shape: String,
    pub start: u32,
}

/// A GPU in MIG mode and its instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigGpu {
    pub gpu: u32,
    pub instances: Vec<Wanted>,
}

/// A GPU instance that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuInstance {
    /// The GPU that it is a part of.
    pub parent: usize,
    pub product: &'static Product,
    pub shape: &'static Shape,
    /// Its first memory slice.
    pub start: u32,
}

/// An instance that is a device: a compute instance of a GPU instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instance {
    pub of: GpuInstance,
    /// The slot of its GPU instance.
    pub slot: usize,
    /// Its MIG index on its GPU.
    pub index: u32,
    /// The id of the compute instance. None: it has none, and is listed nevertheless (see `control`).
    pub compute: Option<u32>,
    /// The compute slices of the compute instance, and the first one.
    pub slices: u32,
    pub first_slice: u32,
    /// Its UUID is another one than that of the last instance there (see `control`).
    pub other_uuid: bool,
    /// Counts all that were ever made.
    pub generation: u32,
}

/// The most compute slices of a GPU instance, and so its most compute instances.
pub const MOST_COMPUTE: u32 = 8;

impl GpuInstance {
    /// Its id: 0 for a whole GPU, 1 and 2 for its halves, 3 to 6 for quarters, 7 to 14 for eighths.
    pub fn id(&self) -> u32 {
        self.product.slices / self.shape.size - 1 + self.start / self.shape.size
    }

    /// The minor number of its capability node.
    pub fn minor(&self) -> u32 {
        3 + 135 * self.parent as u32 + 9 * self.id()
    }
}

impl Instance {
    pub fn id(&self) -> u32 {
        self.of.id()
    }

    /// The minor numbers of its capability nodes: that of the GPU instance, and that of the compute instance.
    pub fn minors(&self) -> [u32; 2] {
        let of_gpu_instance = self.of.minor();
        [of_gpu_instance, of_gpu_instance + 1 + self.compute.unwrap_or(0)]
    }

    /// Its part of the GPU instance's multiprocessors.
    pub fn sms(&self) -> u32 {
        self.of.shape.sms * self.slices / self.of.shape.slices
    }

    /// The name of its profile: `3g.40gb`, or `1c.3g.40gb` if it has a part of the GPU instance's compute slices.
    pub fn profile(&self) -> String {
        let name = self.of.shape.name;
        match self.slices == self.of.shape.slices {
            true => name.to_owned(),
            false => format!("{}c.{name}", self.slices),
        }
    }
}

// === impl MigGpu ===

impl MigGpu {
    /// Reads the value of the key `mig`.
    pub(crate) fn list(text: &str) -> Option<Vec<Self>> {
        let gpus = text.split(';').map(str::trim).filter(|gpu| !gpu.is_empty());
        let list: Vec<Self> = gpus.map(Self::read).collect::<Option<_>>()?;
        let distinct = list
            .iter()
            .enumerate()
            .all(|(i, one)| list[..i].iter().all(|other| other.gpu != one.gpu));
        distinct.then_some(list)
    }

    fn read(text: &str) -> Option<Self> {
        let (gpu, instances) = text.split_once(':')?;
        let instances = instances.split(',').map(str::trim).filter(|one| !one.is_empty());
        let wanted = |one: &str| {
            let (shape, start) = one.split_once('@')?;
            Some(Wanted {
                shape: shape.to_owned(),
                start: start.parse().ok()?,
            })
        };
        Some(Self {
            gpu: gpu.trim().parse().ok()?,
            instances: instances.map(wanted).collect::<Option<_>>()?,
        })
    }

    /// Returns the instances of this GPU, or why they cannot exist together.
    pub(crate) fn instances(&self, product: &'static Product) -> Result<Vec<GpuInstance>, String> {
        let mut list: Vec<(&'static Shape, u32)> = Vec::new();
        for Wanted { shape, start } in &self.instances {
            let known = product.shapes.iter().find(|known| known.name == *shape);
            let known = known.ok_or_else(|| {
                let names: Vec<&str> = product.shapes.iter().map(|known| known.name).collect();
                format!("profiles of {}: {}; not {shape}", product.name, names.join(", "))
            })?;
            if !known.starts.contains(start) {
                return Err(format!("{shape} at one of {:?}, not at {start}", known.starts));
            }
            if let Some(reason) = product.conflict(&list, known, *start) {
                return Err(reason);
            }
            list.push((known, *start));
        }
        let instance = |(shape, start)| GpuInstance {
            parent: self.gpu as usize,
            product,
            shape,
            start,
        };
        Ok(list.into_iter().map(instance).collect())
    }
}

impl fmt::Display for MigGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instances: Vec<String> = self
            .instances
            .iter()
            .map(|one| format!("{}@{}", one.shape, one.start))
            .collect();
        write!(f, "{}: {}", self.gpu, instances.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instances(product: &str, text: &str) -> Result<Vec<GpuInstance>, String> {
        let product = Product::named(product).expect("a product");
        MigGpu::list(text).expect("a list")[0].instances(product)
    }

    #[test]
    fn ids_and_minors_follow_from_the_place() {
        let ids = |product: &str, text: &str| -> Vec<u32> {
            instances(product, text)
                .expect("instances")
                .iter()
                .map(GpuInstance::id)
                .collect()
        };
        let list = instances("h100-80gb", "1: 3g.40gb@4, 2g.20gb@2, 1g.10gb@1, 1g.10gb+me@0").expect("instances");
        assert_eq!(list.iter().map(GpuInstance::id).collect::<Vec<u32>>(), [2, 4, 8, 7]);
        assert_eq!(list[0].minor(), 3 + 135 + 18);
        assert_eq!(ids("h200-141gb", "0: 7g.141gb@0"), [0]);
        assert_eq!(ids("a30-24gb", "0: 2g.12gb@2, 1g.6gb@1"), [2, 4]);
        assert_eq!(
            ids("rtx-pro-6000-96gb", "0: 2g.48gb@6, 1g.24gb@0, 1g.24gb-me@3"),
            [2, 3, 4]
        );
    }

    #[test]
    fn what_cannot_exist_is_refused_with_the_reason() {
        for (text, expected) in [
            ("0: 3g.20gb@0", "not 3g.20gb"),
            ("0: 3g.40gb@2", "at one of [0, 4], not at 2"),
            ("0: 4g.40gb@0, 3g.40gb@0", "3g.40gb@0 overlaps 4g.40gb@0"),
            ("0: 1g.10gb@1, 1g.20gb@0", "1g.20gb@0 overlaps 1g.10gb@1"),
            ("0: 1g.10gb+me@0, 1g.10gb+me@1", "at most 1 of 1g.10gb+me"),
        ] {
            let said = instances("h100-80gb", text).expect_err(text);
            assert!(said.contains(expected), "{text}: {said}");
        }
        assert_eq!(instances("h100-80gb", "0:"), Ok(Vec::new()));
        for wrong in ["0", "a: 1g.10gb@0", "0: 1g.10gb", "0: 1g.10gb@x", "0:; 0:"] {
            assert_eq!(MigGpu::list(wrong), None, "{wrong}");
        }
    }
}

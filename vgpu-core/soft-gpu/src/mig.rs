//! GPUs in MIG mode: the instances that a profile describes, with NVIDIA's profiles and placements.
//!
//! ```text
//!  mig = 0: 3g.40gb@0, 1g.10gb@4; 1:     GPU 0 has two instances, GPU 1 is in MIG mode and has none
//!  mig_product = h100-80gb               whose table the names and sizes are from
//! ```
//!
//! `@4` is the first memory slice of the instance. Each instance has one compute instance, which fills it.
//! In the state an instance has a place of its own, as a GPU has one: the GPUs come first, then the instances of all
//! GPUs in the order of the profile. So memory, processes and time are kept for each instance as for a GPU.
//!
//! The tables are NVIDIA's MIG user guide (R610) and prints of `nvidia-smi mig -lgip`. What none of these shows is
//! marked `assumed`. Real sizes vary by driver, board and ECC; nothing outside the software GPU uses these tables.

use std::fmt;

/// An instance profile of a product.
#[derive(Debug, PartialEq, Eq)]
pub struct Shape {
    /// The name without the prefix `MIG `, for example `3g.40gb`.
    pub name: &'static str,
    /// The number by which NVML's queries name it (NVML_GPU_INSTANCE_PROFILE_...).
    pub number: u32,
    /// The driver's id of it.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// Memory slices, and where an instance may begin.
    pub size: u32,
    pub starts: &'static [u32],
    /// The most instances of this profile on a GPU.
    pub most: u32,
    pub memory_mib: u64,
    pub sms: u32,
    pub copy_engines: u32,
    pub decoders: u32,
    pub jpegs: u32,
    pub ofas: u32,
}

/// A product whose profiles are known.
#[derive(Debug, PartialEq, Eq)]
pub struct Product {
    pub name: &'static str,
    pub shapes: [Shape; 7],
}

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

/// An instance that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instance {
    /// The GPU that it is a part of.
    pub parent: usize,
    /// Its MIG index on that GPU.
    pub index: u32,
    pub shape: &'static Shape,
    /// Its first memory slice.
    pub start: u32,
}

/// The memory slices of a GPU of every product here.
pub const SLICES: u32 = 8;
/// The most instances of a GPU.
pub const MOST: u32 = 7;
/// The only compute instance of each instance.
pub const COMPUTE_INSTANCE: u32 = 0;

/// Columns of a row, in this order: name; compute slices; memory in MiB; multiprocessors; copy engines; decoders; JPEG
/// engines; OFA. Profiles are the same on all boards with eight memory slices, so their ids and placements are here.
type Row = (&'static str, u64, u32, [u32; 4]);

const fn shapes(rows: [Row; 7]) -> [Shape; 7] {
    const fn shape(row: Row, at: (u32, u32), slices: u32, size: u32, starts: &'static [u32], most: u32) -> Shape {
        let (name, memory_mib, sms, [copy_engines, decoders, jpegs, ofas]) = row;
        Shape {
            name,
            number: at.0,
            id: at.1,
            slices,
            size,
            starts,
            most,
            memory_mib,
            sms,
            copy_engines,
            decoders,
            jpegs,
            ofas,
        }
    }
    let [one, media, wide, two, three, four, seven] = rows;
    [
        shape(one, (0, 19), 1, 1, &[0, 1, 2, 3, 4, 5, 6], 7),
        shape(media, (7, 20), 1, 1, &[0, 1, 2, 3, 4, 5, 6], 1),
        shape(wide, (9, 15), 1, 2, &[0, 2, 4, 6], 4),
        shape(two, (1, 14), 2, 2, &[0, 2, 4], 3),
        shape(three, (2, 9), 3, 4, &[0, 4], 2),
        shape(four, (3, 5), 4, 4, &[0], 1),
        shape(seven, (4, 0), 7, 8, &[0], 1),
    ]
}

/// The rows: 1g, 1g with media, 1g with double memory, 2g, 3g, 4g, 7g.
pub static PRODUCTS: [Product; 4] = [
    Product {
        name: "a100-40gb",
        shapes: shapes([
            ("1g.5gb", 4_864, 14, [1, 0, 0, 0]),
            ("1g.5gb+me", 4_864, 14, [1, 1, 1, 1]),
            ("1g.10gb", 9_856, 14, [1, 1, 0, 0]),
            ("2g.10gb", 9_856, 28, [2, 1, 0, 0]),
            ("3g.20gb", 19_968, 42, [3, 2, 0, 0]),
            ("4g.20gb", 19_968, 56, [4, 2, 0, 0]),
            ("7g.40gb", 40_192, 98, [7, 5, 1, 1]),
        ]),
    },
    Product {
        name: "a100-80gb",
        shapes: shapes([
            ("1g.10gb", 9_728, 14, [1, 0, 0, 0]),
            ("1g.10gb+me", 9_728, 14, [1, 1, 1, 1]),
            ("1g.20gb", 19_968, 14, [1, 1, 0, 0]),
            ("2g.20gb", 19_968, 28, [2, 1, 0, 0]),
            ("3g.40gb", 40_192, 42, [3, 2, 0, 0]),
            ("4g.40gb", 40_192, 56, [4, 2, 0, 0]),
            ("7g.80gb", 80_896, 98, [7, 5, 1, 1]),
        ]),
    },
    Product {
        name: "h100-80gb",
        shapes: shapes([
            ("1g.10gb", 9_984, 16, [1, 1, 1, 0]),
            ("1g.10gb+me", 9_984, 16, [1, 1, 1, 1]),
            ("1g.20gb", 20_096, 26, [1, 1, 1, 0]),
            ("2g.20gb", 20_096, 32, [2, 2, 2, 0]),
            ("3g.40gb", 40_448, 60, [3, 3, 3, 0]),
            ("4g.40gb", 40_448, 64, [4, 4, 4, 0]),
            ("7g.80gb", 81_152, 132, [8, 7, 7, 1]),
        ]),
    },
    Product {
        name: "h200-141gb",
        shapes: shapes([
            ("1g.18gb", 16_384, 16, [1, 1, 1, 0]),
            ("1g.18gb+me", 16_384, 16, [1, 1, 1, 1]),
            ("1g.35gb", 33_024, 26, [1, 1, 1, 0]),
            ("2g.35gb", 33_024, 32, [2, 2, 2, 0]),
            ("3g.71gb", 71_168, 60, [3, 3, 3, 0]),
            ("4g.71gb", 71_168, 64, [4, 4, 4, 0]),
            ("7g.141gb", 143_104, 132, [8, 7, 7, 1]), // assumed: 8 copy engines, as an H100's 7g has
        ]),
    },
];

impl Product {
    pub fn named(name: &str) -> Option<&'static Self> {
        PRODUCTS.iter().find(|product| product.name == name)
    }
}

impl Shape {
    pub fn memory(&self) -> u64 {
        self.memory_mib << 20
    }
}

impl Instance {
    /// The id of the GPU instance: 0 for a whole GPU, 1 and 2 for its halves, 3 to 6 for quarters, 7 to 14 for eighths.
    pub fn id(&self) -> u32 {
        SLICES / self.shape.size - 1 + self.start / self.shape.size
    }

    /// The minor numbers of its capability nodes: that of the GPU instance, and that of the compute instance.
    pub fn minors(&self) -> [u32; 2] {
        let of_gpu_instance = 3 + 135 * self.parent as u32 + 9 * self.id();
        [of_gpu_instance, of_gpu_instance + 1 + COMPUTE_INSTANCE]
    }
}

/// The name of a capability node.
pub(crate) fn cap_name(minor: u32) -> String {
    format!("nvidia-cap{minor}")
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
    pub(crate) fn instances(&self, product: &'static Product) -> Result<Vec<Instance>, String> {
        let mut list: Vec<Instance> = Vec::new();
        for Wanted { shape, start } in &self.instances {
            let known = product.shapes.iter().find(|known| known.name == *shape);
            let known = known.ok_or_else(|| {
                let names: Vec<&str> = product.shapes.iter().map(|known| known.name).collect();
                format!("profiles of {}: {}; not {shape}", product.name, names.join(", "))
            })?;
            if !known.starts.contains(start) {
                return Err(format!("{shape} at one of {:?}, not at {start}", known.starts));
            }
            let ends = |one: &Instance| one.start + one.shape.size;
            if let Some(other) = list
                .iter()
                .find(|one| one.start < start + known.size && *start < ends(one))
            {
                let (name, at) = (other.shape.name, other.start);
                return Err(format!(
                    "instances beside each other; {shape}@{start} overlaps {name}@{at}"
                ));
            }
            if list.iter().filter(|one| one.shape == known).count() >= known.most as usize {
                return Err(format!("at most {} of {shape} on a GPU", known.most));
            }
            list.push(Instance {
                parent: self.gpu as usize,
                index: list.len() as u32,
                shape: known,
                start: *start,
            });
        }
        Ok(list)
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

    fn instances(product: &str, text: &str) -> Result<Vec<Instance>, String> {
        let product = Product::named(product).expect("a product");
        MigGpu::list(text).expect("a list")[0].instances(product)
    }

    #[test]
    fn ids_and_minors_follow_from_the_place() {
        let list = instances("h100-80gb", "1: 3g.40gb@4, 2g.20gb@2, 1g.10gb@1, 1g.10gb+me@0").expect("instances");
        let ids: Vec<u32> = list.iter().map(Instance::id).collect();
        assert_eq!(ids, [2, 4, 8, 7]);
        assert_eq!(list[0].minors(), [3 + 135 + 18, 3 + 135 + 19]);
        assert_eq!(instances("h200-141gb", "0: 7g.141gb@0").expect("one")[0].id(), 0);
    }

    /// The placements of an H100, as `nvidia-smi mig -lgipp` counts them.
    #[test]
    fn a_board_of_eight_slices_has_25_placements_and_each_fits_on_it() {
        for product in &PRODUCTS {
            assert_eq!(product.shapes.iter().map(|shape| shape.starts.len()).sum::<usize>(), 25);
            for shape in &product.shapes {
                assert!(
                    shape.starts.iter().all(|start| start + shape.size <= SLICES),
                    "{shape:?}"
                );
            }
            let whole = product.shapes.last().expect("7g").memory_mib;
            assert!(product.shapes.iter().all(|shape| shape.memory_mib <= whole));
        }
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

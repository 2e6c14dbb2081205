//! The instance profiles of products, from NVIDIA's MIG user guide (R610) and prints of `nvidia-smi mig -lgip`. A cell that
//! none of these shows is marked `assumed`. Real sizes vary by driver, board and ECC; nothing outside the software GPU uses
//! these tables.

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
    pub engines: Engines,
}

/// Engines of media, of which a GPU may have fewer than its instances together could want.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Engines {
    pub decoders: u32,
    pub encoders: u32,
    pub jpegs: u32,
    pub ofas: u32,
}

/// Counts the engines of a kind.
type Count = fn(Engines) -> u32;

/// A product and its profiles.
#[derive(Debug, PartialEq, Eq)]
pub struct Product {
    pub name: &'static str,
    /// Memory slices.
    pub slices: u32,
    /// False: the MIG mode changes at the next reset of the GPU, and lasts over reloads of the kernel module (Ampere).
    pub resetless: bool,
    /// Empty: the product has no MIG mode.
    pub shapes: &'static [Shape],
}

/// Number and id of a profile, compute slices, memory slices, starts, and the most of it on a GPU.
type Place = (u32, u32, u32, u32, &'static [u32], u32);
/// Name, memory in MiB, multiprocessors, copy engines, and decoders, encoders, JPEG engines, OFAs.
type Row = (&'static str, u64, u32, u32, [u32; 4]);

const fn shape(place: Place, row: Row) -> Shape {
    let (number, id, slices, size, starts, most) = place;
    let (name, memory_mib, sms, copy_engines, [decoders, encoders, jpegs, ofas]) = row;
    Shape {
        name,
        number,
        id,
        slices,
        size,
        starts,
        most,
        memory_mib,
        sms,
        copy_engines,
        engines: Engines {
            decoders,
            encoders,
            jpegs,
            ofas,
        },
    }
}

/// The profiles of a board with eight memory slices, whose ids and places are the same on all: 1g, 1g with media, 1g with
/// double memory, 2g, 3g, 4g, 7g.
const fn eight(rows: [Row; 7]) -> [Shape; 7] {
    let [one, media, wide, two, three, four, seven] = rows;
    [
        shape((0, 19, 1, 1, &[0, 1, 2, 3, 4, 5, 6], 7), one),
        shape((7, 20, 1, 1, &[0, 1, 2, 3, 4, 5, 6], 1), media),
        shape((9, 15, 1, 2, &[0, 2, 4, 6], 4), wide),
        shape((1, 14, 2, 2, &[0, 2, 4], 3), two),
        shape((2, 9, 3, 4, &[0, 4], 2), three),
        shape((3, 5, 4, 4, &[0], 1), four),
        shape((4, 0, 7, 8, &[0], 1), seven),
    ]
}

const A30: [Shape; 5] = [
    // assumed: memory and engines of 1g, copy engines and media of all
    shape((0, 14, 1, 1, &[0, 1, 2, 3], 4), ("1g.6gb", 5_952, 14, 1, [0; 4])),
    shape(
        (7, 21, 1, 1, &[0, 1, 2, 3], 1),
        ("1g.6gb+me", 5_952, 14, 1, [1, 0, 1, 1]),
    ),
    shape((1, 5, 2, 2, &[0, 2], 2), ("2g.12gb", 11_968, 28, 2, [2, 0, 0, 0])),
    shape((8, 6, 2, 2, &[0, 2], 1), ("2g.12gb+me", 11_968, 28, 2, [2, 0, 1, 1])),
    shape((3, 0, 4, 4, &[0], 1), ("4g.24gb", 24_000, 56, 4, [4, 0, 1, 1])),
];

const A100_40: [Shape; 7] = eight([
    ("1g.5gb", 4_864, 14, 1, [0; 4]),
    ("1g.5gb+me", 4_864, 14, 1, [1, 0, 1, 1]),
    ("1g.10gb", 9_856, 14, 1, [1, 0, 0, 0]),
    ("2g.10gb", 9_856, 28, 2, [1, 0, 0, 0]),
    ("3g.20gb", 19_968, 42, 3, [2, 0, 0, 0]),
    ("4g.20gb", 19_968, 56, 4, [2, 0, 0, 0]),
    ("7g.40gb", 40_192, 98, 7, [5, 0, 1, 1]),
]);

const A100_80: [Shape; 7] = eight([
    ("1g.10gb", 9_728, 14, 1, [0; 4]),
    ("1g.10gb+me", 9_728, 14, 1, [1, 0, 1, 1]),
    ("1g.20gb", 19_968, 14, 1, [1, 0, 0, 0]),
    ("2g.20gb", 19_968, 28, 2, [1, 0, 0, 0]),
    ("3g.40gb", 40_192, 42, 3, [2, 0, 0, 0]),
    ("4g.40gb", 40_192, 56, 4, [2, 0, 0, 0]),
    ("7g.80gb", 80_896, 98, 7, [5, 0, 1, 1]),
]);

const H100_SXM: [Shape; 7] = eight([
    ("1g.10gb", 9_984, 16, 1, [1, 0, 1, 0]),
    ("1g.10gb+me", 9_984, 16, 1, [1, 0, 1, 1]),
    ("1g.20gb", 20_096, 26, 1, [1, 0, 1, 0]),
    ("2g.20gb", 20_096, 32, 2, [2, 0, 2, 0]),
    ("3g.40gb", 40_448, 60, 3, [3, 0, 3, 0]),
    ("4g.40gb", 40_448, 64, 4, [4, 0, 4, 0]),
    ("7g.80gb", 81_152, 132, 8, [7, 0, 7, 1]),
]);

const H100_PCIE: [Shape; 7] = eight([
    ("1g.10gb", 9_984, 14, 1, [1, 0, 1, 0]),    // assumed: multiprocessors
    ("1g.10gb+me", 9_984, 14, 1, [1, 0, 1, 1]), // assumed: multiprocessors
    ("1g.20gb", 20_096, 22, 1, [1, 0, 1, 0]),   // assumed: multiprocessors
    ("2g.20gb", 20_096, 30, 2, [2, 0, 2, 0]),
    ("3g.40gb", 40_448, 46, 3, [3, 0, 3, 0]),
    ("4g.40gb", 40_448, 62, 4, [4, 0, 4, 0]),
    ("7g.80gb", 81_152, 114, 8, [7, 0, 7, 1]),
]);

const H200: [Shape; 7] = eight([
    ("1g.18gb", 16_384, 16, 1, [1, 0, 1, 0]),
    ("1g.18gb+me", 16_384, 16, 1, [1, 0, 1, 1]),
    ("1g.35gb", 33_024, 26, 1, [1, 0, 1, 0]),
    ("2g.35gb", 33_024, 32, 2, [2, 0, 2, 0]),
    ("3g.71gb", 71_168, 60, 3, [3, 0, 3, 0]),
    ("4g.71gb", 71_168, 64, 4, [4, 0, 4, 0]),
    ("7g.141gb", 143_104, 132, 8, [7, 0, 7, 1]), // assumed: 8 copy engines, as an H100's 7g has
]);

/// NVIDIA's guide and `-lgip` differ about its copy engines and decoders; these are those of `-lgip` where it was seen.
const B200: [Shape; 7] = eight([
    ("1g.23gb", 22_528, 18, 2, [1, 0, 1, 0]),
    ("1g.23gb+me", 22_528, 18, 2, [1, 0, 1, 1]),
    ("1g.45gb", 45_312, 30, 2, [1, 0, 1, 0]),
    ("2g.45gb", 45_312, 36, 4, [2, 0, 2, 0]),
    ("3g.90gb", 91_136, 70, 6, [3, 0, 3, 0]), // assumed: memory, multiprocessors, media of 3g, 4g and 7g
    ("4g.90gb", 91_136, 72, 8, [4, 0, 4, 0]),
    ("7g.180gb", 182_528, 148, 16, [7, 0, 7, 1]),
]);

/// assumed: copy engines
const RTX_PRO_6000: [Shape; 11] = [
    shape(
        (0, 14, 1, 3, &[0, 3, 6, 9], 4),
        ("1g.24gb", 24_192, 46, 1, [1, 1, 1, 0]),
    ),
    shape(
        (7, 21, 1, 3, &[0, 3, 6, 9], 1),
        ("1g.24gb+me", 24_192, 46, 1, [1, 1, 1, 1]),
    ),
    shape(
        (10, 47, 1, 3, &[0, 3, 6, 9], 4),
        ("1g.24gb+gfx", 24_192, 46, 1, [1, 1, 1, 0]),
    ),
    shape(
        (15, 65, 1, 3, &[0, 3, 6, 9], 1),
        ("1g.24gb+me.all", 24_192, 46, 1, [4, 4, 4, 1]),
    ),
    shape((13, 67, 1, 3, &[0, 3, 6, 9], 4), ("1g.24gb-me", 24_192, 46, 1, [0; 4])),
    shape((1, 5, 2, 6, &[0, 6], 2), ("2g.48gb", 48_512, 94, 2, [2, 2, 2, 0])),
    shape((11, 35, 2, 6, &[0, 6], 2), ("2g.48gb+gfx", 48_512, 94, 2, [2, 2, 2, 0])),
    shape(
        (16, 64, 2, 6, &[0, 6], 1),
        ("2g.48gb+me.all", 48_512, 94, 2, [4, 4, 4, 1]),
    ),
    shape((14, 66, 2, 6, &[0, 6], 2), ("2g.48gb-me", 48_512, 94, 2, [0; 4])),
    shape((3, 0, 4, 12, &[0], 1), ("4g.96gb", 97_280, 188, 4, [4, 4, 4, 1])),
    shape((12, 32, 4, 12, &[0], 1), ("4g.96gb+gfx", 97_280, 188, 4, [4, 4, 4, 1])),
];

const fn product(name: &'static str, slices: u32, resetless: bool, shapes: &'static [Shape]) -> Product {
    Product {
        name,
        slices,
        resetless,
        shapes,
    }
}

pub static PRODUCTS: [Product; 9] = [
    product("a30-24gb", 4, false, &A30),
    product("a100-40gb", 8, false, &A100_40),
    product("a100-80gb", 8, false, &A100_80),
    product("h100-80gb", 8, true, &H100_SXM),
    product("h100-80gb-pcie", 8, true, &H100_PCIE),
    product("h200-141gb", 8, true, &H200),
    product("b200-180gb", 8, true, &B200),
    product("rtx-pro-6000-96gb", 12, true, &RTX_PRO_6000),
    product("none", 1, false, &[]),
];

impl Product {
    pub fn named(name: &str) -> Option<&'static Self> {
        PRODUCTS.iter().find(|product| product.name == name)
    }

    /// The most instances of a GPU.
    pub fn most(&self) -> u32 {
        self.shapes.iter().map(|shape| shape.most).max().unwrap_or(0)
    }

    /// The media engines of a GPU: those of its largest profile.
    fn engines(&self) -> Engines {
        let whole = self.shapes.iter().find(|shape| shape.size == self.slices);
        whole.map_or_else(Engines::default, |shape| shape.engines)
    }

    /// Why `wanted` cannot be at `start` beside `others`, each with its start. Disjoint memory slices imply that copy
    /// engines, multiprocessors and memory suffice; media engines are counted.
    pub(crate) fn conflict(
        &self,
        others: &[(&'static Shape, u32)],
        wanted: &'static Shape,
        start: u32,
    ) -> Option<String> {
        let name = wanted.name;
        let overlap = others
            .iter()
            .find(|(one, at)| *at < start + wanted.size && start < at + one.size);
        if let Some((other, at)) = overlap {
            let other = other.name;
            return Some(format!(
                "instances beside each other; {name}@{start} overlaps {other}@{at}"
            ));
        }
        if others.iter().filter(|(one, _)| *one == wanted).count() >= wanted.most as usize {
            return Some(format!("at most {} of {name} on a GPU", wanted.most));
        }
        let all = || others.iter().map(|(one, _)| one.engines).chain([wanted.engines]);
        let kinds: [(&str, Count); 4] = [
            ("decoders", |of| of.decoders),
            ("encoders", |of| of.encoders),
            ("JPEG engines", |of| of.jpegs),
            ("OFAs", |of| of.ofas),
        ];
        let lacking = kinds
            .iter()
            .find(|(_, count)| all().map(*count).sum::<u32>() > count(self.engines()));
        lacking.map(|(kind, count)| format!("at most {} {kind} on a GPU, with {name}", count(self.engines())))
    }
}

impl Shape {
    pub fn memory(&self) -> u64 {
        self.memory_mib << 20
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The placements, as `nvidia-smi mig -lgipp` counts them.
    #[test]
    fn each_product_has_its_placements_and_each_fits_on_it() {
        for (product, expected) in PRODUCTS.iter().zip([13, 25, 25, 25, 25, 25, 25, 30, 0]) {
            let count: usize = product.shapes.iter().map(|shape| shape.starts.len()).sum();
            assert_eq!(count, expected, "{}", product.name);
            for shape in product.shapes {
                let fits = |start: &u32| start + shape.size <= product.slices && start.is_multiple_of(shape.size);
                assert!(shape.starts.iter().all(fits), "{shape:?}");
            }
            let whole = product.shapes.iter().find(|shape| shape.size == product.slices);
            let most = whole.map_or(0, |shape| shape.memory_mib);
            assert!(product.shapes.iter().all(|shape| shape.memory_mib <= most));
            let ids = |of: fn(&Shape) -> u32| {
                let mut list: Vec<u32> = product.shapes.iter().map(of).collect();
                list.sort_unstable();
                list.dedup();
                list.len()
            };
            assert_eq!([ids(|of| of.id), ids(|of| of.number)], [product.shapes.len(); 2]);
        }
    }

    /// Each full set of the same base profile fits; a second one with the only OFA does not.
    #[test]
    fn media_engines_are_counted() {
        for product in &PRODUCTS {
            let shapes = product.shapes;
            for shape in shapes {
                let mut others: Vec<(&'static Shape, u32)> = Vec::new();
                for start in shape.starts.iter().take(shape.most as usize) {
                    assert_eq!(product.conflict(&others, shape, *start), None, "{}", shape.name);
                    others.push((shape, *start));
                }
            }
        }
        let rtx = Product::named("rtx-pro-6000-96gb").expect("a product");
        let of = |name: &str| rtx.shapes.iter().find(|shape| shape.name == name).expect("a profile");
        let media = [(of("1g.24gb+me.all"), 0)];
        let said = rtx.conflict(&media, of("1g.24gb"), 3).expect("no decoder is left");
        assert!(said.contains("at most 4 decoders"), "{said}");
        assert_eq!(rtx.conflict(&media, of("1g.24gb-me"), 3), None);
        let a100 = Product::named("a100-80gb").expect("a product");
        assert!(a100.conflict(&[(&a100.shapes[1], 0)], &a100.shapes[1], 1).is_some());
    }
}

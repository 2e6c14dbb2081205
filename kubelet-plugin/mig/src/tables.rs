//! For tests: profiles as drivers list them, from NVIDIA's MIG user guide. Nothing outside the tests knows a table.

use crate::driver::{Engines, Profile};
use vgpu_node::gpus::Placement;

/// Id and name; compute slices; MiB; multiprocessors; copy engines; decoders, encoders, JPEG, OFA; size and starts.
type Row = (u32, &'static str, u32, u64, u32, u32, [u32; 4], u32, &'static [u32]);

fn profiles(rows: &[Row]) -> Vec<Profile> {
    let profile = |row: &Row| {
        let (id, name, compute_slices, memory_mib, multiprocessors, copy_engines, engines, size, starts) = *row;
        let [decoders, encoders, jpegs, ofas] = engines;
        Profile {
            id,
            name: name.into(),
            compute_slices,
            memory_mib,
            multiprocessors,
            copy_engines,
            engines: Engines {
                decoders,
                encoders,
                jpegs,
                ofas,
            },
            placements: starts.iter().map(|start| Placement { start: *start, size }).collect(),
        }
    };
    rows.iter().map(profile).collect()
}

const SEVEN: &[u32] = &[0, 1, 2, 3, 4, 5, 6];

pub(crate) fn h100() -> Vec<Profile> {
    profiles(&[
        (19, "1g.10gb", 1, 9_984, 16, 1, [1, 0, 1, 0], 1, SEVEN),
        (20, "1g.10gb+me", 1, 9_984, 16, 1, [1, 0, 1, 1], 1, SEVEN),
        (15, "1g.20gb", 1, 20_096, 26, 1, [1, 0, 1, 0], 2, &[0, 2, 4, 6]),
        (14, "2g.20gb", 2, 20_096, 32, 2, [2, 0, 2, 0], 2, &[0, 2, 4]),
        (9, "3g.40gb", 3, 40_448, 60, 3, [3, 0, 3, 0], 4, &[0, 4]),
        (5, "4g.40gb", 4, 40_448, 64, 4, [4, 0, 4, 0], 4, &[0]),
        (0, "7g.80gb", 7, 81_152, 132, 8, [7, 0, 7, 1], 8, &[0]),
    ])
}

pub(crate) fn a100() -> Vec<Profile> {
    profiles(&[
        (19, "1g.10gb", 1, 9_728, 14, 1, [0, 0, 0, 0], 1, SEVEN),
        (20, "1g.10gb+me", 1, 9_728, 14, 1, [1, 0, 1, 1], 1, SEVEN),
        (15, "1g.20gb", 1, 19_968, 14, 1, [1, 0, 0, 0], 2, &[0, 2, 4, 6]),
        (14, "2g.20gb", 2, 19_968, 28, 2, [1, 0, 0, 0], 2, &[0, 2, 4]),
        (9, "3g.40gb", 3, 40_192, 42, 3, [2, 0, 0, 0], 4, &[0, 4]),
        (5, "4g.40gb", 4, 40_192, 56, 4, [2, 0, 0, 0], 4, &[0]),
        (0, "7g.80gb", 7, 80_896, 98, 7, [5, 0, 1, 1], 8, &[0]),
    ])
}

pub(crate) fn a30() -> Vec<Profile> {
    const FOUR: &[u32] = &[0, 1, 2, 3];
    profiles(&[
        (14, "1g.6gb", 1, 5_952, 14, 1, [1, 0, 0, 0], 1, FOUR),
        (21, "1g.6gb+me", 1, 5_952, 14, 1, [1, 0, 1, 1], 1, FOUR),
        (5, "2g.12gb", 2, 11_968, 28, 2, [2, 0, 0, 0], 2, &[0, 2]),
        (6, "2g.12gb+me", 2, 11_968, 28, 2, [2, 0, 1, 1], 2, &[0, 2]),
        (0, "4g.24gb", 4, 24_000, 56, 4, [4, 0, 1, 1], 4, &[0]),
    ])
}

pub(crate) fn rtx_pro_6000() -> Vec<Profile> {
    const FOUR: &[u32] = &[0, 3, 6, 9];
    profiles(&[
        (14, "1g.24gb", 1, 24_192, 46, 1, [1, 1, 1, 0], 3, FOUR),
        (21, "1g.24gb+me", 1, 24_192, 46, 1, [1, 1, 1, 1], 3, FOUR),
        (47, "1g.24gb+gfx", 1, 24_192, 46, 1, [1, 1, 1, 0], 3, FOUR),
        (65, "1g.24gb+me.all", 1, 24_192, 46, 1, [4, 4, 4, 1], 3, FOUR),
        (67, "1g.24gb-me", 1, 24_192, 46, 1, [0, 0, 0, 0], 3, FOUR),
        (5, "2g.48gb", 2, 48_512, 94, 2, [2, 2, 2, 0], 6, &[0, 6]),
        (35, "2g.48gb+gfx", 2, 48_512, 94, 2, [2, 2, 2, 0], 6, &[0, 6]),
        (64, "2g.48gb+me.all", 2, 48_512, 94, 2, [4, 4, 4, 1], 6, &[0, 6]),
        (66, "2g.48gb-me", 2, 48_512, 94, 2, [0, 0, 0, 0], 6, &[0, 6]),
        (0, "4g.96gb", 4, 97_280, 188, 4, [4, 4, 4, 1], 12, &[0]),
        (32, "4g.96gb+gfx", 4, 97_280, 188, 4, [4, 4, 4, 1], 12, &[0]),
    ])
}

pub(crate) fn all() -> Vec<Vec<Profile>> {
    vec![h100(), a100(), a30(), rtx_pro_6000()]
}

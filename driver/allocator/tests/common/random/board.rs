//! A GPU whose instances claims make: a pool of its own, with a counter for each memory slice, and a device for each placement
//! of each profile and for the whole GPU. Claims may share some of these; such a device takes its counters once.

use serde_json::{Value, json};

use super::numbers::{CAPACITIES, Random};

/// Name, and the compute slices, memory slices, decoders and media extensions of an instance.
type Profile = (&'static str, [u64; 4], &'static [u64]);
/// The profiles of an H100 with 80 GB, each with the starts of its placements.
const PROFILES: [Profile; 7] = [
    ("1g.10gb", [1, 1, 1, 0], &[0, 1, 2, 3, 4, 5, 6]),
    ("1g.10gb+me", [1, 1, 1, 1], &[0, 1, 2, 3, 4, 5, 6]),
    ("1g.20gb", [1, 2, 1, 0], &[0, 2, 4, 6]),
    ("2g.20gb", [2, 2, 2, 0], &[0, 2, 4]),
    ("3g.40gb", [3, 4, 3, 0], &[0, 4]),
    ("4g.40gb", [4, 4, 4, 0], &[0]),
    ("7g.80gb", [7, 8, 7, 1], &[0]),
];
const SLICES: u64 = 8;

/// A placement.
pub(super) struct Placement {
    pub(super) name: String,
    pub(super) is_shared: bool,
    slices: std::ops::Range<u64>,
}

/// The contents of the two slices of a GPU, and its placements.
pub(super) fn board(random: &mut Random) -> (Value, Value, Vec<Placement>) {
    let (mut devices, mut placements) = (Vec::new(), Vec::new());
    // Fewer placements make a case that fits on fewer of them.
    let most = *random.pick(&[100, 100, 60, 30]);
    let shares = *random.pick(&[0, 30, 100]);
    let mut add = |random: &mut Random, profile: &str, start: u64, counters: [u64; 4]| {
        let [compute, memory, decoders, media] = counters;
        let is_shared = random.percent(shares);
        let name = format!("{}-{start}", profile.replace(['.', '+'], "-"));
        devices.push(device(
            profile,
            &name,
            is_shared,
            start..start + memory,
            [compute, decoders, media],
        ));
        placements.push(Placement {
            name,
            is_shared,
            slices: start..start + memory,
        });
    };
    for (profile, counters, starts) in PROFILES {
        for start in starts {
            if random.percent(most) {
                add(random, profile, *start, counters);
            }
        }
    }
    if random.percent(70) {
        add(random, "whole", 0, [7, SLICES, 7, 1]);
    }
    let mut counters: serde_json::Map<String, Value> =
        (0..SLICES).map(|at| (slice(at), json!({"value": "1"}))).collect();
    for (name, value) in [("compute-slices", "7"), ("decoders", "7"), ("media", "1")] {
        counters.insert(name.to_owned(), json!({"value": value}));
    }
    let counters = json!({"sharedCounters": [{"name": "gpu", "counters": counters}]});
    (counters, json!({"devices": devices}), placements)
}

fn slice(at: u64) -> String {
    format!("memory-slice-{at}")
}

fn device(profile: &str, name: &str, is_shared: bool, slices: std::ops::Range<u64>, others: [u64; 3]) -> Value {
    let memory = slices.end - slices.start;
    let names = ["compute-slices", "decoders", "media"];
    let others = names.into_iter().map(str::to_owned).zip(others);
    let counters: serde_json::Map<String, Value> = slices
        .map(|at| (slice(at), 1))
        .chain(others)
        .map(|(name, value)| (name, json!({"value": value.to_string()})))
        .collect();
    let mut capacity = json!({});
    for name in CAPACITIES {
        capacity[name] = json!({"value": memory.to_string()});
        if is_shared {
            capacity[name]["requestPolicy"] = json!({"default": "1", "validRange": {"min": "1", "step": "1"}});
        }
    }
    json!({
        "name": name,
        "attributes": {"model": {"string": profile}, "numa": {"int": 0}},
        "capacity": capacity,
        "allowMultipleAllocations": is_shared,
        "consumesCounters": [{"counterSet": "gpu", "counters": counters}],
    })
}

/// Placements that claims hold: beside each other, or rarely more than the GPU has.
pub(super) fn held(random: &mut Random, placements: Vec<Placement>) -> Vec<(String, bool)> {
    let may_overlap = random.percent(3);
    let mut held: Vec<Placement> = Vec::new();
    for placement in placements {
        let overlaps =
            |other: &Placement| placement.slices.start < other.slices.end && other.slices.start < placement.slices.end;
        if random.percent(12) && (may_overlap || !held.iter().any(overlaps)) {
            held.push(placement);
        }
    }
    held.into_iter().map(|one| (one.name, one.is_shared)).collect()
}

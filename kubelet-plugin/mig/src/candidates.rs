//! The instances that a GPU can offer, as devices that take from shared counters. Pure.
//!
//! ```text
//!  a GPU's pool:  counter set   memory-slice-0..n  1 each
//!                               ofa, jpeg, decoders, encoders   of the whole GPU
//!                               compute-slices, memory          for quotas; no set of placements can exceed them
//!                 devices       each profile in each of its placements, small ones first, from the last place on;
//!                               where claims switch the mode, at the end the undivided GPU, which takes everything
//! ```
//!
//! Disjoint memory slices imply multiprocessors, copy engines, memory, compute slices and the most instances of a profile, on
//! all boards whose tables are known. Only the engines can bind beside them. All figures are the
//! driver's.
//!
//! The allocator takes the first device that fits, so the order packs: an instance of one slice begins at the last place, which
//! keeps the places of bigger ones at the front free. The undivided GPU comes last for the same reason: a share that fits an
//! instance does not take the whole GPU out of MIG's reach.
//!
//! Failure modes:
//! - A counter whose value is below what allocations have taken blocks every device of its pool, and a plugin that has started again
//!   does not know what was allocated. So an administrator's instance only removes the placements that overlap it, and lowers no
//!   counter; and what claims hold stays published, whatever else is there.
//! - An administrator's instance of a profile that the driver does not list: it counts as having all engines, because
//!   nothing says which it has.
//! - A claim was allocated a placement that an administrator takes before Prepare: Prepare refuses it and names the holder.
//! - An instance whose claims are gone and that a process still uses: it stays published, as do the places that it overlaps, and
//!   no counter changes; [`Pool::is_left_over`] says which of them take no claims meanwhile.
//! - A board with more slices than a counter set has room for is refused as a whole. A placement without slices is left out.

use crate::driver::{Engines, Profile, overlap, slices};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use vgpu_api::{CANDIDATE_PREFIX, GPU_DIGITS};
use vgpu_node::gpus::Placement;

/// Kubernetes' limit for the devices of a slice if any of them takes from counters.
pub const MOST_DEVICES: usize = 64;
/// Kubernetes' limit for the counters of a set.
pub const MOST_COUNTERS: usize = 32;
/// The counters beside those of memory slices.
const OTHER_COUNTERS: usize = 6;
const MIB: u64 = 1 << 20;

/// All that a GPU offers. Each GPU has a pool of its own, which confines what goes wrong with its counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// The name of its only counter set.
    pub counter_set: String,
    pub counters: Vec<Counter>,
    /// In the order in which the allocator is to try them.
    pub candidates: Vec<Candidate>,
    /// Places of instances whose claims are gone, and which are not destroyed yet.
    pub leftovers: Vec<Placement>,
    /// None: claims do not switch the GPU's mode, or its size is not known.
    pub undivided: Option<Undivided>,
}

/// The undivided GPU, as the last device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undivided {
    /// The name of the device.
    pub name: String,
    pub consumes: Vec<Counter>,
}

/// An instance that could be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The name of the device.
    pub name: String,
    pub profile: Arc<Profile>,
    pub placement: Placement,
    pub consumes: Vec<Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    pub name: String,
    /// Bytes for `memory`, else a number of things.
    pub value: u64,
}

/// An instance that is there, or that a claim is about to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The id of its profile.
    pub profile: u32,
    pub placement: Placement,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(
        "GPU {gpu}: its placements end at memory slice {slices}, and Kubernetes takes {MOST_COUNTERS} counters a set; make \
         its instances by hand (nvidia-smi mig), which are published one by one"
    )]
    TooManySlices { gpu: String, slices: u32 },
}

// === impl Pool ===

impl Pool {
    /// `gpu`: its UUID. `administrators`: instances that no claim made. `held`: those of claims.
    ///
    /// # Errors
    /// The board has more slices than there may be counters.
    pub fn new(gpu: &str, profiles: &[Profile], administrators: &[Place], held: &[Place]) -> Result<Self, Error> {
        let is_held = |profile: u32, placement| held.contains(&Place { profile, placement });
        let places = || {
            let of = |profile: &Profile| profile.placements.clone().into_iter().filter(|place| place.size > 0);
            profiles
                .iter()
                .flat_map(move |profile| of(profile).map(move |place| (profile, place)))
        };
        let end = places().map(|(_, place)| slices(place).end).max().unwrap_or(0);
        if end as usize + OTHER_COUNTERS > MOST_COUNTERS {
            let gpu = gpu.to_owned();
            return Err(Error::TooManySlices { gpu, slices: end });
        }
        // The counters must have room for every disjoint set of these.
        let possible: Vec<(&Profile, Placement)> = places().collect();
        let engines = EngineRoom::new(profiles, administrators, held);
        let mut counters: Vec<Counter> = (0..end).map(|slice| Counter::new(&slice_name(slice), 1)).collect();
        let most = |of: fn(&Profile) -> u64| most_at_once(&possible, end, of);
        counters.push(Counter::new("compute-slices", most(compute_slices)));
        counters.push(Counter::new("memory", most(memory)));
        counters.extend(Counter::all(engines.published));
        let fits = |profile: &Profile, place: Placement| {
            let is_free = !administrators.iter().any(|one| overlap(one.placement, place));
            is_held(profile.id, place) || is_free && engines.has_room(profile.engines)
        };
        let mut offered: Vec<(&Profile, Placement)> =
            places().filter(|(profile, place)| fits(profile, *place)).collect();
        offered.sort_by_key(|(profile, place)| order(profile, *place));
        Ok(Self {
            counter_set: counter_set(gpu),
            counters,
            candidates: candidates(gpu, &offered),
            undivided: None,
            leftovers: Vec::new(),
        })
    }

    /// Returns the pool with the undivided GPU as its last device.
    #[must_use]
    pub fn with_undivided(mut self, gpu: &str) -> Self {
        self.undivided = Some(Undivided {
            name: vgpu_api::undivided(&short(gpu)),
            consumes: self.counters.clone(),
        });
        self
    }

    /// Returns true if a candidate overlaps an instance whose claims are gone, or is that one.
    #[must_use]
    pub fn is_left_over(&self, candidate: &Candidate) -> bool {
        self.leftovers.iter().any(|place| overlap(*place, candidate.placement))
    }

    /// Returns the candidate that a device's name stands for.
    #[must_use]
    pub fn find(&self, device: &str) -> Option<&Candidate> {
        self.candidates.iter().find(|candidate| candidate.name == device)
    }
}

// === impl Counter ===

impl Counter {
    fn new(name: &str, value: u64) -> Self {
        Self {
            name: name.to_owned(),
            value,
        }
    }

    /// Only of engines that are there.
    fn all(engines: Engines) -> impl Iterator<Item = Self> {
        let named = engines.named().into_iter().filter(|(_, count)| *count > 0);
        named.map(|(name, count)| Self::new(name, count.into()))
    }
}

/// How many engines claims may have.
struct EngineRoom {
    /// The counters' values.
    published: Engines,
    /// Those that all of the administrator's instances leave.
    free: Engines,
}

// === impl EngineRoom ===

impl EngineRoom {
    fn new(profiles: &[Profile], administrators: &[Place], held: &[Place]) -> Self {
        let of = |id: u32| {
            profiles
                .iter()
                .find(|profile| profile.id == id)
                .map(|profile| profile.engines)
        };
        let total = profiles
            .iter()
            .fold(Engines::default(), |all, profile| all.with(profile.engines, u32::max));
        let without = |left: Engines, one: &Place| match of(one.profile) {
            Some(engines) => left.with(engines, u32::saturating_sub),
            None => Engines::default(),
        };
        let held = held
            .iter()
            .filter_map(|held| of(held.profile))
            .fold(Engines::default(), |sum, engines| {
                sum.with(engines, u32::saturating_add)
            });
        Self {
            published: total.with(held, u32::max),
            free: administrators.iter().fold(total, without),
        }
    }

    fn has_room(&self, engines: Engines) -> bool {
        self.free.with(engines, u32::min) == engines
    }
}

impl Engines {
    fn with(self, other: Self, combine: fn(u32, u32) -> u32) -> Self {
        Self {
            decoders: combine(self.decoders, other.decoders),
            encoders: combine(self.encoders, other.encoders),
            jpegs: combine(self.jpegs, other.jpegs),
            ofas: combine(self.ofas, other.ofas),
        }
    }

    fn count(self) -> u32 {
        self.named()
            .iter()
            .fold(0, |sum: u32, (_, count)| sum.saturating_add(*count))
    }
}

fn compute_slices(profile: &Profile) -> u64 {
    profile.compute_slices.into()
}

fn memory(profile: &Profile) -> u64 {
    profile.memory_mib.saturating_mul(MIB)
}

/// Small profiles first, plain ones before those with more engines, and the last place first.
fn order(profile: &Profile, place: Placement) -> (u32, u32, u32, u32, Reverse<u32>) {
    let engines = profile.engines.count();
    (
        place.size,
        profile.compute_slices,
        engines,
        profile.id,
        Reverse(place.start),
    )
}

/// Returns the most of something that instances beside each other can have.
fn most_at_once(places: &[(&Profile, Placement)], end: u32, of: fn(&Profile) -> u64) -> u64 {
    // From each slice to the end.
    let mut most = vec![0_u64; end as usize + 1];
    for slice in (0..end).rev() {
        let begin_here = places.iter().filter(|(_, place)| place.start == slice);
        let with = begin_here.map(|(profile, place)| of(profile).saturating_add(most[slices(*place).end as usize]));
        most[slice as usize] = with.chain([most[slice as usize + 1]]).max().unwrap_or(0);
    }
    most[0]
}

fn candidates(gpu: &str, offered: &[(&Profile, Placement)]) -> Vec<Candidate> {
    let mut names = BTreeSet::new();
    let mut all: Vec<Candidate> = Vec::new();
    for (profile, placement) in offered {
        let mut name = device_name(gpu, &profile.name, placement.start);
        // Two profiles may have one name on a board that nobody here has seen.
        if !names.insert(name.clone()) {
            name = format!("{name}-{}", profile.id);
            if !names.insert(name.clone()) {
                continue;
            }
        }
        let known = all.last().filter(|last| last.profile.id == profile.id);
        let profile = known.map_or_else(|| Arc::new((*profile).clone()), |last| last.profile.clone());
        all.push(Candidate {
            name,
            consumes: consumption(&profile, *placement),
            profile,
            placement: *placement,
        });
    }
    all
}

fn consumption(profile: &Profile, placement: Placement) -> Vec<Counter> {
    let of_slices = slices(placement).map(|slice| Counter::new(&slice_name(slice), 1));
    let sizes = [
        Counter::new("compute-slices", compute_slices(profile)),
        Counter::new("memory", memory(profile)),
    ];
    of_slices.chain(sizes).chain(Counter::all(profile.engines)).collect()
}

fn slice_name(slice: u32) -> String {
    format!("memory-slice-{slice}")
}

/// The first hexadecimal digits of a GPU's UUID.
#[must_use]
pub fn short(gpu: &str) -> String {
    let digits = gpu.strip_prefix("GPU-").unwrap_or(gpu).chars();
    let digits = digits.filter(char::is_ascii_hexdigit).take(GPU_DIGITS);
    digits.collect::<String>().to_ascii_lowercase()
}

/// Returns the name of a GPU's counter set.
#[must_use]
pub fn counter_set(gpu: &str) -> String {
    format!("mig-{}", short(gpu))
}

/// Returns the name of a device. Kubernetes takes no dots and no plus signs in it, and a minus sign at the end of a profile
/// (`1g.24gb-me`: without media engines) must not look like a plus.
#[must_use]
pub fn device_name(gpu: &str, profile: &str, start: u32) -> String {
    let mut name = String::new();
    for letter in profile.chars() {
        match letter {
            '-' => name.push_str("-no-"),
            letter if letter.is_ascii_alphanumeric() => name.push(letter.to_ascii_lowercase()),
            _ => name.push('-'),
        }
    }
    format!("{CANDIDATE_PREFIX}{}-{name}-{start}", short(gpu))
}

#[cfg(test)]
#[path = "candidates_tests.rs"]
mod tests;

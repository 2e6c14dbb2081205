//! Counters and devices of a GPU's pool, beside the driver's rules written down a second time.

use super::*;
use crate::tables;
use proptest::prelude::*;
use std::collections::BTreeMap;

const GPU: &str = "GPU-3F8a1c20-1111-2222-3333-444455556666";

/// The driver's rules: disjoint memory slices, and no more engines than the whole GPU has.
#[derive(Clone, Default)]
struct Board {
    taken: BTreeSet<u32>,
    engines: [u32; 4],
    total: [u32; 4],
}

impl Board {
    fn of(profiles: &[Profile]) -> Self {
        let mut board = Self::default();
        for profile in profiles {
            for (total, engines) in board.total.iter_mut().zip(numbers(profile)) {
                *total = engines.max(*total);
            }
        }
        board
    }

    fn takes(&mut self, profile: &Profile, place: Placement) -> bool {
        let slices = place.start..place.start + place.size;
        let after: Vec<u32> = self.engines.iter().zip(numbers(profile)).map(|(a, b)| a + b).collect();
        let is_free = slices.clone().all(|slice| !self.taken.contains(&slice));
        let fits = is_free && after.iter().zip(self.total).all(|(after, total)| *after <= total);
        if fits {
            self.taken.extend(slices);
            self.engines.copy_from_slice(&after);
        }
        fits
    }
}

fn numbers(profile: &Profile) -> [u32; 4] {
    let of = profile.engines;
    [of.decoders, of.encoders, of.jpegs, of.ofas]
}

/// The allocator's rule: each counter has room for all that is taken from it.
struct Counters(BTreeMap<String, u64>);

impl Counters {
    fn of(pool: &Pool) -> Self {
        let named = pool
            .counters
            .iter()
            .map(|counter| (counter.name.clone(), counter.value));
        Self(named.collect())
    }

    fn takes(&mut self, candidate: &Candidate) -> bool {
        self.takes_all(&candidate.consumes)
    }

    fn takes_all(&mut self, consumes: &[Counter]) -> bool {
        let left = |counter: &Counter| self.0[&counter.name].checked_sub(counter.value);
        let after: Option<Vec<u64>> = consumes.iter().map(left).collect();
        let Some(after) = after else { return false };
        for (counter, value) in consumes.iter().zip(after) {
            *self.0.get_mut(&counter.name).expect("a counter") = value;
        }
        true
    }
}

fn place(profile: &Profile, placement: Placement) -> Place {
    Place {
        profile: profile.id,
        placement,
    }
}

fn names(pool: &Pool) -> Vec<&str> {
    pool.candidates.iter().map(|one| one.name.as_str()).collect()
}

fn start_pool(profiles: &[Profile]) -> Pool {
    Pool::new(GPU, profiles, &[], &[]).expect("a pool")
}

#[test]
fn small_instances_come_first_and_begin_at_the_last_place() {
    let pool = start_pool(&tables::h100());
    let short: Vec<&str> = names(&pool)
        .iter()
        .map(|name| &name["mig-of-3f8a1c20-".len()..])
        .collect();
    let expected = "1g-10gb-6 1g-10gb-5 1g-10gb-4 1g-10gb-3 1g-10gb-2 1g-10gb-1 1g-10gb-0 1g-10gb-me-6 1g-10gb-me-5 \
        1g-10gb-me-4 1g-10gb-me-3 1g-10gb-me-2 1g-10gb-me-1 1g-10gb-me-0 1g-20gb-6 1g-20gb-4 1g-20gb-2 1g-20gb-0 2g-20gb-4 \
        2g-20gb-2 2g-20gb-0 3g-40gb-4 3g-40gb-0 4g-40gb-0 7g-80gb-0";
    assert_eq!(short.join(" "), expected);
    let found = pool.find("mig-of-3f8a1c20-3g-40gb-4").expect("a candidate");
    assert_eq!(
        (found.profile.id, found.placement),
        (9, Placement { start: 4, size: 4 })
    );
    let consumes: Vec<String> = found
        .consumes
        .iter()
        .map(|one| format!("{}={}", one.name, one.value))
        .collect();
    let expected = "memory-slice-4=1 memory-slice-5=1 memory-slice-6=1 memory-slice-7=1 compute-slices=3 memory=42412802048 \
        jpeg=3 decoders=3";
    assert_eq!(consumes.join(" "), expected);
    let counters: Vec<String> = pool
        .counters
        .iter()
        .map(|one| format!("{}={}", one.name, one.value))
        .collect();
    let expected = "memory-slice-0=1 memory-slice-1=1 memory-slice-2=1 memory-slice-3=1 memory-slice-4=1 memory-slice-5=1 \
        memory-slice-6=1 memory-slice-7=1 compute-slices=7 memory=85094039552 ofa=1 jpeg=7 decoders=7";
    assert_eq!(
        (pool.counter_set.as_str(), counters.join(" ")),
        ("mig-3f8a1c20", expected.to_owned())
    );
}

#[test]
fn names_are_labels_and_tell_with_from_without() {
    let pool = start_pool(&tables::rtx_pro_6000());
    let names: BTreeSet<&str> = names(&pool).into_iter().collect();
    assert_eq!(names.len(), pool.candidates.len());
    for name in &names {
        let is_label = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        assert!(name.bytes().all(is_label) && name.len() <= 63, "{name}");
    }
    assert!(names.contains("mig-of-3f8a1c20-1g-24gb-no-me-9") && names.contains("mig-of-3f8a1c20-1g-24gb-me-all-9"));
    // Two profiles of one name.
    let mut twins = tables::a30();
    twins[1].name = twins[0].name.clone();
    let pool = start_pool(&twins);
    assert!(pool.find("mig-of-3f8a1c20-1g-6gb-3").is_some() && pool.find("mig-of-3f8a1c20-1g-6gb-3-21").is_some());
}

#[test]
fn eight_gpus_with_all_placements_are_within_the_servers_limits() {
    for profiles in tables::all() {
        let pools: Vec<Pool> = (0..8)
            .map(|gpu| Pool::new(&format!("GPU-{gpu}0000000-0"), &profiles, &[], &[]).expect("a pool"))
            .collect();
        let sets: BTreeSet<&str> = pools.iter().map(|pool| pool.counter_set.as_str()).collect();
        assert_eq!(sets.len(), 8);
        for pool in &pools {
            assert!(pool.counters.len() <= MOST_COUNTERS, "{}", pool.counters.len());
            assert!(
                pool.candidates.len() < MOST_DEVICES,
                "with the undivided GPU in one slice"
            );
            for candidate in &pool.candidates {
                let known = |one: &Counter| pool.counters.iter().any(|counter| counter.name == one.name);
                assert!(candidate.consumes.iter().all(known), "{}", candidate.name);
            }
        }
    }
    // More placements than a slice takes.
    let mut many = tables::rtx_pro_6000();
    for number in 0..20 {
        let profile = Profile {
            id: 100 + number,
            name: format!("1g.24gb+x{number}"),
            ..many[0].clone()
        };
        many.push(profile);
    }
    let pool = start_pool(&many);
    assert_eq!(pool.candidates.len(), 110);
    // More slices than a set has counters: no slice that the server would refuse.
    let mut long = tables::a30();
    long[0].placements.push(Placement { start: 26, size: 1 });
    let error = Pool::new(GPU, &long, &[], &[]).expect_err("refused").to_string();
    assert!(error.contains(GPU) && error.contains("memory slice 27"), "{error}");
    long[0].placements = vec![
        Placement {
            start: u32::MAX,
            size: 9,
        },
        Placement { start: 3, size: 0 },
    ];
    assert!(Pool::new(GPU, &long, &[], &[]).is_err());
}

#[test]
fn an_administrators_instance_closes_its_places_and_lowers_no_counter() {
    let profiles = tables::h100();
    let theirs = [place(&profiles[4], Placement { start: 4, size: 4 })];
    let pool = Pool::new(GPU, &profiles, &theirs, &[]).expect("a pool");
    let ends = pool
        .candidates
        .iter()
        .map(|one| one.placement.start + one.placement.size);
    assert_eq!(ends.max(), Some(4));
    assert_eq!(pool.counters, start_pool(&profiles).counters);
    // A claim's own device stays.
    let held = [Place {
        profile: 19,
        placement: Placement { start: 6, size: 1 },
    }];
    let both = Pool::new(GPU, &profiles, &theirs, &held).expect("a pool");
    assert!(both.find("mig-of-3f8a1c20-1g-10gb-6").is_some() && both.find("mig-of-3f8a1c20-1g-10gb-5").is_none());
    // The only OFA is the administrator's. A profile that nobody knows may have all engines.
    let media = [place(&profiles[1], Placement { start: 0, size: 1 })];
    let pool = Pool::new(GPU, &profiles, &media, &[]).expect("a pool");
    assert!(pool.candidates.iter().all(|one| one.profile.engines.ofas == 0) && !pool.candidates.is_empty());
    let unknown = [Place {
        profile: 999,
        ..media[0]
    }];
    let pool = Pool::new(GPU, &tables::a100(), &unknown, &[]).expect("a pool");
    let profiles: BTreeSet<&str> = pool.candidates.iter().map(|one| one.profile.name.as_str()).collect();
    assert_eq!(profiles.into_iter().collect::<Vec<_>>(), ["1g.10gb"]);
}

/// Profiles that no board has, on up to 12 slices: size, compute slices, memory, engines and starts of each.
fn invented() -> impl Strategy<Value = Vec<Profile>> {
    let starts = prop::collection::btree_set(0..12_u32, 1..5);
    let profile = (1..5_u32, 1..5_u32, 1..9_u64, prop::array::uniform4(0..3_u32), starts);
    prop::collection::vec(profile, 1..6).prop_map(|drawn| {
        let mut profiles = Vec::new();
        for (id, (size, compute_slices, memory_mib, engines, starts)) in (0..).zip(drawn) {
            let [decoders, encoders, jpegs, ofas] = engines;
            profiles.push(Profile {
                id,
                name: format!("{compute_slices}g.{id}gb"),
                compute_slices,
                memory_mib,
                engines: Engines {
                    decoders,
                    encoders,
                    jpegs,
                    ofas,
                },
                placements: starts.into_iter().map(|start| Placement { start, size }).collect(),
                ..Profile::default()
            });
        }
        profiles
    })
}

fn boards() -> impl Strategy<Value = Vec<Profile>> {
    prop_oneof![prop::sample::select(tables::all()), invented()]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn counters_allow_what_the_driver_allows_and_nothing_else(
        profiles in boards(),
        administrators in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        picks in prop::collection::vec(any::<prop::sample::Index>(), 1..25),
    ) {
        let mut board = Board::of(&profiles);
        let places: Vec<(Profile, Placement)> = profiles
            .iter()
            .flat_map(|profile| profile.placements.iter().map(|place| (profile.clone(), *place)))
            .collect();
        let mut theirs = Vec::new();
        for pick in administrators {
            let (profile, at) = pick.get(&places);
            if board.takes(profile, *at) {
                theirs.push(place(profile, *at));
            }
        }
        let pool = Pool::new(GPU, &profiles, &theirs, &[]).expect("a pool").with_undivided(GPU);
        let mut counters = Counters::of(&pool);
        let undivided = pool.undivided.clone().expect("offered").consumes;
        let mut taken: Vec<Placement> = theirs.iter().map(|one| one.placement).collect();
        // All that the driver would create at this moment is offered, and nothing else.
        for (profile, place) in &places {
            let is_offered = pool.candidates.iter().any(|one| (one.profile.id, one.placement) == (profile.id, *place));
            prop_assert_eq!(is_offered, board.clone().takes(profile, *place), "{} {:?}", profile.name, place);
        }
        for pick in picks {
            if pool.candidates.is_empty() {
                break;
            }
            let candidate = pick.get(&pool.candidates);
            let by_counters = counters.takes(candidate);
            let by_driver = board.takes(&candidate.profile, candidate.placement);
            // The undivided GPU excludes each instance, and is excluded by each.
            if by_counters {
                prop_assert!(!Counters(counters.0.clone()).takes_all(&undivided), "beside {}", candidate.name);
                let mut whole = Counters::of(&pool);
                if whole.takes_all(&undivided) {
                    prop_assert!(pool.candidates.iter().all(|one| !whole.takes(one)));
                }
                prop_assert!(taken.iter().all(|other| !overlap(*other, candidate.placement)), "{}", candidate.name);
                taken.push(candidate.placement);
            }
            // An administrator's instance is not in the counters, so that none is overdrawn.
            match theirs.is_empty() {
                true => prop_assert_eq!(by_counters, by_driver, "{}", candidate.name),
                false => prop_assert!(by_counters || !by_driver, "{}", candidate.name),
            }
            if by_counters != by_driver {
                break;
            }
        }
    }
}

//! No sequence of events makes a planner allocate a device twice, and every sequence comes to an end.
//!
//! A script of random numbers drives a simulated API server, kube-scheduler, kube-controller-manager, users, nodes, and
//! two replicas of the controller that are paused, killed and given stale data at any step. After every accepted write
//! the checker adds up each device. At the end the faults stop; then every pod that fits must be bound, and no hold may
//! be left.
//!
//! A failing script is shortened and printed with its seed. `VGPU_STORM_SECONDS` makes the test run longer,
//! `VGPU_STORM_SEED` starts elsewhere. Other tests break one rule at a time and see the checker notice; few scripts
//! need the fence, so it has a sequence of events made for it.

#[path = "storm/api.rs"]
mod api;
#[path = "storm/check.rs"]
mod check;
#[path = "storm/cluster.rs"]
mod cluster;
#[path = "storm/duel.rs"]
mod duel;
#[path = "storm/random.rs"]
mod random;
#[path = "storm/replica.rs"]
mod replica;
#[path = "storm/users.rs"]
mod users;
#[path = "storm/world.rs"]
mod world;

use std::time::{Duration, Instant};

use api::Sabotage;
use random::Random;

const STEPS: usize = 1_000;
const SCRIPTS: u64 = 150;
const SECONDS: u64 = 60;

fn script(seed: u64) -> Vec<u64> {
    let mut random = Random::new(seed);
    (0..STEPS).map(|_| random.next()).collect()
}

/// Shortens a script as long as it still fails, by removing smaller and smaller parts.
fn shrink(mut script: Vec<u64>, sabotage: Option<Sabotage>) -> Vec<u64> {
    let begin = Instant::now();
    let mut part = script.len() / 2;
    while part > 0 && begin.elapsed() < Duration::from_secs(60) {
        let mut at = 0;
        while at < script.len() {
            let mut less = script.clone();
            less.drain(at..(at + part).min(script.len()));
            match world::run(&less, sabotage) {
                Err(_) => script = less,
                Ok(_) => at += part,
            }
        }
        part /= 2;
    }
    script
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn nothing_is_given_twice_and_everything_ends() {
    let limit = Duration::from_secs(number("VGPU_STORM_SECONDS").unwrap_or(SECONDS));
    let longer = number("VGPU_STORM_SECONDS").is_some();
    let first = number("VGPU_STORM_SEED").unwrap_or(1);
    let begin = Instant::now();
    let mut allocations = 0;
    let mut scripts = 0;
    while begin.elapsed() < limit && (longer || scripts < SCRIPTS) {
        let seed = first + scripts;
        match world::run(&script(seed), None) {
            Ok(landed) => allocations += landed,
            Err(wrong) => {
                eprintln!("seed {seed}: {wrong}\nmaking it shorter");
                let short = shrink(script(seed), None);
                let still = world::run(&short, None).err().unwrap_or_default();
                panic!(
                    "seed {seed}: {wrong}\nshrunk to {} steps: {still}\n{short:?}",
                    short.len()
                );
            }
        }
        scripts += 1;
    }
    println!("{scripts} scripts, {allocations} allocations");
    if !longer && scripts < SCRIPTS {
        let cut = format!(
            "{SECONDS} s were over after {scripts} scripts; {} were cut",
            SCRIPTS - scripts
        );
        vgpu_skip::skip("nothing_is_given_twice_and_everything_ends", &cut);
    }
    assert!(
        allocations > 3 * scripts,
        "{allocations} allocations in {scripts} scripts: the test tests little"
    );
}

/// Scripts from a seed on, until one shows that a rule is broken.
fn until_noticed(sabotage: Sabotage, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        if let Err(wrong) = world::run(&script(seed), Some(sabotage)) {
            let by_sum = ["gives", "is held whole", "not its own"];
            assert!(by_sum.iter().any(|what| wrong.contains(what)), "{sabotage:?}: {wrong}");
            println!("{sabotage:?}: noticed with seed {seed}: {wrong}");
            return;
        }
    }
    panic!("{sabotage:?} is not noticed");
}

#[test]
fn a_leader_that_was_stopped_gives_nothing_twice() {
    assert_eq!(duel::fight(None, false), Ok(()));
    for sabotage in [Sabotage::Fence, Sabotage::Versions] {
        let wrong = duel::fight(Some(sabotage), false).expect_err("a broken rule shows");
        assert!(wrong.contains("gives 10 memory"), "{sabotage:?}: {wrong}");
    }
}

#[test]
fn a_user_who_changes_a_claim_before_each_mark_keeps_no_leader_from_leading() {
    assert_eq!(duel::fight(None, true), Ok(()));
    let wrong = duel::fight(Some(Sabotage::Versions), true).expect_err("a broken rule shows");
    assert!(wrong.contains("gives 10 memory"), "{wrong}");
}

#[test]
fn without_versions_it_shows() {
    until_noticed(Sabotage::Versions, 1..200);
}

#[test]
fn without_settling_it_shows() {
    until_noticed(Sabotage::Settling, 1..200);
}

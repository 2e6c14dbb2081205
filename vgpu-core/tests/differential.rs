//! Random calls through the library, compared after each with the software GPU's own account and with a simple model of
//! what must fit.
//!
//! A run is a seed, which each failure prints. `VGPU_SEED=N` repeats one, `VGPU_STEPS=N` cuts it after N steps (a
//! prefix fails in the same way), `VGPU_SECONDS=N` runs longer than the usual few seconds.

mod support;

use std::fmt::Write as _;
use std::time::{Duration, Instant};
use support::actor::{AHEAD, Actor, KINDS, Must, Random, step};
use support::{Bench, GRANULE, MIB, number};

const LIMIT: u64 = 96 << 20;
const PROFILE: &str = "memory = 1GiB\ncontext_cost = 4MiB\nmodule_cost = 2MiB\n";
const CLIENTS: usize = 2;

/// One run of at most `steps` calls. Returns how many it made.
fn run(seed: u64, steps: usize, end: Instant) -> usize {
    let bench = Bench::of_share(PROFILE, LIMIT);
    let mut truth = bench.caller(false);
    let mut actors: Vec<Actor> = (0..CLIENTS).map(|_| Actor::new(&bench)).collect();
    let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut story = String::new();
    let mut done = 0;
    while done < steps && Instant::now() < end {
        let who = random.below(CLIENTS as u64) as usize;
        let before = bench.usage("share").charged;
        let Some((line, code, must)) = step(&mut actors[who], &mut random, KINDS) else {
            continue;
        };
        done += 1;
        let _ = writeln!(story, "{done}: {who}: {line} = {code}");
        // A program's question about free memory makes the library see what a synchronisation changed.
        for actor in &mut actors {
            actor.caller.call("cuMemGetInfo_v2 >9010 >9011");
        }
        let (charged, looked) = (bench.usage("share").charged, truth.say("look 0"));
        let used = number(&looked, 0);
        let tail: Vec<&str> = story.lines().rev().take(12).collect();
        let context = || {
            format!(
                "VGPU_SEED={seed} VGPU_STEPS={done}, the last first:\n{}",
                tail.join("\n")
            )
        };
        assert!(charged <= LIMIT, "{charged} charged of {LIMIT}; {}", context());
        assert_eq!(charged, used, "charged, and used by the GPU's account; {}", context());
        match must {
            Must::Take(bytes) if before + bytes <= LIMIT => {
                assert_eq!(code, 0, "{bytes} bytes of {} free; {}", LIMIT - before, context());
            }
            // It may fit, because pools and graphs may free unused memory.
            Must::Take(_) => assert!(code == 0 || code == 2, "{}", context()),
            Must::Succeed => assert_eq!(code, 0, "{}", context()),
            Must::Anything => assert!(code == 0 || code == 1 || code == 2, "{}", context()),
        }
    }
    // All memory must be gone after the processes have ended.
    actors.into_iter().for_each(|actor| actor.caller.kill());
    assert_eq!(
        bench.free() + 4 * MIB,
        LIMIT,
        "VGPU_SEED={seed}: what was left is given back"
    );
    done
}

/// While several processes make random calls, neither the ledger nor the GPU ever shows more than the limit, and in the
/// end both are equal.
#[test]
fn at_no_instant_is_there_more_than_the_limit() {
    let bench = Bench::of_share("memory = 1GiB\n", LIMIT);
    let mut truth = bench.caller(false);
    let end = Instant::now() + Duration::from_secs(variable("VGPU_SECONDS").unwrap_or(5));
    std::thread::scope(|threads| {
        let run = |seed: u64| {
            let mut actor = Actor::new(&bench);
            let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
            let mut calls = 0;
            while Instant::now() < end {
                calls += u64::from(step(&mut actor, &mut random, AHEAD).is_some());
            }
            (actor, calls)
        };
        let actors: Vec<_> = (1..4).map(|seed| threads.spawn(move || run(seed))).collect();
        let mut looks = 0;
        while Instant::now() < end {
            let (charged, used) = (bench.usage("share").charged, truth.used(0));
            assert!(
                charged <= LIMIT && used <= LIMIT,
                "{charged} charged, {used} used of {LIMIT}"
            );
            looks += 1;
        }
        let mut ended: Vec<_> = actors
            .into_iter()
            .map(|actor| actor.join().expect("no failure"))
            .collect();
        for (actor, calls) in &mut ended {
            actor.caller.call("cuMemGetInfo_v2 >9010 >9011");
            assert!(*calls > 0, "no call was made");
        }
        assert!(looks > 0, "nobody looked");
        assert_eq!(bench.usage("share").charged, truth.used(0));
    });
}

#[test]
fn threads_that_share_granules_agree_with_the_gpu() {
    let bench = Bench::with_share(GRANULE * 200);
    let (mut client, mut truth) = (bench.caller(true), bench.caller(false));
    client.init();
    for round in 1..4 {
        let failed = client.call(&format!("storm {round} 20000"));
        assert_eq!(failed, 0, "round {round}");
        let (charged, used) = (bench.usage("share").charged, truth.used(0));
        assert_eq!(charged, used, "round {round}");
        assert!(used > 0, "round {round}: what the threads left is still there");
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")))
}

#[test]
fn charges_equal_the_gpus_own_account_whatever_is_called() {
    let steps = variable("VGPU_STEPS").map_or(usize::MAX, |steps| steps as usize);
    if let Some(seed) = variable("VGPU_SEED") {
        run(seed, steps, Instant::now() + Duration::from_secs(600));
        return;
    }
    let end = Instant::now() + Duration::from_secs(variable("VGPU_SECONDS").unwrap_or(15));
    let (mut seed, mut total) = (1, 0);
    while Instant::now() < end {
        total += run(seed, steps.min(1000), end);
        seed += 1;
    }
    println!("{total} calls in {} runs", seed - 1);
    assert!(total > 0, "no call was made");
}

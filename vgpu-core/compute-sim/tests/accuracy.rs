//! The goals of docs/compute-accuracy.md. The simulation has its own clock: the figures are the same on every machine.

use vgpu_compute_sim::figures::Error;
use vgpu_compute_sim::hardware::Hardware;
use vgpu_compute_sim::law::LawKind;
use vgpu_compute_sim::scenarios::adversaries::{adversaries, long_kernels_in_threads};
use vgpu_compute_sim::scenarios::alone;
use vgpu_compute_sim::scenarios::drawn::{GATE, PAIRS, drawn_pair};
use vgpu_compute_sim::scenarios::lengths::Mixture;
use vgpu_compute_sim::scenarios::others::{
    Unseen, best_effort, dead_holders, four_processes, low_beside_high, one_ignores, ranks, start_delay,
};
use vgpu_compute_sim::scenarios::parts::{Summary, cap, latencies, many, pairs};
use vgpu_compute_sim::scenarios::processes::{after_an_end, short};
use vgpu_compute_sim::scenarios::streams;
use vgpu_compute_sim::{MS, Ns, S, US};

const HARDWARE: LawKind = LawKind::Hardware;
const LIMITER: LawKind = LawKind::Limiter;

#[test]
fn a_capped_share_is_at_its_cap() {
    for (cores, kernel) in [(5, 5 * MS), (10, 500 * US), (30, 50 * US), (50, 5 * MS), (95, 500 * US)] {
        for is_waiting in [false, true] {
            let error = cap(LIMITER, cores, kernel, is_waiting);
            // A program that waits after each short kernel cannot catch up on the time that the events cost.
            let most = if is_waiting && kernel < 500 * US { 0.9 } else { 0.3 };
            assert!(
                error.mean <= most && error.worst() <= 1.0,
                "{cores} cores, {kernel} ns: {error:?}"
            );
        }
    }
}

/// A running kernel cannot be stopped: while a kernel of 500 ms runs, the share exceeds its cap of 10 %.
#[test]
fn a_cap_is_over_by_one_kernel_at_most() {
    let error = cap(LIMITER, 10, 500 * MS, true);
    assert!(error.above > 30.0 && error.above <= 50.0, "{error:?}");
    assert!(error.signed.abs() < 2.0, "the mean holds all the same: {error:?}");
}

#[test]
fn two_that_always_have_work_get_their_shares() {
    const WORST: f64 = 3.3;
    let mut errors = Vec::new();
    for pair in pairs().iter().filter(|pair| pair.in_goal) {
        for cores in [10, 30] {
            let [a, b] = pair.run(LIMITER, Hardware::default(), cores);
            let name = pair.name;
            assert!(
                a.worst() <= WORST && b.worst() <= WORST,
                "{name} at {cores}: {a:?} {b:?}"
            );
            assert!(a.use_percent + b.use_percent >= 96.9, "{name} at {cores}: {a:?} {b:?}");
            errors.push([a, b]);
        }
    }
    let mean = Summary::of(&errors).mean;
    assert!(mean <= 1.0, "mean error {mean:.2}");
}

/// Uses pairs that were not used for tuning, for less time than on the page, to take a third of the time.
#[test]
fn drawn_pairs_get_their_shares() {
    let pairs: Vec<[Error; 2]> = (0..PAIRS).map(|n| drawn_pair(LIMITER, GATE, n, 4 * S)).collect();
    let summary = Summary::of(&pairs);
    assert!(
        summary.mean <= 1.6 && summary.worst <= 7.5 && summary.used >= 97.0,
        "{summary:?}"
    );
}

/// Proves that the simulation notices unfairness: without turns, all shares get the same.
#[test]
fn the_hardware_alone_knows_no_shares() {
    let [a, b] = pairs()[1].run(HARDWARE, Hardware::default(), 10);
    assert!(a.mean > 30.0 && b.mean > 30.0, "{a:?} {b:?}");
}

#[test]
fn several_shares_are_equal_and_use_what_the_hardware_uses() {
    let hardware = many(HARDWARE, 8);
    let with = many(LIMITER, 8);
    assert!(with.jain > 0.99 && with.mean_error <= 1.0, "{with:?}");
    assert!(with.used >= hardware.used - 1.0, "{with:?} {hardware:?}");
}

#[test]
fn a_share_that_starts_has_its_part_soon() {
    for kernel in [500 * US, 50 * MS] {
        let delay = start_delay(LIMITER, kernel).expect("it never has its part");
        assert!(delay <= 100, "{kernel} ns: {delay} ms");
    }
}

#[test]
fn high_priority_waits_for_one_kernel_and_low_is_not_starved() {
    let (_, p99) = latencies(LIMITER, 7, true);
    assert!(p99 <= 5.5, "{p99} ms for 2 ms of work");
    let (low, wait) = low_beside_high(LIMITER);
    assert!(low >= 1.0 && wait <= 1100.0, "low priority: {low} %, waited {wait} ms");
}

#[test]
fn processes_of_a_share_have_one_account() {
    let used = four_processes(LIMITER);
    assert!((used[0] - used[1]).abs() < 5.0, "{used:?}");
}

#[test]
fn ranks_that_wait_for_each_other_are_not_slower_than_on_the_hardware_alone() {
    for crossed in [false, true] {
        let (without, with) = (ranks(HARDWARE, 2, crossed), ranks(LIMITER, 2, crossed));
        for (without, with) in without.iter().zip(&with) {
            assert!(*with >= 0.95 * without, "crossed {crossed}: {with}, hardware {without}");
        }
    }
}

/// Checks what the hardware alone guarantees, not the goal: shares that take turns are sliced together with a share
/// that takes none.
#[test]
fn who_ignores_the_limiter_gets_no_more_than_beside_one() {
    for (of, most) in [(Unseen::Flagged, 32.0), (Unseen::NotFlagged, 51.0)] {
        let used = one_ignores(LIMITER, of);
        assert!(used[3] <= most, "{used:?}");
    }
}

#[test]
fn a_dead_holder_costs_100_ms_at_most() {
    let wait = dead_holders(LIMITER);
    assert!(wait > 1.0 && wait <= 100.0, "{wait} ms");
}

#[test]
fn idle_time_goes_to_who_has_no_cores() {
    let (one, two) = best_effort(LIMITER);
    assert!((one[0] - 30.0).abs() < 2.0 && one[1] > 67.0, "{one:?}");
    let has_parts = (two[0] - 30.0).abs() < 2.0 && (two[1] - 70.0).abs() < 2.0;
    assert!(has_parts && two[2] > 0.0, "{two:?}");
}

/// A share that is alone needs no protection, so its only cost is the measurement: an event per millisecond.
#[test]
fn a_share_that_is_alone_is_as_fast_as_without_a_limiter() {
    for program in alone::all() {
        let got = program.run(LIMITER);
        assert!(got.kept >= 99.0 && got.events <= 1.05, "{}: {got:?}", program.name);
        let is_exact = got.charged_more.abs() <= 2.0;
        assert!(is_exact || program.is_bound_by_launches, "{}: {got:?}", program.name);
    }
}

#[test]
fn a_share_of_many_streams_has_its_part() {
    for count in [8, 64] {
        let used = streams::beside(LIMITER, count, 25);
        assert!(used[0] >= 65.0 && used[1] >= 29.0, "{count} streams: {used:?}");
    }
}

#[test]
fn launches_that_look_the_same_are_charged_by_what_they_took() {
    let mixture = Mixture {
        short: 5 * US,
        long: 5 * MS,
        rare: 100,
    };
    let used = mixture.beside(LIMITER, 8 * S);
    assert!(used[0] >= 27.0 && used[1] >= 67.0, "{used:?}");
}

/// Checks the least use in 20 s of a neighbour of 90 beside each adversary of 10, Balanced and Guaranteed.
#[test]
fn an_adversary_takes_no_more_than_what_cannot_be_stopped() {
    const LENGTH: Ns = 20 * S;
    let least = [
        ("kernels of 200 ms", 80.0, 90.0),
        ("one launch in 1,000 takes 200 ms", 80.0, 90.0),
        ("64 streams", 88.0, 87.0),
        ("40 processes, kernels of 1 ms", 88.0, 83.0),
        ("killed after each kernel of 300 ms", 85.0, 92.0),
    ];
    for (name, balanced, guaranteed) in least {
        let adversary = adversaries()
            .into_iter()
            .find(|adversary| adversary.name == name)
            .expect(name);
        for (is_guaranteed, least) in [(false, balanced), (true, guaranteed)] {
            let got = adversary.run(LIMITER, is_guaranteed, LENGTH);
            assert!(got.neighbour >= least, "{name}, guaranteed {is_guaranteed}: {got:?}");
        }
    }
}

#[test]
fn threads_with_long_kernels_are_one_share() {
    let (first, all) = long_kernels_in_threads(LIMITER, 10, 12 * S, 240 * S);
    assert!(first <= 25.0 && all <= 16.0, "{first} {all}");
}

#[test]
fn short_processes_are_one_share_and_leave_nothing_behind() {
    let short = short(LIMITER, 16);
    assert!((short.used - 10.0).abs() < 0.3 && short.beside[1] >= 80.0, "{short:?}");
    for normal in [true, false] {
        let wait = after_an_end(LIMITER, 10, normal);
        assert!(wait <= 0.1, "normal {normal}: {wait} s");
    }
}

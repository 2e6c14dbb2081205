//! The goals of docs/compute-accuracy.md. The simulation has its own clock: the figures are the same on every machine.

use vgpu_compute_sim::gpu::Hardware;
use vgpu_compute_sim::scenarios::{
    best_effort, bursts, cap, dead_holders, four_processes, low_beside_high, many, one_ignores, pairs, ranks,
    start_delay,
};
use vgpu_compute_sim::world::Law;
use vgpu_compute_sim::{MS, US};

#[test]
fn a_capped_share_is_at_its_cap() {
    for (cores, kernel) in [(5, 5 * MS), (10, 500 * US), (30, 50 * US), (50, 5 * MS), (95, 500 * US)] {
        for is_waiting in [false, true] {
            let error = cap(cores, kernel, is_waiting);
            assert!(
                error.mean <= 0.3,
                "{cores} cores, {kernel} ns: mean error {:.2}",
                error.mean
            );
            assert!(
                error.worst() <= 1.0,
                "{cores} cores, {kernel} ns: worst window {:.2}",
                error.worst()
            );
        }
    }
}

/// No kernel can be stopped: of one of 500 ms, nine tenths are over a cap of 10.
#[test]
fn a_cap_is_over_by_one_kernel_at_most() {
    let error = cap(10, 500 * MS, true);
    assert!(error.above > 30.0 && error.above <= 50.0, "{error:?}");
    assert!(
        (error.use_percent - 10.0).abs() < 2.0,
        "the mean holds all the same: {error:?}"
    );
}

#[test]
fn two_that_always_have_work_get_their_shares() {
    let mut errors = Vec::new();
    for pair in pairs().iter().filter(|pair| pair.in_goal) {
        for cores in [10, 30] {
            let [a, b] = pair.run(Law::Turns, Hardware::default(), cores);
            assert!(
                a.worst() <= 5.0 && b.worst() <= 5.0,
                "{} at {cores}: {a:?} {b:?}",
                pair.name
            );
            assert!(
                a.use_percent + b.use_percent >= 97.0,
                "{} at {cores}: {a:?} {b:?}",
                pair.name
            );
            errors.extend([a.mean, b.mean]);
        }
    }
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    assert!(mean <= 1.0, "mean error {mean:.2}");
}

/// What the simulation must be able to notice: without turns, everybody gets the same.
#[test]
fn the_hardware_alone_knows_no_shares() {
    let [a, b] = pairs()[1].run(Law::Hardware, Hardware::default(), 10);
    assert!(a.mean > 30.0 && b.mean > 30.0, "{a:?} {b:?}");
}

#[test]
fn several_shares_are_equal_and_use_what_the_hardware_uses() {
    let (turns, hardware) = (many(Law::Turns, 8), many(Law::Hardware, 8));
    assert!(turns.jain > 0.99 && turns.mean_error <= 1.0, "{turns:?}");
    assert!(turns.used >= hardware.used - 1.0, "{turns:?} {hardware:?}");
}

#[test]
fn a_share_that_starts_has_its_part_soon() {
    let delay = start_delay().expect("it never has its part");
    assert!(delay <= 100, "{delay} ms");
}

#[test]
fn high_priority_waits_for_one_kernel_and_low_is_not_starved() {
    let (_, p99) = bursts(Law::Turns, 7, true);
    assert!(p99 <= 7.0, "{p99} ms for 2 ms of work");
    let (low, wait) = low_beside_high();
    assert!(low >= 1.0 && wait <= 1100.0, "low priority: {low} %, waited {wait} ms");
}

#[test]
fn processes_of_a_share_have_one_account() {
    let used = four_processes(Law::Turns);
    assert!((used[0] - used[1]).abs() < 5.0, "{used:?}");
}

#[test]
fn ranks_that_wait_for_each_other_are_not_slower_than_on_the_hardware_alone() {
    for crossed in [false, true] {
        let (hardware, turns) = (ranks(Law::Hardware, 2, crossed), ranks(Law::Turns, 2, crossed));
        for (without, with) in hardware.iter().zip(&turns) {
            assert!(
                *with >= 0.95 * without,
                "crossed {crossed}: {turns:?}, hardware {hardware:?}"
            );
        }
    }
}

#[test]
fn who_ignores_the_limiter_gets_no_more_than_from_the_hardware() {
    let (hardware, turns) = (one_ignores(Law::Hardware), one_ignores(Law::Turns));
    assert!(turns[3] <= hardware[3] + 1.0, "{turns:?}, hardware {hardware:?}");
}

#[test]
fn a_dead_holder_costs_150_ms_at_most() {
    let wait = dead_holders();
    assert!(wait > 1.0 && wait <= 150.0, "{wait} ms");
}

#[test]
fn idle_time_goes_to_who_has_no_cores() {
    let (one, two) = best_effort();
    assert!((one[0] - 30.0).abs() < 2.0 && one[1] > 67.0, "{one:?}");
    assert!(
        (two[0] - 30.0).abs() < 2.0 && (two[1] - 70.0).abs() < 2.0 && two[2] > 0.0,
        "{two:?}"
    );
}

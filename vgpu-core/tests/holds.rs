//! Tests that the limit holds: libvgpu.so on top of the software GPU, with a client that knows of neither.

mod support;

use support::{Bench, GIB, GRANULE, number};
use vgpu_abi::ledger;

#[test]
fn the_limit_is_exact() {
    let bench = Bench::with_share(20 * GIB);
    let full = 20 * GIB;
    let shown = bench.run(&["init info allocfree info alloc:2MiB alloc:1 free:0 info infonull alloc:1 info"]);
    let expected = [
        "init 0".into(),
        format!("info 0 {full} {full}"),
        "allocfree 0".into(),
        format!("info 0 0 {full}"),
        "alloc 2".into(),
        "alloc 2".into(),
        "free 0".into(),
        format!("info 0 {full} {full}"),
        "infonull 0".into(),
        "alloc 0".into(),
        format!("info 0 {} {full}", full - GRANULE),
    ];
    assert_eq!(shown, expected);
    assert_eq!(
        bench.free(),
        full,
        "what a process leaves is given back at the next start"
    );
}

#[test]
fn two_processes_share_one_limit() {
    let bench = Bench::with_share(20 * GIB);
    let mut first = bench.serving(&["init", "alloc:12GiB"]);
    let shown = bench.run(&["init", "info", "alloc:9GiB", "alloc:8GiB", "alloc:2MiB", "info"]);
    assert_eq!(number(&shown[1], 2), 8 * GIB);
    assert_eq!(shown[2..5], ["alloc 2", "alloc 0", "alloc 2"]);
    assert_eq!(number(&shown[5], 2), 0);
    let usage = bench.usage("share");
    assert_eq!(usage.charged, 20 * GIB, "the second is dead and not yet looked for");
    assert_eq!(first.ask("free:0"), "0");
    assert_eq!(bench.free(), 20 * GIB);
    first.kill();
}

#[test]
fn neighbours_on_the_same_gpu_do_not_feel_each_other() {
    let bench = Bench::with_share(20 * GIB);
    let first = bench.serving(&["init", "allocfree"]);
    // Another share of the GPU, in a directory of its own.
    let other = Bench::on_gpu_of(&bench, 20 * GIB);
    let shown = other.run(&["init", "info", "allocfree"]);
    assert_eq!(number(&shown[1], 2), 20 * GIB, "{shown:?}");
    assert_eq!(shown[2], "allocfree 0");
    first.kill();
}

#[test]
#[allow(unsafe_code)]
fn a_stopped_neighbour_in_a_reap_costs_one_wait() {
    use std::os::fd::AsRawFd;
    let bench = Bench::with_share(GIB);
    let file = bench.open_ledger("share");
    // SAFETY: an all-zero flock is a value of its type.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_start = ledger::FIRST_LANE_AT as libc::off_t; // the reaper's lane
    lock.l_len = 1;
    // SAFETY: the command reads the flock that is given.
    let taken = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &mut lock) };
    assert_eq!(taken, 0);
    let mut client = bench.serving(&["init"]);
    let mut refusals = |count: u32| {
        let start = std::time::Instant::now();
        (0..count).for_each(|_| assert_eq!(client.ask("alloc:2GiB"), "2"));
        start.elapsed()
    };
    // Only the first waits. If all waited, twenty more would take twenty times as long.
    let (first, others) = (refusals(1), refusals(20));
    assert!(others < 10 * first, "{others:?} for 20, {first:?} for the first");
}

#[test]
fn threads_of_one_process_meet_and_end_even() {
    let bench = Bench::with_share(GIB);
    let shown = bench.run(&["init", "storm:20000", "info"]);
    assert_eq!(number(&shown[2], 2), GIB, "{shown:?}");
}

/// As on a GPU without shares: a program may take the memory of a child that ended.
#[test]
fn memory_of_an_ended_process_is_not_shown_as_used() {
    let bench = Bench::with_share(GIB);
    let mut looking = bench.serving(&["init"]);
    for _ in 0..3 {
        let holding = bench.serving(&["init", "alloc:512MiB"]);
        let free = |shown: String| shown.split(' ').nth(1).and_then(|bytes| bytes.parse::<u64>().ok());
        assert_eq!(free(looking.ask("info")), Some(GIB / 2));
        holding.kill();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(free(looking.ask("info")), Some(GIB));
    }
}

/// An allocation that does not fit is passed to the driver if it becomes a node of a graph. The capture must not have
/// ended when the driver gets it.
#[test]
fn a_capture_that_ends_beside_an_allocation_lets_nothing_through() {
    let bench = Bench::with_share(GIB);
    let shown = bench.run(&["init", "captures:2000"]);
    let (nodes, most) = (number(&shown[1], 1), number(&shown[1], 2));
    assert!(nodes > 0, "none was captured: {shown:?}");
    assert!(most <= GIB, "{most} bytes in the pool of a share of 1 GiB");
}

#[test]
fn a_pool_destroyed_in_use_is_charged_until_its_memory_is_freed() {
    let bench = Bench::with_share(GIB);
    let left = |line: &str| number(line, 2);
    let shown = bench.run(&[
        "init pool from:512MiB pooldestroy:0 info from:2MiB pooldestroy:0 alloc:1GiB freeasync:0",
        "info",
    ]);
    assert_eq!(shown[2..4], ["from 0", "pooldestroy 0"]);
    assert_eq!(left(&shown[4]), GIB / 2, "its memory is still in use");
    assert_eq!(
        shown[5..8],
        ["from 1", "pooldestroy 1", "alloc 2"],
        "for the program it is gone"
    );
    assert_eq!(shown[8], "freeasync 0 0");
    assert_eq!(left(&shown[9]), GIB);
    let round = ["pool", "from:600MiB", "pooldestroy:0", "freeasync:0"];
    let rounds: Vec<&str> = (0..4)
        .flat_map(|pool| {
            [
                round[0],
                round[1],
                ["pooldestroy:0", "pooldestroy:1", "pooldestroy:2", "pooldestroy:3"][pool],
                round[3],
            ]
        })
        .collect();
    let shown = bench.run(&[&["init"], &rounds[..], &["alloc:1GiB"]].concat());
    assert!(shown.iter().all(|line| line.ends_with(" 0")), "{shown:?}");
}

#[test]
fn a_destroyed_pool_is_no_longer_the_devices() {
    let bench = Bench::with_share(GIB);
    let shown = bench.run(&["init pool choose:0 async:256MiB pooldestroy:0 async:256MiB freeasync:0 freeasync:0 info"]);
    assert_eq!(shown[2..6], ["choose 0", "async 0", "pooldestroy 0", "async 0"]);
    assert_eq!(number(&shown[8], 2), GIB);
}

#[test]
fn an_array_is_charged_until_its_own_context_goes() {
    let bench = Bench::with_share(GIB);
    let shown =
        bench.run(&["init array:512MiB ctx array:256MiB info ctxdestroy:0 init info alloc:1GiB arrayfree:0 info"]);
    assert_eq!(shown[1..4], ["array 0", "ctx 0", "array 0"]);
    assert_eq!(number(&shown[4], 2), GIB / 4);
    assert_eq!(shown[5..7], ["ctxdestroy 0", "init 0"]);
    assert_eq!(
        number(&shown[7], 2),
        GIB / 2,
        "the other context's array went with it, this one stays"
    );
    assert_eq!(shown[8..10], ["alloc 2", "arrayfree 0"]);
    assert_eq!(number(&shown[10], 2), GIB);
    let shown = bench.run(&["init array:512MiB init primary info primary init info"]);
    assert_eq!(number(&shown[4], 2), GIB / 2, "retained once more: {shown:?}");
    assert_eq!(number(&shown[7], 2), GIB, "the primary context went: {shown:?}");
}

#[test]
fn a_context_reserve_comes_back_with_the_last_context() {
    for mode in ["own", "host", "none"] {
        let bench = Bench::with_profile(&format!("context_cost = 100MiB\nnvml_pids = {mode}\n"));
        bench.share_with(GIB, |limits| limits.context_reserve = Some(100 << 20));
        let shown = bench.run(&["init info ctx ctxdestroy:0 ctx ctxdestroy:0 ctx ctxdestroy:0 init info"]);
        let with_reserve = GIB - (100 << 20);
        assert_eq!(
            [number(&shown[1], 2), number(&shown[9], 2)],
            [with_reserve; 2],
            "{shown:?}"
        );
        let shown = bench.run(&["init", "primary", "memory", "ctx", "info"]);
        assert_eq!(number(&shown[2], 5), 0, "no context is left: {shown:?}");
        assert_eq!(number(&shown[4], 2), with_reserve);
    }
}

#[test]
fn a_lane_looks_dead_only_after_the_driver_let_go() {
    let bench = Bench::new();
    // Two shares, so that several files of the library are mapped.
    bench.share("first", 0, 0, GIB);
    bench.share("second", 1, 0, GIB);
    let client = bench.serving(&["init", "alloc:1GiB"]);
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", client.pid())).expect("maps");
    let start = |line: &str| u64::from_str_radix(line.split('-').next().unwrap_or_default(), 16).expect("an address");
    // The mapping that holds a lock has no other access rights.
    let (locks, others): (Vec<&str>, Vec<&str>) = maps
        .lines()
        .partition(|line| line.contains("---s") && line.ends_with("/ledger"));
    let highest = locks.iter().map(|line| start(line)).max().expect("locks");
    let lowest = others.iter().map(|line| start(line)).min().expect("mappings");
    assert!(
        locks.len() >= 2 && highest < lowest,
        "a file is released before what lies below it: {maps}"
    );
    client.kill();
}

#[test]
fn two_shares_of_one_gpu_are_one_gpu_with_their_sum() {
    let bench = Bench::new();
    bench.share("first", 0, 0, 3 * GIB);
    bench.share("second", 1, 0, 5 * GIB);
    let mut client = bench.serving(&["init"]);
    assert_eq!(number(&client.ask("devices"), 1), 1);
    assert_eq!(client.ask("info"), format!("0 {0} {0}", 8 * GIB));
    assert_eq!(client.ask("alloc:6GiB"), "0");
    assert_eq!(bench.usage("first").charged, 3 * GIB, "in share order");
    assert_eq!(bench.usage("second").charged, 3 * GIB);
    let answers = ["alloc:2GiB", "alloc:2MiB", "free:0", "info"].map(|step| client.ask(step));
    assert_eq!(answers[..3], ["0", "2", "0"]);
    assert_eq!(answers[3], format!("0 {} {}", 6 * GIB, 8 * GIB));
}

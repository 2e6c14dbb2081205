//! NVML's figures are those of the share: they never include a neighbour, and never exceed the GPU.

mod support;

use std::os::unix::fs::FileExt;
use std::time::Duration;
use support::serve::Serving;
use support::{Bench, GIB, lines, number, until};
use vgpu_abi::ledger;
use vgpu_abi::paths::LEDGER;

/// More than a minute of the software GPU's time.
const LONG: &str = "launch:80000";

/// The utilisation that a client sees, over a window of the last second or less.
fn busy(client: &mut Serving) -> u64 {
    let line = client.ask("rates");
    assert!(line.starts_with("0 "), "{line}");
    number(&line, 1)
}

/// Checks for the length of a window that the client sees no utilisation.
fn sees_nothing(client: &mut Serving) {
    for _ in 0..20 {
        assert_eq!(busy(client), 0);
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_neighbours_work_is_not_the_shares() {
    let bench = Bench::with_share(GIB);
    let mut neighbour = Serving::new(bench.bare(&["init", LONG, "serve"]));
    neighbour.did(&["init", LONG]);
    until(|| busy(&mut neighbour) > 50);
    let mut only_looks = bench.serving(&[]);
    sees_nothing(&mut only_looks);
    let mut own = bench.serving(&["init"]);
    sees_nothing(&mut own);
    assert_eq!(own.ask(LONG), "0");
    until(|| busy(&mut own) > 0);
    assert!(busy(&mut own) <= 100);
}

#[test]
fn the_shares_work_is_seen_by_all_of_it() {
    let bench = Bench::with_share(GIB);
    let _busy = bench.serving(&["init", LONG]);
    let mut monitor = bench.serving(&[]);
    until(|| busy(&mut monitor) > 50);
}

#[test]
fn hami_1181_no_figure_is_beyond_what_there_is() {
    let bench = Bench::with_share(GIB);
    let holding = bench.serving(&["init", "alloc:512MiB"]);
    let file = bench.open_ledger("share");
    for garbage in [u64::MAX, 1 << 44, GIB + 1] {
        file.write_all_at(&garbage.to_le_bytes(), ledger::CHARGED_AT as u64)
            .expect("damage");
        let shown = bench.client(&["init", "info", "memory"]).output().expect("a client");
        let shown = lines(&shown);
        assert_eq!(shown[1], format!("info 0 0 {GIB}"), "{garbage:#x}");
        assert_eq!(
            shown[2],
            format!("memory 0 1 {} {GIB} {GIB}", bench.gpu(0)),
            "{garbage:#x}"
        );
    }
    holding.kill();
}

#[test]
fn an_nvml_that_could_not_be_opened_is_opened_later() {
    let bench = Bench::with_share(GIB);
    let mut limits = bench.limits("share", 0, 0, GIB);
    let there = std::mem::replace(&mut limits.libnvidia_ml, bench.lib().join("late.so"));
    bench.put(&limits);
    let mut client = bench.serving(&["init"]);
    assert_eq!(client.ask("memory"), "13");
    std::os::unix::fs::symlink(there, &limits.libnvidia_ml).expect("a link");
    let memory = format!("0 1 {} {GIB} 0", bench.gpu(0));
    until(|| client.ask("memory") == memory);
}

#[test]
fn an_nvml_that_comes_while_a_context_is_made_is_not_opened_under_its_locks() {
    // Longer than the time between two attempts to open NVML.
    let bench = Bench::with_profile("context_cost = 64MiB\ncontext_time = 3s\n");
    let mut limits = bench.limits("share", 0, 0, GIB);
    const RESERVE: u64 = 256 << 20;
    limits.context_reserve = Some(RESERVE);
    let there = std::mem::replace(&mut limits.libnvidia_ml, bench.lib().join("late.so"));
    bench.put(&limits);
    let mut client = bench.serving(&[]);
    client.tell("init");
    // It is charged ahead, because the first attempt has failed.
    until(|| bench.usage("share").charged == RESERVE);
    std::os::unix::fs::symlink(there, &limits.libnvidia_ml).expect("a link");
    assert_eq!(client.line(), "init 0");
    assert!(!has_nvml(client.pid()));
    assert_eq!(bench.usage("share").charged, RESERVE);
    assert_eq!(client.ask("memory"), format!("0 1 {} {GIB} {}", bench.gpu(0), RESERVE));
    assert!(has_nvml(client.pid()));
}

/// Returns true if the process has the driver's NVML mapped.
fn has_nvml(pid: u32) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    assert!(maps.contains("soft-gpu/libcuda.so.1"), "{maps}");
    maps.contains("soft-gpu/libnvidia-ml.so.1")
}

#[test]
fn nvml_is_opened_by_who_needs_it_and_in_a_fork_child_too() {
    let bench = Bench::with_share(GIB);
    let mut client = bench.caller(true);
    client.ok("cuInit 0");
    // Looking up a function this way does not need NVML either.
    client.ok("cuGetProcAddress_v2 \"cuMemAlloc\" >1 12000 0 >2");
    assert!(!has_nvml(client.pid()));
    assert_eq!(client.used(0), 0);
    assert!(has_nvml(client.pid()));
    let memory = format!("memory 0 1 {} {GIB} 0", bench.gpu(0));
    let shown = bench.run(&["cuinit", "fork", "memory", "open:nvml", "memory"]);
    assert_eq!(shown.iter().filter(|line| **line == memory).count(), 4, "{shown:?}");
}

#[test]
fn an_nvml_that_cannot_be_opened_is_said_once_and_no_limit_hangs_on_it() {
    let bench = Bench::with_share(GIB);
    let mut limits = bench.limits("share", 0, 0, GIB);
    let steps = ["init", "alloc:1GiB", "alloc:2MiB", "info", "memory", "memory"];
    let mut run = |nvml: &std::path::Path| {
        limits.libnvidia_ml = nvml.to_owned();
        bench.put(&limits);
        let output = bench.client(&steps).output().expect("a client");
        let held = format!("init 0\nalloc 0\nalloc 2\ninfo 0 0 {GIB}\nmemory 13\nmemory 13\n");
        assert_eq!(String::from_utf8_lossy(&output.stdout), held, "{output:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    assert_eq!(run("/nowhere/libnvidia-ml.so.1".as_ref()), "");
    let said = run(&bench.directory("share").join(LEDGER));
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains("driver library") && said.contains("check the driver"),
        "{said}"
    );
}

/// As on a machine whose GPU has the system's memory.
#[test]
fn a_gpu_without_a_figure_of_its_memory_shows_the_shares() {
    let bench = Bench::with_profile("memory = 2GiB\nunified = 0\n");
    let bare = bench.bare(&["init", "memory"]).output().expect("a client");
    let (reserved, [one, other]) = (512 << 20, [0, 1].map(|index| bench.gpu(index)));
    let seen = format!("memory 0 2 {one} 0 0 {other} {} {reserved}", 2 * GIB + reserved);
    assert_eq!(lines(&bare)[1], seen, "nothing is written");
    bench.share("share", 0, 0, GIB);
    let mut client = bench.caller(true);
    client.init();
    client.ok("cuMemAlloc_v2 >1 512MiB");
    assert_eq!(client.used(0), GIB / 2, "by the second version");
    assert_eq!(client.call("cuMemAlloc_v2 >2 513MiB"), 2, "the limit holds");
    let shown = bench.run(&["init", "info", "memory"]);
    assert_eq!(shown[1], format!("info 0 {} {GIB}", GIB / 2));
    assert_eq!(shown[2], format!("memory 0 1 {} {GIB} {}", bench.gpu(0), GIB / 2));
    // The driver's figure of free memory lacks what the page cache would give back.
    let _other = {
        let mut other = Serving::new(bench.bare(&["init", "alloc:1408MiB", "serve"]));
        other.did(&["init", "alloc:1408MiB"]);
        other
    };
    assert_eq!(bench.run(&["init", "info"])[1], format!("info 0 {} {GIB}", GIB / 2));
}

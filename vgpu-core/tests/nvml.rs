//! NVML's figures are the share's: never a neighbour's, and never beyond what there is.

mod support;

use std::os::unix::fs::FileExt;
use std::time::Duration;
use support::serve::Serving;
use support::{Bench, GIB, lines, number};
use vgpu_abi::ledger;
use vgpu_abi::paths::LEDGER;

/// How busy a client with these steps sees the GPU, before and after a second of waiting.
fn rates(bench: &Bench, steps: &[&str]) -> u64 {
    let mut client = Serving::new(bench.client(&[steps, &["wait", "rates"]].concat()));
    for step in steps {
        let line = client.line();
        assert!(line.ends_with(" 0"), "{step}: {line}");
    }
    // The software GPU counts over a window.
    std::thread::sleep(Duration::from_millis(700));
    client.go_on();
    client.line();
    let line = client.line();
    assert!(line.starts_with("rates 0 "), "{line}");
    client.kill();
    number(&line, 2)
}

#[test]
fn a_neighbours_work_is_not_the_shares() {
    let bench = Bench::with_share(GIB);
    assert_eq!(rates(&bench, &[]), 0, "who only looks");
    let mut neighbour = Serving::new(bench.bare(&["init", "launch:30000", "wait"]));
    assert_eq!([neighbour.line(), neighbour.line()], ["init 0", "launch 0"]);
    std::thread::sleep(Duration::from_millis(700));
    let shown = lines(&bench.bare(&["rates"]).output().expect("a client"));
    assert!(number(&shown[0], 2) > 50, "the GPU is busy: {shown:?}");
    assert_eq!(rates(&bench, &["init"]), 0, "who has a context and does nothing");
    let own = rates(&bench, &["init", "launch:30000"]);
    assert!((1..=100).contains(&own), "{own}");
    neighbour.kill();
}

#[test]
fn the_shares_work_is_seen_by_all_of_it() {
    let bench = Bench::with_share(GIB);
    let mut busy = Serving::new(bench.client(&["init", "launch:30000", "wait"]));
    assert_eq!([busy.line(), busy.line()], ["init 0", "launch 0"]);
    assert!(rates(&bench, &[]) > 50, "a monitor in the container");
    busy.kill();
}

#[test]
fn hami_1181_no_figure_is_beyond_what_there_is() {
    let bench = Bench::with_share(GIB);
    let mut holding = Serving::new(bench.client(&["init", "alloc:512MiB", "wait"]));
    assert_eq!([holding.line(), holding.line()], ["init 0", "alloc 0"]);
    let path = bench.directory("share").join(LEDGER);
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("a ledger");
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

//! Processes that are dead and processes that only look dead (stopped, without a first thread, with a reused PID), and
//! the release of dead processes' memory.

use crate::support::alone::{alone, is_possible};
use crate::support::serve::Serving;
use crate::support::truth::Truth;
use crate::support::{Bench, GIB, MIB, number, until};
use std::time::Duration;

#[test]
fn a_process_whose_first_thread_ended_lives() {
    let bench = Bench::with_share(20 * GIB);
    let mut client = bench.serving(&["init", "alloc:5GiB", "leave"]);
    assert_eq!(bench.free(), 15 * GIB, "it is not taken for dead");
    assert_eq!(client.ask("alloc:15GiB"), "0");
    assert_eq!(client.ask("free:0"), "0");
    assert_eq!(bench.free(), 5 * GIB);
    drop(client);
    assert_eq!(bench.free(), 20 * GIB);
}

#[test]
fn a_stopped_process_is_not_dead() {
    let bench = Bench::with_share(20 * GIB);
    let mut client = bench.serving(&["init", "alloc:5GiB"]);
    client.stop();
    let shown = bench.run(&["init", "info", "alloc:16GiB", "alloc:15GiB"]);
    assert_eq!(number(&shown[1], 2), 15 * GIB);
    assert_eq!(shown[2..], ["alloc 2", "alloc 0"]);
    client.signal(libc::SIGCONT);
    assert_eq!(client.ask("alloc:15GiB"), "0");
    client.stop();
    client.signal(libc::SIGKILL);
    drop(client);
    assert_eq!(bench.free(), 20 * GIB);
}

#[test]
fn stopped_in_the_middle_of_a_storm_neighbours_go_on() {
    let bench = Bench::with_share(GIB);
    let mut truth = Truth::new(&bench);
    let mut neighbour = bench.serving(&["init"]);
    for _ in 0..20 {
        let storm = Serving::new(bench.client(&["init", "mixed:0"]));
        std::thread::sleep(Duration::from_millis(30));
        storm.stop();
        let (used, charged) = (truth.used(), bench.usage("share").charged);
        assert!(used <= charged && charged <= GIB, "{used} used, {charged} charged");
        let answer = neighbour.ask("alloc:2MiB");
        if answer == "0" {
            assert_eq!(neighbour.ask("free:0"), "0");
        } else {
            assert_eq!(
                (answer.as_str(), GIB - charged < 2 * MIB),
                ("2", true),
                "{charged} charged"
            );
        }
        drop(storm);
        assert_eq!(neighbour.ask("alloc:1GiB"), "0");
        assert_eq!(neighbour.ask("free:0"), "0");
    }
}

#[test]
fn a_long_stop_of_a_process_at_work_loses_no_charge() {
    let bench = Bench::with_share(8 * GIB);
    let storm = || {
        let steps = ["listen", "init", "mixed:0", "freekept", "info", "serve"];
        Serving::heard(bench.client(&steps))
    };
    let mut storms: Vec<Serving> = (0..6).map(|_| storm()).collect();
    for storm in &mut storms {
        assert_eq!([storm.line(), storm.line()], ["listen 0", "init 0"]);
    }
    // Longer than a thread waits for another thread's lane.
    storms.iter().for_each(|storm| storm.signal(libc::SIGSTOP));
    std::thread::sleep(Duration::from_millis(2500));
    storms.iter().for_each(|storm| storm.signal(libc::SIGCONT));
    std::thread::sleep(Duration::from_millis(100));
    storms.iter().for_each(|storm| storm.signal(libc::SIGUSR1));
    for storm in &mut storms {
        assert!(storm.line().starts_with("mixed "));
        assert!(storm.line().starts_with("freekept "));
        assert!(storm.line().starts_with("info 0 "));
    }
    // On a busy machine a thread may stay in a call for longer than a measurement waits. Too much is charged then until
    // a later call is measured (docs/charging.md), such as the creation and the end of a context.
    until(|| {
        for storm in &mut storms {
            assert_eq!([storm.ask("ctx"), storm.ask("ctxdestroy:0")], ["0", "0"]);
        }
        bench.usage("share").charged == 0
    });
    for storm in storms {
        assert_eq!(storm.said(), "");
    }
}

#[test]
fn two_processes_with_the_same_pid_are_two() {
    let bench = Bench::with_share(20 * GIB);
    if !is_possible(&bench, "two_processes_with_the_same_pid_are_two") {
        return;
    }
    let mut first = Serving::new(alone(&bench, &["init", "alloc:5GiB", "running", "serve"]));
    assert_eq!([first.line(), first.line()], ["init 0", "alloc 0"]);
    let own = format!("running 0 1 {0} smi 0 1 {0}", 5 * GIB);
    assert_eq!(first.line(), own, "PID 1 of its own");
    let mut second = Serving::new(alone(&bench, &["init", "alloc:5GiB", "running", "serve"]));
    assert_eq!([second.line(), second.line()], ["init 0", "alloc 0"]);
    assert_eq!(second.line(), own, "another's PID 1 is none of its own");
    assert_eq!(second.free(), 10 * GIB);
    let pids: Vec<u32> = bench
        .usage("share")
        .processes
        .iter()
        .map(|process| process.pid)
        .collect();
    assert_eq!(pids, [1, 1]);
    // It dies with its parent, unshare.
    drop(first);
    until(|| second.ask("alloc:15GiB") == "0");
    // A third PID 1, after a PID 1 that died.
    let mut third = Serving::new(alone(&bench, &["init", "info", "serve"]));
    assert_eq!(third.line(), "init 0");
    assert_eq!(number(&third.line(), 2), 0);
    assert_eq!(second.ask("free:0"), "0");
    assert_eq!(third.ask("alloc:5GiB"), "0");
}

#[test]
fn whoever_needs_it_gives_back_what_the_dead_held() {
    let bench = Bench::with_share(20 * GIB);
    let mut waiting = bench.serving(&["init"]);
    let leave = || {
        bench.death_with("20GiB");
        assert_eq!(bench.usage("share").charged, 20 * GIB, "nobody has looked");
    };
    leave();
    assert_eq!(waiting.ask("alloc:20GiB"), "0", "the next allocation that would fail");
    assert_eq!(waiting.ask("free:0"), "0");
    leave();
    assert_eq!(bench.free(), 20 * GIB, "the next start");
    leave();
    until(|| waiting.free() == 20 * GIB);
    leave();
    until(|| number(&waiting.ask("memory"), 4) == 0);
}

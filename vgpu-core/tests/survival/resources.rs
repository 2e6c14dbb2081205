//! Programs that close or forbid what the library needs: the library itself, descriptors, address space, system calls.
//! A process that starts without them is refused. A process that is already running keeps its account.

use crate::support::serve::Serving;
use crate::support::truth::Truth;
use crate::support::{Bench, GIB, lines, number};
use std::time::Duration;

#[test]
fn the_library_cannot_be_unloaded() {
    let bench = Bench::with_share(20 * GIB);
    let mut client = bench.serving(&["init", "alloc:5GiB"]);
    assert_eq!(client.ask("dlclose"), "0");
    assert_eq!(bench.free(), 15 * GIB, "the lane is still held");
    assert_eq!(client.ask("init"), "0", "the library is found again");
    assert_eq!(client.free(), 15 * GIB);
    assert_eq!(client.ask("alloc:16GiB"), "2");
    assert_eq!(client.ask("free:0"), "0");
    assert_eq!(client.free(), 20 * GIB);
}

#[test]
fn descriptors_closed_or_covered_are_none_of_ours() {
    let bench = Bench::with_share(20 * GIB);
    for how in ["closefrom", "cover"] {
        let mut client = bench.serving(&["init", "alloc:5GiB"]);
        client.ask(how);
        assert_eq!(bench.free(), 15 * GIB, "{how}: it is not taken for dead");
        bench.death_with("15GiB");
        assert_eq!(client.ask("alloc:15GiB"), "0", "{how}: it reaps");
        drop(client);
        assert_eq!(bench.free(), 20 * GIB, "{how}");
    }
}

#[test]
fn a_program_that_closes_descriptors_all_the_time_is_not_taken_for_dead() {
    let bench = Bench::with_share(GIB);
    let mut truth = Truth::new(&bench);
    // No contexts are created during this, because the software GPU's NVML, which measures them, stops working.
    let steps = ["listen", "init", "closing", "plain:0", "info", "serve"];
    let mut clients: Vec<Serving> = (0..3).map(|_| Serving::new(bench.client(&steps))).collect();
    for client in &mut clients {
        let begun = [client.line(), client.line(), client.line()];
        assert_eq!(begun, ["listen 0", "init 0", "closing 0"]);
    }
    for _ in 0..100 {
        let (used, charged) = (truth.used(), bench.usage("share").charged);
        assert!(used <= GIB && charged <= GIB, "{used} used, {charged} charged");
        std::thread::sleep(Duration::from_millis(10));
    }
    clients.iter().for_each(|client| client.signal(libc::SIGUSR1));
    for client in &mut clients {
        assert!(client.line().starts_with("plain "));
        assert!(client.line().starts_with("info 0 "));
    }
    let usage = bench.usage("share");
    assert_eq!(usage.charged, truth.used(), "{usage:?}");
    drop(clients);
    assert_eq!(bench.free(), GIB);
}

#[test]
fn without_descriptors_a_start_is_refused_and_a_running_program_goes_on() {
    let bench = Bench::with_share(20 * GIB);
    let output = bench
        .client(&["open:cuda", "fill:0", "cuinit"])
        .output()
        .expect("a client");
    let shown = lines(&output);
    assert_eq!(shown[2], "cuinit 800", "{output:?}");
    let said = String::from_utf8(output.stderr).expect("text");
    assert!(
        said.contains("Too many open files") && said.lines().count() == 1,
        "{said}"
    );
    // Four free descriptors are enough, as docs/charging.md says.
    let starts = |left: u32| {
        let mut client = bench.client(&["open:cuda", &format!("fill:{left}"), "init", "alloc:2MiB"]);
        let shown = lines(&client.output().expect("a client"));
        shown.get(3).is_some_and(|line| line == "alloc 0")
    };
    assert!(!starts(2) && starts(4));
    // A running process keeps its account. It cannot check for dead processes, but others do.
    let mut client = bench.serving(&["init", "alloc:5GiB"]);
    client.ask("fill:0");
    bench.death_with("15GiB");
    assert_eq!(
        client.ask("alloc:10GiB"),
        "2",
        "what is dead cannot be told without a descriptor"
    );
    assert_eq!(bench.free(), 15 * GIB, "the next start tells");
    assert_eq!(client.ask("alloc:10GiB"), "0");
    assert_eq!(client.ask("free:0"), "0");
    // With one free descriptor it can check for dead processes.
    drop(client);
    let mut client = bench.serving(&["init", "alloc:5GiB"]);
    client.ask("fill:1");
    bench.death_with("15GiB");
    assert_eq!(client.ask("alloc:10GiB"), "0");
}

#[test]
fn without_address_space_a_start_is_refused_and_nothing_is_lost() {
    let bench = Bench::with_share(20 * GIB);
    let mut refused = 0;
    for more in ["0", "64KiB", "256KiB", "1MiB", "4MiB", "64MiB", "1GiB"] {
        let space = format!("space:{more}");
        let output = bench
            .client(&["open:cuda", &space, "cuinit"])
            .output()
            .expect("a client");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match lines(&output).get(2).map(String::as_str) {
            Some("cuinit 0") => assert!(said.is_empty(), "{more}: {said}"),
            Some(_) => refused += 1,
            // Without memory, the program or the driver may be unable to print anything.
            None => assert!(!output.status.success(), "{more}: {output:?}"),
        }
        assert_eq!(bench.free(), 20 * GIB, "{more}");
    }
    assert!(refused > 0, "no limit was tight enough");
}

#[test]
fn system_calls_that_a_filter_denies_refuse_or_do_without() {
    let bench = Bench::with_share(20 * GIB);
    let denied = [
        ("sched_yield,clock_nanosleep,getrandom,rt_sigprocmask", "0"),
        ("statx", "0"),
        ("madvise", "800"),
        ("fcntl", "800"),
        // The lock seems to succeed but has no effect, so two processes could have the same lane.
        ("fcntl=0", "800"),
        ("pread64", "800"),
    ];
    for (calls, answer) in denied {
        let deny = format!("deny:{calls}");
        let output = bench
            .client(&["open:cuda", &deny, "cuinit"])
            .output()
            .expect("a client");
        let shown = lines(&output);
        assert_eq!(
            shown[1..],
            ["deny 0".into(), format!("cuinit {answer}")],
            "{calls}: {output:?}"
        );
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(said.lines().count(), usize::from(answer != "0"), "{calls}: {said}");
    }
    // A program that restricts itself after its start.
    for (calls, _) in denied {
        let deny = format!("deny:{calls}");
        let shown = bench.run(&["init alloc:5GiB", &deny, "alloc:20GiB alloc:1GiB free:0 info"]);
        let first = shown[3..6].to_vec();
        assert_eq!(first, ["alloc 2", "alloc 0", "free 0"], "{calls}");
        assert_eq!(number(&shown[6], 2), 19 * GIB, "{calls}");
    }
    assert_eq!(bench.free(), 20 * GIB);
}

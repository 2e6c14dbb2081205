//! What a program may do to itself and to its children, and the account stays whole: nothing hangs, the
//! living keep what they hold, and what the dead held is there for the next who needs it or looks.

mod support;

use std::time::{Duration, Instant};
use support::serve::{HangGuard, Serving, Truth};
use support::{Bench, GIB, lines, number};
use vgpu_abi::ledger::LANES;
use vgpu_core::ledger::{OpenError, Share};

const MIB: u64 = 1 << 20;

fn guard(what: &'static str) -> HangGuard {
    HangGuard::new(what, Duration::from_secs(300))
}

/// A client that did `steps`, and goes on as it is told.
fn after(bench: &Bench, steps: &[&str]) -> Serving {
    let mut client = Serving::new(bench.client(&[steps, &["serve"]].concat()));
    client.did(steps);
    client
}

// === fork, clone, exec ===

#[test]
fn fork_children_by_any_call_count_for_themselves() {
    let _guard = guard("fork children");
    let bench = Bench::with_share(20 * GIB);
    for how in ["fork", "rawclone", "clonefiles"] {
        let shown = bench.run(&["open:cuda", how, "init", "alloc:5GiB", "info"]);
        let info = format!("info 0 {} {}", 15 * GIB, 20 * GIB);
        let parent = format!("{how} parent 0");
        let child = format!("{how} child");
        let expected = [&child, "init 0", "alloc 0", &info, &parent, "init 0", "alloc 0", &info];
        assert_eq!(shown[1..], expected, "{how}");
        // Forked after the parent's cuInit: whatever the driver says, the parent's account is its own.
        let shown = bench.run(&["init", "alloc:5GiB", how, "alloc:1GiB", "info"]);
        let at = shown
            .iter()
            .position(|line| *line == parent)
            .expect("the child ended by itself");
        assert_eq!(shown[at + 1], "alloc 0", "{how}");
        assert_eq!(number(&shown[at + 2], 2), 14 * GIB, "{how}: {shown:?}");
    }
    assert_eq!(bench.free(), 20 * GIB);
}

#[test]
fn a_child_that_outlives_its_parent_keeps_its_own_and_not_the_parents() {
    let _guard = guard("an orphan");
    let bench = Bench::with_share(20 * GIB);
    let mut client = Serving::new(bench.client(&["open:cuda", "orphan", "init", "alloc:5GiB", "serve"]));
    assert_eq!(client.line(), "open 0");
    assert_eq!(
        [client.line(), client.line(), client.line()],
        ["orphan child", "init 0", "alloc 0"]
    );
    assert_eq!(bench.free(), 15 * GIB);
    assert_eq!(client.ask("alloc:15GiB"), "0");
    assert_eq!(client.ask("alloc:2MiB"), "2");
    drop(client); // closes its stdin, which ends it
    until_free(&bench, 20 * GIB);
    // The parent holds memory when it ends.
    let mut client = Serving::new(bench.client(&["init", "alloc:5GiB", "orphan", "serve"]));
    assert_eq!(
        [client.line(), client.line(), client.line()],
        ["init 0", "alloc 0", "orphan child"]
    );
    until_free(&bench, 20 * GIB);
    drop(client);
}

/// Whoever looks finds `bytes` free, soon.
fn until_free(bench: &Bench, bytes: u64) {
    let end = Instant::now() + Duration::from_secs(60);
    while bench.free() != bytes {
        assert!(Instant::now() < end, "{} free", bench.free());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
#[allow(unsafe_code)]
fn children_that_sleep_on_keep_nothing_of_a_dead_parent() {
    let _guard = guard("sleepers");
    let bench = Bench::with_share(20 * GIB);
    for how in ["sleeper", "rawsleeper"] {
        let mut client = after(&bench, &["init", "alloc:5GiB"]);
        let sleeper: libc::pid_t = client.ask(how).parse().expect("a PID");
        assert_eq!(client.free(), 15 * GIB, "{how}");
        drop(client);
        let left = bench.free();
        // SAFETY: the child's child, which only waits for this.
        let killed = unsafe { libc::kill(sleeper, libc::SIGKILL) };
        assert_eq!(killed, 0, "{how}: it lived until here");
        assert_eq!(left, 20 * GIB, "{how}");
    }
}

#[test]
fn a_process_with_threads_forks_and_spawns() {
    let _guard = guard("forks of a process with threads");
    let bench = Bench::with_share(GIB);
    let mut client = after(&bench, &["init", "background"]);
    assert_eq!(client.ask("forks:60"), "0", "children that a signal ended");
    assert_eq!(client.ask("spawns:60"), "0");
    drop(client);
    assert_eq!(bench.free(), GIB);
    // Before its own cuInit: its children use the GPU.
    let mut client = after(&bench, &["open:cuda"]);
    assert_eq!(client.ask("forks:20"), "0");
    assert_eq!(client.ask("init"), "0");
    assert_eq!(client.free(), GIB);
}

#[test]
fn an_exec_keeps_the_pid_and_gives_all_lanes_back() {
    let _guard = guard("exec");
    let bench = Bench::with_share(20 * GIB);
    // Threads that meet have taken more than one lane.
    let steps = ["init", "storm:3000", "alloc:20GiB", "exec:init,info,alloc:20GiB,serve"];
    let mut client = Serving::new(bench.client(&steps));
    let first = [client.line(), client.line(), client.line()];
    assert_eq!([&first[0], &first[2]], ["init 0", "alloc 0"]);
    assert_eq!(client.line(), "init 0");
    assert_eq!(client.line(), format!("info 0 {0} {0}", 20 * GIB));
    assert_eq!(client.line(), "alloc 0");
    let usage = bench.usage("share");
    let held: Vec<_> = usage.processes.iter().filter(|process| process.charged > 0).collect();
    assert_eq!(held.len(), 1, "{usage:?}");
    assert_eq!(held[0].pid, client.pid());
}

// === threads ===

#[test]
fn threads_come_and_go_without_using_lanes_up() {
    let _guard = guard("threads that end");
    let bench = Bench::with_share(8 * GIB);
    let mut client = after(&bench, &["init"]);
    assert_eq!(client.ask("churn:600"), "0", "8 GiB are enough for 32 at a time");
    assert_eq!(client.free(), 8 * GIB);
    let usage = bench.usage("share");
    assert_eq!(usage.processes.len(), 1, "{usage:?}");
    drop(client);
    assert_eq!(bench.free(), 8 * GIB);
}

#[test]
fn a_cancelled_thread_ends_after_its_call() {
    let _guard = guard("a cancelled thread");
    let bench = Bench::with_share(GIB);
    let mut client = after(&bench, &["init", "alloc:512MiB"]);
    // A neighbour's death makes the refusal look for the dead, with system calls.
    let output = bench.client(&["init", "alloc:256MiB", "kill"]).output();
    assert_eq!(lines(&output.expect("a client")), ["init 0", "alloc 0"]);
    assert_eq!(client.ask("cancel:1GiB"), "2");
    assert_eq!(client.ask("cancel:512MiB"), "0");
    assert_eq!(client.ask("alloc:2MiB"), "2");
    assert_eq!(client.ask("free:0"), "0");
    assert_eq!(client.free(), GIB / 2);
}

#[test]
fn a_process_whose_first_thread_ended_lives() {
    let _guard = guard("a process without its first thread");
    let bench = Bench::with_share(20 * GIB);
    let mut client = after(&bench, &["init", "alloc:5GiB", "leave"]);
    assert_eq!(bench.free(), 15 * GIB, "it is not taken for dead");
    assert_eq!(client.ask("alloc:15GiB"), "0");
    assert_eq!(client.ask("free:0"), "0");
    assert_eq!(bench.free(), 5 * GIB);
    drop(client);
    assert_eq!(bench.free(), 20 * GIB);
}

#[test]
fn when_no_lane_is_free_the_next_process_is_refused_until_one_ends() {
    let _guard = guard("a crowd");
    let bench = Bench::with_share(GIB);
    let limits = bench.limits("share", 0, 0, GIB);
    let open = || {
        let mark = vgpu_abi::ledger::share_mark(&limits.share, &limits.gpu);
        Share::open(&bench.ledger("share"), mark, GIB)
    };
    let most = LANES - 1;
    let mut crowd: Vec<Share> = (0..most).map(|_| open().expect("a lane")).collect();
    let held: Vec<_> = crowd.iter().map(|share| share.reserve(MIB)).collect();
    assert_eq!(held.iter().filter(|charge| charge.is_ok()).count(), most);
    let refused = open().expect_err("no lane is left");
    assert!(matches!(refused, OpenError::Lane(_)), "{refused}");
    assert!(refused.to_string().contains("1014 processes"), "{refused}");
    let said = bench.refusal();
    assert!(said.contains("every lane is taken"), "{said}");
    // One goes, with what it held.
    drop(crowd.pop());
    let new = open().expect("the lane of the one that went");
    assert_eq!(new.charged(), (most as u64 - 1) * MIB);
    drop((crowd, new));
    assert_eq!(bench.free(), GIB);
}

// === what a program does to itself ===

#[test]
fn the_library_cannot_be_unloaded() {
    let _guard = guard("dlclose");
    let bench = Bench::with_share(20 * GIB);
    let mut client = after(&bench, &["init", "alloc:5GiB"]);
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
    let _guard = guard("descriptors");
    let bench = Bench::with_share(20 * GIB);
    for how in ["closefrom", "cover"] {
        let mut client = after(&bench, &["init", "alloc:5GiB"]);
        client.ask(how);
        assert_eq!(bench.free(), 15 * GIB, "{how}: it is not taken for dead");
        let output = bench.client(&["init", "alloc:15GiB", "kill"]).output();
        assert_eq!(lines(&output.expect("a client")), ["init 0", "alloc 0"]);
        assert_eq!(client.ask("alloc:15GiB"), "0", "{how}: it reaps");
        drop(client);
        assert_eq!(bench.free(), 20 * GIB, "{how}");
    }
}

#[test]
fn a_program_that_closes_descriptors_all_the_time_is_not_taken_for_dead() {
    let _guard = guard("closing");
    let bench = Bench::with_share(GIB);
    let mut truth = Truth::new(&bench);
    // No contexts meanwhile: the software GPU's NVML, by which they are measured, does not survive this.
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
    let _guard = guard("no descriptors");
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
    // One that runs keeps its account; it cannot look for the dead, others do.
    let mut client = after(&bench, &["init", "alloc:5GiB"]);
    client.ask("fill:0");
    let output = bench.client(&["init", "alloc:15GiB", "kill"]).output();
    assert_eq!(lines(&output.expect("a client")), ["init 0", "alloc 0"]);
    assert_eq!(
        client.ask("alloc:10GiB"),
        "2",
        "what is dead cannot be told without a descriptor"
    );
    assert_eq!(bench.free(), 15 * GIB, "the next start tells");
    assert_eq!(client.ask("alloc:10GiB"), "0");
    assert_eq!(client.ask("free:0"), "0");
    // With one descriptor left it can.
    drop(client);
    let mut client = after(&bench, &["init", "alloc:5GiB"]);
    client.ask("fill:1");
    let output = bench.client(&["init", "alloc:15GiB", "kill"]).output();
    assert_eq!(lines(&output.expect("a client")), ["init 0", "alloc 0"]);
    assert_eq!(client.ask("alloc:10GiB"), "0");
}

#[test]
fn without_address_space_a_start_is_refused_and_nothing_is_lost() {
    let _guard = guard("no address space");
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
            // The program or the driver itself may not be able to say anything without memory.
            None => assert!(!output.status.success(), "{more}: {output:?}"),
        }
        assert_eq!(bench.free(), 20 * GIB, "{more}");
    }
    assert!(refused > 0, "no limit was tight enough");
}

#[test]
fn system_calls_that_a_filter_denies_refuse_or_do_without() {
    let _guard = guard("seccomp");
    let bench = Bench::with_share(20 * GIB);
    let denied = [
        ("sched_yield,clock_nanosleep,getrandom,rt_sigprocmask", "0"),
        ("statx", "0"),
        ("madvise", "800"),
        ("fcntl", "800"),
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
    // A program that confines itself after its start.
    for (calls, _) in denied {
        let deny = format!("deny:{calls}");
        let shown = bench.run(&[
            "init",
            "alloc:5GiB",
            &deny,
            "alloc:20GiB",
            "alloc:1GiB",
            "free:0",
            "info",
        ]);
        let first = shown[3..6].to_vec();
        assert_eq!(first, ["alloc 2", "alloc 0", "free 0"], "{calls}");
        assert_eq!(number(&shown[6], 2), 19 * GIB, "{calls}");
    }
    assert_eq!(bench.free(), 20 * GIB);
}

#[test]
fn a_stopped_process_is_not_dead() {
    let _guard = guard("a stopped process");
    let bench = Bench::with_share(20 * GIB);
    let mut client = after(&bench, &["init", "alloc:5GiB"]);
    client.signal(libc::SIGSTOP);
    let shown = bench.run(&["init", "info", "alloc:16GiB", "alloc:15GiB"]);
    assert_eq!(number(&shown[1], 2), 15 * GIB);
    assert_eq!(shown[2..], ["alloc 2", "alloc 0"]);
    client.signal(libc::SIGCONT);
    assert_eq!(client.ask("alloc:15GiB"), "0");
    client.signal(libc::SIGSTOP);
    client.signal(libc::SIGKILL);
    drop(client);
    assert_eq!(bench.free(), 20 * GIB);
}

#[test]
fn stopped_in_the_middle_of_a_storm_neighbours_go_on() {
    let _guard = guard("processes stopped anywhere");
    let bench = Bench::with_share(GIB);
    let mut truth = Truth::new(&bench);
    let mut neighbour = after(&bench, &["init"]);
    for _ in 0..20 {
        let storm = Serving::new(bench.client(&["init", "mixed:0"]));
        std::thread::sleep(Duration::from_millis(30));
        storm.signal(libc::SIGSTOP);
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
    let _guard = guard("a long stop");
    let bench = Bench::with_share(8 * GIB);
    let storm = || {
        let steps = ["listen", "init", "mixed:0", "freekept", "info", "serve"];
        Serving::heard(bench.client(&steps))
    };
    let mut storms: Vec<Serving> = (0..6).map(|_| storm()).collect();
    for storm in &mut storms {
        assert_eq!([storm.line(), storm.line()], ["listen 0", "init 0"]);
    }
    // Longer than a thread waits for another's lane.
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
    assert_eq!(bench.usage("share").charged, 0, "all live, and hold nothing");
    for storm in storms {
        assert_eq!(storm.said(), "");
    }
}

// === PIDs ===

#[test]
fn two_processes_with_the_same_pid_are_two() {
    let _guard = guard("PID namespaces");
    let bench = Bench::with_share(20 * GIB);
    let alone = |steps: &[&str]| {
        let inner = bench.client(steps);
        let mut command = std::process::Command::new("unshare");
        command
            .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
            .arg(inner.get_program());
        command.args(inner.get_args());
        inner.get_envs().for_each(|(name, value)| match value {
            Some(value) => drop(command.env(name, value)),
            None => drop(command.env_remove(name)),
        });
        command
    };
    match alone(&["getenv:HOME"]).output() {
        Ok(output) if output.status.success() => {}
        other => {
            return vgpu_skip::skip(
                "two_processes_with_the_same_pid_are_two",
                &format!("unshare: {other:?}"),
            );
        }
    }
    let mut first = Serving::new(alone(&["init", "alloc:5GiB", "running", "serve"]));
    assert_eq!([first.line(), first.line()], ["init 0", "alloc 0"]);
    let own = format!("running 0 1 {0} smi 0 1 {0}", 5 * GIB);
    assert_eq!(first.line(), own, "PID 1 of its own");
    let mut second = Serving::new(alone(&["init", "alloc:5GiB", "running", "serve"]));
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
    // Its death, by its unshare's.
    drop(first);
    until(|| second.ask("alloc:15GiB") == "0");
    // A third PID 1, after a PID 1 that died.
    let mut third = Serving::new(alone(&["init", "info", "serve"]));
    assert_eq!(third.line(), "init 0");
    assert_eq!(number(&third.line(), 2), 0);
    assert_eq!(second.ask("free:0"), "0");
    assert_eq!(third.ask("alloc:5GiB"), "0");
}

fn until(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(20));
    }
}

// === who gives back ===

#[test]
fn whoever_needs_it_gives_back_what_the_dead_held() {
    let _guard = guard("giving back");
    let bench = Bench::with_share(20 * GIB);
    let mut waiting = after(&bench, &["init"]);
    let leave = || {
        let output = bench.client(&["init", "alloc:20GiB", "kill"]).output();
        assert_eq!(lines(&output.expect("a client")), ["init 0", "alloc 0"]);
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

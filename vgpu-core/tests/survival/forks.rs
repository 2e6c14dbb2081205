//! Children that are created by any call, and exec: each process has its own account, and the memory of a dead parent
//! can be used again.

use crate::support::serve::Serving;
use crate::support::{Bench, GIB, number, until};

#[test]
fn fork_children_by_any_call_count_for_themselves() {
    let bench = Bench::with_share(20 * GIB);
    for how in ["fork", "rawclone", "clonefiles"] {
        let shown = bench.run(&["open:cuda", how, "init", "alloc:5GiB", "info"]);
        let info = format!("info 0 {} {}", 15 * GIB, 20 * GIB);
        let parent = format!("{how} parent 0");
        let child = format!("{how} child");
        let expected = [&child, "init 0", "alloc 0", &info, &parent, "init 0", "alloc 0", &info];
        assert_eq!(shown[1..], expected, "{how}");
        // Forked after the parent's cuInit: whatever the child's driver call returns, the parent's account does not
        // change.
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
    drop(client); // closes its stdin, which ends the orphan
    until(|| bench.free() == 20 * GIB);
    // The parent holds memory when it ends.
    let mut client = Serving::new(bench.client(&["init", "alloc:5GiB", "orphan", "serve"]));
    assert_eq!(
        [client.line(), client.line(), client.line()],
        ["init 0", "alloc 0", "orphan child"]
    );
    until(|| bench.free() == 20 * GIB);
    drop(client);
}

#[test]
#[allow(unsafe_code)]
fn children_that_sleep_on_keep_nothing_of_a_dead_parent() {
    let bench = Bench::with_share(20 * GIB);
    for how in ["sleeper", "rawsleeper"] {
        let mut client = bench.serving(&["init", "alloc:5GiB"]);
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
    let bench = Bench::with_share(GIB);
    let mut client = bench.serving(&["init", "background"]);
    assert_eq!(client.ask("forks:60"), "0", "children that a signal ended");
    assert_eq!(client.ask("spawns:60"), "0");
    drop(client);
    assert_eq!(bench.free(), GIB);
    // Before the parent's cuInit, its children can use the GPU.
    let mut client = bench.serving(&["open:cuda"]);
    assert_eq!(client.ask("forks:20"), "0");
    assert_eq!(client.ask("init"), "0");
    assert_eq!(client.free(), GIB);
}

#[test]
fn an_exec_keeps_the_pid_and_gives_all_lanes_back() {
    let bench = Bench::with_share(20 * GIB);
    // Threads that contend have taken more than one lane.
    let steps = ["init", "storm:3000", "alloc:20GiB", "exec:init,info,alloc:20GiB,serve"];
    let mut client = Serving::new(bench.client(&steps));
    let first = [client.line(), client.line(), client.line()];
    assert_eq!([&first[0], &first[2]], ["init 0", "alloc 0"]);
    client.did(&["init"]);
    assert_eq!(client.line(), format!("info 0 {0} {0}", 20 * GIB));
    assert_eq!(client.line(), "alloc 0");
    let usage = bench.usage("share");
    let held: Vec<_> = usage.processes.iter().filter(|process| process.charged > 0).collect();
    assert_eq!(held.len(), 1, "{usage:?}");
    assert_eq!(held[0].pid, client.pid());
}

//! Calls that fail with out of memory are recorded in the ledger for the node: their number, who refused, and the last
//! one.

mod support;

use support::serve::Serving;
use support::{Bench, GIB, MIB};
use vgpu_abi::ledger::refusal::{Cause, Refusals};

fn refusals(bench: &Bench) -> Refusals {
    bench.usage("share").refusals
}

#[test]
fn every_family_of_calls_that_is_refused_at_the_limit_is_counted_with_its_size() {
    let bench = Bench::with_profile("context_cost = 100MiB\n");
    bench.share("share", 0, 0, GIB);
    let mut client = bench.serving(&["init", "alloc:200MiB"]);
    assert_eq!(refusals(&bench), Refusals::default(), "nothing was refused");
    let calls = ["alloc", "async", "managed", "create", "array", "heap"];
    for (count, call) in (1..).zip(calls) {
        let answer = client.ask(&format!("{call}:{}MiB", 1000 + 2 * count));
        assert_eq!(answer, "2", "{call}");
        let found = refusals(&bench);
        assert_eq!((found.by_limit, found.by_driver), (count, 0), "{call}");
        let last = found.last.expect("written");
        let asked = last.asked.expect("known");
        assert!(asked.abs_diff((1000 + 2 * count) * MIB) <= 16 * MIB, "{call}: {asked}");
        assert_eq!((last.number, last.cause, last.pid), (count, Cause::Limit, client.pid()));
    }
    let last = refusals(&bench).last.expect("written");
    assert_eq!(last.name(), "gpu-client");
    assert_eq!((last.charged, last.overhead), (300 * MIB, Some(100 * MIB)));
    assert_eq!((last.users[0].pid, last.users[0].mib), (client.pid(), 300));
    assert!(last.gpu_free.is_some_and(|free| free > 70 * GIB), "{last:?}");
    // Calls that succeed, or that fail for another reason, are not recorded as refusals.
    assert_eq!([client.ask("alloc:2MiB"), client.ask("free:1")], ["0", "0"]);
    assert_ne!(client.ask("freeunknown"), "2");
    assert_eq!(refusals(&bench).count(), calls.len() as u64);
    assert_eq!(bench.usage("share").peak, 302 * MIB);
}

#[test]
fn a_full_gpu_is_told_apart_from_a_full_share() {
    let bench = Bench::with_share(4 * GIB);
    let mut stranger = Serving::new(bench.bare(&["init", "alloc:79GiB", "serve"]));
    stranger.did(&["init", "alloc:79GiB"]);
    let mut client = bench.serving(&["init"]);
    for (count, call) in (1..).zip(["alloc", "async", "create", "array"]) {
        assert_eq!(client.ask(&format!("{call}:2GiB")), "2", "{call}");
        let found = refusals(&bench);
        assert_eq!((found.by_limit, found.by_driver), (0, count), "{call}");
        let last = found.last.expect("written");
        assert_eq!((last.cause, last.asked), (Cause::Driver, Some(2 * GIB)), "{call}");
        assert!(last.gpu_free.is_some_and(|free| free <= GIB), "{last:?}");
    }
    assert_eq!(client.ask("alloc:5GiB"), "2");
    assert_eq!(refusals(&bench).last.map(|last| last.cause), Some(Cause::Limit));
    stranger.kill();
}

#[test]
fn what_goes_on_in_host_memory_was_not_refused() {
    let bench = Bench::new();
    bench.share_with(GIB, |limits| limits.host_memory = 2 * GIB);
    let mut client = bench.serving(&["init", "alloc:1GiB"]);
    for call in ["alloc", "async", "managed", "create"] {
        assert_eq!(client.ask(&format!("{call}:256MiB")), "0", "{call}");
    }
    assert_eq!(refusals(&bench).count(), 0);
    assert_eq!(client.ask("alloc:3GiB"), "2");
    assert_eq!(refusals(&bench).by_limit, 1);
}

#[test]
fn refusals_of_several_processes_are_all_counted_and_outlive_them() {
    const EACH: usize = 50;
    let bench = Bench::with_share(GIB);
    let steps = [&["init"][..], &["alloc:2GiB"; EACH]].concat();
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| assert_eq!(bench.run(&steps).last().map(String::as_str), Some("alloc 2")));
        }
    });
    let mut probing = bench.serving(&["init", "alloc:512MiB"]);
    assert_eq!(probing.ask("alloc:768MiB"), "2");
    let pid = probing.pid();
    probing.kill();
    let found = refusals(&bench);
    assert_eq!((found.by_limit, found.largest), (4 * EACH as u64 + 1, 2 * GIB));
    let last = found.last.expect("whole");
    assert_eq!((last.pid, last.asked, last.charged), (pid, Some(768 * MIB), 512 * MIB));
    assert_eq!((last.users[0].pid, last.users[0].mib), (pid, 512));
    assert_eq!(bench.usage("share").peak, 512 * MIB);
}

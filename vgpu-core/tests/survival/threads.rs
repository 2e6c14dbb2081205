//! A process claims a lane for each thread that contends with another one. Lanes are released again, and a process
//! never claims more lanes than exist.

use crate::support::{Bench, GIB, MIB};
use vgpu_abi::ledger::{LANES, share_checksum};
use vgpu_core::ledger::{OpenError, Share};

#[test]
fn threads_come_and_go_without_using_lanes_up() {
    let bench = Bench::with_share(8 * GIB);
    let mut client = bench.serving(&["init"]);
    assert_eq!(client.ask("churn:600"), "0", "8 GiB are enough for 32 at a time");
    assert_eq!(client.free(), 8 * GIB);
    let usage = bench.usage("share");
    assert_eq!(usage.processes.len(), 1, "{usage:?}");
    drop(client);
    assert_eq!(bench.free(), 8 * GIB);
}

#[test]
fn a_cancelled_thread_ends_after_its_call() {
    let bench = Bench::with_share(GIB);
    let mut client = bench.serving(&["init", "alloc:512MiB"]);
    // A neighbour has died, so the refused call checks for dead processes, with system calls.
    bench.death_with("256MiB");
    assert_eq!(client.ask("cancel:1GiB"), "2");
    assert_eq!(client.ask("cancel:512MiB"), "0");
    assert_eq!(client.ask("cancel:0"), "0", "a context, which is measured by NVML");
    assert_eq!(client.ask("alloc:2MiB"), "2");
    assert_eq!(client.ask("free:0"), "0");
    assert_eq!(client.free(), GIB / 2);
}

#[test]
fn when_no_lane_is_free_the_next_process_is_refused_until_one_ends() {
    let bench = Bench::with_share(GIB);
    let limits = bench.limits("share", 0, 0, GIB);
    let open = || {
        let checksum = share_checksum(&limits.share, &limits.gpu);
        Share::open(&bench.ledger("share"), checksum, GIB)
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
    // One process ends while it holds memory.
    drop(crowd.pop());
    let new = open().expect("the lane of the one that went");
    assert_eq!(new.charged(), (most as u64 - 1) * MIB);
    drop((crowd, new));
    assert_eq!(bench.free(), GIB);
}

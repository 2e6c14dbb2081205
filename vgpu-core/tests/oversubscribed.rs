//! memoryPolicy Oversubscribe: allocations that exceed the share's device memory use host memory, up to its limit, and
//! both parts are charged.

mod support;

use support::serve::Serving;
use support::{Bench, GIB, MIB, lines, number};

/// A share of 2 GiB on the first GPU, extended by 3 GiB of host memory.
fn extended() -> Bench {
    let bench = Bench::new();
    bench.share_with(2 * GIB, |limits| limits.host_memory = 3 * GIB);
    bench
}

fn parts(bench: &Bench) -> (u64, u64) {
    let usage = bench.usage("share");
    (usage.charged, usage.host)
}

/// Bytes that the bare GPU says are in use.
fn truth(bench: &Bench) -> u64 {
    let shown = lines(&bench.bare(&["memory"]).output().expect("a client"));
    number(&shown[0], 5)
}

#[test]
fn what_does_not_fit_goes_on_in_host_memory_up_to_its_bound() {
    let bench = extended();
    let idle = truth(&bench);
    let mut client = bench.serving(&["init"]);
    let info = |free: u64| format!("0 {} {}", free * GIB, 5 * GIB);
    assert_eq!(client.ask("info"), info(5), "both parts are there to be had");
    assert_eq!([client.ask("alloc:1GiB"), client.ask("alloc:1GiB")], ["0", "0"]);
    assert_eq!(client.ask("info"), info(3));
    assert_eq!(client.ask("alloc:2GiB"), "0");
    assert_eq!(parts(&bench), (2 * GIB, 2 * GIB));
    assert_eq!(truth(&bench) - idle, 2 * GIB, "the GPU has the device part and no more");
    assert_eq!(client.ask("info"), info(1));
    assert_eq!([client.ask("alloc:1GiB"), client.ask("alloc:2MiB")], ["0", "2"]);
    assert_eq!(client.ask("info"), info(0));
    let seen = format!("0 1 {} {1} {1}", bench.gpu(0), 5 * GIB);
    assert_eq!(client.ask("memory"), seen);
    assert_eq!(parts(&bench), (2 * GIB, 3 * GIB));
    assert_eq!(client.ask("free:2"), "0");
    assert_eq!(client.free(), 2 * GIB, "host memory is given back to its own part");
    assert_eq!(client.ask("free:0"), "0");
    assert_eq!(client.free(), 3 * GIB);
    assert_eq!(parts(&bench), (GIB, GIB));
    client.kill();
    assert_eq!(bench.free(), 5 * GIB, "the dead hold neither part");
    assert_eq!(parts(&bench), (0, 0));
}

#[test]
fn an_allocation_is_whole_in_one_part() {
    let bench = extended();
    let shown = bench.run(&["init", "alloc:1GiB", "alloc:2GiB", "alloc:1GiB", "alloc:4GiB", "info"]);
    assert_eq!(shown[1..5], ["alloc 0", "alloc 0", "alloc 0", "alloc 2"]);
    assert_eq!(number(&shown[5], 2), GIB);
    assert_eq!(parts(&bench), (2 * GIB, 2 * GIB));
}

#[test]
fn memory_of_every_kind_but_arrays_goes_on_there_too() {
    let bench = extended();
    let shown = bench.run(&["init alloc:2GiB managed:1GiB pitch:1GiB async:2MiB create:2MiB array:2MiB"]);
    assert_eq!(shown[1..4], ["alloc 0", "managed 0", "pitch 0 1024"]);
    assert_eq!(shown[4..], ["async 0", "create 0", "array 2"]);
    assert_eq!(parts(&bench), (2 * GIB, 2 * GIB + 4 * MIB));
    let shown = bench.run(&["init", "managed:1GiB", "managed:4MiB", "free:0", "free:0", "info"]);
    assert!(shown[..5].iter().all(|line| line.ends_with(" 0")), "{shown:?}");
    assert_eq!(number(&shown[5], 2), 5 * GIB);
}

#[test]
fn a_hard_share_has_no_host_memory() {
    let bench = Bench::with_share(2 * GIB);
    let shown = bench.run(&["init", "alloc:2GiB", "alloc:2MiB", "managed:2MiB", "info"]);
    assert_eq!(shown[1..4], ["alloc 0", "alloc 2", "managed 2"]);
    assert_eq!(bench.usage("share").host, 0);
}

#[test]
fn the_host_part_of_a_context_goes_with_it() {
    let bench = extended();
    let shown = bench.run(&["init ctx alloc:2GiB alloc:1GiB ctxdestroy:0 init info"]);
    assert_eq!(shown[2..5], ["alloc 0", "alloc 0", "ctxdestroy 0"]);
    assert_eq!(number(&shown[6], 2), 5 * GIB, "{shown:?}");
}

#[test]
fn a_gpu_that_others_have_filled_is_no_reason_to_fail() {
    let bench = extended();
    let mut neighbour = Serving::new(bench.bare(&["init", "allocfree", "wait"]));
    assert_eq!([neighbour.line(), neighbour.line()], ["init 0", "allocfree 0"]);
    let shown = bench.run(&["init", "info", "alloc:1GiB", "info"]);
    assert_eq!(
        shown[1],
        format!("info 0 {} {}", 3 * GIB, 5 * GIB),
        "what the GPU lacks is not free"
    );
    assert_eq!(shown[2], "alloc 0");
    assert_eq!(parts(&bench), (0, GIB));
    neighbour.kill();
}

#[test]
fn the_parts_of_several_shares_add_up() {
    let bench = Bench::new();
    for (order, share, host) in [(0, "first", 0), (1, "second", GIB), (2, "third", 2 * GIB)] {
        let mut limits = bench.limits(share, order, 0, GIB);
        limits.host_memory = host;
        bench.put(&limits);
    }
    let mut client = bench.serving(&["init"]);
    assert_eq!(client.ask("info"), format!("0 {0} {0}", 6 * GIB));
    assert_eq!([client.ask("alloc:3GiB"), client.ask("alloc:2GiB")], ["0", "0"]);
    let parts =
        ["first", "second", "third"].map(|share| (bench.usage(share).charged / GIB, bench.usage(share).host / GIB));
    assert_eq!(parts, [(1, 0), (1, 1), (1, 1)]);
    assert_eq!([client.ask("alloc:2GiB"), client.ask("alloc:1GiB")], ["2", "0"]);
}

#[test]
fn a_storm_of_kills_leaves_both_parts_exact() {
    let bench = Bench::new();
    bench.share_with(GIB, |limits| limits.host_memory = GIB);
    for round in 0..8 {
        let clients: Vec<_> = (0..3)
            .map(|_| Serving::new(bench.client(&["init", "storm:0"])))
            .collect();
        for _ in 0..10 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            let (device, host) = parts(&bench);
            assert!(device <= GIB && host <= GIB, "round {round}: {device} and {host}");
        }
        clients.into_iter().for_each(Serving::kill);
    }
    let shown = bench.run(&["init", "info", "alloc:1GiB", "alloc:1GiB", "alloc:2MiB"]);
    assert_eq!(number(&shown[1], 2), 2 * GIB);
    assert_eq!(shown[2..], ["alloc 0", "alloc 0", "alloc 2"]);
}

#[test]
fn a_ledger_without_its_second_half_is_refused() {
    let bench = extended();
    let path = bench.directory("share").join(vgpu_abi::paths::LEDGER);
    let whole = std::fs::read(&path).expect("a ledger");
    std::fs::write(&path, &whole[..whole.len() / 2]).expect("a ledger");
    assert!(bench.refusal().contains("share/ledger"));
    let mut damaged = whole.clone();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    std::fs::write(&path, damaged).expect("a ledger");
    assert!(bench.refusal().contains("not written to its end"));
}

/// Like PyTorch's expandable segments: handles of device and host memory, mapped one after the other.
#[test]
fn handles_go_on_in_host_memory_and_are_used_as_the_others() {
    let bench = extended();
    let idle = truth(&bench);
    let mut one = bench.caller(true);
    one.init();
    // Exportable, and reachable by RDMA.
    let asked = "[0x100000001,1,0,0x100]";
    one.ok("cuMemAddressReserve >1 5GiB 0 0 0");
    one.ok(&format!("cuMemCreate >2 2GiB {asked} 0"));
    one.ok(&format!("cuMemCreate >3 1GiB {asked} 0"));
    assert_eq!(parts(&bench), (2 * GIB, GIB));
    assert_eq!(truth(&bench) - idle, 2 * GIB);
    one.ok("cuMemMap @1 2GiB 0 @2 0");
    let behind = one.get(1) + 2 * GIB;
    one.ok(&format!("set 4 {behind}"));
    one.ok("cuMemMap @4 512MiB 0 @3 0");
    one.ok("cuMemSetAccess @1 2684354560 [1,3] 1");
    // A write across the border of the two mappings, whose end is read in the second one.
    one.ok(&format!("cuMemsetD8_v2 {} 7 8", behind - 4));
    one.ok(&format!("cuMemcpyDtoH_v2 >5 {behind} 4"));
    assert_eq!(one.get(5), 0x0707_0707);
    // The properties show the requested device and kinds of handles, but no RDMA for host memory.
    one.ok("cuMemGetAllocationPropertiesFromHandle >6 @3");
    assert!(one.say("raw 6").starts_with(&format!("{} 1 0 0 ", 0x1_0000_0001_u64)));
    one.ok("cuMemGetAllocationPropertiesFromHandle >6 @2");
    assert!(one.say("raw 6").starts_with(&format!("{} 1 0 256 ", 0x1_0000_0001_u64)));
    // Such memory cannot be exported, by handle or by address, because an importer could not be charged.
    assert_eq!(one.say("cuMemExportToShareableHandle >7 @3 1 0"), "801");
    assert_eq!(one.say("cuMemGetHandleForAddressRange >7 @4 512MiB 1 0"), "801");
    one.ok("cuMemRelease @3");
    assert_eq!(parts(&bench), (2 * GIB, GIB), "mapped still");
    one.ok("cuMemUnmap @4 512MiB");
    assert_eq!(parts(&bench), (2 * GIB, 0));
    one.ok("cuMemCreate >3 1GiB [1,1,0,0] 0");
    one.ok("cuMemRetainAllocationHandle >9 @1");
    one.ok("cuMemRelease @9");
    one.ok("cuMemMap @4 1GiB 0 @3 0");
    one.ok("cuMemRelease @3");
    assert_eq!(parts(&bench), (2 * GIB, GIB));
    one.ok("cuMemRetainAllocationHandle >9 @4");
    one.ok("cuMemUnmap @4 1GiB");
    assert_eq!(parts(&bench), (2 * GIB, GIB));
    one.ok("cuMemRelease @9");
    assert_eq!(parts(&bench), (2 * GIB, 0));
    assert_eq!(one.call("cuMemCreate >3 4GiB [1,1,0,0] 0"), 2, "it ends somewhere");
}

#[test]
fn handles_stay_on_the_device_where_host_memory_would_not_do() {
    for (profile, properties) in [
        // Compressed memory, and memory for the tiles of sparse arrays.
        ("", "[1,1,0,1]"),
        ("", "[1,1,0,0x10000]"),
        // The driver does not know such memory, or refuses it.
        ("fail.cuDeviceGetAttribute = 1 after 0 every 1\n", "[1,1,0,0]"),
        ("fail.cuMemCreate = 2 after 0 every 1\n", "[1,1,0,0]"),
    ] {
        let bench = Bench::with_profile(profile);
        bench.share_with(GIB, |limits| limits.host_memory = 3 * GIB);
        let mut one = bench.caller(true);
        one.init();
        assert_eq!(
            one.call(&format!("cuMemCreate >3 2GiB {properties} 0")),
            2,
            "{profile} {properties}"
        );
        assert_eq!(parts(&bench), (0, 0));
    }
}

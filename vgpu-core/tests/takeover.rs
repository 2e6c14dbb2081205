//! Memory that several processes of one share hold is charged once, as long as any of them holds it, whichever process
//! exported it, frees it or dies. The charge is compared with the software GPU's own account where possible: that
//! account counts shared memory once, for its exporter, but unlike a real GPU it ends the memory with the exporter.

mod support;

use support::alone::{alone, is_possible};
use support::caller::Caller;
use support::serve::Serving;
use support::watched::Watched;
use support::{Bench, GIB, GRANULE, MIB};

/// Another process of the share, with the IPC handle of the first one's pointer `slot` in slot 2.
fn importer(one: &mut Watched, slot: u32) -> Caller {
    one.ok(&format!("cuIpcGetMemHandle >2 @{slot}"));
    let words = one.client.say("raw 2");
    let mut other = one.bench.caller(true);
    other.init();
    other.say(&format!("put 2 {words}"));
    other
}

#[test]
fn what_both_have_is_charged_once_and_passes_to_who_is_left() {
    // A share that has no room for a second charge.
    let mut one = Watched::new("", 96 * MIB);
    one.call("cuMemAlloc_v2 >1 64MiB", 0, 64 * MIB);
    let mut other = importer(&mut one, 1);
    one.same();
    other.ok("cuIpcOpenMemHandle_v2 >3 >2");
    assert_eq!(one.same(), 64 * MIB);
    other.ok("cuIpcOpenMemHandle_v2 >4 >2");
    assert_eq!(one.same(), 64 * MIB, "once more");
    other.ok("cuIpcCloseMemHandle @3");
    assert_eq!(one.same(), 64 * MIB, "it was opened twice");
    other.ok("cuIpcCloseMemHandle @3");
    assert_eq!(one.same(), 64 * MIB, "its maker has it");
    other.ok("cuIpcOpenMemHandle_v2 >3 >2");
    let pid = other.pid();
    let bench = one.kill();
    assert_eq!(bench.free(), 32 * MIB, "the importer has it");
    let usage = bench.usage("share");
    assert_eq!(
        usage.processes.iter().find(|p| p.pid == pid).map(|p| p.charged),
        Some(64 * MIB)
    );
    other.ok("cuIpcCloseMemHandle @3");
    assert_eq!(bench.usage("share").charged, 0, "at once: nobody has to look");
    assert_eq!(bench.free(), 96 * MIB);
}

#[test]
fn a_free_by_its_maker_leaves_it_charged_until_the_importer_has_closed_it() {
    let mut one = Watched::new("", 256 * MIB);
    one.call("cuMemAlloc_v2 >1 64MiB", 0, 64 * MIB);
    let mut other = importer(&mut one, 1);
    other.ok("cuIpcOpenMemHandle_v2 >3 >2");
    one.ok("cuMemFree_v2 @1");
    assert_eq!(one.charged(), 64 * MIB);
    // Other memory with the same address and size and so, on the software GPU, the same handle.
    one.ok("cuMemAlloc_v2 >5 64MiB");
    assert_eq!((one.charged(), one.client.get(5)), (128 * MIB, one.client.get(1)));
    let mut third = importer(&mut one, 5);
    third.ok("cuIpcOpenMemHandle_v2 >3 >2");
    assert_eq!(one.charged(), 128 * MIB);
    other.ok("cuIpcCloseMemHandle @3");
    one.same();
    one.ok("cuMemFree_v2 @5");
    assert_eq!(one.charged(), 64 * MIB);
    third.kill();
    assert_eq!(one.bench.free(), 256 * MIB, "the last who had it died");
    one.same();
}

#[test]
fn an_export_without_an_importer_changes_nothing() {
    let mut one = Watched::new("", 64 * MIB);
    one.call("cuMemAlloc_v2 >1 64MiB", 0, 64 * MIB);
    for _ in 0..3 {
        one.call("cuIpcGetMemHandle >2 @1", 0, 64 * MIB);
    }
    one.call("cuMemFree_v2 @1", 0, 0);
    one.fails("cuIpcGetMemHandle >2 @1");
    one.call("cuMemAlloc_v2 >1 64MiB", 0, 64 * MIB);
    one.call("cuIpcGetMemHandle >2 @1", 0, 64 * MIB);
    assert_eq!(one.kill().free(), 64 * MIB);
}

/// Small allocations share a granule. The first export exports the whole granule.
#[test]
fn small_allocations_export_their_granule() {
    let mut one = Watched::new("", 8 * MIB);
    one.call("cuMemAlloc_v2 >1 4096", 0, GRANULE);
    one.call("cuMemAlloc_v2 >5 4096", 0, GRANULE);
    let mut other = importer(&mut one, 1);
    other.ok("cuIpcOpenMemHandle_v2 >3 >2");
    assert_eq!(one.same(), GRANULE);
    let mut third = importer(&mut one, 5);
    third.ok("cuIpcOpenMemHandle_v2 >3 >2");
    assert_eq!(one.charged(), 2 * GRANULE, "by another name");
    third.ok("cuIpcCloseMemHandle @3");
    one.call("cuMemFree_v2 @1", 0, GRANULE);
    one.ok("cuMemFree_v2 @5");
    assert_eq!(one.charged(), GRANULE);
    other.ok("cuIpcCloseMemHandle @3");
    one.same();
}

#[test]
fn an_import_that_the_driver_refuses_lets_go_again() {
    let mut one = Watched::new("fail.cuIpcOpenMemHandle_v2 = 201 after 0 every 2\n", 256 * MIB);
    one.call("cuMemAlloc_v2 >1 64MiB", 0, 64 * MIB);
    let mut other = importer(&mut one, 1);
    let codes = [3, 4].map(|slot| other.call(&format!("cuIpcOpenMemHandle_v2 >{slot} >2")));
    assert!(codes.contains(&0) && codes.contains(&201), "{codes:?}");
    one.same();
    let opened = if codes[0] == 0 { 3 } else { 4 };
    other.ok(&format!("cuIpcCloseMemHandle @{opened}"));
    one.call("cuMemFree_v2 @1", 0, 0);
}

/// A descriptor of a nameless file is recognised in every process that gets it.
#[test]
fn a_descriptor_of_a_nameless_file_is_recognised() {
    let mut one = Watched::new("", 96 * MIB);
    one.call("cuMemCreate >1 64MiB [0x100000001,1,0,0] 0", 0, 64 * MIB);
    one.call("cuMemExportToShareableHandle >2 @1 1 0", 0, 64 * MIB);
    one.call("cuMemImportFromShareableHandle >3 @2 1", 0, 64 * MIB);
    one.ok("cuMemAddressReserve >4 64MiB 0 0 0");
    one.call("cuMemMap @4 64MiB 0 @3 0", 0, 64 * MIB);
    one.call("cuMemRelease @3", 0, 64 * MIB);
    one.call("cuMemUnmap @4 64MiB", 0, 64 * MIB);
    // The memory stays charged to its exporter while that lives, because another process may have the descriptor.
    one.call("cuMemRelease @1", 0, 64 * MIB);
    assert_eq!(one.kill().free(), 96 * MIB);
}

/// A charge that is split over two shares is an object in each.
#[test]
fn an_allocation_of_two_shares_is_recognised_by_who_has_both() {
    let bench = Bench::new();
    bench.share("a", 0, 0, 32 * MIB);
    bench.share("b", 1, 0, 64 * MIB);
    let charged = || ["a", "b"].map(|share| bench.usage(share).charged);
    let (mut one, mut other) = (bench.caller(true), bench.caller(true));
    one.init();
    other.init();
    one.ok("cuMemAlloc_v2 >1 64MiB");
    assert_eq!(charged(), [32 * MIB; 2]);
    one.ok("cuIpcGetMemHandle >2 @1");
    let words = one.say("raw 2");
    other.say(&format!("put 2 {words}"));
    other.ok("cuIpcOpenMemHandle_v2 >3 >2");
    assert_eq!(charged(), [32 * MIB; 2]);
    one.kill();
    assert_eq!(bench.free(), 32 * MIB);
    other.ok("cuIpcCloseMemHandle @3");
    assert_eq!(charged(), [0; 2]);
}

/// The mappings that hold locks on a share's ledger and do not lie below everything else in the process's memory.
fn high_locks(pid: u32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let is_high = |line: &&str| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let (from, to) = range.expect("a range");
        let [from, to] = [from, to].map(|hex| u64::from_str_radix(hex, 16).expect("an address"));
        // The ledger itself is mapped by many pages.
        line.ends_with("/ledger") && to - from == 4096 && from >= 4 * MIB
    };
    maps.lines().filter(is_high).map(String::from).collect()
}

/// Exports more objects than a process may hold, and more than the ledger has room for. For the rest, each holder is
/// charged.
#[test]
fn what_finds_no_room_is_charged_twice() {
    const OBJECTS: u32 = vgpu_abi::ledger::object::OBJECTS as u32;
    const MOST: u32 = vgpu_core::os::pinned::MOST_SHARED as u32;
    let mut one = Watched::new("", 4 * GIB);
    for slot in 100..=100 + MOST {
        one.ok(&format!("cuMemAlloc_v2 >{slot} 2MiB"));
        one.ok(&format!("cuIpcGetMemHandle >2 @{slot}"));
    }
    let all = u64::from(MOST + 1) * GRANULE;
    assert_eq!(one.same(), all);
    assert_eq!(high_locks(one.client.pid()), [""; 0]);
    let mut other = importer(&mut one, 100 + MOST - 1);
    other.ok("cuIpcOpenMemHandle_v2 >3 >2");
    assert_eq!(one.charged(), all, "the last that it could hold");
    other.ok("cuIpcCloseMemHandle @3");
    let mut other = importer(&mut one, 100 + MOST);
    other.ok("cuIpcOpenMemHandle_v2 >3 >2");
    assert_eq!(one.charged(), all + GRANULE);
    one.ok("cuMemFree_v2 @100");
    one.ok(&format!("cuIpcGetMemHandle >2 @{}", 100 + MOST));
    other.ok("cuIpcCloseMemHandle @3");
    other.ok("cuIpcOpenMemHandle_v2 >3 >2");
    assert_eq!(one.same(), all - GRANULE, "there is room again");
    other.ok("cuIpcCloseMemHandle @3");
    // Exports as many as the ledger has room for, and one more.
    for slot in 100..=100 + OBJECTS - MOST {
        other.ok(&format!("cuMemAlloc_v2 >{slot} 2MiB"));
        other.ok(&format!("cuIpcGetMemHandle >2 @{slot}"));
    }
    let all = u64::from(OBJECTS + 1) * GRANULE;
    assert_eq!(one.same(), all);
    let (words, mut third) = (other.say("raw 2"), one.bench.caller(true));
    third.init();
    third.say(&format!("put 2 {words}"));
    third.ok("cuIpcOpenMemHandle_v2 >3 >2");
    assert_eq!(one.charged(), all + GRANULE);
    third.ok("cuIpcCloseMemHandle @3");
    other.ok("cuMemFree_v2 @100");
    other.ok(&format!("cuIpcGetMemHandle >2 @{}", 100 + OBJECTS - MOST));
    third.ok("cuIpcOpenMemHandle_v2 >3 >2");
    assert_eq!(one.same(), all - GRANULE, "there is room again");
}

/// Two processes that both are PID 1 and use the same address. On the software GPU their handles are the same.
#[test]
fn the_same_handle_of_two_pid_namespaces_is_two() {
    let bench = Bench::with_share(GIB);
    if !is_possible(&bench, "the_same_handle_of_two_pid_namespaces_is_two") {
        return;
    }
    let steps = ["init", "alloc:64MiB", "export:0", "serve"];
    let mut clients = [(); 2].map(|()| Serving::new(alone(&bench, &steps)));
    clients.iter_mut().for_each(|client| client.did(&steps[..3]));
    assert_eq!(bench.usage("share").charged, 128 * MIB);
    for client in &mut clients {
        assert_eq!(client.ask("import"), "0");
        assert_eq!(bench.usage("share").charged, 128 * MIB, "each has found its own");
        assert_eq!(client.ask("free:0"), "0");
        assert_eq!(bench.usage("share").charged, 128 * MIB, "and has it still");
    }
    let [first, mut second] = clients;
    drop(first);
    support::until(|| bench.free() == GIB - 64 * MIB);
    assert_eq!(second.ask("close"), "0");
    assert_eq!(bench.usage("share").charged, 0);
}

//! Memory that the driver reserves for later (pools, graphs) and reports when asked. After each call the charges are
//! compared with the software GPU's own account, on the device that the call named.

mod support;

use support::watched::Watched;
use support::{Bench, GIB, MIB};

#[test]
fn memory_lies_on_the_device_that_was_named_whatever_is_current() {
    const NODE: &str = "cuGraphAddMemAllocNode >8 @6 0 0 [1,0x100000001,0,0,0,0,0,0,0,0,0,0,0,6291456,0]>7:14";
    let bench = Bench::new();
    bench.share("first", 0, 0, 64 * MIB);
    bench.share("second", 1, 1, 32 * MIB);
    let (mut client, mut truth) = (bench.caller(true), bench.caller(false));
    client.init();
    // A CUmemLocation has a type and an ordinal, here of device 1. The last calls: a stream uses the pool of its own
    // device, whatever is current, and a default pool belongs to the named device.
    for (line, code, used) in [
        ("cuMemCreate >1 16MiB [1,0x100000001,0,0] 0", 0, [0, 16]),
        ("cuMemCreate >2 32MiB [1,0x100000001,0,0] 0", 2, [0, 16]),
        ("cuMemPoolCreate >3 [1,0x100000001,0,0,0,0,0,0,0,0,0]", 0, [0, 16]),
        ("cuMemAllocFromPoolAsync >4 8MiB @3 0", 0, [0, 24]),
        ("cuMemAllocFromPoolAsync >5 16MiB @3 0", 2, [0, 24]),
        ("cuGraphCreate >6 0", 0, [0, 24]),
        (NODE, 0, [0, 24]),
        ("cuGraphInstantiateWithFlags >9 @6 0", 0, [0, 24]),
        ("cuGraphLaunch @9 0", 0, [0, 30]),
        ("cuMemAlloc_v2 >10 4MiB", 0, [4, 30]),
        ("cuMemFree_v2 @7", 0, [4, 30]),
        ("cuDeviceGraphMemTrim 1", 0, [4, 24]),
        ("cuMemRelease @1", 0, [4, 8]),
        ("cuDevicePrimaryCtxRetain >11 1", 0, [4, 8]),
        ("cuCtxSetCurrent @11", 0, [4, 8]),
        ("cuStreamCreate >12 0", 0, [4, 8]),
        ("cuCtxSetCurrent @9001", 0, [4, 8]),
        ("cuMemAllocAsync >13 8MiB @12", 0, [4, 16]),
        ("cuDeviceGetDefaultMemPool >14 1", 0, [4, 16]),
        ("cuMemAllocFromPoolAsync >15 8MiB @14 0", 0, [4, 24]),
    ] {
        assert_eq!(client.call(line), code, "{line}");
        let used = used.map(|mib| mib * MIB);
        let charged = [bench.usage("first").charged, bench.usage("second").charged];
        assert_eq!((charged, [truth.used(0), truth.used(1)]), (used, used), "{line}");
    }
}

#[test]
fn what_pools_keep_is_charged_until_they_give_it_back() {
    const THRESHOLD: u32 = 4;
    let mut one = Watched::new("", GIB);
    one.ok("cuDeviceGetMemPool >1 0");
    one.ok(&format!("cuMemPoolSetAttribute @1 {THRESHOLD} [67108864]"));
    one.call("cuMemAllocAsync >2 512MiB 0", 0, 512 * MIB);
    one.call("cuMemFreeAsync @2 0", 0, 512 * MIB);
    // The library does not see a synchronisation. The next call about pools shows the effect.
    one.ok("cuStreamSynchronize 0");
    one.call("cuMemPoolTrimTo @1 0xffffffff", 0, 64 * MIB);
    one.call("cuMemPoolTrimTo @1 32MiB", 0, 32 * MIB);
    one.call("cuMemPoolTrimTo @1 0", 0, 0);
    one.call("cuMemAllocAsync >2 512MiB 0", 0, 512 * MIB);
    one.call("cuMemFreeAsync @2 0", 0, 512 * MIB);
    one.call("cuMemAlloc_v2 >3 1GiB", 0, GIB);
    one.call("cuMemAllocAsync >4 2MiB 0", 2, GIB);
}

/// CUDA_MEM_ALLOC_NODE_PARAMS for device 0. The address goes to slot `to`.
fn alloc_node(bytes: u64, to: u32) -> String {
    format!("[1,1,0,0,0,0,0,0,0,0,0,0,0,{bytes},0]>{to}:14")
}

#[test]
fn graphs_are_charged_when_they_get_their_memory() {
    let mut one = Watched::new("", 256 * MIB);
    one.ok("cuGraphCreate >1 0");
    one.call(
        &format!("cuGraphAddMemAllocNode >2 @1 0 0 {}", alloc_node(64 * MIB, 3)),
        0,
        0,
    );
    one.call("cuGraphAddMemFreeNode >4 @1 0 0 @3", 0, 0);
    one.call("cuGraphInstantiateWithFlags >5 @1 0", 0, 0);
    one.call("cuGraphLaunch @5 0", 0, 64 * MIB);
    one.call("cuGraphLaunch @5 0", 0, 64 * MIB);
    one.call("cuGraphExecDestroy @5", 0, 64 * MIB);
    one.call("cuDeviceGraphMemTrim 0", 0, 0);
    // Flag 2: instantiating the graph also uploads it.
    one.call("cuGraphInstantiateWithParams >5 @1 [2,0,0,0]", 0, 64 * MIB);
    one.call("cuGraphLaunch @5 0", 0, 64 * MIB);
    // A second one shares the memory, because the first is not running.
    one.call("cuGraphInstantiate_v2 >6 @1 0 0 0", 0, 64 * MIB);
    one.call("cuGraphUpload @6 0", 0, 64 * MIB);
    one.call("cuMemAlloc_v2 >7 192MiB", 0, 256 * MIB);
    one.call("cuGraphLaunch @5 0", 0, 256 * MIB);
    one.call("cuGraphLaunch @6 0", 0, 256 * MIB);
    // Unused graph memory is trimmed before memory runs out. Graphs get it again when there is room.
    one.call("cuMemAlloc_v2 >8 64MiB", 0, 256 * MIB);
    one.call("cuGraphLaunch @5 0", 2, 256 * MIB);
    one.call("cuMemFree_v2 @8", 0, 192 * MIB);
    one.call("cuGraphLaunch @5 0", 0, 256 * MIB);
}

#[test]
fn what_outlives_its_graph_stays_charged() {
    let mut one = Watched::new("", 256 * MIB);
    one.ok("cuGraphCreate >1 0");
    one.ok(&format!("cuGraphAddMemAllocNode >2 @1 0 0 {}", alloc_node(64 * MIB, 3)));
    // CUgraphNodeParams: type 10, then the same.
    one.ok("cuGraphAddNode_v2 >20 @1 0 0 0 [10,0,1,1,0,0,0,0,0,0,0,0,0,0,0,33554432,0]>21:16");
    one.call("cuGraphInstantiateWithFlags >4 @1 0", 0, 0);
    one.call("cuGraphLaunch @4 0", 0, 96 * MIB);
    one.call("cuGraphLaunch @4 0", 1, 96 * MIB);
    one.call("cuGraphExecDestroy @4", 0, 96 * MIB);
    one.call("cuDeviceGraphMemTrim 0", 0, 96 * MIB);
    one.call("cuMemFree_v2 @3", 0, 96 * MIB);
    one.call("cuMemFreeAsync @21 0", 0, 96 * MIB);
    one.call("cuDeviceGraphMemTrim 0", 0, 0);
}

#[test]
fn captured_allocations_are_charged_when_the_graph_is_launched() {
    let mut one = Watched::new("", 256 * MIB);
    one.ok("cuStreamCreate >1 0");
    one.ok("cuStreamBeginCapture_v2 @1 0");
    one.call("cuMemAllocAsync >2 64MiB @1", 0, 0);
    one.call("cuMemFreeAsync @2 @1", 0, 0);
    one.call("cuMemAllocAsync >3 512MiB @1", 0, 0);
    one.call("cuMemFreeAsync @3 @1", 0, 0);
    one.ok("cuStreamEndCapture @1 >4");
    one.call("cuGraphInstantiateWithFlags >5 @4 0", 0, 0);
    one.call("cuGraphLaunch @5 @1", 2, 0);
    // Only the smaller allocation, as a part of another graph.
    one.ok("cuStreamBeginCapture_v2 @1 0");
    one.ok("cuMemAllocAsync >6 64MiB @1");
    one.ok("cuMemFreeAsync @6 @1");
    one.ok("cuStreamEndCapture @1 >7");
    one.ok("cuGraphCreate >8 0");
    one.ok("cuGraphAddChildGraphNode >9 @8 0 0 @7");
    one.call("cuGraphInstantiateWithFlags >10 @8 0", 0, 0);
    one.call("cuGraphLaunch @10 @1", 0, 64 * MIB);
}

//! Every way to device memory is charged what the software GPU's own account shows, and no more than
//! the limit. Each test makes the calls of one way and compares after each.

mod support;

use support::{Bench, Caller, GIB, GRANULE};

const MIB: u64 = 1 << 20;
/// A context, a module: what they take in the profile of these tests.
const COSTS: &str = "context_cost = 10MiB\nmodule_cost = 6MiB\n";
const PTX: &str = "\".version\\s8.0\\n.target\\ssm_90\\n\"";

/// One client under a share, and a look from outside.
struct Watched {
    bench: Bench,
    client: Caller,
    truth: Caller,
}

impl Watched {
    fn new(profile: &str, memory: u64) -> Self {
        let bench = Bench::with_profile(profile);
        bench.share("share", 0, 0, memory);
        let (client, truth) = (bench.caller(true), bench.caller(false));
        let mut watched = Self { bench, client, truth };
        watched.client.init();
        watched.same();
        watched
    }

    /// Bytes in use by the GPU's own account, which the charge must equal.
    fn same(&mut self) -> u64 {
        let used = self.truth.used(0);
        let usage = self.bench.usage("share");
        assert_eq!(usage.charged, used, "charged, and used by the GPU's account");
        used
    }

    /// Calls, compares, and expects `code` and `used` bytes.
    fn call(&mut self, line: &str, code: i32, used: u64) {
        assert_eq!(self.client.call(line), code, "{line}");
        assert_eq!(self.same(), used, "{line}");
    }

    fn ok(&mut self, line: &str) {
        assert_eq!(self.client.call(line), 0, "{line}");
    }
}

#[test]
fn small_allocations_share_granules() {
    let mut one = Watched::new("", GIB);
    for index in 0..1000 {
        one.ok(&format!("cuMemAlloc_v2 >{index} 512"));
    }
    assert_eq!(one.same(), GRANULE, "512 bytes a thousand times lie in one granule");
    one.call("cuMemAlloc_v2 >2000 1MiB", 0, 2 * GRANULE);
    one.call("cuMemAlloc_v2 >2001 1MiB", 0, 2 * GRANULE);
    one.call("cuMemAlloc_v2 >2002 1048577", 0, 3 * GRANULE);
    one.call("cuMemFree_v2 @2000", 0, 3 * GRANULE);
    one.call("cuMemFree_v2 @2000", 1, 3 * GRANULE);
    one.call("cuMemFree_v2 @2001", 0, 2 * GRANULE);
    for index in (0..1000).rev() {
        one.ok(&format!("cuMemFree_v2 @{index}"));
    }
    assert_eq!(one.same(), GRANULE);
    one.call("cuMemFree_v2 @2002", 0, 0);
}

#[test]
fn a_failed_free_of_a_small_allocation_changes_nothing() {
    let mut one = Watched::new("fail.cuMemFree = 700 after 0 every 2\n", GIB);
    one.call("cuMemAlloc_v2 >1 4096", 0, GRANULE);
    one.call("cuMemFree_v2 @1", 0, 0);
    one.call("cuMemAlloc_v2 >1 4096", 0, GRANULE);
    one.call("cuMemAlloc_v2 >2 4096", 0, GRANULE);
    one.call("cuMemFree_v2 @1", 700, GRANULE);
    one.call("cuMemFree_v2 @1", 0, GRANULE);
    one.call("cuMemFree_v2 @2", 700, GRANULE);
    one.call("cuMemFree_v2 @2", 0, 0);
}

#[test]
fn small_allocations_go_with_their_context() {
    let mut one = Watched::new("", GIB);
    one.call("cuMemAlloc_v2 >1 4096", 0, GRANULE);
    one.call("cuCtxCreate_v2 >50 0 0", 0, GRANULE);
    one.call("cuMemAlloc_v2 >2 4096", 0, GRANULE);
    one.call("cuMemAlloc_v2 >3 64KiB", 0, 2 * GRANULE);
    one.call("cuCtxDestroy_v2 @50", 0, GRANULE);
    one.ok("cuCtxSetCurrent @9001");
    one.call("cuMemFree_v2 @1", 0, 0);
}

#[test]
fn the_limit_holds_for_small_allocations() {
    let mut one = Watched::new("", 2 * GRANULE);
    one.call("cuMemAlloc_v2 >1 1MiB", 0, GRANULE);
    one.call("cuMemAlloc_v2 >2 64KiB", 0, 2 * GRANULE);
    one.call("cuMemAlloc_v2 >3 256KiB", 2, 2 * GRANULE);
    one.call("cuMemFree_v2 @1", 0, GRANULE);
    one.call("cuMemAlloc_v2 >3 256KiB", 0, 2 * GRANULE);
}

#[test]
fn contexts_are_charged_what_they_take() {
    let mut one = Watched::new(COSTS, GIB);
    assert_eq!(one.same(), 10 * MIB, "the primary context");
    one.call("cuCtxCreate_v2 >1 0 0", 0, 20 * MIB);
    one.call("cuMemAlloc_v2 >2 8MiB", 0, 28 * MIB);
    one.call("cuCtxDestroy_v2 @1", 0, 10 * MIB);
    one.ok("cuCtxSetCurrent @9001");
    one.call("cuDevicePrimaryCtxRetain >9002 0", 0, 10 * MIB);
    one.call("cuDevicePrimaryCtxRelease_v2 0", 0, 10 * MIB);
    one.call("cuDeviceGetDevResource 0 >3 1", 0, 10 * MIB);
    one.call("cuDevResourceGenerateDesc >4 >3 1", 0, 10 * MIB);
    one.call("cuGreenCtxCreate >5 @4 0 1", 0, 20 * MIB);
    one.call("cuGreenCtxDestroy @5", 0, 10 * MIB);
    one.call("cuDevicePrimaryCtxRelease_v2 0", 0, 0);
}

#[test]
fn a_context_that_does_not_fit_is_undone() {
    let mut one = Watched::new(COSTS, 16 * MIB);
    one.call("cuCtxCreate_v2 >1 0 0", 2, 10 * MIB);
    let bench = Bench::with_profile(COSTS);
    bench.share("share", 0, 0, 8 * MIB);
    let mut client = bench.caller(true);
    assert_eq!(client.call("cuInit 0"), 0);
    assert_eq!(client.call("cuDevicePrimaryCtxRetain >1 0"), 2);
    assert_eq!(bench.usage("share").charged, 0);
    assert_eq!(bench.caller(false).used(0), 0);
}

#[test]
fn a_reserve_is_corrected_by_what_was_measured() {
    let bench = Bench::with_profile(COSTS);
    let mut limits = bench.limits("share", 0, 0, 64 * MIB);
    limits.context_reserve = 32 * MIB;
    bench.put(&limits);
    let mut client = bench.caller(true);
    client.init();
    assert_eq!(bench.usage("share").charged, 10 * MIB);
    limits.share = "other".into();
    limits.memory = 16 * MIB;
    std::fs::remove_dir_all(bench.directory("share")).expect("a folder");
    drop(client);
    bench.put(&limits);
    let mut client = bench.caller(true);
    assert_eq!(client.call("cuInit 0"), 0);
    assert_eq!(
        client.call("cuDevicePrimaryCtxRetain >1 0"),
        2,
        "the reserve does not fit"
    );
}

#[test]
fn code_and_limits_of_contexts_are_charged_what_they_take() {
    let mut one = Watched::new(COSTS, 64 * MIB);
    one.call(&format!("cuModuleLoadData >1 {PTX}"), 0, 16 * MIB);
    one.call(&format!("cuModuleLoadDataEx >2 {PTX} 0 0 0"), 0, 22 * MIB);
    one.call(&format!("cuLibraryLoadData >3 {PTX} 0 0 0 0 0 0"), 0, 28 * MIB);
    one.call("cuModuleLoadData >4 \"nonsense\"", 200, 28 * MIB);
    one.call("cuModuleUnload @1", 0, 22 * MIB);
    one.call("cuLibraryUnload @3", 0, 16 * MIB);
    one.call("cuCtxSetLimit 2 24MiB", 0, 32 * MIB);
    one.call("cuCtxSetLimit 2 64MiB", 2, 32 * MIB);
    one.call("cuCtxGetLimit >5 2", 0, 32 * MIB);
    assert_eq!(one.client.get(5), 24 * MIB, "as it was");
    one.call("cuMemAlloc_v2 >6 28MiB", 0, 60 * MIB);
    one.call(&format!("cuModuleLoadData >7 {PTX}"), 2, 60 * MIB);
    one.call("cuCtxSetLimit 2 8MiB", 0, 44 * MIB);
    one.call("cuDevicePrimaryCtxRelease_v2 0", 0, 0);
}

#[test]
fn arrays_are_charged_by_their_elements() {
    let mut one = Watched::new("", 4 * GIB);
    let rounded = |bytes: u64| bytes.next_multiple_of(GRANULE);
    let (float4, byte1, half2) = ("0x400000020", "0x100000001", "0x200000010");
    one.call(&format!("cuArrayCreate_v2 >1 [1024,1024,{float4}]"), 0, 16 * MIB);
    one.call(&format!("cuArrayCreate_v2 >2 [4096,0,{byte1}]"), 0, 16 * MIB + GRANULE);
    one.call("cuArrayDestroy @1", 0, GRANULE);
    // 32 bits wide: 2048 x 2048 halves of 2 channels.
    one.call("cuArrayCreate >3 [0x80000000800,0x200000010]", 0, GRANULE + 16 * MIB);
    one.call("cuArrayDestroy @3", 0, GRANULE);
    one.call("cuArrayDestroy @2", 0, 0);
    // Layers and cubes: 64 layers, 6 faces.
    one.call(&format!("cuArray3DCreate_v2 >4 [256,256,64,{half2},1]"), 0, 16 * MIB);
    one.call("cuArrayDestroy @4", 0, 0);
    one.call(&format!("cuArray3DCreate_v2 >5 [1024,1024,6,{half2},4]"), 0, 24 * MIB);
    one.call("cuArrayDestroy @5", 0, 0);
    // UNORM_INT16X4, and BC7: a byte an element.
    one.call("cuArray3DCreate_v2 >6 [1024,1024,0,0x4000000c5,0]", 0, 8 * MIB);
    one.call("cuArray3DCreate_v2 >7 [4096,4096,0,0x40000009d,0]", 0, 24 * MIB);
    one.call("cuArrayDestroy @6", 0, 16 * MIB);
    one.call("cuArrayDestroy @7", 0, 0);
    // Levels: a volume halves in depth, layers do not.
    let volume: u64 = (0..4).map(|level| (4 * 256 * 256 * 64) >> (3 * level)).sum();
    one.call(
        &format!("cuMipmappedArrayCreate >8 [256,256,64,{half2},0] 4"),
        0,
        rounded(volume),
    );
    one.call("cuArrayDestroy @8", 400, rounded(volume));
    one.call("cuMipmappedArrayDestroy @8", 0, 0);
    let layers: u64 = (0..4).map(|level| (4 * 256 * 256 * 64) >> (2 * level)).sum();
    one.call(
        &format!("cuMipmappedArrayCreate >9 [256,256,64,{half2},1] 4"),
        0,
        rounded(layers),
    );
    one.call("cuMipmappedArrayDestroy @9", 0, 0);
    one.call(&format!("cuArrayCreate_v2 >10 [32768,32768,{float4}]"), 2, 0);
}

#[test]
fn sparse_arrays_hold_what_is_mapped_into_them() {
    let mut one = Watched::new("", GIB);
    one.call("cuArray3DCreate_v2 >1 [4096,4096,0,0x400000020,0x40]", 0, 0);
    one.call("cuMemCreate >2 64MiB [1,1,0,0] 0", 0, 64 * MIB);
    let part = "0,@1,0,0,0,0,0";
    one.call(&format!("cuMemMapArrayAsync [{part},1,@2,0,1,0] 1 0"), 0, 64 * MIB);
    one.call("cuMemRelease @2", 0, 64 * MIB);
    one.call(&format!("cuMemMapArrayAsync [{part},2,0,0,1,0] 1 0"), 0, 0);
    one.call("cuMemCreate >2 64MiB [1,1,0,0] 0", 0, 64 * MIB);
    one.ok(&format!("cuMemMapArrayAsync [{part},1,@2,0,1,0] 1 0"));
    one.call("cuMemRelease @2", 0, 64 * MIB);
    one.call("cuArrayDestroy @1", 0, 0);
}

#[test]
fn physical_memory_is_charged_by_its_references_and_its_device() {
    let mut one = Watched::new("", GIB);
    one.ok("cuMemAddressReserve >1 64MiB 0 0 0");
    one.call("cuMemCreate >2 32MiB [1,1,0,0] 0", 0, 32 * MIB);
    one.ok("cuMemMap @1 16MiB 0 @2 0");
    let second = one.client.get(1) + 32 * MIB;
    one.ok(&format!("set 3 {second}"));
    one.ok("cuMemMap @3 32MiB 0 @2 0");
    one.call("cuMemRelease @2", 0, 32 * MIB);
    one.call("cuMemRelease @2", 1, 32 * MIB);
    // From inside a mapping.
    one.ok(&format!("set 4 {}", second + 4 * MIB));
    one.call("cuMemRetainAllocationHandle >5 @4", 0, 32 * MIB);
    one.call("cuMemUnmap @1 8MiB", 1, 32 * MIB);
    one.call("cuMemUnmap @1 16MiB", 0, 32 * MIB);
    one.call("cuMemUnmap @3 32MiB", 0, 32 * MIB);
    one.call("cuMemRelease @5", 0, 0);
    one.call("cuMemCreate >6 2GiB [1,1,0,0] 0", 2, 0);
    // The second device of the machine is none of this process's.
    assert_ne!(one.client.call("cuMemCreate >6 2MiB [1,0x100000001,0,0] 0"), 0);
    one.same();
}

#[test]
fn memory_lies_on_the_device_that_was_named_whatever_is_current() {
    let bench = Bench::new();
    bench.share("first", 0, 0, 64 * MIB);
    bench.share("second", 1, 1, 32 * MIB);
    let (mut client, mut truth) = (bench.caller(true), bench.caller(false));
    client.init();
    let mut check = |client: &mut Caller, line: &str, code: i32, used: [u64; 2]| {
        assert_eq!(client.call(line), code, "{line}");
        let charged = [bench.usage("first").charged, bench.usage("second").charged];
        assert_eq!((charged, [truth.used(0), truth.used(1)]), (used, used), "{line}");
    };
    // CUmemLocation is a type and an ordinal: device 1.
    check(
        &mut client,
        "cuMemCreate >1 16MiB [1,0x100000001,0,0] 0",
        0,
        [0, 16 * MIB],
    );
    check(
        &mut client,
        "cuMemCreate >2 32MiB [1,0x100000001,0,0] 0",
        2,
        [0, 16 * MIB],
    );
    check(
        &mut client,
        "cuMemPoolCreate >3 [1,0x100000001,0,0,0,0,0,0,0,0,0]",
        0,
        [0, 16 * MIB],
    );
    check(&mut client, "cuMemAllocFromPoolAsync >4 8MiB @3 0", 0, [0, 24 * MIB]);
    check(&mut client, "cuMemAllocFromPoolAsync >5 16MiB @3 0", 2, [0, 24 * MIB]);
    let node = "[1,0x100000001,0,0,0,0,0,0,0,0,0,0,0,6291456,0]>7:14";
    check(&mut client, "cuGraphCreate >6 0", 0, [0, 24 * MIB]);
    check(
        &mut client,
        &format!("cuGraphAddMemAllocNode >8 @6 0 0 {node}"),
        0,
        [0, 24 * MIB],
    );
    check(&mut client, "cuGraphInstantiateWithFlags >9 @6 0", 0, [0, 24 * MIB]);
    check(&mut client, "cuGraphLaunch @9 0", 0, [0, 30 * MIB]);
    check(&mut client, "cuMemAlloc_v2 >10 4MiB", 0, [4 * MIB, 30 * MIB]);
    check(&mut client, "cuMemFree_v2 @7", 0, [4 * MIB, 30 * MIB]);
    check(&mut client, "cuDeviceGraphMemTrim 1", 0, [4 * MIB, 24 * MIB]);
    check(&mut client, "cuMemRelease @1", 0, [4 * MIB, 8 * MIB]);
    // A stream's pool is its device's, whatever is current; and so is a default pool.
    assert_eq!(client.call("cuDevicePrimaryCtxRetain >11 1"), 0);
    assert_eq!(client.call("cuCtxSetCurrent @11"), 0);
    assert_eq!(client.call("cuStreamCreate >12 0"), 0);
    assert_eq!(client.call("cuCtxSetCurrent @9001"), 0);
    check(&mut client, "cuMemAllocAsync >13 8MiB @12", 0, [4 * MIB, 16 * MIB]);
    check(&mut client, "cuDeviceGetDefaultMemPool >14 1", 0, [4 * MIB, 16 * MIB]);
    check(
        &mut client,
        "cuMemAllocFromPoolAsync >15 8MiB @14 0",
        0,
        [4 * MIB, 24 * MIB],
    );
}

#[test]
fn what_pools_keep_is_charged_until_they_give_it_back() {
    const THRESHOLD: u32 = 4;
    let mut one = Watched::new("", GIB);
    one.ok("cuDeviceGetMemPool >1 0");
    one.ok(&format!("cuMemPoolSetAttribute @1 {THRESHOLD} [67108864]"));
    one.call("cuMemAllocAsync >2 512MiB 0", 0, 512 * MIB);
    one.call("cuMemFreeAsync @2 0", 0, 512 * MIB);
    // A synchronisation is no call that we see: the next one about pools tells.
    one.ok("cuStreamSynchronize 0");
    one.call("cuMemPoolTrimTo @1 0xffffffff", 0, 64 * MIB);
    one.call("cuMemPoolTrimTo @1 32MiB", 0, 32 * MIB);
    one.call("cuMemPoolTrimTo @1 0", 0, 0);
    one.call("cuMemAllocAsync >2 512MiB 0", 0, 512 * MIB);
    one.call("cuMemFreeAsync @2 0", 0, 512 * MIB);
    one.call("cuMemAlloc_v2 >3 1GiB", 0, GIB);
    one.call("cuMemAllocAsync >4 2MiB 0", 2, GIB);
}

/// CUDA_MEM_ALLOC_NODE_PARAMS of device 0, whose address goes to slot `to`.
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
    // Uploaded by instantiating it.
    one.call("cuGraphInstantiateWithParams >5 @1 [2,0,0,0]", 0, 64 * MIB);
    one.call("cuGraphLaunch @5 0", 0, 64 * MIB);
    // A second one shares the memory, for the first does not run.
    one.call("cuGraphInstantiate_v2 >6 @1 0 0 0", 0, 64 * MIB);
    one.call("cuGraphUpload @6 0", 0, 64 * MIB);
    one.call("cuMemAlloc_v2 >7 192MiB", 0, 256 * MIB);
    one.call("cuGraphLaunch @5 0", 0, 256 * MIB);
    one.call("cuGraphLaunch @6 0", 0, 256 * MIB);
    // What graphs keep unused is trimmed before memory runs out, and comes back when there is room.
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
    // As a part of another graph, the smaller alone.
    one.ok("cuStreamBeginCapture_v2 @1 0");
    one.ok("cuMemAllocAsync >6 64MiB @1");
    one.ok("cuMemFreeAsync @6 @1");
    one.ok("cuStreamEndCapture @1 >7");
    one.ok("cuGraphCreate >8 0");
    one.ok("cuGraphAddChildGraphNode >9 @8 0 0 @7");
    one.call("cuGraphInstantiateWithFlags >10 @8 0", 0, 0);
    one.call("cuGraphLaunch @10 @1", 0, 64 * MIB);
}

#[test]
fn imports_are_charged_to_who_maps_them() {
    let mut one = Watched::new("", 256 * MIB);
    one.call("cuMemAlloc_v2 >1 64MiB", 0, 64 * MIB);
    assert_eq!(one.client.call("cuIpcGetMemHandle >2 @1"), 0);
    let words = one.client.say("raw 2");
    let mut other = one.bench.caller(true);
    other.init();
    other.say(&format!("put 2 {words}"));
    let charged = |one: &Watched| one.bench.usage("share").charged;
    assert_eq!(other.call("cuIpcOpenMemHandle_v2 >3 >2"), 0);
    assert_eq!(charged(&one), 128 * MIB);
    assert_eq!(
        other.call("cuIpcOpenMemHandle_v2 >4 >2"),
        0,
        "once more: counted, not charged"
    );
    assert_eq!((charged(&one), other.get(4)), (128 * MIB, other.get(3)));
    assert_eq!(other.call("cuIpcCloseMemHandle @3"), 0);
    assert_eq!(charged(&one), 128 * MIB);
    // Whoever made it dies: what is mapped stays charged.
    let Watched { bench, client, .. } = one;
    client.kill();
    assert_eq!(bench.free(), 192 * MIB);
    assert_eq!(other.call("cuIpcCloseMemHandle @3"), 0);
    assert_eq!(bench.free(), 256 * MIB);
}

#[test]
fn imports_that_do_not_fit_are_closed_again() {
    let mut one = Watched::new("", 96 * MIB);
    one.call("cuMemAlloc_v2 >1 64MiB", 0, 64 * MIB);
    assert_eq!(one.client.call("cuIpcGetMemHandle >2 @1"), 0);
    let words = one.client.say("raw 2");
    let mut other = one.bench.caller(true);
    other.init();
    other.say(&format!("put 2 {words}"));
    assert_eq!(other.call("cuIpcOpenMemHandle_v2 >3 >2"), 2);
    assert_eq!(other.call("cuIpcCloseMemHandle @3"), 1, "it is not open");
    one.same();
}

#[test]
fn imported_physical_memory_is_charged_by_what_is_mapped() {
    let mut one = Watched::new("", 256 * MIB);
    one.call("cuMemCreate >1 64MiB [0x100000001,1,0,0] 0", 0, 64 * MIB);
    one.call("cuMemExportToShareableHandle >2 @1 1 0", 0, 64 * MIB);
    one.ok("cuMemImportFromShareableHandle >3 @2 1");
    let charged = |one: &Watched| one.bench.usage("share").charged;
    assert_eq!(charged(&one), 64 * MIB);
    one.ok("cuMemAddressReserve >4 64MiB 0 0 0");
    one.ok("cuMemMap @4 32MiB 0 @3 0");
    assert_eq!(charged(&one), 96 * MIB);
    one.ok("cuMemRelease @3");
    assert_eq!(charged(&one), 96 * MIB);
    one.ok("cuMemUnmap @4 32MiB");
    one.call("cuMemRelease @1", 0, 0);
}

#[test]
fn pointers_of_imported_pools_are_charged_until_they_are_freed() {
    let mut one = Watched::new("", 256 * MIB);
    one.ok("cuMemPoolCreate >1 [0x100000001,1,0,0,0,0,0,0,0,0,0]");
    one.call("cuMemAllocFromPoolAsync >2 64MiB @1 0", 0, 64 * MIB);
    one.ok("cuMemPoolExportToShareableHandle >3 @1 1 0");
    one.ok("cuMemPoolImportFromShareableHandle >4 @3 1 0");
    one.ok("cuMemPoolExportPointer >5 @2");
    one.ok("cuMemPoolImportPointer >6 @4 >5");
    assert_eq!(one.bench.usage("share").charged, 128 * MIB);
    one.call("cuMemFreeAsync @6 0", 0, 64 * MIB);
}

#[test]
fn external_memory_is_charged_until_nothing_refers_to_it() {
    let mut one = Watched::new("", 256 * MIB);
    one.call("cuImportExternalMemory >1 [1,7,0,67108864,0]", 0, 64 * MIB);
    one.call("cuExternalMemoryGetMappedBuffer >2 @1 [0,33554432]", 0, 64 * MIB);
    one.call(
        "cuExternalMemoryGetMappedMipmappedArray >3 @1 [0,64,64,0,0x400000020,0,1]",
        0,
        64 * MIB,
    );
    one.call("cuDestroyExternalMemory @1", 0, 64 * MIB);
    one.call("cuMemFree_v2 @2", 0, 64 * MIB);
    one.call("cuMipmappedArrayDestroy @3", 0, 0);
    one.call("cuImportExternalMemory >1 [1,7,0,536870912,0]", 2, 0);
}

#[test]
fn host_memory_is_not_charged_and_managed_memory_is() {
    let mut one = Watched::new("", 64 * MIB);
    one.call("cuMemHostAlloc >1 128MiB 0", 0, 0);
    one.call("cuMemAllocHost_v2 >2 128MiB", 0, 0);
    one.call("cuMemHostRegister_v2 >3 64 0", 0, 0);
    one.call("cuMemAllocManaged >4 48MiB 1", 0, 48 * MIB);
    one.call("cuMemAllocManaged >5 32MiB 1", 2, 48 * MIB);
    one.call("cuMemFree_v2 @4", 0, 0);
    one.call("cuMemFreeHost @1", 0, 0);
}

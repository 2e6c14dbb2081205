//! Calls that allocate immediately are charged exactly what the software GPU's own account shows, and never beyond the
//! limit. Each test makes the calls of one family and compares after each.

mod support;

use support::watched::Watched;
use support::{Bench, GIB, GRANULE, MIB};

/// The sizes of a context and of a module in these tests.
const COSTS: &str = "context_cost = 10MiB\nmodule_cost = 6MiB\n";
/// Which PIDs NVML lists: those of this namespace, those of another one, or none.
const MODES: [&str; 3] = ["own", "host", "none"];
const PTX: &str = "\".version\\s8.0\\n.target\\ssm_90\\n\"";

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
    // The library itself has freed memory once, in the first context (beacon.rs).
    let mut one = Watched::new("fail.cuMemFree = 700 after 1 every 2\n", GIB);
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
    for mode in MODES {
        let mut one = Watched::new(&format!("{COSTS}nvml_pids = {mode}\n"), GIB);
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
}

/// The driver loads such a library with the next context, even if nothing can be measured.
#[test]
fn a_library_that_was_loaded_without_a_context_is_charged_with_the_next() {
    for mode in MODES {
        let bench = Bench::of_share(&format!("{COSTS}nvml_pids = {mode}\n"), GIB);
        let mut client = bench.caller(true);
        client.ok("cuInit 0");
        let load = format!("cuLibraryLoadData >1 {PTX} 0 0 0 0 0 0");
        client.ok(&load);
        client.ok("cuLibraryUnload @1");
        client.ok(&load);
        assert_eq!(bench.usage("share").charged, 0, "{mode}");
        client.ok("cuDevicePrimaryCtxRetain >9001 0");
        let (charged, used) = (bench.usage("share").charged, bench.caller(false).used(0));
        assert_eq!(used, 16 * MIB, "{mode}: the context and the code");
        assert!((used..used + 4 * MIB).contains(&charged), "{mode}: {charged}");
        assert_eq!(charged == used, mode != "none", "{mode}: measured");
        let full = Bench::of_share(&format!("{COSTS}nvml_pids = {mode}\n"), 12 * MIB);
        let mut client = full.caller(true);
        assert_eq!([client.call("cuInit 0"), client.call(&load)], [0, 0]);
        assert_eq!(client.call("cuDevicePrimaryCtxRetain >9001 0"), 2, "{mode}");
        assert_eq!(
            [full.usage("share").charged, full.caller(false).used(0)],
            [0, 0],
            "{mode}"
        );
    }
}

#[test]
fn a_context_that_does_not_fit_is_undone() {
    for mode in MODES {
        let mut one = Watched::new(&format!("{COSTS}nvml_pids = {mode}\n"), 16 * MIB);
        one.call("cuCtxCreate_v2 >1 0 0", 2, 10 * MIB);
        let bench = Bench::of_share(&format!("{COSTS}nvml_pids = {mode}\n"), 8 * MIB);
        let mut client = bench.caller(true);
        client.ok("cuInit 0");
        client.gives("cuDevicePrimaryCtxRetain >1 0", 2);
        assert_eq!(bench.usage("share").charged, 0);
        assert_eq!(bench.caller(false).used(0), 0);
    }
}

#[test]
fn a_reserve_is_corrected_by_what_was_measured() {
    let bench = Bench::with_profile(COSTS);
    let mut limits = bench.limits("share", 0, 0, 64 * MIB);
    limits.context_reserve = Some(32 * MIB);
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
    client.ok("cuInit 0");
    assert_eq!(
        client.call("cuDevicePrimaryCtxRetain >1 0"),
        2,
        "the reserve does not fit"
    );
}

#[test]
fn code_and_limits_of_contexts_are_charged_what_they_take() {
    for mode in ["own", "host"] {
        let mut one = Watched::new(&format!("{COSTS}nvml_pids = {mode}\n"), 64 * MIB);
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
}

/// Tests every way to write static variables in PTX. Those that do not fit are refused without calling the driver,
/// which would return 200 here.
#[test]
fn static_variables_of_ptx_are_charged_ahead() {
    let mut one = Watched::new(&format!("{COSTS}fail.cuModuleLoadDataEx = 200\n"), 64 * MIB);
    let text = |variables: &str| {
        let text = format!(".version 8.0\n.target sm_90\n{variables}\n.entry k() {{ ret; }}\n");
        text.replace(' ', "\\s").replace('\n', "\\n")
    };
    for (fits, too_large) in [
        (".global .b8 x[41943040];", ".global .b8 x[4000000000];"),
        (".global .b8 x[0x2800000U];", ".global .b8 x[0xEE6B2800];"),
        (".global/**/.b8 x[/*4*/41943040];", ".global/**/.b8 x[/*4*/4000000000];"),
        (
            ".global .b8 x [ 40960 ] [ 1024 ];",
            ".global .b8 x [ 400000 ] [ 1024 ];",
        ),
        (".global .b8 a, x[41943039];", ".global .b8 a, x[4000000000];"),
        (
            ".global .attribute(.managed) .v4 .b32 x[2621440];",
            ".global .attribute(.managed) .v4 .b32 x[250000000];",
        ),
    ] {
        one.call(&format!("cuModuleLoadData >1 \"{}\"", text(fits)), 0, 56 * MIB);
        one.call("cuModuleUnload @1", 0, 10 * MIB);
        one.call(
            &format!("cuModuleLoadDataEx >1 \"{}\" 0 0 0", text(too_large)),
            2,
            10 * MIB,
        );
    }
    one.call(&format!("cuModuleLoadDataEx >1 {PTX} 0 0 0"), 200, 10 * MIB);
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
    // With levels, the depth of a volume halves and the number of layers does not.
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
fn rows_are_charged_with_their_pitch() {
    let mut one = Watched::new("", GIB);
    one.call("cuMemAllocPitch_v2 >1 >2 1000 32768 4", 0, 32 * MIB);
    assert_eq!(one.client.get(2), 1024);
    one.call("cuMemAllocPitch_v2 >3 >4 100 100 4", 0, 34 * MIB);
    one.call("cuMemFree_v2 @1", 0, GRANULE);
    one.call("cuMemFree_v2 @3", 0, 0);
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

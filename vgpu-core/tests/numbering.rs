//! Calls that name GPUs by number or UUID: a process with a share of only the second GPU sees it as number 0, and no
//! other.

mod support;

use support::caller::Caller;
use support::{Bench, GIB, MIB};

/// CU_DEVICE_INVALID in 32 bits.
const NO_DEVICE: u64 = 0xffff_fffe;
const INVALID_VALUE: i32 = 1;
const INVALID_DEVICE: i32 = 101;
/// CUmemLocation in one word: the first device, and the second.
const FIRST: &str = "0x1";
const SECOND: &str = "0x100000001";

/// A share of the second GPU, and a client of it.
fn second_gpu() -> (Bench, Caller) {
    second_gpu_of("")
}

fn second_gpu_of(profile: &str) -> (Bench, Caller) {
    let bench = Bench::with_profile(profile);
    bench.share("share", 0, 1, GIB);
    let mut client = bench.caller(true);
    client.init();
    (bench, client)
}

/// Returns the charge, which must equal what the GPUs' own accounts show, all of it on the second.
fn charged(bench: &Bench) -> u64 {
    let mut truth = bench.caller(false);
    assert_eq!(truth.used(0), 0, "on the GPU without a share");
    let (used, charged) = (truth.used(1), bench.usage("share").charged);
    assert_eq!(charged, used, "charged, and used by the GPU's account");
    used
}

fn word(client: &mut Caller, slot: u32, index: usize) -> u64 {
    let words = client.say(&format!("raw {slot}"));
    words
        .split_whitespace()
        .nth(index)
        .expect("a word")
        .parse()
        .expect("a number")
}

#[test]
fn memory_in_a_part_of_a_gpu_is_charged_to_that_gpu() {
    let (bench, mut client) = second_gpu();
    client.ok("cuMemCreate >1 32MiB [1,6,0,0] 0");
    assert_eq!(charged(&bench), 32 * MIB);
    client.gives("cuMemCreate >2 32MiB [1,0x100000006,0,0] 0", INVALID_DEVICE);
    assert_eq!(client.call("cuMemCreate >2 1GiB [1,6,0,0] 0"), 2, "more than is free");
    // The GPU has one part, and there is no location of kind 7.
    client.gives("cuMemCreate >2 32MiB [1,0x10000000006,0,0] 0", INVALID_VALUE);
    client.gives("cuMemCreate >2 32MiB [1,7,0,0] 0", INVALID_VALUE);
    assert_eq!(charged(&bench), 32 * MIB);
    client.ok("cuMemGetAllocationPropertiesFromHandle >3 @1");
    assert_eq!(word(&mut client, 3, 1), 6, "the first device, its part 0");
    client.ok("cuMemCreate >2 2MiB [1,1,0,0] 0");
    client.ok("cuMemGetAllocationPropertiesFromHandle >3 @2");
    assert_eq!(word(&mut client, 3, 1), 1, "the first device");
    client.ok("cuMemRelease @1");
    client.ok("cuMemRelease @2");
    assert_eq!(charged(&bench), 0);
}

#[test]
fn pools_are_found_by_the_share_s_numbers() {
    let (bench, mut client) = second_gpu();
    for call in ["cuMemGetDefaultMemPool", "cuMemGetMemPool"] {
        client.ok(&format!("{call} >1 [{FIRST}] 1"));
        client.ok(&format!("{call} >2 [6] 1"));
        assert_eq!(client.get(1), client.get(2), "the one part of it");
        client.gives(&format!("{call} >2 [{SECOND}] 1"), INVALID_DEVICE);
        client.gives(&format!("{call} >2 [9] 1"), INVALID_VALUE);
    }
    client.ok("cuMemPoolGetAttribute @1 11 >3");
    client.ok("cuMemPoolGetAttribute @1 12 >4");
    assert_eq!((client.get(3), client.get(4)), (0, 1));
    client.ok("cuMemPoolCreate >5 [1,6,0,0,0,0,0,0,0,0,0]");
    client.gives(&format!("cuMemSetMemPool [{SECOND}] 1 @5"), INVALID_DEVICE);
    client.ok(&format!("cuMemSetMemPool [{FIRST}] 1 @5"));
    client.ok(&format!("cuMemGetMemPool >6 [{FIRST}] 1"));
    assert_eq!(client.get(6), client.get(5));
    client.ok("cuMemAllocAsync >7 32MiB 0");
    client.ok("cuMemAllocFromPoolAsync >8 32MiB @1 0");
    assert_eq!(charged(&bench), 64 * MIB);
}

#[test]
fn managed_memory_lies_on_the_share_s_numbers() {
    let (_bench, mut client) = second_gpu();
    client.ok("cuMemAllocManaged >1 2MiB 1");
    let told = |client: &mut Caller, attribute: u32| {
        client.ok("set 2 0");
        client.ok(&format!("cuMemRangeGetAttribute >2 4 {attribute} @1 2MiB"));
        client.get(2)
    };
    assert_eq!(
        [2, 4, 5, 7].map(|which| told(&mut client, which)),
        [NO_DEVICE, NO_DEVICE, 0, 0]
    );
    // SET_PREFERRED_LOCATION and SET_ACCESSED_BY.
    client.gives(&format!("cuMemAdvise_v2 @1 2MiB 3 {SECOND}"), INVALID_DEVICE);
    client.ok(&format!("cuMemAdvise_v2 @1 2MiB 3 {FIRST}"));
    client.ok("cuMemAdvise @1 2MiB 5 0");
    assert_eq!([2, 5, 6].map(|which| told(&mut client, which)), [0, 1, 0]);
    client.ok("cuMemRangeGetAttribute >3 12 3 @1 2MiB");
    assert_eq!(word(&mut client, 3, 0), NO_DEVICE << 32, "the first device, and none");
    for call in ["cuMemPrefetchBatchAsync", "cuMemDiscardAndPrefetchBatchAsync"] {
        let at = |place: &str| format!("{call} [@1] [2MiB] 1 [{place}] [0] 1 0 0");
        client.gives(&at(SECOND), INVALID_DEVICE);
        client.gives(&at("9"), INVALID_VALUE);
        client.ok(&at(FIRST));
    }
    assert_eq!([4, 7, 8].map(|which| told(&mut client, which)), [0, 1, 0]);
    client.ok("cuMemGetLocationInfo @1 2MiB 1MiB 0 >4");
    assert_eq!(
        [word(&mut client, 4, 0), word(&mut client, 4, 1)],
        [1, 1],
        "the first device, twice"
    );
    // The same with a list of attributes. The location may be the host.
    client.ok("cuMemHostAlloc >5 4096 0");
    client.ok("cuMemRangeGetAttributes [@5] [4] [4] 1 @1 2MiB");
    client.ok("cuMemcpyDtoH_v2 >6 @5 8");
    assert_eq!(client.get(6), 0);
    client.ok("cuMemPrefetchBatchAsync [@1] [2MiB] 1 [2] [0] 1 0 0");
    assert_eq!(told(&mut client, 4), 0xffff_ffff, "the CPU");
}

#[test]
fn nodes_endpoints_and_graphics_have_the_share_s_numbers() {
    let (_bench, mut client) = second_gpu();
    client.ok("cuGraphCreate >1 0");
    let node = "[0x1,0x1,0,0,0,0,0,0,0,0,0,0,0,2097152,0]";
    client.ok(&format!("cuGraphAddMemAllocNode >2 @1 0 0 {node}"));
    client.ok("cuGraphNodeGetParams @2 >3");
    // Kind and reserved words, kind and handles of the pool, its location.
    assert_eq!([word(&mut client, 3, 0), word(&mut client, 3, 3)], [10, 1]);

    client.ok("cuLogicalEndpointIdReserve >4 1");
    for (first, second) in [
        (
            "cuLogicalEndpointGetLimits >5 >6 [1,2097152,0]",
            "cuLogicalEndpointGetLimits >5 >6 [0x100000001,2097152,0]",
        ),
        (
            "cuLogicalEndpointCreate @4 [1,2097152,0]",
            "cuLogicalEndpointCreate @4 [0x100000001,2097152,0]",
        ),
        (
            "cuLogicalEndpointUnbind @4 0 0 2MiB",
            "cuLogicalEndpointUnbind @4 1 0 2MiB",
        ),
    ] {
        assert_eq!(client.call(second), INVALID_DEVICE, "{second}");
        assert_eq!(client.call(first), 0, "{first}");
    }

    for call in ["cuGLGetDevices_v2", "cuGLGetDevices"] {
        client.ok(&format!("{call} >15 >16 8 1"));
        assert_eq!((client.get(15), client.get(16)), (1, 0));
        client.gives(&format!("{call} >15 >16 8 9"), INVALID_VALUE);
    }
    client.ok("cuVDPAUGetDevice >7 1 0");
    assert_eq!(client.get(7), 0);
    client.gives("cuVDPAUGetDevice >7 0 0", INVALID_DEVICE);
    client.gives("cuGLCtxCreate_v2 >8 0 1", INVALID_DEVICE);
    client.gives("cuVDPAUCtxCreate_v2 >8 0 1 0 0", INVALID_DEVICE);
}

/// nvmlUUID_t in words: version and kind, then 16 bytes.
fn binary_uuid(uuid: &str) -> String {
    let digits: String = uuid
        .trim_start_matches("GPU")
        .chars()
        .filter(|digit| *digit != '-')
        .collect();
    let half = |from: usize| {
        u64::from_str_radix(&digits[from..from + 16], 16)
            .expect("digits")
            .swap_bytes()
    };
    format!("[{},{},{},0,0,0,0]", 2_u64 << 32 | 1 << 24 | 52, half(0), half(16))
}

#[test]
fn nvml_finds_no_gpu_without_a_share() {
    let (bench, mut client) = second_gpu();
    let mut bare = bench.caller(false);
    for one in [&mut client, &mut bare] {
        one.ok("nvmlInit_v2");
    }
    let find = |client: &mut Caller, gpu| {
        client.call(&format!(
            "nvmlDeviceGetHandleByUUIDV {} >1",
            binary_uuid(bench.gpu(gpu))
        ))
    };
    assert_eq!([find(&mut bare, 0), find(&mut bare, 1)], [0, 0]);
    assert_eq!([find(&mut client, 0), find(&mut client, 1)], [6, 0]);
    client.ok("nvmlDeviceGetIndex @1 >2");
    assert_eq!(client.get(2), 0);
    // There is no unit, and NVML's answer is passed on.
    assert_eq!(
        client.call("nvmlUnitGetDevices 1 >3 >4"),
        bare.call("nvmlUnitGetDevices 1 >3 >4")
    );
}

#[test]
fn nvml_tells_no_figures_of_the_whole_gpu() {
    let (_bench, mut client) = second_gpu();
    client.ok("cuMemAlloc_v2 >1 32MiB");
    client.ok("nvmlInit_v2");
    client.ok("nvmlDeviceGetHandleByIndex_v2 0 >2");
    client.ok("nvmlDeviceGetConfComputeMemSizeInfo @2 >3");
    assert_eq!([word(&mut client, 3, 0), word(&mut client, 3, 1)], [0, GIB >> 10]);
    client.ok("nvmlDeviceGetConfComputeProtectedMemoryUsage @2 >4");
    assert_eq!(word(&mut client, 4, 0), 0, "nothing is protected here");
}

#[test]
fn nvml_tells_accounts_of_the_share_s_processes_alone() {
    let (bench, mut client) = second_gpu_of("context_cost = 10MiB\n");
    let (mut other, mut stranger, mut monitor) = (bench.caller(true), bench.caller(false), bench.caller(true));
    other.init();
    stranger.ok("cuInit 0");
    stranger.ok("cuDevicePrimaryCtxRetain >1 1");
    for one in [&mut client, &mut monitor, &mut stranger] {
        one.ok("nvmlInit_v2");
    }
    let pids = [&client, &other, &stranger].map(|one| one.pid());
    let ask = |one: &mut Caller, gpu: u32| {
        one.ok(&format!("nvmlDeviceGetHandleByIndex_v2 {gpu} >2"));
        pids.map(|pid| one.call(&format!("nvmlDeviceGetAccountingStats @2 {pid} >3")))
    };
    assert_eq!(ask(&mut stranger, 1), [0, 0, 0], "the bare GPU tells all");
    assert_eq!(ask(&mut client, 0), [0, 0, 6]);
    // Without a context, the library does not know which PIDs NVML uses.
    assert_eq!(ask(&mut monitor, 0), [6, 6, 6]);
}

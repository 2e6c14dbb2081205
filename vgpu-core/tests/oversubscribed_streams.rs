//! memoryPolicy Oversubscribe and stream-ordered memory: allocations that do not fit into pools use host memory, which
//! is freed only once its stream has reached the free.

mod support;

use support::caller::Caller;
use support::{Bench, GIB, MIB, number};

/// Work that never ends within a test: the client is killed before.
const ENDLESS: &str = "kernel_time = 60s\n";
const HOUR: u32 = 60;

/// A client of a share of 64 MiB on the first GPU, extended by 128 MiB of host memory.
struct Stage {
    bench: Bench,
    client: Caller,
}

impl Stage {
    fn new(profile: &str) -> Self {
        let bench = Bench::with_profile(profile);
        bench.share_with(64 * MIB, |limits| limits.host_memory = 128 * MIB);
        // For a context on another GPU.
        bench.put(&bench.limits("other", 1, 1, 64 * MIB));
        let mut client = bench.caller(true);
        client.init();
        Self { bench, client }
    }

    /// A stage whose device part is full, with streams in slots 10 and 11.
    fn full(profile: &str) -> Self {
        let mut stage = Self::new(profile);
        stage.ok("cuMemAllocAsync >1 64MiB 0");
        stage.ok("cuStreamCreate >10 1");
        stage.ok("cuStreamCreate >11 1");
        stage.load();
        stage.has(64, 0);
        stage
    }

    #[track_caller]
    fn ok(&mut self, line: &str) {
        self.client.ok(line);
    }

    #[track_caller]
    fn call(&mut self, line: &str, code: i32) {
        assert_eq!(self.client.call(line), code, "{line}");
    }

    /// Compares the charges, in MiB.
    #[track_caller]
    fn has(&self, device: u64, host: u64) {
        let usage = self.bench.usage("share");
        assert_eq!([usage.charged / MIB, usage.host / MIB], [device, host]);
    }

    /// Loads the kernel of [`Self::work`] in the current context.
    fn load(&mut self) {
        self.ok("cuModuleLoadData >20 \".version\\s8.0\\n.target\\ssm_90\\n.entry\\sspin()\\s{\\sret;\\s}\\n\"");
        self.ok("cuModuleGetFunction >21 @20 \"spin\"");
    }

    /// Creates a context on a GPU and a stream in it, with their handles in `slot` and in slot 12.
    fn enter(&mut self, slot: u32, gpu: u32) {
        self.ok(&format!("cuCtxCreate_v2 >{slot} 0 {gpu}"));
        self.ok("cuStreamCreate >12 1");
        self.load();
    }

    fn leave(&mut self) {
        self.ok("cuCtxPopCurrent_v2 >91");
    }

    /// Queues work in a stream for this many times the profile's kernel time.
    fn work(&mut self, times: u32, stream: u32) {
        let grid = times * 132 * 2;
        self.ok(&format!("cuLaunchKernel @21 {grid} 1 1 1024 1 1 0 @{stream} 0"));
    }

    /// Returns the free bytes. This call also frees all memory that is no longer in use.
    fn free(&mut self) -> u64 {
        self.ok("cuMemGetInfo_v2 >90 >91");
        self.client.get(90)
    }

    /// Returns true if the driver still knows the pointer in a slot.
    fn is_there(&mut self, slot: u32) -> bool {
        self.client.call(&format!("cuPointerGetAttribute >92 2 @{slot}")) == 0
    }

    /// Only the low half is compared, because the driver writes an int.
    fn is_managed(&mut self, slot: u32) -> bool {
        self.ok("set 92 0");
        self.ok(&format!("cuPointerGetAttribute >92 8 @{slot}"));
        self.client.get(92) & 0xff != 0
    }
}

#[test]
fn what_pools_cannot_have_goes_on_in_host_memory() {
    let mut stage = Stage::new("");
    stage.ok("cuMemPoolCreate >1 [1,1,0,0,0,0,0,0,0,0,0]");
    stage.ok("cuMemAllocAsync >2 48MiB 0");
    assert!(!stage.is_managed(2));
    stage.ok("cuMemAllocAsync >3 32MiB 0");
    stage.ok("cuMemAllocFromPoolAsync >4 32MiB @1 0");
    stage.ok("cuMemAllocAsync_ptsz >5 32MiB 0");
    stage.ok("cuMemAllocFromPoolAsync_ptsz >6 16MiB @1 0");
    stage.has(64, 96);
    assert!(stage.is_managed(3) && stage.is_managed(4) && stage.is_managed(5));
    assert!(!stage.is_managed(6), "what there is on the device is taken first");
    assert_eq!(stage.free(), 32 * MIB);
    stage.ok("cuMemPoolGetAttribute @1 7 >93");
    assert_eq!(stage.client.get(93), 16 * MIB, "a pool tells its device part");
    stage.call("cuMemAllocAsync >7 64MiB 0", 2);
    stage.call("cuMemPoolExportPointer >7 @3", 1);
    stage.call("cuIpcGetMemHandle >7 @3", 1);
    // Both free functions accept memory of both allocation functions.
    stage.ok("cuMemFreeAsync @3 0");
    stage.ok("cuMemFree_v2 @4");
    stage.ok("cuMemFreeAsync_ptsz @5 0");
    stage.call("cuMemFreeAsync @5 0", 1);
    assert_eq!(stage.free(), 128 * MIB);
    stage.ok("cuMemAllocManaged >3 64MiB 1");
    stage.ok("cuMemFreeAsync @3 0");
    stage.ok("cuMemFreeAsync @2 0");
    stage.ok("cuMemFreeAsync @6 0");
    stage.ok("cuStreamSynchronize 0");
    assert_eq!(stage.free(), 192 * MIB);
    stage.has(0, 0);
}

/// Unused memory of other pools is trimmed first, because it is device memory.
#[test]
fn pools_give_way_before_the_host_is_asked() {
    let mut stage = Stage::new("");
    stage.ok("cuMemPoolCreate >1 [1,1,0,0,0,0,0,0,0,0,0]");
    stage.ok("cuMemPoolSetAttribute @1 4 [64MiB]");
    stage.ok("cuMemAllocFromPoolAsync >2 64MiB @1 0");
    stage.ok("cuMemFreeAsync @2 0");
    stage.ok("cuStreamSynchronize 0");
    stage.has(64, 0);
    stage.ok("cuMemAllocAsync >3 32MiB 0");
    assert!(!stage.is_managed(3));
    stage.has(32, 0);
}

/// Host memory does not replace pools that can be exported or that have a maximum size.
#[test]
fn pools_of_which_more_is_asked_stay_on_the_device() {
    let mut stage = Stage::new("");
    stage.ok("cuMemPoolCreate >1 [0x100000001,1,0,0,0,0,0,0,0,0,0]");
    stage.ok("cuMemPoolCreate >2 [1,1,0,0x10000000,0,0,0,0,0,0,0]");
    for pool in ["@1", "@2"] {
        stage.call(&format!("cuMemAllocFromPoolAsync >3 128MiB {pool} 0"), 2);
        stage.ok(&format!("cuDeviceSetMemPool 0 {pool}"));
        stage.call("cuMemAllocAsync >3 128MiB 0", 2);
    }
    stage.has(0, 0);
}

#[test]
fn what_a_stream_still_uses_is_not_freed() {
    let mut stage = Stage::full(ENDLESS);
    stage.ok("cuMemAllocAsync >2 64MiB @10");
    stage.work(HOUR, 10);
    stage.ok("cuMemFreeAsync @2 @10");
    assert_eq!(stage.free(), 64 * MIB);
    assert!(stage.is_there(2));
    stage.has(64, 64);
}

#[test]
fn what_a_stream_has_used_is_freed_after_that() {
    let mut stage = Stage::full("kernel_time = 300ms\n");
    stage.ok("cuMemAllocAsync >2 64MiB @10");
    stage.work(1, 10);
    stage.ok("cuMemFreeAsync @2 @10");
    stage.ok("cuStreamSynchronize @10");
    assert_eq!(stage.free(), 128 * MIB);
    assert!(!stage.is_there(2));
    stage.has(64, 0);
}

#[test]
fn memory_in_use_is_lent_again_in_the_order_of_streams() {
    let mut stage = Stage::full(ENDLESS);
    stage.ok("cuMemAllocAsync >2 128MiB @10");
    stage.work(HOUR, 10);
    stage.ok("cuMemFreeAsync @2 @10");
    // The call does not wait. The other stream waits for the work instead.
    stage.ok("cuMemAllocAsync >3 128MiB @11");
    assert_eq!(stage.client.get(3), stage.client.get(2));
    stage.call("cuStreamQuery @10", 600);
    stage.call("cuStreamQuery @11", 600);
    stage.has(64, 128);
    stage.ok("cuMemFree_v2 @3");
    assert!(!stage.is_there(3));
    stage.has(64, 0);
}

#[test]
fn what_would_be_refused_waits_for_memory_that_is_being_freed() {
    let mut stage = Stage::full("kernel_time = 1s\n");
    stage.ok("cuMemAllocAsync >2 128MiB @10");
    stage.work(1, 10);
    stage.ok("cuMemFreeAsync @2 @10");
    stage.ok("cuMemAllocAsync >3 32MiB @11");
    stage.call("cuStreamQuery @10", 0);
    stage.has(64, 32);
    // The same for an allocation without a stream.
    stage.work(1, 11);
    stage.ok("cuMemFreeAsync @3 @11");
    stage.ok("cuMemAlloc_v2 >4 128MiB");
    stage.call("cuStreamQuery @11", 0);
    stage.has(64, 128);
}

/// As in the last test, but the work never ends, so the memory is never taken.
#[test]
fn memory_of_work_without_an_end_is_given_to_nobody() {
    let mut stage = Stage::full(ENDLESS);
    stage.ok("cuMemAllocAsync >2 128MiB @10");
    stage.work(HOUR, 10);
    stage.ok("cuMemFreeAsync @2 @10");
    // This would not fit even without that memory.
    stage.call("cuMemAllocAsync >3 192MiB @11", 2);
    stage.call("cuMemAllocAsync >3 32MiB @11", 2);
    assert!(stage.is_there(2));
    stage.has(64, 128);
}

/// If the driver's answer does not show whether the work is done, nothing is freed.
#[test]
fn a_driver_that_does_not_say_whether_work_is_done_keeps_memory() {
    let mut stage = Stage::full(&format!("{ENDLESS}fail.cuEventQuery = 999\n"));
    stage.ok("cuMemAllocAsync >2 64MiB @10");
    stage.work(HOUR, 10);
    stage.ok("cuMemFreeAsync @2 @10");
    assert_eq!(stage.free(), 64 * MIB);
    assert!(stage.is_there(2));
}

#[test]
fn what_is_being_freed_is_freed_once() {
    let mut stage = Stage::full("");
    stage.ok("cuMemAllocAsync >2 64MiB @10");
    stage.ok("cuMemFreeAsync @2 @10");
    stage.call("cuMemFree_v2 @2", 1);
    stage.call("cuMemFreeAsync @2 @11", 1);
    stage.ok("cuMemAllocAsync >3 48MiB @10");
    assert_eq!(stage.free(), 80 * MIB);
    assert!(stage.is_there(3) && !stage.is_there(2));
    stage.has(64, 48);
}

/// Memory ends with the context in which it was allocated.
#[test]
fn memory_is_not_lent_to_another_context() {
    let mut stage = Stage::full("");
    stage.enter(30, 0);
    stage.ok("cuMemAllocAsync >2 64MiB @12");
    // Freed in a stream of the other context, which does not move it to that context.
    stage.ok("cuMemFreeAsync @2 @10");
    stage.leave();
    stage.ok("cuMemAllocAsync >3 64MiB @10");
    stage.has(64, 128);
    stage.ok("cuCtxDestroy_v2 @30");
    assert!(stage.is_there(3));
    stage.has(64, 64);
}

#[test]
fn a_context_ends_while_another_one_works() {
    let mut stage = Stage::full(ENDLESS);
    stage.ok("cuMemAllocAsync >2 64MiB @10");
    stage.work(HOUR, 10);
    stage.ok("cuMemFreeAsync @2 @10");
    stage.enter(30, 0);
    stage.ok("cuMemAllocAsync >3 64MiB @12");
    stage.ok("cuMemFreeAsync @3 @12");
    stage.leave();
    stage.ok("cuCtxDestroy_v2 @30");
    stage.has(64, 64);
    assert!(stage.is_there(2));
}

/// The event belongs to the context of the stream, which may be on another GPU.
#[test]
fn a_context_ends_after_what_its_streams_free_of_another_gpu() {
    let mut stage = Stage::full("kernel_time = 300ms\n");
    stage.ok("cuMemAllocAsync >2 64MiB @10");
    stage.enter(30, 1);
    stage.work(1, 12);
    stage.ok("cuMemFreeAsync @2 @12");
    stage.leave();
    stage.has(64, 64);
    stage.ok("cuCtxDestroy_v2 @30");
    stage.has(64, 0);
    assert!(!stage.is_there(2));
}

#[test]
fn a_capture_has_no_host_part() {
    let mut stage = Stage::full("fail.cuMemAllocAsync = 2 after 1 every 1\n");
    stage.ok("cuMemAllocAsync >2 32MiB 0");
    stage.has(64, 32);
    stage.ok("cuStreamBeginCapture_v2 @10 0");
    stage.call("cuMemAllocAsync >3 32MiB @10", 2);
    stage.has(64, 32);
    // A graph cannot free memory that it did not allocate. The capture goes on undisturbed.
    stage.call("cuMemFreeAsync @2 @10", 1);
    stage.has(64, 32);
    stage.ok("cuMemAllocAsync >4 32MiB @11");
    stage.ok("cuMemFreeAsync @4 @11");
    stage.ok("cuStreamEndCapture @10 >5");
    assert!(stage.is_there(2));
    stage.ok("cuMemFreeAsync @2 @10");
    assert_eq!(stage.free(), 128 * MIB);
    stage.has(64, 0);
}

#[test]
fn a_free_that_cannot_be_ordered_frees_nothing() {
    // Every second call of each fails.
    let faults = "fail.cuEventCreate = 2 after 0 every 2\nfail.cuEventRecord = 400 after 0 every 2\n";
    let mut stage = Stage::full(faults);
    stage.ok("cuMemAllocAsync >2 32MiB 0");
    stage.ok("cuMemAllocAsync >3 32MiB 0");
    stage.call("cuMemFreeAsync @2 0x5555", 400);
    stage.ok("cuMemFreeAsync @2 @10");
    for code in [2, 400, 2] {
        stage.call("cuMemFreeAsync @3 @10", code);
        assert_eq!(stage.free(), 96 * MIB);
        assert!(stage.is_there(3));
    }
    stage.ok("cuMemFreeAsync @3 @10");
    stage.call("cuMemFreeAsync @3 @10", 1);
    assert_eq!(stage.free(), 128 * MIB);
    stage.has(64, 0);
}

#[test]
fn what_is_being_freed_goes_with_its_context_at_last() {
    let mut stage = Stage::full("kernel_time = 300ms\n");
    stage.ok("cuMemAllocAsync >2 64MiB @10");
    stage.ok("cuMemAllocAsync >3 64MiB @10");
    stage.work(1, 10);
    stage.ok("cuMemFreeAsync @2 @10");
    stage.ok("cuDevicePrimaryCtxRelease_v2 0");
    assert_eq!(stage.bench.usage("share").host, 0);
    stage.client.init();
    assert_eq!(number(&stage.bench.run(&["init", "info"])[1], 2), stage.free());
}

#[test]
fn threads_and_contexts_leave_nothing() {
    let bench = Bench::new();
    bench.share_with(128 * MIB, |limits| limits.host_memory = GIB);
    let mut client = bench.serving(&["init"]);
    for _ in 0..3 {
        client.ask("mixed:3000");
        let usage = bench.usage("share");
        assert!(usage.charged <= 128 * MIB && usage.host <= GIB);
        client.ask("freekept");
        assert_eq!(client.free(), 128 * MIB + GIB);
        let usage = bench.usage("share");
        assert_eq!([usage.charged, usage.host], [0; 2]);
    }
}

//! The functions of the driver that `memory` and `compute` call. The shim forwards them to the real driver; tests use a
//! fake ([`fake`](super::fake)).
//!
//! Pointers, handles, streams and devices are the driver's own numbers. The driver validates them: a call with a
//! stale one returns an error.

use core::ffi::c_int;

pub const SUCCESS: c_int = 0;
pub const INVALID_VALUE: c_int = 1;
pub const OUT_OF_MEMORY: c_int = 2;
/// An event is not reached, or a stream has work.
pub const NOT_READY: c_int = 600;

/// An answer of the driver, or its error.
pub type Answer<T> = Result<T, c_int>;

/// Contexts, streams and events.
pub trait Streams {
    /// cuStreamIsCapturing: returns true if calls in `stream` become nodes of a graph.
    fn is_capturing(&self, stream: usize) -> Answer<bool>;
    /// cuStreamSynchronize.
    fn synchronize(&self, stream: usize) -> c_int;
    /// cuCtxGetCurrent; 0: none.
    fn current_context(&self) -> Answer<usize>;
    /// cuCtxPushCurrent.
    fn push_context(&self, context: usize) -> c_int;
    /// cuCtxPopCurrent.
    fn pop_context(&self);
    /// cuStreamGetCtx.
    fn stream_context(&self, stream: usize) -> Answer<usize>;
    /// cuThreadExchangeStreamCaptureMode: sets the calling thread's mode, and returns the one before.
    fn exchange_capture_mode(&self, mode: c_int) -> c_int;
    /// cuEventCreate, without timing.
    fn create_event(&self) -> Answer<usize>;
    /// cuEventCreate, with timing.
    fn create_timing_event(&self) -> Answer<usize>;
    /// cuEventElapsedTime, in ns.
    fn elapsed(&self, from: usize, to: usize) -> Answer<u64>;
    /// cuEventRecord.
    fn record_event(&self, event: usize, stream: usize) -> c_int;
    /// cuEventQuery.
    fn query_event(&self, event: usize) -> c_int;
    /// cuEventSynchronize.
    fn synchronize_event(&self, event: usize) -> c_int;
    /// cuStreamWaitEvent.
    fn wait_for_event(&self, stream: usize, event: usize) -> c_int;
    /// cuEventDestroy.
    fn destroy_event(&self, event: usize) -> c_int;
}

/// All functions of the driver.
pub trait Driver: Streams {
    /// cuMemAlloc, in the current context.
    fn allocate(&self, bytes: u64) -> Answer<u64>;
    /// cuMemFree.
    fn free(&self, pointer: u64) -> c_int;

    /// cuDevicePrimaryCtxGetState: returns Some(true) if the primary context of a device lives, and None if the driver
    /// does not say.
    fn is_primary_active(&self, device: c_int) -> Option<bool>;
    /// cuCtxFromGreenCtx.
    fn context_behind(&self, green: usize) -> Answer<usize>;
    /// Returns the context in which memory was allocated.
    fn pointer_context(&self, pointer: u64) -> Answer<usize>;
    /// Returns true if the driver does not know `pointer` any more.
    fn is_gone(&self, pointer: u64) -> bool;

    /// Returns the bytes that a pool keeps reserved.
    fn pool_reserved(&self, pool: usize) -> Answer<u64>;
    /// Returns the bytes of a pool that are allocated.
    fn pool_used(&self, pool: usize) -> Answer<u64>;
    /// Makes a pool free all unused memory at once.
    fn pool_keep_nothing(&self, pool: usize) -> c_int;
    /// cuMemPoolTrimTo 0.
    fn trim_pool(&self, pool: usize) -> c_int;
    /// cuMemPoolDestroy.
    fn destroy_pool(&self, pool: usize) -> c_int;
    /// cuDeviceGetDefaultMemPool.
    fn default_pool(&self, device: c_int) -> Answer<usize>;
    /// cuDeviceGetMemPool: the pool from which a device allocates.
    fn current_pool(&self, device: c_int) -> Answer<usize>;
    /// cuDeviceSetMemPool.
    fn set_current_pool(&self, device: c_int, pool: usize) -> c_int;

    /// Returns the bytes that a device keeps reserved for graphs.
    fn graphs_reserved(&self, device: c_int) -> Answer<u64>;
    /// cuDeviceGraphMemTrim.
    fn trim_graphs(&self, device: c_int) -> c_int;
}

/// Returns true if an allocation in `stream` becomes a node of a graph, and takes no memory yet.
pub fn is_captured(driver: &impl Streams, stream: usize) -> bool {
    /// The default stream of a thread, the only default stream that can be captured.
    const PER_THREAD: usize = 2;
    let stream = if stream == 0 { PER_THREAD } else { stream };
    driver.is_capturing(stream) == Ok(true)
}

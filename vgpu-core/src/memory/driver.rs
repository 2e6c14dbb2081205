//! The functions of the driver that the logic of memory calls. The shim forwards them to the real driver; tests
//! have a fake one ([`fake`](super::fake)).
//!
//! Pointers, handles, streams and devices are the driver's own numbers. The driver validates them: a call with a
//! stale one returns an error.

use core::ffi::c_int;

pub const SUCCESS: c_int = 0;
pub const INVALID_VALUE: c_int = 1;
pub const OUT_OF_MEMORY: c_int = 2;

/// An answer of the driver, or its error.
pub type Answer<T> = Result<T, c_int>;

pub trait Driver {
    /// cuMemFree.
    fn free(&self, pointer: u64) -> c_int;

    /// cuStreamIsCapturing: whether calls in `stream` become nodes of a graph.
    fn is_capturing(&self, stream: usize) -> Answer<bool>;
    /// cuStreamSynchronize.
    fn synchronize(&self, stream: usize) -> c_int;
    /// cuCtxGetCurrent; 0: none.
    fn current_context(&self) -> Answer<usize>;

    /// Returns the bytes that a pool keeps reserved.
    fn pool_reserved(&self, pool: usize) -> Answer<u64>;
    /// Returns the bytes of a pool that are allocated.
    fn pool_used(&self, pool: usize) -> Answer<u64>;
    /// Has a pool keep nothing that is unused.
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
pub fn is_captured(driver: &impl Driver, stream: usize) -> bool {
    /// The default stream that can be captured: the thread's own.
    const PER_THREAD: usize = 2;
    let stream = if stream == 0 { PER_THREAD } else { stream };
    driver.is_capturing(stream) == Ok(true)
}

//! The real driver as `vgpu_core` calls it.

use crate::codes::{INVALID_VALUE, SUCCESS};
use crate::names::slot;
use crate::real::{self, real};
use core::ffi::{c_int, c_uint, c_void};
use vgpu_core::memory::driver::{Answer, Driver, Streams};

/// The real driver. It has no state in this library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Real;

pub(crate) type Gpu = vgpu_core::memory::gpu::Gpu<Real>;
pub(crate) type Tables = vgpu_core::memory::tables::Tables<Real>;
pub(crate) type Backing = vgpu_core::memory::backing::Backing<Real>;
pub(crate) type Bindings = vgpu_core::memory::backing::Bindings<Real>;

/// Returns what a call has written, or its error.
fn answer<T>(result: c_int, value: T) -> Answer<T> {
    if result == SUCCESS { Ok(value) } else { Err(result) }
}

fn pool_attribute(pool: usize, attribute: c_int) -> Answer<u64> {
    let mut value: u64 = 0;
    let at: *mut u64 = &mut value;
    // SAFETY: the attributes that are asked for are 8 bytes, to be written.
    let result = unsafe { real!(cuMemPoolGetAttribute(usize, c_int, *mut c_void))(pool, attribute, at.cast()) };
    answer(result, value)
}

impl Streams for Real {
    fn is_capturing(&self, stream: usize) -> Answer<bool> {
        let mut status = 0;
        // SAFETY: to be written.
        let result = unsafe { real!(cuStreamIsCapturing(usize, *mut c_int))(stream, &mut status) };
        answer(result, status != 0)
    }

    fn synchronize(&self, stream: usize) -> c_int {
        // SAFETY: the caller's stream.
        unsafe { real!(cuStreamSynchronize(usize))(stream) }
    }

    fn current_context(&self) -> Answer<usize> {
        let mut context = 0;
        // SAFETY: to be written.
        let result = unsafe { real!(cuCtxGetCurrent(*mut usize))(&mut context) };
        answer(result, context)
    }

    fn push_context(&self, context: usize) -> c_int {
        // SAFETY: a context of the driver's, which the caller pops.
        unsafe { real!(cuCtxPushCurrent_v2(usize))(context) }
    }

    fn pop_context(&self) {
        let mut context = 0;
        // SAFETY: to be written; the caller has pushed one.
        unsafe { real!(cuCtxPopCurrent_v2(*mut usize))(&mut context) };
    }

    fn stream_context(&self, stream: usize) -> Answer<usize> {
        let mut context = 0;
        // SAFETY: to be written; the driver validates the stream.
        let result = unsafe { real!(cuStreamGetCtx(usize, *mut usize))(stream, &mut context) };
        answer(result, context)
    }

    fn exchange_capture_mode(&self, mut mode: c_int) -> c_int {
        // SAFETY: to be read and written.
        unsafe { real!(cuThreadExchangeStreamCaptureMode(*mut c_int))(&mut mode) };
        mode
    }

    fn create_event(&self) -> Answer<usize> {
        const DISABLE_TIMING: c_uint = 2;
        let mut event = 0;
        // SAFETY: to be written.
        let result = unsafe { real!(cuEventCreate(*mut usize, c_uint))(&mut event, DISABLE_TIMING) };
        answer(result, event)
    }

    fn record_event(&self, event: usize, stream: usize) -> c_int {
        // SAFETY: an event of ours, and the caller's stream.
        unsafe { real!(cuEventRecord(usize, usize))(event, stream) }
    }

    fn query_event(&self, event: usize) -> c_int {
        // SAFETY: an event of ours.
        unsafe { real!(cuEventQuery(usize))(event) }
    }

    fn synchronize_event(&self, event: usize) -> c_int {
        // SAFETY: an event of ours.
        unsafe { real!(cuEventSynchronize(usize))(event) }
    }

    fn wait_for_event(&self, stream: usize, event: usize) -> c_int {
        // SAFETY: an event of ours, and the caller's stream.
        unsafe { real!(cuStreamWaitEvent(usize, usize, c_uint))(stream, event, 0) }
    }

    fn destroy_event(&self, event: usize) -> c_int {
        // SAFETY: an event of ours that is not used any more.
        unsafe { real!(cuEventDestroy_v2(usize))(event) }
    }

    fn create_timing_event(&self) -> Answer<usize> {
        const DEFAULT: c_uint = 0;
        let mut event = 0;
        // SAFETY: to be written.
        let result = unsafe { real!(cuEventCreate(*mut usize, c_uint))(&mut event, DEFAULT) };
        answer(result, event)
    }

    fn elapsed(&self, from: usize, to: usize) -> Answer<u64> {
        let mut milliseconds = 0.0_f32;
        let ask = if real::has(slot::cuEventElapsedTime) {
            real!(cuEventElapsedTime(*mut f32, usize, usize))
        } else {
            real!(cuEventElapsedTime_v2(*mut f32, usize, usize))
        };
        // SAFETY: to be written; two events of ours.
        let result = unsafe { ask(&mut milliseconds, from, to) };
        answer(result, (f64::from(milliseconds).max(0.0) * 1e6) as u64)
    }
}

impl Driver for Real {
    fn allocate(&self, bytes: u64) -> Answer<u64> {
        let mut pointer = 0;
        // SAFETY: to be written.
        let result = unsafe { real!(cuMemAlloc_v2(*mut u64, usize))(&mut pointer, bytes as usize) };
        answer(result, pointer)
    }

    fn free(&self, pointer: u64) -> c_int {
        // SAFETY: the driver validates the pointer, which no other thread has.
        unsafe { real!(cuMemFree_v2(u64))(pointer) }
    }

    fn is_primary_active(&self, device: c_int) -> Option<bool> {
        let (mut flags, mut active) = (0, 0);
        let ask = real!(cuDevicePrimaryCtxGetState(c_int, *mut c_uint, *mut c_int));
        // SAFETY: both are to be written.
        let result = unsafe { ask(device, &mut flags, &mut active) };
        answer(result, active != 0).ok()
    }

    fn context_behind(&self, green: usize) -> Answer<usize> {
        let mut context = 0;
        // SAFETY: to be written; a green context of the driver's.
        let result = unsafe { real!(cuCtxFromGreenCtx(*mut usize, usize))(&mut context, green) };
        answer(result, context)
    }

    fn pointer_context(&self, pointer: u64) -> Answer<usize> {
        const CONTEXT: c_int = 1;
        let mut context = 0_usize;
        let at: *mut usize = &mut context;
        let ask = real!(cuPointerGetAttribute(*mut c_void, c_int, u64));
        // SAFETY: `context` is to be written; the driver validates the pointer.
        let result = unsafe { ask(at.cast(), CONTEXT, pointer) };
        answer(result, context)
    }

    fn is_gone(&self, pointer: u64) -> bool {
        const MEMORY_TYPE: c_int = 2;
        let mut kind: c_uint = 0;
        let at: *mut c_uint = &mut kind;
        let ask = real!(cuPointerGetAttribute(*mut c_void, c_int, u64));
        // SAFETY: `kind` is to be written; the driver validates the pointer.
        let result = unsafe { ask(at.cast(), MEMORY_TYPE, pointer) };
        result == INVALID_VALUE
    }

    fn pool_reserved(&self, pool: usize) -> Answer<u64> {
        const RESERVED_MEM_CURRENT: c_int = 5;
        pool_attribute(pool, RESERVED_MEM_CURRENT)
    }

    fn pool_used(&self, pool: usize) -> Answer<u64> {
        const USED_MEM_CURRENT: c_int = 7;
        pool_attribute(pool, USED_MEM_CURRENT)
    }

    fn pool_keep_nothing(&self, pool: usize) -> c_int {
        const RELEASE_THRESHOLD: c_int = 4;
        let mut nothing = 0_u64;
        let nothing: *mut u64 = &mut nothing;
        // SAFETY: the attribute is 8 bytes, to be read.
        unsafe { real!(cuMemPoolSetAttribute(usize, c_int, *mut c_void))(pool, RELEASE_THRESHOLD, nothing.cast()) }
    }

    fn trim_pool(&self, pool: usize) -> c_int {
        // SAFETY: a pool that the program or the driver has made.
        unsafe { real!(cuMemPoolTrimTo(usize, usize))(pool, 0) }
    }

    fn destroy_pool(&self, pool: usize) -> c_int {
        // SAFETY: a pool that the program has made, and asked to be destroyed.
        unsafe { real!(cuMemPoolDestroy(usize))(pool) }
    }

    fn default_pool(&self, device: c_int) -> Answer<usize> {
        let mut pool = 0;
        // SAFETY: to be written.
        let result = unsafe { real!(cuDeviceGetDefaultMemPool(*mut usize, c_int))(&mut pool, device) };
        answer(result, pool)
    }

    fn current_pool(&self, device: c_int) -> Answer<usize> {
        let mut pool = 0;
        // SAFETY: to be written.
        let result = unsafe { real!(cuDeviceGetMemPool(*mut usize, c_int))(&mut pool, device) };
        answer(result, pool)
    }

    fn set_current_pool(&self, device: c_int, pool: usize) -> c_int {
        // SAFETY: a device and a pool of the driver's.
        unsafe { real!(cuDeviceSetMemPool(c_int, usize))(device, pool) }
    }

    fn graphs_reserved(&self, device: c_int) -> Answer<u64> {
        const RESERVED_MEM_CURRENT: c_int = 2;
        let mut reserved = 0_u64;
        let at: *mut u64 = &mut reserved;
        // SAFETY: the attribute is 8 bytes, to be written.
        let result = unsafe {
            real!(cuDeviceGetGraphMemAttribute(c_int, c_int, *mut c_void))(device, RESERVED_MEM_CURRENT, at.cast())
        };
        answer(result, reserved)
    }

    fn trim_graphs(&self, device: c_int) -> c_int {
        // SAFETY: a device of the driver's.
        unsafe { real!(cuDeviceGraphMemTrim(c_int))(device) }
    }
}

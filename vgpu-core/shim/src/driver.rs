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

/// Returns the value that a call has written, or the call's error.
pub(crate) fn answer<T>(result: c_int, value: T) -> Answer<T> {
    if result == SUCCESS { Ok(value) } else { Err(result) }
}

/// Makes a call that writes `value`, and returns the value or the call's error.
macro_rules! ask {
    (|$value:ident: $kind:ty| $call:expr) => {{
        let mut $value: $kind = Default::default();
        // SAFETY: the value has the type that the driver writes; the driver validates handles and pointers.
        let result = unsafe { $call };
        $crate::driver::answer(result, $value)
    }};
}
pub(crate) use ask;

fn create_event(flags: c_uint) -> Answer<usize> {
    ask!(|event: usize| real!(cuEventCreate(*mut usize, c_uint))(&mut event, flags))
}

/// Returns an attribute of 8 bytes.
fn pool_attribute(pool: usize, attribute: c_int) -> Answer<u64> {
    ask!(|value: u64| real!(cuMemPoolGetAttribute)(pool, attribute, (&raw mut value).cast()))
}

/// Calls for the hooks.
impl Real {
    /// Returns the device of the current context.
    #[inline(always)]
    pub(crate) fn current_device(self) -> Answer<c_int> {
        ask!(|device: c_int| real!(cuCtxGetDevice)(&mut device))
    }

    pub(crate) fn device_attribute(self, attribute: c_int, device: c_int) -> Answer<c_int> {
        ask!(|value: c_int| real!(cuDeviceGetAttribute(*mut c_int, c_int, c_int))(&mut value, attribute, device))
    }

    /// Returns the device of what lies at `pointer`; host memory has one too.
    pub(crate) fn pointer_device(self, pointer: u64) -> Answer<c_int> {
        const DEVICE_ORDINAL: c_int = 9;
        ask!(|device: c_int| real!(cuPointerGetAttribute)((&raw mut device).cast(), DEVICE_ORDINAL, pointer))
    }

    /// Returns the CUmemorytype of what lies at `pointer`.
    pub(crate) fn memory_type(self, pointer: u64) -> Answer<c_uint> {
        const MEMORY_TYPE: c_int = 2;
        ask!(|kind: c_uint| real!(cuPointerGetAttribute)((&raw mut kind).cast(), MEMORY_TYPE, pointer))
    }

    /// Returns start and size of the allocation around `pointer`.
    pub(crate) fn address_range(self, pointer: u64) -> Answer<(u64, usize)> {
        ask!(
            |range: (u64, usize)| real!(cuMemGetAddressRange_v2(*mut u64, *mut usize, u64))(
                &mut range.0,
                &mut range.1,
                pointer
            )
        )
    }
}

impl Streams for Real {
    fn is_capturing(&self, stream: usize) -> Answer<bool> {
        ask!(|status: c_int| real!(cuStreamIsCapturing(usize, *mut c_int))(stream, &mut status))
            .map(|status| status != 0)
    }

    fn synchronize(&self, stream: usize) -> c_int {
        // SAFETY: the caller's stream.
        unsafe { real!(cuStreamSynchronize)(stream) }
    }

    fn current_context(&self) -> Answer<usize> {
        ask!(|context: usize| real!(cuCtxGetCurrent(*mut usize))(&mut context))
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
        ask!(|context: usize| real!(cuStreamGetCtx(usize, *mut usize))(stream, &mut context))
    }

    fn exchange_capture_mode(&self, mut mode: c_int) -> c_int {
        // SAFETY: to be read and written.
        unsafe { real!(cuThreadExchangeStreamCaptureMode(*mut c_int))(&mut mode) };
        mode
    }

    fn create_event(&self) -> Answer<usize> {
        const DISABLE_TIMING: c_uint = 2;
        create_event(DISABLE_TIMING)
    }

    fn record_event(&self, event: usize, stream: usize) -> c_int {
        // SAFETY: an event of ours, and the caller's stream.
        unsafe { real!(cuEventRecord(usize, usize))(event, stream) }
    }

    fn query_event(&self, event: usize) -> c_int {
        // SAFETY: an event of ours.
        unsafe { real!(cuEventQuery)(event) }
    }

    fn synchronize_event(&self, event: usize) -> c_int {
        // SAFETY: an event of ours.
        unsafe { real!(cuEventSynchronize)(event) }
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
        create_event(DEFAULT)
    }

    fn elapsed(&self, from: usize, to: usize) -> Answer<u64> {
        let ask = if real::has(slot::cuEventElapsedTime) {
            real!(cuEventElapsedTime(*mut f32, usize, usize))
        } else {
            real!(cuEventElapsedTime_v2(*mut f32, usize, usize))
        };
        let milliseconds = ask!(|milliseconds: f32| ask(&mut milliseconds, from, to))?;
        Ok((f64::from(milliseconds).max(0.0) * 1e6) as u64)
    }
}

impl Driver for Real {
    fn allocate(&self, bytes: u64) -> Answer<u64> {
        ask!(|pointer: u64| real!(cuMemAlloc_v2)(&mut pointer, bytes as usize))
    }

    fn free(&self, pointer: u64) -> c_int {
        // SAFETY: the driver validates the pointer, which no other thread has.
        unsafe { real!(cuMemFree_v2)(pointer) }
    }

    fn is_primary_active(&self, device: c_int) -> Option<bool> {
        let ask = real!(cuDevicePrimaryCtxGetState(c_int, *mut c_uint, *mut c_int));
        let state = ask!(|state: (c_uint, c_int)| ask(device, &mut state.0, &mut state.1));
        state.ok().map(|(_, active)| active != 0)
    }

    fn context_behind(&self, green: usize) -> Answer<usize> {
        ask!(|context: usize| real!(cuCtxFromGreenCtx(*mut usize, usize))(&mut context, green))
    }

    fn pointer_context(&self, pointer: u64) -> Answer<usize> {
        const CONTEXT: c_int = 1;
        ask!(|context: usize| real!(cuPointerGetAttribute)((&raw mut context).cast(), CONTEXT, pointer))
    }

    fn is_gone(&self, pointer: u64) -> bool {
        self.memory_type(pointer) == Err(INVALID_VALUE)
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
        unsafe { real!(cuMemPoolTrimTo)(pool, 0) }
    }

    fn destroy_pool(&self, pool: usize) -> c_int {
        // SAFETY: a pool that the program has made, and asked to be destroyed.
        unsafe { real!(cuMemPoolDestroy)(pool) }
    }

    fn default_pool(&self, device: c_int) -> Answer<usize> {
        ask!(|pool: usize| real!(cuDeviceGetDefaultMemPool(*mut usize, c_int))(&mut pool, device))
    }

    fn current_pool(&self, device: c_int) -> Answer<usize> {
        ask!(|pool: usize| real!(cuDeviceGetMemPool(*mut usize, c_int))(&mut pool, device))
    }

    fn set_current_pool(&self, device: c_int, pool: usize) -> c_int {
        // SAFETY: a device and a pool of the driver's.
        unsafe { real!(cuDeviceSetMemPool(c_int, usize))(device, pool) }
    }

    fn graphs_reserved(&self, device: c_int) -> Answer<u64> {
        const RESERVED_MEM_CURRENT: c_int = 2;
        let ask = real!(cuDeviceGetGraphMemAttribute(c_int, c_int, *mut c_void));
        ask!(|reserved: u64| ask(device, RESERVED_MEM_CURRENT, (&raw mut reserved).cast()))
    }

    fn trim_graphs(&self, device: c_int) -> c_int {
        // SAFETY: a device of the driver's.
        unsafe { real!(cuDeviceGraphMemTrim)(device) }
    }
}

//! The real driver as `vgpu_core::memory` calls it.

use crate::codes::SUCCESS;
use crate::real::real;
use core::ffi::{c_int, c_void};
use vgpu_core::memory::driver::{Answer, Driver};

/// The real driver: its functions have no state of ours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Real;

pub(crate) type Gpu = vgpu_core::memory::gpu::Gpu<Real>;
pub(crate) type Backing = vgpu_core::memory::backing::Backing<Real>;
pub(crate) type Bindings = vgpu_core::memory::backing::Bindings<Real>;
pub(crate) type Mappings = vgpu_core::memory::backing::Mappings<Real>;
pub(crate) type Arrays = vgpu_core::memory::arrays::Arrays<Real>;

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

impl Driver for Real {
    fn free(&self, pointer: u64) -> c_int {
        // SAFETY: the driver validates the pointer, which nobody else has.
        unsafe { real!(cuMemFree_v2(u64))(pointer) }
    }

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

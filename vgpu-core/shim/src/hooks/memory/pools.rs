//! Hooks for pools: finds the GPU of a pool and translates device numbers. `vgpu_core::memory::pools` charges them.

use crate::codes::{INVALID_VALUE, OUT_OF_MEMORY, SUCCESS};
use crate::driver::{Gpu, Real};
use crate::hooks::devices::locations::Location;
use crate::hooks::{host, sharing};
use crate::process::{Devices, Ready};
use crate::real::real;
use core::ffi::{c_int, c_void};
use vgpu_core::memory::deferred_free;
use vgpu_core::memory::driver::Driver;
use vgpu_core::memory::free::free_charged;
use vgpu_core::memory::pools::Wanted;
use vgpu_core::memory::room;

/// CUmemPoolProps: as the driver has it; only where the pool lies matters here.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    kind: c_int,
    handle_types: c_int,
    pub(crate) location: Location,
    security: *mut c_void,
    max_size: usize,
    usage: u16,
    reserved: [u8; 54],
}
const _: () = assert!(size_of::<Properties>() == 88);

/// The stream that 0 is for functions whose name ends so: CU_STREAM_PER_THREAD.
const PER_THREAD: usize = 2;

impl Properties {
    /// Returns true if it asks for plain memory on a GPU: not exported, managed or bounded.
    fn is_plain(&self) -> bool {
        const PINNED: c_int = 1;
        self.kind == PINNED && self.handle_types == 0 && self.max_size == 0 && self.usage == 0
    }
}

type Alloc = unsafe extern "C" fn(*mut u64, usize, usize) -> c_int;
type AllocFrom = unsafe extern "C" fn(*mut u64, usize, usize, usize) -> c_int;

pub(crate) unsafe fn alloc(
    ready: &'static Ready,
    real: Alloc,
    pointer: *mut u64,
    bytes: usize,
    stream: usize,
) -> c_int {
    // SAFETY: passed on, here and below.
    let pass = || unsafe { real(pointer, bytes, stream) };
    let Some((gpu, device)) = place_of(ready, stream) else {
        return pass();
    };
    match Real.current_pool(device) {
        // SAFETY: as promised.
        Ok(pool) => unsafe { from(ready, gpu, pool, pointer, bytes, stream, pass) },
        // It cannot be charged.
        Err(error) => error,
    }
}

/// Allocates from `pool`, or from host memory if the share has it and the pool cannot grow.
///
/// # Safety
/// As for the driver's function.
unsafe fn from(
    ready: &'static Ready,
    gpu: &Gpu,
    pool: usize,
    pointer: *mut u64,
    bytes: usize,
    stream: usize,
    pass: impl Fn() -> c_int,
) -> c_int {
    let result = if bytes == 0 || pointer.is_null() {
        pass()
    } else {
        let bytes = bytes as u64;
        let allocate = || match pass() {
            // SAFETY: the driver has written it.
            SUCCESS => Ok(unsafe { *pointer }),
            error => Err(error),
        };
        let grown = room::grow(gpu, Wanted { pool, bytes, stream }, allocate);
        grown.err().unwrap_or(SUCCESS)
    };
    if result == OUT_OF_MEMORY && gpu.account.has_host() && !pointer.is_null() && is_plain(ready, gpu, pool) {
        // SAFETY: the caller's, to be written.
        return unsafe { host::managed::instead_in_order(ready, gpu, pointer, bytes as u64, stream) };
    }
    result
}

/// Returns true if host memory may stand in for that of `pool`, of `gpu`.
#[cold]
fn is_plain(ready: &Ready, gpu: &Gpu, pool: usize) -> bool {
    let is_default = |(device, _): &(c_int, usize)| Real.default_pool(*device) == Ok(pool);
    let default = |devices: &Devices| devices.list.iter().any(is_default);
    gpu.pools.is_plain(pool) || ready.devices().is_some_and(default)
}

pub(crate) unsafe fn alloc_ptsz(
    ready: &'static Ready,
    real: Alloc,
    pointer: *mut u64,
    bytes: usize,
    stream: usize,
) -> c_int {
    // SAFETY: passed on.
    unsafe { alloc(ready, real, pointer, bytes, per_thread(stream)) }
}

fn per_thread(stream: usize) -> usize {
    if stream == 0 { PER_THREAD } else { stream }
}

pub(crate) unsafe fn alloc_from(
    ready: &'static Ready,
    real: AllocFrom,
    pointer: *mut u64,
    bytes: usize,
    pool: usize,
    stream: usize,
) -> c_int {
    // SAFETY: passed on.
    let pass = || unsafe { real(pointer, bytes, pool, stream) };
    let owner = ready.gpus.iter().find(|gpu| gpu.pools.has(pool)).or_else(|| {
        // A default pool is known to us only here.
        let devices = ready.devices()?;
        let default = devices
            .list
            .iter()
            .find(|(device, _)| Real.default_pool(*device) == Ok(pool));
        ready
            .gpus
            .get(default.map(|(_, gpu)| *gpu).or_else(|| ready.current())?)
    });
    match owner {
        // SAFETY: as promised.
        Some(gpu) => unsafe { from(ready, gpu, pool, pointer, bytes, stream, pass) },
        // There is no context either, and nobody to charge.
        None => INVALID_VALUE,
    }
}

pub(crate) unsafe fn alloc_from_ptsz(
    ready: &'static Ready,
    real: AllocFrom,
    pointer: *mut u64,
    bytes: usize,
    pool: usize,
    stream: usize,
) -> c_int {
    // SAFETY: passed on.
    unsafe { alloc_from(ready, real, pointer, bytes, pool, per_thread(stream)) }
}

/// The GPU and the device of a stream: memory comes from its pool, whatever context is current.
fn place_of(ready: &'static Ready, stream: usize) -> Option<(&'static Gpu, c_int)> {
    let devices = ready.devices()?;
    let (device, gpu) = match devices.list.as_slice() {
        [one] => *one,
        several => {
            let (mut device, mut context) = (-1, 0);
            // SAFETY: all are to be written; the context that was pushed is popped.
            unsafe {
                if real!(cuStreamGetCtx(usize, *mut usize))(stream, &mut context) == SUCCESS
                    && real!(cuCtxPushCurrent_v2(usize))(context) == SUCCESS
                {
                    real!(cuCtxGetDevice(*mut c_int))(&mut device);
                    real!(cuCtxPopCurrent_v2(*mut usize))(&mut context);
                }
            }
            *several.iter().find(|(known, _)| *known == device)?
        }
    };
    Some((ready.gpus.get(gpu)?, device))
}

pub(crate) unsafe fn free(
    ready: &'static Ready,
    real: unsafe extern "C" fn(u64, usize) -> c_int,
    pointer: u64,
    stream: usize,
) -> c_int {
    // SAFETY: passed on. Memory of cuMemAlloc may be freed here as well.
    let pass = || unsafe { real(pointer, stream) };
    let free = || match ready.gpus.iter().any(|gpu| gpu.account.has_host()) {
        true => deferred_free::free(&ready.gpus, &ready.tables.live, pointer, stream, pass),
        false => free_charged(&ready.gpus, &ready.tables.live, pointer, pass),
    };
    let result = if sharing::externals::used() {
        sharing::externals::freed(ready, pointer, free)
    } else {
        free()
    };
    room::after_free(&ready.gpus);
    result
}

pub(crate) unsafe fn free_ptsz(
    ready: &'static Ready,
    real: unsafe extern "C" fn(u64, usize) -> c_int,
    pointer: u64,
    stream: usize,
) -> c_int {
    // SAFETY: passed on.
    unsafe { free(ready, real, pointer, per_thread(stream)) }
}

pub(crate) unsafe fn create(
    ready: &'static Ready,
    real: unsafe extern "C" fn(*mut usize, *const Properties) -> c_int,
    pool: *mut usize,
    properties: *const Properties,
) -> c_int {
    // SAFETY: null, or the caller's properties.
    let Some(mut own) = (unsafe { properties.as_ref() }).copied() else {
        // SAFETY: passed on.
        return unsafe { real(pool, properties) };
    };
    let Some(devices) = ready.devices() else {
        // SAFETY: passed on.
        return unsafe { real(pool, properties) };
    };
    let gpu = own.location.gpu(devices);
    let location = match own.location.real(devices) {
        Ok(location) => location,
        Err(error) => return error,
    };
    own.location = location;
    // SAFETY: passed on, with the real device in a copy.
    let result = unsafe { real(pool, &own) };
    if let (SUCCESS, Some(gpu), false) = (result, gpu.and_then(|gpu| ready.gpus.get(gpu)), pool.is_null()) {
        // SAFETY: the driver has written it.
        gpu.pools.know(unsafe { *pool }, own.is_plain());
    }
    result
}

pub(crate) unsafe fn destroy(ready: &'static Ready, real: unsafe extern "C" fn(usize) -> c_int, pool: usize) -> c_int {
    // SAFETY: passed on.
    let destroy = || unsafe { real(pool) };
    let retired = ready.gpus.iter().enumerate().find_map(|(index, gpu)| {
        let device = || ready.devices().and_then(|devices| devices.of_gpu(index));
        gpu.pools.retire(&gpu.driver, &gpu.account, device, pool, destroy)
    });
    retired.unwrap_or_else(destroy)
}

pub(crate) unsafe fn trim(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, usize) -> c_int,
    pool: usize,
    keep: usize,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(pool, keep) };
    ready.gpus.iter().for_each(|gpu| {
        deferred_free::collect(&ready.gpus, &ready.tables.live, gpu);
        gpu.pools.refresh(&gpu.driver, &gpu.account);
    });
    result
}

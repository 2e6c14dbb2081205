//! Hooks for pools: finds the GPU of a pool and translates device numbers. `vgpu_core::memory::pools` charges them.

use crate::codes::{INVALID_VALUE, OUT_OF_MEMORY, SUCCESS};
use crate::driver::{Gpu, Real};
use crate::hooks::devices::locations::{Located, Location, on_gpu};
use crate::hooks::{host, sharing};
use crate::process::{Devices, Ready};
use core::ffi::{c_int, c_void};
use vgpu_core::memory::deferred_free;
use vgpu_core::memory::driver::{Driver, Streams};
use vgpu_core::memory::free::free_charged;
use vgpu_core::memory::pools::Wanted;
use vgpu_core::memory::room;

/// CUmemPoolProps, with the driver's layout. Only its location matters here.
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

impl Located for Properties {
    fn location(&mut self) -> &mut Location {
        &mut self.location
    }
}

impl Properties {
    /// Returns true if the properties ask for plain memory on a GPU: not exported, managed or bounded.
    fn is_plain(&self) -> bool {
        const PINNED: c_int = 1;
        self.kind == PINNED && self.handle_types == 0 && self.max_size == 0 && self.usage == 0
    }
}

pub(crate) unsafe fn alloc(
    ready: &'static Ready,
    pointer: *mut u64,
    bytes: usize,
    stream: usize,
    next: impl Fn() -> c_int,
) -> c_int {
    let Some((gpu, device)) = place_of(ready, stream) else {
        return next();
    };
    match Real.current_pool(device) {
        // SAFETY: as promised.
        Ok(pool) => unsafe { from(ready, gpu, pool, pointer, bytes, stream, next) },
        // The current pool is unknown, so the allocation cannot be charged.
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
    next: impl Fn() -> c_int,
) -> c_int {
    let result = if bytes == 0 || pointer.is_null() {
        next()
    } else {
        let bytes = bytes as u64;
        let allocate = || match next() {
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

/// Returns true if host memory may replace memory of this pool of `gpu`.
#[cold]
fn is_plain(ready: &Ready, gpu: &Gpu, pool: usize) -> bool {
    let is_default = |(device, _): &(c_int, usize)| Real.default_pool(*device) == Ok(pool);
    let default = |devices: &Devices| devices.list.iter().any(is_default);
    gpu.pools.is_plain(pool) || ready.devices().is_some_and(default)
}

pub(crate) unsafe fn alloc_from(
    ready: &'static Ready,
    pointer: *mut u64,
    bytes: usize,
    pool: usize,
    stream: usize,
    next: impl Fn() -> c_int,
) -> c_int {
    let owner = ready.gpus.iter().find(|gpu| gpu.pools.has(pool)).or_else(|| {
        // This is the only place where we learn of a default pool.
        let mut devices = ready.devices()?.list.iter();
        let default = devices.find(|(device, _)| Real.default_pool(*device) == Ok(pool));
        ready
            .gpus
            .get(default.map(|(_, gpu)| *gpu).or_else(|| ready.current())?)
    });
    match owner {
        // SAFETY: as promised.
        Some(gpu) => unsafe { from(ready, gpu, pool, pointer, bytes, stream, next) },
        // There is no context either, and no share to charge.
        None => INVALID_VALUE,
    }
}

/// Returns the GPU and the device of a stream: memory comes from that device's pool, whatever context is current.
fn place_of(ready: &'static Ready, stream: usize) -> Option<(&'static Gpu, c_int)> {
    let devices = ready.devices()?;
    let (device, gpu) = match devices.list.as_slice() {
        [one] => *one,
        several => {
            let context = Real.stream_context(stream).ok()?;
            (Real.push_context(context) == SUCCESS).then_some(())?;
            let device = Real.current_device();
            Real.pop_context();
            *several.iter().find(|(known, _)| Ok(*known) == device)?
        }
    };
    Some((ready.gpus.get(gpu)?, device))
}

pub(crate) fn free(ready: &'static Ready, pointer: u64, stream: usize, next: impl Fn() -> c_int) -> c_int {
    free_in_order(ready, pointer, stream, &next)
}

/// Frees in stream order. One function for both names, for the same reason as [`free_any`](super::free).
fn free_in_order(ready: &'static Ready, pointer: u64, stream: usize, next: &dyn Fn() -> c_int) -> c_int {
    // Memory of cuMemAlloc may also be freed here.
    let free = || match ready.gpus.iter().any(|gpu| gpu.account.has_host()) {
        true => deferred_free::free(&ready.gpus, &ready.tables.live, pointer, stream, next),
        false => free_charged(&ready.gpus, &ready.tables.live, pointer, next),
    };
    let result = if sharing::externals::used() {
        sharing::externals::freed(ready, pointer, free)
    } else {
        free()
    };
    room::after_free(&ready.gpus);
    result
}

pub(crate) unsafe fn create(
    ready: &'static Ready,
    pool: *mut usize,
    properties: *const Properties,
    next: impl FnOnce(*const Properties) -> c_int,
) -> c_int {
    // SAFETY: as promised.
    let (result, gpu) = unsafe { on_gpu(ready, properties, next) };
    // SAFETY: null, or the caller's, as the driver has read them; and null or written by it.
    let (asked, made) = unsafe { (properties.as_ref(), pool.as_ref()) };
    if let (SUCCESS, Some(gpu), Some(asked), Some(made)) = (result, gpu, asked, made) {
        gpu.pools.know(*made, asked.is_plain());
    }
    result
}

pub(crate) fn destroy(ready: &'static Ready, pool: usize, next: impl Fn() -> c_int) -> c_int {
    let retired = ready.gpus.iter().enumerate().find_map(|(index, gpu)| {
        let device = || ready.devices().and_then(|devices| devices.of_gpu(index));
        gpu.pools.retire(&gpu.driver, &gpu.account, device, pool, &next)
    });
    retired.unwrap_or_else(next)
}

pub(crate) fn trim(ready: &'static Ready, next: impl FnOnce() -> c_int) -> c_int {
    let result = next();
    ready.gpus.iter().for_each(|gpu| {
        deferred_free::collect(&ready.gpus, &ready.tables.live, gpu);
        gpu.pools.refresh(&gpu.driver, &gpu.account);
    });
    result
}

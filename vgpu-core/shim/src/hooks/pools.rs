//! Memory pools: charged by what they keep reserved, which the driver tells.
//!
//! ```text
//!  alloc ─► charge as if the pool grew by all of it ─► driver ─► ask what the pool reserves ─► charge that
//!  about to be refused ─► trim every pool, ask again ─► once more
//! ```
//!
//! A pool shrinks at moments that nobody tells us (a synchronisation), so it is asked again at each
//! call about pools and each look at what is free; until then too much is charged, never too little.

use crate::detour::{OUT_OF_MEMORY, SUCCESS};
use crate::hooks::memory::GRANULE;
use crate::hooks::vmm::Location;
use crate::real::real;
use crate::state::{Gpu, Ready};
use core::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use vgpu_core::account::{Charge, rounded};

const RESERVED_MEM_CURRENT: c_int = 5;
const USED_MEM_CURRENT: c_int = 7;

/// Whether this process has ever used a pool: spares the others the look.
static USED: AtomicBool = AtomicBool::new(false);

/// A pool and what it is charged.
#[derive(Debug)]
pub(crate) struct Pool {
    handle: usize,
    charges: Vec<Charge>,
    charged: u64,
}

/// CUmemPoolProps: as the driver has it; only where the pool lies matters here.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    security: *mut c_void,
    max_size: usize,
    usage: u16,
    reserved: [u8; 54],
}
const _: () = assert!(size_of::<Properties>() == 88);

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
    let Some(gpu) = ready.current().and_then(|gpu| ready.gpus.get(gpu)) else {
        return pass();
    };
    match current_pool() {
        Some(pool) => grow(gpu, pool, pointer, bytes, pass),
        None => pass(),
    }
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
    let owner = ready
        .gpus
        .iter()
        .find(|gpu| gpu.pools.lock().iter().any(|known| known.handle == pool));
    // A default pool is known to us only here.
    match owner.or_else(|| ready.gpus.get(ready.current()?)) {
        Some(gpu) => grow(gpu, pool, pointer, bytes, pass),
        None => pass(),
    }
}

/// The pool from which the calling thread's device allocates.
fn current_pool() -> Option<usize> {
    let (mut device, mut pool) = (0, 0);
    // SAFETY: both are to be written.
    let result = unsafe {
        match real!(cuCtxGetDevice(*mut c_int))(&mut device) {
            SUCCESS => real!(cuDeviceGetMemPool(*mut usize, c_int))(&mut pool, device),
            error => error,
        }
    };
    (result == SUCCESS && pool != 0).then_some(pool)
}

/// Allocates from `pool` with its growth charged.
fn grow(gpu: &Gpu, pool: usize, pointer: *mut u64, bytes: usize, allocate: impl Fn() -> c_int) -> c_int {
    if bytes == 0 || pointer.is_null() {
        return allocate();
    }
    USED.store(true, Ordering::Relaxed);
    let Some(want) = rounded(bytes as u64, GRANULE) else {
        return OUT_OF_MEMORY;
    };
    let mut pools = gpu.pools.lock();
    let index = entry(&mut pools, pool);
    settle(gpu, &mut pools[index]);
    let ahead = match gpu.account.reserve(want) {
        Ok(charge) => Some(charge),
        Err(_) if has_room(pool, want) => None,
        Err(_) => {
            pools.iter_mut().for_each(|pool| trim_one(gpu, pool));
            match gpu.account.reserve(want) {
                Ok(charge) => Some(charge),
                Err(_) => return OUT_OF_MEMORY,
            }
        }
    };
    let result = allocate();
    let pool = &mut pools[index];
    if let Some(ahead) = ahead {
        pool.charged += ahead.bytes();
        pool.charges.push(ahead);
    }
    if settle(gpu, pool) || result != SUCCESS {
        return result;
    }
    // It grew by more than is free: as if it had not been.
    // SAFETY: the driver has just written the pointer; the legacy stream orders after all others.
    unsafe {
        real!(cuMemFree_v2(u64))(*pointer);
    }
    trim_one(gpu, pool);
    OUT_OF_MEMORY
}

fn entry(pools: &mut Vec<Pool>, handle: usize) -> usize {
    match pools.iter().position(|pool| pool.handle == handle) {
        Some(index) => index,
        None => {
            pools.push(Pool {
                handle,
                charges: Vec::new(),
                charged: 0,
            });
            pools.len() - 1
        }
    }
}

fn attribute(pool: usize, attribute: c_int) -> Option<u64> {
    let mut value: u64 = 0;
    let at: *mut u64 = &mut value;
    // SAFETY: both attributes are 8 bytes, to be written.
    let result = unsafe { real!(cuMemPoolGetAttribute(usize, c_int, *mut c_void))(pool, attribute, at.cast()) };
    (result == SUCCESS).then_some(value)
}

fn has_room(pool: usize, bytes: u64) -> bool {
    let free = attribute(pool, RESERVED_MEM_CURRENT).zip(attribute(pool, USED_MEM_CURRENT));
    free.is_some_and(|(reserved, used)| reserved.saturating_sub(used) >= bytes)
}

/// Charges a pool what it reserves now; false: that much is not free, and it is charged less.
fn settle(gpu: &Gpu, pool: &mut Pool) -> bool {
    let Some(reserved) = attribute(pool.handle, RESERVED_MEM_CURRENT) else {
        return true;
    };
    while pool.charged > reserved {
        let Some(mut last) = pool.charges.pop() else { break };
        let whole = last.bytes();
        let surplus = pool.charged - reserved;
        if surplus < whole {
            gpu.account.shrink(&mut last, whole - surplus);
            pool.charges.push(last);
            pool.charged = reserved;
        } else {
            gpu.account.release(last);
            pool.charged -= whole;
        }
    }
    if pool.charged < reserved {
        match gpu.account.reserve(reserved - pool.charged) {
            Ok(more) => pool.charges.push(more),
            Err(_) => return false,
        }
        pool.charged = reserved;
    }
    true
}

fn trim_one(gpu: &Gpu, pool: &mut Pool) {
    // SAFETY: a pool that the program or the driver has made.
    unsafe { real!(cuMemPoolTrimTo(usize, usize))(pool.handle, 0) };
    settle(gpu, pool);
}

/// Trims every pool of `gpu`; whether there is any.
#[cold]
pub(crate) fn trim_all(gpu: &Gpu) -> bool {
    if !USED.load(Ordering::Relaxed) {
        return false;
    }
    let mut pools = gpu.pools.lock();
    pools.iter_mut().for_each(|pool| trim_one(gpu, pool));
    !pools.is_empty()
}

/// Charges the pools of `gpu` what they reserve now.
#[inline(always)]
pub(crate) fn refresh(gpu: &Gpu) {
    if USED.load(Ordering::Relaxed) {
        gpu.pools.lock().iter_mut().for_each(|pool| {
            settle(gpu, pool);
        });
    }
}

/// cuMemFree takes pointers of pools too.
#[inline(always)]
pub(crate) fn after_free(ready: &Ready) {
    if USED.load(Ordering::Relaxed) {
        ready.gpus.iter().for_each(refresh);
    }
}

pub(crate) unsafe fn free(
    ready: &'static Ready,
    real: unsafe extern "C" fn(u64, usize) -> c_int,
    pointer: u64,
    stream: usize,
) -> c_int {
    // SAFETY: passed on. Memory of cuMemAlloc may be freed here as well.
    let result = super::memory::released(ready, pointer, || unsafe { real(pointer, stream) });
    after_free(ready);
    result
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
    let Some(location) = own.location.real(devices) else {
        return crate::detour::INVALID_DEVICE;
    };
    own.location = location;
    // SAFETY: passed on, with the real device in a copy.
    let result = unsafe { real(pool, &own) };
    if let (SUCCESS, Some(gpu), false) = (result, gpu.and_then(|gpu| ready.gpus.get(gpu)), pool.is_null()) {
        // SAFETY: the driver has written it.
        let handle = unsafe { *pool };
        entry(&mut gpu.pools.lock(), handle);
        USED.store(true, Ordering::Relaxed);
    }
    result
}

pub(crate) unsafe fn destroy(ready: &'static Ready, real: unsafe extern "C" fn(usize) -> c_int, pool: usize) -> c_int {
    for gpu in &ready.gpus {
        let mut pools = gpu.pools.lock();
        let Some(index) = pools.iter().position(|known| known.handle == pool) else {
            continue;
        };
        // What is still in use outlives the pool, and can no longer be asked for: it stays charged.
        let used = attribute(pool, USED_MEM_CURRENT).unwrap_or(0);
        // SAFETY: passed on.
        let result = unsafe { real(pool) };
        if result == SUCCESS {
            let gone = pools.swap_remove(index);
            if used == 0 {
                gone.charges.into_iter().for_each(|charge| gpu.account.release(charge));
            }
        }
        return result;
    }
    // SAFETY: passed on.
    unsafe { real(pool) }
}

pub(crate) unsafe fn trim(
    ready: &'static Ready,
    real: unsafe extern "C" fn(usize, usize) -> c_int,
    pool: usize,
    keep: usize,
) -> c_int {
    // SAFETY: passed on.
    let result = unsafe { real(pool, keep) };
    after_free(ready);
    result
}

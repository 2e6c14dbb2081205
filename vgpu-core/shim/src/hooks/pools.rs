//! Memory pools: charged by what they keep reserved, which the driver tells.
//!
//! ```text
//!  alloc ─► charge as if the pool grew by all of it ─► driver ─► ask what the pool reserves ─► charge that
//!  about to be refused ─► trim every pool, ask again ─► once more
//! ```
//!
//! A pool shrinks at moments that nobody tells us (a synchronisation), so it is asked again at each
//! call about pools and each look at what is free; until then too much is charged, never too little.
//!
//! A destroyed pool lives on in the driver until its last allocation is freed, but can no longer be
//! asked. So a pool that is destroyed while it reserves memory is only marked as doomed, keeps nothing
//! that is unused, and is destroyed at the first look that finds it empty.
//!
//! The calls themselves: [`pool_calls`](super::pool_calls).
//!
//! How it fails: a driver that does not tell what a pool reserves (before 11.3) never finds it empty,
//! and its charge stays until the process ends.

use crate::codes::{INVALID_VALUE, OUT_OF_MEMORY, SUCCESS};
use crate::hooks::graphs;
use crate::hooks::level::Level;
use crate::hooks::memory::GRANULE;
use crate::process::{Gpu, Ready};
use crate::real::real;
use core::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use vgpu_core::account::rounded;
use vgpu_core::os::spin::Patience;

const RELEASE_THRESHOLD: c_int = 4;
const RESERVED_MEM_CURRENT: c_int = 5;
const USED_MEM_CURRENT: c_int = 7;

/// Whether this process has ever used a pool: spares the others the look.
static USED: AtomicBool = AtomicBool::new(false);

/// A pool and what it is charged.
#[derive(Debug)]
pub(crate) struct Pool {
    handle: usize,
    level: Level,
    /// The program asked for memory on the device and no more: host memory does as well.
    plain: bool,
    /// The program has destroyed it.
    doomed: bool,
}

/// Allocates from `pool` with its growth charged.
pub(crate) fn grow(
    gpu: &Gpu,
    pool: usize,
    pointer: *mut u64,
    bytes: usize,
    stream: usize,
    allocate: impl Fn() -> c_int,
) -> c_int {
    if bytes == 0 || pointer.is_null() {
        return allocate();
    }
    USED.store(true, Ordering::Relaxed);
    let Some(want) = rounded(bytes as u64, GRANULE) else {
        return OUT_OF_MEMORY;
    };
    let mut pools = gpu.pools.lock();
    let mut index = entry(&mut pools, pool, false);
    if pools[index].doomed {
        return INVALID_VALUE;
    }
    settle(gpu, &mut pools[index]);
    let ahead = match gpu.account.reserve(want) {
        Ok(charge) => Some(charge),
        Err(_) if has_room(pool, want) || is_captured(stream) => None,
        Err(_) => {
            pools.iter_mut().for_each(|pool| trim_one(gpu, pool));
            // Who trims graphs holds their lock and takes that of pools: never the other way round.
            drop(pools);
            graphs::trim_all(gpu);
            pools = gpu.pools.lock();
            index = entry(&mut pools, pool, false);
            match gpu.account.reserve(want) {
                Ok(charge) => Some(charge),
                Err(_) => return OUT_OF_MEMORY,
            }
        }
    };
    let result = allocate();
    let pool = &mut pools[index];
    if let Some(ahead) = ahead {
        pool.level.add(ahead);
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

/// The GPU of a pool that is known.
pub(crate) fn owner(ready: &'static Ready, pool: usize) -> Option<&'static Gpu> {
    let has = |gpu: &&Gpu| gpu.pools.lock().iter().any(|known| known.handle == pool);
    ready.gpus.iter().find(has)
}

/// Charges `pool`, of `gpu`, what it reserves from now on. `plain`: host memory may stand in for its own.
pub(crate) fn know(gpu: &Gpu, pool: usize, plain: bool) {
    entry(&mut gpu.pools.lock(), pool, plain);
    USED.store(true, Ordering::Relaxed);
}

/// Whether host memory may stand in for that of `pool`, of `gpu`.
#[cold]
pub(crate) fn is_plain(ready: &Ready, gpu: &Gpu, pool: usize) -> bool {
    let is_default = |(device, _): &(c_int, usize)| default_pool(*device) == Some(pool);
    let made = gpu.pools.lock().iter().any(|known| known.handle == pool && known.plain);
    made || ready
        .devices()
        .is_some_and(|devices| devices.list.iter().any(is_default))
}

fn entry(pools: &mut Vec<Pool>, handle: usize, plain: bool) -> usize {
    match pools.iter().position(|pool| pool.handle == handle) {
        Some(index) => index,
        None => {
            pools.push(Pool {
                handle,
                level: Level::default(),
                plain,
                doomed: false,
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

/// Whether an allocation in `stream` becomes a node of a graph, and takes nothing yet.
pub(crate) fn is_captured(stream: usize) -> bool {
    /// The default stream that can be captured: the thread's own.
    const PER_THREAD: usize = 2;
    let (stream, mut status) = (if stream == 0 { PER_THREAD } else { stream }, 0);
    // SAFETY: to be written.
    let result = unsafe { real!(cuStreamIsCapturing(usize, *mut c_int))(stream, &mut status) };
    result == SUCCESS && status != 0
}

/// Charges a pool what it reserves now; false: that much is not free, and it is charged less.
fn settle(gpu: &Gpu, pool: &mut Pool) -> bool {
    match attribute(pool.handle, RESERVED_MEM_CURRENT) {
        Some(reserved) => pool.level.set(gpu, reserved),
        None => true,
    }
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
    let any = !pools.is_empty();
    pools.iter_mut().for_each(|pool| trim_one(gpu, pool));
    bury(gpu, &mut pools);
    any
}

/// Charges the pools of `gpu` what they reserve now.
#[inline(always)]
pub(crate) fn refresh(gpu: &Gpu) {
    if USED.load(Ordering::Relaxed) {
        settle_all(gpu, &mut gpu.pools.lock());
    }
}

/// The same, if nobody is in a pool's call for longer than `patience` lasts.
pub(crate) fn refresh_with(gpu: &Gpu, patience: &mut Patience) -> bool {
    if !USED.load(Ordering::Relaxed) {
        return true;
    }
    let pools = gpu.pools.lock_with(patience);
    pools.map(|mut pools| settle_all(gpu, &mut pools)).is_some()
}

fn settle_all(gpu: &Gpu, pools: &mut Vec<Pool>) {
    pools.iter_mut().for_each(|pool| {
        settle(gpu, pool);
    });
    bury(gpu, pools);
}

/// Destroys the doomed pools that are empty now.
fn bury(gpu: &Gpu, pools: &mut Vec<Pool>) {
    if !pools.iter().any(|pool| pool.doomed) {
        return;
    }
    for index in (0..pools.len())
        .rev()
        .filter(|index| pools[*index].doomed)
        .collect::<Vec<_>>()
    {
        let pool = &mut pools[index];
        trim_one(gpu, pool);
        // SAFETY: a pool that the program has made, and only asked to be destroyed.
        if is_empty(pool.handle) && unsafe { real!(cuMemPoolDestroy(usize))(pool.handle) } == SUCCESS {
            drop_pool(gpu, pools.swap_remove(index));
        }
    }
}

/// What the pools of `gpu` are charged.
pub(crate) fn reserved(gpu: &Gpu) -> Option<u64> {
    Some(gpu.pools.try_lock()?.iter().map(|pool| pool.level.bytes()).sum())
}

fn is_empty(pool: usize) -> bool {
    [RESERVED_MEM_CURRENT, USED_MEM_CURRENT]
        .into_iter()
        .all(|what| attribute(pool, what) == Some(0))
}

fn drop_pool(gpu: &Gpu, mut pool: Pool) {
    pool.level.set(gpu, 0);
}

/// cuMemFree takes pointers of pools too.
#[inline(always)]
pub(crate) fn after_free(ready: &Ready) {
    if USED.load(Ordering::Relaxed) {
        ready.gpus.iter().for_each(refresh);
    }
}

/// Destroys `pool` through `destroy`, at once or when it is empty.
pub(crate) fn retire(ready: &Ready, pool: usize, destroy: impl Fn() -> c_int) -> c_int {
    for (index, gpu) in ready.gpus.iter().enumerate() {
        let mut pools = gpu.pools.lock();
        let Some(at) = pools.iter().position(|known| known.handle == pool) else {
            continue;
        };
        if pools[at].doomed {
            return INVALID_VALUE;
        }
        trim_one(gpu, &mut pools[at]);
        let device = ready.devices().and_then(|devices| devices.of_gpu(index));
        if let (false, Some(device)) = (is_empty(pool), device)
            && let Some(default) = default_pool(device)
        {
            if default == pool {
                // The driver says that this one cannot be destroyed.
                return destroy();
            }
            pools[at].doomed = true;
            doom(pool, device, default);
            return SUCCESS;
        }
        let result = destroy();
        if result == SUCCESS {
            drop_pool(gpu, pools.swap_remove(at));
        }
        return result;
    }
    destroy()
}

/// What else a program sees of a destruction: its device allocates from the default pool again.
fn doom(pool: usize, device: c_int, default: usize) {
    let (mut current, mut nothing) = (0, 0_u64);
    let nothing: *mut u64 = &mut nothing;
    // SAFETY: the attribute is 8 bytes, to be read; the pools and the device are the driver's.
    unsafe {
        real!(cuMemPoolSetAttribute(usize, c_int, *mut c_void))(pool, RELEASE_THRESHOLD, nothing.cast());
        if real!(cuDeviceGetMemPool(*mut usize, c_int))(&mut current, device) == SUCCESS && current == pool {
            real!(cuDeviceSetMemPool(c_int, usize))(device, default);
        }
    }
}

/// The pool from which a device allocates unless the program says otherwise.
pub(crate) fn default_pool(device: c_int) -> Option<usize> {
    let mut pool = 0;
    // SAFETY: to be written.
    let result = unsafe { real!(cuDeviceGetDefaultMemPool(*mut usize, c_int))(&mut pool, device) };
    (result == SUCCESS).then_some(pool)
}

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
//! How it fails: a driver that does not tell what a pool reserves (before 11.3) never finds it empty,
//! and its charge stays until the process ends.

use crate::codes::{INVALID_VALUE, OUT_OF_MEMORY, SUCCESS};
use crate::hooks::capture::is_captured;
use crate::real::real;
use core::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use vgpu_core::account::Account;
use vgpu_core::memory::granule::granules;
use vgpu_core::memory::tracked_charge::TrackedCharge;
use vgpu_core::os::spin::{Patience, Spin};

const RELEASE_THRESHOLD: c_int = 4;
const RESERVED_MEM_CURRENT: c_int = 5;
const USED_MEM_CURRENT: c_int = 7;

/// Set once this process has used a pool: other processes skip the look at their pools.
static USED: AtomicBool = AtomicBool::new(false);

/// The pools of one GPU.
#[derive(Debug, Default)]
pub(crate) struct Pools(Spin<Vec<Pool>>);

/// A pool and its charge.
#[derive(Debug)]
struct Pool {
    handle: usize,
    charge: TrackedCharge,
    /// The program asked for memory on the device and no more: host memory does as well.
    plain: bool,
    /// The program has destroyed it.
    doomed: bool,
}

/// An allocation that a pool may have to grow for.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) pool: usize,
    pub(crate) pointer: *mut u64,
    pub(crate) bytes: usize,
    pub(crate) stream: usize,
}

/// The outcome of [`Pools::grow`].
pub(crate) enum Growth {
    /// The driver was called, or need not be: its result.
    Done(c_int),
    /// The limit is reached. Every pool was trimmed: the caller makes more room and tries the last time.
    NoRoom,
}

/// Which attempt at an allocation it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attempt {
    First,
    Last,
}

impl Pools {
    /// Allocates from a pool with its growth charged.
    pub(crate) fn grow(
        &self,
        account: &Account,
        wanted: Wanted,
        attempt: Attempt,
        allocate: impl FnOnce() -> c_int,
    ) -> Growth {
        if wanted.bytes == 0 || wanted.pointer.is_null() {
            return Growth::Done(allocate());
        }
        USED.store(true, Ordering::Relaxed);
        let Some(bytes) = granules(wanted.bytes as u64) else {
            return Growth::Done(OUT_OF_MEMORY);
        };
        let mut pools = self.0.lock();
        let index = entry(&mut pools, wanted.pool, false);
        if attempt == Attempt::First {
            if pools[index].doomed {
                return Growth::Done(INVALID_VALUE);
            }
            pools[index].settle(account);
        }
        let ahead = match account.reserve(bytes) {
            Ok(charge) => Some(charge),
            Err(_) if attempt == Attempt::Last => return Growth::Done(OUT_OF_MEMORY),
            Err(_) if has_room(wanted.pool, bytes) || is_captured(wanted.stream) => None,
            Err(_) => {
                pools.iter_mut().for_each(|pool| pool.trim(account));
                return Growth::NoRoom;
            }
        };
        let result = allocate();
        let pool = &mut pools[index];
        if let Some(ahead) = ahead {
            pool.charge.add(ahead);
        }
        if pool.settle(account) || result != SUCCESS {
            return Growth::Done(result);
        }
        // It grew by more than is free: as if it had not been.
        // SAFETY: the driver has just written the pointer; the legacy stream orders after all others.
        unsafe {
            real!(cuMemFree_v2(u64))(*wanted.pointer);
        }
        pool.trim(account);
        Growth::Done(OUT_OF_MEMORY)
    }

    /// Returns true if `pool` is one of these.
    pub(crate) fn has(&self, pool: usize) -> bool {
        self.0.lock().iter().any(|known| known.handle == pool)
    }

    /// Charges `pool` what it reserves from now on. `plain`: host memory may stand in for its own.
    pub(crate) fn know(&self, pool: usize, plain: bool) {
        entry(&mut self.0.lock(), pool, plain);
        USED.store(true, Ordering::Relaxed);
    }

    /// Returns true if the program made `pool` so that host memory may stand in for its own.
    #[cold]
    pub(crate) fn is_plain(&self, pool: usize) -> bool {
        self.0.lock().iter().any(|known| known.handle == pool && known.plain)
    }

    /// Trims every pool. Returns true if there is any.
    #[cold]
    pub(crate) fn trim_all(&self, account: &Account) -> bool {
        if !used() {
            return false;
        }
        let mut pools = self.0.lock();
        let any = !pools.is_empty();
        pools.iter_mut().for_each(|pool| pool.trim(account));
        bury(account, &mut pools);
        any
    }

    /// Charges the pools what they reserve now.
    #[inline(always)]
    pub(crate) fn refresh(&self, account: &Account) {
        if used() {
            settle_all(account, &mut self.0.lock());
        }
    }

    /// The same. Returns false if another thread was in a pool's call for longer than `patience` lasts.
    pub(crate) fn refresh_with(&self, account: &Account, patience: &mut Patience) -> bool {
        if !used() {
            return true;
        }
        let pools = self.0.lock_with(patience);
        pools.map(|mut pools| settle_all(account, &mut pools)).is_some()
    }

    /// Returns the bytes that the pools are charged, or None if another thread is in a pool's call.
    pub(crate) fn reserved(&self) -> Option<u64> {
        Some(self.0.try_lock()?.iter().map(|pool| pool.charge.bytes()).sum())
    }

    /// Destroys `pool` through `destroy`, at once or when it is empty. None: it is not one of these. `device`: the
    /// driver's number of their GPU.
    pub(crate) fn retire(
        &self,
        account: &Account,
        device: impl FnOnce() -> Option<c_int>,
        pool: usize,
        destroy: impl Fn() -> c_int,
    ) -> Option<c_int> {
        let mut pools = self.0.lock();
        let at = pools.iter().position(|known| known.handle == pool)?;
        if pools[at].doomed {
            return Some(INVALID_VALUE);
        }
        pools[at].trim(account);
        if let (false, Some(device)) = (is_empty(pool), device())
            && let Some(default) = default_pool(device)
        {
            if default == pool {
                // The driver says that this one cannot be destroyed.
                return Some(destroy());
            }
            pools[at].doomed = true;
            doom(pool, device, default);
            return Some(SUCCESS);
        }
        let result = destroy();
        if result == SUCCESS {
            pools.swap_remove(at).forget(account);
        }
        Some(result)
    }
}

impl Pool {
    /// Charges what it reserves now. Returns false if that much is not free: then it is charged less.
    fn settle(&mut self, account: &Account) -> bool {
        match attribute(self.handle, RESERVED_MEM_CURRENT) {
            Some(reserved) => self.charge.set(account, reserved),
            None => true,
        }
    }

    fn trim(&mut self, account: &Account) {
        // SAFETY: a pool that the program or the driver has made.
        unsafe { real!(cuMemPoolTrimTo(usize, usize))(self.handle, 0) };
        self.settle(account);
    }

    fn forget(mut self, account: &Account) {
        self.charge.set(account, 0);
    }
}

/// Returns true if this process has ever used a pool.
#[inline(always)]
pub(crate) fn used() -> bool {
    USED.load(Ordering::Relaxed)
}

fn entry(pools: &mut Vec<Pool>, handle: usize, plain: bool) -> usize {
    match pools.iter().position(|pool| pool.handle == handle) {
        Some(index) => index,
        None => {
            pools.push(Pool {
                handle,
                charge: TrackedCharge::default(),
                plain,
                doomed: false,
            });
            pools.len() - 1
        }
    }
}

fn settle_all(account: &Account, pools: &mut Vec<Pool>) {
    pools.iter_mut().for_each(|pool| {
        pool.settle(account);
    });
    bury(account, pools);
}

/// Destroys the doomed pools that are empty now.
fn bury(account: &Account, pools: &mut Vec<Pool>) {
    if !pools.iter().any(|pool| pool.doomed) {
        return;
    }
    for index in (0..pools.len())
        .rev()
        .filter(|index| pools[*index].doomed)
        .collect::<Vec<_>>()
    {
        let pool = &mut pools[index];
        pool.trim(account);
        // SAFETY: a pool that the program has made, and only asked to be destroyed.
        if is_empty(pool.handle) && unsafe { real!(cuMemPoolDestroy(usize))(pool.handle) } == SUCCESS {
            pools.swap_remove(index).forget(account);
        }
    }
}

fn has_room(pool: usize, bytes: u64) -> bool {
    let free = attribute(pool, RESERVED_MEM_CURRENT).zip(attribute(pool, USED_MEM_CURRENT));
    free.is_some_and(|(reserved, used)| reserved.saturating_sub(used) >= bytes)
}

fn is_empty(pool: usize) -> bool {
    [RESERVED_MEM_CURRENT, USED_MEM_CURRENT]
        .into_iter()
        .all(|what| attribute(pool, what) == Some(0))
}

fn attribute(pool: usize, attribute: c_int) -> Option<u64> {
    let mut value: u64 = 0;
    let at: *mut u64 = &mut value;
    // SAFETY: both attributes are 8 bytes, to be written.
    let result = unsafe { real!(cuMemPoolGetAttribute(usize, c_int, *mut c_void))(pool, attribute, at.cast()) };
    (result == SUCCESS).then_some(value)
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

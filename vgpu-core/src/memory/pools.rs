//! Memory pools, charged by what the driver reports as reserved by them.
//!
//! ```text
//!  alloc ─► charge as if the pool grew by all of it ─► driver ─► ask what the pool reserves ─► charge that
//!  about to be refused ─► trim every pool, ask again ─► once more
//! ```
//!
//! A pool may shrink without a call that reports it (at a synchronisation). So its size is read again at each call
//! about pools and each time a program asks what is free. Until then too much is charged, never too little.
//!
//! The driver keeps a destroyed pool until its last allocation is freed, but no longer tells its size. So a pool that
//! the program destroys while it reserves memory is only marked as doomed. It keeps no unused memory, and is destroyed
//! as soon as it is empty.
//!
//! The driver may call the program back inside a call about pools (a profiler). Allocations from a pool in such a
//! callback are charged separately until the sizes of the pools are read again.
//!
//! How it fails: with a driver that does not report what a pool reserves (before 11.3), a doomed pool is never found
//! empty, and its charge stays until the process ends.

use super::driver::{Driver, INVALID_VALUE, OUT_OF_MEMORY, SUCCESS, is_captured};
use super::granule::granules;
use super::tracked_charge::TrackedCharge;
use crate::account::{Account, Charge};
use crate::os::spin::{Patience, Reentrant, Spin};
use core::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set once this process has used a pool. Until then there is nothing to read.
static USED: AtomicBool = AtomicBool::new(false);

/// The pools of one GPU.
#[derive(Debug, Default)]
pub struct Pools {
    /// Stays locked during calls of the driver.
    list: Reentrant<Vec<Pool>>,
    /// Charges for allocations in callbacks from calls about pools. Kept until the sizes of the pools are read again.
    within: Spin<Vec<Charge>>,
}

/// A pool and its charge.
#[derive(Debug)]
struct Pool {
    handle: usize,
    charge: TrackedCharge,
    /// The program asked only for memory on the device, so host memory may replace memory of this pool.
    plain: bool,
    /// The program has destroyed the pool.
    doomed: bool,
}

/// An allocation for which a pool may have to grow.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub pool: usize,
    pub bytes: u64,
    pub stream: usize,
}

/// The outcome of [`Pools::grow`].
pub enum Growth {
    /// The final result: the driver's, or a refusal without a call.
    Done(Result<(), c_int>),
    /// The limit is reached. All pools were trimmed; the caller makes more room and tries a last time.
    NoRoom,
}

/// Which attempt at an allocation this is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    First,
    Last,
}

impl Pools {
    /// Allocates from a pool and charges the pool's growth; `allocate` returns the pointer.
    pub fn grow(
        &self,
        driver: &impl Driver,
        account: &Account,
        wanted: Wanted,
        attempt: Attempt,
        allocate: impl FnOnce() -> Result<u64, c_int>,
    ) -> Growth {
        USED.store(true, Ordering::Relaxed);
        let Some(bytes) = granules(wanted.bytes) else {
            return Growth::Done(Err(OUT_OF_MEMORY));
        };
        let Some(list) = self.list.lock_unless_within() else {
            return Growth::Done(self.grow_within(account, bytes, allocate));
        };
        let mut pools = list.borrow_mut();
        let index = entry(&mut pools, wanted.pool, false);
        if attempt == Attempt::First {
            if pools[index].doomed {
                return Growth::Done(Err(INVALID_VALUE));
            }
            pools[index].settle(driver, account);
        }
        let ahead = match account.reserve(bytes) {
            Ok(charge) => Some(charge),
            Err(_) if attempt == Attempt::Last => return Growth::Done(Err(OUT_OF_MEMORY)),
            Err(_) if has_room(driver, wanted.pool, bytes) || is_captured(driver, wanted.stream) => None,
            Err(_) => {
                pools.iter_mut().for_each(|pool| pool.trim(driver, account));
                return Growth::NoRoom;
            }
        };
        let result = allocate();
        let pool = &mut pools[index];
        if let Some(ahead) = ahead {
            pool.charge.add(ahead);
        }
        let fits = pool.settle(driver, account);
        self.end_within(account);
        match result {
            Ok(pointer) if !fits => {
                // The pool grew by more than is free, so the allocation is undone. The free is ordered after all other
                // work, because it uses the legacy stream.
                driver.free(pointer);
                pool.trim(driver, account);
                Growth::Done(Err(OUT_OF_MEMORY))
            }
            result => Growth::Done(result.map(drop)),
        }
    }

    /// Allocates while this thread is inside another call about pools. The sizes of pools cannot be read there.
    #[cold]
    fn grow_within(
        &self,
        account: &Account,
        bytes: u64,
        allocate: impl FnOnce() -> Result<u64, c_int>,
    ) -> Result<(), c_int> {
        let charge = account.reserve(bytes).map_err(|_| OUT_OF_MEMORY)?;
        let result = allocate();
        match result {
            Ok(_) => self.within.lock().push(charge),
            Err(_) => account.release(charge),
        }
        result.map(drop)
    }

    /// Releases the separate charges of callbacks, after the pools were charged with what they reserve.
    fn end_within(&self, account: &Account) {
        let ended = std::mem::take(&mut *self.within.lock());
        ended.into_iter().for_each(|charge| account.release(charge));
    }

    /// Returns true if `pool` is in the list.
    pub fn has(&self, pool: usize) -> bool {
        let list = self.list.lock_unless_within();
        list.is_some_and(|list| list.borrow().iter().any(|known| known.handle == pool))
    }

    /// Adds `pool`, whose size is charged from now on. `plain`: host memory may replace memory of this pool.
    pub fn know(&self, pool: usize, plain: bool) {
        if let Some(list) = self.list.lock_unless_within() {
            entry(&mut list.borrow_mut(), pool, plain);
        }
        USED.store(true, Ordering::Relaxed);
    }

    /// Returns true if host memory may replace the memory of `pool`.
    #[cold]
    pub fn is_plain(&self, pool: usize) -> bool {
        let list = self.list.lock_unless_within();
        list.is_some_and(|list| list.borrow().iter().any(|known| known.handle == pool && known.plain))
    }

    /// Trims every pool. Returns true if there is any.
    #[cold]
    pub fn trim_all(&self, driver: &impl Driver, account: &Account) -> bool {
        if !used() {
            return false;
        }
        let Some(list) = self.list.lock_unless_within() else {
            return false;
        };
        let mut pools = list.borrow_mut();
        let any = !pools.is_empty();
        pools.iter_mut().for_each(|pool| pool.trim(driver, account));
        bury(driver, account, &mut pools);
        any
    }

    /// Charges what the pools reserve now.
    #[inline(always)]
    pub fn refresh(&self, driver: &impl Driver, account: &Account) {
        if used() {
            let list = self.list.lock_unless_within();
            list.into_iter()
                .for_each(|list| self.settle_all(driver, account, &mut list.borrow_mut()));
        }
    }

    /// Like [`Pools::refresh`]. Returns false if another thread was inside a call about pools for longer than
    /// `patience`, or if this thread is inside one.
    pub fn refresh_with(&self, driver: &impl Driver, account: &Account, patience: &mut Patience) -> bool {
        if !used() {
            return true;
        }
        let list = self.list.lock_with(patience);
        list.map(|list| self.settle_all(driver, account, &mut list.borrow_mut()))
            .is_some()
    }

    fn settle_all(&self, driver: &impl Driver, account: &Account, pools: &mut Vec<Pool>) {
        pools.iter_mut().for_each(|pool| {
            pool.settle(driver, account);
        });
        self.end_within(account);
        bury(driver, account, pools);
    }

    /// Keeps other threads out of calls about pools until the result is dropped.
    pub fn hold(&self) -> impl Sized + '_ {
        self.list.lock()
    }

    /// Returns the bytes charged for the pools, or None if a thread is inside a call about pools.
    pub fn reserved(&self) -> Option<u64> {
        let list = self.list.try_lock()?;
        let reserved = list.borrow().iter().map(|pool| pool.charge.bytes()).sum();
        Some(reserved)
    }

    /// Destroys `pool` with `destroy`, at once or when it is empty. Returns None if it is not in the list. `device`:
    /// the driver's number of the GPU.
    pub fn retire(
        &self,
        driver: &impl Driver,
        account: &Account,
        device: impl FnOnce() -> Option<c_int>,
        pool: usize,
        destroy: impl Fn() -> c_int,
    ) -> Option<c_int> {
        let list = self.list.lock_unless_within()?;
        let mut pools = list.borrow_mut();
        let at = pools.iter().position(|known| known.handle == pool)?;
        if pools[at].doomed {
            return Some(INVALID_VALUE);
        }
        pools[at].trim(driver, account);
        if let (false, Some(device)) = (is_empty(driver, pool), device())
            && let Ok(default) = driver.default_pool(device)
        {
            if default == pool {
                // The driver refuses to destroy its default pool; the program gets that answer.
                return Some(destroy());
            }
            pools[at].doomed = true;
            doom(driver, pool, device, default);
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
    /// Charges what the pool reserves now. Returns false if that much is not free: then less is charged.
    fn settle(&mut self, driver: &impl Driver, account: &Account) -> bool {
        match driver.pool_reserved(self.handle) {
            Ok(reserved) => self.charge.set(account, reserved),
            Err(_) => true,
        }
    }

    fn trim(&mut self, driver: &impl Driver, account: &Account) {
        driver.trim_pool(self.handle);
        self.settle(driver, account);
    }

    fn forget(mut self, account: &Account) {
        self.charge.set(account, 0);
    }
}

/// Returns true if this process has ever used a pool.
#[inline(always)]
pub fn used() -> bool {
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

/// Destroys the doomed pools that are empty now.
fn bury(driver: &impl Driver, account: &Account, pools: &mut Vec<Pool>) {
    if !pools.iter().any(|pool| pool.doomed) {
        return;
    }
    for index in (0..pools.len())
        .rev()
        .filter(|index| pools[*index].doomed)
        .collect::<Vec<_>>()
    {
        let pool = &mut pools[index];
        pool.trim(driver, account);
        if is_empty(driver, pool.handle) && driver.destroy_pool(pool.handle) == SUCCESS {
            pools.swap_remove(index).forget(account);
        }
    }
}

fn has_room(driver: &impl Driver, pool: usize, bytes: u64) -> bool {
    let (reserved, used) = (driver.pool_reserved(pool), driver.pool_used(pool));
    reserved.is_ok_and(|reserved| used.is_ok_and(|used| reserved.saturating_sub(used) >= bytes))
}

fn is_empty(driver: &impl Driver, pool: usize) -> bool {
    driver.pool_reserved(pool) == Ok(0) && driver.pool_used(pool) == Ok(0)
}

/// Marks a pool as destroyed in the program's view: the device allocates from its default pool again.
fn doom(driver: &impl Driver, pool: usize, device: c_int, default: usize) {
    driver.pool_keep_nothing(pool);
    if driver.current_pool(device) == Ok(pool) {
        driver.set_current_pool(device, default);
    }
}

#[cfg(all(test, not(miri)))] // The tests map files.
mod tests {
    use super::super::driver::Driver;
    use super::super::fake::{DEFAULT_POOL, DEVICE, Fake, FakePool, MIB, gpu};
    use super::super::gpu::Gpu;
    use super::*;

    const POOL: usize = 9;

    /// An allocation of `bytes` in [`POOL`], by which the driver's pool grows to `reserved`.
    fn allocate(gpu: &Gpu<Fake>, bytes: u64, attempt: Attempt, reserved: u64) -> Option<Result<(), c_int>> {
        let wanted = Wanted {
            pool: POOL,
            bytes,
            stream: 0,
        };
        let grow = || {
            let mut state = gpu.driver.state();
            let pool = state.pools.entry(POOL).or_default();
            (pool.reserved, pool.used) = (reserved, pool.used + bytes);
            Ok(0x1000)
        };
        match gpu.pools.grow(&gpu.driver, &gpu.account, wanted, attempt, grow) {
            Growth::Done(result) => Some(result),
            Growth::NoRoom => None,
        }
    }

    #[test]
    fn a_pool_is_charged_what_it_reserves() {
        let gpu = gpu(64 * MIB);
        gpu.pools.know(POOL, true);
        assert!(gpu.pools.has(POOL) && gpu.pools.is_plain(POOL) && !gpu.pools.has(DEFAULT_POOL));
        assert_eq!(allocate(&gpu, MIB, Attempt::First, 32 * MIB), Some(Ok(())));
        assert_eq!(gpu.account.charged(), 32 * MIB, "all that it reserves");
        assert_eq!(allocate(&gpu, MIB, Attempt::First, 32 * MIB), Some(Ok(())));
        assert_eq!(gpu.account.charged(), 32 * MIB, "which has room for more");
        gpu.driver.state().pools.insert(
            POOL,
            FakePool {
                reserved: 4 * MIB,
                used: 2 * MIB,
            },
        );
        gpu.pools.refresh(&gpu.driver, &gpu.account);
        assert_eq!((gpu.account.charged(), gpu.pools.reserved()), (4 * MIB, Some(4 * MIB)));
    }

    #[test]
    fn no_room_trims_every_pool_and_the_last_attempt_is_refused() {
        let gpu = gpu(16 * MIB);
        let other = FakePool {
            reserved: 12 * MIB,
            used: 2 * MIB,
        };
        gpu.driver.state().pools.insert(DEFAULT_POOL, other);
        gpu.pools.know(DEFAULT_POOL, false);
        gpu.pools.refresh(&gpu.driver, &gpu.account);
        assert_eq!(allocate(&gpu, 8 * MIB, Attempt::First, 8 * MIB), None);
        assert_eq!(gpu.account.charged(), 2 * MIB, "the other pool gave up what it kept");
        assert_eq!(
            allocate(&gpu, 20 * MIB, Attempt::Last, 20 * MIB),
            Some(Err(OUT_OF_MEMORY))
        );
        assert_eq!(allocate(&gpu, 8 * MIB, Attempt::Last, 8 * MIB), Some(Ok(())));
        assert_eq!(gpu.account.charged(), 10 * MIB);
    }

    #[test]
    fn a_pool_that_grew_by_more_than_is_free_is_as_if_it_had_not() {
        let gpu = gpu(16 * MIB);
        assert_eq!(allocate(&gpu, MIB, Attempt::First, 32 * MIB), Some(Err(OUT_OF_MEMORY)));
        assert_eq!(gpu.driver.state().freed, [0x1000], "the driver has it back");
    }

    #[test]
    fn what_is_captured_and_what_has_room_is_not_charged_ahead() {
        const PER_THREAD: usize = 2;
        let gpu = gpu(4 * MIB);
        let filler = gpu.account.reserve(4 * MIB).expect("room");
        assert_eq!(allocate(&gpu, MIB, Attempt::First, 0), None);
        gpu.driver.state().capturing.push(PER_THREAD);
        assert_eq!(
            allocate(&gpu, MIB, Attempt::First, 0),
            Some(Ok(())),
            "stream 0 is the thread's own"
        );
        gpu.driver.state().capturing.clear();
        gpu.account.release(filler);
        gpu.driver.state().pools.insert(
            POOL,
            FakePool {
                reserved: 4 * MIB,
                used: 0,
            },
        );
        assert_eq!(
            allocate(&gpu, 4 * MIB, Attempt::First, 4 * MIB),
            Some(Ok(())),
            "it has room itself"
        );
        assert_eq!(gpu.account.charged(), 4 * MIB);
    }

    #[test]
    fn a_pool_that_is_destroyed_with_memory_in_it_stays_charged_until_it_is_empty() {
        let gpu = gpu(64 * MIB);
        assert_eq!(allocate(&gpu, 2 * MIB, Attempt::First, 8 * MIB), Some(Ok(())));
        gpu.driver.state().current_pool = POOL;
        let retire = |pool| {
            let destroy = || gpu.driver.destroy_pool(pool);
            gpu.pools
                .retire(&gpu.driver, &gpu.account, || Some(DEVICE), pool, destroy)
        };
        assert_eq!(retire(POOL), Some(SUCCESS));
        assert_eq!(gpu.driver.state().current_pool, DEFAULT_POOL, "as after a destruction");
        assert_eq!(gpu.driver.state().log, ["keep nothing in 9"]);
        assert_eq!((retire(POOL), retire(77)), (Some(INVALID_VALUE), None));
        assert_eq!(allocate(&gpu, MIB, Attempt::First, 8 * MIB), Some(Err(INVALID_VALUE)));
        gpu.pools.refresh(&gpu.driver, &gpu.account);
        assert_eq!(gpu.account.charged(), 2 * MIB, "it is still there");
        gpu.driver.state().pools.insert(POOL, FakePool::default());
        gpu.pools.refresh(&gpu.driver, &gpu.account);
        assert_eq!((gpu.account.charged(), gpu.pools.has(POOL)), (0, false));
        assert_eq!(gpu.driver.state().log, ["keep nothing in 9", "destroy 9"]);
    }
}

//! Stream-ordered memory: pools keep reserved memory until a synchronisation, a trim, or another allocation needs it.
//!
//! A pool is charged for what it reserves, in granules. A free takes effect at once (order within a stream is the
//! caller's duty), but the pool keeps the granules; the release threshold decides how many survive a synchronisation.

use std::collections::HashMap;
use std::sync::Mutex;

use soft_gpu::lock;

use soft_gpu::vram::{GRAPH_LANE, lane_of};

use crate::code::{Code, INVALID_VALUE, OUT_OF_MEMORY, Res};
use crate::driver::{self, Driver};
use crate::ffi::{In, Out};
use crate::location;
use crate::stream;

#[derive(Default)]
struct Pool {
    gpu: usize,
    /// The default pool of a GPU, which cannot be destroyed.
    default: bool,
    used: u64,
    used_high: u64,
    reserved: u64,
    reserved_high: u64,
    threshold: u64,
    reuse: [i32; 3],
    /// Destroyed, but some of its memory is still in use.
    doomed: bool,
}

#[derive(Default)]
struct Tables {
    pools: HashMap<u64, Pool>,
    defaults: HashMap<usize, u64>,
    chosen: HashMap<usize, u64>,
}

#[derive(Default)]
pub(crate) struct Pools(Mutex<Tables>);

/// Pools hand out multiples of this.
const STEP: u64 = 512;

/// The attributes of a pool, by number.
const RELEASE_THRESHOLD: u32 = 4;
const RESERVED: u32 = 5;
const RESERVED_HIGH: u32 = 6;
const USED: u32 = 7;
const USED_HIGH: u32 = 8;

impl Pools {
    fn open(tables: &mut Tables, driver: &Driver, gpu: usize, default: bool) -> u64 {
        let pool = Pool {
            gpu,
            default,
            reuse: [1; 3],
            ..Pool::default()
        };
        let handle = driver.handle();
        tables.pools.insert(handle, pool);
        handle
    }

    fn default_of(&self, driver: &Driver, gpu: usize) -> u64 {
        let mut tables = lock(&self.0);
        if let Some(handle) = tables.defaults.get(&gpu) {
            return *handle;
        }
        let handle = Self::open(&mut tables, driver, gpu, true);
        tables.defaults.insert(gpu, handle);
        handle
    }

    fn chosen(&self, driver: &Driver, gpu: usize) -> u64 {
        let chosen = lock(&self.0).chosen.get(&gpu).copied();
        chosen.unwrap_or_else(|| self.default_of(driver, gpu))
    }

    /// Frees the unused memory of a GPU's pools, except for `keep` units or the pool's threshold, whichever is less.
    /// Returns true if any was freed.
    pub(crate) fn trim(&self, driver: &Driver, gpu: usize, keep: u64) -> bool {
        let mut any = false;
        for pool in lock(&self.0).pools.values_mut().filter(|pool| pool.gpu == gpu) {
            any |= Self::trim_one(driver, pool, keep.min(pool.threshold));
        }
        any
    }

    fn trim_one(driver: &Driver, pool: &mut Pool, keep: u64) -> bool {
        let target = driver.memory.units(pool.used.max(keep));
        let excess = pool.reserved.saturating_sub(target);
        if excess > 0 {
            driver.member().shrink(pool.gpu, excess);
            pool.reserved -= excess;
        }
        excess > 0
    }

    fn allocate(&self, driver: &Driver, handle: u64, size: u64) -> Result<u64, Code> {
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        let mut tables = lock(&self.0);
        let pool = tables
            .pools
            .get(&handle)
            .filter(|pool| !pool.doomed)
            .ok_or(INVALID_VALUE)?;
        let gpu = pool.gpu;
        let used = size
            .checked_next_multiple_of(STEP)
            .and_then(|size| size.checked_add(pool.used))
            .ok_or(OUT_OF_MEMORY)?;
        let more = driver.memory.units(used).saturating_sub(pool.reserved);
        if more > 0 && driver.member().grow(gpu, more).is_err() {
            let others = tables
                .pools
                .iter_mut()
                .filter(|(other, pool)| **other != handle && pool.gpu == gpu);
            let freed = others.fold(false, |any, (_, pool)| Self::trim_one(driver, pool, 0) || any);
            if !freed || driver.member().grow(gpu, more).is_err() {
                return Err(OUT_OF_MEMORY);
            }
        }
        let pool = tables.pools.get_mut(&handle).ok_or(INVALID_VALUE)?;
        pool.reserved += more;
        pool.reserved_high = pool.reserved_high.max(pool.reserved);
        let address = driver.memory.place_pooled(gpu, handle, size)?;
        pool.used = used;
        pool.used_high = pool.used_high.max(used);
        Ok(address)
    }

    pub(crate) fn gpu_of(&self, pool: u64) -> Result<usize, Code> {
        self.with(pool, |pool| Ok(pool.gpu))
    }

    /// Creates a pool for another process's pool that was imported: nothing can be allocated from it, and it reserves
    /// nothing.
    pub(crate) fn import(&self, driver: &Driver, gpu: usize) -> u64 {
        Self::open(&mut lock(&self.0), driver, gpu, false)
    }

    /// Returns a freed range to its pool.
    pub(crate) fn freed(&self, driver: &Driver, handle: u64, size: u64) {
        let mut tables = lock(&self.0);
        let Some(pool) = tables.pools.get_mut(&handle) else {
            return;
        };
        pool.used = pool.used.saturating_sub(size.next_multiple_of(STEP));
        if pool.doomed {
            Self::trim_one(driver, pool, 0);
            if pool.used == 0 {
                tables.pools.remove(&handle);
            }
        }
    }

    fn with<T>(&self, handle: u64, act: impl FnOnce(&mut Pool) -> Result<T, Code>) -> Result<T, Code> {
        act(lock(&self.0)
            .pools
            .get_mut(&handle)
            .filter(|pool| !pool.doomed)
            .ok_or(INVALID_VALUE)?)
    }
}

/// If the stream is being captured, turns the allocation into a graph node and returns its address.
fn captured(driver: &Driver, stream: u64, gpu: usize, size: u64) -> Result<Option<u64>, Code> {
    let Some(stream) = stream::created(stream)? else {
        return Ok(None);
    };
    let mut capture = lock(&stream.capture);
    let Some(capture) = capture.as_mut() else {
        return Ok(None);
    };
    if size == 0 {
        return Err(INVALID_VALUE);
    }
    let range = driver.memory.graphs.reserve(driver, gpu, size)?;
    capture.alloc(range);
    Ok(Some(range.address))
}

/// Makes this pool the one from which its GPU allocates.
fn choose(driver: &Driver, gpu: usize, pool: u64) -> Res {
    let pools = &driver.memory.pools;
    pools.with(pool, |pool| if pool.gpu == gpu { Ok(()) } else { Err(INVALID_VALUE) })?;
    lock(&pools.0).chosen.insert(gpu, pool);
    Ok(())
}

soft_gpu::api! {
    fn cuMemAllocAsync(out: Out<u64>, size: u64, stream: u64) {
        let driver = driver::get()?;
        let gpu = stream::gpu_of(driver, stream)?;
        if !out.given() {
            return Err(INVALID_VALUE);
        }
        if let Some(address) = captured(driver, stream, gpu, size)? {
            return out.set(address);
        }
        let pools = &driver.memory.pools;
        out.set(pools.allocate(driver, pools.chosen(driver, gpu), size)?)
    }

    fn cuMemAllocFromPoolAsync(out: Out<u64>, size: u64, pool: u64, stream: u64) {
        let driver = driver::get()?;
        stream::gpu_of(driver, stream)?;
        if !out.given() {
            return Err(INVALID_VALUE);
        }
        let gpu = driver.memory.pools.gpu_of(pool)?;
        if let Some(address) = captured(driver, stream, gpu, size)? {
            return out.set(address);
        }
        out.set(driver.memory.pools.allocate(driver, pool, size)?)
    }

    fn cuMemFreeAsync(address: u64, stream: u64) {
        let driver = driver::get()?;
        stream::gpu_of(driver, stream)?;
        if let Some(stream) = stream::created(stream)?
            && let Some(capture) = lock(&stream.capture).as_mut()
        {
            // A graph frees only what a graph has allocated.
            if lane_of(address).is_none_or(|lane| lane < GRAPH_LANE) {
                return Err(INVALID_VALUE);
            }
            capture.free(address);
            return Ok(());
        }
        if address == 0 { Ok(()) } else { driver.memory.free(driver, address) }
    }

    fn cuDeviceGetDefaultMemPool(out: Out<u64>, device: i32) {
        let driver = driver::get()?;
        out.set(driver.memory.pools.default_of(driver, driver.gpu(device)?))
    }

    fn cuDeviceGetMemPool(out: Out<u64>, device: i32) {
        let driver = driver::get()?;
        out.set(driver.memory.pools.chosen(driver, driver.gpu(device)?))
    }

    fn cuDeviceSetMemPool(device: i32, pool: u64) {
        let driver = driver::get()?;
        choose(driver, driver.gpu(device)?, pool)
    }

    fn cuMemPoolCreate(out: Out<u64>, properties: In<[i32; 4]>) {
        let driver = driver::get()?;
        // Allocation type, handle types, location type, location.
        let [kind, handles, location, device] = properties.get()?;
        if kind != 1 || !out.given() {
            return Err(INVALID_VALUE);
        }
        // Only descriptors are supported.
        if handles & !1 != 0 {
            return Err(crate::code::NOT_SUPPORTED);
        }
        let gpu = location::gpu(driver, [location, device])?;
        out.set(Pools::open(&mut lock(&driver.memory.pools.0), driver, gpu, false))
    }

    fn cuMemPoolDestroy(handle: u64) {
        let driver = driver::get()?;
        let mut tables = lock(&driver.memory.pools.0);
        let pool = tables.pools.get_mut(&handle).filter(|pool| !pool.doomed && !pool.default).ok_or(INVALID_VALUE)?;
        pool.doomed = true;
        Pools::trim_one(driver, pool, 0);
        if pool.used == 0 {
            tables.pools.remove(&handle);
        }
        tables.chosen.retain(|_, chosen| *chosen != handle);
        Ok(())
    }

    fn cuMemPoolTrimTo(handle: u64, keep: u64) {
        let driver = driver::get()?;
        driver.memory.pools.with(handle, |pool| {
            Pools::trim_one(driver, pool, keep);
            Ok(())
        })
    }

    fn cuMemPoolGetAttribute(handle: u64, attribute: u32, value: Out<u64>) {
        let driver = driver::get()?;
        let granularity = driver.state().profile().granularity;
        driver.memory.pools.with(handle, |pool| match attribute {
            // These three are ints.
            1..=3 => value.narrow().set(pool.reuse[attribute as usize - 1]),
            RELEASE_THRESHOLD => value.set(pool.threshold),
            RESERVED => value.set(pool.reserved * granularity),
            RESERVED_HIGH => value.set(pool.reserved_high * granularity),
            USED => value.set(pool.used),
            USED_HIGH => value.set(pool.used_high),
            // Allocation type, location type, location id, and that the location is no part of a GPU: all ints.
            9 | 12 => value.narrow().set(1),
            11 => value.narrow().set(driver.ordinal(pool.gpu)),
            15 => value.narrow().set(-1),
            _ => Err(INVALID_VALUE),
        })
    }

    fn cuMemPoolSetAttribute(handle: u64, attribute: u32, value: Out<u64>) {
        let driver = driver::get()?;
        driver.memory.pools.with(handle, |pool| {
            match attribute {
                1..=3 => pool.reuse[attribute as usize - 1] = value.narrow().get()?,
                RELEASE_THRESHOLD => pool.threshold = value.get()?,
                // The high-water marks can be set to zero only.
                RESERVED_HIGH if value.get()? == 0 => pool.reserved_high = pool.reserved,
                USED_HIGH if value.get()? == 0 => pool.used_high = pool.used,
                _ => return Err(INVALID_VALUE),
            }
            Ok(())
        })
    }

    fn cuMemPoolSetAccess(handle: u64, _map: In<u64>, _count: u64) {
        driver::get()?.memory.pools.with(handle, |_| Ok(()))
    }

    fn cuMemPoolGetAccess(flags: Out<i32>, handle: u64, location: In<[i32; 2]>) {
        let driver = driver::get()?;
        let [_, device] = location.get()?;
        let gpu = driver.gpu(device)?;
        let own = driver.memory.pools.with(handle, |pool| Ok(pool.gpu == gpu))?;
        flags.set(if own { 3 } else { 0 })
    }

    fn cuMemSetMemPool(location: In<[i32; 2]>, _kind: u32, pool: u64) {
        let driver = driver::get()?;
        choose(driver, location::gpu(driver, location.get()?)?, pool)
    }

    fn cuMemGetMemPool(out: Out<u64>, location: In<[i32; 2]>, _kind: u32) {
        let driver = driver::get()?;
        out.set(driver.memory.pools.chosen(driver, location::gpu(driver, location.get()?)?))
    }

    fn cuMemGetDefaultMemPool(out: Out<u64>, location: In<[i32; 2]>, _kind: u32) {
        let driver = driver::get()?;
        out.set(driver.memory.pools.default_of(driver, location::gpu(driver, location.get()?)?))
    }
}

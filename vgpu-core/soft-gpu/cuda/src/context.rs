//! Contexts: primary ones, which are retained and released, created ones, and each thread's stack of current ones.
//!
//! A context's record is never freed: its handle is its address, programs may keep it, and there are few.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use soft_gpu::lock;

use soft_gpu::timeline::words::Lane;
use soft_gpu::work::Work;

use crate::code::{
    CONTEXT_IS_DESTROYED, Code, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED,
    PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_NOT_ENABLED, Res, UNSUPPORTED_LIMIT,
};
use crate::driver::{self, Driver};
use crate::ffi::{In, Out};
use crate::stack;
use crate::stream;

pub(crate) struct Context {
    pub(crate) gpu: usize,
    pub(crate) id: u64,
    primary: bool,
    /// Number of attaches that were not detached.
    attached: AtomicU32,
    alive: AtomicBool,
    flags: AtomicU32,
    cost: u64,
    /// The part of `cost` that NVML lists for no process.
    unowned: u64,
    /// Granules taken by raised limits.
    extra: AtomicU64,
    limits: [AtomicU64; LIMITS.len()],
    peers: Mutex<Vec<usize>>,
    pub(crate) work: Work,
    /// How many streams were ever made in it: blocking ones, others.
    streams: [AtomicU32; 2],
}

/// Defaults of the limits that can be queried, indexed by their numbers.
const LIMITS: [u64; 10] = [1024, 1 << 20, 8 << 20, 2, 2048, 64, 0, 0, 0, 0];

static ALL: Mutex<Vec<&'static Context>> = Mutex::new(Vec::new());

impl Context {
    pub(crate) fn handle(&'static self) -> u64 {
        std::ptr::from_ref(self) as u64
    }

    pub(crate) fn usable(&'static self) -> Result<&'static Self, Code> {
        if self.alive.load(Ordering::Acquire) {
            Ok(self)
        } else {
            Err(CONTEXT_IS_DESTROYED)
        }
    }

    pub(crate) fn open(driver: &Driver, gpu: usize, flags: u32, primary: bool) -> Result<&'static Self, Code> {
        let profile = driver.state().profile();
        let unowned = profile.context_unowned / profile.granularity;
        let cost = profile.context_cost / profile.granularity + unowned;
        driver.member().enter(gpu).ok_or(INVALID_DEVICE)?; // assumed: the code for an instance that is gone
        driver
            .memory
            .charge(driver, gpu, cost.saturating_add(crate::module::waiting()))
            .inspect_err(|_| driver.member().contexts(gpu, -1))?;
        driver.member().list_beside(gpu, -(unowned as i64));
        driver.member().sleep(profile.context_time_ns);
        let context: &'static Self = Box::leak(Box::new(Self {
            gpu,
            id: driver.handle(),
            primary,
            attached: AtomicU32::new(0),
            alive: AtomicBool::new(true),
            flags: AtomicU32::new(flags),
            cost,
            unowned,
            extra: AtomicU64::new(0),
            limits: LIMITS.map(AtomicU64::new),
            peers: Mutex::default(),
            work: Work::new(gpu),
            streams: Default::default(),
        }));
        lock(&ALL).push(context);
        crate::module::place_waiting(context);
        Ok(context)
    }

    /// Takes or gives back the memory that stacks, the printf buffer and the heap need beyond their default sizes. The
    /// default sizes are part of a context's cost.
    fn resize(&'static self, driver: &Driver) -> Res {
        let threads = u64::from(driver.state().sms_of(self.gpu)) * 2048;
        let factors = [threads, 1, 1];
        let bytes = factors
            .iter()
            .zip(LIMITS)
            .zip(&self.limits)
            .map(|((factor, first), now)| {
                now.load(Ordering::Relaxed)
                    .saturating_sub(first)
                    .saturating_mul(*factor)
            });
        let want = bytes
            .map(|bytes| driver.memory.units(bytes))
            .fold(0, u64::saturating_add);
        let have = self.extra.load(Ordering::Relaxed);
        if want > have {
            driver.memory.charge(driver, self.gpu, want - have)?;
            driver.member().sleep(driver.state().profile().context_time_ns);
        } else {
            driver.member().shrink(self.gpu, have - want);
        }
        self.extra.store(want, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the lane of a new stream.
    pub(crate) fn lane(&self, is_blocking: bool) -> Lane {
        let count = &self.streams[usize::from(!is_blocking)];
        Lane::of_stream(count.fetch_add(1, Ordering::Relaxed), is_blocking)
    }

    /// Destroys a context, drops its queued work, and frees its allocations.
    pub(crate) fn close(&'static self, driver: &Driver) {
        if self.alive.swap(false, Ordering::AcqRel) {
            self.work.close(driver.member());
            driver.memory.free_context(driver, self);
            crate::module::unload_all(driver, self);
            driver.member().list_beside(self.gpu, self.unowned as i64);
            driver
                .member()
                .shrink(self.gpu, self.cost + self.extra.load(Ordering::Relaxed));
            driver.member().contexts(self.gpu, -1);
        }
    }
}

/// The context that a handle names.
pub(crate) fn named(handle: u64) -> Result<&'static Context, Code> {
    let all = lock(&ALL);
    all.iter()
        .find(|context| context.handle() == handle)
        .copied()
        .ok_or(INVALID_CONTEXT)
}

/// Returns true if the GPU has another living context.
pub(crate) fn any_other(this: &'static Context) -> bool {
    let all = lock(&ALL);
    all.iter()
        .any(|other| !std::ptr::eq(*other, this) && other.gpu == this.gpu && other.alive.load(Ordering::Acquire))
}

/// The top of the calling thread's stack.
#[inline]
fn top() -> Option<&'static Context> {
    stack::with(|stack| stack.last()?.downcast_ref())
}

/// The calling thread's current context.
#[inline]
pub(crate) fn current() -> Result<&'static Context, Code> {
    driver::get()?;
    top().ok_or(INVALID_CONTEXT)?.usable()
}

/// The current context and the driver.
#[inline]
pub(crate) fn here() -> Result<(&'static Driver, &'static Context), Code> {
    Ok((driver::get()?, current()?))
}

/// The primary context of a GPU, made if there is none.
pub(crate) fn retain_primary(driver: &Driver, gpu: usize) -> Result<&'static Context, Code> {
    let mut primary = driver.primaries[gpu].lock();
    let context = match primary.context.filter(|context| context.usable().is_ok()) {
        Some(context) => context,
        None => Context::open(driver, gpu, primary.flags, true)?,
    };
    primary.context = Some(context);
    primary.retained += 1;
    Ok(context)
}

pub(crate) fn create(out: Out<u64>, flags: u32, device: i32) -> Res {
    let (driver, gpu) = driver::device(device)?;
    if !out.given() {
        return Err(INVALID_VALUE);
    }
    let context = Context::open(driver, gpu, flags, false)?;
    stack::with(|stack| stack.push(context));
    out.set(context.handle())
}

/// Ends a context that is not the primary one.
fn destroy(handle: u64) -> Res {
    let driver = driver::get()?;
    let context = named(handle)?.usable()?;
    if context.primary {
        return Err(INVALID_CONTEXT);
    }
    if top().is_some_and(|top| std::ptr::eq(top, context)) {
        stack::with(Vec::pop);
    }
    context.close(driver);
    Ok(())
}

soft_gpu::api! {
    fn cuDevicePrimaryCtxRetain(out: Out<u64>, device: i32) {
        let (driver, gpu) = driver::device(device)?;
        if !out.given() {
            return Err(INVALID_VALUE);
        }
        out.set(retain_primary(driver, gpu)?.handle())
    }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) {
        let (driver, gpu) = driver::device(device)?;
        let mut primary = driver.primaries[gpu].lock();
        primary.retained = primary.retained.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        if primary.retained == 0 && let Some(context) = primary.context.take() {
            context.close(driver);
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxReset_v2(device: i32) {
        let (driver, gpu) = driver::device(device)?;
        let mut primary = driver.primaries[gpu].lock();
        if let Some(context) = primary.context.take() {
            context.close(driver);
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) {
        let (driver, gpu) = driver::device(device)?;
        let mut primary = driver.primaries[gpu].lock();
        primary.flags = flags;
        if let Some(context) = primary.context {
            context.flags.store(flags, Ordering::Relaxed);
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) {
        let driver = driver::get()?;
        let primary = driver.primaries[driver.gpu(device)?].lock();
        flags.set(primary.flags)?;
        active.set(i32::from(primary.context.is_some_and(|context| context.usable().is_ok())))
    }

    fn cuCtxCreate_v2(out: Out<u64>, flags: u32, device: i32) {
        create(out, flags, device)
    }

    fn cuCtxCreate_v3(out: Out<u64>, _affinity: In<u64>, count: i32, flags: u32, device: i32) {
        if count > 0 { Err(NOT_SUPPORTED) } else { create(out, flags, device) }
    }

    fn cuCtxCreate_v4(out: Out<u64>, parameters: In<[u64; 3]>, flags: u32, device: i32) {
        // Affinity and graphics interoperation, if asked for, are not modelled.
        match parameters.get() {
            Ok([_, count, graphics]) if count as u32 != 0 || graphics != 0 => Err(NOT_SUPPORTED),
            _ => create(out, flags, device),
        }
    }

    fn cuCtxDestroy_v2(handle: u64) {
        destroy(handle)
    }

    fn cuCtxAttach(out: Out<u64>, flags: u32) {
        let context = current()?;
        if flags != 0 || !out.given() {
            return Err(INVALID_VALUE);
        }
        context.attached.fetch_add(1, Ordering::AcqRel);
        out.set(context.handle())
    }

    fn cuCtxDetach(handle: u64) {
        let context = current()?;
        if context.handle() != handle {
            return Err(INVALID_CONTEXT);
        }
        let less = |count: u32| count.checked_sub(1);
        match context.attached.fetch_update(Ordering::AcqRel, Ordering::Acquire, less) {
            Ok(_) => Ok(()),
            Err(_) => destroy(handle),
        }
    }

    fn cuCtxPushCurrent_v2(handle: u64) {
        driver::get()?;
        let context = named(handle)?.usable()?;
        stack::with(|stack| stack.push(context));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(out: Out<u64>) {
        driver::get()?;
        let context = top().ok_or(INVALID_CONTEXT)?;
        stack::with(Vec::pop);
        out.offer(context.handle());
        Ok(())
    }

    fn cuCtxSetCurrent(handle: u64) {
        driver::get()?;
        let context = if handle == 0 { None } else { Some(named(handle)?.usable()?) };
        stack::with(|stack| {
            stack.pop();
            if let Some(context) = context {
                stack.push(context);
            }
        });
        Ok(())
    }

    fn cuCtxGetCurrent(out: Out<u64>) {
        driver::get()?;
        out.set(top().map_or(0, Context::handle))
    }

    fn cuCtxGetDevice(out: Out<i32>) {
        let (driver, context) = here()?;
        out.set(driver.ordinal(context.gpu))
    }

    fn cuCtxGetDevice_v2(out: Out<i32>, handle: u64) {
        let driver = driver::get()?;
        let context = if handle == 0 { current()? } else { named(handle)? };
        out.set(driver.ordinal(context.gpu))
    }

    fn cuCtxGetFlags(out: Out<u32>) {
        out.set(current()?.flags.load(Ordering::Relaxed))
    }

    fn cuCtxSetFlags(flags: u32) {
        current()?.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxGetId(handle: u64, out: Out<u64>) {
        let context = if handle == 0 { current()? } else { named(handle)? };
        out.set(context.id)
    }

    fn cuCtxGetApiVersion(handle: u64, out: Out<u32>) {
        if handle == 0 { current()? } else { named(handle)? };
        out.set(3020)
    }

    fn cuCtxSynchronize() {
        let (driver, context) = here()?;
        stream::synchronize(driver, context);
        driver.memory.trim_pools(driver, context.gpu);
        Ok(())
    }

    fn cuCtxSynchronize_v2(handle: u64) {
        let driver = driver::get()?;
        let context = if handle == 0 { current()? } else { named(handle)?.usable()? };
        stream::synchronize(driver, context);
        driver.memory.trim_pools(driver, context.gpu);
        Ok(())
    }

    fn cuCtxGetLimit(out: Out<u64>, limit: u32) {
        let value = current()?.limits.get(limit as usize).ok_or(UNSUPPORTED_LIMIT)?;
        out.set(value.load(Ordering::Relaxed))
    }

    fn cuCtxSetLimit(limit: u32, value: u64) {
        let (driver, context) = here()?;
        let place = context.limits.get(limit as usize).ok_or(UNSUPPORTED_LIMIT)?;
        let before = place.swap(value, Ordering::Relaxed);
        let result = context.resize(driver);
        if result.is_err() {
            place.store(before, Ordering::Relaxed);
        }
        result
    }

    fn cuCtxGetCacheConfig(out: Out<u32>) {
        current()?;
        out.set(0)
    }

    fn cuCtxSetCacheConfig(_config: u32) {
        current().map(|_| ())
    }

    fn cuCtxGetSharedMemConfig(out: Out<u32>) {
        current()?;
        out.set(1)
    }

    fn cuCtxSetSharedMemConfig(_config: u32) {
        current().map(|_| ())
    }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        current()?;
        least.offer(0);
        greatest.offer(-5);
        Ok(())
    }

    fn cuCtxResetPersistingL2Cache() {
        current().map(|_| ())
    }

    fn cuDeviceCanAccessPeer(out: Out<i32>, device: i32, peer: i32) {
        let driver = driver::get()?;
        out.set(i32::from(driver.gpu(device)? != driver.gpu(peer)?))
    }

    fn cuCtxEnablePeerAccess(peer: u64, flags: u32) {
        let (context, peer) = (current()?, named(peer)?.usable()?);
        if flags != 0 || context.gpu == peer.gpu {
            return Err(INVALID_VALUE);
        }
        let mut peers = lock(&context.peers);
        if peers.contains(&peer.gpu) {
            return Err(PEER_ACCESS_ALREADY_ENABLED);
        }
        peers.push(peer.gpu);
        Ok(())
    }

    fn cuCtxDisablePeerAccess(peer: u64) {
        let (context, peer) = (current()?, named(peer)?.usable()?);
        let mut peers = lock(&context.peers);
        let at = peers.iter().position(|gpu| *gpu == peer.gpu).ok_or(PEER_ACCESS_NOT_ENABLED)?;
        peers.remove(at);
        Ok(())
    }
}

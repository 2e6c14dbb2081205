//! Host-part memory that a program frees in the order of a stream: work that was queued before may still
//! use it, and what frees managed memory knows no streams.
//!
//! ```text
//!  cuMemFreeAsync ─► event in the stream ─► deferred: still there, still charged
//!                                             ├─ allocation of that size ─► its stream waits for the event ─► lent again
//!                                             └─ event reached, and room is wanted or asked for ─► freed, given back
//! ```
//!
//! As with a pool, nothing waits but what would be refused otherwise, and freeing, for which a driver may
//! wait for the whole GPU, is left to calls of which that is expected. So what is deferred stays charged until
//! this process wants room, asks how much there is (cuMemGetInfo), trims a pool or ends a context.
//!
//! Two contexts matter: the memory goes with the one in which it was allocated, and the event with the one
//! of the stream. So it is lent again only where it was allocated, and a context that ends waits for what is
//! deferred of either kind, of whatever GPU, and for nothing else.
//!
//! Another thread may be capturing a stream, in which no call may be made that could wait: the calls here
//! have nothing to do with what it captures, and are made in a mode that lets them.
//!
//! How it fails: no event can be made, and the free is refused, with the driver's reason. Work that never
//! ends is waited for [`LONGEST`], then the allocation is refused; one that no free would make fit is refused
//! at once. An event of which the driver says neither that it is reached nor that its context has failed
//! stays deferred. A context that is about to end waits as long as it takes; what the driver does not free then
//! goes with its context, as all else does.

use crate::codes::{INVALID_VALUE, SUCCESS};
use crate::driver::Gpu;
use crate::driver::Real;
use crate::process::Ready;
use crate::real::real;
use core::ffi::{c_int, c_uint, c_void};
use std::time::Duration;
use vgpu_core::account::Charge;
use vgpu_core::memory::deferred::{self, Deferred, Leaving};
use vgpu_core::memory::driver::is_captured;
use vgpu_core::memory::free::released;
use vgpu_core::memory::gpu::release;
use vgpu_core::memory::granules::Taken;
use vgpu_core::os::spin::Patience;

/// How long a stream's work is waited for before an allocation is refused.
const LONGEST: Duration = Duration::from_secs(10);
/// How often the ledger, which all processes of the share use, is asked meanwhile.
const LOOKS: u32 = 200;
/// CU_EVENT_DISABLE_TIMING.
const NO_TIMING: c_uint = 2;

/// The calling thread may make calls that a capture forbids, until this is dropped.
struct Relaxed(c_int);

/// The calling thread's context is another one, until this is dropped.
struct Within;

/// What calls about streams are made in: the stream's context, and the relaxed mode.
pub(crate) struct InOrder {
    context: usize,
    _within: Within,
    _relaxed: Relaxed,
}

impl InOrder {
    /// # Errors
    /// What the driver says of the stream.
    pub(crate) fn of(stream: usize) -> Result<Self, c_int> {
        let (relaxed, mut context) = (Relaxed::new(), 0);
        // SAFETY: to be written; the driver validates the stream.
        match unsafe { real!(cuStreamGetCtx(usize, *mut usize))(stream, &mut context) } {
            SUCCESS => Ok(Self {
                context,
                _within: Within::new(context)?,
                _relaxed: relaxed,
            }),
            error => Err(error),
        }
    }
}

/// Frees `pointer` in the order of `stream`; `pass` asks the driver, which does that for what is not host-part
/// memory.
pub(crate) fn free(ready: &Ready, pointer: u64, stream: usize, pass: impl FnOnce() -> c_int) -> c_int {
    if ready.live.with(pointer, |live| live.is_host()) != Some(true) {
        return released(&ready.gpus, &ready.live, pointer, pass);
    }
    if is_captured(&Real, stream) {
        // A graph frees what it has allocated, and this it has not: nothing is freed here.
        return pass();
    }
    let order = match InOrder::of(stream) {
        Ok(order) => order,
        Err(error) => return error,
    };
    let home = context_of(pointer);
    // Out of the table first, so that of two frees one finds it.
    let Taken::Whole(live) = ready.live.take(pointer) else {
        return INVALID_VALUE;
    };
    match event_in(stream) {
        Ok(event) => {
            if let Some(gpu) = ready.gpus.get(live.gpu()) {
                deferred::note_used();
                gpu.deferred.lock().push(Deferred {
                    pointer,
                    home,
                    context: order.context,
                    event,
                    bytes: live.bytes(),
                    live: Some(live),
                });
            }
            SUCCESS
        }
        Err(error) => {
            ready.live.keep(&ready.gpus, pointer, live);
            error
        }
    }
}

/// The context in which memory was allocated; 0: the driver does not tell.
fn context_of(pointer: u64) -> usize {
    const CONTEXT: c_int = 1;
    let mut context = 0_usize;
    let at: *mut usize = &mut context;
    let ask = real!(cuPointerGetAttribute(*mut c_void, c_int, u64));
    // SAFETY: `context` is to be written; the driver validates the pointer.
    match unsafe { ask(at.cast(), CONTEXT, pointer) } {
        SUCCESS => context,
        _ => 0,
    }
}

/// A new event that is reached when `stream` has done what is queued in it now.
fn event_in(stream: usize) -> Result<usize, c_int> {
    let mut event = 0;
    // SAFETY: to be written.
    match unsafe { real!(cuEventCreate(*mut usize, c_uint))(&mut event, NO_TIMING) } {
        SUCCESS => {}
        error => return Err(error),
    }
    // SAFETY: the event just made, and the caller's stream.
    match unsafe { real!(cuEventRecord(usize, usize))(event, stream) } {
        SUCCESS => Ok(event),
        error => {
            destroy(event);
            Err(error)
        }
    }
}

fn destroy(event: usize) {
    // SAFETY: an event that was made here, and is asked for no more.
    unsafe { real!(cuEventDestroy_v2(usize))(event) };
}

/// Deferred memory of that size and of the stream's context, in the order of `stream`.
pub(crate) fn again(ready: &Ready, gpu: &Gpu, bytes: u64, stream: usize, order: &InOrder) -> Option<u64> {
    let found = {
        let mut deferred = gpu.deferred.lock();
        let fits = |one: &Deferred| one.bytes == bytes && one.home == order.context && one.live.is_some();
        let best = deferred.iter().position(|one| fits(one) && is_reached(one));
        let at = best.or_else(|| deferred.iter().position(fits))?;
        deferred.swap_remove(at)
    };
    // SAFETY: an event that was made here, and the caller's stream.
    let waits = unsafe { real!(cuStreamWaitEvent(usize, usize, c_uint))(stream, found.event, 0) };
    if waits != SUCCESS {
        gpu.deferred.lock().push(found);
        return None;
    }
    destroy(found.event);
    ready.live.keep(&ready.gpus, found.pointer, found.live?);
    Some(found.pointer)
}

/// Charges host memory, for which deferred memory gives way.
pub(crate) fn reserve(ready: &Ready, gpu: &Gpu, bytes: u64) -> Option<Charge> {
    let mut patience = None;
    loop {
        if let Ok(charge) = gpu.account.reserve_host(bytes) {
            return Some(charge);
        }
        for _ in 0..LOOKS {
            if collect(ready, gpu) {
                break;
            }
            // In this order: what another thread gives back between the two counts twice, not never.
            let deferred = gpu.deferred.lock().iter().map(|one| one.bytes).sum::<u64>();
            let room = gpu.account.host_room();
            if room.saturating_add(deferred) < bytes {
                return None;
            }
            if deferred == 0 {
                // Given back since it was refused, perhaps.
                return gpu.account.reserve_host(bytes).ok();
            }
            if !patience.get_or_insert_with(|| Patience::new(LONGEST)).nap() {
                return None;
            }
        }
    }
}

/// Frees what is deferred and in use no more; whether that was anything.
pub(crate) fn collect(ready: &Ready, gpu: &Gpu) -> bool {
    let reached: Vec<Leaving> = {
        let mut deferred = gpu.deferred.lock();
        if deferred.is_empty() {
            return false;
        }
        let _relaxed = Relaxed::new();
        let reached = deferred.iter_mut().filter(|one| one.live.is_some() && is_reached(one));
        reached.filter_map(Deferred::leave).collect()
    };
    let any = !reached.is_empty();
    reached.into_iter().for_each(|one| finish(ready, gpu, one));
    any
}

/// Waits for what is deferred and cannot outlive `context`, which is about to end, and frees it.
pub(crate) fn empty(ready: &Ready, context: usize) {
    for gpu in &ready.gpus {
        loop {
            let next = gpu
                .deferred
                .lock()
                .iter_mut()
                .filter(|one| one.is_of(context))
                .find_map(Deferred::leave);
            let Some(one) = next else { break };
            let over = {
                let _relaxed = Relaxed::new();
                // SAFETY: an event that was made here.
                within(one.context, || unsafe { real!(cuEventSynchronize(usize))(one.event) })
            };
            if is_over(over) {
                finish(ready, gpu, one);
            } else {
                // Its event may end now: it goes with its context.
                drop_place(gpu, one.pointer);
                ready.live.keep(&ready.gpus, one.pointer, one.live);
            }
        }
        // Those that other threads are freeing: the address may be another's once the context has ended.
        let mut patience = Patience::new(LONGEST);
        while has_any(gpu, context) && patience.nap() {}
    }
}

/// Whether something is deferred that cannot outlive `context`.
pub(crate) fn has_of(ready: &Ready, context: usize) -> bool {
    let waits = |one: &Deferred| one.is_of(context) && one.live.is_some();
    deferred::used() && ready.gpus.iter().any(|gpu| gpu.deferred.lock().iter().any(waits))
}

/// The same, or is being freed by another thread right now.
fn has_any(gpu: &Gpu, context: usize) -> bool {
    gpu.deferred.lock().iter().any(|one| one.is_of(context))
}

/// Whether it is in use no more. In relaxed mode.
fn is_reached(one: &Deferred) -> bool {
    // SAFETY: an event that was made here.
    is_over(within(one.context, || unsafe { real!(cuEventQuery(usize))(one.event) }))
}

/// What a call says that is made in `context`, or what the driver says of that.
fn within(context: usize, call: impl FnOnce() -> c_int) -> c_int {
    match Within::new(context) {
        Ok(_within) => call(),
        Err(error) => error,
    }
}

/// Whether no work of an event's stream runs any more, by what the driver says of the event: it is reached,
/// or nothing runs in its context ever again.
fn is_over(answer: c_int) -> bool {
    match answer {
        // No such event: it has gone with its context.
        SUCCESS | 400 => true,
        // Errors after which a context is of no use: of memory and links, then of kernels.
        214 | 220 | 700 | 702 | 710 | 714..=719 => true,
        error => is_gone(error),
    }
}

/// Whether the driver, or the context, has ended.
fn is_gone(error: c_int) -> bool {
    matches!(error, 4 | 201 | 709)
}

fn drop_place(gpu: &Gpu, pointer: u64) {
    let mut deferred = gpu.deferred.lock();
    if let Some(at) = deferred
        .iter()
        .position(|one| one.pointer == pointer && one.live.is_none())
    {
        deferred.swap_remove(at);
    }
}

fn finish(ready: &Ready, gpu: &Gpu, one: Leaving) {
    let _relaxed = Relaxed::new();
    within(one.context, || {
        destroy(one.event);
        SUCCESS
    });
    let home = if one.home == 0 { one.context } else { one.home };
    match Within::new(home) {
        // The memory went with its context, and its address may be another's by now.
        Err(error) if one.home != 0 && is_gone(error) => release(&ready.gpus, one.live),
        // SAFETY: memory that the program has freed, and that nothing uses any more.
        Ok(_within) if unsafe { real!(cuMemFree_v2(u64))(one.pointer) } == SUCCESS => release(&ready.gpus, one.live),
        _ => ready.live.keep(&ready.gpus, one.pointer, one.live),
    }
    drop_place(gpu, one.pointer);
}

// === impl Relaxed ===

impl Relaxed {
    fn new() -> Self {
        const RELAXED: c_int = 2;
        Self(exchange(RELAXED))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        exchange(self.0);
    }
}

/// Sets the calling thread's mode towards captures; the mode before, or the new one where there is none.
fn exchange(mut mode: c_int) -> c_int {
    // SAFETY: to be read and written.
    unsafe { real!(cuThreadExchangeStreamCaptureMode(*mut c_int))(&mut mode) };
    mode
}

// === impl Within ===

impl Within {
    fn new(context: usize) -> Result<Self, c_int> {
        // SAFETY: a context of the driver's; popped on drop.
        match unsafe { real!(cuCtxPushCurrent_v2(usize))(context) } {
            SUCCESS => Ok(Self),
            error => Err(error),
        }
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        let mut context = 0;
        // SAFETY: to be written; the context was pushed.
        unsafe { real!(cuCtxPopCurrent_v2(*mut usize))(&mut context) };
    }
}

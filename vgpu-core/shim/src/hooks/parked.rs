//! Host-part memory that a program frees in the order of a stream: work that was queued before may still
//! use it, and what frees managed memory knows no streams.
//!
//! ```text
//!  cuMemFreeAsync ─► event in the stream ─► parked: still there, still charged
//!                                             ├─ allocation of that size ─► its stream waits for the event ─► lent again
//!                                             └─ event reached, and room is wanted or asked for ─► freed, given back
//! ```
//!
//! As with a pool, nothing waits but what would be refused otherwise, and freeing, for which a driver may
//! wait for the whole GPU, is left to calls of which that is expected. So what is parked stays charged until
//! this process wants room, asks how much there is (cuMemGetInfo), trims a pool or ends a context.
//!
//! Another thread may be capturing a stream, in which no call may be made that could wait: the calls here
//! have nothing to do with what it captures, and are made in a mode that lets them.
//!
//! How it fails: no event can be made, and the free is refused, with the driver's reason. Work that never
//! ends is waited for [`LONGEST`], then the allocation is refused. A context that is about to end is waited
//! for, because its events end with it; what the driver does not free then goes with its context, as all
//! else does ([`memory::sweep`](super::memory::sweep)).

use crate::detour::{INVALID_VALUE, SUCCESS};
use crate::hooks::granules::{self, Live, Taken};
use crate::hooks::memory::{keep, released};
use crate::hooks::pools;
use crate::real::real;
use crate::state::{Gpu, Ready};
use core::ffi::{c_int, c_uint};
use std::time::Duration;
use vgpu_core::account::Charge;
use vgpu_core::os::spin::Patience;

/// How long a stream's work is waited for before an allocation is refused.
const LONGEST: Duration = Duration::from_secs(10);
const NOT_READY: c_int = 600;
/// CU_EVENT_DISABLE_TIMING.
const NO_TIMING: c_uint = 2;

/// Freed once `event`, of `context`, is reached.
#[derive(Debug)]
pub(crate) struct Parked {
    pointer: u64,
    context: usize,
    event: usize,
    live: Live,
}

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
            SUCCESS => Self::at(context, relaxed),
            error => Err(error),
        }
    }

    fn at(context: usize, relaxed: Relaxed) -> Result<Self, c_int> {
        // SAFETY: a context of the driver's; popped by `Within`.
        match unsafe { real!(cuCtxPushCurrent_v2(usize))(context) } {
            SUCCESS => Ok(Self {
                context,
                _within: Within,
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
        let has = |gpu: &Gpu| gpu.parked.lock().iter().any(|parked| parked.pointer == pointer);
        if ready.gpus.iter().any(has) {
            // Freed already; the driver does not know that yet.
            return INVALID_VALUE;
        }
        return released(ready, pointer, pass);
    }
    if pools::is_captured(stream) {
        // A graph frees what it has allocated, and this it has not: nothing is freed here.
        return pass();
    }
    let order = match InOrder::of(stream) {
        Ok(order) => order,
        Err(error) => return error,
    };
    // Out of the table first, so that of two frees one finds it.
    let Taken::Whole(live) = granules::take(ready, pointer) else {
        return INVALID_VALUE;
    };
    match event_in(stream) {
        Ok(event) => {
            if let Some(gpu) = ready.gpus.get(live.gpu()) {
                let context = order.context;
                gpu.parked.lock().push(Parked {
                    pointer,
                    context,
                    event,
                    live,
                });
            }
            SUCCESS
        }
        Err(error) => {
            keep(ready, pointer, live);
            error
        }
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

/// Parked memory of that size, in the order of `stream`.
pub(crate) fn again(ready: &Ready, gpu: &Gpu, bytes: u64, stream: usize) -> Option<u64> {
    let found = {
        let mut parked = gpu.parked.lock();
        let fits = |one: &Parked| one.live.bytes() == bytes;
        let best = parked.iter().position(|one| fits(one) && is_reached(one));
        let at = best.or_else(|| parked.iter().position(fits))?;
        parked.swap_remove(at)
    };
    // SAFETY: an event that was made here, and the caller's stream.
    let waits = unsafe { real!(cuStreamWaitEvent(usize, usize, c_uint))(stream, found.event, 0) };
    if waits != SUCCESS {
        gpu.parked.lock().push(found);
        return None;
    }
    destroy(found.event);
    keep(ready, found.pointer, found.live);
    Some(found.pointer)
}

/// Charges host memory, for which parked memory gives way.
pub(crate) fn reserve(ready: &Ready, gpu: &Gpu, bytes: u64) -> Option<Charge> {
    let mut patience = None;
    loop {
        if let Ok(charge) = gpu.account.reserve_host(bytes) {
            return Some(charge);
        }
        if collect(ready, gpu) {
            continue;
        }
        let none = gpu.parked.lock().is_empty();
        if none || !patience.get_or_insert_with(|| Patience::new(LONGEST)).nap() {
            return None;
        }
    }
}

/// Frees what is parked and in use no more; whether that was anything.
pub(crate) fn collect(ready: &Ready, gpu: &Gpu) -> bool {
    let mut any = false;
    loop {
        let found = {
            let mut parked = gpu.parked.lock();
            if parked.is_empty() {
                return any;
            }
            let _relaxed = Relaxed::new();
            let reached = parked.iter().position(is_reached);
            reached.map(|at| parked.swap_remove(at))
        };
        let Some(found) = found else { return any };
        any = true;
        finish(ready, found);
    }
}

/// Waits for all that is parked, and frees it: a context of the GPU is about to end.
pub(crate) fn empty(ready: &Ready, gpu: &Gpu) {
    loop {
        let Some(found) = gpu.parked.lock().pop() else { return };
        let _relaxed = Relaxed::new();
        // SAFETY: an event that was made here. Where the work has failed, it is over too.
        unsafe { real!(cuEventSynchronize(usize))(found.event) };
        finish(ready, found);
    }
}

/// Whether it is in use no more; where the work has failed, it is over too.
fn is_reached(one: &Parked) -> bool {
    // SAFETY: an event that was made here.
    unsafe { real!(cuEventQuery(usize))(one.event) != NOT_READY }
}

fn finish(ready: &Ready, parked: Parked) {
    let Parked {
        pointer,
        context,
        event,
        live,
    } = parked;
    let _order = InOrder::at(context, Relaxed::new());
    destroy(event);
    // SAFETY: memory that the program has freed, and that nothing uses any more.
    if unsafe { real!(cuMemFree_v2(u64))(pointer) } == SUCCESS {
        live.forget(ready);
    } else {
        keep(ready, pointer, live);
    }
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

impl Drop for Within {
    fn drop(&mut self) {
        let mut context = 0;
        // SAFETY: to be written; the context was pushed.
        unsafe { real!(cuCtxPopCurrent_v2(*mut usize))(&mut context) };
    }
}

//! Frees host memory in the order of a stream: work that was queued before may still use it, and the driver's call that
//! frees managed memory knows no streams.
//!
//! ```text
//!  cuMemFreeAsync ─► event in the stream ─► deferred: still there, still charged
//!                                             ├─ allocation of that size ─► its stream waits for the event ─► lent again
//!                                             └─ event reached, and room is wanted or asked for ─► freed, released
//! ```
//!
//! As with a pool, an allocation waits only if it would be refused otherwise. To free the memory, a driver may wait for
//! the whole GPU, so it is freed only in calls that are expected to wait: deferred memory stays charged until this
//! process needs room, asks for the free memory (cuMemGetInfo), trims a pool or ends a context.
//!
//! Two contexts matter: the memory ends with the context in which it was allocated, the event with the context of the
//! stream. So memory is reused only in the context in which it was allocated. The end of a context waits only for
//! deferred memory that ends with it, or whose event does, on any GPU.
//!
//! While another thread captures a stream, calls that could wait are forbidden. The calls here do not affect the
//! capture, and are made in a mode that allows them.
//!
//! How it fails: if no event can be created, the free is refused with the driver's error. An allocation waits at most
//! [`LONGEST`] for work, and is refused at once if no free would make it fit. Memory stays deferred until the driver
//! says that its event is reached or that the context has failed. The end of a context waits without a limit; memory
//! that the driver does not free then ends with its context.

use super::allocations::{Allocations, Taken};
use super::deferred::{self, Deferred, Leaving};
use super::driver::{Answer, Driver, INVALID_VALUE, SUCCESS, is_captured};
use super::free::free_charged;
use super::gpu::{Gpu, Gpus, release};
use crate::account::Charge;
use crate::os::spin::Patience;
use core::ffi::c_int;
use std::time::Duration;

/// How long an allocation waits for a stream's work before it is refused.
const LONGEST: Duration = Duration::from_secs(10);
/// cuEventQuery's error for an event that was recorded in a captured stream.
const CAPTURED_EVENT: c_int = 907;
/// Number of naps between two attempts to charge the ledger, which all processes of the share use.
const LOOKS: u32 = 200;

/// Allows the calling thread, until this is dropped, calls that a capture forbids.
struct Relaxed<'a, D: Driver> {
    driver: &'a D,
    before: c_int,
}

/// Makes another context current for the calling thread until this is dropped.
struct Within<'a, D: Driver>(&'a D);

/// The state for calls about a stream: the stream's context and the relaxed capture mode.
pub struct InOrder<'a, D: Driver> {
    context: usize,
    _within: Within<'a, D>,
    _relaxed: Relaxed<'a, D>,
}

impl<'a, D: Driver> InOrder<'a, D> {
    /// # Errors
    /// The driver's error for the stream.
    pub fn of(driver: &'a D, stream: usize) -> Answer<Self> {
        let relaxed = Relaxed::new(driver);
        let context = driver.stream_context(stream)?;
        Ok(Self {
            context,
            _within: Within::new(driver, context)?,
            _relaxed: relaxed,
        })
    }
}

/// Frees `pointer` in the order of `stream`. `pass` calls the driver, which does this for all other memory.
pub fn free<D: Driver>(
    gpus: &Gpus<D>,
    live: &Allocations,
    pointer: u64,
    stream: usize,
    pass: impl FnOnce() -> c_int,
) -> c_int {
    let owner = live.with(pointer, |live| live.is_host().then(|| live.gpu())).flatten();
    let Some(gpu) = owner.and_then(|gpu| gpus.get(gpu)) else {
        return free_charged(gpus, live, pointer, pass);
    };
    if is_captured(&gpu.driver, stream) {
        // A graph frees only memory that it has allocated, so nothing is freed here.
        return pass();
    }
    let order = match InOrder::of(&gpu.driver, stream) {
        Ok(order) => order,
        Err(error) => return error,
    };
    let home = gpu.driver.pointer_context(pointer).unwrap_or(0);
    // A capture may have begun meanwhile. Then the event belongs to its graph and is never reached.
    let event = match event_in(&gpu.driver, stream) {
        Ok(event) if gpu.driver.query_event(event) == CAPTURED_EVENT => {
            gpu.driver.destroy_event(event);
            return pass();
        }
        Ok(event) => event,
        Err(error) => return error,
    };
    // Of two frees of the same pointer, one succeeds.
    let Taken::Whole(one) = live.take(pointer) else {
        gpu.driver.destroy_event(event);
        return INVALID_VALUE;
    };
    deferred::note_used();
    gpu.deferred.lock().push(Deferred {
        pointer,
        home,
        context: order.context,
        event,
        bytes: one.bytes(),
        live: Some(one),
    });
    SUCCESS
}

/// Returns a new event that is reached when `stream` has done its present work.
fn event_in(driver: &impl Driver, stream: usize) -> Answer<usize> {
    let event = driver.create_event()?;
    match driver.record_event(event, stream) {
        SUCCESS => Ok(event),
        error => {
            driver.destroy_event(event);
            Err(error)
        }
    }
}

/// Reuses deferred memory of the same size and of the stream's context, in the order of `stream`.
pub fn again<D: Driver>(
    gpus: &Gpus<D>,
    live: &Allocations,
    gpu: &Gpu<D>,
    bytes: u64,
    stream: usize,
    order: &InOrder<'_, D>,
) -> Option<u64> {
    let found = {
        let mut deferred = gpu.deferred.lock();
        let fits = |one: &Deferred| one.bytes == bytes && one.home == order.context && one.live.is_some();
        let best = deferred
            .iter()
            .position(|one| fits(one) && is_reached(&gpu.driver, one));
        let at = best.or_else(|| deferred.iter().position(fits))?;
        deferred.swap_remove(at)
    };
    if gpu.driver.wait_for_event(stream, found.event) != SUCCESS {
        gpu.deferred.lock().push(found);
        return None;
    }
    gpu.driver.destroy_event(found.event);
    live.keep(gpus, found.pointer, found.live?);
    Some(found.pointer)
}

/// Charges host memory. Frees deferred memory if that is needed.
pub fn reserve<D: Driver>(gpus: &Gpus<D>, live: &Allocations, gpu: &Gpu<D>, bytes: u64) -> Option<Charge> {
    reserve_within(gpus, live, gpu, bytes, LONGEST)
}

fn reserve_within<D: Driver>(
    gpus: &Gpus<D>,
    live: &Allocations,
    gpu: &Gpu<D>,
    bytes: u64,
    longest: Duration,
) -> Option<Charge> {
    let mut patience = None;
    loop {
        if let Ok(charge) = gpu.account.reserve_host(bytes) {
            return Some(charge);
        }
        for _ in 0..LOOKS {
            if collect(gpus, live, gpu) {
                break;
            }
            // In this order, memory that another thread releases between the two reads is counted twice rather than
            // missed.
            let deferred = gpu.deferred.lock().iter().map(|one| one.bytes).sum::<u64>();
            let room = gpu.account.host_room();
            if room.saturating_add(deferred) < bytes {
                return None;
            }
            if deferred == 0 {
                // Memory may have been released since the refusal.
                return gpu.account.reserve_host(bytes).ok();
            }
            if !patience.get_or_insert_with(|| Patience::new(longest)).nap() {
                return None;
            }
        }
    }
}

/// Frees deferred memory that is no longer in use. Returns true if there was any.
pub fn collect<D: Driver>(gpus: &Gpus<D>, live: &Allocations, gpu: &Gpu<D>) -> bool {
    let reached: Vec<Leaving> = {
        let mut deferred = gpu.deferred.lock();
        if deferred.is_empty() {
            return false;
        }
        let _relaxed = Relaxed::new(&gpu.driver);
        let reached = deferred
            .iter_mut()
            .filter(|one| one.live.is_some() && is_reached(&gpu.driver, one));
        reached.filter_map(Deferred::leave).collect()
    };
    let any = !reached.is_empty();
    reached.into_iter().for_each(|one| finish(gpus, live, gpu, one));
    any
}

/// Waits for the deferred memory that ends with `context` at the latest, and frees it.
pub fn empty<D: Driver>(gpus: &Gpus<D>, live: &Allocations, context: usize) {
    for gpu in gpus {
        loop {
            let next = gpu
                .deferred
                .lock()
                .iter_mut()
                .filter(|one| one.is_of(context))
                .find_map(Deferred::leave);
            let Some(one) = next else { break };
            let over = {
                let _relaxed = Relaxed::new(&gpu.driver);
                within(&gpu.driver, one.context, || gpu.driver.synchronize_event(one.event))
            };
            if is_over(over) {
                finish(gpus, live, gpu, one);
            } else {
                // The event may be lost, so the memory stays until its context ends.
                drop_place(gpu, one.pointer);
                live.keep(gpus, one.pointer, one.live);
            }
        }
        // Wait for memory that other threads are freeing: once the context has ended, its address may be reused.
        let mut patience = Patience::new(LONGEST);
        while has_any(gpu, context) && patience.nap() {}
    }
}

/// Returns true if there is deferred memory that ends with `context` at the latest.
pub fn has_of<D: Driver>(gpus: &[Gpu<D>], context: usize) -> bool {
    let waits = |one: &Deferred| one.is_of(context) && one.live.is_some();
    deferred::used() && gpus.iter().any(|gpu| gpu.deferred.lock().iter().any(waits))
}

/// Returns true in the case of [`has_of`], and while another thread is freeing such memory.
fn has_any<D: Driver>(gpu: &Gpu<D>, context: usize) -> bool {
    gpu.deferred.lock().iter().any(|one| one.is_of(context))
}

/// Returns true if the memory is no longer in use. Requires the relaxed mode.
fn is_reached(driver: &impl Driver, one: &Deferred) -> bool {
    is_over(within(driver, one.context, || driver.query_event(one.event)))
}

/// Runs `call` in `context`. Returns its result, or the error of entering the context.
fn within(driver: &impl Driver, context: usize, call: impl FnOnce() -> c_int) -> c_int {
    match Within::new(driver, context) {
        Ok(_within) => call(),
        Err(error) => error,
    }
}

/// Returns true if the event is reached or nothing can run in its context any more.
fn is_over(answer: c_int) -> bool {
    match answer {
        // The event does not exist any more: it ended with its context.
        SUCCESS | 400 => true,
        // These errors make a context unusable: errors of memory and links, then of kernels.
        214 | 220 | 700 | 702 | 710 | 714..=719 => true,
        error => is_gone(error),
    }
}

/// Returns true if the driver, or the context, has ended.
fn is_gone(error: c_int) -> bool {
    matches!(error, 4 | 201 | 709)
}

fn drop_place<D: Driver>(gpu: &Gpu<D>, pointer: u64) {
    let mut deferred = gpu.deferred.lock();
    if let Some(at) = deferred
        .iter()
        .position(|one| one.pointer == pointer && one.live.is_none())
    {
        deferred.swap_remove(at);
    }
}

fn finish<D: Driver>(gpus: &Gpus<D>, live: &Allocations, gpu: &Gpu<D>, one: Leaving) {
    let driver = &gpu.driver;
    let _relaxed = Relaxed::new(driver);
    within(driver, one.context, || driver.destroy_event(one.event));
    let home = if one.home == 0 { one.context } else { one.home };
    match Within::new(driver, home) {
        // The memory ended with its context, and its address may be reused already.
        Err(error) if one.home != 0 && is_gone(error) => release(gpus, one.live),
        Ok(_within) if driver.free(one.pointer) == SUCCESS => release(gpus, one.live),
        _ => live.keep(gpus, one.pointer, one.live),
    }
    drop_place(gpu, one.pointer);
}

// === impl Relaxed ===

impl<'a, D: Driver> Relaxed<'a, D> {
    fn new(driver: &'a D) -> Self {
        const RELAXED: c_int = 2;
        let before = driver.exchange_capture_mode(RELAXED);
        Self { driver, before }
    }
}

impl<D: Driver> Drop for Relaxed<'_, D> {
    fn drop(&mut self) {
        self.driver.exchange_capture_mode(self.before);
    }
}

// === impl Within ===

impl<'a, D: Driver> Within<'a, D> {
    fn new(driver: &'a D, context: usize) -> Answer<Self> {
        match driver.push_context(context) {
            SUCCESS => Ok(Self(driver)),
            error => Err(error),
        }
    }
}

impl<D: Driver> Drop for Within<'_, D> {
    fn drop(&mut self) {
        self.0.pop_context();
    }
}

#[cfg(all(test, not(miri)))] // The tests map files.
mod tests {
    use super::super::fake::{Fake, MIB, gpu_with_host};
    use super::super::live::Live;
    use super::*;

    const CONTEXT: usize = 7;
    const STREAM: usize = 3;
    const POINTER: u64 = 0x7000_0000;

    /// A GPU with 16 MiB of host memory. The program has allocated 8 MiB of it at [`POINTER`].
    fn scene() -> (Gpus<Fake>, Allocations) {
        let gpus = vec![gpu_with_host(4 * MIB, 16 * MIB)];
        gpus[0].driver.state().stream_contexts.insert(STREAM, CONTEXT);
        let live = Allocations::default();
        allocate(&gpus, &live, POINTER);
        (gpus, live)
    }

    fn allocate(gpus: &Gpus<Fake>, live: &Allocations, pointer: u64) {
        let charge = reserve(gpus, live, &gpus[0], 8 * MIB).expect("room");
        gpus[0].driver.state().pointer_contexts.insert(pointer, CONTEXT);
        live.keep(gpus, pointer, Live::new(0, charge));
    }

    fn freed_in_order(gpus: &Gpus<Fake>, live: &Allocations) -> c_int {
        free(gpus, live, POINTER, STREAM, || {
            panic!("the driver knows no such pointer")
        })
    }

    #[test]
    fn memory_stays_charged_until_its_event_is_reached_and_somebody_asks() {
        let (gpus, live) = scene();
        let gpu = &gpus[0];
        assert_eq!(freed_in_order(&gpus, &live), SUCCESS);
        assert_eq!(gpu.account.charged(), 8 * MIB, "work may use it");
        assert!(!collect(&gpus, &live, gpu));
        assert!(gpu.driver.state().freed.is_empty());
        gpu.driver.state().reach_all();
        assert_eq!(gpu.account.charged(), 8 * MIB, "nobody asked");
        assert!(collect(&gpus, &live, gpu));
        assert_eq!(gpu.account.charged(), 0);
        assert_eq!(gpu.driver.state().freed, [POINTER]);
        assert_eq!(gpu.driver.state().events.len(), 0, "its event went too");
        assert!(!collect(&gpus, &live, gpu), "only once");
    }

    #[test]
    fn of_two_frees_one_is_refused() {
        let (gpus, live) = scene();
        assert_eq!(freed_in_order(&gpus, &live), SUCCESS);
        let again = free(&gpus, &live, POINTER, STREAM, || panic!("it is freed"));
        assert_eq!(again, INVALID_VALUE);
        assert_eq!(
            free_charged(&gpus, &live, POINTER, || panic!("it is freed")),
            INVALID_VALUE
        );
    }

    #[test]
    fn a_captured_free_and_one_without_an_event_free_nothing() {
        let (gpus, live) = scene();
        gpus[0].driver.state().capturing.push(STREAM);
        assert_eq!(free(&gpus, &live, POINTER, STREAM, || 42), 42, "the graph's answer");
        gpus[0].driver.state().capturing.clear();
        gpus[0].driver.state().no_events = true;
        assert_eq!(freed_in_order(&gpus, &live), super::super::driver::OUT_OF_MEMORY);
        gpus[0].driver.state().no_events = false;
        gpus[0].driver.state().captures_at_record = true;
        assert_eq!(free(&gpus, &live, POINTER, STREAM, || 42), 42, "a capture began");
        gpus[0].driver.state().captures_at_record = false;
        assert_eq!(freed_in_order(&gpus, &live), SUCCESS, "it was still there");
    }

    #[test]
    fn an_allocation_of_that_size_gets_the_memory_before_its_event_is_reached() {
        let (gpus, live) = scene();
        assert_eq!(freed_in_order(&gpus, &live), SUCCESS);
        let order = InOrder::of(&gpus[0].driver, STREAM).expect("a context");
        assert_eq!(
            again(&gpus, &live, &gpus[0], 4 * MIB, STREAM, &order),
            None,
            "another size"
        );
        assert_eq!(again(&gpus, &live, &gpus[0], 8 * MIB, STREAM, &order), Some(POINTER));
        drop(order);
        assert_eq!(gpus[0].account.charged(), 8 * MIB);
        let state = gpus[0].driver.state();
        assert!(
            state.log.iter().any(|call| call == "stream 3 waits for event 1"),
            "{:?}",
            state.log
        );
        assert_eq!((state.contexts.len(), state.capture_mode), (0, 0), "all is as before");
    }

    #[test]
    fn memory_of_another_context_is_not_lent() {
        let (gpus, live) = scene();
        assert_eq!(freed_in_order(&gpus, &live), SUCCESS);
        gpus[0].driver.state().stream_contexts.insert(4, CONTEXT + 1);
        let order = InOrder::of(&gpus[0].driver, 4).expect("a context");
        assert_eq!(again(&gpus, &live, &gpus[0], 8 * MIB, 4, &order), None);
    }

    #[test]
    fn an_allocation_waits_for_deferred_memory_only_if_that_would_make_it_fit() {
        const SHORT: Duration = Duration::from_millis(20);
        let (gpus, live) = scene();
        allocate(&gpus, &live, POINTER + 8 * MIB);
        assert_eq!(freed_in_order(&gpus, &live), SUCCESS);
        assert!(
            reserve(&gpus, &live, &gpus[0], 10 * MIB).is_none(),
            "never: refused at once"
        );
        let charge = reserve_within(&gpus, &live, &gpus[0], 8 * MIB, SHORT);
        assert!(charge.is_none(), "its work does not end");
        gpus[0].driver.state().reach_all();
        let charge = reserve_within(&gpus, &live, &gpus[0], 8 * MIB, SHORT).expect("room");
        gpus[0].account.release(charge);
    }

    #[test]
    fn a_context_that_ends_waits_for_its_memory_and_for_no_other() {
        let (gpus, live) = scene();
        assert_eq!(freed_in_order(&gpus, &live), SUCCESS);
        assert!(has_of(&gpus, CONTEXT) && !has_of(&gpus, CONTEXT + 1));
        empty(&gpus, &live, CONTEXT + 1);
        assert_eq!(gpus[0].account.charged(), 8 * MIB);
        // In the fake driver, synchronising with an event makes it reached.
        empty(&gpus, &live, CONTEXT);
        assert_eq!((gpus[0].account.charged(), has_of(&gpus, CONTEXT)), (0, false));
        assert_eq!(gpus[0].driver.state().freed, [POINTER]);
    }

    #[test]
    fn memory_whose_context_has_ended_is_released_and_not_freed() {
        let (gpus, live) = scene();
        assert_eq!(freed_in_order(&gpus, &live), SUCCESS);
        gpus[0].driver.state().ended.push(CONTEXT);
        assert!(collect(&gpus, &live, &gpus[0]));
        assert_eq!(gpus[0].account.charged(), 0);
        assert!(gpus[0].driver.state().freed.is_empty(), "the address may be another's");
    }
}

//! Streams and events. A context has one queue for all its streams, and runs it in order, apart from kernels that fit
//! on the GPU at once (see soft_gpu::work). So a stream has no queue of its own, but a lane in its context's queue. It
//! stores its last piece of work, and the work that it has to wait for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use soft_gpu::lock;

use soft_gpu::timeline::Cost;
use soft_gpu::timeline::words::{Lane, Ticket};
use soft_gpu::work::{Moment, Refused};

use crate::code::{
    CAPTURED_EVENT, CONTEXT_IS_DESTROYED, Code, INVALID_HANDLE, INVALID_VALUE, NOT_READY, OUT_OF_MEMORY, Res,
};
use crate::context::{self, Context, here};
use crate::driver::{self, Driver};
use crate::ffi::{In, Out};
use crate::graph::Capture;

/// The handles of the two default streams.
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;

pub(crate) struct Stream {
    pub(crate) context: &'static Context,
    flags: u32,
    lane: Lane,
    priority: i32,
    id: u64,
    /// The number of its last piece of work in its context's queue, plus 1; 0: none.
    last: AtomicU64,
    /// Work that its next piece has to wait for: of other contexts, and of its own if that runs streams concurrently.
    awaited: Mutex<Vec<Ticket>>,
    pub(crate) capture: Mutex<Option<Capture>>,
}

struct Event {
    context: &'static Context,
    flags: u32,
    /// None: not recorded yet, which is treated as reached.
    moment: Mutex<Option<Arc<Moment>>>,
    /// It was last recorded in a stream that is being captured, so it belongs to the graph.
    is_captured: AtomicBool,
}

impl Event {
    fn moment(&self) -> Option<Arc<Moment>> {
        lock(&self.moment).clone()
    }

    /// Returns the event's work for a query or a wait. An error if it belongs to a capture.
    fn work(&self) -> Result<Option<Arc<Moment>>, Code> {
        match self.is_captured.load(Ordering::Acquire) {
            true => Err(CAPTURED_EVENT),
            false => Ok(self.moment()),
        }
    }
}

type Table<T> = RwLock<Option<HashMap<u64, Arc<T>>>>;
static STREAMS: Table<Stream> = RwLock::new(None);
static EVENTS: Table<Event> = RwLock::new(None);

fn find<T>(table: &Table<T>, handle: u64) -> Result<Arc<T>, Code> {
    let table = table.read().unwrap_or_else(PoisonError::into_inner);
    table
        .as_ref()
        .and_then(|table| table.get(&handle))
        .cloned()
        .ok_or(INVALID_HANDLE)
}

fn add<T>(table: &Table<T>, handle: u64, value: T) {
    table
        .write()
        .unwrap_or_else(PoisonError::into_inner)
        .get_or_insert_default()
        .insert(handle, Arc::new(value));
}

fn remove<T>(table: &Table<T>, handle: u64) -> Res {
    let mut table = table.write().unwrap_or_else(PoisonError::into_inner);
    table
        .get_or_insert_default()
        .remove(&handle)
        .map(|_| ())
        .ok_or(INVALID_HANDLE)
}

/// A stream that was created; None: a default stream.
pub(crate) fn created(handle: u64) -> Result<Option<Arc<Stream>>, Code> {
    if handle <= PER_THREAD {
        Ok(None)
    } else {
        find(&STREAMS, handle).map(Some)
    }
}

/// The context in which a stream's work runs.
pub(crate) fn context_of(handle: u64) -> Result<&'static Context, Code> {
    match created(handle)? {
        Some(stream) => stream.context.usable(),
        None => context::current(),
    }
}

#[inline]
pub(crate) fn gpu_of(_driver: &Driver, handle: u64) -> Result<usize, Code> {
    context_of(handle).map(|context| context.gpu)
}

fn refused(why: Refused) -> Code {
    match why {
        Refused::Crowded => OUT_OF_MEMORY,
        Refused::Closed => CONTEXT_IS_DESTROYED,
    }
}

impl Stream {
    /// Queues work after the work for which the stream has to wait.
    fn launch(&self, driver: &Driver, cost: Cost) -> Res {
        let awaited = std::mem::take(&mut *lock(&self.awaited));
        let (after, others) = match awaited.split_last() {
            Some((after, others)) => (Some(*after), others),
            None => (None, &[][..]),
        };
        let work = &self.context.work;
        for other in others {
            work.launch(driver.member(), Cost::NONE, self.lane, Some(*other))
                .map_err(refused)?;
        }
        let ticket = work.launch(driver.member(), cost, self.lane, after).map_err(refused)?;
        self.reaches(ticket);
        Ok(())
    }

    fn reaches(&self, ticket: Ticket) {
        self.last.fetch_max(ticket.number + 1, Ordering::AcqRel);
    }

    /// Returns its last piece of work. If the stream still has to wait for other work, an empty piece that waits for it
    /// is queued first.
    fn last(&self, driver: &Driver) -> Result<Option<Ticket>, Code> {
        let waits = !lock(&self.awaited).is_empty();
        if waits {
            self.launch(driver, Cost::NONE)?;
        }
        let number = self.last.load(Ordering::Acquire).checked_sub(1);
        Ok(number
            .zip(self.context.work.last(driver.member()))
            .map(|(number, last)| Ticket { number, ..last }))
    }
}

/// Queues a kernel on a stream, or adds it to the graph into which the stream is being captured.
#[inline]
pub(crate) fn queue(driver: &Driver, handle: u64, cost: Cost) -> Res {
    if handle <= PER_THREAD {
        return launch_by_default(driver, cost, None);
    }
    let stream = find(&STREAMS, handle)?;
    stream.context.usable()?;
    if let Some(capture) = lock(&stream.capture).as_mut() {
        capture.add(cost);
        return Ok(());
    }
    stream.launch(driver, cost)
}

#[inline]
fn launch_by_default(driver: &Driver, cost: Cost, after: Option<Ticket>) -> Res {
    let work = &context::current()?.work;
    let launched = work.launch(driver.member(), cost, Lane::DEFAULT, after);
    launched.map(|_| ()).map_err(refused)
}

/// The last piece of work of a stream.
pub(crate) fn last(driver: &Driver, handle: u64) -> Result<Option<Ticket>, Code> {
    match created(handle)? {
        Some(stream) => stream.last(driver),
        None => context::current()?
            .work
            .last_of_default(driver.member())
            .map_err(refused),
    }
}

/// Waits for all work of a context.
pub(crate) fn synchronize(driver: &Driver, context: &Context) {
    context.work.finish(driver.member());
}

fn create(out: Out<u64>, flags: u32, priority: i32) -> Res {
    let (driver, context) = here()?;
    if !out.given() || flags > 1 {
        return Err(INVALID_VALUE);
    }
    let handle = driver.handle();
    let priority = priority.clamp(-5, 0);
    let stream = Stream {
        context,
        flags,
        lane: context.lane(flags == 0),
        priority,
        id: handle,
        last: AtomicU64::new(0),
        awaited: Mutex::default(),
        capture: Mutex::default(),
    };
    add(&STREAMS, handle, stream);
    out.set(handle)
}

fn record(event: u64, stream: u64) -> Res {
    let driver = driver::get()?;
    let event = find(&EVENTS, event)?;
    let is_captured = created(stream)?.is_some_and(|stream| lock(&stream.capture).is_some());
    event.is_captured.store(is_captured, Ordering::Release);
    if is_captured {
        return Ok(());
    }
    let (last, work) = (last(driver, stream)?, &context_of(stream)?.work);
    let stream = created(stream)?;
    let lane = stream.as_ref().map_or(Lane::DEFAULT, |stream| stream.lane);
    let (moment, end) = work.record(driver.member(), last, lane).map_err(refused)?;
    if let (Some(stream), Some(ticket)) = (stream, end) {
        stream.reaches(ticket);
    }
    *lock(&event.moment) = Some(moment);
    Ok(())
}

soft_gpu::api! {
    fn cuStreamCreate(out: Out<u64>, flags: u32) {
        create(out, flags, 0)
    }

    fn cuStreamCreateWithPriority(out: Out<u64>, flags: u32, priority: i32) {
        create(out, flags, priority)
    }

    fn cuStreamDestroy_v2(stream: u64) {
        driver::get()?;
        remove(&STREAMS, stream)
    }

    fn cuStreamSynchronize(stream: u64) {
        let driver = driver::get()?;
        if let Some(last) = last(driver, stream)? {
            driver.member().wait(last);
        }
        driver.memory.trim_pools(driver, gpu_of(driver, stream)?);
        Ok(())
    }

    fn cuStreamQuery(stream: u64) {
        let driver = driver::get()?;
        let is_done = last(driver, stream)?.is_none_or(|last| driver.member().knows(last));
        if is_done { Ok(()) } else { Err(NOT_READY) }
    }

    fn cuStreamWaitEvent(stream: u64, event: u64, _flags: u32) {
        let driver = driver::get()?;
        let pending = find(&EVENTS, event)?.moment().and_then(|moment| moment.pending());
        let Some(ticket) = pending.filter(|ticket| !driver.member().is_done(*ticket)) else { return Ok(()) };
        let work = &context_of(stream)?.work;
        match (created(stream)?, work.has(ticket) && !work.is_concurrent()) {
            (Some(stream), true) => stream.reaches(ticket),
            (Some(stream), false) => lock(&stream.awaited).push(ticket),
            (None, true) => {}
            (None, false) => launch_by_default(driver, Cost::NONE, Some(ticket))?,
        }
        Ok(())
    }

    fn cuStreamGetFlags(stream: u64, out: Out<u32>) {
        driver::get()?;
        out.set(created(stream)?.map_or(0, |stream| stream.flags))
    }

    fn cuStreamGetPriority(stream: u64, out: Out<i32>) {
        driver::get()?;
        out.set(created(stream)?.map_or(0, |stream| stream.priority))
    }

    fn cuStreamGetId(stream: u64, out: Out<u64>) {
        driver::get()?;
        out.set(created(stream)?.map_or(stream.max(LEGACY), |stream| stream.id))
    }

    fn cuStreamGetCtx(stream: u64, out: Out<u64>) {
        driver::get()?;
        out.set(context_of(stream)?.handle())
    }

    fn cuStreamGetDevice(stream: u64, out: Out<i32>) {
        let driver = driver::get()?;
        out.set(driver.ordinal(gpu_of(driver, stream)?))
    }

    fn cuStreamAttachMemAsync(stream: u64, _address: u64, _size: u64, _flags: u32) {
        gpu_of(driver::get()?, stream).map(|_| ())
    }

    fn cuStreamCopyAttributes(to: u64, from: u64) {
        here()?;
        created(to)?;
        created(from).map(|_| ())
    }

    fn cuStreamGetAttribute(stream: u64, _attribute: u32, out: Out<[u64; 8]>) {
        created(stream)?;
        out.set([0; 8])
    }

    fn cuStreamSetAttribute(stream: u64, _attribute: u32, _value: In<[u64; 8]>) {
        here()?;
        created(stream).map(|_| ())
    }

    fn cuEventCreate(out: Out<u64>, flags: u32) {
        let (driver, context) = here()?;
        if !out.given() || flags > 7 || flags & 6 == 4 {
            return Err(INVALID_VALUE);
        }
        let handle = driver.handle();
        add(&EVENTS, handle, Event { context, flags, moment: Mutex::default(), is_captured: AtomicBool::default() });
        out.set(handle)
    }

    fn cuEventDestroy_v2(event: u64) {
        driver::get()?;
        remove(&EVENTS, event)
    }

    fn cuEventRecord(event: u64, stream: u64) {
        record(event, stream)
    }

    fn cuEventQuery(event: u64) {
        let driver = driver::get()?;
        let moment = find(&EVENTS, event)?.work()?;
        let is_reached = moment.is_none_or(|moment| moment.reached(driver.member()).is_some());
        if is_reached { Ok(()) } else { Err(NOT_READY) }
    }

    fn cuEventSynchronize(event: u64) {
        let driver = driver::get()?;
        let event = find(&EVENTS, event)?;
        if let Some(moment) = event.work()? {
            moment.wait(driver.member());
        }
        driver.memory.trim_pools(driver, event.context.gpu);
        Ok(())
    }

    fn cuEventElapsedTime_v2(out: Out<f32>, start: u64, end: u64) {
        const NO_TIMING: u32 = 2;
        let driver = driver::get()?;
        let (start, end) = (find(&EVENTS, start)?, find(&EVENTS, end)?);
        let (Some(from), Some(to)) = (start.work()?, end.work()?) else { return Err(INVALID_HANDLE) };
        if (start.flags | end.flags) & NO_TIMING != 0 {
            return Err(INVALID_HANDLE);
        }
        let reached = from.reached(driver.member()).zip(to.reached(driver.member()));
        let (from, to) = reached.ok_or(NOT_READY)?;
        out.set(((to as f64 - from as f64) / 1e6) as f32)
    }
}

//! Streams and events in modelled time: a stream knows when its queued work will be done, an event when the work that
//! was queued before it will be done.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use soft_gpu::clock::{monotonic_ns, sleep_until};

use crate::code::{Code, INVALID_HANDLE, INVALID_VALUE, NOT_READY, Res};
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
    priority: i32,
    id: u64,
    done_at: AtomicU64,
    pub(crate) capture: Mutex<Option<Capture>>,
}

struct Event {
    context: &'static Context,
    flags: u32,
    /// When it was or will be reached; 0: not recorded yet, which counts as reached.
    at: AtomicU64,
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

/// Queues GPU time on a stream, or notes it for the graph that the stream is being captured into.
#[inline]
pub(crate) fn queue(driver: &Driver, handle: u64, work_ns: u64) -> Res {
    if handle <= PER_THREAD {
        driver.member().launch(context::current()?.gpu, work_ns);
        return Ok(());
    }
    let stream = find(&STREAMS, handle)?;
    let gpu = stream.context.usable()?.gpu;
    if let Some(capture) = stream.capture.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        capture.add(work_ns);
        return Ok(());
    }
    stream
        .done_at
        .fetch_max(driver.member().launch(gpu, work_ns), Ordering::Relaxed);
    Ok(())
}

pub(crate) fn done_at(driver: &Driver, handle: u64) -> Result<u64, Code> {
    Ok(match created(handle)? {
        Some(stream) => stream.done_at.load(Ordering::Relaxed),
        // The default streams wait for, and are waited for by, all others.
        None => driver.member().idle_at(context::current()?.gpu),
    })
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
        priority,
        id: handle,
        done_at: AtomicU64::new(0),
        capture: Mutex::default(),
    };
    add(&STREAMS, handle, stream);
    out.set(handle)
}

fn record(event: u64, stream: u64) -> Res {
    let driver = driver::get()?;
    let event = find(&EVENTS, event)?;
    let at = done_at(driver, stream)?.max(monotonic_ns());
    event.at.store(at, Ordering::Release);
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
        sleep_until(done_at(driver, stream)?);
        driver.memory.trim_pools(driver, gpu_of(driver, stream)?);
        Ok(())
    }

    fn cuStreamQuery(stream: u64) {
        let driver = driver::get()?;
        if done_at(driver, stream)? > monotonic_ns() { Err(NOT_READY) } else { Ok(()) }
    }

    fn cuStreamWaitEvent(stream: u64, event: u64, _flags: u32) {
        driver::get()?;
        let event = find(&EVENTS, event)?;
        if let Some(stream) = created(stream)? {
            stream.done_at.fetch_max(event.at.load(Ordering::Acquire), Ordering::Relaxed);
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
        created(to)?;
        created(from).map(|_| ())
    }

    fn cuStreamGetAttribute(stream: u64, _attribute: u32, out: Out<[u64; 8]>) {
        created(stream)?;
        out.set([0; 8])
    }

    fn cuStreamSetAttribute(stream: u64, _attribute: u32, _value: In<[u64; 8]>) {
        created(stream).map(|_| ())
    }

    fn cuEventCreate(out: Out<u64>, flags: u32) {
        let (driver, context) = here()?;
        if !out.given() || flags > 7 || flags & 6 == 4 {
            return Err(INVALID_VALUE);
        }
        let handle = driver.handle();
        add(&EVENTS, handle, Event { context, flags, at: AtomicU64::new(0) });
        out.set(handle)
    }

    fn cuEventDestroy_v2(event: u64) {
        driver::get()?;
        remove(&EVENTS, event)
    }

    fn cuEventRecord(event: u64, stream: u64) {
        record(event, stream)
    }

    fn cuEventRecordWithFlags(event: u64, stream: u64, _flags: u32) {
        record(event, stream)
    }

    fn cuEventQuery(event: u64) {
        driver::get()?;
        if find(&EVENTS, event)?.at.load(Ordering::Acquire) > monotonic_ns() { Err(NOT_READY) } else { Ok(()) }
    }

    fn cuEventSynchronize(event: u64) {
        let driver = driver::get()?;
        let event = find(&EVENTS, event)?;
        sleep_until(event.at.load(Ordering::Acquire));
        driver.memory.trim_pools(driver, event.context.gpu);
        Ok(())
    }

    fn cuEventElapsedTime_v2(out: Out<f32>, start: u64, end: u64) {
        const NO_TIMING: u32 = 2;
        driver::get()?;
        let (start, end) = (find(&EVENTS, start)?, find(&EVENTS, end)?);
        let (from, to) = (start.at.load(Ordering::Acquire), end.at.load(Ordering::Acquire));
        if from == 0 || to == 0 || (start.flags | end.flags) & NO_TIMING != 0 {
            return Err(INVALID_HANDLE);
        }
        if from.max(to) > monotonic_ns() {
            return Err(NOT_READY);
        }
        out.set(((to as f64 - from as f64) / 1e6) as f32)
    }
}

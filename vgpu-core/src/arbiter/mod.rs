//! Shares the time of one GPU: every launch of this process asks here, and every wait reports here.
//!
//! ```text
//!  launch ─► credit? ─ yes ───────────────────────────────► driver
//!              └ no ─► limiter: go? ─ no ─► sleep on the page of the share that has its turn, and ask again
//!                        └ yes ─► event in front, if a chunk begins ─► driver ─► event behind, if it ends ─► credit
//!  wait   ─► event behind what is in flight ─► driver ─► what was measured is charged; others are woken
//! ```
//!
//! `crate::compute` decides; here are the pages, events, locks and sleeps. No lock is held in a call of the program's or
//! in a sleep.
//!
//! How it fails: without pages a share is held to its `cores` by a page of its own ([`pages`]). Events that cannot be had
//! are replaced by estimates ([`events`]). A thread that jumps out of a launch leaves nothing locked. One that a signal
//! handler jumps out of here keeps the lock: launches of other threads wait for ever, and its own go unmeasured. A fork child
//! makes all of this anew.

mod captures;
mod cell;
mod credit;
mod events;
#[cfg(test)]
mod fake;
mod pages;
pub mod stream_gpus;

pub use captures::{begun as capture_begun, ended as capture_ended};

use core::ffi::c_int;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

use vgpu_abi::arbitration::{Entry, entry_flags};
use vgpu_abi::entitlement::{Holder, entries};
use vgpu_abi::limits::Limits;
use vgpu_abi::log::Wait;

use crate::compute::estimate::Shape;
use crate::compute::flight::{LEAST_LAUNCH, Mark, Stream};
use crate::compute::limiter::{Decision, Limiter, Reason};
use crate::compute::{MS, Ns};
use crate::log;
use crate::memory::driver::{SUCCESS, Streams, is_captured};
use crate::os::spin::{Entered, Reentrant};
use crate::os::{errno, futex, monotonic_ns, sleep, thread};

use cell::Owner;
use credit::Credit;
use events::{Events, Outcome, Target};
use pages::OpenPages;
pub use pages::PagesError;

/// The stream that a thread has for itself, as a handle. Handles below are the default stream.
const PER_THREAD: usize = 2;
/// Streams that are remembered.
const STREAMS: usize = 64;
/// How often a cell is looked for where all are taken.
const CELL: Ns = 100 * MS;
/// How often NVML is asked for other processes on the GPU.
const NEIGHBOURS: Ns = 1000 * MS;

/// The process in which the arbiter works.
pub trait Process {
    type Driver: Streams;
    fn driver(&self) -> &Self::Driver;
    /// Returns true if the share holds a turn on another GPU.
    fn holds_elsewhere(&self, now: Ns) -> bool;
    /// Returns true if other processes use the GPU, as far as can be known.
    fn has_neighbours(&self) -> bool;
    /// Calls `nap`, in which this thread sleeps.
    fn asleep(&self, nap: impl FnOnce());
}

/// The work for which the program waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// For the work of one stream.
    Stream(usize),
    /// For the work of some streams; nobody knows which.
    Some,
    /// For all work.
    All,
}

/// The arbiter of one GPU in this process.
#[derive(Debug)]
pub struct Arbiter {
    credit: Credit,
    /// There may be work that is not measured yet.
    is_busy: AtomicBool,
    /// Some in a container of HAMi that is limited only while others use the GPU.
    neighbours: Option<Neighbours>,
    inner: Reentrant<Inner>,
}

/// Whether other processes use the GPU, as of the last look.
#[derive(Debug, Default)]
struct Neighbours {
    looked: AtomicU64,
    are_there: AtomicBool,
}

#[derive(Debug)]
struct Inner {
    pages: OpenPages,
    limiter: Limiter,
    events: Events,
    streams: Vec<Target>,
    owner: Owner,
    cell: usize,
    /// When the share's cells were looked at the last time.
    looked_for_cell: Ns,
    /// Nobody else used the GPU at the last question.
    was_free: bool,
}

/// The circumstances in which a launch asks.
struct Question {
    /// When it asked for the first time.
    asked: Ns,
    /// Nobody else uses the GPU, and so nothing is limited.
    is_free: bool,
    /// The share holds a turn on another GPU.
    sibling: bool,
}

/// A pause before the next question.
struct Nap {
    word: Option<(*const AtomicU32, u32)>,
    length: Duration,
    reason: Wait,
}

/// Returns the entry of a share by its limits file, which counts until the node's page is read. None: it is not limited.
fn entitled(limits: &Limits) -> Option<Entry> {
    let holder = Holder {
        slot: 0,
        cores: limits.cores,
        compute_policy: limits.compute_policy,
        priority: limits.priority,
        generation: 0,
        ignored: false,
    };
    let [entry, ..] = entries(&[holder]);
    (entry.flags & entry_flags::UNLIMITED == 0).then_some(entry)
}

impl Arbiter {
    /// Returns the arbiter of a share whose pages lie in `folder`. None: its time is not limited. With the reason if its
    /// pages cannot be used.
    #[must_use]
    pub fn open(folder: &Path, limits: &Limits) -> (Option<Self>, Option<PagesError>) {
        let Some(entry) = entitled(limits) else {
            return (None, None);
        };
        let opened = match limits.slot {
            Some(slot) => OpenPages::open(folder, slot),
            None => Err(PagesError::NoSlot),
        };
        match opened {
            Ok(pages) => (Some(Self::new(pages, entry, false)), None),
            Err(PagesError::Copy) => {
                let slot = limits.slot.unwrap_or_default();
                let arbiter = match OpenPages::without_others(folder, slot, entry) {
                    Ok((pages, entry)) => Some(Self::new(pages, entry, false)),
                    Err(_) => Self::alone(None, limits, false),
                };
                (arbiter, Some(PagesError::Copy))
            }
            Err(reason) => (Self::alone(None, limits, false), Some(reason)),
        }
    }

    /// Returns the arbiter of a share that knows nothing of others: it is held to its `cores`, or only while others use
    /// the GPU. Its processes share one account in `folder`, if they can write to it. None: it has no `cores`, or is not
    /// limited.
    #[must_use]
    pub fn alone(folder: Option<&Path>, limits: &Limits, only_beside_others: bool) -> Option<Self> {
        let mut entry = entitled(limits).filter(|_| limits.cores > 0)?;
        entry.flags |= entry_flags::GUARANTEED;
        Some(Self::new(OpenPages::private(folder, entry), entry, only_beside_others))
    }

    fn new(pages: OpenPages, entry: Entry, only_beside_others: bool) -> Self {
        let owner = Owner::of_this_process();
        let cell = cell::claim(pages.own(), entry.weight, owner, monotonic_ns(), cell::is_dead).unwrap_or(usize::MAX);
        Self {
            credit: Credit::default(),
            is_busy: AtomicBool::new(false),
            neighbours: only_beside_others.then(Neighbours::default),
            inner: Reentrant::new(Inner {
                pages,
                limiter: Limiter::new(cell, entry),
                events: Events::default(),
                streams: Vec::new(),
                owner,
                cell,
                looked_for_cell: 0,
                was_free: false,
            }),
        }
    }

    /// Launches work of this shape in a stream by `call`, when it may go. Handles of `_ptsz` names: [`per_thread`].
    #[inline(always)]
    pub fn launch(&self, process: &impl Process, handle: usize, shape: Shape, call: impl FnOnce() -> c_int) -> c_int {
        if !captures::may_be_under_way() && self.credit.take(stream_of(handle), shape) {
            return call();
        }
        if self.admit(process, handle, shape) {
            let result = call();
            self.launched(process, handle, shape, result);
            result
        } else {
            call()
        }
    }

    /// Waits until the launch may go. Returns false if it is none: it becomes a node of a graph.
    #[cold]
    fn admit(&self, process: &impl Process, handle: usize, shape: Shape) -> bool {
        let _kept = errno::keep();
        let driver = process.driver();
        if captures::may_be_under_way() && is_captured(driver, handle) {
            return false;
        }
        let asked = monotonic_ns();
        loop {
            let is_free = self.neighbours.as_ref().is_some_and(|them| !them.are_there(process));
            let sibling = process.holds_elsewhere(monotonic_ns());
            let nap = {
                let Some(inner) = self.enter() else {
                    return false;
                };
                let mut inner = inner.borrow_mut();
                let _unharmed = captures::spare(driver);
                self.is_busy.store(true, Relaxed);
                inner.ask(
                    &self.credit,
                    driver,
                    handle,
                    shape,
                    &Question {
                        asked,
                        is_free,
                        sibling,
                    },
                )
            };
            match nap {
                None => return true,
                Some(nap) => process.asleep(|| log::waits(nap.reason, || nap.sleep())),
            }
        }
    }

    #[cold]
    fn launched(&self, process: &impl Process, handle: usize, shape: Shape, result: c_int) {
        if result != SUCCESS {
            return;
        }
        let _kept = errno::keep();
        let driver = process.driver();
        let Some(inner) = self.enter() else { return };
        let mut inner = inner.borrow_mut();
        let _unharmed = captures::spare(driver);
        inner.launched(&self.credit, driver, handle, shape);
        // A wait of another thread may have cleared it since this launch asked.
        self.is_busy.store(true, Relaxed);
    }

    /// The program is about to wait.
    pub fn before_wait(&self, process: &impl Process, scope: Scope) {
        if self.is_busy.load(Relaxed) {
            let _kept = errno::keep();
            let driver = process.driver();
            let Some(inner) = self.enter() else { return };
            let mut inner = inner.borrow_mut();
            let _unharmed = captures::spare(driver);
            inner.before_wait(&self.credit, driver, scope);
        }
    }

    /// Its wait has returned, or a question for it with "done".
    pub fn after_wait(&self, process: &impl Process, scope: Scope) {
        if self.is_busy.load(Relaxed) {
            let _kept = errno::keep();
            let driver = process.driver();
            let Some(inner) = self.enter() else { return };
            let mut inner = inner.borrow_mut();
            let _unharmed = captures::spare(driver);
            let is_idle = inner.after_wait(&self.credit, driver, scope);
            self.is_busy.store(!is_idle, Relaxed);
        }
    }

    /// A context is about to end: nothing of ours may be left in it.
    pub fn forget(&self, process: &impl Process, context: usize) {
        let _kept = errno::keep();
        let driver = process.driver();
        let Some(inner) = self.enter() else { return };
        let mut inner = inner.borrow_mut();
        let _unharmed = captures::spare(driver);
        inner.forget(&self.credit, driver, context);
    }

    /// A stream is about to be destroyed: no event can be recorded in it any more.
    pub fn forget_stream(&self, process: &impl Process, handle: usize) {
        let _kept = errno::keep();
        let driver = process.driver();
        let Some(inner) = self.enter() else { return };
        let mut inner = inner.borrow_mut();
        let _unharmed = captures::spare(driver);
        inner.forget_stream(&self.credit, driver, handle);
    }

    /// Returns true if this process's share holds a turn here.
    #[must_use]
    pub fn holds_turn(&self, now: Ns) -> bool {
        self.inner
            .try_lock()
            .is_some_and(|inner| inner.borrow().pages.own().turn.ends.load(Relaxed) > now)
    }

    /// None: this thread is inside a call of ours already, which has called the driver, and that the program. What it
    /// launches there goes and is measured with the outer launch.
    fn enter(&self) -> Option<Entered<'_, Inner>> {
        self.inner.lock_unless_within()
    }
}

/// Returns the handle that a `_ptsz` function means by 0.
#[must_use]
pub fn per_thread(handle: usize) -> usize {
    if handle == 0 { PER_THREAD } else { handle }
}

/// Returns true if a handle means a stream of the context that is current.
#[must_use]
#[inline(always)]
pub fn is_of_a_context(handle: usize) -> bool {
    handle <= PER_THREAD
}

/// Returns the stream of a handle: each thread has one of its own, and the default stream has two handles.
#[inline(always)]
fn stream_of(handle: usize) -> Stream {
    match handle {
        0 | 1 => Stream(1),
        PER_THREAD => Stream(thread() as u64 + PER_THREAD as u64),
        _ => Stream(handle as u64),
    }
}

impl Inner {
    /// Returns None if the launch may go.
    fn ask(
        &mut self,
        credit: &Credit,
        driver: &impl Streams,
        handle: usize,
        shape: Shape,
        question: &Question,
    ) -> Option<Nap> {
        let now = monotonic_ns();
        self.count(credit, now);
        let target = self.target(driver, handle);
        let ended = if self.limiter.is_due(shape) {
            self.limiter.waits_for(now, target.stream)
        } else {
            self.limiter.end_full(now, target.stream)
        };
        if let Some(mark) = ended {
            credit.close(target.stream);
            self.end(driver, mark, target, now);
        }
        self.poll(driver);
        self.end_others(now);
        let is_first_beside_others = std::mem::replace(&mut self.was_free, question.is_free) && !question.is_free;
        if question.is_free {
            self.begin(driver, target, now);
            return None;
        }
        if is_first_beside_others {
            let limiter = &mut self.limiter;
            self.pages.with(|pages| limiter.begin_to_count(pages));
        }
        self.keep_cell(now);
        self.pages.look(now);
        let wake = self.pages.own().wake.load(Relaxed);
        let limiter = &mut self.limiter;
        let decision = self
            .pages
            .with(|pages| limiter.ask(pages, now, shape, question.asked, question.sibling));
        if self.pages.own().wake.load(Relaxed) != wake {
            futex::wake(&self.pages.own().wake);
        }
        match decision {
            Decision::Go => {
                self.begin(driver, target, now);
                None
            }
            Decision::Wait(wait) => {
                credit.withdraw();
                self.hold(driver, now);
                Some(Nap {
                    word: wait.on.and_then(|slot| self.pages.wake_word(slot)),
                    length: Duration::from_nanos(wait.until.saturating_sub(now)),
                    reason: reported(wait.reason),
                })
            }
        }
    }

    fn launched(&mut self, credit: &Credit, driver: &impl Streams, handle: usize, shape: Shape) {
        let now = monotonic_ns();
        self.count(credit, now);
        let target = self.target(driver, handle);
        let limiter = &mut self.limiter;
        let mark = self
            .pages
            .with(|pages| limiter.launched(pages, now, target.stream, shape));
        if let Some(mark) = mark {
            credit.close(target.stream);
            self.end(driver, mark, target, now);
            return;
        }
        let Some(estimate) = self.limiter.estimate(shape) else {
            return;
        };
        // With several contexts, a default stream's handle does not say which one.
        if handle > PER_THREAD || self.events.contexts() <= 1 {
            credit.know(target.stream, shape, estimate.max(LEAST_LAUNCH));
            credit.open(target.stream);
            let limiter = &mut self.limiter;
            credit.grant(self.pages.with(|pages| limiter.credit(pages, now, target.stream)));
        }
    }

    fn before_wait(&mut self, credit: &Credit, driver: &impl Streams, scope: Scope) {
        let now = monotonic_ns();
        self.count(credit, now);
        match scope {
            Scope::Stream(handle) => {
                let known = self.streams.iter().find(|target| target.stream == stream_of(handle));
                let Some(target) = known.copied() else { return };
                credit.close(target.stream);
                if let Some(mark) = self.limiter.waits_for(now, target.stream) {
                    self.end(driver, mark, target, now);
                }
            }
            Scope::Some | Scope::All => {
                credit.withdraw();
                self.hold(driver, now);
            }
        }
    }

    /// Returns true if nothing is left to be measured.
    fn after_wait(&mut self, credit: &Credit, driver: &impl Streams, scope: Scope) -> bool {
        let now = monotonic_ns();
        self.count(credit, now);
        self.poll(driver);
        if scope == Scope::All {
            // Work in other threads' own streams, in which this one can record nothing.
            for (_, mark) in self.limiter.holds(now, |_| true) {
                self.report(now, mark, Outcome::Failed);
            }
        }
        self.end_others(now);
        let is_idle = self.limiter.is_idle();
        if is_idle {
            credit.withdraw();
        }
        let limiter = &mut self.limiter;
        if self.pages.with(|pages| limiter.waited(pages, monotonic_ns())) {
            futex::wake(&self.pages.own().wake);
        }
        is_idle
    }

    fn forget(&mut self, credit: &Credit, driver: &impl Streams, context: usize) {
        let now = monotonic_ns();
        self.count(credit, now);
        credit.withdraw();
        let streams = &self.streams;
        let is_there = |stream: Stream| {
            let known = streams.iter().find(|target| target.stream == stream);
            known.is_none_or(|target| target.context == context)
        };
        for (_, mark) in self.limiter.holds(now, is_there) {
            self.report(now, mark, Outcome::Failed);
        }
        let mut gone = Vec::new();
        self.events.forget(driver, context, |mark| gone.push(mark));
        for mark in gone {
            self.report(now, mark, Outcome::Failed);
        }
        self.streams.retain(|target| target.context != context);
    }

    fn forget_stream(&mut self, credit: &Credit, driver: &impl Streams, handle: usize) {
        let now = monotonic_ns();
        self.count(credit, now);
        let known = self
            .streams
            .iter()
            .position(|target| target.stream == stream_of(handle));
        let Some(at) = known.filter(|_| handle > PER_THREAD) else {
            return;
        };
        let target = self.streams.swap_remove(at);
        credit.close(target.stream);
        if let Some(mark) = self.limiter.waits_for(now, target.stream) {
            self.end(driver, mark, target, now);
        }
    }

    /// Counts the launches that went on credit.
    fn count(&mut self, credit: &Credit, now: Ns) {
        let limiter = &mut self.limiter;
        credit.drain(|stream, shape, count| limiter.passed(now, stream, shape, count));
    }

    fn begin(&mut self, driver: &impl Streams, target: Target, now: Ns) {
        if !self.limiter.is_open(target.stream) {
            self.events.begin(driver, target, now);
        }
    }

    fn end(&mut self, driver: &impl Streams, mark: Mark, target: Target, now: Ns) {
        if !may_record(driver, target) || !self.events.end(driver, mark, target, now) {
            self.report(now, mark, Outcome::Failed);
        }
    }

    /// Ends the chunks of all streams in which this thread can record.
    fn hold(&mut self, driver: &impl Streams, now: Ns) {
        let streams = &self.streams;
        let target_of = |stream: Stream| {
            let target = streams.iter().find(|target| target.stream == stream);
            target.copied().filter(|target| can_record(*target))
        };
        let ended = self
            .limiter
            .holds(now, |stream| target_of(stream).is_some())
            .into_iter();
        let ended: Vec<(Target, Mark)> = ended
            .filter_map(|(stream, mark)| Some((target_of(stream)?, mark)))
            .collect();
        for (target, mark) in ended {
            self.end(driver, mark, target, now);
        }
    }

    /// Ends chunks in other threads' own streams, in which this one can record nothing, when their work must have ended:
    /// such a thread may be gone.
    fn end_others(&mut self, now: Ns) {
        let streams = &self.streams;
        let cannot = |stream: Stream| {
            let target = streams.iter().find(|target| target.stream == stream);
            target.is_none_or(|target| !can_record(*target))
        };
        for mark in self.limiter.ends_old(now, cannot) {
            self.report(now, mark, Outcome::Failed);
        }
    }

    fn poll(&mut self, driver: &impl Streams) {
        if self.events.is_empty() {
            return;
        }
        let mut reached = Vec::new();
        self.events
            .poll(driver, monotonic_ns, |mark, outcome| reached.push((mark, outcome)));
        if reached.is_empty() {
            return;
        }
        let now = monotonic_ns();
        for (mark, outcome) in reached {
            self.report(now, mark, outcome);
        }
    }

    fn report(&mut self, now: Ns, mark: Mark, outcome: Outcome) {
        let limiter = &mut self.limiter;
        self.pages.with(|pages| match outcome {
            Outcome::Measured { from, to } => limiter.finished(pages, now, mark, from, to),
            Outcome::Failed => limiter.failed(pages, now, mark),
        });
        if outcome == Outcome::Failed {
            log::failed_event();
        }
    }

    /// Returns the stream of a handle, with its context.
    fn target(&mut self, driver: &impl Streams, handle: usize) -> Target {
        let mut stream = stream_of(handle);
        let has_one_context = self.events.contexts() <= 1;
        let found = self.streams.iter().find(|target| target.stream == stream);
        if let Some(target) = found.filter(|_| handle > PER_THREAD || has_one_context) {
            return *target;
        }
        let context = if handle > PER_THREAD {
            driver.stream_context(handle).unwrap_or(0)
        } else {
            driver.current_context().unwrap_or(0)
        };
        if let Some(first) = found.filter(|first| first.context != context) {
            // The default stream of another context.
            stream = Stream(first.stream.0 ^ (context as u64).rotate_left(32));
        }
        let target = Target {
            stream,
            handle,
            context,
        };
        if !self.streams.contains(&target) {
            if self.streams.len() >= STREAMS {
                let (limiter, events) = (&self.limiter, &self.events);
                self.streams
                    .retain(|known| limiter.is_open(known.stream) || events.uses(known.stream));
            }
            self.streams.push(target);
        }
        target
    }

    fn keep_cell(&mut self, now: Ns) {
        if now.saturating_sub(self.looked_for_cell) < CELL {
            return;
        }
        self.looked_for_cell = now;
        let (page, weight) = (self.pages.own(), self.limiter.weight());
        cell::bury_the_dead(page, weight, self.owner, now, cell::is_dead);
        if !cell::is_own(page, self.cell, self.owner) {
            self.cell = cell::claim(page, weight, self.owner, now, cell::is_dead).unwrap_or(usize::MAX);
            self.limiter.move_to(self.cell);
        }
    }
}

impl Neighbours {
    /// Asks NVML, which may take long: not while a lock is held, and not often.
    fn are_there(&self, process: &impl Process) -> bool {
        let (now, looked) = (monotonic_ns(), self.looked.load(Relaxed));
        if looked == 0 || now.saturating_sub(looked) >= NEIGHBOURS {
            self.looked.store(now, Relaxed);
            self.are_there.store(process.has_neighbours(), Relaxed);
        }
        self.are_there.load(Relaxed)
    }
}

/// Returns the reason of a wait as the log and `vgpu run --report` have it.
fn reported(reason: Reason) -> Wait {
    match reason {
        Reason::Throttled => Wait::Budget,
        Reason::Turn => Wait::Turn,
        Reason::Queue | Reason::Cells => Wait::Queue,
        Reason::Measuring => Wait::Unknown,
    }
}

/// Returns true if this thread can name the stream: that of another thread has no handle here.
fn can_record(target: Target) -> bool {
    target.handle != PER_THREAD || stream_of(PER_THREAD) == target.stream
}

/// Returns true if an event can be recorded in a stream: it would become a node of a graph that is being captured. Of the
/// default stream, the driver answers an error while a stream is captured whose capture an event there would end.
fn may_record(driver: &impl Streams, target: Target) -> bool {
    !captures::may_be_under_way() || driver.is_capturing(target.handle) == Ok(false)
}

impl Nap {
    fn sleep(self) {
        let woken = self
            .word
            .map(|(word, expected)| futex::wait(word, expected, self.length));
        if woken.is_none_or(|woken| woken == futex::Woken::Impossible) {
            sleep(self.length);
        }
    }
}

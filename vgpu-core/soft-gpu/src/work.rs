//! A context's work: how its process queues it and waits for it.
//!
//! A launch writes one entry of the context's queue. It takes no lock that another process could hold, and does not
//! read the schedule. It waits only if the queue is full. A context claims a queue at its first launch or event.
//!
//! How it fails:
//! - No queue is left: the launch is refused, and the next one tries again.
//! - The process dies: the next process that checks closes its queues, at most WATCH_NS later (see `State::end_work`).
//!   Until then the GPU continues its work.
//! - The process is stopped: others advance the schedule, so its work continues. Nobody waits for it.
//! - A waiter sleeps until the earliest possible end. This bound is correct unless a process dies or a context is
//!   closed, so no sleep is longer than NAP_NS.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use crate::lock;

use crate::clock::{self, sleep_until, sleep_while};
use crate::state::Member;
use crate::timeline::schedule::Schedule;
use crate::timeline::words::{DEPTH, Lane, Owner, Queue, Shape, Ticket, WHOLE};
use crate::timeline::{self, Cost};
use crate::virtual_time::VirtualTime;

/// How often one process checks whether other processes with work have died.
const WATCH_NS: u64 = 5_000_000;
/// The longest sleep between two checks.
const NAP_NS: u64 = 10_000_000;

/// One context's work on a GPU.
pub struct Work {
    gpu: usize,
    /// The queue's number + 1; 0: none. Outside of the tail, because a launch keeps the tail locked while it waits.
    queue: AtomicUsize,
    is_closed: AtomicBool,
    /// True if its streams run or may run at once. Work that takes no time then does not wait for other streams.
    is_concurrent: AtomicBool,
    tail: Mutex<Tail>,
}

#[derive(Default)]
struct Tail {
    pushed: u64,
    /// The number after the last entry of the default stream.
    default_end: u64,
    /// Moments that are not known to be reached. Before an entry is reused, its stamp is saved here.
    moments: BTreeMap<u64, Weak<Moment>>,
}

/// A point in a context's work, as an event records it.
pub struct Moment {
    /// The work that has to end before the moment is reached; None: there is none.
    ticket: Option<Ticket>,
    /// When it was reached; 0: not known yet.
    at: AtomicU64,
}

/// Why work was not queued.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// All queues are in use.
    Crowded,
    /// The context was closed.
    Closed,
}

impl Work {
    pub fn new(gpu: usize) -> Self {
        Self {
            gpu,
            queue: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
            is_concurrent: AtomicBool::new(false),
            tail: Mutex::default(),
        }
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        lock(&self.tail)
    }

    /// Queues a kernel after all queued work of its lane. It does not begin before `after` has ended. Waits while the
    /// queue is full.
    #[inline]
    pub fn launch(&self, member: &Member, cost: Cost, lane: Lane, after: Option<Ticket>) -> Result<Ticket, Refused> {
        self.push(member, &mut self.tail(), cost, lane, after)
    }

    /// Returns true if work of its streams may run at the same time; a wait for another stream must then be explicit.
    #[inline]
    pub fn is_concurrent(&self) -> bool {
        self.is_concurrent.load(Ordering::Relaxed)
    }

    /// Returns the width of new work, and records that streams run at once if the work does not fill the GPU.
    #[inline]
    fn width(&self, cost: Cost) -> u32 {
        if cost.ns > 0 && cost.width < WHOLE {
            self.is_concurrent.store(true, Ordering::Relaxed);
        }
        // If streams do not run at once, work without a duration has the full width, so that all work runs in order.
        if cost.ns == 0 && self.is_concurrent() {
            0
        } else {
            cost.width
        }
    }

    fn push(
        &self,
        member: &Member,
        tail: &mut Tail,
        cost: Cost,
        lane: Lane,
        after: Option<Ticket>,
    ) -> Result<Ticket, Refused> {
        member.enters();
        let (number, place) = self.open(member, tail)?;
        if tail.pushed.wrapping_sub(place.done.load(Ordering::Acquire)) >= DEPTH {
            let oldest = Ticket {
                queue: number,
                number: tail.pushed - DEPTH,
            };
            member.wait_unless(oldest, &self.is_closed);
            if self.is_closed.load(Ordering::Acquire) {
                return Err(Refused::Closed);
            }
        }
        let ticket = Ticket {
            queue: number,
            number: tail.pushed,
        };
        tail.keep_stamps(place, ticket.number);
        tail.pushed += 1;
        if lane == Lane::DEFAULT {
            tail.default_end = tail.pushed;
        }
        let width = self.width(cost);
        if width < WHOLE {
            place.narrow.store(tail.pushed, Ordering::Relaxed);
        }
        let entry = place.entry(ticket.number);
        entry.work.store(cost.ns, Ordering::Relaxed);
        entry.shape.store(Shape { width, lane }.pack(), Ordering::Relaxed);
        entry.after.store(after.map_or(0, Ticket::pack), Ordering::Relaxed);
        // Release: a slow process may read this value as a stamp. It then also sees that the moment's stamp was saved.
        entry.when.store(member.state.now(), Ordering::Release);
        place.pushed.store(tail.pushed, Ordering::Release);
        Ok(ticket)
    }

    /// Returns this context's queue. Claims one if it has none.
    #[inline]
    fn open(&self, member: &Member, tail: &mut Tail) -> Result<(usize, &'static Queue), Refused> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Refused::Closed);
        }
        let words = member.state.words();
        if let Some(queue) = self.queue() {
            return Ok((queue, &words.queues[queue]));
        }
        let owner = Owner {
            place: member.place,
            gpu: self.gpu,
        };
        let queue = timeline::open(words, owner).ok_or(Refused::Crowded)?;
        let place = &words.queues[queue];
        self.queue.store(queue + 1, Ordering::Release);
        if member.state.profile().late_events {
            // With late events, an event waits until its context is on the GPU, but for no other stream.
            self.is_concurrent.store(true, Ordering::Relaxed);
        }
        tail.pushed = place.pushed.load(Ordering::Acquire);
        tail.default_end = 0;
        Ok((queue, place))
    }

    #[inline]
    fn queue(&self) -> Option<usize> {
        self.queue.load(Ordering::Acquire).checked_sub(1)
    }

    /// The last piece of work that was queued.
    pub fn last(&self, member: &Member) -> Option<Ticket> {
        let queue = self.queue()?;
        let number = member.state.words().queues[queue]
            .pushed
            .load(Ordering::Acquire)
            .checked_sub(1)?;
        Some(Ticket { queue, number })
    }

    /// Waits until all that is queued has ended.
    pub fn finish(&self, member: &Member) {
        let Some(last) = self.last(member) else { return };
        let queue = &member.state.words().queues[last.queue];
        let first = || queue.done.load(Ordering::Acquire);
        member.wait(last);
        while first() <= last.number {
            let number = first();
            member.wait(Ticket { number, ..last });
        }
    }

    /// The last piece of work for which the default stream waits.
    pub fn last_of_default(&self, member: &Member) -> Result<Option<Ticket>, Refused> {
        let mut tail = self.tail();
        let is_known = |last: &Ticket| tail.default_end == last.number + 1;
        match self.last(member) {
            Some(last) if self.is_concurrent() && self.is_pending(member) && !is_known(&last) => {
                let ticket = self.push(member, &mut tail, Cost::NONE, Lane::DEFAULT, None)?;
                Ok(Some(ticket))
            }
            last => Ok(last),
        }
    }

    /// Returns true if queued work has not ended.
    fn is_pending(&self, member: &Member) -> bool {
        let Some(last) = self.last(member) else { return false };
        let done = &member.state.words().queues[last.queue].done;
        !member.is_done(last) || done.load(Ordering::Acquire) <= last.number
    }

    /// Returns true if the ticket is this context's. Unless its streams run at once, what is queued later runs later.
    pub fn has(&self, ticket: Ticket) -> bool {
        self.queue() == Some(ticket.queue)
    }

    /// Records an event after `last`. Returns the moment at which `last` has ended and the context is on the GPU, and
    /// the work for which the stream must wait, if it may still be pending. If `last` has ended but other streams have
    /// pending work, the moment is now, unless events are late. Otherwise an entry without work is queued, and the
    /// moment is the context's next turn.
    pub fn record(
        &self,
        member: &Member,
        last: Option<Ticket>,
        lane: Lane,
    ) -> Result<(Arc<Moment>, Option<Ticket>), Refused> {
        let mut tail = self.tail();
        let (moment, passed) = self.moment(member, &mut tail, last, lane)?;
        match member.state.profile().event_stop_ns {
            0 => Ok((moment, passed)),
            ns => {
                let stop = self.push(member, &mut tail, Cost { ns, width: 0 }, lane, None)?;
                Ok((moment, Some(stop)))
            }
        }
    }

    fn moment(
        &self,
        member: &Member,
        tail: &mut Tail,
        last: Option<Ticket>,
        lane: Lane,
    ) -> Result<(Arc<Moment>, Option<Ticket>), Refused> {
        let ticket = match last.filter(|ticket| !member.is_done(*ticket)) {
            Some(ticket) => ticket,
            None if self.is_pending(member) && !member.state.profile().late_events => {
                return Ok((Arc::new(Moment::now(member)), None));
            }
            None => self.push(member, tail, Cost::NONE, lane, None)?,
        };
        Ok((tail.moment(ticket), Some(ticket)))
    }

    /// Ends the work of a context. Queued work is dropped.
    pub fn close(&self, member: &Member) {
        // A launch that waits in a full queue sees this, and unlocks the tail.
        self.is_closed.store(true, Ordering::Release);
        let mut tail = self.tail();
        let Some(queue) = self.queue() else { return };
        let (words, now) = (member.state.words(), member.advance().at);
        let done = words.queues[queue].done.load(Ordering::Acquire);
        tail.keep_stamps(&words.queues[queue], (done + DEPTH).saturating_sub(1));
        for (number, moment) in std::mem::take(&mut tail.moments) {
            let ended = Ticket { queue, number }.is_done(words);
            let entry = words.queues[queue].entry(number);
            let at = if ended { entry.when.load(Ordering::Acquire) } else { now };
            if let Some(moment) = moment.upgrade() {
                moment.at.store(at, Ordering::Release);
            }
        }
        self.queue.store(0, Ordering::Release);
        let _journal = member.journal();
        timeline::close(words, member.place, queue);
    }
}

impl Tail {
    fn moment(&mut self, ticket: Ticket) -> Arc<Moment> {
        let known = self.moments.get(&ticket.number).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let moment = Arc::new(Moment {
                ticket: Some(ticket),
                at: AtomicU64::new(0),
            });
            self.moments.insert(ticket.number, Arc::downgrade(&moment));
            moment
        })
    }

    /// Saves the stamps of entries that are reused when entry `next` is written. These entries are done.
    fn keep_stamps(&mut self, queue: &Queue, next: u64) {
        while let Some(first) = self.moments.first_entry().filter(|first| first.key() + DEPTH <= next) {
            let (number, moment) = first.remove_entry();
            if let Some(moment) = moment.upgrade() {
                moment
                    .at
                    .store(queue.entry(number).when.load(Ordering::Acquire), Ordering::Release);
            }
        }
    }
}

impl Moment {
    fn now(member: &Member) -> Self {
        Self {
            ticket: None,
            at: AtomicU64::new(member.state.now()),
        }
    }

    /// The work that has to end before, if it is not known to have ended.
    pub fn pending(&self) -> Option<Ticket> {
        self.ticket.filter(|_| self.at.load(Ordering::Acquire) == 0)
    }

    /// Returns when it was reached. None: not yet.
    pub fn reached(&self, member: &Member) -> Option<u64> {
        let Some(ticket) = self.pending() else {
            return Some(self.at.load(Ordering::Acquire));
        };
        if !member.knows(ticket) {
            return None;
        }
        let stamp = ticket.stamp(member.state.words());
        // If the entry was reused meanwhile, its stamp was saved in `at` before that.
        match self.at.load(Ordering::Acquire) {
            0 => Some(stamp),
            kept => Some(kept),
        }
    }

    pub fn wait(&self, member: &Member) {
        if let Some(ticket) = self.pending() {
            member.wait(ticket);
        }
    }
}

impl Member {
    fn journal(&self) -> MutexGuard<'_, ()> {
        lock(&self.journal)
    }

    /// Advances the schedule to now. If other processes with work have died, removes their work from the GPUs.
    fn advance(&self) -> Schedule<'_> {
        let schedule = self.advance_only();
        let places = schedule.workers(self.place);
        let is_dead = !places.is_empty()
            && self.state.may_watch(WATCH_NS)
            && self
                .state
                .mark_dead(Some(self.place), |place, _| places.contains(&place));
        if !is_dead {
            return schedule;
        }
        drop(schedule);
        self.state.bury();
        self.advance_only()
    }

    fn advance_only(&self) -> Schedule<'_> {
        let (state, _journal) = (&self.state, self.journal());
        timeline::advance(state.words(), state.pace(), self.place, state.now())
    }

    /// Returns true if a piece of work has ended by now.
    pub fn is_done(&self, ticket: Ticket) -> bool {
        let words = self.state.words();
        if !ticket.is_done(words) {
            self.advance();
        }
        ticket.is_done(words)
    }

    /// Returns true if a piece of work has ended by now and its context already reports it.
    pub fn knows(&self, ticket: Ticket) -> bool {
        self.is_done(ticket) && (!self.state.profile().late_events || !self.hides(ticket))
    }

    /// Waits until the context reports that a piece of work has ended.
    pub fn wait(&self, ticket: Ticket) {
        static NEVER: AtomicBool = AtomicBool::new(false);
        self.wait_unless(ticket, &NEVER);
        while !self.knows(ticket) {
            let schedule = self.advance();
            let (now, until) = (schedule.at, schedule.tells());
            drop(schedule);
            self.nap(now, until, || false);
        }
    }

    fn wait_unless(&self, ticket: Ticket, given_up: &AtomicBool) {
        let words = self.state.words();
        while !ticket.is_done(words) && !given_up.load(Ordering::Acquire) {
            let schedule = self.advance();
            if ticket.is_done(words) {
                return;
            }
            let (now, until) = (schedule.at, schedule.earliest(ticket));
            drop(schedule);
            self.nap(now, until, || given_up.load(Ordering::Acquire) || ticket.is_done(words));
        }
    }

    /// Waits until `until`, or less: the caller checks afterwards whether it has to wait again.
    fn nap(&self, now: u64, until: u64, is_over: impl Fn() -> bool) {
        match self.state.virtual_time() {
            None => sleep_until(until.min(now.saturating_add(NAP_NS))),
            Some(time) => self.pass(time, until, is_over),
        }
    }

    /// With `late_events`: returns true if a piece of work has ended but its context does not report it yet.
    fn hides(&self, ticket: Ticket) -> bool {
        let (words, told) = (self.state.words(), &self.told[ticket.queue]);
        if words.queues[ticket.queue].pushed.load(Ordering::Acquire) >= ticket.number + DEPTH {
            // Its entry may have been reused, so it ended long ago.
            return false;
        }
        let stamp = ticket.stamp(words);
        let hides = stamp > told.load(Ordering::Relaxed) && self.advance_only().hides(ticket.queue, stamp);
        if !hides {
            told.fetch_max(stamp, Ordering::Relaxed);
        }
        hides
    }

    /// Sleeps until a moment of the GPUs' clock.
    pub fn sleep_until(&self, until: u64) {
        match self.state.virtual_time() {
            None => sleep_until(until),
            Some(time) => self.pass(time, until, || false),
        }
    }

    /// Sleeps for some time of the GPUs' clock.
    pub fn sleep(&self, ns: u64) {
        match self.state.virtual_time() {
            None => std::thread::sleep(Duration::from_nanos(ns)),
            Some(_) if ns == 0 => {}
            Some(time) => self.pass(time, time.now().saturating_add(ns), || false),
        }
    }

    /// Waits for a moment of virtual time.
    fn pass(&self, time: &VirtualTime, until: u64, is_over: impl Fn() -> bool) {
        self.enters();
        let _wait = time.wait(self.place, until);
        while time.now() < until && !is_over() {
            let seen = time.jumps.load(Ordering::SeqCst);
            self.state.jump(time);
            if time.now() >= until {
                break;
            }
            sleep_while(&time.jumps, seen, Duration::from_nanos(WATCH_NS));
            // Time may stand still because a process has died.
            if time.jumps.load(Ordering::SeqCst) == seen && self.state.mark_dead(Some(self.place), |_, _| true) {
                self.state.bury();
            }
        }
    }

    /// Makes virtual time wait for this thread from now on.
    #[inline]
    fn enters(&self) {
        if let Some(time) = self.state.virtual_time() {
            // While a thread is ending, it has no thread-local value and does not take part.
            let _ = THREAD.try_with(|thread| {
                thread.get_or_init(|| Thread::new(time, self.place));
            });
        }
    }
}

thread_local! {
    static THREAD: OnceCell<Thread> = const { OnceCell::new() };
}

/// A thread that virtual time waits for.
struct Thread {
    time: &'static VirtualTime,
    place: usize,
    /// The process that created this value. A fork child has a copy, which does not take part.
    process: u32,
}

impl Thread {
    fn new(time: &'static VirtualTime, place: usize) -> Self {
        time.thread_begins(place);
        let process = std::process::id();
        Self { time, place, process }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            self.time.thread_ends(self.place);
            clock::wake(&self.time.jumps);
        }
    }
}

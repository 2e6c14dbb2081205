//! Shares the time of one GPU: every launch of this process asks here, and every wait reports here.
//!
//! ```text
//!  launch ─► budget? ─ yes ───────────────────────────────► driver
//!              └ no ─► law: go? ─ no ─► sleep on the page of the share that has its turn, and ask again
//!                        └ yes ─► driver ─► law: an event behind it, if one is due ─► budget
//!  wait   ─► driver ─► law: charges the work that has ended, and wakes others
//! ```
//!
//! `crate::compute` decides; this module handles the pages, events, locks and sleeps. No lock is held during a call of
//! the program or a sleep, except during the call that begins a capture, because a capture must not record our events.
//!
//! How it fails: if the pages cannot be used, a share is limited to its `cores` by a private page ([`pages`]). Launches
//! without an event are assumed to end after a while. A thread that jumps out of a launch leaves nothing locked. If a
//! signal handler jumps out of this module, the lock stays taken: launches of other threads never return, and those of
//! this thread are not measured. A fork child starts with an empty state.

mod budget;
mod captures;
mod events;
#[cfg(test)]
mod fake;
mod owner;
mod pages;
mod process;
pub mod stream_gpus;
mod streams;

pub use captures::{begun as capture_begun, ended as capture_ended};
pub use streams::is_of_a_context;

use core::ffi::c_int;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use vgpu_abi::arbitration::{Entry, entry_flags};
use vgpu_abi::entitlement::{Holder, entries};
use vgpu_abi::limits::Limits;
use vgpu_abi::log::{LONG_WAIT, Wait};

use crate::compute::limiter::call::{Answer, Call, Reason};
use crate::compute::limiter::{self, Limiter, Waiting};
use crate::compute::{MS, Ns};
use crate::log;
use crate::memory::driver::{SUCCESS, Streams, is_captured};
use crate::os::spin::{Entered, Reentrant};
use crate::os::{errno, futex, monotonic_ns, sleep};

use budget::Budget;
use events::Events;
use owner::Owner;
use pages::OpenPages;
pub use pages::PagesError;
use process::Live;
use streams::{Known, PER_THREAD, Target, stream_of};

/// How often NVML is asked for other processes on the GPU.
const NEIGHBOURS: Ns = 1000 * MS;
/// If this many sleeps of one wait end at once because the word had changed, the word is ignored: a share may change
/// its word all the time.
const HASTY: u32 = 16;
/// A shorter sleep counts as one that ended at once.
const AT_ONCE: Duration = Duration::from_micros(50);
/// The longest sleep once the word is ignored.
const WITHOUT_WORD: Duration = Duration::from_micros(500);
/// Before the work of a wait is charged, copies of the other shares' pages that are older than this are refreshed.
const LOOK: Ns = MS;

/// The arbiter's interface to the process in which it works.
pub trait Process {
    type Driver: Streams;
    fn driver(&self) -> &Self::Driver;
    /// Returns true if the share holds a turn on another GPU.
    fn holds_elsewhere(&self, now: Ns) -> bool;
    /// Returns true if other processes use the GPU, as far as can be known.
    fn has_neighbours(&self) -> bool;
    /// Called before the first launch, when the driver is initialised.
    fn starts(&self);
    /// Calls `nap`, during which this thread sleeps.
    fn asleep(&self, nap: impl FnOnce());
}

/// The work for which the program waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Covers the work of one stream.
    Stream(usize),
    /// Covers the work of some unknown streams.
    Some,
    /// Covers all work of a context; None is the current one.
    Context(Option<usize>),
}

/// The arbiter of one GPU in this process.
#[derive(Debug)]
pub struct Arbiter {
    budget: Budget,
    /// There may be work that has not been measured yet.
    is_busy: AtomicBool,
    /// Something was launched.
    is_used: AtomicBool,
    /// Set in a HAMi container that is limited only while other processes use the GPU.
    neighbours: Option<Neighbours>,
    inner: Reentrant<Inner>,
}

/// Whether other processes used the GPU when NVML was last asked.
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
    streams: Known,
    owner: Owner,
    /// When the other shares' pages were last copied.
    looked: Ns,
}

/// The circumstances of a launch that asks.
struct Question {
    /// When it asked for the first time.
    asked: Ns,
    /// No other process uses the GPU, so nothing is limited.
    is_free: bool,
    /// The share holds a turn on another GPU.
    sibling: bool,
}

/// A sleep before the launch asks again.
struct Nap {
    word: Option<(*const AtomicU32, u32)>,
    length: Duration,
    /// The thread stays awake.
    spins: bool,
    reason: Wait,
}

/// Returns the entry of a share from its limits file, used until the node's page is read. None: the share is not limited.
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
    /// Returns the arbiter of a share whose pages are in `folder`, and an error if its pages cannot be used. If there
    /// is no arbiter, the share's time is not limited.
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

    /// Returns the arbiter of a share that cannot see other shares: it is limited to its `cores`, always or only while other
    /// processes use the GPU. Its processes share one account in `folder`, if they can write to it. None: the share has no
    /// `cores`, or is not limited.
    #[must_use]
    pub fn alone(folder: Option<&Path>, limits: &Limits, only_beside_others: bool) -> Option<Self> {
        let mut entry = entitled(limits).filter(|_| limits.cores > 0)?;
        entry.flags |= entry_flags::GUARANTEED;
        Some(Self::new(OpenPages::private(folder, entry), entry, only_beside_others))
    }

    fn new(pages: OpenPages, entry: Entry, only_beside_others: bool) -> Self {
        let owner = Owner::of_this_process();
        Self {
            budget: Budget::default(),
            is_busy: AtomicBool::new(false),
            is_used: AtomicBool::new(false),
            neighbours: only_beside_others.then(Neighbours::default),
            inner: Reentrant::new(Inner {
                pages,
                limiter: Limiter::new(owner.0, entry),
                events: Events::default(),
                streams: Known::default(),
                owner,
                looked: 0,
            }),
        }
    }

    /// Waits until a launch in a stream may go. Returns true if the caller must then call [`Arbiter::launched`]. For
    /// `_ptsz` functions, `handle` is the result of [`per_thread`].
    #[inline(always)]
    #[must_use]
    pub fn begin(&self, process: &impl Process, handle: usize) -> bool {
        !self.is_granted(handle) && self.admit(process, handle)
    }

    /// Returns true, and counts the launch, if it may go at once.
    #[inline(always)]
    pub fn is_granted(&self, handle: usize) -> bool {
        !captures::may_be_under_way() && self.budget.take(stream_of(handle))
    }

    /// Waits until the launch may go. Returns false if it becomes a node of a graph instead of running.
    #[cold]
    fn admit(&self, process: &impl Process, handle: usize) -> bool {
        let _kept = errno::keep();
        let driver = process.driver();
        if captures::may_be_under_way() && is_captured(driver, handle) {
            return false;
        }
        if !self.is_used.swap(true, Relaxed) {
            process.starts();
        }
        let asked = monotonic_ns();
        let (mut is_long, mut hasty) = (LONG_WAIT, 0);
        loop {
            let question = Question {
                asked,
                is_free: self.neighbours.as_ref().is_some_and(|them| !them.are_there(process)),
                sibling: process.holds_elsewhere(monotonic_ns()),
            };
            let Some(nap) = self.with(driver, |inner| {
                self.is_busy.store(true, Relaxed);
                inner.ask(&self.budget, driver, handle, &question)
            }) else {
                return false;
            };
            match nap {
                None => return true,
                Some(nap) => {
                    let nap = if hasty < HASTY { nap } else { nap.without_word() };
                    let reason = nap.reason;
                    process.asleep(|| log::waits(reason, || hasty += u32::from(nap.sleep())));
                    let waited = monotonic_ns().saturating_sub(asked);
                    if waited >= is_long {
                        log::long_wait(reason, waited, is_long == LONG_WAIT);
                        is_long = 2 * waited;
                    }
                }
            }
        }
    }

    /// Notes that the launch was made.
    #[cold]
    pub fn launched(&self, process: &impl Process, handle: usize, result: c_int) {
        let _kept = errno::keep();
        let driver = process.driver();
        self.with(driver, |inner| {
            inner.launched(&self.budget, driver, handle, result == SUCCESS);
            // A wait of another thread may have cleared the flag since this launch asked.
            self.is_busy.store(true, Relaxed);
        });
    }

    /// Notes the begin of a wait. Returns what [`Arbiter::after_wait`] takes, if there is anything to wait for.
    pub fn before_wait(&self, process: &impl Process, scope: Scope) -> Option<Waiting> {
        if !self.is_busy.load(Relaxed) {
            return None;
        }
        let _kept = errno::keep();
        let driver = process.driver();
        self.with(driver, |inner| {
            let scope = inner.scope_of(driver, scope);
            inner.law(&self.budget, driver, |limiter, call| limiter.before_wait(call, scope))
        })
    }

    /// Notes that the program's wait has returned.
    pub fn after_wait(&self, process: &impl Process, wait: Waiting) {
        let driver = process.driver();
        self.has_ended(driver, |inner| {
            inner.law(&self.budget, driver, |limiter, call| limiter.after_wait(call, wait));
        });
    }

    /// Called when the program asks whether work has ended, without waiting for it. Counts the launches up to now, and
    /// then calls `has_ended`, which asks the driver again. A launch that another thread makes in between is not
    /// included.
    pub fn question(&self, process: &impl Process, scope: Scope, has_ended: impl FnOnce() -> bool) {
        if !self.is_busy.load(Relaxed) {
            return;
        }
        let driver = process.driver();
        let question = self.with(driver, |inner| {
            let scope = inner.scope_of(driver, scope);
            inner.law(&self.budget, driver, |limiter, call| limiter.waiting_for(call, scope))
        });
        if let Some(question) = question.filter(|_| has_ended()) {
            self.has_ended(driver, |inner| {
                inner.law(&self.budget, driver, |limiter, call| limiter.found_done(call, question));
            });
        }
    }

    fn has_ended(&self, driver: &impl Streams, report: impl FnOnce(&mut Inner)) {
        let _kept = errno::keep();
        self.with(driver, |inner| {
            inner.look(LOOK);
            report(inner);
            self.is_busy.store(!inner.limiter.is_idle(), Relaxed);
        });
    }

    /// Makes a call of the program that begins a capture, during which no event of ours may be recorded.
    pub fn without_events<T>(&self, call: impl FnOnce() -> T) -> T {
        let _entered = self.inner.lock_unless_within();
        call()
    }

    /// Called when a context is about to end: its events are not used until [`Arbiter::has_forgotten`].
    pub fn forget(&self, process: &impl Process, context: usize) {
        let _kept = errno::keep();
        let driver = process.driver();
        self.with(driver, |inner| {
            // Ended work is charged by its events now, because they end with the context.
            inner.law(&self.budget, driver, Limiter::see_ended);
            inner.events.ends(context);
        });
    }

    /// If the context has ended, charges its work until now. Otherwise the driver refused to end it, and its events are
    /// used again.
    pub fn has_forgotten(&self, process: &impl Process, context: usize, has_ended: bool) {
        let _kept = errno::keep();
        let driver = process.driver();
        self.with(driver, |inner| {
            if has_ended {
                inner.forget(&self.budget, driver, context);
            } else {
                inner.events.lives(context);
            }
        });
    }

    /// Called when a stream is about to end: no event can be recorded in it afterwards.
    pub fn forget_stream(&self, process: &impl Process, handle: usize) {
        let stream = stream_of(handle);
        if is_of_a_context(handle) {
            return;
        }
        let _kept = errno::keep();
        let driver = process.driver();
        self.with(driver, |inner| {
            inner.law(&self.budget, driver, |limiter, call| {
                limiter.forget_stream(call, stream)
            });
            self.budget.forget(stream);
            inner.streams.forget(stream);
        });
    }

    /// Charges the work in flight, because the process exits. If its events can no longer be queried, it is charged
    /// until now.
    pub fn end(&self, process: &impl Process) {
        let Some(inner) = self.inner.try_lock() else { return };
        let inner = &mut *inner.borrow_mut();
        inner.law(&self.budget, process.driver(), Limiter::exit);
    }

    /// Returns true if the share of this process has a turn on this GPU at `now`.
    #[must_use]
    pub fn holds_turn(&self, now: Ns) -> bool {
        self.inner
            .try_lock()
            .is_some_and(|inner| inner.borrow().pages.own().turn.ends.load(Relaxed) > now)
    }

    /// Runs `act` under the lock. Returns None if this thread is already inside one of our calls, from which the driver
    /// called back into the program. Launches in such a call go at once, and are measured with the outer one.
    fn with<T>(&self, driver: &impl Streams, act: impl FnOnce(&mut Inner) -> T) -> Option<T> {
        let inner: Entered<'_, Inner> = self.inner.lock_unless_within()?;
        let mut inner = inner.borrow_mut();
        let _unharmed = captures::spare(driver);
        Some(act(&mut inner))
    }
}

/// Returns the stream handle that a `_ptsz` function means: for it, 0 is the thread's own default stream.
#[must_use]
pub fn per_thread(handle: usize) -> usize {
    if handle == 0 { PER_THREAD } else { handle }
}

impl Inner {
    /// Asks the law. Returns None if the launch may go.
    fn ask(&mut self, budget: &Budget, driver: &impl Streams, handle: usize, question: &Question) -> Option<Nap> {
        let target = self.target(driver, handle);
        self.limiter.set_free(self.pages.own(), question.is_free);
        if self.limiter.needs_no_look(monotonic_ns()) {
            return None;
        }
        self.look(0);
        let asked = question.asked;
        let answer = self.law_of(budget, driver, question.sibling, |limiter, call| {
            limiter.ask(call, target.stream, asked)
        });
        let Answer::Wait(wait) = answer else { return None };
        Some(Nap {
            word: wait.on.and_then(|slot| self.pages.wake_word(slot)),
            length: Duration::from_nanos(wait.until.saturating_sub(monotonic_ns())),
            spins: wait.spins,
            reason: reported(wait.reason),
        })
    }

    fn launched(&mut self, budget: &Budget, driver: &impl Streams, handle: usize, was_taken: bool) {
        let target = self.target(driver, handle);
        if !was_taken {
            self.law(budget, driver, Limiter::failed);
            return;
        }
        let more = self.law(budget, driver, |limiter, call| limiter.launched(call, target.stream));
        // With several contexts, the handle of a default stream does not identify the stream.
        if !target.is_of_current_context() || self.streams.has_one_context() {
            budget.grant(target.stream, more);
        } else {
            budget.forget(stream_of(handle));
        }
    }

    fn forget(&mut self, budget: &Budget, driver: &impl Streams, context: usize) {
        self.events.has_ended(context, monotonic_ns());
        let gone = self.streams.forget_context(context);
        self.law(budget, driver, |limiter, call| {
            limiter.forget(call, |stream| gone.contains(&stream));
        });
        for stream in gone {
            budget.forget(stream);
        }
    }

    fn law<T>(
        &mut self,
        budget: &Budget,
        driver: &impl Streams,
        act: impl FnOnce(&mut Limiter, &mut Call<'_>) -> T,
    ) -> T {
        self.law_of(budget, driver, false, act)
    }

    /// Calls the law. Before that, counts the launches that used the budget, and withdraws the rest of it.
    fn law_of<T>(
        &mut self,
        budget: &Budget,
        driver: &impl Streams,
        sibling: bool,
        act: impl FnOnce(&mut Limiter, &mut Call<'_>) -> T,
    ) -> T {
        let now = monotonic_ns();
        budget.withdraw(|stream, launches| self.limiter.passed(now, stream, launches));
        let (page, limiter) = (self.pages.own(), &mut self.limiter);
        let process = &mut Live {
            driver,
            events: &mut self.events,
            known: &self.streams,
            own: self.owner,
            now,
            is_idle: limiter.is_idle(),
        };
        let wake = page.wake.load(Relaxed);
        let result = self.pages.with(|all| {
            let call = &mut Call {
                now,
                pages: *all,
                page,
                process,
                sibling,
            };
            act(limiter, call)
        });
        if page.wake.load(Relaxed) != wake {
            futex::wake(&page.wake);
        }
        result
    }

    /// Copies the other shares' pages, if the copy is older than `age`.
    fn look(&mut self, age: Ns) {
        let now = monotonic_ns();
        if now.saturating_sub(self.looked) >= age {
            self.looked = now;
            self.pages.look(now);
        }
    }

    /// Returns the limiter's scope of a wait. With several contexts it is not known which streams belong to a context,
    /// so a wait for one counts as a wait for some streams.
    fn scope_of(&self, driver: &impl Streams, scope: Scope) -> limiter::Scope {
        let is_only = |context: Option<usize>| {
            let context = context.or_else(|| driver.current_context().ok());
            context.is_some_and(|context| self.streams.has_only(context))
        };
        match scope {
            Scope::Stream(handle) if !is_of_a_context(handle) || is_only(None) => {
                limiter::Scope::Stream(stream_of(handle))
            }
            Scope::Context(context) if is_only(context) => limiter::Scope::All,
            Scope::Stream(_) | Scope::Context(_) | Scope::Some => limiter::Scope::Some,
        }
    }

    fn target(&mut self, driver: &impl Streams, handle: usize) -> Target {
        let limiter = &self.limiter;
        self.streams
            .of_handle(driver, handle, |stream| limiter.has_work(stream))
    }
}

impl Neighbours {
    /// Asks NVML at most once a second, and never under a lock: the answer may take long.
    fn are_there(&self, process: &impl Process) -> bool {
        let (now, looked) = (monotonic_ns(), self.looked.load(Relaxed));
        if looked == 0 || now.saturating_sub(looked) >= NEIGHBOURS {
            self.looked.store(now, Relaxed);
            self.are_there.store(process.has_neighbours(), Relaxed);
        }
        self.are_there.load(Relaxed)
    }
}

/// Returns the reason under which the log and `vgpu run --report` list a wait.
fn reported(reason: Reason) -> Wait {
    match reason {
        Reason::Throttled => Wait::Budget,
        Reason::Turn => Wait::Turn,
        Reason::Queue | Reason::Cells => Wait::Queue,
        Reason::Measuring => Wait::Unknown,
    }
}

impl Nap {
    fn without_word(mut self) -> Self {
        if self.word.take().is_some() {
            self.length = self.length.min(WITHOUT_WORD);
        }
        self
    }

    /// Sleeps. Returns true if the sleep ended at once because the word had already changed.
    fn sleep(self) -> bool {
        let begun = Instant::now();
        if self.spins {
            let until = begun + self.length;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            return false;
        }
        let woken = self
            .word
            .map(|(word, expected)| futex::wait(word, expected, self.length));
        if woken.is_none_or(|woken| woken == futex::Woken::Impossible) {
            sleep(self.length);
            return false;
        }
        let slept = begun.elapsed();
        slept < AT_ONCE && slept < self.length / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "a futex")]
    fn a_word_that_changes_all_the_time_ends_no_sleep_for_long() {
        let word = AtomicU32::new(7);
        let nap = |expected| Nap {
            word: Some((&raw const word, expected)),
            length: Duration::from_millis(50),
            spins: false,
            reason: Wait::Turn,
        };
        assert!(nap(6).sleep(), "it has changed");
        let begun = Instant::now();
        assert!(!nap(6).without_word().sleep());
        assert!(begun.elapsed() >= WITHOUT_WORD);
    }
}

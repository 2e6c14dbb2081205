//! Events of the driver, and when the GPU passed them, as times of CLOCK_MONOTONIC.
//!
//! The driver reports distances between events, but no times. So each context has a base event, and each later event
//! bounds the time at which the GPU passed the base: at most the time at which the event was seen minus their distance,
//! at least the time at which it was recorded minus their distance. The latest possible time is used, as the law
//! requires. A program that rarely queries events would give poor bounds. So a base that is recorded while nothing is
//! in flight is polled until the GPU passes it, and the time of a later base is computed from the base before it. The
//! base is renewed, because the GPU's clock drifts and the distance is a float of milliseconds, whose precision falls
//! as it grows.
//!
//! How it fails: a launch has no event if none can be created or recorded behind it. If queries of an event fail
//! because its context has ended, the event is treated as passed at that moment. Events are reused; those of a context
//! that ended unseen are dropped.

use crate::compute::{MS, Ns, US};
use crate::memory::driver::{NOT_READY, SUCCESS, Streams};

use super::streams::Target;

/// A base older than this is renewed.
const RENEWAL: Ns = 10_000 * MS;
/// How long a new base is polled.
const WATCH: Ns = 30 * US;
/// How often a base is recorded again if polling it took longer.
const TRIES: u32 = 4;
/// Events that a context keeps for reuse.
const SPARE: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Events {
    contexts: Vec<Context>,
    /// Recorded and not released yet, by number.
    recorded: Vec<Event>,
    made: usize,
}

#[derive(Debug, Default)]
struct Context {
    handle: usize,
    /// The newest is the last.
    bases: Vec<Base>,
    spare: Vec<usize>,
    /// The driver may be destroying it, so its events are not used.
    is_ending: bool,
}

#[derive(Clone, Copy, Debug)]
struct Base {
    event: usize,
    recorded: Ns,
    /// The latest time at which the GPU may have passed it. None: unknown.
    at: Option<Ns>,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    number: usize,
    /// 0: destroyed with its context.
    handle: usize,
    context: usize,
    base: usize,
    recorded: Ns,
    passed: Option<Ns>,
}

impl Events {
    /// Records an event at the end of a stream and returns its number. `is_idle`: nothing is in flight.
    pub(super) fn record(
        &mut self,
        driver: &impl Streams,
        target: &Target,
        is_idle: bool,
        clock: impl Fn() -> Ns,
    ) -> Option<usize> {
        if self.is_ending(target.context) {
            return None;
        }
        let now = clock();
        let is_young = |base: &Base| now.saturating_sub(base.recorded) < RENEWAL;
        if !self.context(target.context).bases.last().is_some_and(is_young) {
            let base = self.base(driver, target, is_idle, &clock)?;
            self.context(target.context).bases.push(base);
        }
        let handle = self.place(driver, target)?;
        let base = self.context(target.context).bases.last()?.event;
        self.made += 1;
        self.recorded.push(Event {
            number: self.made,
            handle,
            context: target.context,
            base,
            recorded: now,
            passed: None,
        });
        Some(self.made)
    }

    fn base(&mut self, driver: &impl Streams, target: &Target, is_idle: bool, clock: impl Fn() -> Ns) -> Option<Base> {
        let mut base = Base {
            event: self.place(driver, target)?,
            recorded: clock(),
            at: None,
        };
        // The first calls of a process are slow, and the thread may lose the CPU between record and poll, so there are
        // several attempts.
        for _ in 0..if is_idle { TRIES } else { 0 } {
            let begun = clock();
            if !self.record_again(driver, target, base.event) {
                return None;
            }
            base.recorded = begun;
            base.at = watched(driver, base.event, begun, &clock);
            if base.at.is_some_and(|at| at < begun + WATCH) {
                break;
            }
        }
        Some(base)
    }

    /// Returns when the GPU passed an event. None: not yet, or its context is ending.
    pub(super) fn passed(&mut self, driver: &impl Streams, number: usize, clock: impl Fn() -> Ns) -> Option<Ns> {
        let at = self.find(number)?;
        let event = self.recorded[at];
        if event.passed.is_some() || self.is_ending(event.context) {
            return event.passed;
        }
        let passed = match driver.query_event(event.handle) {
            NOT_READY => return None,
            SUCCESS => self.time_of(driver, &event, clock()),
            _ => {
                self.lose(event.context);
                clock()
            }
        };
        if let Some(at) = self.find(number) {
            self.recorded[at].passed = Some(passed);
        }
        Some(passed)
    }

    fn time_of(&mut self, driver: &impl Streams, event: &Event, seen: Ns) -> Ns {
        let bases = &mut self.context(event.context).bases;
        let Some(at) = bases.iter().position(|base| base.event == event.base) else {
            return seen;
        };
        let base = bases[at];
        let Ok(distance) = driver.elapsed(base.event, event.handle) else {
            return seen;
        };
        let by_former = || {
            let former = bases.get(at.checked_sub(1)?)?;
            Some(former.at? + driver.elapsed(former.event, base.event).ok()?)
        };
        let latest = base.at.or_else(by_former).unwrap_or(Ns::MAX);
        let latest = latest
            .min(seen.saturating_sub(distance))
            .max(event.recorded.saturating_sub(distance));
        bases[at].at = Some(latest);
        (latest + distance).min(seen)
    }

    /// Returns the time between two passed events. None: unknown.
    pub(super) fn between(&self, driver: &impl Streams, front: usize, behind: usize) -> Option<Ns> {
        let handle = |number| {
            let event = &self.recorded[self.find(number)?];
            (event.handle != 0 && !self.is_ending(event.context)).then_some(event.handle)
        };
        driver.elapsed(handle(front)?, handle(behind)?).ok()
    }

    /// Keeps an event for reuse. The event must not be needed any more.
    pub(super) fn release(&mut self, driver: &impl Streams, number: usize) {
        let Some(at) = self.find(number) else { return };
        let event = self.recorded.swap_remove(at);
        let Some(at) = self.contexts.iter().position(|context| context.handle == event.context) else {
            return;
        };
        let recorded = &self.recorded;
        let context = &mut self.contexts[at];
        // The newest base is needed for the next event, and the one before it until the newest has a time.
        let is_timed = context.bases.last().is_some_and(|base| base.at.is_some());
        let old = context.bases.len().saturating_sub(if is_timed { 1 } else { 2 });
        let is_over = |base: &mut Base| !recorded.iter().any(|event| event.base == base.event);
        let over = context.bases.extract_if(..old, is_over).map(|base| base.event);
        context.spare.extend(over);
        context.spare.extend(Some(event.handle).filter(|handle| *handle != 0));
        if context.is_ending {
            return;
        }
        for event in context.spare.split_off(context.spare.len().min(SPARE)) {
            driver.destroy_event(event);
        }
    }

    /// Notes that a context is about to be destroyed. Its events are not used until [`Events::has_ended`].
    pub(super) fn ends(&mut self, context: usize) {
        if let Some(known) = self.contexts.iter_mut().find(|known| known.handle == context) {
            known.is_ending = true;
        }
    }

    /// Notes that the context stays: the driver refused to destroy it, or it still has another user.
    pub(super) fn lives(&mut self, context: usize) {
        if let Some(known) = self.contexts.iter_mut().find(|known| known.handle == context) {
            known.is_ending = false;
        }
    }

    /// Notes that the context was destroyed. All of its events are taken as passed now.
    pub(super) fn has_ended(&mut self, context: usize, now: Ns) {
        self.lose(context);
        for event in self.recorded.iter_mut().filter(|event| event.context == context) {
            event.handle = 0;
            event.passed.get_or_insert(now);
        }
    }

    fn place(&mut self, driver: &impl Streams, target: &Target) -> Option<usize> {
        let event = match self.context(target.context).spare.pop() {
            Some(event) => event,
            None => in_context(driver, target.context, || driver.create_timing_event().ok())?,
        };
        if self.record_again(driver, target, event) {
            return Some(event);
        }
        driver.destroy_event(event);
        None
    }

    fn record_again(&self, driver: &impl Streams, target: &Target, event: usize) -> bool {
        let record = || Some(driver.record_event(event, target.handle));
        let result = if target.is_of_current_context() {
            in_context(driver, target.context, record)
        } else {
            record()
        };
        result == Some(SUCCESS)
    }

    fn find(&self, number: usize) -> Option<usize> {
        self.recorded.iter().position(|event| event.number == number)
    }

    fn is_ending(&self, context: usize) -> bool {
        self.contexts
            .iter()
            .any(|known| known.handle == context && known.is_ending)
    }

    fn context(&mut self, handle: usize) -> &mut Context {
        let at = self.contexts.iter().position(|context| context.handle == handle);
        let at = at.unwrap_or_else(|| {
            self.contexts.push(Context {
                handle,
                ..Context::default()
            });
            self.contexts.len() - 1
        });
        &mut self.contexts[at]
    }

    /// Drops a context whose events can no longer be queried: it was destroyed without our notice, together with them.
    fn lose(&mut self, context: usize) {
        self.contexts.retain(|known| known.handle != context);
    }
}

/// Polls an event for at most [`WATCH`] after `begun`. Returns when it was seen to have passed.
fn watched(driver: &impl Streams, event: usize, begun: Ns, clock: impl Fn() -> Ns) -> Option<Ns> {
    loop {
        let code = driver.query_event(event);
        let now = clock();
        if code == SUCCESS {
            return Some(now);
        }
        if code != NOT_READY || now.saturating_sub(begun) > WATCH {
            return None;
        }
    }
}

/// Runs `make` with this context current.
fn in_context<T>(driver: &impl Streams, context: usize, make: impl FnOnce() -> Option<T>) -> Option<T> {
    if driver.current_context() == Ok(context) {
        return make();
    }
    if driver.push_context(context) != SUCCESS {
        return None;
    }
    let made = make();
    driver.pop_context();
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbiter::fake::{CONTEXT, Fake};
    use crate::compute::limiter::Stream;

    const START: Ns = 1000 * MS;
    const TARGET: Target = Target {
        stream: Stream(5),
        handle: 5,
        context: CONTEXT,
    };

    fn recorded(events: &mut Events, driver: &Fake, now: Ns) -> usize {
        events.record(driver, &TARGET, false, || now).expect("recorded")
    }

    /// The base is passed 100 us after it was recorded. Each event that is seen bounds this time more closely.
    #[test]
    fn times_are_the_latest_that_are_possible() {
        let (driver, mut events) = (Fake::default(), Events::default());
        let (first, second) = (
            recorded(&mut events, &driver, START),
            recorded(&mut events, &driver, START),
        );
        assert_eq!(driver.recorded(), 3, "a base and two");
        assert_eq!(events.passed(&driver, first, || START + 20 * US), None);
        for (nth, at) in [(0, 100), (1, 200), (2, 300)] {
            driver.reach(nth, START + at * US);
        }
        let late = events.passed(&driver, first, || START + 450 * US);
        assert_eq!(late, Some(START + 450 * US), "it may have been passed just now");
        assert_eq!(
            events.passed(&driver, first, || START + 900 * US),
            late,
            "asked for once"
        );
        let soon = events.passed(&driver, second, || START + 301 * US);
        assert_eq!(soon, Some(START + 301 * US));
        assert_eq!(events.between(&driver, first, second), Some(100 * US));
        let third = recorded(&mut events, &driver, START + 400 * US);
        driver.reach(3, START + 500 * US);
        let third = events.passed(&driver, third, || START + 700 * US);
        assert_eq!(third, Some(START + 501 * US), "by what the second has said");
    }

    /// The GPU's clock is slow: its distances would place an event before it was recorded.
    #[test]
    fn no_event_is_passed_before_it_was_recorded() {
        let (driver, mut events) = (Fake::default(), Events::default());
        let first = recorded(&mut events, &driver, START);
        driver.reach(0, START);
        driver.reach(1, START);
        assert_eq!(events.passed(&driver, first, || START), Some(START));
        let second = recorded(&mut events, &driver, START + 2000 * MS);
        driver.reach(2, START + 1999 * MS);
        let seen = START + 2000 * MS + 50 * US;
        assert_eq!(events.passed(&driver, second, || seen), Some(START + 2000 * MS));
    }

    /// A program that queries each event 1 ms late. Its first base was polled, and all later times follow from it.
    #[test]
    fn a_base_that_was_watched_is_known_at_once() {
        let (driver, mut events) = (Fake::default(), Events::default());
        let time = std::cell::Cell::new(START);
        // The first try takes too long.
        let clock = || {
            time.set(time.get() + if driver.recorded() == 2 { 90 * US } else { US });
            if driver.recorded() >= 2 {
                driver.reach(driver.recorded() - 1, time.get());
            }
            time.get()
        };
        let mut last = events.record(&driver, &TARGET, true, clock).expect("recorded");
        let base = events.contexts[0].bases[0];
        assert_eq!(base.at, Some(base.recorded + 2 * US));
        let late = time.get() - START;
        let (mut now, mut first) = (START + late, driver.recorded() - 1);
        for round in 0..30 {
            let at = now + 20 * US;
            (first..driver.recorded()).for_each(|nth| driver.reach(nth, at));
            let passed = events.passed(&driver, last, || now + MS);
            assert_eq!(passed, Some(at), "in round {round}");
            events.release(&driver, last);
            now += 1000 * MS;
            first = driver.recorded();
            last = recorded(&mut events, &driver, now);
        }
        assert!(driver.living() <= 4, "{}", driver.living());
    }

    #[test]
    fn a_context_that_has_ended_counts_as_passed_and_records_nothing() {
        let (driver, mut events) = (Fake::default(), Events::default());
        let event = recorded(&mut events, &driver, START);
        driver.0.borrow_mut().is_gone = true;
        assert_eq!(events.passed(&driver, event, || START + MS), Some(START + MS));
        assert_eq!(events.record(&driver, &TARGET, false, || START), None);
        events.release(&driver, event);
        assert!(events.recorded.is_empty());
    }

    #[test]
    fn events_of_a_context_that_ends_are_not_used_and_count_as_passed_when_it_has_ended() {
        let (driver, mut events) = (Fake::default(), Events::default());
        let of_it: Vec<usize> = (0..3).map(|_| recorded(&mut events, &driver, START)).collect();
        events.release(&driver, of_it[2]);
        (0..3).for_each(|nth| driver.reach(nth, START));
        events.ends(CONTEXT);
        assert_eq!(events.passed(&driver, of_it[0], || START + MS), None, "nobody is asked");
        assert_eq!(events.between(&driver, of_it[0], of_it[1]), None);
        assert_eq!(events.record(&driver, &TARGET, false, || START), None);
        events.has_ended(CONTEXT, START + MS);
        driver.0.borrow_mut().is_gone = true;
        assert_eq!(events.passed(&driver, of_it[0], || START + 2 * MS), Some(START + MS));
        assert_eq!(events.between(&driver, of_it[0], of_it[1]), None);
        of_it.iter().for_each(|event| events.release(&driver, *event));
        assert!(events.recorded.is_empty());
    }

    #[test]
    fn events_of_a_context_that_did_not_end_say_what_they_would_have_said() {
        let (driver, mut events) = (Fake::default(), Events::default());
        let event = recorded(&mut events, &driver, START);
        events.ends(CONTEXT);
        events.lives(CONTEXT);
        assert_eq!(events.passed(&driver, event, || START + MS), None);
        (0..2).for_each(|nth| driver.reach(nth, START));
        assert_eq!(events.passed(&driver, event, || START + MS), Some(START + MS));
    }

    #[test]
    fn bases_are_renewed_and_events_used_again() {
        let (driver, mut events) = (Fake::default(), Events::default());
        let mut now = START;
        for _ in 0..100 {
            let first = driver.recorded();
            let event = recorded(&mut events, &driver, now);
            for nth in first..driver.recorded() {
                driver.reach(nth, now);
            }
            assert_eq!(events.passed(&driver, event, || now), Some(now));
            events.release(&driver, event);
            now += 1000 * MS;
        }
        assert_eq!(driver.recorded(), 110, "100 and a base each 10 s");
        assert!(driver.living() <= 4, "{}", driver.living());
    }
}

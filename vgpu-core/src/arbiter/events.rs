//! Measures chunks of work by the driver's events, in the time of CLOCK_MONOTONIC.
//!
//! ```text
//!  begin: event in front of a chunk, or the end of the one before it, if that has not been reached
//!  end:   event behind it ─► poll: reached? ─► from and to, by their distance from a base event
//! ```
//!
//! The driver tells distances between events, and no times. So a base event is recorded in each context, and the moment
//! at which the GPU passed it is narrowed down: an event is reached after it was recorded, and before it is seen. The
//! distance is a float of milliseconds, which gets coarse with time: the base is renewed.
//!
//! How it fails: an event that cannot be made, recorded or asked for (the context has ended, the stream is destroyed or
//! being captured) is reported as failed, and the chunk is charged by its estimate. Events are used again; those of a
//! context that ended without us are forgotten.

use std::collections::VecDeque;

use crate::compute::flight::{Mark, Stream};
use crate::compute::{MS, Ns};
use crate::memory::driver::{NOT_READY, SUCCESS, Streams};

/// A base is renewed when it is older.
const RENEWAL: Ns = 10_000 * MS;
/// Events that a context keeps for later.
const SPARE: usize = 64;

/// Where a stream's work can be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub stream: Stream,
    pub handle: usize,
    pub context: usize,
}

/// The result of measuring a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Measured { from: Ns, to: Ns },
    Failed,
}

#[derive(Debug, Default)]
pub(super) struct Events {
    contexts: Vec<Context>,
    /// The beginnings of the chunks that are open.
    begun: Vec<(Target, From)>,
    pending: VecDeque<Pending>,
}

#[derive(Debug, Default)]
struct Context {
    handle: usize,
    /// The newest is the last.
    bases: Vec<Base>,
    spare: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Base {
    event: usize,
    /// When the GPU passed it, as far as is known.
    at: Ns,
}

/// Where a chunk begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    /// With the base that was the newest then.
    Event { event: usize, base: usize },
    /// The chunk before it in this stream, which has not ended yet.
    Previous,
    /// Nothing could be recorded.
    Clock(Ns),
}

impl From {
    fn event(self) -> Option<usize> {
        if let Self::Event { event, .. } = self {
            Some(event)
        } else {
            None
        }
    }
}

#[derive(Debug)]
struct Pending {
    mark: Mark,
    target: Target,
    from: From,
    end: usize,
    recorded: Ns,
    base: usize,
}

impl Events {
    /// Something is recorded and not reached.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) fn uses(&self, stream: Stream) -> bool {
        self.pending.iter().any(|pending| pending.target.stream == stream)
    }

    /// A chunk begins: called before its first launch.
    pub(super) fn begin(&mut self, driver: &impl Streams, target: Target, now: Ns) {
        let from = if self.uses(target.stream) {
            From::Previous
        } else {
            let event = self.record(driver, target, now);
            let base = self.context(target.context).bases.last().map(|base| base.event);
            let both = event.zip(base);
            both.map_or(From::Clock(now), |(event, base)| From::Event { event, base })
        };
        // One that was begun before and has got no launch.
        if let Some(at) = self.begun_at(target.stream) {
            let (unused, from) = self.begun.swap_remove(at);
            self.context(unused.context).spare.extend(from.event());
        }
        self.begun.push((target, from));
    }

    fn begun_at(&self, stream: Stream) -> Option<usize> {
        self.begun.iter().position(|(target, _)| target.stream == stream)
    }

    /// A chunk ends: called behind its last launch. Returns false if that cannot be recorded.
    #[must_use]
    pub(super) fn end(&mut self, driver: &impl Streams, mark: Mark, target: Target, now: Ns) -> bool {
        let at = self.begun_at(target.stream);
        let from = at.map_or(From::Clock(now), |at| self.begun.swap_remove(at).1);
        let end = self.record(driver, target, now);
        let newest = self.context(target.context).bases.last().map(|base| base.event);
        let base = if let From::Event { base, .. } = from {
            Some(base)
        } else {
            newest
        };
        match (end, base) {
            (Some(end), Some(base)) => {
                self.pending.push_back(Pending {
                    mark,
                    target,
                    from,
                    end,
                    recorded: now,
                    base,
                });
                true
            }
            (end, _) => {
                for event in end.into_iter().chain(from.event()) {
                    driver.destroy_event(event);
                }
                false
            }
        }
    }

    /// Looks which events were reached, and reports their chunks, each stream's in order.
    pub(super) fn poll(
        &mut self,
        driver: &impl Streams,
        clock: impl Fn() -> Ns,
        mut report: impl FnMut(Mark, Outcome),
    ) {
        let mut waiting: Vec<Stream> = Vec::new();
        let mut at = 0;
        while at < self.pending.len() {
            let (stream, end) = (self.pending[at].target.stream, self.pending[at].end);
            if waiting.contains(&stream) {
                at += 1;
                continue;
            }
            match driver.query_event(end) {
                NOT_READY => {
                    waiting.push(stream);
                    at += 1;
                }
                SUCCESS => {
                    let Some(pending) = self.pending.remove(at) else { return };
                    let outcome = self.measure(driver, &pending, clock());
                    let to = match outcome {
                        Outcome::Measured { to, .. } => to,
                        Outcome::Failed => pending.recorded,
                    };
                    self.follow(stream, to);
                    report(pending.mark, outcome);
                }
                _ => {
                    let Some(pending) = self.pending.remove(at) else { return };
                    self.lose(pending.target.context);
                    self.follow(stream, pending.recorded);
                    report(pending.mark, Outcome::Failed);
                }
            }
        }
    }

    fn measure(&mut self, driver: &impl Streams, pending: &Pending, seen: Ns) -> Outcome {
        let context = self.context(pending.target.context);
        let Some(base) = context.bases.iter_mut().find(|base| base.event == pending.base) else {
            return Outcome::Failed;
        };
        let Ok(end) = driver.elapsed(base.event, pending.end) else {
            return Outcome::Failed;
        };
        base.at = base
            .at
            .max(pending.recorded.saturating_sub(end))
            .min(seen.saturating_sub(end));
        let to = base.at + end;
        let from = match pending.from {
            From::Event { event, .. } => driver.elapsed(base.event, event).map_or(to, |begin| base.at + begin),
            From::Clock(at) => at,
            // The one before it was reported: it came first.
            From::Previous => to,
        };
        context.spare.extend(pending.from.event());
        self.recycle(driver, pending);
        Outcome::Measured { from: from.min(to), to }
    }

    /// The next chunk of a stream begins where the one before it ended.
    fn follow(&mut self, stream: Stream, to: Ns) {
        let next = self.pending.iter_mut().find(|next| next.target.stream == stream);
        let from = match next {
            Some(next) => Some(&mut next.from),
            None => self
                .begun
                .iter_mut()
                .find(|(target, _)| target.stream == stream)
                .map(|(_, from)| from),
        };
        if let Some(from) = from.filter(|from| **from == From::Previous) {
            *from = From::Clock(to);
        }
    }

    /// Keeps what a chunk does not need any more for later ones.
    fn recycle(&mut self, driver: &impl Streams, done: &Pending) {
        let is_of = |event: usize, from: From| matches!(from, From::Event { base, .. } if base == event);
        let in_use = |event: usize| {
            self.pending.iter().any(|pending| pending.base == event)
                || self.begun.iter().any(|(_, from)| is_of(event, *from))
        };
        let Some(at) = self
            .contexts
            .iter()
            .position(|context| context.handle == done.target.context)
        else {
            return;
        };
        let newest = self.contexts[at].bases.len().saturating_sub(1);
        let old: Vec<usize> = self.contexts[at].bases[..newest]
            .iter()
            .map(|base| base.event)
            .filter(|event| !in_use(*event))
            .collect();
        let context = &mut self.contexts[at];
        context.bases.retain(|base| !old.contains(&base.event));
        context.spare.extend(old);
        context.spare.push(done.end);
        for event in context.spare.split_off(context.spare.len().min(SPARE)) {
            driver.destroy_event(event);
        }
    }

    /// Records an event, after a base if there is none that is young enough.
    fn record(&mut self, driver: &impl Streams, target: Target, now: Ns) -> Option<usize> {
        let is_young = |base: &Base| now.saturating_sub(base.at) < RENEWAL;
        if !self.context(target.context).bases.last().is_some_and(is_young) {
            let event = self.place(driver, target)?;
            self.context(target.context).bases.push(Base { event, at: now });
        }
        self.place(driver, target)
    }

    fn place(&mut self, driver: &impl Streams, target: Target) -> Option<usize> {
        let event = match self.context(target.context).spare.pop() {
            Some(event) => event,
            None => in_context(driver, target.context, || driver.create_timing_event().ok())?,
        };
        if driver.record_event(event, target.handle) == SUCCESS {
            return Some(event);
        }
        driver.destroy_event(event);
        None
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

    /// How many contexts have work.
    pub(super) fn contexts(&self) -> usize {
        self.contexts.len()
    }

    /// A context is about to end: its events are destroyed, and its chunks reported as failed.
    pub(super) fn forget(&mut self, driver: &impl Streams, context: usize, mut report: impl FnMut(Mark)) {
        let (gone, kept): (Vec<Pending>, Vec<Pending>) = std::mem::take(&mut self.pending)
            .into_iter()
            .partition(|pending| pending.target.context == context);
        self.pending = kept.into();
        let Some(at) = self.contexts.iter().position(|known| known.handle == context) else {
            return;
        };
        let known = self.contexts.swap_remove(at);
        let begun = self.begun.extract_if(.., |(target, _)| target.context == context);
        let begun: Vec<usize> = begun.filter_map(|(_, from)| from.event()).collect();
        let of_chunks = gone
            .iter()
            .flat_map(|pending| pending.from.event().into_iter().chain([pending.end]));
        let bases = known.bases.iter().map(|base| base.event);
        for event in known.spare.iter().copied().chain(bases).chain(of_chunks).chain(begun) {
            driver.destroy_event(event);
        }
        for pending in gone {
            report(pending.mark);
        }
    }

    /// A context's events do not answer: it has ended without us, and they with it.
    fn lose(&mut self, context: usize) {
        self.contexts.retain(|known| known.handle != context);
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
    use crate::compute::US;

    const START: Ns = 1000 * MS;

    fn target(stream: u64) -> Target {
        Target {
            stream: Stream(stream),
            handle: stream as usize,
            context: CONTEXT,
        }
    }

    fn polled(events: &mut Events, driver: &Fake, now: Ns) -> Vec<(u64, Outcome)> {
        let mut found = Vec::new();
        events.poll(driver, || now, |mark, outcome| found.push((mark.0, outcome)));
        found
    }

    /// The base is passed 100 us after it was recorded, and all times are in its distance: they are right as soon as
    /// something narrows the base down.
    #[test]
    fn chunks_are_measured_in_the_clock_of_the_processes() {
        let (driver, mut events) = (Fake::default(), Events::default());
        events.begin(&driver, target(5), START);
        assert!(events.end(&driver, Mark(1), target(5), START + 10 * US));
        assert_eq!(driver.recorded(), 3, "a base, and an event on each side");
        assert_eq!(polled(&mut events, &driver, START + 20 * US), []);
        driver.reach(0, START + 100 * US);
        driver.reach(1, START + 100 * US);
        driver.reach(2, START + 300 * US);
        let measured = polled(&mut events, &driver, START + 301 * US);
        let (from, to) = (START, START + 200 * US);
        assert_eq!(measured, [(1, Outcome::Measured { from, to })]);

        // What was recorded while the GPU was idle says when it was not earlier.
        events.begin(&driver, target(5), START + 500 * US);
        assert!(events.end(&driver, Mark(2), target(5), START + 500 * US));
        driver.reach(3, START + 500 * US);
        driver.reach(4, START + 600 * US);
        let measured = polled(&mut events, &driver, START + 601 * US);
        let Outcome::Measured { from, to } = measured[0].1 else {
            panic!("{measured:?}");
        };
        assert_eq!(to - from, 100 * US);
        assert!(
            (START + 600 * US..=START + 601 * US).contains(&to) || to == START + 500 * US,
            "{to}"
        );
    }

    #[test]
    fn chunks_in_a_row_share_an_event() {
        let (driver, mut events) = (Fake::default(), Events::default());
        events.begin(&driver, target(5), START);
        assert!(events.end(&driver, Mark(1), target(5), START));
        events.begin(&driver, target(5), START);
        assert!(events.end(&driver, Mark(2), target(5), START));
        assert_eq!(driver.recorded(), 4);
        for (nth, at) in [(0, 0), (1, 0), (2, 70), (3, 100)] {
            driver.reach(nth, START + at * US);
        }
        let measured = polled(&mut events, &driver, START + 100 * US);
        let expected = [(1, 0, 70), (2, 70, 100)].map(|(mark, from, to)| {
            let (from, to) = (START + from * US, START + to * US);
            (mark, Outcome::Measured { from, to })
        });
        assert_eq!(measured, expected);
    }

    #[test]
    fn streams_do_not_wait_for_each_other() {
        let (driver, mut events) = (Fake::default(), Events::default());
        for stream in [5, 6] {
            events.begin(&driver, target(stream), START);
            assert!(events.end(&driver, Mark(stream), target(stream), START));
        }
        driver.reach(0, START);
        driver.reach(3, START);
        driver.reach(4, START + US);
        let measured = polled(&mut events, &driver, START + US);
        assert_eq!(measured.len(), 1);
        assert_eq!(measured[0].0, 6);
        assert!(events.uses(Stream(5)) && !events.uses(Stream(6)));
    }

    #[test]
    fn a_context_that_has_ended_fails_its_chunks() {
        let (driver, mut events) = (Fake::default(), Events::default());
        events.begin(&driver, target(5), START);
        assert!(events.end(&driver, Mark(1), target(5), START));
        driver.0.borrow_mut().is_gone = true;
        assert_eq!(polled(&mut events, &driver, START), [(1, Outcome::Failed)]);
        events.begin(&driver, target(5), START);
        assert!(!events.end(&driver, Mark(2), target(5), START));
        assert!(events.is_empty());
    }

    #[test]
    fn nothing_is_left_in_a_context_that_is_about_to_end() {
        let (driver, mut events) = (Fake::default(), Events::default());
        for mark in 1..4 {
            events.begin(&driver, target(5), START);
            assert!(events.end(&driver, Mark(mark), target(5), START));
        }
        events.begin(&driver, target(6), START);
        let mut gone = Vec::new();
        events.forget(&driver, CONTEXT, |mark| gone.push(mark.0));
        assert_eq!(gone, [1, 2, 3]);
        assert_eq!(driver.living(), 0);
    }

    #[test]
    fn bases_are_renewed_and_events_used_again() {
        let (driver, mut events) = (Fake::default(), Events::default());
        let mut now = START;
        for mark in 0..100 {
            let first = driver.recorded();
            events.begin(&driver, target(5), now);
            assert!(events.end(&driver, Mark(mark), target(5), now));
            for nth in first..driver.recorded() {
                driver.reach(nth, now + nth as Ns * US);
            }
            let measured = polled(&mut events, &driver, now + 1000 * US);
            assert_eq!(measured.len(), 1, "at {mark}: {measured:?}");
            now += 1000 * MS;
        }
        assert!(
            driver.recorded() >= 209,
            "200 and a base each 10 s: {}",
            driver.recorded()
        );
        assert!(driver.living() <= 6, "{}", driver.living());
    }
}

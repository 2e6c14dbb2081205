//! Tracks launches in flight until they are acknowledged by an event that the GPU has passed or by a wait that returned.
//!
//! How it fails: launches without an event are assumed to have ended after some time, or once a later event of their
//! stream was reached, or once the program has waited for them.

use super::Limiter;
use super::call::{Call, Recorded};
use super::launches::{Mark, Open, Stream, Waiting};
use crate::compute::{MS, Ns, US};

/// An event that is reached within this time after it was recorded shows that the GPU had waited for launches.
const CAUGHT_UP: Ns = 30 * US;
/// How much earlier the GPU passes the event in front of a launch, because the CPU is still preparing the launch.
const LAUNCHING: Ns = 3 * US;
/// Launches without an event are assumed to have ended after this time, or after four times their expected length if
/// that is longer.
const BY_THE_CLOCK: Ns = 10 * MS;

impl Limiter {
    /// Adds launches to those in flight. `is_exact`: one launch, made just now.
    pub(super) fn count(&mut self, now: Ns, stream: Stream, launches: u32, is_exact: bool) {
        self.in_flight = self.in_flight.saturating_add(launches);
        self.uncharged = self.uncharged.saturating_add(launches);
        self.launches += u64::from(launches);
        self.is_drained = false;
        self.busy.get_or_insert(now);
        let last = self.launches;
        if let Some(open) = self.open.iter_mut().find(|open| open.stream == stream) {
            open.launches = open.launches.saturating_add(launches);
            open.last = last;
            open.is_exact = false;
            return;
        }
        self.open.push(Open {
            stream,
            launches,
            since: now,
            last,
            is_exact,
        });
    }

    /// Returns true if a stream has launches with no event behind them.
    pub(super) fn is_open(&self, stream: Stream) -> bool {
        self.open.iter().any(|open| open.stream == stream)
    }

    /// Prepares to measure the next launch of a stream alone, starting from an event: the one behind the launches
    /// before it, or a new one.
    pub(super) fn measure_next(&mut self, call: &mut Call<'_>, stream: Stream) {
        let event = if self.is_open(stream) {
            self.mark(call, stream);
            let behind = self.marks.back().filter(|mark| mark.stream == stream);
            behind.and_then(|mark| mark.event)
        } else {
            call.process.record(stream).event()
        };
        let before = std::mem::replace(&mut self.single, event.map(|event| (stream, event)));
        self.release(call, before.map(|(_, event)| event));
    }

    /// Records an event behind the open launches of a stream. If this thread cannot record one, another thread may do
    /// so later; after some time the launches are assumed to have ended.
    pub(super) fn mark(&mut self, call: &mut Call<'_>, stream: Stream) {
        let Some(at) = self.open.iter().position(|open| open.stream == stream) else {
            return;
        };
        let recorded = call.process.record(stream);
        if recorded == Recorded::NotHere && call.now < self.open[at].since + BY_THE_CLOCK {
            return;
        }
        let open = self.open.remove(at);
        let in_front = self.single.take_if(|(of, _)| *of == stream).map(|(_, event)| event);
        let (in_front, unused) = if open.launches == 1 {
            (in_front, None)
        } else {
            (None, in_front)
        };
        self.release(call, unused);
        self.marks.push_back(Mark {
            event: recorded.event(),
            stream,
            recorded: call.now,
            launches: open.launches,
            first: open.since,
            is_exact: open.is_exact && call.now < open.since + CAUGHT_UP,
            in_front,
        });
        self.last_mark = call.now;
    }

    pub(super) fn mark_all(&mut self, call: &mut Call<'_>) {
        let streams: Vec<Stream> = self.open.iter().map(|open| open.stream).collect();
        for stream in streams {
            self.mark(call, stream);
        }
    }

    /// Handles the events that were reached, in order for each stream.
    pub(super) fn poll(&mut self, call: &mut Call<'_>) {
        let mut waiting: Vec<Stream> = Vec::new();
        let mut at = 0;
        while at < self.marks.len() {
            let mark = self.marks[at];
            if waiting.contains(&mark.stream) {
                at += 1;
                continue;
            }
            let Some(ended) = self.ended_at(call, &mark) else {
                if mark.event.is_some() {
                    waiting.push(mark.stream);
                }
                at += 1;
                continue;
            };
            self.marks.remove(at);
            let before = self.without_event_before(at, mark.stream);
            let launches = mark.launches + before;
            self.reached(call, &Mark { launches, ..mark }, ended);
            at = 0;
        }
    }

    /// Removes the marks without an event that lie before this place in a stream: a later event was reached, so they have ended.
    /// Returns their launches.
    fn without_event_before(&mut self, place: usize, stream: Stream) -> u32 {
        let (mut launches, mut at) = (0, 0);
        self.marks.retain(|mark| {
            let ends = at < place && mark.stream == stream && mark.event.is_none();
            launches += if ends { mark.launches } else { 0 };
            at += 1;
            !ends
        });
        launches
    }

    fn ended_at(&self, call: &mut Call<'_>, mark: &Mark) -> Option<Ns> {
        if let Some(event) = mark.event {
            return call.process.passed(event);
        }
        let should_take = Ns::from(mark.launches) * self.pace.mean * Ns::from(1 + self.siblings);
        let ended = mark.recorded + BY_THE_CLOCK.max(4 * should_take);
        (call.now >= ended).then_some(ended)
    }

    fn reached(&mut self, call: &mut Call<'_>, mark: &Mark, ended: Ns) {
        let to = ended.min(call.now);
        let begin = self.begin.take();
        if let Some(length) = self.since(call, begin, mark) {
            // The work began when the GPU passed the event in front of it, not when the launch was called.
            self.busy = self.busy.map(|busy| busy.max(to.saturating_sub(length)));
        }
        let is_older = |first: Ns, stream: Stream| first < mark.recorded && stream != mark.stream;
        let has_other_work = self.marks.iter().any(|other| is_older(other.first, other.stream))
            || self.open.iter().any(|open| is_older(open.since, open.stream));
        let has_caught_up = to < mark.recorded + CAUGHT_UP && !has_other_work;
        if let Some(length) = self.since(call, mark.in_front, mark) {
            let lag = if has_caught_up { LAUNCHING } else { 0 };
            self.pace.sampled(length + lag);
        }
        self.has_gaps |= has_caught_up && !mark.is_exact;
        self.has_caught_up = has_caught_up;
        self.ended(call, mark.launches, to);
        self.release(call, begin);
        self.release_both(call, mark);
    }

    /// Returns the distance from an event in front to the event of this mark.
    fn since(&self, call: &mut Call<'_>, front: Option<usize>, mark: &Mark) -> Option<Ns> {
        call.process.between(front?, mark.event?)
    }

    pub(super) fn release_both(&self, call: &mut Call<'_>, mark: &Mark) {
        self.release(call, mark.in_front);
        self.release(call, mark.event);
    }

    /// Releases an event, unless it is still needed.
    pub(super) fn release(&self, call: &mut Call<'_>, event: Option<usize>) {
        let Some(event) = event else { return };
        let of_marks = self.marks.iter().flat_map(|mark| [mark.event, mark.in_front]);
        let of_next = [self.begin, self.single.map(|(_, event)| event)];
        if !of_marks.chain(of_next).flatten().any(|needed| needed == event) {
            call.process.release(event);
        }
    }

    /// Ends the launches without an event that a wait covers, and returns their number. If another thread has launched
    /// in the stream meanwhile, it is unknown which of them have ended, so all stay in flight.
    pub(super) fn close(&mut self, wait: &Waiting) -> u32 {
        let is_waited_for = |stream: Stream| wait.scope.covers(stream);
        let is_covered = |open: &mut Open| is_waited_for(open.stream) && open.last <= wait.launches;
        let open = self.open.extract_if(.., is_covered);
        let open: u32 = open.map(|open| open.launches).sum();
        let mut without_event = 0;
        self.marks.retain(|mark| {
            let ends = mark.event.is_none() && is_waited_for(mark.stream) && mark.recorded <= wait.since;
            without_event += if ends { mark.launches } else { 0 };
            !ends
        });
        open + without_event
    }
}

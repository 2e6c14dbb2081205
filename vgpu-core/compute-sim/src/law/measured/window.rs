//! What is in flight, and how much may be: a window of launches, which acknowledgements move, as in congestion control.
//! An acknowledgement is an event that was reached, or a wait that returned.

use std::sync::atomic::Ordering::Relaxed;

use vgpu_core::compute::account;

use super::launches::{InFlight, Mark, Recorded, Stream};
use super::{LONG, Measured, SHARED};
use crate::law::events::Base;
use crate::law::io::Io;
use crate::{MS, Ns, US};

/// An event that is reached so soon after it was recorded says that the GPU had waited for launches.
const CAUGHT_UP: Ns = 30 * US;
/// The GPU passes the event in front of a launch while the CPU still makes the launch.
const LAUNCHING: Ns = 3 * US;
/// What is assumed of a launch when nothing was acknowledged yet.
const UNKNOWN: Ns = 200 * US;
const LEAST_LEFT: Ns = 20 * US;
/// A capped share may have so many in flight whatever its `cores`.
const LEAST_CAPPED: u32 = 4;
/// The window grows no further.
const WIDEST: u32 = 1 << 20;
/// All processes of a share together may have two launches each in flight if that takes no longer.
const TWO_EACH: Ns = 6 * MS;

impl Measured {
    pub(super) fn stream(&mut self, stream: usize) -> &mut Stream {
        if self.streams.len() <= stream {
            self.streams.resize(stream + 1, Stream::default());
        }
        &mut self.streams[stream]
    }

    /// A launch is in flight.
    pub(super) fn count_launch(&mut self, now: Ns, stream: usize) {
        self.in_flight += 1;
        self.uncharged += 1;
        let stream = self.stream(stream);
        if stream.open == 0 {
            stream.since = now;
        }
        stream.open += 1;
    }

    // === acknowledgements

    pub(super) fn record(&mut self, io: &mut Io<'_>, stream: usize) -> Recorded {
        if self.bases.last().is_none_or(|base| base.is_old(io.now)) {
            let base = Base::record(io, stream);
            self.bases.push(base);
        }
        Recorded {
            event: io.record(stream),
            base: self.bases.len() - 1,
        }
    }

    /// The launch that comes next is measured by itself.
    pub(super) fn record_in_front(&mut self, io: &mut Io<'_>, stream: usize) {
        self.single = Some(self.record(io, stream).event);
    }

    /// Records an event behind the launches of a stream that have none behind them.
    pub(super) fn mark(&mut self, io: &mut Io<'_>, stream: usize) {
        let open = std::mem::take(self.stream(stream));
        if open.open == 0 {
            return;
        }
        let event = self.record(io, stream);
        let in_front = self.single.take().filter(|_| open.open == 1);
        self.marks.push_back(Mark {
            event,
            stream,
            recorded: io.now,
            launches: open.open,
            first: open.since,
            in_front,
        });
        self.last_mark = io.now;
    }

    pub(super) fn mark_all(&mut self, io: &mut Io<'_>) {
        for stream in 0..self.streams.len() {
            self.mark(io, stream);
        }
    }

    /// Reads the events that were reached, each stream's in order.
    pub(super) fn poll(&mut self, io: &mut Io<'_>) {
        let mut waiting: Vec<usize> = Vec::new();
        let mut at = 0;
        while at < self.marks.len() {
            let mark = self.marks[at];
            if waiting.contains(&mark.stream) {
                at += 1;
            } else if let Some(passed) = io.query(mark.event.event) {
                self.marks.remove(at);
                self.reached(io, &mark, passed);
            } else {
                waiting.push(mark.stream);
                at += 1;
            }
        }
    }

    fn reached(&mut self, io: &mut Io<'_>, mark: &Mark, passed: Ns) {
        let base = mark.event.base;
        let distance = self.bases[base].distance(io, passed);
        // At its latest place: an interval that lies too early would hide behind those of other processes.
        let to = (self.bases[base].latest + distance).min(io.now);
        if let Some(begin) = self.begin.take() {
            self.begun_at(io, begin, to);
        }
        let is_older = |other: &Mark| other.first < mark.recorded && other.stream != mark.stream;
        let has_caught_up = to < mark.recorded + CAUGHT_UP && !self.marks.iter().any(is_older);
        if let Some(in_front) = mark.in_front.and_then(|event| io.context.passed(event)) {
            let before = self.bases[base].distance(io, in_front);
            let lag = if has_caught_up { LAUNCHING } else { 0 };
            self.pace.sampled(distance.saturating_sub(before) + lag);
        }
        self.has_gaps |= has_caught_up && mark.launches > 1;
        self.has_caught_up = has_caught_up;
        self.ended(io, mark.launches, to);
    }

    /// The busy time did not begin with the launch but when the GPU passed the event in front of it.
    fn begun_at(&mut self, io: &mut Io<'_>, begin: Recorded, to: Ns) {
        let Some(passed) = io.context.passed(begin.event) else {
            return;
        };
        let base = &mut self.bases[begin.base];
        let at = base.distance(io, passed) + base.latest;
        self.busy = self.busy.map(|busy| busy.max(at.min(to)));
    }

    // === the window

    /// Returns how many launches may be in flight.
    pub(super) fn room(&self, now: Ns) -> u32 {
        let config = &self.config;
        let (most, ahead) = if self.is_capped(now) {
            let part = self.entry.weight * config.most_capped / 100_000;
            (part.max(LEAST_CAPPED), config.ahead_capped)
        } else if self.is_alone {
            (WIDEST, config.ahead_alone)
        } else {
            let part = self.entry.weight * 4 / 3 / 1000;
            let ahead = if self.is_rank(now) {
                config.ahead_ranks
            } else {
                config.ahead
            };
            (part.clamp(16.min(config.most), config.most), ahead)
        };
        let deep = match ahead.checked_div(self.pace.mean) {
            Some(fit) => {
                let processes = Ns::from(1 + self.siblings);
                let are_many = processes > 2 && 2 * self.pace.mean * processes > TWO_EACH;
                let least = if are_many || self.pace.least > LONG { 1 } else { 2 };
                // Alone, processes need not leave room for each other.
                let each = if self.is_alone { fit } else { fit / processes };
                each.clamp(least, Ns::from(WIDEST)) as u32
            }
            None if self.is_capped(now) => 1,
            None => 2,
        };
        self.window.min(most).min(deep).max(1)
    }

    /// Returns how many more launches may be in flight.
    pub(super) fn free_room(&self, now: Ns) -> u32 {
        self.room(now).saturating_sub(self.in_flight)
    }

    /// Returns true if the share has had turns on several GPUs at once lately.
    pub(super) fn is_rank(&self, now: Ns) -> bool {
        self.sibling_at != 0 && now < self.sibling_at + SHARED
    }

    /// Launches were acknowledged: the window is twice as wide.
    pub(super) fn widen(&mut self, launches: u32) {
        self.window = (2 * self.window).min(WIDEST);
        self.in_flight = self.in_flight.saturating_sub(launches);
    }

    // === how long what is in flight takes

    /// Returns how much longer what this process has in flight takes.
    pub(super) fn own_left(&self, now: Ns) -> Ns {
        if self.in_flight == 0 {
            return 0;
        }
        let each = match self.pace.mean {
            0 => UNKNOWN,
            mean => mean * Ns::from(1 + self.siblings),
        };
        let since = self.busy.unwrap_or(now).max(self.charged_to);
        let left = (Ns::from(self.in_flight) * each).saturating_sub(now.saturating_sub(since));
        left.max(LEAST_LEFT)
    }

    pub(super) fn share_in_flight(&self, io: &Io<'_>) -> InFlight {
        let (now, page) = (io.now, io.page);
        let others = || account::at_work(page, now).filter(|work| work.cell != self.cell);
        let since = others().map(|work| work.since).chain(self.busy).min();
        let covered = page.covered.load(Relaxed);
        let ran = |since: Ns| now.saturating_sub(since.max(covered));
        let left = others().map(|work| work.estimated.saturating_sub(ran(work.since)));
        InFlight {
            ran: since.map_or(0, ran),
            left: left.max().unwrap_or(0).max(self.own_left(now)),
        }
    }

    /// Returns when the oldest launch was made that is not known to have ended.
    pub(super) fn oldest(&self) -> Option<Ns> {
        let open = self.streams.iter().filter(|stream| stream.open > 0);
        let firsts = open.map(|stream| stream.since);
        self.marks.iter().map(|mark| mark.first).chain(firsts).min()
    }

    /// Returns true if what is in flight has taken far longer than it should.
    pub(super) fn is_late(&self, now: Ns, left: Ns) -> bool {
        self.oldest().is_some_and(|first| first + 4 * left + 10 * MS < now)
    }
}

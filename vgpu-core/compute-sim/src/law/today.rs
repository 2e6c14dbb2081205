//! The law of today: `vgpu_core::compute`, called as `vgpu_core::arbiter` calls it, with that module's credit and events.
//! Its CPU costs are about those of docs/benchmarks.md.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

use vgpu_abi::arbitration::{CELLS, Entry, SlotPage};
use vgpu_core::compute::account;
use vgpu_core::compute::estimate::Shape;
use vgpu_core::compute::flight::{LEAST_LAUNCH, Mark, Stream};
use vgpu_core::compute::limiter::{Decision, Limiter};

use super::events::Base;
use super::io::{Answer, Io, Law, Living};
use crate::{MS, Ns};

/// CPU: a launch on credit.
const ON_CREDIT: Ns = 65;
/// CPU: what a launch that asks takes besides.
const ASKS: Ns = 400;
/// CPU: before and after a wait.
const WAITS: Ns = 200;
/// A credit that is older is void: the clock of `arbiter::credit` is a coarse one.
const CREDIT_LASTS: Ns = 6 * MS;

/// When the GPU began a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Event(usize),
    /// When the chunk before it in its stream ended.
    Previous,
    Clock(Ns),
}

/// A chunk behind which an event was recorded.
#[derive(Debug)]
struct Pending {
    mark: Mark,
    stream: usize,
    from: From,
    end: usize,
    recorded: Ns,
    base: usize,
}

/// A base event, and when it is taken to have been passed.
#[derive(Debug)]
struct PlacedBase {
    base: Base,
    at: Ns,
}

/// Launches on credit that the limiter does not know of yet.
#[derive(Debug)]
struct Passed {
    stream: usize,
    shape: u64,
    launches: u32,
}

#[derive(Debug)]
pub(crate) struct Today {
    limiter: Limiter,
    bases: Vec<PlacedBase>,
    /// By stream, how its open chunk began.
    begun: Vec<(usize, From)>,
    pending: VecDeque<Pending>,
    /// Work that may be launched without asking, and until when.
    credit: Ns,
    credit_until: Ns,
    /// The streams in which it may be launched.
    open: Vec<usize>,
    passed: Vec<Passed>,
}

impl Today {
    /// The process takes a cell of its share's page, if one is free or its owner is dead.
    pub(super) fn new(page: &SlotPage, living: &Living, owner: u64, entry: Entry, now: Ns) -> Self {
        let is_free = |cell: &usize| {
            let owner = page.cells[*cell].owner.load(Relaxed);
            owner == 0 || living.is_dead(owner)
        };
        let cell = (0..CELLS).find(is_free);
        if let Some(cell) = cell {
            account::bury(page, entry.weight, &page.cells[cell], now);
            page.cells[cell].owner.store(owner, Relaxed);
        }
        Self {
            limiter: Limiter::new(cell.unwrap_or(usize::MAX), entry),
            bases: Vec::new(),
            begun: Vec::new(),
            pending: VecDeque::new(),
            credit: 0,
            credit_until: 0,
            open: Vec::new(),
            passed: Vec::new(),
        }
    }

    // === credit (arbiter::credit)

    /// Returns true if a launch goes on credit.
    fn take_credit(&mut self, now: Ns, stream: usize, shape: u64) -> bool {
        let Some(estimate) = self.limiter.estimate(Shape(shape)) else {
            return false;
        };
        let cost = estimate.max(LEAST_LAUNCH);
        if !self.open.contains(&stream) || self.credit < cost || now > self.credit_until {
            return false;
        }
        self.credit -= cost;
        match self
            .passed
            .iter_mut()
            .find(|passed| (passed.stream, passed.shape) == (stream, shape))
        {
            Some(passed) => passed.launches += 1,
            None => self.passed.push(Passed {
                stream,
                shape,
                launches: 1,
            }),
        }
        true
    }

    fn count_passed(&mut self, now: Ns) {
        for passed in self.passed.drain(..) {
            self.limiter
                .passed(now, of(passed.stream), Shape(passed.shape), passed.launches);
        }
    }

    fn withdraw(&mut self) {
        self.credit = 0;
        self.open.clear();
    }

    fn close(&mut self, stream: usize) {
        self.open.retain(|open| *open != stream);
    }

    // === events (arbiter::events)

    fn record(&mut self, io: &mut Io<'_>, stream: usize) -> usize {
        if self.bases.last().is_none_or(|placed| placed.base.is_old(io.now)) {
            let base = Base::record(io, stream);
            self.bases.push(PlacedBase { base, at: io.now });
        }
        io.record(stream)
    }

    fn begin(&mut self, io: &mut Io<'_>, stream: usize) {
        if self.limiter.is_open(of(stream)) {
            return;
        }
        let from = if self.pending.iter().any(|pending| pending.stream == stream) {
            From::Previous
        } else {
            From::Event(self.record(io, stream))
        };
        self.begun.retain(|(begun, _)| *begun != stream);
        self.begun.push((stream, from));
    }

    fn end(&mut self, io: &mut Io<'_>, mark: Mark, stream: usize) {
        let at = self.begun.iter().position(|(begun, _)| *begun == stream);
        let from = at.map_or(From::Clock(io.now), |at| self.begun.swap_remove(at).1);
        let end = self.record(io, stream);
        self.pending.push_back(Pending {
            mark,
            stream,
            from,
            end,
            recorded: io.now,
            base: self.bases.len() - 1,
        });
    }

    fn end_all(&mut self, io: &mut Io<'_>) {
        for (stream, mark) in self.limiter.holds(io.now, |_| true) {
            self.end(io, mark, stream.0 as usize - 1);
        }
    }

    /// Reads the events that were reached, each stream's in order.
    fn poll(&mut self, io: &mut Io<'_>) {
        let mut waiting: Vec<usize> = Vec::new();
        let mut at = 0;
        while at < self.pending.len() {
            let Pending { stream, end, .. } = self.pending[at];
            let reached = if waiting.contains(&stream) { None } else { io.query(end) };
            let Some(passed) = reached else {
                waiting.push(stream);
                at += 1;
                continue;
            };
            let Some(pending) = self.pending.remove(at) else { return };
            let (from, to) = self.measure(io, &pending, passed);
            self.follow(stream, to);
            self.limiter.finished(&io.pages, io.now, pending.mark, from.min(to), to);
        }
    }

    fn measure(&mut self, io: &mut Io<'_>, pending: &Pending, passed: Ns) -> (Ns, Ns) {
        let placed = &mut self.bases[pending.base];
        let end = placed.base.distance(io, passed);
        let (earliest, latest) = (pending.recorded.saturating_sub(end), io.now.saturating_sub(end));
        placed.at = placed.at.max(earliest).min(latest);
        let to = placed.at + end;
        let from = match pending.from {
            From::Event(event) => {
                let passed = io.context.passed(event).unwrap_or(passed);
                placed.at + placed.base.distance(io, passed)
            }
            From::Clock(at) => at,
            From::Previous => to,
        };
        (from, to)
    }

    /// The chunk behind one that ended at `to` began then.
    fn follow(&mut self, stream: usize, to: Ns) {
        let pending = self.pending.iter_mut().find(|pending| pending.stream == stream);
        let begun = self.begun.iter_mut().find(|(begun, _)| *begun == stream);
        let next = pending.map(|pending| &mut pending.from).or(begun.map(|(_, from)| from));
        if let Some(from) = next.filter(|from| **from == From::Previous) {
            *from = From::Clock(to);
        }
    }
}

fn of(stream: usize) -> Stream {
    Stream(stream as u64 + 1)
}

impl Law for Today {
    fn ask(&mut self, io: &mut Io<'_>, stream: usize, shape: u64, asked: Ns) -> Answer {
        io.cost += ON_CREDIT;
        if self.take_credit(io.now, stream, shape) {
            return Answer::Go;
        }
        io.cost += ASKS;
        self.count_passed(io.now);
        let ended = if self.limiter.is_due(Shape(shape)) {
            self.limiter.waits_for(io.now, of(stream))
        } else {
            self.limiter.end_full(io.now, of(stream))
        };
        if let Some(mark) = ended {
            self.close(stream);
            self.end(io, mark, stream);
        }
        self.poll(io);
        if io.pages.slots.len() > 1 {
            io.cost += io.hardware.look;
        }
        match self.limiter.ask(&io.pages, io.now, Shape(shape), asked, io.sibling) {
            Decision::Go => {
                self.begin(io, stream);
                Answer::Go
            }
            Decision::Wait(wait) => {
                self.withdraw();
                self.end_all(io);
                Answer::Wait {
                    until: wait.until,
                    on: wait.on,
                    spins: false,
                }
            }
        }
    }

    fn launched(&mut self, io: &mut Io<'_>, stream: usize, shape: u64) {
        let is_on_credit = |passed: &Passed| (passed.stream, passed.shape) == (stream, shape);
        if self.passed.iter().any(is_on_credit) {
            return;
        }
        if let Some(mark) = self.limiter.launched(&io.pages, io.now, of(stream), Shape(shape)) {
            self.close(stream);
            self.end(io, mark, stream);
        } else if self.limiter.estimate(Shape(shape)).is_some() {
            self.open.push(stream);
            self.credit = self.limiter.credit(&io.pages, io.now, of(stream));
            self.credit_until = io.now + CREDIT_LASTS;
        }
    }

    fn before_wait(&mut self, io: &mut Io<'_>, scope: Option<usize>) {
        io.cost += WAITS;
        self.count_passed(io.now);
        match scope {
            Some(stream) => {
                self.close(stream);
                if let Some(mark) = self.limiter.waits_for(io.now, of(stream)) {
                    self.end(io, mark, stream);
                }
            }
            None => {
                self.withdraw();
                self.end_all(io);
            }
        }
    }

    fn after_wait(&mut self, io: &mut Io<'_>, _scope: Option<usize>) {
        io.cost += WAITS;
        self.count_passed(io.now);
        self.poll(io);
        if self.limiter.is_idle() {
            self.withdraw();
        }
        if self.limiter.waited(&io.pages, io.now) {
            io.cost += io.hardware.rouse;
        }
    }

    /// Its work in flight stays recorded in its cell until another process takes the cell.
    fn exit(&mut self, _io: &mut Io<'_>) {}
}

//! The limiter, `vgpu_core::compute::limiter`, called as `vgpu_core::arbiter` calls it. The CPU times of its calls are
//! estimates.

use std::sync::atomic::Ordering::Relaxed;

use vgpu_abi::arbitration::{Cell, Entry};
use vgpu_core::compute::limiter::call::{Answer, Call, Process, Recorded};
use vgpu_core::compute::limiter::{Limiter, Scope, Stream, Waiting};

use super::events::Base;
use super::io::Io;
use crate::Ns;

/// CPU time of a launch within the budget, of a launch that asks the limiter, and of a wait that needs no work by the
/// limiter.
const WITHIN_BUDGET: Ns = 12;
const ASKS: Ns = 250;
const QUIET_WAIT: Ns = 25;

#[derive(Debug)]
pub(crate) struct Limited {
    limiter: Limiter,
    bases: Vec<Base>,
    /// Launches that are allowed without asking the limiter.
    budget: u32,
    /// Launches within the budget that were not reported yet, by stream.
    passed: Vec<(usize, u32)>,
    /// The current launch is within the budget.
    is_within_budget: bool,
    /// Waits that have not returned, with their streams.
    waiting: Vec<(Option<usize>, Waiting)>,
}

impl Limited {
    pub(crate) fn new(owner: u64, entry: Entry) -> Self {
        Self {
            limiter: Limiter::new(owner, entry),
            bases: Vec::new(),
            budget: 0,
            passed: Vec::new(),
            is_within_budget: false,
            waiting: Vec::new(),
        }
    }

    fn report_passed(&mut self, now: Ns) {
        for (stream, launches) in self.passed.drain(..) {
            self.limiter.passed(now, of(stream), launches);
        }
    }

    fn with_limiter<T>(&mut self, io: &mut Io<'_>, ask: impl FnOnce(&mut Limiter, &mut Call<'_>) -> T) -> T {
        self.report_passed(io.now);
        let (now, pages, page, sibling) = (io.now, io.pages, io.page, io.sibling);
        let bases = &mut self.bases;
        let mut call = Call {
            now,
            pages,
            page,
            process: &mut Simulated { io, bases },
            sibling,
        };
        ask(&mut self.limiter, &mut call)
    }

    /// Decides whether this launch may start. It has been waiting since `asked`.
    pub(crate) fn ask(&mut self, io: &mut Io<'_>, stream: usize, asked: Ns) -> Answer {
        io.cost += WITHIN_BUDGET;
        self.is_within_budget = self.budget > 0;
        if self.is_within_budget {
            self.budget -= 1;
            match self.passed.iter_mut().find(|(passed, _)| *passed == stream) {
                Some((_, launches)) => *launches += 1,
                None => self.passed.push((stream, 1)),
            }
            return Answer::Go;
        }
        if self.limiter.needs_no_look(io.now) {
            io.cost += QUIET_WAIT;
            return Answer::Go;
        }
        io.cost += ASKS;
        if io.pages.slots.len() > 1 {
            io.cost += io.hardware.look;
        }
        self.with_limiter(io, |limiter, call| limiter.ask(call, of(stream), asked))
    }

    pub(crate) fn launched(&mut self, io: &mut Io<'_>, stream: usize) {
        if !self.is_within_budget {
            self.budget = self.with_limiter(io, |limiter, call| limiter.launched(call, of(stream)));
        }
    }

    /// A thread is about to wait for a stream, or for all.
    pub(crate) fn before_wait(&mut self, io: &mut Io<'_>, scope: Option<usize>) {
        io.cost += QUIET_WAIT;
        let recorded = io.context.recorded;
        let wait = self.with_limiter(io, |limiter, call| {
            limiter.before_wait(call, scope.map_or(Scope::All, |stream| Scope::Stream(of(stream))))
        });
        self.waiting.push((scope, wait));
        if io.context.recorded != recorded {
            io.cost += ASKS / 2;
        }
    }

    pub(crate) fn after_wait(&mut self, io: &mut Io<'_>, scope: Option<usize>) {
        io.cost += QUIET_WAIT;
        let Some(at) = self.waiting.iter().position(|(of, _)| *of == scope) else {
            return;
        };
        let (_, wait) = self.waiting.remove(at);
        let wake = io.page.wake.load(Relaxed);
        let was_asked = self.with_limiter(io, |limiter, call| limiter.after_wait(call, wait));
        if was_asked {
            io.cost += ASKS / 2;
        }
        if io.page.wake.load(Relaxed) != wake {
            io.cost += io.hardware.rouse;
        }
        // The next launch starts a busy period, so the clock must be read.
        if was_asked || self.limiter.is_idle() {
            self.budget = 0;
        }
    }

    /// The process exits normally.
    pub(crate) fn exit(&mut self, io: &mut Io<'_>) {
        self.with_limiter(io, |limiter, call| limiter.exit(call));
    }
}

fn of(stream: usize) -> Stream {
    Stream(stream as u64)
}

/// Implements the interface through which the limiter uses a process.
struct Simulated<'a, 'b> {
    io: &'a mut Io<'b>,
    bases: &'a mut Vec<Base>,
}

impl Process for Simulated<'_, '_> {
    fn record(&mut self, stream: Stream) -> Recorded {
        let stream = stream.0 as usize;
        if self.bases.last().is_none_or(|base| base.is_old(self.io.now)) {
            self.bases.push(Base::record(self.io, stream));
        }
        Recorded::Event(self.io.record(stream))
    }

    fn passed(&mut self, event: usize) -> Option<Ns> {
        let passed = self.io.query(event)?;
        let base = self.bases.iter_mut().rfind(|base| base.is_before(event))?;
        let distance = base.distance(self.io, passed);
        Some((base.latest + distance).min(self.io.now))
    }

    fn between(&mut self, front: usize, behind: usize) -> Option<Ns> {
        self.io.cost += self.io.hardware.elapsed;
        let (front, behind) = (self.io.context.passed(front)?, self.io.context.passed(behind)?);
        Some(behind.saturating_sub(front))
    }

    fn release(&mut self, _event: usize) {}

    fn is_dead(&self, owner: u64, _cell: &Cell) -> bool {
        self.io.living.is_dead(owner)
    }
}

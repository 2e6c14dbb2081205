//! The GPU: one context at a time, in slices; a context's kernels in order.

use std::collections::VecDeque;

use crate::{MS, Ns, US};

/// What the hardware and the operating system take.
#[derive(Clone, Copy, Debug)]
pub struct Hardware {
    /// How long a context runs while others have work.
    pub slice: Ns,
    /// The change from one context to another.
    pub switch: Ns,
    /// The CPU's time for a launch.
    pub launch: Ns,
    /// From the end of the work to the return of a wait.
    pub wait: Ns,
    /// From a wake-up, or the end of a sleep, to the thread that runs.
    pub wake: Ns,
    /// Launches that a context queues before a further one blocks.
    pub depth: usize,
}

impl Default for Hardware {
    fn default() -> Self {
        Self {
            slice: 2 * MS,
            switch: 100 * US,
            launch: 4 * US,
            wait: 8 * US,
            wake: 60 * US,
            depth: 1024,
        }
    }
}

/// Work in a context's queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub left: Ns,
    pub submitted: Ns,
    /// The event behind it.
    pub mark: Option<u64>,
    /// Its number among its context's launches, and its handshakes with the partner.
    pub number: u64,
    pub handshakes: u32,
    /// It is the first of its chunk, in front of which an event was recorded.
    pub first: bool,
}

/// A chunk's event that the GPU has reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reached {
    pub mark: u64,
    pub from: Ns,
    pub to: Ns,
}

#[derive(Debug, Default)]
pub(crate) struct Context {
    pub gpu: usize,
    pub queue: VecDeque<Work>,
    /// Events that were reached and not read.
    pub reached: VecDeque<Reached>,
    /// When the event in front of the running chunk was passed.
    pub(crate) chunk_from: Ns,
    pub(crate) previous_end: Ns,
    /// The handshake that it has come to: kernel, stage.
    pub stage: (u64, u32),
    pub partner: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Switch(usize),
    Run { since: Ns },
}

#[derive(Debug)]
pub(crate) struct Gpu {
    state: State,
    current: Option<usize>,
    slice_start: Ns,
    /// An event of an older generation is void.
    pub generation: u64,
    pub switches: u64,
}

/// What happened at a look at the GPU.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The context that ran, from when to when.
    pub ran: Option<(usize, Ns, Ns)>,
    /// Its kernel ended.
    pub ended: bool,
    /// When to look again.
    pub next: Option<Ns>,
}

/// How often a kernel looks for its partner's handshake.
const POLL: Ns = 5 * US;

impl Gpu {
    pub(crate) fn new() -> Self {
        Self {
            state: State::Idle,
            current: None,
            slice_start: 0,
            generation: 0,
            switches: 0,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.state == State::Idle
    }

    /// Brings the GPU to `now`. `own` is its number.
    pub(crate) fn advance(&mut self, own: usize, contexts: &mut [Context], now: Ns, hardware: &Hardware) -> Progress {
        let mut progress = Progress::default();
        match self.state {
            State::Switch(to) => {
                self.current = Some(to);
                self.slice_start = now;
                self.state = State::Idle;
            }
            State::Run { since } => {
                if let Some(current) = self.current {
                    progress.ran = Some((current, since, now));
                    progress.ended = run(contexts, current, since, now);
                    self.state = State::Run { since: now };
                }
            }
            State::Idle => {}
        }
        progress.next = self.pick(own, contexts, now, hardware);
        progress
    }

    /// A launch into a queue that was empty. Returns None while a switch is under way, which looks again itself.
    pub(crate) fn arrival(
        &mut self,
        own: usize,
        contexts: &mut [Context],
        now: Ns,
        hardware: &Hardware,
    ) -> Option<Progress> {
        (!matches!(self.state, State::Switch(_))).then(|| self.advance(own, contexts, now, hardware))
    }

    fn pick(&mut self, own: usize, contexts: &[Context], now: Ns, hardware: &Hardware) -> Option<Ns> {
        self.generation += 1;
        let count = contexts.len();
        let has_work = |context: usize| contexts[context].gpu == own && !contexts[context].queue.is_empty();
        let after = self.current.map_or(0, |current| current + 1);
        let other = (0..count)
            .map(|step| (after + step) % count)
            .find(|context| Some(*context) != self.current && has_work(*context));
        if let Some(current) = self.current.filter(|current| has_work(*current)) {
            if other.is_none() {
                self.slice_start += (now - self.slice_start) / hardware.slice * hardware.slice;
            }
            if other.is_none() || now < self.slice_start + hardware.slice {
                self.state = State::Run { since: now };
                let work = contexts[current].queue[0];
                let length = if work.left > 0 { work.left } else { POLL };
                let mut until = now + length;
                if other.is_some() {
                    until = until.min(self.slice_start + hardware.slice);
                }
                return Some(until.max(now + 1));
            }
        }
        let Some(other) = other else {
            self.state = State::Idle;
            return None;
        };
        self.state = State::Switch(other);
        self.switches += 1;
        Some(now + if self.current.is_some() { hardware.switch } else { 0 })
    }
}

/// Runs the first kernel of a context. Returns true if it ended.
fn run(contexts: &mut [Context], current: usize, since: Ns, now: Ns) -> bool {
    let partner_stage = contexts[current].partner.map(|partner| contexts[partner].stage);
    let context = &mut contexts[current];
    let Some(work) = context.queue.front_mut() else {
        return false;
    };
    if work.first {
        work.first = false;
        // The event in front of it is passed when what was before it has ended, or when the context runs.
        context.chunk_from = if work.submitted < context.previous_end {
            context.previous_end
        } else {
            since
        };
    }
    let had_left = work.left > 0;
    work.left = work.left.saturating_sub(now - since);
    if work.left > 0 {
        return false;
    }
    if work.handshakes > 0 {
        if had_left {
            context.stage = (work.number, 1);
        }
        let (_, stage) = context.stage;
        let is_answered = partner_stage.is_some_and(|partner| partner >= (work.number, stage));
        if is_answered {
            context.stage = (work.number, stage + 1);
        }
        if !is_answered || stage < work.handshakes {
            return false;
        }
    }
    if let Some(mark) = work.mark {
        context.reached.push_back(Reached {
            mark,
            from: context.chunk_from,
            to: now,
        });
    }
    context.previous_end = now;
    context.queue.pop_front();
    true
}

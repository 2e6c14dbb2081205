//! What the GPUs do from one moment to the next: one context at a time, in slices.
//!
//! - Contexts with work take turns, in the order of their queues' numbers, for a slice each. A context without work
//!   gives way at once. Changing to another context takes a switch, but not after the GPU was idle, or if the same
//!   context continues. A kernel continues where its last slice ended.
//! - A context runs its queue in order, apart from work of different streams that fits on the GPU at once (see `run`).
//! - A piece of work that has to wait for another queue also holds back everything that is behind it in its own queue.
//!   If nothing else runs, the context has no work until then.
//!
//! `advance` works on a copy of the words and changes nothing; `changes` returns what has to be written. Both are pure:
//! the clock is an argument, and the same words give the same result.
//!
//! How it fails: words that were read while another process changed them, or a damaged file, give a wrong schedule, but
//! no endless loop and no panic. The journal refuses changes computed from words that have changed since.

mod run;

use std::sync::atomic::Ordering::Acquire;

use super::journal::Change;
use super::usage;
use super::words::{DEPTH, MAX_QUEUES, Name, RECORDS, Ticket, Words, owner};
use run::{Bounds, Run};

/// Settings of the profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// How long a context runs while others have work.
    pub slice: u64,
    /// The time of a change from one context to another.
    pub switch: u64,
    /// A context that is switched out does not report what has ended (see [`Schedule::hides`]).
    pub late_events: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Runs,
    /// Is switching to this queue until that time.
    Switches(usize, u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gpu {
    /// The queue whose context ran last, or is running now.
    resident: Option<usize>,
    state: State,
    slice_start: u64,
}

/// More changes than all queues together can need.
const FORESEEN: usize = 16 * MAX_QUEUES * DEPTH as usize;

/// A queue in use.
struct Context<'a> {
    queue: usize,
    place: usize,
    gpu: usize,
    since: u64,
    run: Run<'a>,
}

/// Times of all GPUs together.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Spent {
    pub ran: u64,
    pub switching: u64,
    pub idle: u64,
}

/// A copy of the shared words at one moment, which `advance` brings to a later one.
pub struct Schedule<'a> {
    words: Words<'a>,
    pace: Pace,
    pub at: u64,
    gpus: Vec<Gpu>,
    contexts: Vec<Context<'a>>,
    pub spent: Spent,
    before: Before,
    stamps: Vec<Change>,
}

/// The words as they were read.
struct Before {
    at: u64,
    /// Of each GPU: turn, start of the slice, end of the switch.
    turns: Vec<[u64; 3]>,
    /// Of each context: done, executed, since.
    contexts: Vec<[u64; 3]>,
}

/// The state of a context after one run without interruption.
struct Reach<'a> {
    index: usize,
    until: u64,
    run: Run<'a>,
    stamps: Vec<Change>,
}

const FIELD: u64 = 0xfff;

impl Gpu {
    fn read([turn, slice_start, switch_end]: [u64; 3]) -> Self {
        let queue = |shift: u32| ((turn >> shift & FIELD) as usize).checked_sub(1);
        let state = match (turn >> 24 & 3, queue(12)) {
            (1, _) => State::Runs,
            (2, Some(next)) => State::Switches(next, switch_end),
            _ => State::Idle,
        };
        Self {
            resident: queue(0),
            state,
            slice_start,
        }
    }

    /// The turn's word that follows `word`.
    fn turn(&self, word: u64) -> u64 {
        let (state, next) = match self.state {
            State::Idle => (0, 0),
            State::Runs => (1, 0),
            State::Switches(next, _) => (2, next as u64 + 1),
        };
        ((word >> 26) + 1) << 26 | state << 24 | next << 12 | self.resident.map_or(0, |queue| queue as u64 + 1)
    }

    fn running(&self) -> Option<usize> {
        self.resident.filter(|_| self.state == State::Runs)
    }
}

impl<'a> Schedule<'a> {
    pub fn read(words: Words<'a>, pace: Pace) -> Self {
        let at = words.at.load(Acquire);
        let turns: Vec<[u64; 3]> = words
            .gpus
            .iter()
            .map(|gpu| [&gpu.turn, &gpu.slice_start, &gpu.switch_end].map(|word| word.load(Acquire)))
            .collect();
        let high = (words.high_water.load(Acquire) as usize).min(words.queues.len());
        let contexts: Vec<Context<'_>> = words.owners[..high]
            .iter()
            .enumerate()
            .filter_map(|(queue, word)| {
                let owner = owner::of(word.load(Acquire)).filter(|owner| owner.gpu < turns.len())?;
                Some(Context {
                    queue,
                    place: owner.place,
                    gpu: owner.gpu,
                    since: words.queues[queue].since.load(Acquire),
                    run: Run::read(&words.queues[queue], queue),
                })
            })
            .collect();
        let before = contexts
            .iter()
            .map(|context| [context.run.done, context.run.executed, context.since]);
        let before = Before {
            at,
            contexts: before.collect(),
            turns,
        };
        Self {
            words,
            pace,
            at,
            gpus: before.turns.iter().copied().map(Gpu::read).collect(),
            contexts,
            spent: Spent::default(),
            before,
            stamps: Vec::new(),
        }
    }

    fn index(&self, queue: usize) -> Option<usize> {
        self.contexts.binary_search_by_key(&queue, |context| context.queue).ok()
    }

    fn context(&self, queue: usize) -> Option<&Context<'a>> {
        self.index(queue).map(|at| &self.contexts[at])
    }

    fn is_done(&self, ticket: Ticket) -> bool {
        match self.context(ticket.queue) {
            Some(context) => context.run.is_done(ticket.number),
            None => ticket.is_done(self.words),
        }
    }

    /// When a queue has work that can run; None: not before other work ends or is launched.
    fn ready_at(&self, context: &Context<'_>) -> Option<u64> {
        if !context.run.running.is_empty() {
            return Some(self.at);
        }
        let front = context.run.front()?;
        let ready = context.run.front_after().is_none_or(|ticket| self.is_done(ticket));
        ready.then(|| front.max(self.at))
    }

    fn is_ready(&self, context: &Context<'_>) -> bool {
        self.ready_at(context) == Some(self.at)
    }

    /// Returns the next context with work, in turn; the resident one comes last.
    fn next_ready(&self, number: usize, gpu: &Gpu) -> Option<usize> {
        let after = gpu.resident.map_or(0, |queue| queue + 1);
        let split = self.contexts.partition_point(|context| context.queue < after);
        let (first, then) = self.contexts.split_at(split);
        let mut round = then.iter().chain(first).filter(|context| context.gpu == number);
        round
            .find(|context| self.is_ready(context))
            .map(|context| context.queue)
    }

    /// Decides what a GPU does next.
    fn decide(&self, number: usize) -> Gpu {
        let mut gpu = self.gpus[number];
        if let State::Switches(next, end) = gpu.state {
            if self.at < end {
                return gpu;
            }
            (gpu.resident, gpu.slice_start, gpu.state) = (Some(next), self.at, State::Runs);
        }
        let next = self.next_ready(number, &gpu);
        if let Some(resident) = gpu.running() {
            let other = next.filter(|next| *next != resident);
            let context = self.context(resident).filter(|context| context.gpu == number);
            let ready = context.is_some_and(|context| self.is_ready(context));
            let expired = self.at >= gpu.slice_start.saturating_add(self.pace.slice)
                && context.is_none_or(|context| context.run.first_end() != Some(0));
            gpu.state = match other {
                Some(other) if expired || !ready => State::Switches(other, self.at.saturating_add(self.pace.switch)),
                _ if ready => State::Runs,
                _ => State::Idle,
            };
        } else if let Some(next) = next {
            (gpu.resident, gpu.slice_start, gpu.state) = (Some(next), self.at, State::Runs);
        }
        gpu
    }

    /// Returns whether another context than the running one has work and, if not, when one will.
    fn others(&self, number: usize, resident: usize) -> (bool, u64) {
        let others = self
            .contexts
            .iter()
            .filter(|context| context.gpu == number && context.queue != resident);
        let first = others.filter_map(|context| self.ready_at(context)).min();
        (first == Some(self.at), first.unwrap_or(u64::MAX))
    }

    /// Numbers of a queue's entries that other queues wait for.
    fn awaited(&self, queue: usize) -> Vec<u64> {
        let tickets = self.contexts.iter().flat_map(|other| other.run.awaits());
        tickets
            .filter(|ticket| ticket.queue == queue && !self.is_done(*ticket))
            .map(|ticket| ticket.number)
            .collect()
    }

    /// Runs a GPU's context until the first of these: `limit`, the end of its slice, the end of its work, the end of an
    /// entry for which another queue waits, or `budget` records. None: no context runs.
    fn reach(&self, number: usize, limit: u64, budget: usize) -> Option<Reach<'a>> {
        let gpu = &self.gpus[number];
        let index = gpu.running().and_then(|queue| self.index(queue))?;
        let Context { queue, run, .. } = &self.contexts[index];
        let slice_end = gpu.slice_start.saturating_add(self.pace.slice);
        let (closes, others) = match self.others(number, *queue) {
            (true, _) => (slice_end, slice_end),
            (false, first) => (u64::MAX, first),
        };
        let bounds = Bounds {
            from: self.at,
            limit: limit.min(others),
            closes,
            budget,
            is_done: |ticket| self.is_done(ticket),
            awaited: &self.awaited(*queue),
        };
        let (mut run, mut stamps, queue) = (run.clone(), Vec::new(), *queue);
        let until = run.advance(&bounds, |entry, old, new| {
            let name = Name::When { queue, entry };
            stamps.push(Change { name, old, new });
        });
        Some(Reach {
            index,
            until,
            run,
            stamps,
        })
    }

    /// Returns the next moment at which something changes on a GPU, at most `now`, and its context's state at that
    /// moment.
    fn next(&self, number: usize, now: u64, budget: usize) -> (u64, Option<Reach<'a>>) {
        let reach = self.reach(number, now, budget);
        let moment = match (self.gpus[number].state, &reach) {
            (State::Switches(_, end), _) => end,
            (State::Idle, _) => {
                let contexts = self.contexts.iter().filter(|context| context.gpu == number);
                let ready = contexts.filter_map(|context| self.ready_at(context));
                ready.min().unwrap_or(now)
            }
            (State::Runs, Some(reach)) => reach.until,
            (State::Runs, None) => now,
        };
        // Another process may have come further than now.
        (moment.min(now).max(self.at), reach)
    }

    /// Lets a GPU continue until `until`. `foreseen` is its context's state at the GPU's next change, and is used if
    /// that is at `until`. Returns the context's new state, which the caller applies after all GPUs have run: they work
    /// at the same time, so no GPU may see it earlier.
    fn run(&mut self, number: usize, until: u64, budget: usize, foreseen: Option<Reach<'a>>) -> Option<Reach<'a>> {
        let (gpu, length) = (self.gpus[number], until - self.at);
        let reach = match foreseen {
            Some(reach) if reach.until == until => Some(reach),
            Some(_) => self.reach(number, until, budget),
            None => None,
        };
        let Some(Reach { index, ref run, .. }) = reach else {
            match gpu.state {
                State::Switches(..) => self.spent.switching += length,
                _ => self.spent.idle += length,
            }
            return None;
        };
        let ran = run.executed - self.contexts[index].run.executed;
        self.spent.ran += ran;
        self.spent.idle += length.saturating_sub(ran);
        if !self.others(number, self.contexts[index].queue).0 {
            // With no other work, slices of the same context follow each other without a switch.
            let slices = (until - gpu.slice_start.min(until)) / self.pace.slice.max(1);
            self.gpus[number].slice_start = gpu.slice_start + slices * self.pace.slice;
        }
        reach
    }

    /// Advances to `now`, or as far as fits into one transaction and between two samples of usage.
    pub fn advance(&mut self, now: u64) {
        self.advance_within(now, (RECORDS - 1).saturating_sub(self.acts()[0]));
    }

    /// The same, with room for this many changes of words.
    fn advance_within(&mut self, now: u64, mut budget: usize) {
        let in_use = (0..self.gpus.len()).filter(|gpu| self.contexts.iter().any(|context| context.gpu == *gpu));
        let in_use = in_use.count().max(1);
        // Besides the entries, a step can change three words of a GPU, three of a queue and seven of a process's usage.
        // It can also change one entry more than its budget allows.
        let step = in_use * 15;
        let (mut foreseen, mut has_acted) = (Vec::with_capacity(self.gpus.len()), true);
        while budget > step {
            budget -= step;
            let mut is_same = true;
            for number in 0..self.gpus.len() {
                let next = self.decide(number);
                is_same &= next == self.gpus[number];
                self.arrives(number, &next);
                self.gpus[number] = next;
            }
            if self.at >= now && is_same && !has_acted {
                return;
            }
            let (share, [records, acts]) = (budget / in_use, self.acts());
            foreseen.extend((0..self.gpus.len()).map(|number| self.next(number, now, share)));
            let until = foreseen.iter().map(|(moment, _)| *moment).min().unwrap_or(now);
            for (number, (_, reach)) in foreseen.iter_mut().enumerate() {
                *reach = self.run(number, until, share, reach.take());
            }
            for Reach { index, run, stamps, .. } in foreseen.drain(..).filter_map(|(_, reach)| reach) {
                self.contexts[index].run = run;
                self.stamps.extend(stamps);
            }
            let after = self.acts();
            // There may be fewer records than before, if work ended that had begun since the words were read.
            budget = (budget + records).saturating_sub(after[0]);
            has_acted = acts != after[1];
            self.at = until;
            if self.at - self.before.at >= usage::SAMPLE_NS && self.spent.ran > 0 {
                return;
            }
        }
    }

    /// Records when a context starts to run on a GPU. Needed only for late events.
    fn arrives(&mut self, number: usize, next: &Gpu) {
        let arrived = next
            .running()
            .filter(|queue| self.gpus[number].running() != Some(*queue));
        if let Some(index) = arrived
            .and_then(|queue| self.index(queue))
            .filter(|_| self.pace.late_events)
        {
            self.contexts[index].since = self.at;
        }
    }

    /// How many changes of entries there are, and how often one has begun or ended.
    fn acts(&self) -> [usize; 2] {
        let runs = self.contexts.iter().map(|context| &context.run);
        runs.fold([0; 2], |[records, acts], run| [records + run.records, acts + run.acts])
    }

    /// Advances to `now` for a reader that writes nothing, so there may be more changes than fit into a transaction.
    /// Stops early only if the words are invalid.
    pub fn foresee(&mut self, now: u64) {
        let mut from = None;
        while self.at < now && from != Some(self.at) {
            from = Some(self.at);
            self.stamps.clear();
            self.advance_within(now, FORESEEN);
        }
    }

    /// Returns what has to be written.
    pub fn changes(&self) -> Vec<Change> {
        let mut list = self.stamps.clone();
        let mut change = |name, old, new| {
            if old != new {
                list.push(Change { name, old, new });
            }
        };
        for (place, gpu, ran) in self.ran() {
            usage::add(self.words, (place, gpu), [self.before.at, self.at], ran, &mut change);
        }
        for (before, context) in self.before.contexts.iter().zip(&self.contexts) {
            let ([done, executed, since], Context { run, .. }) = (before, context);
            let queue = context.queue;
            change(Name::Since { queue }, *since, context.since);
            for (entry, ends, stage) in run.stages() {
                let words = self.words.queues[queue].entry(entry);
                if let Some(ends) = ends {
                    change(Name::Ends { queue, entry }, words.ends.load(Acquire), ends);
                }
                // After the stamps, so that a reader who sees that an entry is done finds its stamp.
                change(Name::Stage { queue, entry }, words.stage.load(Acquire), stage);
            }
            change(Name::Executed { queue }, *executed, run.executed);
            // After the stamps as well.
            change(Name::Done { queue }, *done, run.done);
        }
        for (gpu, (before, now)) in self.before.turns.iter().zip(&self.gpus).enumerate() {
            let [turn, start, end] = *before;
            let old = Gpu::read(*before);
            if old != *now {
                change(Name::Turn { gpu }, turn, now.turn(turn));
            }
            change(Name::SliceStart { gpu }, start, now.slice_start);
            if let State::Switches(_, until) = now.state {
                change(Name::SwitchEnd { gpu }, end, until);
            }
        }
        change(Name::At, self.before.at, self.at);
        list
    }

    /// GPU time since the words were read: place, GPU, ns.
    fn ran(&self) -> Vec<(usize, usize, u64)> {
        let mut list: Vec<(usize, usize, u64)> = Vec::new();
        for (old, new) in self.before.contexts.iter().zip(&self.contexts) {
            let ran = new.run.executed - old[1];
            match list
                .iter_mut()
                .find(|(place, gpu, _)| (*place, *gpu) == (new.place, new.gpu))
            {
                _ if ran == 0 => {}
                Some(entry) => entry.2 += ran,
                None => list.push((new.place, new.gpu, ran)),
            }
        }
        list
    }

    /// Returns the GPU time that a place has had of a GPU, up to the schedule's moment.
    pub fn served(&self, place: usize, gpu: usize) -> u64 {
        let of = |entry: &&(usize, usize, u64)| (entry.0, entry.1) == (place, gpu);
        let ran = self.ran().iter().find(of).map_or(0, |entry| entry.2);
        usage::served(self.words, place, gpu).saturating_add(ran)
    }

    /// Returns the moment before which a ticket cannot end, if no process dies and no queue is closed.
    pub fn earliest(&self, ticket: Ticket) -> u64 {
        let Some(context) = self
            .context(ticket.queue)
            .filter(|context| !context.run.is_done(ticket.number) && ticket.number < context.run.pushed)
        else {
            return self.at;
        };
        let work = context.run.least(ticket.number);
        let Some(gpu) = self.gpus.get(context.gpu) else {
            return self.at;
        };
        if gpu.running() == Some(context.queue) {
            let (contended, _) = self.others(context.gpu, context.queue);
            let left = gpu.slice_start.saturating_add(self.pace.slice).saturating_sub(self.at);
            let more = work.saturating_sub(left).div_ceil(self.pace.slice.max(1));
            // After each slice, one switch to another context and one back.
            let switches = if contended {
                more.saturating_mul(2 * self.pace.switch)
            } else {
                0
            };
            return self.at.saturating_add(work).saturating_add(switches);
        }
        let start = match gpu.state {
            State::Switches(next, end) if next == context.queue => end,
            State::Switches(_, end) => end.saturating_add(self.pace.switch),
            State::Runs => self.change(context.gpu).saturating_add(self.pace.switch),
            State::Idle => self.at,
        };
        // Nothing can begin before the next change on any GPU, because the context may be waiting for that.
        start.saturating_add(work).max(self.first_change())
    }

    /// With `late_events`: returns true if the context's process cannot know yet that something ended at `stamp`,
    /// because its slice ended with work left and the context has not been on the GPU again.
    pub fn hides(&self, queue: usize, stamp: u64) -> bool {
        let Some(context) = self.context(queue).filter(|_| self.pace.late_events) else {
            return false;
        };
        let is_out = |gpu: &Gpu| gpu.resident != Some(queue) || matches!(gpu.state, State::Switches(..));
        self.gpus.get(context.gpu).is_some_and(is_out)
            && stamp >= context.since
            && context.run.front().is_some_and(|queued| queued <= stamp)
    }

    /// Returns the earliest moment at which a context can report an end that it hides. It may depend on any GPU's next
    /// change.
    pub fn tells(&self) -> u64 {
        self.first_change().max(self.at.saturating_add(1))
    }

    /// The next moment at which a GPU does something else, if nothing is launched meanwhile.
    fn change(&self, number: usize) -> u64 {
        self.next(number, u64::MAX, DEPTH as usize).0
    }

    fn first_change(&self) -> u64 {
        let changes = (0..self.gpus.len()).map(|number| self.change(number));
        changes.min().unwrap_or(self.at)
    }

    /// Returns the places of processes other than `own` that have work.
    pub fn workers(&self, own: usize) -> Vec<usize> {
        let others = self
            .contexts
            .iter()
            .filter(|context| context.place != own && context.run.front().is_some());
        let mut places: Vec<usize> = others.map(|context| context.place).collect();
        places.sort_unstable();
        places.dedup();
        places
    }
}

// Safe code and many steps: too slow under Miri, and nothing for it to find.
#[cfg(all(test, not(miri)))]
mod tests;

//! What the GPUs do from one moment to the next: one context at a time, in slices.
//!
//! - Contexts with work take turns, in the order of their queues' numbers, for a slice each. A context without work
//!   gives way at once. To change to another context takes a switch; the first one after the GPU was idle, or the
//!   same one again, costs none. A kernel goes on where its last slice ended.
//! - A context runs its queue in order, whatever the stream.
//! - A piece of work that has to wait for another queue's stops its whole queue, and the context has no work until then.
//!
//! `advance` works on a copy of the words and changes nothing; `changes` says what has to be written. Both are
//! pure: the clock is an argument, and the same words give the same answer.
//!
//! How it fails: words that were read while another process changed them, or a damaged file, give nonsense, but no
//! endless loop and no panic. The journal refuses what was made from words that have changed since.

use std::sync::atomic::Ordering::Acquire;

use super::journal::Change;
use super::usage;
use super::words::{DEPTH, Name, RECORDS, Ticket, Words, owner};

/// What the profile says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// How long a context runs while others have work.
    pub slice: u64,
    /// What a change from one context to another takes.
    pub switch: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Runs,
    /// To this queue, until then.
    Switches(usize, u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gpu {
    /// Whose context ran last; it does so still if the GPU runs.
    resident: Option<usize>,
    state: State,
    slice_start: u64,
}

/// A queue in use.
#[derive(Debug, Clone, Copy)]
struct Context {
    queue: usize,
    place: usize,
    gpu: usize,
    pushed: u64,
    done: u64,
    executed: u64,
}

/// What the GPUs did, summed over all of them.
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
    contexts: Vec<Context>,
    pub spent: Spent,
    before: Before,
    stamps: Vec<Change>,
}

/// The words as they were read.
struct Before {
    at: u64,
    /// Of each GPU: turn, start of the slice, end of the switch.
    turns: Vec<[u64; 3]>,
    contexts: Vec<Context>,
}

/// How far a queue comes in one go.
struct Reach {
    until: u64,
    done: u64,
    executed: u64,
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
        let contexts: Vec<Context> = words.owners[..high]
            .iter()
            .enumerate()
            .filter_map(|(queue, word)| {
                let owner = owner::of(word.load(Acquire)).filter(|owner| owner.gpu < turns.len())?;
                let [executed, done, pushed] = {
                    let queue = &words.queues[queue];
                    [&queue.executed, &queue.done, &queue.pushed].map(|word| word.load(Acquire))
                };
                Some(Context {
                    queue,
                    place: owner.place,
                    gpu: owner.gpu,
                    pushed,
                    done,
                    executed,
                })
            })
            .collect();
        Self {
            words,
            pace,
            at,
            gpus: turns.iter().copied().map(Gpu::read).collect(),
            contexts: contexts.clone(),
            spent: Spent::default(),
            before: Before { at, turns, contexts },
            stamps: Vec::new(),
        }
    }

    fn context(&self, queue: usize) -> Option<&Context> {
        let found = self.contexts.binary_search_by_key(&queue, |context| context.queue);
        found.ok().map(|at| &self.contexts[at])
    }

    fn is_done(&self, ticket: Ticket) -> bool {
        match self.context(ticket.queue) {
            Some(context) => context.done > ticket.number,
            None => ticket.is_done(self.words),
        }
    }

    /// What the front of a queue waits for in another one.
    fn awaits(&self, context: &Context) -> Option<Ticket> {
        let front = (context.done < context.pushed).then(|| self.words.queues[context.queue].entry(context.done))?;
        Ticket::unpack(front.after.load(Acquire)).filter(|ticket| !self.is_done(*ticket))
    }

    /// When a queue has work that can run; None: not before something else ends, or a launch.
    fn ready_at(&self, context: &Context) -> Option<u64> {
        let front = (context.done < context.pushed).then(|| self.words.queues[context.queue].entry(context.done))?;
        let ready = self.awaits(context).is_none();
        ready.then(|| front.when.load(Acquire).max(self.at))
    }

    fn is_ready(&self, context: &Context) -> bool {
        self.ready_at(context) == Some(self.at)
    }

    /// The next context with work after the resident one, round and round, which comes last itself.
    fn next_ready(&self, number: usize, gpu: &Gpu) -> Option<usize> {
        let after = gpu.resident.map_or(0, |queue| queue + 1);
        let split = self.contexts.partition_point(|context| context.queue < after);
        let (first, then) = self.contexts.split_at(split);
        let mut round = then.iter().chain(first).filter(|context| context.gpu == number);
        round
            .find(|context| self.is_ready(context))
            .map(|context| context.queue)
    }

    /// What a GPU does from now on.
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
            let ready = self
                .context(resident)
                .is_some_and(|context| context.gpu == number && self.is_ready(context));
            let expired = self.at >= gpu.slice_start.saturating_add(self.pace.slice);
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

    /// Other contexts than the one that runs: has one of them work, and if not, when will one.
    fn others(&self, number: usize, resident: usize) -> (bool, u64) {
        let others = self
            .contexts
            .iter()
            .filter(|context| context.gpu == number && context.queue != resident);
        let first = others.filter_map(|context| self.ready_at(context)).min();
        (first == Some(self.at), first.unwrap_or(u64::MAX))
    }

    /// How far a context comes until `limit`: to the end of its work, to an end that another queue waits for, or to
    /// `budget` ends.
    fn reach(&self, context: &Context, limit: u64, budget: usize, mut ended: impl FnMut(u64, u64, u64)) -> Reach {
        let awaited = self.contexts.iter().filter_map(|other| self.awaits(other));
        let stop = awaited
            .filter(|ticket| ticket.queue == context.queue)
            .map(|ticket| ticket.number)
            .min();
        let queue = &self.words.queues[context.queue];
        let mut reach = Reach {
            until: self.at,
            done: context.done,
            executed: context.executed,
        };
        while reach.done < context.pushed && reach.done - context.done < budget as u64 {
            let entry = queue.entry(reach.done);
            let when = entry.when.load(Acquire);
            let after = Ticket::unpack(entry.after.load(Acquire));
            if when > reach.until || after.is_some_and(|ticket| !self.is_done(ticket)) {
                break;
            }
            let left = entry.end.load(Acquire).saturating_sub(reach.executed);
            if left > limit.saturating_sub(reach.until) {
                reach.executed += limit.saturating_sub(reach.until);
                reach.until = limit.max(reach.until);
                break;
            }
            reach.until += left;
            reach.executed += left;
            ended(reach.done, when, reach.until);
            reach.done += 1;
            if stop == Some(reach.done - 1) {
                break;
            }
        }
        reach
    }

    /// The next moment at which something changes on a GPU, but not after `now`.
    fn next(&self, number: usize, now: u64, budget: usize) -> u64 {
        let gpu = &self.gpus[number];
        match gpu.state {
            State::Switches(_, end) => end,
            State::Idle => {
                let contexts = self.contexts.iter().filter(|context| context.gpu == number);
                contexts
                    .filter_map(|context| self.ready_at(context))
                    .min()
                    .unwrap_or(now)
            }
            State::Runs => {
                let Some(context) = gpu.resident.and_then(|queue| self.context(queue)) else {
                    return now;
                };
                let limit = match self.others(number, context.queue) {
                    (true, _) => gpu.slice_start.saturating_add(self.pace.slice),
                    (false, first) => first,
                };
                self.reach(context, limit.min(now), budget, |_, _, _| ()).until
            }
        }
        .clamp(self.at, now)
    }

    /// Has a GPU do until `until` what it does.
    fn run(&mut self, number: usize, until: u64, budget: usize) {
        let (gpu, length) = (self.gpus[number], until - self.at);
        let resident = gpu.running().and_then(|queue| self.context(queue)).copied();
        let Some(context) = resident else {
            match gpu.state {
                State::Switches(..) => self.spent.switching += length,
                _ => self.spent.idle += length,
            }
            return;
        };
        let mut stamps = std::mem::take(&mut self.stamps);
        let reach = self.reach(&context, until, budget, |entry, old, new| {
            let name = Name::When {
                queue: context.queue,
                entry,
            };
            stamps.push(Change { name, old, new });
        });
        self.stamps = stamps;
        let ran = reach.executed - context.executed;
        self.spent.ran += ran;
        self.spent.idle += length.saturating_sub(ran);
        if !self.others(number, context.queue).0 {
            // Alone: one slice follows the other.
            let slices = (until - gpu.slice_start.min(until)) / self.pace.slice.max(1);
            self.gpus[number].slice_start = gpu.slice_start + slices * self.pace.slice;
        }
        if let Ok(at) = self
            .contexts
            .binary_search_by_key(&context.queue, |context| context.queue)
        {
            (self.contexts[at].done, self.contexts[at].executed) = (reach.done, reach.executed);
        }
    }

    /// Advances to `now`, or as far as fits into one transaction and between two samples of usage.
    pub fn advance(&mut self, now: u64) {
        let in_use = (0..self.gpus.len()).filter(|gpu| self.contexts.iter().any(|context| context.gpu == *gpu));
        let in_use = in_use.count().max(1);
        // What a step can change besides the stamps: three words of a GPU, two of a queue, seven of a process's usage.
        let step = in_use * 12;
        let mut budget = (RECORDS - 1).saturating_sub(self.stamps.len());
        while budget > step {
            budget -= step;
            for number in 0..self.gpus.len() {
                self.gpus[number] = self.decide(number);
            }
            if self.at >= now {
                return;
            }
            let share = budget / in_use;
            let moments = (0..self.gpus.len()).map(|number| self.next(number, now, share));
            let until = moments.min().unwrap_or(now);
            let stamped = self.stamps.len();
            for number in 0..self.gpus.len() {
                self.run(number, until, share);
            }
            budget -= self.stamps.len() - stamped;
            self.at = until;
            if self.at - self.before.at >= usage::SAMPLE_NS && self.spent.ran > 0 {
                return;
            }
        }
    }

    /// Advances to `now` for a look that changes nothing.
    pub fn foresee(&mut self, now: u64) {
        while self.at < now {
            self.stamps.clear();
            self.advance(now);
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
        for (old, new) in self.before.contexts.iter().zip(&self.contexts) {
            let queue = new.queue;
            change(Name::Executed { queue }, old.executed, new.executed);
            // After the stamps: who sees that an entry is done finds its stamp.
            change(Name::Done { queue }, old.done, new.done);
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
            let ran = new.executed - old.executed;
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

    /// Returns the GPU time that a place has had of a GPU, at the moment to which this has come.
    pub fn served(&self, place: usize, gpu: usize) -> u64 {
        let of = |entry: &&(usize, usize, u64)| (entry.0, entry.1) == (place, gpu);
        let ran = self.ran().iter().find(of).map_or(0, |entry| entry.2);
        usage::served(self.words, place, gpu).saturating_add(ran)
    }

    /// Returns the moment before which a ticket cannot end, if no process dies and no queue is closed.
    pub fn earliest(&self, ticket: Ticket) -> u64 {
        let Some(context) = self
            .context(ticket.queue)
            .filter(|context| context.done <= ticket.number)
        else {
            return self.at;
        };
        let end = self.words.queues[context.queue].entry(ticket.number).end.load(Acquire);
        let work = end.saturating_sub(context.executed);
        let Some(gpu) = self.gpus.get(context.gpu) else {
            return self.at;
        };
        if gpu.running() == Some(context.queue) {
            let (contended, _) = self.others(context.gpu, context.queue);
            let left = gpu.slice_start.saturating_add(self.pace.slice).saturating_sub(self.at);
            let more = work.saturating_sub(left).div_ceil(self.pace.slice.max(1));
            // Away and back again after each slice.
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
        // Nothing begins before something changes on a GPU, be it what the context waits for.
        let change = (0..self.gpus.len()).map(|number| self.change(number)).min();
        start.saturating_add(work).max(change.unwrap_or(self.at))
    }

    /// The next moment at which a GPU does something else, if nothing is launched meanwhile.
    fn change(&self, number: usize) -> u64 {
        self.next(number, u64::MAX, DEPTH as usize)
    }

    /// Returns the places of processes other than `own` that have work.
    pub fn workers(&self, own: usize) -> Vec<usize> {
        let others = self
            .contexts
            .iter()
            .filter(|context| context.place != own && context.done < context.pushed);
        let mut places: Vec<usize> = others.map(|context| context.place).collect();
        places.sort_unstable();
        places.dedup();
        places
    }
}

// Safe code and many steps: nothing for an interpreter.
#[cfg(all(test, not(miri)))]
mod tests;

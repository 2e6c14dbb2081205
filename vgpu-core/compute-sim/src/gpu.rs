//! The GPU: one context at a time, in slices.

use crate::Ns;
use crate::context::Context;
use crate::hardware::Hardware;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Switch { to: usize, at: Ns },
    Run { since: Ns },
}

#[derive(Debug)]
pub(crate) struct Gpu {
    state: State,
    current: Option<usize>,
    slice_start: Ns,
    /// Scheduled updates of an older generation are ignored.
    pub generation: u64,
}

/// The changes since the GPU was last updated.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The context that ran, with start and end.
    pub ran: Option<(usize, Ns, Ns)>,
    /// Contexts in which some work ended.
    pub ended: Vec<usize>,
    /// The time of the next update.
    pub next: Option<Ns>,
}

impl Gpu {
    pub(crate) fn new() -> Self {
        Self {
            state: State::Idle,
            current: None,
            slice_start: 0,
            generation: 0,
        }
    }

    /// Advances the GPU to `now`. `own` is its number.
    pub(crate) fn advance(&mut self, own: usize, contexts: &mut [Context], now: Ns, hardware: &Hardware) -> Progress {
        let mut progress = Progress::default();
        for (index, context) in contexts.iter_mut().enumerate() {
            if context.gpu == own && context.queued() > 0 && context.end_copies(now) {
                progress.ended.push(index);
            }
        }
        match self.state {
            State::Switch { to, at } if at <= now => {
                self.current = Some(to);
                self.slice_start = now;
                self.state = State::Idle;
            }
            State::Run { since } => {
                if let Some(current) = self.current {
                    let partner = contexts[current].partner.map(|partner| contexts[partner].stage);
                    let ran = contexts[current].run(since, now, partner);
                    if ran.had_kernel {
                        progress.ran = Some((current, since, now));
                    }
                    if ran.has_ended {
                        progress.ended.push(current);
                    }
                    self.state = State::Run { since: now };
                }
            }
            State::Switch { .. } | State::Idle => {}
        }
        progress.next = self.pick(own, contexts, now, hardware);
        progress
    }

    /// Decides what the GPU runs from now on. Returns when that ends.
    fn pick(&mut self, own: usize, contexts: &mut [Context], now: Ns, hardware: &Hardware) -> Option<Ns> {
        self.generation += 1;
        let mut next = None;
        for (index, context) in contexts.iter_mut().enumerate() {
            if context.gpu == own && context.queued() > 0 && Some(index) != self.current {
                next = earlier(next, context.choose(now, false));
            }
        }
        if let State::Switch { at, .. } = self.state {
            return earlier(next, Some(at));
        }
        let other = self.next_with_work(own, contexts);
        if let Some(current) = self.current {
            let works = contexts[current].has_work();
            let stays = other.is_none() || now < self.slice_start + hardware.slice;
            next = earlier(next, contexts[current].choose(now, works && stays));
            if works && other.is_none() {
                self.slice_start += (now - self.slice_start) / hardware.slice * hardware.slice;
            }
            if works && stays {
                self.state = State::Run { since: now };
                let end_of_slice = other.map(|_| self.slice_start + hardware.slice);
                return earlier(next, end_of_slice).map(|at| at.max(now + 1));
            }
        }
        let Some(to) = other else {
            self.state = State::Idle;
            return next;
        };
        let at = now + if self.current.is_some() { hardware.switch } else { 0 };
        self.state = State::Switch { to, at };
        earlier(next, Some(at))
    }

    /// Returns the context that runs after the current one, if another one has work.
    fn next_with_work(&self, own: usize, contexts: &[Context]) -> Option<usize> {
        let count = contexts.len();
        let after = self.current.map_or(0, |current| current + 1);
        (0..count).map(|step| (after + step) % count).find(|context| {
            Some(*context) != self.current && contexts[*context].gpu == own && contexts[*context].has_work()
        })
    }
}

fn earlier(one: Option<Ns>, other: Option<Ns>) -> Option<Ns> {
    one.into_iter().chain(other).min()
}

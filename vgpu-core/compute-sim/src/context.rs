//! A process's work on the GPU: streams of kernels, copies and events. The heads of its streams run at the same time,
//! in the order of their submission, as far as they fit on the multiprocessors.

use std::collections::VecDeque;

use crate::hardware::Hardware;
use crate::{Ns, US};

/// How often a kernel checks for its partner's handshake.
const POLL: Ns = 5 * US;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Kernel(Kernel),
    /// A copy. Runs on a copy engine, in parallel with everything else.
    Copy,
    /// An event, by its number in the context.
    Event(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// The percentage of the multiprocessors that the kernel takes.
    pub width: u32,
    /// How often the kernel waits for the partner's kernel with the same number.
    pub handshakes: u32,
    /// The kernel's number among its thread's launches.
    pub number: u64,
}

/// Work in a stream.
#[derive(Clone, Copy, Debug)]
struct Item {
    work: Work,
    left: Ns,
    order: u64,
    /// The end of a running copy.
    ends: Option<Ns>,
}

#[derive(Debug, Default)]
pub(crate) struct Context {
    pub gpu: usize,
    /// Until when the context's kernels last ran on the GPU.
    pub ran_until: Ns,
    /// The context whose kernels do handshakes with this one's.
    pub partner: Option<usize>,
    /// The handshake that the context has reached: kernel, stage.
    pub stage: (u64, u32),
    /// The number of events recorded so far.
    pub recorded: u64,
    streams: Vec<VecDeque<Item>>,
    /// The time at which the GPU passed each event.
    passed: Vec<Option<Ns>>,
    queued: usize,
    submitted: u64,
    /// Streams whose heads are running.
    running: Vec<usize>,
}

/// The result of running a context for a while.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ran {
    pub had_kernel: bool,
    pub has_ended: bool,
}

impl Context {
    pub(crate) fn new(gpu: usize, partner: Option<usize>) -> Self {
        Self {
            gpu,
            partner,
            ..Self::default()
        }
    }

    pub(crate) fn submit(&mut self, stream: usize, work: Work, left: Ns) {
        while self.streams.len() <= stream {
            self.streams.push(VecDeque::new());
        }
        self.submitted += 1;
        self.queued += 1;
        self.streams[stream].push_back(Item {
            work,
            left,
            order: self.submitted,
            ends: None,
        });
    }

    /// Records an event and returns its number.
    pub(crate) fn record(&mut self, stream: usize, hardware: &Hardware) -> usize {
        let event = self.passed.len();
        self.passed.push(None);
        self.recorded += 1;
        self.submit(stream, Work::Event(event), hardware.stop);
        event
    }

    /// Returns when the GPU passed an event.
    pub(crate) fn passed(&self, event: usize) -> Option<Ns> {
        self.passed[event]
    }

    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    /// Returns true if the stream has no work left, or with `None` all streams.
    pub(crate) fn is_done(&self, stream: Option<usize>) -> bool {
        match stream {
            None => self.queued == 0,
            Some(stream) => self.streams.get(stream).is_none_or(VecDeque::is_empty),
        }
    }

    /// Returns true if the context needs the GPU itself, not only a copy engine.
    pub(crate) fn has_work(&self) -> bool {
        let computes = |stream: &VecDeque<Item>| stream.front().is_some_and(|head| head.work != Work::Copy);
        self.queued > 0 && self.streams.iter().any(computes)
    }

    /// Drops all work because the process has ended.
    pub(crate) fn clear(&mut self) {
        self.streams.clear();
        self.passed.clear();
        self.running.clear();
        self.queued = 0;
        self.stage = (0, 0);
    }

    /// Chooses the work that runs now; `computes` is true during this context's slice. Returns when the first of it
    /// ends.
    pub(crate) fn choose(&mut self, now: Ns, computes: bool) -> Option<Ns> {
        let mut heads: Vec<(u64, usize)> = Vec::new();
        let mut next: Option<Ns> = None;
        let mut ends_at = |at: Ns| next = Some(next.map_or(at, |next| next.min(at)));
        for (index, stream) in self.streams.iter_mut().enumerate() {
            let Some(head) = stream.front_mut() else { continue };
            if head.work == Work::Copy {
                ends_at(*head.ends.get_or_insert(now + head.left));
            } else if computes {
                heads.push((head.order, index));
            }
        }
        self.running.clear();
        heads.sort_unstable();
        let mut room = 100;
        for (_, index) in heads {
            let Some(head) = self.streams[index].front() else {
                continue;
            };
            match head.work {
                Work::Kernel(kernel) if kernel.width > room => break,
                Work::Kernel(kernel) => room -= kernel.width,
                Work::Event(event) => {
                    self.passed[event].get_or_insert(now);
                }
                Work::Copy => {}
            }
            self.running.push(index);
            ends_at(now + if head.left > 0 { head.left } else { POLL });
        }
        next
    }

    /// Runs the chosen work. `partner` is the handshake that the partner has reached.
    pub(crate) fn run(&mut self, since: Ns, now: Ns, partner: Option<(u64, u32)>) -> Ran {
        let mut ran = Ran {
            had_kernel: false,
            has_ended: false,
        };
        for &stream in &self.running {
            let Some(head) = self.streams[stream].front_mut() else {
                continue;
            };
            let had_left = head.left > 0;
            head.left = head.left.saturating_sub(now - since);
            let is_over = head.left == 0;
            if let Work::Kernel(kernel) = head.work {
                ran.had_kernel = true;
                if is_over && kernel.handshakes > 0 {
                    if had_left {
                        self.stage = (kernel.number, 1);
                    }
                    let (_, stage) = self.stage;
                    let is_answered = partner.is_some_and(|partner| partner >= (kernel.number, stage));
                    if is_answered {
                        self.stage = (kernel.number, stage + 1);
                    }
                    if !is_answered || stage < kernel.handshakes {
                        continue;
                    }
                }
            }
            if is_over {
                self.streams[stream].pop_front();
                self.queued -= 1;
                ran.has_ended = true;
            }
        }
        ran
    }

    /// Removes finished copies from their streams. Returns true if there were any.
    pub(crate) fn end_copies(&mut self, now: Ns) -> bool {
        let before = self.queued;
        for stream in &mut self.streams {
            let is_over = |head: &Item| head.work == Work::Copy && head.ends.is_some_and(|ends| ends <= now);
            if stream.front().is_some_and(is_over) {
                stream.pop_front();
                self.queued -= 1;
            }
        }
        self.queued < before
    }
}

//! Shares, their processes and threads, and the GPUs, simulated from event to event.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::Ordering::Relaxed;

use vgpu_abi::arbitration::{Entry, NodePage, SLOTS, SlotPage};
use vgpu_core::compute::limiter::call::Answer;
use vgpu_core::compute::turn::Pages;

use crate::context::{Context, Kernel, Work};
use crate::figures::{Used, WARM};
use crate::gpu::{Gpu, Progress};
use crate::hardware::Hardware;
use crate::law::LawKind;
use crate::law::io::{Io, Living};
use crate::law::limited::Limited;
use crate::programs::{Launch, Program, Step};
use crate::random::Random;
use crate::{Ns, US};

/// A thread of a share's process.
pub(crate) struct Thread {
    pub share: usize,
    pub gpu: usize,
    /// Threads with the same number belong to one process.
    pub process: usize,
    pub program: Program,
    /// Start time.
    pub from: Ns,
    /// The process of the rank with which this thread does handshakes.
    pub partner: Option<usize>,
    /// The thread launches without asking the law.
    pub ignores: bool,
    /// The thread is killed at this time: it launches nothing more, but its pending work still runs.
    pub stops: Option<Ns>,
}

impl Thread {
    pub(crate) fn new(share: usize, process: usize, program: Program) -> Self {
        Self {
            share,
            gpu: 0,
            process,
            program,
            from: 0,
            partner: None,
            ignores: false,
            stops: None,
        }
    }
}

/// The input of a simulation.
pub(crate) struct Scenario {
    pub hardware: Hardware,
    pub law: LawKind,
    /// Each share's entitlement, the same on every GPU.
    pub shares: Vec<Entry>,
    pub threads: Vec<Thread>,
    pub length: Ns,
}

/// The results of a simulation.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// GPU time of each share.
    pub used: Vec<Used>,
    /// The time that each share's page shows as charged, over all GPUs.
    pub charged: Vec<Ns>,
    pub threads: Vec<Counts>,
    /// Events recorded in the whole time.
    pub events: u64,
}

/// Results of one thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    /// Launches in the whole time, and in the measured time.
    pub launches: u64,
    pub launches_counted: u64,
    /// Completed requests in the whole time, and in the measured time.
    pub done: u64,
    pub done_counted: u64,
    pub latencies: Vec<Ns>,
    /// The longest time for which a launch waited while the GPU ran nothing of its process.
    pub longest_wait: Ns,
    /// The law's CPU time, and the time spent spinning.
    pub cpu: Ns,
    pub spun: Ns,
}

impl Counts {
    /// Divides a time by the number of launches; in ns.
    pub(crate) fn per_launch(&self, time: Ns) -> f64 {
        time as f64 / self.launches.max(1) as f64
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The process starts.
    Starts,
    Ready,
    /// The law made the thread wait, for this slot if given.
    Held(Option<usize>),
    QueueFull,
    /// The thread waits for a stream, or with `None` for all.
    Waits(Option<usize>),
    /// The thread's wait has returned.
    Returned(Option<usize>),
    Gone,
}

struct Running {
    thread: Thread,
    phase: Phase,
    /// Wake-ups of an older generation are ignored.
    generation: u64,
    random: Random,
    /// The waiting launch.
    next: Option<Launch>,
    asked: Option<Ns>,
    /// Start of the current request.
    began: Ns,
    counts: Counts,
}

struct Process {
    share: usize,
    gpu: usize,
    law: Option<Box<Limited>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Gpu(usize, u64),
    Thread(usize, u64),
}

struct World {
    hardware: Hardware,
    law: LawKind,
    shares: Vec<Entry>,
    now: Ns,
    sequence: u64,
    events: BinaryHeap<Reverse<(Ns, u64, Event)>>,
    gpus: Vec<Gpu>,
    /// Contexts by process.
    contexts: Vec<Context>,
    processes: Vec<Process>,
    threads: Vec<Running>,
    node: NodePage,
    /// Pages by GPU, then by share.
    pages: Vec<Vec<SlotPage>>,
    used: Vec<Used>,
    living: Living,
}

/// Runs a scenario.
///
/// # Panics
/// If a scenario has no threads.
pub(crate) fn run(scenario: Scenario) -> Outcome {
    let length = scenario.length;
    let warm = WARM.min(length / 3);
    let mut world = World::new(scenario);
    for index in 0..world.threads.len() {
        let at = world.threads[index].thread.from + index as Ns * 137 * US;
        world.wake(index, at);
    }
    let mut before: Option<Vec<(u64, u64)>> = None;
    while let Some(Reverse((at, _, event))) = world.events.pop() {
        if at > length {
            break;
        }
        world.now = at;
        if at >= warm && before.is_none() {
            let counts = world.threads.iter().map(|thread| &thread.counts);
            before = Some(counts.map(|counts| (counts.launches, counts.done)).collect());
        }
        match event {
            Event::Gpu(gpu, generation) if world.gpus[gpu].generation == generation => world.look_at_gpu(gpu),
            Event::Thread(index, generation) if world.threads[index].generation == generation => world.step(index),
            _ => {}
        }
    }
    world.outcome(&before.unwrap_or_default())
}

impl World {
    fn new(scenario: Scenario) -> Self {
        let most = |of: fn(&Thread) -> usize| scenario.threads.iter().map(of).max().expect("no threads") + 1;
        let (gpus, processes) = (most(|thread| thread.gpu), most(|thread| thread.process));
        let node = NodePage::default();
        let mut entries = [Entry::default(); SLOTS];
        entries[..scenario.shares.len()].copy_from_slice(&scenario.shares);
        node.write(&entries);
        let first = |process: usize| {
            let thread = scenario.threads.iter().find(|thread| thread.process == process);
            thread.expect("a process without threads")
        };
        let context = |process: usize| Context::new(first(process).gpu, first(process).partner);
        let process = |process: usize| Process {
            share: first(process).share,
            gpu: first(process).gpu,
            law: None,
        };
        let of_shares = || scenario.shares.iter();
        Self {
            hardware: scenario.hardware,
            law: scenario.law,
            now: 0,
            sequence: 0,
            events: BinaryHeap::new(),
            gpus: (0..gpus).map(|_| Gpu::new()).collect(),
            contexts: (0..processes).map(context).collect(),
            processes: (0..processes).map(process).collect(),
            node,
            pages: (0..gpus)
                .map(|_| of_shares().map(|_| SlotPage::default()).collect())
                .collect(),
            used: of_shares().map(|_| Used::new(scenario.length)).collect(),
            living: Living::new(processes),
            shares: scenario.shares,
            threads: (1..).zip(scenario.threads).map(Running::new).collect(),
        }
    }

    /// `before`: launches and requests of each thread before the measured time.
    fn outcome(self, before: &[(u64, u64)]) -> Outcome {
        let charged = |share: usize| {
            let pages = self.pages.iter().map(|pages| &pages[share]);
            pages.map(|page| page.counters.charged.load(Relaxed)).sum()
        };
        let counts = |(index, thread): (usize, Running)| {
            let (launches, done) = before.get(index).copied().unwrap_or_default();
            Counts {
                launches_counted: thread.counts.launches - launches,
                done_counted: thread.counts.done - done,
                ..thread.counts
            }
        };
        Outcome {
            charged: (0..self.shares.len()).map(charged).collect(),
            used: self.used,
            events: self.contexts.iter().map(|context| context.recorded).sum(),
            threads: self.threads.into_iter().enumerate().map(counts).collect(),
        }
    }

    fn push(&mut self, at: Ns, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    fn wake(&mut self, thread: usize, at: Ns) {
        self.threads[thread].generation += 1;
        self.push(at, Event::Thread(thread, self.threads[thread].generation));
    }

    // === the GPUs

    fn look_at_gpu(&mut self, gpu: usize) {
        let progress = self.gpus[gpu].advance(gpu, &mut self.contexts, self.now, &self.hardware);
        self.progressed(gpu, &progress);
    }

    fn progressed(&mut self, gpu: usize, progress: &Progress) {
        if let Some((context, from, to)) = progress.ran {
            self.used[self.processes[context].share].add(from, to);
            self.contexts[context].ran_until = to;
        }
        for context in &progress.ended {
            self.work_ended(*context);
        }
        if let Some(at) = progress.next {
            self.push(at, Event::Gpu(gpu, self.gpus[gpu].generation));
        }
    }

    fn work_ended(&mut self, context: usize) {
        for index in 0..self.threads.len() {
            if self.threads[index].thread.process != context {
                continue;
            }
            match self.threads[index].phase {
                Phase::Waits(scope) if self.contexts[context].is_done(scope) => {
                    self.threads[index].phase = Phase::Returned(scope);
                    self.wake(index, self.now + self.hardware.wait);
                }
                Phase::QueueFull => {
                    self.threads[index].phase = Phase::Ready;
                    self.wake(index, self.now + 2 * US);
                }
                _ => {}
            }
        }
    }

    // === the processes

    /// Starts a process.
    fn start(&mut self, index: usize) {
        let thread = &self.threads[index].thread;
        let (share, process) = (thread.share, thread.process);
        if self.law == LawKind::Hardware || thread.ignores || self.processes[process].law.is_some() {
            return;
        }
        let owner = self.living.starts(process);
        self.processes[process].law = Some(Box::new(Limited::new(owner, self.shares[share])));
    }

    fn died(&mut self, process: usize) {
        self.processes[process].law = None;
        self.living.ends(process);
    }

    fn exit(&mut self, index: usize, normal: bool) {
        if normal {
            self.with_law(index, |law, io| law.exit(io));
        }
        let thread = &self.threads[index].thread;
        let (process, gpu) = (thread.process, thread.gpu);
        self.look_at_gpu(gpu);
        self.died(process);
        self.contexts[process].clear();
        self.look_at_gpu(gpu);
    }

    // === the threads

    fn step(&mut self, index: usize) {
        let now = self.now;
        let thread = &self.threads[index];
        if thread.phase == Phase::Gone {
            return;
        }
        if thread.thread.stops.is_some_and(|at| at <= now) {
            let process = thread.thread.process;
            self.threads[index].phase = Phase::Gone;
            self.died(process);
            return;
        }
        match thread.phase {
            Phase::Starts => self.start(index),
            Phase::Returned(scope) => {
                let cost = self.with_law(index, |law, io| law.after_wait(io, scope));
                if cost > 0 {
                    self.threads[index].phase = Phase::Ready;
                    self.wake(index, now + cost);
                    return;
                }
            }
            _ => {}
        }
        let thread = &mut self.threads[index];
        thread.phase = Phase::Ready;
        let step = match thread.next.take() {
            Some(launch) => Step::Launch(launch),
            None => (thread.thread.program)(&mut thread.random, now),
        };
        let process = thread.thread.process;
        match step {
            Step::Launch(launch) => self.launch(index, launch),
            Step::Copy { stream, length } => {
                self.submit(process, stream, Work::Copy, length);
                self.wake(index, now + self.hardware.launch);
            }
            Step::Wait(scope) => self.wait(index, scope),
            Step::Sleep(length) => self.wake(index, now + length.max(1)),
            Step::Begin => {
                thread.began = now;
                self.wake(index, now + 1);
            }
            Step::Done => {
                thread.counts.done += 1;
                thread.counts.latencies.push(now - thread.began);
                thread.began = now;
                self.wake(index, now + 1);
            }
            Step::Exit { normal, pause } => {
                self.exit(index, normal);
                self.threads[index].phase = Phase::Starts;
                self.wake(index, now + pause);
            }
            Step::Stop => thread.phase = Phase::Gone,
        }
    }

    fn wait(&mut self, index: usize, scope: Option<usize>) {
        let process = self.threads[index].thread.process;
        let cost = self.with_law(index, |law, io| law.before_wait(io, scope));
        if self.contexts[process].is_done(scope) {
            self.threads[index].phase = Phase::Returned(scope);
            self.wake(index, self.now + cost + 2 * US);
        } else {
            self.threads[index].phase = Phase::Waits(scope);
        }
    }

    fn submit(&mut self, process: usize, stream: usize, work: Work, length: Ns) {
        self.contexts[process].submit(stream, work, length);
        self.look_at_gpu(self.processes[process].gpu);
    }

    fn launch(&mut self, index: usize, launch: Launch) {
        let now = self.now;
        let thread = &mut self.threads[index];
        let process = thread.thread.process;
        if self.contexts[process].queued() >= self.hardware.depth {
            thread.next = Some(launch);
            thread.phase = Phase::QueueFull;
            return;
        }
        let asked = *thread.asked.get_or_insert(now);
        let mut answer = Answer::Go;
        let mut cost = self.with_law(index, |law, io| answer = law.ask(io, launch.stream, asked));
        let thread = &mut self.threads[index];
        if let Answer::Wait(wait) = answer {
            thread.next = Some(launch);
            thread.phase = Phase::Held(wait.on);
            let until = wait.until.max(now + 1) + cost;
            if wait.spins {
                thread.counts.spun += until - now;
                self.wake(index, until);
            } else {
                self.wake(index, until + self.hardware.wake);
            }
            return;
        }
        thread.asked = None;
        let waits_since = asked.max(self.contexts[process].ran_until);
        thread.counts.longest_wait = thread.counts.longest_wait.max(now - waits_since);
        thread.counts.launches += 1;
        let kernel = Kernel {
            width: launch.width,
            handshakes: launch.handshakes,
            number: thread.counts.launches,
        };
        self.submit(process, launch.stream, Work::Kernel(kernel), launch.length);
        cost += self.with_law(index, |law, io| law.launched(io, launch.stream));
        self.wake(index, now + self.hardware.launch + cost);
    }

    /// Calls the law of a thread's process. Returns the call's CPU time.
    fn with_law(&mut self, index: usize, call: impl FnOnce(&mut Limited, &mut Io<'_>)) -> Ns {
        let thread = &self.threads[index].thread;
        let (process, gpu, share) = (thread.process, thread.gpu, thread.share);
        let sibling = thread.partner.is_some_and(|partner| {
            let other = &self.processes[partner];
            let turn = &self.pages[other.gpu][other.share].turn;
            other.gpu != gpu && turn.ends.load(Relaxed) > self.now
        });
        let Some(mut law) = self.processes[process].law.take() else {
            return 0;
        };
        // The law must see the events that the GPU has passed.
        self.look_at_gpu(gpu);
        let (word, recorded) = (self.wake_word(gpu, share), self.contexts[process].recorded);
        let mut slots = [None; SLOTS];
        for (slot, page) in slots.iter_mut().zip(&self.pages[gpu]) {
            *slot = Some(page);
        }
        let mut io = Io {
            now: self.now,
            hardware: &self.hardware,
            cost: 0,
            context: &mut self.contexts[process],
            pages: Pages {
                node: &self.node,
                slots: &slots[..self.pages[gpu].len()],
                own: share,
            },
            page: &self.pages[gpu][share],
            living: &self.living,
            sibling,
        };
        call(&mut law, &mut io);
        let cost = io.cost;
        self.processes[process].law = Some(law);
        self.threads[index].counts.cpu += cost;
        if self.contexts[process].recorded != recorded {
            self.look_at_gpu(gpu);
        }
        if self.wake_word(gpu, share) != word {
            self.wake_sleepers(gpu, share, index);
        }
        cost
    }

    fn wake_word(&self, gpu: usize, share: usize) -> u32 {
        self.pages[gpu][share].wake.load(Relaxed)
    }

    /// Wakes the threads that sleep on a share's page, except the thread that changed it.
    fn wake_sleepers(&mut self, gpu: usize, share: usize, except: usize) {
        for sleeper in 0..self.threads.len() {
            let other = &self.threads[sleeper];
            if other.phase == Phase::Held(Some(share)) && other.thread.gpu == gpu && sleeper != except {
                self.wake(sleeper, self.now + self.hardware.wake);
            }
        }
    }
}

impl Running {
    fn new((seed, thread): (u64, Thread)) -> Self {
        Self {
            thread,
            phase: Phase::Starts,
            generation: 0,
            random: Random::new(seed),
            next: None,
            asked: None,
            began: 0,
            counts: Counts::default(),
        }
    }
}

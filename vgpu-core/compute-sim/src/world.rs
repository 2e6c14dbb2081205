//! Shares, their processes and the GPUs, from event to event.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use vgpu_abi::arbitration::{CELLS, Entry, NodePage, SLOTS, SlotPage};
use vgpu_core::compute::estimate::Shape;
use vgpu_core::compute::flight::{Mark, Stream};
use vgpu_core::compute::limiter::{Decision, Limiter};
use vgpu_core::compute::turn::Pages;

use crate::figures::Used;
use crate::gpu::{Context, Gpu, Hardware, Progress, Reached, Work};
use crate::program::Program;
use crate::random::Random;
use crate::{Ns, US};

const STREAM: Stream = Stream(1);

/// Who limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Law {
    /// Nobody: the GPU's slices alone.
    Hardware,
    Turns,
}

/// One process of a share, on one GPU.
#[derive(Clone, Debug)]
pub struct Tenant {
    pub share: usize,
    pub gpu: usize,
    pub program: Program,
    /// When it starts.
    pub from: Ns,
    /// The rank that it shakes hands with.
    pub partner: Option<usize>,
    /// It launches without asking.
    pub ignores: bool,
    /// It is stopped, or killed, at this moment: launches no more, and what it has in flight runs.
    pub stops: Option<Ns>,
}

impl Tenant {
    #[must_use]
    pub fn new(share: usize, program: Program) -> Self {
        Self {
            share,
            gpu: 0,
            program,
            from: 0,
            partner: None,
            ignores: false,
            stops: None,
        }
    }
}

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub hardware: Hardware,
    pub law: Law,
    /// What each share is entitled to, on every GPU.
    pub shares: Vec<Entry>,
    pub tenants: Vec<Tenant>,
    pub length: Ns,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Launch,
    /// The limiter said to wait for this slot, if any.
    Held(Option<usize>),
    QueueFull,
    /// For its work.
    Waits,
    /// Its wait has returned.
    Returned,
    Pause,
}

struct Process {
    tenant: Tenant,
    phase: Phase,
    /// A wake-up of an older generation is void.
    generation: u64,
    launches: usize,
    phase_began: Ns,
    random: Random,
    limiter: Limiter,
    /// The next launch is the first of a chunk.
    first: bool,
    /// The kernel that waits to be launched.
    next: Option<(u64, Ns)>,
    latencies: Vec<Ns>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Gpu(usize, u64),
    Process(usize, u64),
}

/// What came out.
#[derive(Debug)]
pub struct Outcome {
    /// GPU time of each share.
    pub used: Vec<Used>,
    /// Launches of each tenant.
    pub launches: Vec<usize>,
    /// Latencies of each tenant's bursts.
    pub latencies: Vec<Vec<Ns>>,
    /// What each share's page says was charged, on all GPUs.
    pub charged: Vec<Ns>,
    /// The longest time for which a launch of each tenant waited.
    pub longest_wait: Vec<Ns>,
}

struct World {
    hardware: Hardware,
    law: Law,
    now: Ns,
    sequence: u64,
    events: BinaryHeap<Reverse<(Ns, u64, Event)>>,
    gpus: Vec<Gpu>,
    contexts: Vec<Context>,
    processes: Vec<Process>,
    node: NodePage,
    /// By GPU, then by share.
    pages: Vec<Vec<SlotPage>>,
    used: Vec<Used>,
    held_since: Vec<Option<Ns>>,
    longest_wait: Vec<Ns>,
}

/// Runs a scenario.
///
/// # Panics
/// If a scenario has no tenants.
#[must_use]
pub fn run(scenario: &Scenario) -> Outcome {
    let mut world = World::new(scenario);
    for index in 0..world.processes.len() {
        let at = world.processes[index].tenant.from + index as Ns * 137 * US;
        world.wake(index, at);
    }
    while let Some(Reverse((at, _, event))) = world.events.pop() {
        if at > scenario.length {
            break;
        }
        world.now = at;
        match event {
            Event::Gpu(gpu, generation) if world.gpus[gpu].generation == generation => world.look_at_gpu(gpu),
            Event::Process(process, generation) if world.processes[process].generation == generation => {
                world.step(process);
            }
            _ => {}
        }
    }
    let charged = |share: usize| {
        let pages = world.pages.iter().map(|pages| &pages[share]);
        pages
            .map(|page| page.counters.charged.load(std::sync::atomic::Ordering::Relaxed))
            .sum()
    };
    Outcome {
        charged: (0..scenario.shares.len()).map(charged).collect(),
        used: world.used,
        launches: world.processes.iter().map(|process| process.launches).collect(),
        latencies: world.processes.into_iter().map(|process| process.latencies).collect(),
        longest_wait: world.longest_wait,
    }
}

impl World {
    fn new(scenario: &Scenario) -> Self {
        let gpus = scenario
            .tenants
            .iter()
            .map(|tenant| tenant.gpu)
            .max()
            .expect("no tenants")
            + 1;
        let node = NodePage::default();
        let mut entries = [Entry::default(); SLOTS];
        entries[..scenario.shares.len()].copy_from_slice(&scenario.shares);
        node.write(&entries);
        let pages: Vec<Vec<SlotPage>> = (0..gpus)
            .map(|_| scenario.shares.iter().map(|_| SlotPage::default()).collect())
            .collect();
        let process = |(index, tenant): (usize, &Tenant)| {
            let before = scenario.tenants[..index].iter();
            let cell = before
                .filter(|other| (other.share, other.gpu) == (tenant.share, tenant.gpu))
                .count()
                % CELLS;
            let owner = &pages[tenant.gpu][tenant.share].cells[cell].owner;
            owner.store(index as u64 + 1, std::sync::atomic::Ordering::Relaxed);
            Process {
                tenant: tenant.clone(),
                phase: Phase::Launch,
                generation: 0,
                launches: 0,
                phase_began: 0,
                random: Random::new(index as u64 + 1),
                limiter: Limiter::new(cell, scenario.shares[tenant.share]),
                first: true,
                next: None,
                latencies: Vec::new(),
            }
        };
        let processes: Vec<Process> = scenario.tenants.iter().enumerate().map(process).collect();
        let contexts = scenario.tenants.iter().map(|tenant| Context {
            gpu: tenant.gpu,
            partner: tenant.partner,
            ..Context::default()
        });
        Self {
            hardware: scenario.hardware,
            law: scenario.law,
            now: 0,
            sequence: 0,
            events: BinaryHeap::new(),
            gpus: (0..gpus).map(|_| Gpu::new()).collect(),
            contexts: contexts.collect(),
            held_since: vec![None; processes.len()],
            longest_wait: vec![0; processes.len()],
            processes,
            node,
            pages,
            used: scenario.shares.iter().map(|_| Used::new(scenario.length)).collect(),
        }
    }

    fn push(&mut self, at: Ns, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    fn wake(&mut self, process: usize, at: Ns) {
        self.processes[process].generation += 1;
        self.push(at, Event::Process(process, self.processes[process].generation));
    }

    // === the GPUs

    fn look_at_gpu(&mut self, gpu: usize) {
        let progress = self.gpus[gpu].advance(gpu, &mut self.contexts, self.now, &self.hardware);
        self.progressed(gpu, &progress);
    }

    fn progressed(&mut self, gpu: usize, progress: &Progress) {
        if let Some((context, from, to)) = progress.ran {
            self.used[self.processes[context].tenant.share].add(from, to);
            if progress.ended {
                self.work_ended(context);
            }
        }
        if let Some(at) = progress.next {
            self.push(at, Event::Gpu(gpu, self.gpus[gpu].generation));
        }
    }

    fn work_ended(&mut self, context: usize) {
        match self.processes[context].phase {
            Phase::Waits if self.contexts[context].queue.is_empty() => {
                self.processes[context].phase = Phase::Returned;
                self.wake(context, self.now + self.hardware.wait);
            }
            Phase::QueueFull => {
                self.processes[context].phase = Phase::Launch;
                self.wake(context, self.now + 2 * US);
            }
            _ => {}
        }
    }

    // === the processes

    fn step(&mut self, index: usize) {
        if self.processes[index].tenant.stops.is_some_and(|at| at <= self.now) {
            return;
        }
        match self.processes[index].phase {
            Phase::Pause => {
                self.processes[index].phase = Phase::Launch;
                self.processes[index].phase_began = self.now;
            }
            Phase::Returned => {
                self.returned(index);
                return;
            }
            _ => {}
        }
        if self.contexts[index].queue.len() >= self.hardware.depth {
            self.processes[index].phase = Phase::QueueFull;
            return;
        }
        let process = &mut self.processes[index];
        let next = process.next.take();
        let kernel = next.unwrap_or_else(|| process.tenant.program.kernel(process.launches, &mut process.random));
        match self.ask(index, Shape(kernel.0)) {
            Decision::Go => {
                if let Some(since) = self.held_since[index].take() {
                    self.longest_wait[index] = self.longest_wait[index].max(self.now - since);
                }
                self.launch(index, kernel);
            }
            Decision::Wait(wait) => {
                self.end_chunks(index);
                self.held_since[index].get_or_insert(self.now);
                let process = &mut self.processes[index];
                process.next = Some(kernel);
                process.phase = Phase::Held(wait.on);
                self.wake(index, wait.until.max(self.now + 1) + self.hardware.wake);
            }
        }
    }

    fn returned(&mut self, index: usize) {
        self.after_wait(index);
        let process = &mut self.processes[index];
        if matches!(process.tenant.program, Program::Burst { .. }) {
            process.latencies.push(self.now - process.phase_began);
        }
        let pause = process.tenant.program.pause(&mut process.random);
        process.phase = Phase::Pause;
        self.wake(index, self.now + pause);
    }

    fn launch(&mut self, index: usize, (shape, length): (u64, Ns)) {
        let mark = self.launched(index, Shape(shape));
        let process = &mut self.processes[index];
        process.launches += 1;
        let waits = process
            .tenant
            .program
            .waits_after(process.launches, self.now - process.phase_began);
        let mark = mark.or_else(|| waits.then(|| self.waits_for(index)).flatten());
        let process = &mut self.processes[index];
        let first = std::mem::replace(&mut process.first, mark.is_some());
        let work = Work {
            left: length,
            submitted: self.now,
            mark: mark.map(|mark| mark.0),
            number: process.launches as u64,
            handshakes: process.tenant.program.handshakes(),
            first,
        };
        process.phase = if waits { Phase::Waits } else { Phase::Launch };
        let was_empty = self.contexts[index].queue.is_empty();
        self.contexts[index].queue.push_back(work);
        let gpu = self.contexts[index].gpu;
        if was_empty || self.gpus[gpu].is_idle() {
            let progress = self.gpus[gpu].arrival(gpu, &mut self.contexts, self.now, &self.hardware);
            if let Some(progress) = progress {
                self.progressed(gpu, &progress);
            }
        }
        if !waits {
            self.wake(index, self.now + self.hardware.launch);
        }
    }

    // === the limiter

    fn is_limited(&self, index: usize) -> bool {
        self.law == Law::Turns && !self.processes[index].tenant.ignores
    }

    /// Calls the limiter of a process with its GPU's pages, and wakes those who sleep on the page of its share if its
    /// word has changed.
    fn with_limiter<T>(&mut self, index: usize, call: impl FnOnce(&mut Limiter, &Pages<'_>, Ns) -> T) -> T {
        let process = &mut self.processes[index];
        let (gpu, own) = (process.tenant.gpu, process.tenant.share);
        let mut slots = [None; SLOTS];
        for (slot, page) in slots.iter_mut().zip(&self.pages[gpu]) {
            *slot = Some(page);
        }
        let used = self.pages[gpu].len();
        let pages = Pages {
            node: &self.node,
            slots: &slots[..used],
            own,
        };
        let word = || self.pages[gpu][own].wake.load(std::sync::atomic::Ordering::Relaxed);
        let before = word();
        let result = call(&mut process.limiter, &pages, self.now);
        if word() != before {
            for sleeper in 0..self.processes.len() {
                let other = &self.processes[sleeper];
                if other.phase == Phase::Held(Some(own)) && other.tenant.gpu == gpu && sleeper != index {
                    self.wake(sleeper, self.now + self.hardware.wake);
                }
            }
        }
        result
    }

    fn ask(&mut self, index: usize, shape: Shape) -> Decision {
        if !self.is_limited(index) {
            return Decision::Go;
        }
        self.read_events(index);
        let tenant = &self.processes[index].tenant;
        let sibling = tenant.partner.is_some_and(|partner| {
            let other = &self.processes[partner].tenant;
            let turn = &self.pages[other.gpu][other.share].turn;
            other.gpu != tenant.gpu && turn.ends.load(std::sync::atomic::Ordering::Relaxed) > self.now
        });
        let asked = self.held_since[index].unwrap_or(self.now);
        if self.processes[index].limiter.is_due(shape) {
            self.end_chunks(index);
        }
        self.with_limiter(index, |limiter, pages, now| {
            limiter.ask(pages, now, shape, asked, sibling)
        })
    }

    fn launched(&mut self, index: usize, shape: Shape) -> Option<Mark> {
        if !self.is_limited(index) {
            return None;
        }
        self.with_limiter(index, |limiter, pages, now| limiter.launched(pages, now, STREAM, shape))
    }

    fn waits_for(&mut self, index: usize) -> Option<Mark> {
        self.is_limited(index)
            .then(|| self.processes[index].limiter.waits_for(self.now, STREAM))
            .flatten()
    }

    /// Records the events that the limiter wants behind what is in flight. On a stream without work they are reached now.
    fn end_chunks(&mut self, index: usize) {
        for (_, mark) in self.processes[index].limiter.holds(self.now, |_| true) {
            self.processes[index].first = true;
            let context = &mut self.contexts[index];
            match context.queue.back_mut() {
                Some(work) => work.mark = Some(mark.0),
                None => context.reached.push_back(Reached {
                    mark: mark.0,
                    from: context.chunk_from,
                    to: self.now,
                }),
            }
        }
    }

    fn read_events(&mut self, index: usize) {
        while let Some(reached) = self.contexts[index].reached.pop_front() {
            self.with_limiter(index, |limiter, pages, now| {
                limiter.finished(pages, now, Mark(reached.mark), reached.from, reached.to);
            });
        }
    }

    fn after_wait(&mut self, index: usize) {
        if self.is_limited(index) {
            self.read_events(index);
            self.with_limiter(index, |limiter, pages, now| limiter.waited(pages, now));
        }
    }
}

//! Tests contexts, limits and code in any order, in several processes of one share: whatever the driver answers,
//! whatever NVML shows, and wherever a process is killed, the GPU never holds more than is charged, and nothing stays
//! charged.
//!
//! ```text
//!  charge ahead ─► driver: refuses | takes ─► measure: exact | not at all ─► correct
//!            └─ killed            └─ killed
//! ```
//!
//! This is checked inside each driver call, where a stopped process would be, and after each step.

use super::context_life::{self, Creation, Place};
use super::contexts::Contexts;
use super::driver::SUCCESS;
use super::expected::{Ahead, Code, Limit};
use super::fake::{DEVICE, Fake, MIB, gpu_of};
use super::gpu::Gpu;
use super::known_code::UNKNOWN_CODE;
use super::measure::{Nvml, Process, giving_back, taking};
use super::overhead::Thing;
use super::tables::Tables;
use crate::account::Account;
use crate::calls::Calls;
use crate::ledger::fresh;
use core::ffi::c_int;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicU32;

const LIMIT: u64 = 48 * MIB;
const PROCESSES: usize = 3;
/// The known size of a context.
const CONTEXT: u64 = 6 * MIB;
const HEAP: c_int = 2;
const DEFAULT_HEAP: u64 = 2 * MIB;

/// A step of a process.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Creates a context that takes this many MiB.
    Create(u64),
    Destroy,
    /// The heap of the first context, in MiB.
    Heap(u64),
    /// The code with this fingerprint.
    Load(u64),
    Unload,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Good,
    Refused,
    /// The process dies before the driver has done anything, or after it.
    KilledBefore,
    KilledAfter,
}

/// What NVML shows during a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shows {
    All,
    Others,
    Crowd,
    Missing,
}

/// The GPU: what each process holds.
#[derive(Debug)]
struct Truth {
    held: RefCell<Vec<u64>>,
    shows: Cell<Shows>,
    /// By how much the code that is being loaded may exceed its charge.
    slack: Cell<u64>,
}

struct Actor<'a> {
    truth: &'a Truth,
    index: usize,
    gpus: Vec<Gpu<Fake>>,
    tables: Tables<Fake>,
    calls: &'static Calls,
    pid: AtomicU32,
    /// Handles of contexts, what each took, and their heaps.
    contexts: Vec<(usize, u64, u64)>,
    modules: Vec<(usize, u64)>,
    next: usize,
}

struct View<'a>(&'a Truth, usize);

impl Nvml for View<'_> {
    fn load(&self) {}

    fn device(&self, gpu: usize) -> Option<usize> {
        (self.0.shows.get() != Shows::Missing).then_some(gpu)
    }

    fn processes(&self, _device: usize) -> Option<Vec<(u32, u64)>> {
        let Self(truth, own) = self;
        let held = truth.held.borrow();
        let shown = held.iter().enumerate().filter(|(_, held)| **held > 0);
        let mut list: Vec<_> = shown.map(|(index, held)| (0x40_0000 + index as u32, *held)).collect();
        match truth.shows.get() {
            Shows::Others => list.retain(|(pid, _)| *pid != 0x40_0000 + *own as u32),
            Shows::Crowd if held[*own] > 0 => list.push((0x50_0000 + *own as u32, 1 << 40)),
            _ => {}
        }
        Some(list)
    }
}

/// Returns the size of the code with this fingerprint.
fn code_bytes(fingerprint: u64) -> u64 {
    (fingerprint % 5) * 2 * MIB
}

impl<'a> Actor<'a> {
    fn new(truth: &'a Truth, index: usize, folder: &tempfile::TempDir) -> Self {
        let share = fresh::again(folder.path(), "share", LIMIT);
        let mut gpu = gpu_of(Account::new(vec![share]));
        gpu.context_reserve = Some(CONTEXT);
        Self {
            truth,
            index,
            gpus: vec![gpu],
            tables: Tables::default(),
            calls: Box::leak(Box::default()),
            pid: AtomicU32::new(0),
            contexts: Vec::new(),
            modules: Vec::new(),
            next: 1,
        }
    }

    fn process(&self) -> Process<'_, Fake, View<'_>> {
        Process {
            gpus: &self.gpus,
            tables: &self.tables,
            calls: self.calls,
            nvml: View(self.truth, self.index),
            pid: &self.pid,
        }
    }

    fn charged(&self) -> u64 {
        self.gpus[0].account.charged()
    }

    /// The driver's part of a call. It changes the memory of this process by `change`.
    fn driver(&self, answer: Answer, change: i64) -> c_int {
        match answer {
            Answer::Refused => return 999,
            Answer::KilledBefore => resume_unwind(Box::new(())),
            Answer::Good | Answer::KilledAfter => {}
        }
        {
            let mut held = self.truth.held.borrow_mut();
            held[self.index] = held[self.index].checked_add_signed(change).expect("it holds that");
        }
        self.check();
        if answer == Answer::KilledAfter {
            resume_unwind(Box::new(()));
        }
        SUCCESS
    }

    fn check(&self) {
        let held: u64 = self.truth.held.borrow().iter().sum();
        let charged = self.charged();
        let slack = self.truth.slack.get();
        assert!(held <= charged + slack, "{held} held, {charged} charged");
        assert!(charged <= LIMIT);
    }

    fn step(&mut self, step: Step, answer: Answer) {
        // Steps that end something are never refused here, and only steps that take memory are undone.
        match step {
            Step::Create(mib) => self.create(mib * MIB, answer),
            Step::Destroy => self.destroy(answer),
            Step::Heap(mib) => self.heap(mib * MIB, answer),
            Step::Load(fingerprint) => self.load(fingerprint, answer),
            Step::Unload => self.unload(answer),
        }
        self.check();
    }

    fn create(&mut self, bytes: u64, answer: Answer) {
        let handle = self.next;
        let place = Place {
            index: 0,
            gpu: &self.gpus[0],
        };
        let creation = Creation {
            device: DEVICE,
            is_green: false,
            is_new: |_: &Contexts| true,
            count: |contexts: &mut Contexts| contexts.created += 1,
            make: || self.driver(answer, bytes as i64),
            handle: || handle,
            undo: || self.driver(Answer::Good, -(bytes as i64)),
        };
        if context_life::begin(&self.process(), &place, creation) == SUCCESS {
            context_life::keep(&self.process(), handle, 0, DEVICE, false);
            self.contexts.push((handle, bytes, DEFAULT_HEAP));
        }
        self.next += 1;
    }

    fn destroy(&mut self, answer: Answer) {
        let Some((handle, bytes, heap)) = self.contexts.first().copied() else {
            return;
        };
        // A process's modules end with its last context.
        let modules: u64 = match self.contexts.len() {
            1 => self.modules.iter().map(|(_, bytes)| bytes).sum(),
            _ => 0,
        };
        let goes = (bytes + heap - DEFAULT_HEAP + modules) as i64;
        if context_life::destroy(&self.process(), handle, || self.driver(answer, -goes)) == SUCCESS {
            self.contexts.remove(0);
            if self.contexts.is_empty() {
                self.modules.clear();
            }
        }
    }

    fn heap(&mut self, value: u64, answer: Answer) {
        let Some((context, _, now)) = self.contexts.first().copied() else {
            return;
        };
        let value = value.max(DEFAULT_HEAP);
        let limit = Limit {
            context,
            number: HEAP,
            now,
            value,
            threads: 0,
        };
        let change = value as i64 - now as i64;
        let set = || self.driver(answer, change);
        let undo = || self.driver(Answer::Good, -change);
        if taking(&self.process(), 0, Ahead::Limit(limit), set, || limit.thing(), undo) == SUCCESS {
            self.contexts[0].2 = value;
        }
    }

    fn load(&mut self, fingerprint: u64, answer: Answer) {
        if self.contexts.is_empty() {
            return;
        }
        let (handle, bytes) = (self.next, code_bytes(fingerprint));
        assert!(bytes <= UNKNOWN_CODE);
        let is_known = fingerprint.is_multiple_of(2);
        let ahead = Ahead::Code(Code {
            fingerprint,
            bytes: if is_known { bytes } else { 0 },
            is_known,
        });
        // If the file does not show its size, this much may be taken before it is charged.
        self.truth.slack.set(UNKNOWN_CODE);
        let load = || self.driver(answer, bytes as i64);
        let undo = || self.driver(Answer::Good, -(bytes as i64));
        if taking(&self.process(), 0, ahead, load, || Thing::Code(handle, 0), undo) == SUCCESS {
            self.modules.push((handle, bytes));
        }
        self.truth.slack.set(0);
        self.next += 1;
    }

    fn unload(&mut self, answer: Answer) {
        let Some((handle, bytes)) = self.modules.first().copied() else {
            return;
        };
        let unload = || self.driver(answer, -(bytes as i64));
        if giving_back(&self.process(), 0, Thing::Code(handle, 0), unload) == SUCCESS {
            self.modules.remove(0);
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<(usize, Step, Answer, Shows)>> {
    let step = prop_oneof![
        4 => (1..=CONTEXT / MIB).prop_map(Step::Create),
        2 => Just(Step::Destroy),
        3 => (0..60_u64).prop_map(Step::Heap),
        3 => (0..10_u64).prop_map(Step::Load),
        2 => Just(Step::Unload),
    ];
    let answer = prop_oneof![
        8 => Just(Answer::Good),
        1 => Just(Answer::Refused),
        1 => Just(Answer::KilledBefore),
        1 => Just(Answer::KilledAfter),
    ];
    let shows = prop_oneof![
        3 => Just(Shows::All),
        1 => Just(Shows::Others),
        1 => Just(Shows::Crowd),
        1 => Just(Shows::Missing),
    ];
    proptest::collection::vec((0..PROCESSES, step, answer, shows), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_gpu_never_holds_more_than_is_charged_and_nothing_stays_charged(steps in steps()) {
        let folder = tempfile::tempdir().expect("a folder");
        drop(fresh::share(folder.path(), "share", LIMIT));
        let truth = Truth {
            held: RefCell::new(vec![0; PROCESSES]),
            shows: Cell::new(Shows::All),
            slack: Cell::new(0),
        };
        let mut actors: Vec<_> = (0..PROCESSES).map(|index| Actor::new(&truth, index, &folder)).collect();
        for (index, step, answer, shows) in steps {
            truth.shows.set(shows);
            let mut done = Ok(());
            let killing = matches!(answer, Answer::KilledBefore | Answer::KilledAfter);
            if killing {
                done = catch_unwind(AssertUnwindSafe(|| actors[index].step(step, answer)));
            } else {
                actors[index].step(step, answer);
            }
            match done {
                // The process's memory is freed before its lane looks dead.
                Err(cause) if cause.is::<()>() => {
                    truth.slack.set(0);
                    truth.held.borrow_mut()[index] = 0;
                    actors[index] = Actor::new(&truth, index, &folder);
                }
                Err(cause) => resume_unwind(cause),
                Ok(()) => {}
            }
        }
        truth.shows.set(Shows::All);
        for actor in &mut actors {
            while !actor.contexts.is_empty() {
                actor.step(Step::Destroy, Answer::Good);
            }
        }
        actors[0].gpus[0].account.reap();
        let last = fresh::again(folder.path(), "share", LIMIT);
        let charged = last.charged();
        prop_assert_eq!(charged, 0);
    }
}

/// More processes than a share has room for, each of them trying again and again.
#[test]
fn processes_that_retry_in_a_full_share_never_reach_the_driver() {
    for shows in [Shows::All, Shows::Others, Shows::Crowd, Shows::Missing] {
        let folder = tempfile::tempdir().expect("a folder");
        drop(fresh::share(folder.path(), "share", LIMIT));
        let truth = Truth {
            held: RefCell::new(vec![0; 20]),
            shows: Cell::new(shows),
            slack: Cell::new(0),
        };
        let mut actors: Vec<_> = (0..20).map(|index| Actor::new(&truth, index, &folder)).collect();
        for _ in 0..3 {
            for actor in &mut actors {
                actor.create(CONTEXT, Answer::Good);
                actor.check();
            }
        }
        assert_eq!(truth.held.borrow().iter().sum::<u64>(), LIMIT, "{shows:?}");
    }
}

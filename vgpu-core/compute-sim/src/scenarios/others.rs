//! Priorities, starts, deaths, ranks, idle time, and neighbours without turns.

use vgpu_abi::arbitration::{Entry, LEAST_WEIGHT, WEIGHT_OF_ONE_CORE, entry_flags};

use super::{balanced, guaranteed, run_programs, run_threads, share};
use crate::figures::{Error, WARM};
use crate::law::LawKind;
use crate::programs::{busy, rank, waits};
use crate::world::Thread;
use crate::{MS, Ns, S, US};

/// Runs a share of low priority beside a busy one of high priority. Returns the use of the low one, and its longest
/// wait in ms.
#[must_use]
pub fn low_beside_high(law: LawKind) -> (f64, f64) {
    let shares = vec![share(50, entry_flags::HIGH), balanced(50)];
    let outcome = run_programs(law, shares, vec![busy(500 * US), busy(500 * US)], 12 * S);
    (outcome.uses()[1], outcome.threads[1].longest_wait as f64 / MS as f64)
}

/// Starts a share of 70 cores 5 s after one of 30, with kernels of this length. Returns the ms until a window of 100
/// ms is within 5 percentage points of its entitlement.
#[must_use]
pub fn start_delay(law: LawKind, kernel: Ns) -> Option<Ns> {
    let mut threads = vec![Thread::new(0, 0, busy(kernel)), Thread::new(1, 1, busy(500 * US))];
    threads[1].from = 5 * S;
    let outcome = run_threads(law, vec![balanced(30), balanced(70)], threads, 8 * S);
    let is_there = |at: &Ns| (outcome.used[1].percent(5 * S + at * MS, 5 * S + (at + 100) * MS) - 70.0).abs() < 5.0;
    (0..2000).step_by(10).find(is_there)
}

/// Returns the steps per second of two jobs of two ranks that share two GPUs, or of one job alone if `jobs` is 1.
/// `crossed`: their first ranks are on different GPUs.
#[must_use]
pub fn ranks(law: LawKind, jobs: usize, crossed: bool) -> Vec<f64> {
    let threads = (0..jobs * 2).map(|index| {
        let (job, of_job) = (index / 2, index % 2);
        let mut thread = Thread::new(job, index, rank(300 * US, 4, 10));
        thread.gpu = if crossed && job == 1 { 1 - of_job } else { of_job };
        thread.partner = Some(job * 2 + 1 - of_job);
        thread.from = if crossed {
            of_job as Ns * 5 * MS
        } else {
            job as Ns * 3 * MS + of_job as Ns * MS
        };
        thread
    });
    let outcome = run_threads(law, vec![balanced(50); jobs], threads.collect(), 20 * S);
    let firsts = outcome.threads.iter().step_by(2);
    firsts.map(|thread| thread.launches_counted as f64 / 18.0).collect()
}

/// How the others know about a share that ignores the limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// The node's page says that the share takes no turns.
    Flagged,
    NotFlagged,
}

fn without_turns(share: usize, of: Unseen) -> (Entry, Thread) {
    let flags = if of == Unseen::Flagged {
        entry_flags::UNLIMITED
    } else {
        0
    };
    let thread = Thread {
        ignores: true,
        ..Thread::new(share, share, busy(500 * US))
    };
    (super::share(10, flags), thread)
}

/// Returns the use of three shares of 30 cores beside one of 10 that ignores the limiter.
#[must_use]
pub fn one_ignores(law: LawKind, of: Unseen) -> Vec<f64> {
    let (entry, thread) = without_turns(3, of);
    let mut threads: Vec<Thread> = (0..3).map(|n| Thread::new(n, n, busy(300 * US))).collect();
    threads.push(thread);
    let shares = vec![balanced(30), balanced(30), balanced(30), entry];
    run_threads(law, shares, threads, 12 * S).uses()
}

/// Returns the use of a Guaranteed share of 30 cores beside one of 10 that ignores the limiter.
#[must_use]
pub fn guaranteed_beside_one_that_ignores(law: LawKind, of: Unseen) -> Vec<f64> {
    let (entry, thread) = without_turns(1, of);
    let threads = vec![Thread::new(0, 0, busy(300 * US)), thread];
    run_threads(law, vec![guaranteed(30), entry], threads, 12 * S).uses()
}

/// Runs a Guaranteed share of 10 cores beside a Balanced one of 90. Returns the use of both, and the error of the
/// first.
#[must_use]
pub fn guaranteed_beside_balanced(law: LawKind) -> (Vec<f64>, Error) {
    let shares = vec![guaranteed(10), balanced(90)];
    let outcome = run_programs(law, shares, vec![busy(500 * US), busy(500 * US)], 12 * S);
    (outcome.uses(), outcome.used[0].error(10.0))
}

/// Returns the use of a share of four processes and of one with one process, 50 cores each.
#[must_use]
pub fn four_processes(law: LawKind) -> Vec<f64> {
    let mut threads: Vec<Thread> = (0..4).map(|process| Thread::new(0, process, busy(500 * US))).collect();
    threads.push(Thread::new(1, 4, busy(500 * US)));
    run_threads(law, vec![balanced(50); 2], threads, 12 * S).uses()
}

/// Returns the use of idle time, by a share of 30 cores and one of 0 cores, and by shares of 30, 70 and 0.
#[must_use]
pub fn best_effort(law: LawKind) -> (Vec<f64>, Vec<f64>) {
    let used = |cores: &[u32], rest: u32| {
        let mut shares: Vec<Entry> = cores.iter().map(|cores| balanced(*cores)).collect();
        shares.push(Entry {
            weight: rest,
            ..share(0, entry_flags::BEST_EFFORT)
        });
        let programs = shares.iter().map(|_| busy(500 * US)).collect();
        run_programs(law, shares, programs, 12 * S).uses()
    };
    (used(&[30], 70 * WEIGHT_OF_ONE_CORE), used(&[30, 70], LEAST_WEIGHT))
}

/// Returns the use of two shares of 30 cores, the second of which is idle most of the time.
#[must_use]
pub fn mostly_idle(law: LawKind) -> Vec<f64> {
    let programs = vec![busy(500 * US), waits(500 * US, 5, 20 * MS)];
    run_programs(law, vec![balanced(30); 2], programs, 12 * S).uses()
}

/// Repeatedly kills or stops a share's process during its turn. Returns the longest wait of the other share, in ms.
#[must_use]
pub fn dead_holders(law: LawKind) -> f64 {
    let mut threads = vec![Thread::new(1, 0, busy(500 * US))];
    for death in 0..40 {
        let mut thread = Thread::new(0, 1 + death as usize, busy(500 * US));
        thread.from = WARM + death * 100 * MS;
        thread.stops = Some(thread.from + 50 * MS + death * 700 * US);
        threads.push(thread);
    }
    let outcome = run_threads(law, vec![balanced(50); 2], threads, 8 * S);
    outcome.threads[0].longest_wait as f64 / MS as f64
}

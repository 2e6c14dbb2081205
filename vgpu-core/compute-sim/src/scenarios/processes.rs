//! Shares with many processes, and with short ones.

use super::{balanced, guaranteed, run_threads};
use crate::figures::Error;
use crate::law::LawKind;
use crate::programs::{ShortLife, busy, short_processes, waits};
use crate::world::Thread;
use crate::{MS, Ns, S, US};

/// Processes that launch one kernel of 1 ms and exit, in a Guaranteed share of 10 cores. `lanes` of them run at once.
#[derive(Clone, Debug)]
pub struct Short {
    /// Use and charge when alone, in percent of the time.
    pub used: f64,
    pub charged: f64,
    /// Use beside a Balanced share of 90.
    pub beside: Vec<f64>,
}

#[must_use]
pub fn short(law: LawKind, lanes: usize) -> Short {
    const LENGTH: Ns = 10 * S;
    let life = ShortLife {
        kernel: MS,
        lives: None,
        normal: true,
        pause: 20 * MS,
    };
    let threads = || -> Vec<Thread> {
        let all = (0..lanes).map(|lane| Thread::new(0, lane, short_processes(life)));
        all.collect()
    };
    let alone = run_threads(law, vec![guaranteed(10)], threads(), LENGTH);
    let mut both = threads();
    both.push(Thread::new(1, lanes, busy(500 * US)));
    Short {
        used: alone.uses()[0],
        charged: alone.charged[0] as f64 * 100.0 / LENGTH as f64,
        beside: run_threads(law, vec![guaranteed(10), balanced(90)], both, LENGTH).uses(),
    }
}

/// A process of a Guaranteed share exits or is killed while a kernel of unknown length runs. 11 s later the next
/// process launches. Returns how long it waits, in s.
#[must_use]
pub fn after_an_end(law: LawKind, cores: u32, normal: bool) -> f64 {
    const LATER: Ns = 11_000;
    const END: Ns = 119_000;
    let first = short_processes(ShortLife {
        kernel: MS,
        lives: Some(10),
        normal,
        pause: 100 * S,
    });
    let mut second = Thread::new(0, 1, waits(MS, 5, 10 * US));
    second.from = LATER * MS;
    let threads = vec![Thread::new(0, 0, first), second];
    let outcome = run_threads(law, vec![guaranteed(cores)], threads, 120 * S);
    let works = |ms: &Ns| outcome.used[0].percent(ms * MS, (ms + 10) * MS) > 0.0;
    let at = (LATER..END).step_by(10).find(works);
    (at.unwrap_or(END) - LATER) as f64 / 1e3
}

/// Returns the error of a Guaranteed share of 10 cores with this number of processes and kernels of 1 ms.
#[must_use]
pub fn many(law: LawKind, processes: usize, is_waiting: bool) -> Error {
    let program = || if is_waiting { waits(MS, 5, 20 * US) } else { busy(MS) };
    let threads = (0..processes).map(|process| Thread::new(0, process, program()));
    let outcome = run_threads(law, vec![guaranteed(10)], threads.collect(), 8 * S);
    outcome.used[0].error(10.0)
}

/// Returns the use of a Guaranteed share of 10 cores with 40 processes, each of which launches a kernel of 100 ms and
/// ends 700 ms later.
#[must_use]
pub fn end_with_work(law: LawKind) -> f64 {
    const LENGTH: Ns = 30 * S;
    let life = ShortLife {
        kernel: 100 * MS,
        lives: Some(700 * MS),
        normal: true,
        pause: MS,
    };
    let threads = (0..40).map(|process| Thread::new(0, process, short_processes(life)));
    let outcome = run_threads(law, vec![guaranteed(10)], threads.collect(), LENGTH);
    outcome.used[0].percent(0, LENGTH)
}

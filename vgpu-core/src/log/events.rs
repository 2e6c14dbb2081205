//! What can happen, and the line and the counters that it gets. docs/debugging.md describes the lines.

use super::{Level, Log, count, current};
use crate::account::Account;
use crate::os::monotonic_ns;
use std::fmt::Arguments;
use std::path::Path;
use vgpu_abi::log::{Counter, Wait};

/// Something that was found: a line of level info.
pub fn info(text: Arguments<'_>) {
    if let Some(log) = current() {
        log.write(Level::Info, text);
    }
}

/// A library of the driver was opened.
pub fn library(path: &Path) {
    info(format_args!("driver file={path:?}"));
}

/// Memory was refused to the program.
#[cold]
pub fn refused(gpu: &str, account: &Account, bytes: u64) {
    let Some(log) = current() else { return };
    log.add(Counter::Refusals as usize, 1);
    log.add(Counter::RefusedBytes as usize, bytes);
    let (charged, limit) = (account.charged(), account.limit());
    log.write(
        Level::Error,
        format_args!("refused gpu={gpu} bytes={bytes} charged={charged} limit={limit}"),
    );
}

/// NVML lists this process by `pid`.
#[cold]
pub fn pid_learned(pid: u32) {
    info(format_args!("pid learned={pid}"));
}

/// The PID was another process's after all.
#[cold]
pub fn pid_forgotten(pid: u32) {
    info(format_args!(
        "pid forgotten={pid} reason=\"NVML shows less for it than this process is charged\""
    ));
}

/// A piece of GPU work was not measured by events, and is charged by the clock. Lines are few: of the first, the
/// second, the fourth and so on.
#[cold]
pub fn failed_event() {
    count(Counter::FailedEvents, 1);
    if let Some(log) = current() {
        let count = log.counted(Counter::FailedEvents);
        if count.is_power_of_two() {
            log.write(Level::Error, format_args!("event-failed count={count}"));
        }
    }
}

/// A launch has waited for long, lately for this reason. A line each time that it has waited twice as long.
#[cold]
pub fn long_wait(reason: Wait, ns: u64, is_first: bool) {
    if is_first {
        count(Counter::LongWaits, 1);
    }
    if let Some(log) = current() {
        let (name, s) = (reason.name(), ns / 1_000_000_000);
        log.write(Level::Error, format_args!("long-wait reason={name} s={s}"));
    }
}

/// Runs `wait`, in which this thread waits for this reason.
pub fn waits<T>(reason: Wait, wait: impl FnOnce() -> T) -> T {
    let Some(log) = current() else { return wait() };
    let began = monotonic_ns();
    let outcome = wait();
    let ns = monotonic_ns().saturating_sub(began);
    log.add_wait(reason, ns);
    let (name, us) = (reason.name(), ns / 1000);
    log.write(Level::Debug, format_args!("wait reason={name} us={us}"));
    outcome
}

/// A measurement of this process's memory, which is reported when it is dropped.
#[derive(Debug)]
pub struct Measuring<'a>(Option<Progress<'a>>);

#[derive(Debug)]
struct Progress<'a> {
    log: &'static Log,
    gpu: &'a str,
    began: u64,
    /// What was charged ahead or was measured before, as overhead.
    ahead: u64,
    lists: u64,
    /// What the newest list has for this process, and what it is charged for everything else.
    held: Option<u64>,
    other: u64,
    outcome: Seen,
}

/// How far a measurement came.
#[derive(Clone, Copy, Debug)]
enum Seen {
    NoNvml,
    NoList,
    /// Nobody knows by which PID NVML lists this process.
    Unknown,
    /// There was a list, of no use.
    Listed,
    Excess(i64, i64),
}

impl<'a> Measuring<'a> {
    #[must_use]
    pub fn begin(gpu: &'a str, ahead: u64) -> Self {
        Self(current().map(|log| Progress {
            log,
            gpu,
            began: monotonic_ns(),
            ahead,
            lists: 0,
            held: None,
            other: 0,
            outcome: Seen::NoNvml,
        }))
    }

    /// NVML has this GPU.
    pub fn found_gpu(&mut self) {
        self.sees(Seen::NoList);
    }

    /// NVML has listed the processes; ours is `pid`, if that is known.
    pub fn listed(&mut self, list: &[(u32, u64)], pid: u32, other: u64) {
        if let Some(progress) = &mut self.0 {
            progress.lists += 1;
            progress.other = other;
            progress.outcome = Seen::Listed;
        }
        self.finds(list, pid);
    }

    /// This process is `pid` in the list; 0: not known.
    pub fn finds(&mut self, list: &[(u32, u64)], pid: u32) {
        if let Some(progress) = &mut self.0 {
            let own = list.iter().find(|(listed, _)| *listed == pid && pid != 0);
            progress.held = own.map(|(_, held)| *held);
        }
    }

    pub fn unknown(&mut self) {
        self.sees(Seen::Unknown);
    }

    pub fn excess(&mut self, least: i64, most: i64) {
        self.sees(Seen::Excess(least, most));
    }

    fn sees(&mut self, outcome: Seen) {
        if let Some(progress) = &mut self.0 {
            progress.outcome = outcome;
        }
    }
}

impl Progress<'_> {
    fn report(&self) {
        let ns = monotonic_ns().saturating_sub(self.began);
        self.log.add(Counter::Measurements as usize, 1);
        self.log.add(Counter::MeasuringNs as usize, ns);
        self.log.add(Counter::Lists as usize, self.lists);
        let Self {
            gpu,
            ahead,
            lists,
            other,
            ..
        } = self;
        let us = ns / 1000;
        let held = self.held.unwrap_or(0);
        let reason = match self.outcome {
            Seen::Excess(least, most) => {
                return self.log.write(
                    Level::Info,
                    format_args!(
                        "measured gpu={gpu} ahead={ahead} held={held} else={other} overhead={least}..{most} lists={lists} us={us}"
                    ),
                );
            }
            Seen::Unknown => "nobody knows by which PID NVML lists this process",
            Seen::NoNvml => "NVML is not open, or does not have this GPU",
            Seen::NoList => "NVML lists no processes",
            Seen::Listed if self.held.is_some() => {
                "the lists show less than is charged, or other threads did not pause"
            }
            Seen::Listed => "the lists do not show this process",
        };
        self.log.add(Counter::Unmeasured as usize, 1);
        self.log.write(
            Level::Error,
            format_args!(
                "unmeasured gpu={gpu} ahead={ahead} held={held} else={other} lists={lists} us={us} reason={reason:?}"
            ),
        );
    }
}

impl Drop for Measuring<'_> {
    fn drop(&mut self) {
        if let Some(progress) = &self.0 {
            progress.report();
        }
    }
}
